"""What an agent's own files tell of an attempt."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from closeloop.records.protocols import Recording
from closeloop.records.session import Exchange, Session
from closeloop.traces.exchange_session import session_from_exchanges
from closeloop.traces.file_source import FileSource
from closeloop.traces.reader_detection import find_reader


def session_from_recordings(recordings: Sequence[Recording]) -> Session | None:
    """The session that the files hold: of several the one that tells most, rather no copy."""
    if not recordings:
        return None
    with tempfile.TemporaryDirectory(prefix="closeloop-") as folder:
        paths = [
            path for one in recordings if (path := _write_recording(one, Path(folder))) is not None
        ]
        sessions = [session for path in paths for session in _iter_sessions(path)]
    nonempty_sessions = [session for session in sessions if session.trace.events]
    return max(
        nonempty_sessions, key=lambda one: (one.copy is None, len(one.trace.events)), default=None
    )


def session_from_gateway(exchanges: Sequence[Exchange]) -> Session | None:
    """The same from what the agent asked its model, where its files say nothing."""
    session = session_from_exchanges(exchanges, {}) if exchanges else None
    return session if session and session.trace.events else None


def _write_recording(recording: Recording, folder: Path) -> Path | None:
    """The recording as a file where the agent had it; its path is the agent's word."""
    parts = PurePosixPath(recording.path).parts
    if not parts or any(part in ("/", "..") or "\0" in part for part in parts):
        return None
    path = folder.joinpath(*parts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(recording.content)
    except OSError:  # a name that is too long, or a file where another one wants a folder
        return None
    return path


def _iter_sessions(path: Path) -> Iterator[Session]:
    """A reader is a plug-in and the file is an agent's: either may go wrong at any place."""
    try:
        source = FileSource(path)
        reader = find_reader(source)
        if reader is None:
            return
        owner = reader.owner(source)
        if owner is None or owner == path or not owner.exists():
            yield from reader.read(source)
    except Exception:  # noqa: S110 - what was read until here is told, the rest by other files
        pass
