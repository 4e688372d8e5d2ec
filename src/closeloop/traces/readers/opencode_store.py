"""OpenCode's own store, a database or (older) many files: children with their parents."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import Session
from closeloop.sqlite_files import find_journal, has_tables, open_database, table_columns
from closeloop.traces.file_source import LazyMapping, is_database
from closeloop.traces.readers.opencode_session import (
    OpencodeFamily,
    OpencodeRecording,
    session_from_opencode,
)
from closeloop.traces.session_builder import count_skip
from closeloop.traces.untrusted_json import as_amount, as_mapping, as_text, try_decode_json

name = "opencode-store"
version = 2

_TABLES: dict[str, Sequence[str]] = {
    "session": ("id", "parent_id", "directory", "version", "time_created", "time_updated"),
    "message": ("id", "session_id", "time_created", "data"),
    "part": ("id", "message_id", "session_id", "data"),
}
_PARTS_QUERY = "SELECT message_id, id, data FROM part WHERE session_id = ? ORDER BY message_id, id"
_MESSAGES_QUERY = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
MAX_FOLDER_FILES = 20_000
"""Number of files of a folder that are examined."""
MAX_INFO_BYTES = 1 << 20
_SAFE_NAME = re.compile(r"[\w-]{1,128}")
StoredFileKind = Literal["session", "message", "part"]
StoredSessions = Mapping[str, tuple[Path, dict[str, Any]]]


def recognises(source: RecordingSource) -> bool:
    if is_database(source):
        return has_tables(source.path, _TABLES)
    return stored_file_kind(source) is not None


def parts(source: RecordingSource) -> Sequence[Path]:
    if not is_database(source):
        return list_storage_parts(source) if stored_file_kind(source) == "session" else ()
    pending = find_journal(source.path)
    return [pending] if pending else ()


def owner(source: RecordingSource) -> Path | None:
    return None if is_database(source) else storage_owner(source)


def read(source: RecordingSource) -> Iterator[Session]:
    if not is_database(source):
        yield from _iter_file_sessions(source)
        return
    try:
        with open_database(source.path) as base:
            yield from _iter_database_sessions(base, source.skipped)
    except (sqlite3.Error, OSError, ValueError):
        count_skip(source.skipped, "a database that cannot be read to its end")


def _iter_file_sessions(source: RecordingSource) -> Iterator[Session]:
    kind = stored_file_kind(source)
    if kind != "session":
        count_skip(source.skipped, f"a {kind} without its session")
        return
    paths_by_id = find_session_family(source)
    children = LazyMapping(paths_by_id, lambda key: load_stored_session(source, paths_by_id[key]))
    family, seen_ids = OpencodeFamily(children, source.skipped), set[str]()
    for session_id in paths_by_id:
        # A child that its parent never mentions is a separate session.
        if session_id not in seen_ids and (recorded := children[session_id]) is not None:
            yield session_from_opencode(recorded, family, (name, version))
            seen_ids |= family.read_ids
        elif session_id not in seen_ids:
            count_skip(source.skipped, "a session without messages")


def _iter_database_sessions(base: sqlite3.Connection, skipped: dict[str, int]) -> Iterator[Session]:
    infos_by_id = _load_session_infos(base)
    seen_ids: set[str] = set()
    roots = [
        root_id for root_id, info in infos_by_id.items() if info.get("parentID") not in infos_by_id
    ]
    # Those whose parents only name each other, or never mention them, come last.
    for session_id in [*roots, *infos_by_id]:
        if session_id in seen_ids:
            continue
        lost: dict[str, int] = {}
        children = LazyMapping(infos_by_id, partial(_load_recording, base, infos_by_id, lost))
        family = OpencodeFamily(children, lost)
        recorded = children[session_id]
        seen_ids.add(session_id)
        if recorded is not None:
            yield session_from_opencode(recorded, family, (name, version))
            seen_ids |= family.read_ids
        elif _is_in_new_tables(base, session_id):
            count_skip(lost, "a session in tables of a newer OpenCode")
        else:
            count_skip(lost, "a session without messages")
        for reason, number in lost.items():
            skipped[reason] = skipped.get(reason, 0) + number


def _is_in_new_tables(base: sqlite3.Connection, session: str) -> bool:
    """Whether a session's messages are in the newer table."""
    if "session_id" not in table_columns(base, "session_message"):
        return False
    query = "SELECT 1 FROM session_message WHERE session_id = ? LIMIT 1"
    return base.execute(query, (session,)).fetchone() is not None


