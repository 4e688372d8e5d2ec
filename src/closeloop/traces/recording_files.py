"""Find recordings: the files that may be some, the reader of each, and those of an attempt."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath

from closeloop import plugins
from closeloop.records.protocols import Reader, Recording, RecordingSource
from closeloop.records.record import Record
from closeloop.records.session import Exchange, Session
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers.gateway import session_from_exchanges

SESSION_FOLDERS = """
.claude/projects
.codex/sessions .codex/archived_sessions
.gemini/tmp
.cline/data/sessions
.qwen/projects .qwen/tmp
.local/share/opencode
.local/share/goose/sessions .config/goose/sessions
.pi/agent/sessions
.cursor/projects .factory/sessions .kimi/sessions
.local/share/kiro-cli .local/share/amazon-q
.copilot/session-state .copilot/history-session-state
.openhands/conversations .openhands/sessions .openhands-state/sessions
"""
EDITORS = "Code Code/Insiders VSCodium Cursor Windsurf"
EXTENSIONS = "saoudrizwan.claude-dev rooveterinaryinc.roo-cline"
SKIPPED_FOLDERS = frozenset({".git", "node_modules", "__pycache__"})
DATABASE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
START_BYTES = 12
MAX_STARTS = 1000
_likely_readers: dict[bytes, list[Reader]] = {}
"""Readers, the last to recognise a file that began with the same bytes first."""


class RecordingFile(Record):
    """A file, as the disk knows it."""

    path: str
    size: int
    changed: int
    """When it was last written, in nanoseconds."""


class UnreadablePath(Record):
    """A file or folder that could not be looked at, and why."""

    path: str
    why: str


def default_folders(home: Path) -> list[Path]:
    """Where agents keep their sessions, as far as that is there."""
    places = [home / name for name in SESSION_FOLDERS.split()]
    for base in (home / ".config", home / "Library/Application Support"):
        for editor in EDITORS.split():
            storage = base / editor / "User/globalStorage"
            places += [storage / name / "tasks" for name in EXTENSIONS.split()]
    places += [home / ".vscode-server/data/User/globalStorage" / e for e in EXTENSIONS.split()]
    return [place for place in places if place.is_dir()]


def walk_files(places: Sequence[Path]) -> Iterator[RecordingFile | UnreadablePath]:
    """Every file in some places, one at a time, however many there are; none of them twice."""
    seen: set[tuple[int, int]] = set()
    for place in places:
        try:
            about = place.stat()
        except OSError as error:
            yield UnreadablePath(path=str(place), why=error.strerror or "cannot be read")
            continue
        if stat.S_ISDIR(about.st_mode):
            yield from _walk_folder(str(place.absolute()), seen)
        elif recording := _recording_file(str(place.absolute()), about):
            yield recording


def _walk_folder(path: str, seen: set[tuple[int, int]]) -> Iterator[RecordingFile | UnreadablePath]:
    """The files of a folder and those below it; a link back to one seen before ends there."""
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        try:
            about = os.stat(folder)  # noqa: PTH116 - a million paths need not be objects
            if (about.st_dev, about.st_ino) in seen:
                continue
            seen.add((about.st_dev, about.st_ino))
            below: list[str] = []
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name in SKIPPED_FOLDERS:
                        continue
                    try:
                        if entry.is_dir():
                            below.append(entry.path)
                        elif recording := _recording_file(entry.path, entry.stat()):
                            yield recording
                    except OSError as error:
                        yield UnreadablePath(
                            path=entry.path, why=error.strerror or "cannot be read"
                        )
            waiting += sorted(below, reverse=True)
        except OSError as error:
            yield UnreadablePath(path=folder, why=error.strerror or "cannot be read")


def stat_recording(path: str) -> RecordingFile | None:
    """One file as it is now; None where there is none."""
    try:
        return _recording_file(path, os.stat(path))  # noqa: PTH116
    except (OSError, ValueError):
        return None


def _recording_file(path: str, about: os.stat_result) -> RecordingFile | None:
    """Only what can be read to an end: no pipe, no device."""
    if not stat.S_ISREG(about.st_mode):
        return None
    size, changed = about.st_size, about.st_mtime_ns
    if path.endswith(DATABASE_SUFFIXES):
        # A database that is open somewhere has its newest pages in a file beside it.
        with suppress(OSError):
            log = os.stat(f"{path}-wal")  # noqa: PTH116
            size, changed = size + log.st_size, max(changed, log.st_mtime_ns)
    return RecordingFile(path=path, size=size, changed=changed)


@cache
def installed_readers() -> Sequence[Reader]:
    """Every reader that is installed, in a fixed order."""
    return plugins.load_plugins("readers")


def find_reader(source: RecordingSource) -> Reader | None:
    """The one reader that recognises a file. Formats exclude each other: a test sees to that."""
    if len(_likely_readers) > MAX_STARTS:
        _likely_readers.clear()
    likely = _likely_readers.setdefault(source.head[:START_BYTES], list(installed_readers()))
    for place, reader in enumerate(likely):
        if reader.recognises(source):
            likely.insert(0, likely.pop(place))
            return reader
    return None


def list_parts(reader: Reader, source: RecordingSource) -> Sequence[Path]:
    """The other files of a recording; none for a reader whose recordings are one file."""
    parts: Callable[[RecordingSource], Sequence[Path]] | None = getattr(reader, "parts", None)
    return parts(source) if parts is not None else ()


def find_owner(reader: Reader, source: RecordingSource) -> Path | None:
    """The file whose recording this one is only a part of; None for a file that stands alone."""
    owner: Callable[[RecordingSource], Path | None] | None = getattr(reader, "owner", None)
    return owner(source) if owner is not None else None


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
        owner = find_owner(reader, source)
        if owner is None or owner == path or not owner.exists():
            yield from reader.read(source)
    except Exception:  # noqa: S110 - what was read until here is told, the rest by other files
        pass
