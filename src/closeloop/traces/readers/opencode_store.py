"""OpenCode's own store, a database or (older) many files: children with their parents."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from closeloop.records.protocols import RecordingSource
from closeloop.records.session import Session
from closeloop.sqlite_files import find_journal, has_tables, open_database, table_columns
from closeloop.traces.opencode import opencode_storage
from closeloop.traces.opencode.opencode_session import (
    OpencodeFamily,
    OpencodeRecording,
    session_from_opencode,
)
from closeloop.traces.session_databases import LazyMapping, is_database
from closeloop.traces.untrusted_json import as_mapping, try_decode_json

name = "opencode-store"
version = 2

_TABLES: dict[str, Sequence[str]] = {
    "session": ("id", "parent_id", "directory", "version", "time_created", "time_updated"),
    "message": ("id", "session_id", "time_created", "data"),
    "part": ("id", "message_id", "session_id", "data"),
}
_PARTS_QUERY = "SELECT message_id, id, data FROM part WHERE session_id = ? ORDER BY message_id, id"
_MESSAGES_QUERY = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"


def recognises(source: RecordingSource) -> bool:
    if is_database(source):
        return has_tables(source.path, _TABLES)
    return opencode_storage.stored_file_kind(source) is not None


def parts(source: RecordingSource) -> Sequence[Path]:
    if not is_database(source):
        return (
            opencode_storage.list_storage_parts(source)
            if opencode_storage.stored_file_kind(source) == "session"
            else ()
        )
    pending = find_journal(source.path)
    return [pending] if pending else ()


def owner(source: RecordingSource) -> Path | None:
    return None if is_database(source) else opencode_storage.storage_owner(source)


def read(source: RecordingSource) -> Iterator[Session]:
    if not is_database(source):
        yield from _iter_file_sessions(source)
        return
    try:
        with open_database(source.path) as base:
            yield from _iter_database_sessions(base, source.skipped)
    except (sqlite3.Error, OSError, ValueError):
        _count_skip(source.skipped, "a database that cannot be read to its end")


def _iter_file_sessions(source: RecordingSource) -> Iterator[Session]:
    kind = opencode_storage.stored_file_kind(source)
    if kind != "session":
        _count_skip(source.skipped, f"a {kind} without its session")
        return
    paths_by_id = opencode_storage.find_session_family(source)
    children = LazyMapping(
        paths_by_id, lambda one: opencode_storage.load_stored_session(source, paths_by_id[one])
    )
    family, seen_ids = OpencodeFamily(children, source.skipped), set[str]()
    for one in paths_by_id:
        # A child that its parent never mentions is told by itself.
        if one not in seen_ids and (recorded := children[one]) is not None:
            yield session_from_opencode(recorded, family, (name, version))
            seen_ids |= family.told
        elif one not in seen_ids:
            _count_skip(source.skipped, "a session without messages")


def _count_skip(skipped: dict[str, int], why: str) -> None:
    skipped[why] = skipped.get(why, 0) + 1


def _iter_database_sessions(base: sqlite3.Connection, skipped: dict[str, int]) -> Iterator[Session]:
    infos_by_id = _load_session_infos(base)
    seen_ids: set[str] = set()
    roots = [one for one, info in infos_by_id.items() if info.get("parentID") not in infos_by_id]
    # Those whose parents only name each other, or never mention them, come last.
    for one in [*roots, *infos_by_id]:
        if one in seen_ids:
            continue
        lost: dict[str, int] = {}
        children = LazyMapping(infos_by_id, partial(_load_recording, base, infos_by_id, lost))
        family = OpencodeFamily(children, lost)
        recorded = children[one]
        seen_ids.add(one)
        if recorded is not None:
            yield session_from_opencode(recorded, family, (name, version))
            seen_ids |= family.told
        elif _is_in_new_tables(base, one):
            _count_skip(lost, "a session in tables of a newer OpenCode")
        else:
            _count_skip(lost, "a session without messages")
        for why, number in lost.items():
            skipped[why] = skipped.get(why, 0) + number


def _is_in_new_tables(base: sqlite3.Connection, session: str) -> bool:
    """Whether a session's messages are in the table that newer versions prepare for."""
    if "session_id" not in table_columns(base, "session_message"):
        return False
    query = "SELECT 1 FROM session_message WHERE session_id = ? LIMIT 1"
    return base.execute(query, (session,)).fetchone() is not None


def _load_session_infos(base: sqlite3.Connection) -> dict[str, dict[str, Any]]:
    known_columns = table_columns(base, "session")
    chosen = [
        column for column in ("agent", "revert", "share_url", "title") if column in known_columns
    ]
    listed = ", ".join([*_TABLES["session"], *chosen])
    result = {}
    for row in base.execute(f"SELECT {listed} FROM session ORDER BY time_created, id"):  # noqa: S608
        fields = dict(zip((*_TABLES["session"], *chosen), row, strict=True))
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
    found: Mapping[str, Mapping[str, Any]],
    skipped: dict[str, int],
    session: str,
) -> OpencodeRecording | None:
    messages = _load_messages(base, session, skipped)
    return OpencodeRecording(found[session], messages) if messages else None


def _load_messages(
    base: sqlite3.Connection, session: str, skipped: dict[str, int]
) -> list[dict[str, Any]]:
    parts: dict[str, list[dict[str, Any]]] = {}
    for message, part, data in base.execute(_PARTS_QUERY, (session,)):
        fields = try_decode_json(data)
        if isinstance(fields, dict):
            parts.setdefault(str(message), []).append({**fields, "id": part})
        else:
            _count_skip(skipped, "a part that is not JSON")
    result = []
    for message, data in base.execute(_MESSAGES_QUERY, (session,)):
        fields = try_decode_json(data)
        if isinstance(fields, dict):
            info = {**as_mapping(fields), "id": message}
            result.append({"info": info, "parts": parts.get(str(message), [])})
        else:
            _count_skip(skipped, "a message that is not JSON")
    return result