def _load_session_infos(base: sqlite3.Connection) -> dict[str, dict[str, Any]]:
    known_columns = table_columns(base, "session")
    optional_columns = [
        column for column in ("agent", "revert", "share_url", "title") if column in known_columns
    ]
    columns = ", ".join([*_TABLES["session"], *optional_columns])
    result = {}
    for row in base.execute(f"SELECT {columns} FROM session ORDER BY time_created, id"):  # noqa: S608
        fields = dict(zip((*_TABLES["session"], *optional_columns), row, strict=True))
        if not isinstance(fields["id"], str) or not fields["id"]:
            continue
        result[fields["id"]] = {
            "id": fields["id"],
            "parentID": fields["parent_id"],
            "directory": fields["directory"],
            "version": fields["version"],
            "agent": fields.get("agent"),
            "revert": try_decode_json(fields.get("revert")),
            "share": {"url": fields.get("share_url")},
            "time": {"created": fields["time_created"], "updated": fields["time_updated"]},
        }
    return result


def _load_recording(
    base: sqlite3.Connection,
    infos_by_id: Mapping[str, Mapping[str, Any]],
    skipped: dict[str, int],
    session: str,
) -> OpencodeRecording | None:
    messages = _load_messages(base, session, skipped)
    return OpencodeRecording(infos_by_id[session], messages) if messages else None


def _load_messages(
    base: sqlite3.Connection, session: str, skipped: dict[str, int]
) -> list[dict[str, Any]]:
    parts: dict[str, list[dict[str, Any]]] = {}
    for message, part, data in base.execute(_PARTS_QUERY, (session,)):
        fields = try_decode_json(data)
        if isinstance(fields, dict):
            parts.setdefault(str(message), []).append({**fields, "id": part})
        else:
            count_skip(skipped, "a part that is not JSON")
    result = []
    for message, data in base.execute(_MESSAGES_QUERY, (session,)):
        fields = try_decode_json(data)
        if isinstance(fields, dict):
            info = {**as_mapping(fields), "id": message}
            result.append({"info": info, "parts": parts.get(str(message), [])})
        else:
            count_skip(skipped, "a message that is not JSON")
    return result


def stored_file_kind(source: RecordingSource) -> StoredFileKind | None:
    """Return the kind of a file; None for other programs' files."""
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


def _is_session_info(record: Mapping[str, Any]) -> bool:
    has_names = all(
        as_text(record.get(name)) for name in ("id", "projectID", "directory", "version")
    )
    return has_names and isinstance(record.get("time"), dict) and "messages" not in record


def storage_owner(source: RecordingSource) -> Path | None:
    """Return the file of the session that a message, part or child belongs to."""
    fields, stored = _read_document(source), _stored_sessions(_storage_root(source.path))
    name = as_text(fields.get("sessionID")) or as_text(fields.get("id")) or ""
    ancestors: dict[str, None] = {}
    while name in stored and name not in ancestors:
        ancestors[name] = None
        name = as_text(stored[name][1].get("parentID")) or ""
    if not ancestors:
        return None
    names = list(ancestors)
    # Of parents that name each other in a ring, one must be the first.
    owner_path, _ = stored[min(names[names.index(name) :]) if name in ancestors else names[-1]]
    return owner_path if owner_path != source.path else None


def find_session_family(source: RecordingSource) -> dict[str, Path]:
    """Return a session and its descendants, by id."""
    first, stored = (
        as_text(_read_document(source).get("id")) or "",
        _stored_sessions(_storage_root(source.path)),
    )
    children: dict[str, list[str]] = {}
    for name, (_, info) in stored.items():
        children.setdefault(as_text(info.get("parentID")) or "", []).append(name)
    paths_by_id = {first: source.path}
    pending = [first]
    while pending:
        for name in children.get(pending.pop(), ()):
            if name not in paths_by_id:
                paths_by_id[name] = stored[name][0]
                pending.append(name)
    return paths_by_id


def list_storage_parts(source: RecordingSource) -> Sequence[Path]:
    """Return all files of a session and its children except the first."""
    root, files = _storage_root(source.path), []
    for name, path in find_session_family(source).items():
        messages = _json_files_of(root / "message", name)
        files += [] if path == source.path else [path]
        files += messages
        files += [
            part for message in messages for part in _json_files_of(root / "part", message.stem)
        ]
    return files


def load_stored_session(source: RecordingSource, path: Path) -> OpencodeRecording | None:
    """Load a session with its messages; None if it has none."""
    root, info = _storage_root(source.path), _read_document(source.beside(path))
    messages = []
    for message_path in _json_files_of(root / "message", as_text(info.get("id")) or ""):
        message_parts = [
            _read_document(source.beside(part))
            for part in _json_files_of(root / "part", message_path.stem)
        ]
        messages.append(
            {"info": _read_document(source.beside(message_path)), "parts": message_parts}
        )
    messages.sort(key=_creation_time)
    return OpencodeRecording(info, messages) if messages else None


def _creation_time(message: Mapping[str, Any]) -> float:
    return as_amount(as_mapping(as_mapping(message.get("info")).get("time")).get("created")) or 0.0


def _storage_root(path: Path) -> Path:
    """Sessions are stored by project, messages by session, parts by message."""
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
    """Return the sessions of a store; cached until one is added or removed."""
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
