"""OpenCode's store before it had a database: a file for each session, message and part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from closeloop.records.protocols import RecordingSource
from closeloop.traces.opencode.opencode_session import OpencodeRecording
from closeloop.traces.untrusted_json import as_amount, as_mapping, as_text, try_decode_json

MAX_FOLDER_FILES = 20_000
"""How many files of a folder are looked at."""
MAX_INFO_BYTES = 1 << 20
_SAFE_NAME = re.compile(r"[\w-]{1,128}")

StoredFileKind = Literal["session", "message", "part"]
StoredSessions = Mapping[str, tuple[Path, dict[str, Any]]]


def stored_file_kind(source: RecordingSource) -> StoredFileKind | None:
    """What a file holds; None for those of others."""
    if b'"sessionID"' not in source.head and b'"projectID"' not in source.head:
        return None
    fields = _read_document(source)
    if as_text(fields.get("id")) is None:
        return None
    if isinstance(fields.get("time"), dict) and as_text(fields.get("sessionID")):
        return "message" if fields.get("role") in ("user", "assistant") else None
    if as_text(fields.get("sessionID")) and as_text(fields.get("messageID")):
        return "part" if as_text(fields.get("type")) else None
    return "session" if _is_session_info(fields) else None


def _read_document(source: RecordingSource) -> dict[str, Any]:
    lines = source.lines
    return as_mapping(source.document if not lines else lines[0] if len(lines) == 1 else None)


def _is_session_info(told: Mapping[str, Any]) -> bool:
    named = all(as_text(told.get(name)) for name in ("id", "projectID", "directory", "version"))
    return named and isinstance(told.get("time"), dict) and "messages" not in told


def storage_owner(source: RecordingSource) -> Path | None:
    """The file of the session that a message, a part or a child belongs to."""
    fields, stored = _read_document(source), _stored_sessions(_storage_root(source.path))
    name = as_text(fields.get("sessionID")) or as_text(fields.get("id")) or ""
    above: dict[str, None] = {}
    while name in stored and name not in above:
        above[name] = None
        name = as_text(stored[name][1].get("parentID")) or ""
    if not above:
        return None
    names = list(above)
    # Of parents that name each other in a ring, one must be the first.
    owner_path, _ = stored[min(names[names.index(name) :]) if name in above else names[-1]]
    return owner_path if owner_path != source.path else None


def find_session_family(source: RecordingSource) -> dict[str, Path]:
    """A session and those that came of it, by their ids."""
    first, stored = (
        as_text(_read_document(source).get("id")) or "",
        _stored_sessions(_storage_root(source.path)),
    )
    children: dict[str, list[str]] = {}
    for name, (_, info) in stored.items():
        children.setdefault(as_text(info.get("parentID")) or "", []).append(name)
    paths_by_id = {first: source.path}
    waiting = [first]
    while waiting:
        for name in children.get(waiting.pop(), ()):
            if name not in paths_by_id:
                paths_by_id[name] = stored[name][0]
                waiting.append(name)
    return paths_by_id


def list_storage_parts(source: RecordingSource) -> Sequence[Path]:
    """All files of a session and of its children but the first one."""
    root, files = _storage_root(source.path), []
    for name, path in find_session_family(source).items():
        messages = _json_files_of(root / "message", name)
        files += [] if path == source.path else [path]
        files += messages
        files += [part for one in messages for part in _json_files_of(root / "part", one.stem)]
    return files


def load_stored_session(source: RecordingSource, path: Path) -> OpencodeRecording | None:
    """A session with its messages; None where it has none."""
    root, info = _storage_root(source.path), _read_document(source.beside(path))
    messages = []
    for one in _json_files_of(root / "message", as_text(info.get("id")) or ""):
        message_parts = [
            _read_document(source.beside(part)) for part in _json_files_of(root / "part", one.stem)
        ]
        messages.append({"info": _read_document(source.beside(one)), "parts": message_parts})
    messages.sort(key=_creation_time)
    return OpencodeRecording(info, messages) if messages else None


def _creation_time(message: Mapping[str, Any]) -> float:
    return as_amount(as_mapping(as_mapping(message.get("info")).get("time")).get("created")) or 0.0


def _storage_root(path: Path) -> Path:
    """Sessions lie by project, messages by session, parts by message."""
    return path.parent.parent.parent


def _json_files_of(folder: Path, name: str) -> list[Path]:
    if not _SAFE_NAME.fullmatch(name):
        return []
    return sorted(_iter_json_files(folder / name))


def _iter_json_files(folder: Path) -> Iterator[Path]:
    try:
        yield from islice(folder.glob("*.json"), MAX_FOLDER_FILES)
    except OSError:
        return


def _stored_sessions(root: Path) -> StoredSessions:
    """The sessions of a store, looked up again only when one comes or goes."""
    try:
        folders = sorted(islice((root / "session").iterdir(), MAX_FOLDER_FILES))
        stamps = tuple((folder, folder.stat().st_mtime_ns) for folder in folders)
    except OSError:
        return {}
    return _scan_sessions(stamps)


@lru_cache(maxsize=4)
def _scan_sessions(stamps: tuple[tuple[Path, int], ...]) -> StoredSessions:
    sessions: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in (path for folder, _ in stamps for path in sorted(_iter_json_files(folder))):
        try:
            with path.open("rb") as file:
                info = as_mapping(try_decode_json(file.read(MAX_INFO_BYTES)))
        except OSError:
            continue
        if _is_session_info(info):
            sessions.setdefault(info["id"], (path, info))
    return sessions
