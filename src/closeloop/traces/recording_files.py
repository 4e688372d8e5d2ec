"""Find files that may be recordings: in the places given, or where agents are known to write."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from closeloop.records.record import Record

SESSION_FOLDERS = """
.claude/projects
.codex/sessions .codex/archived_sessions
.gemini/tmp
.cline/data/sessions
.qwen/projects .qwen/tmp
.local/share/opencode
.local/share/goose/sessions .config/goose/sessions
.pi/agent/sessions
.copilot/session-state .copilot/history-session-state
.openhands/conversations .openhands/sessions .openhands-state/sessions
"""
EDITORS = "Code Code/Insiders VSCodium Cursor Windsurf"
EXTENSIONS = "saoudrizwan.claude-dev rooveterinaryinc.roo-cline"
SKIPPED_FOLDERS = frozenset({".git", "node_modules", "__pycache__"})
DATABASE_SUFFIXES = (".db", ".sqlite", ".sqlite3")


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
