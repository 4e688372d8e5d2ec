"""OpenCode's own store, a database or (older) many files: children with their parents."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.sqlite_files import columns, has_tables, journal, open_database
from closeloop.traces.databases import OnDemand, is_database
from closeloop.traces.opencode import storage
from closeloop.traces.opencode.sessions import Family, Recorded, session_of
from closeloop.traces.untrusted import decoded, mapping

name = "opencode-store"
version = 2

_TABLES: dict[str, Sequence[str]] = {
    "session": ("id", "parent_id", "directory", "version", "time_created", "time_updated"),
    "message": ("id", "session_id", "time_created", "data"),
    "part": ("id", "message_id", "session_id", "data"),
}
_PARTS = "SELECT message_id, id, data FROM part WHERE session_id = ? ORDER BY message_id, id"
_MESSAGES = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"


def recognises(source: Source) -> bool:
    if is_database(source):
        return has_tables(source.path, _TABLES)
    return storage.kind_of(source) is not None


def parts(source: Source) -> Sequence[Path]:
    if not is_database(source):
        return storage.parts(source) if storage.kind_of(source) == "session" else ()
    pending = journal(source.path)
    return [pending] if pending else ()


def owner(source: Source) -> Path | None:
    return None if is_database(source) else storage.owner(source)


def read(source: Source) -> Iterator[Session]:
    if not is_database(source):
        yield from _files(source)
        return
    try:
        with open_database(source.path) as base:
            yield from _sessions(base, source.skipped)
    except (sqlite3.Error, OSError, ValueError):
        _skip(source.skipped, "a database that cannot be read to its end")


def _files(source: Source) -> Iterator[Session]:
    kind = storage.kind_of(source)
    if kind != "session":
        _skip(source.skipped, f"a {kind} without its session")
        return
    found = storage.family_of(source)
    children = OnDemand(found, lambda one: storage.recorded(source, found[one]))
    family, told = Family(children, source.skipped), set[str]()
    for one in found:
        # A child that its parent never mentions is told by itself.
        if one not in told and (recorded := children[one]) is not None:
            yield session_of(recorded, family, (name, version))
            told |= family.told
        elif one not in told:
            _skip(source.skipped, "a session without messages")


def _skip(skipped: dict[str, int], why: str) -> None:
    skipped[why] = skipped.get(why, 0) + 1


def _sessions(base: sqlite3.Connection, skipped: dict[str, int]) -> Iterator[Session]:
    found = _described(base)
    told: set[str] = set()
    roots = [one for one, info in found.items() if info.get("parentID") not in found]
    # Those whose parents only name each other, or never mention them, come last.
    for one in [*roots, *found]:
        if one in told:
            continue
        lost: dict[str, int] = {}
        children = OnDemand(found, partial(_recorded, base, found, lost))
        family = Family(children, lost)
        recorded = children[one]
        told.add(one)
        if recorded is not None:
            yield session_of(recorded, family, (name, version))
            told |= family.told
        elif _elsewhere(base, one):
            _skip(lost, "a session in tables of a newer OpenCode")
        else:
            _skip(lost, "a session without messages")
        for why, number in lost.items():
            skipped[why] = skipped.get(why, 0) + number


def _elsewhere(base: sqlite3.Connection, session: str) -> bool:
    """Whether a session's messages are in the table that newer versions prepare for."""
    if "session_id" not in columns(base, "session_message"):
        return False
    asked = "SELECT 1 FROM session_message WHERE session_id = ? LIMIT 1"
    return base.execute(asked, (session,)).fetchone() is not None


def _described(base: sqlite3.Connection) -> dict[str, dict[str, Any]]:
    known = columns(base, "session")
    chosen = [column for column in ("agent", "revert", "share_url", "title") if column in known]
    listed = ", ".join([*_TABLES["session"], *chosen])
    result = {}
    for row in base.execute(f"SELECT {listed} FROM session ORDER BY time_created, id"):  # noqa: S608
        told = dict(zip((*_TABLES["session"], *chosen), row, strict=True))
        if not isinstance(told["id"], str) or not told["id"]:
            continue
        result[told["id"]] = {
            "id": told["id"],
            "parentID": told["parent_id"],
            "directory": told["directory"],
            "version": told["version"],
            "agent": told.get("agent"),
            "revert": decoded(told.get("revert")),
            "share": {"url": told.get("share_url")},
            "time": {"created": told["time_created"], "updated": told["time_updated"]},
        }
    return result


def _recorded(
    base: sqlite3.Connection,
    found: Mapping[str, Mapping[str, Any]],
    skipped: dict[str, int],
    session: str,
) -> Recorded | None:
    messages = _messages(base, session, skipped)
    return Recorded(found[session], messages) if messages else None


def _messages(
    base: sqlite3.Connection, session: str, skipped: dict[str, int]
) -> list[dict[str, Any]]:
    parts: dict[str, list[dict[str, Any]]] = {}
    for message, part, data in base.execute(_PARTS, (session,)):
        told = decoded(data)
        if isinstance(told, dict):
            parts.setdefault(str(message), []).append({**told, "id": part})
        else:
            _skip(skipped, "a part that is not JSON")
    result = []
    for message, data in base.execute(_MESSAGES, (session,)):
        told = decoded(data)
        if isinstance(told, dict):
            info = {**mapping(told), "id": message}
            result.append({"info": info, "parts": parts.get(str(message), [])})
        else:
            _skip(skipped, "a message that is not JSON")
    return result
