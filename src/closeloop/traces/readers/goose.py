"""Goose: its database of sessions, a session it exported as JSON, and the older JSONL files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.sqlite_files import columns, has_tables, journal, open_database
from closeloop.traces import single
from closeloop.traces.databases import OnDemand, is_database
from closeloop.traces.goose.sessions import Recorded, Telling
from closeloop.traces.untrusted import count, decoded, mapping, text

name = "goose"
version = 2
owner = single.owner

_TABLES: dict[str, Sequence[str]] = {
    "sessions": ("id", "working_dir", "created_at", "updated_at"),
    "messages": ("id", "session_id", "role", "content_json", "created_timestamp"),
}
_WANTED = ("session_type", "accumulated_input_tokens", "accumulated_output_tokens",
           "input_tokens", "output_tokens", "model_config_json", "name")  # fmt: skip


def recognises(source: Source) -> bool:
    if is_database(source):
        return has_tables(source.path, _TABLES)
    lines = source.lines
    if len(lines) > 1 and _is_header(lines[0]):
        return all(_is_message(line) for line in lines[1:4])
    return b'"conversation"' in source.head and _exported(source.document) is not None


def _is_header(line: Any) -> bool:
    about = mapping(line)
    return "role" not in about and (
        "message_count" in about or ("working_dir" in about and "description" in about)
    )


def _is_message(line: Any) -> bool:
    message = mapping(line)
    return (
        message.get("role") in ("user", "assistant")
        and count(message.get("created")) is not None
        and isinstance(message.get("content"), list)
    )


def _exported(document: Any) -> dict[str, Any] | None:
    """A session exported as one document; None for other documents."""
    about = mapping(document)
    if "working_dir" not in about or not isinstance(about.get("conversation"), list):
        return None
    return about if all(_is_message(one) for one in about["conversation"][:3]) else None


def parts(source: Source) -> Sequence[Path]:
    pending = journal(source.path) if is_database(source) else None
    return [pending] if pending else ()


def read(source: Source) -> Iterator[Session]:
    if is_database(source):
        try:
            with open_database(source.path) as base:
                yield from _stored(base, source.skipped)
        except (sqlite3.Error, OSError, ValueError):
            _skip(source.skipped, "a database that cannot be read to its end")
        return
    about = _exported(source.document) if len(source.lines) < 2 else None
    if about is not None:
        recorded = Recorded(about, about["conversation"])
    else:
        records = source.records()
        header = mapping(next(records, None))
        recorded = Recorded({"id": source.path.stem, **header}, records)
    yield Telling({}, (name, version), source.skipped).session(recorded)


def _skip(skipped: dict[str, int], why: str) -> None:
    skipped[why] = skipped.get(why, 0) + 1


def _stored(base: sqlite3.Connection, skipped: dict[str, int]) -> Iterator[Session]:
    known = columns(base, "sessions")
    chosen = [*_TABLES["sessions"], *(one for one in _WANTED if one in known)]
    found: dict[str, dict[str, Any]] = {}
    for row in base.execute(f"SELECT {', '.join(chosen)} FROM sessions ORDER BY created_at, id"):  # noqa: S608
        about = dict(zip(chosen, row, strict=True))
        if text(about["id"]):
            about["model_config"] = decoded(about.get("model_config_json"))
            found[about["id"]] = about
    # Children last: they are told with the session that mentions them, where one does.
    order = sorted(found, key=lambda one: found[one].get("session_type") == "sub_agent")
    told: set[str] = set()
    for one in order:
        if one in told:
            continue
        lost: dict[str, int] = {}
        stored = OnDemand(found, partial(_recorded, base, found, lost))
        telling = Telling(stored, (name, version), lost)
        session = telling.session(stored[one])
        told |= telling.told
        for why, number in lost.items():
            skipped[why] = skipped.get(why, 0) + number
        if session.trace.events:
            yield session
        else:
            _skip(skipped, "a session without messages")


def _recorded(
    base: sqlite3.Connection, found: Mapping[str, Any], lost: dict[str, int], session: str
) -> Recorded:
    return Recorded(found[session], _messages(base, session, lost))


def _messages(base: sqlite3.Connection, session: str, lost: dict[str, int]) -> list[Any]:
    known = columns(base, "messages")
    more = ["message_id"] if "message_id" in known else ["NULL"]
    more += ["metadata_json"] if "metadata_json" in known else ["NULL"]
    asked = (
        f"SELECT role, content_json, created_timestamp, {', '.join(more)} "  # noqa: S608
        "FROM messages WHERE session_id = ? ORDER BY id"
    )
    result = []
    for role, content, created, identity, metadata in base.execute(asked, (session,)):
        parsed = decoded(content)
        if isinstance(parsed, list):
            about = {"role": role, "created": created, "content": parsed, "id": identity}
            result.append({**about, "metadata": decoded(metadata)})
        else:
            _skip(lost, "a message that is not JSON")
    return result
