"""Goose: its database of sessions, a session it exported as JSON, and the older JSONL files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from closeloop.records.protocols import RecordingSource
from closeloop.records.session import Session
from closeloop.sqlite_files import find_journal, has_tables, open_database, table_columns
from closeloop.traces import single_file
from closeloop.traces.goose.goose_session import GooseRecording, GooseSessionBuilder
from closeloop.traces.session_databases import LazyMapping, is_database
from closeloop.traces.untrusted_json import as_count, as_mapping, as_text, try_decode_json

name = "goose"
version = 2
owner = single_file.no_owner

_TABLES: dict[str, Sequence[str]] = {
    "sessions": ("id", "working_dir", "created_at", "updated_at"),
    "messages": ("id", "session_id", "role", "content_json", "created_timestamp"),
}
_OPTIONAL_COLUMNS = ("session_type", "accumulated_input_tokens", "accumulated_output_tokens",
           "input_tokens", "output_tokens", "model_config_json", "name")  # fmt: skip


def recognises(source: RecordingSource) -> bool:
    if is_database(source):
        return has_tables(source.path, _TABLES)
    lines = source.lines
    if len(lines) > 1 and _is_header(lines[0]):
        return all(_is_message(line) for line in lines[1:4])
    return b'"conversation"' in source.head and _export_info(source.document) is not None


def _is_header(line: Any) -> bool:
    about = as_mapping(line)
    return "role" not in about and (
        "message_count" in about or ("working_dir" in about and "description" in about)
    )


def _is_message(line: Any) -> bool:
    message = as_mapping(line)
    return (
        message.get("role") in ("user", "assistant")
        and as_count(message.get("created")) is not None
        and isinstance(message.get("content"), list)
    )


def _export_info(document: Any) -> dict[str, Any] | None:
    """A session exported as one document; None for other documents."""
    about = as_mapping(document)
    if "working_dir" not in about or not isinstance(about.get("conversation"), list):
        return None
    return about if all(_is_message(one) for one in about["conversation"][:3]) else None


def parts(source: RecordingSource) -> Sequence[Path]:
    pending = find_journal(source.path) if is_database(source) else None
    return [pending] if pending else ()


def read(source: RecordingSource) -> Iterator[Session]:
    if is_database(source):
        try:
            with open_database(source.path) as base:
                yield from _iter_stored_sessions(base, source.skipped)
        except (sqlite3.Error, OSError, ValueError):
            _count_skip(source.skipped, "a database that cannot be read to its end")
        return
    about = _export_info(source.document) if len(source.lines) < 2 else None
    if about is not None:
        recorded = GooseRecording(about, about["conversation"])
    else:
        records = source.records()
        header = as_mapping(next(records, None))
        recorded = GooseRecording({"id": source.path.stem, **header}, records)
    yield GooseSessionBuilder({}, (name, version), source.skipped).build_session(recorded)


def _count_skip(skipped: dict[str, int], why: str) -> None:
    skipped[why] = skipped.get(why, 0) + 1


def _iter_stored_sessions(base: sqlite3.Connection, skipped: dict[str, int]) -> Iterator[Session]:
    known_columns = table_columns(base, "sessions")
    chosen = [*_TABLES["sessions"], *(one for one in _OPTIONAL_COLUMNS if one in known_columns)]
    infos_by_id: dict[str, dict[str, Any]] = {}
    for row in base.execute(f"SELECT {', '.join(chosen)} FROM sessions ORDER BY created_at, id"):  # noqa: S608
        about = dict(zip(chosen, row, strict=True))
        if as_text(about["id"]):
            about["model_config"] = try_decode_json(about.get("model_config_json"))
            infos_by_id[about["id"]] = about
    # Children last: they are told with the session that mentions them, where one does.
    order = sorted(infos_by_id, key=lambda one: infos_by_id[one].get("session_type") == "sub_agent")
    seen_ids: set[str] = set()
    for one in order:
        if one in seen_ids:
            continue
        lost: dict[str, int] = {}
        stored = LazyMapping(infos_by_id, partial(_load_recording, base, infos_by_id, lost))
        builder = GooseSessionBuilder(stored, (name, version), lost)
        session = builder.build_session(stored[one])
        seen_ids |= builder.told
        for why, number in lost.items():
            skipped[why] = skipped.get(why, 0) + number
        if session.trace.events:
            yield session
        else:
            _count_skip(skipped, "a session without messages")


def _load_recording(
    base: sqlite3.Connection, found: Mapping[str, Any], lost: dict[str, int], session: str
) -> GooseRecording:
    return GooseRecording(found[session], _load_messages(base, session, lost))


def _load_messages(base: sqlite3.Connection, session: str, lost: dict[str, int]) -> list[Any]:
    known_columns = table_columns(base, "messages")
    optional_columns = ["message_id"] if "message_id" in known_columns else ["NULL"]
    optional_columns += ["metadata_json"] if "metadata_json" in known_columns else ["NULL"]
    query = (
        f"SELECT role, content_json, created_timestamp, {', '.join(optional_columns)} "  # noqa: S608
        "FROM messages WHERE session_id = ? ORDER BY id"
    )
    result = []
    for role, content, created, identity, metadata in base.execute(query, (session,)):
        parsed = try_decode_json(content)
        if isinstance(parsed, list):
            about = {"role": role, "created": created, "content": parsed, "id": identity}
            result.append({**about, "metadata": try_decode_json(metadata)})
        else:
            _count_skip(lost, "a message that is not JSON")
    return result
