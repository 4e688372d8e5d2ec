"""Recorded sessions and the files they came from: what is new is added, the rest is known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, Table, func, insert, select

from closeloop.model.attempt import Attempt
from closeloop.model.record import Record, digest
from closeloop.model.session import Session
from closeloop.model.trace import Trace
from closeloop.store.bodies import pack
from closeloop.store.facts import full_id, insert_once, pieces
from closeloop.store.links import add_links
from closeloop.store.rows import MARKS, OWN, attempt_columns, line
from closeloop.store.schema import attempt_bodies, attempts, imports, sessions, spans


class Packed(Record):
    """A session ready to be stored: made where it was read, so that only small things travel."""

    attempt: Attempt
    """Its parent, the session's version before, is looked up when it is stored."""
    key: str
    """What all versions of the session share."""
    columns: dict[str, Any]
    session: bytes
    trace: bytes


class Imported(Record):
    """A file as it was when it was looked at."""

    path: str
    size: int
    changed: int
    """When it was last written, in nanoseconds."""
    parts: tuple[tuple[str, int, int], ...] = ()
    """Path, size and time of the other files of the recording."""
    reader: str | None = None
    """None when nobody knew it."""
    version: int
    """Of the reader, or of all readers together where none knew the file."""
    sessions: int = 0
    """How many it holds, or 1 where it is a part of another's."""


def key_of(session: Session, path: str) -> str:
    """What all versions of a session share."""
    # An id alone may be a task's name, tried by many; when or where it began tells them apart.
    apart = digest(session.started or path)
    return digest(session.agent, session.id)[:OWN] + MARKS[session.copy] + apart[:OWN]


def packed(attempt: Attempt, session: Session, key: str, trace: bytes) -> Packed:
    """Everything about a session that can be said without the store."""
    bare = Trace(reader=session.trace.reader, reader_version=session.trace.reader_version)
    columns = {
        "agent": line(session.agent),
        "model": line(session.model),
        "repo": line(attempt.repo),
        "branch": line(session.branch),
        **attempt_columns(attempt, session.trace, None),
    }
    body = pack(replace(session, trace=bare))
    return Packed(attempt=attempt, key=key, columns=columns, session=body, trace=trace)


def keep(connection: Connection, new: Sequence[Packed], files: Sequence[Imported]) -> list[str]:
    """Add sessions that are not known yet, and what was looked at; the ids that were new."""
    known = _known(connection, [each.attempt.id for each in new])
    newest = _newest(connection, {each.key for each in new})
    added: list[Packed] = []
    for each in new:
        if each.attempt.id not in known:
            known.add(each.attempt.id)
            parent = newest.get(each.key)
            newest[each.key] = each.attempt.id
            added.append(replace(each, attempt=replace(each.attempt, parent=parent)))
    rows: list[list[dict[str, Any]]] = [[], [], []]
    for each in added:
        for table, row in zip(rows, _rows(each), strict=True):
            table.append(row)
    for target, values in zip((attempts, attempt_bodies, sessions), rows, strict=True):
        _insert(connection, target, values)
    add_links(connection, (each.attempt for each in added))
    _insert(connection, imports, [_import_row(file) for file in files])
    return [each.attempt.id for each in added]


def _rows(each: Packed) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    own = {name: each.columns[name] for name in ("agent", "model", "repo", "branch")}
    columns = {name: value for name, value in each.columns.items() if name not in own}
    name = each.attempt.id
    bodies = {"attempt": name, "body": pack(each.attempt), "change": None, "trace": each.trace}
    session = {"attempt": name, "key": each.key, "body": each.session}
    return {**columns, "parent": each.attempt.parent}, bodies, {**session, **own}


def body_of(connection: Connection, attempt: str) -> bytes | None:
    """The session behind an attempt, by its id or the beginning of it."""
    query = select(sessions.c.body).where(sessions.c.attempt == full_id(connection, attempt))
    return connection.execute(query).scalar()


def imported(connection: Connection, paths: Sequence[str]) -> dict[str, Imported]:
    """What is known of files."""
    found: dict[str, Imported] = {}
    newest = select(func.max(imports.c.number)).group_by(imports.c.path)
    for some in pieces(paths):
        chosen = newest.where(imports.c.path.in_(some))
        for row in connection.execute(select(imports).where(imports.c.number.in_(chosen))):
            parts = msgspec.msgpack.decode(row.parts) if row.parts else ()
            found[row.path] = Imported(
                path=row.path,
                size=row.size,
                changed=row.changed,
                parts=tuple(tuple(part) for part in parts),
                reader=row.reader,
                version=row.version,
                sessions=row.sessions,
            )
    return found


class Sent(Record):
    """A span as it is kept."""

    trace: str
    conversation: str | None
    digest: str
    body: bytes


def add_spans(connection: Connection, new: Sequence[Sent]) -> int:
    """Add spans that are not known yet; how many were."""
    statement = insert_once(spans, connection.dialect.name)
    rows = (msgspec.structs.asdict(one) for one in new)
    return sum(
        connection.execute(statement, {**row, "conversation": line(row["conversation"])}).rowcount
        for row in rows
    )


def spans_with(connection: Connection, trace: str) -> list[bytes]:
    """The spans of a trace, and of all traces of the one conversation that it names."""
    named = select(spans.c.conversation).distinct()
    named = named.where(spans.c.trace == trace, spans.c.conversation.is_not(None))
    names = connection.execute(named).scalars().all()
    traces = {trace}
    if len(names) == 1:
        same = select(spans.c.trace).distinct().where(spans.c.conversation == names[0])
        traces.update(connection.execute(same).scalars())
    bodies = select(spans.c.body).where(spans.c.trace.in_(sorted(traces)))
    return list(connection.execute(bodies.order_by(spans.c.number)).scalars())


def span_counts(connection: Connection, trace: str | None = None) -> dict[str, int]:
    """How many spans there are of each trace, or of one."""
    query = select(spans.c.trace, func.count()).group_by(spans.c.trace)
    if trace is not None:
        query = query.where(spans.c.trace == trace)
    return {row[0]: row[1] for row in connection.execute(query)}


def _import_row(file: Imported) -> dict[str, Any]:
    parts = msgspec.msgpack.encode(file.parts) if file.parts else None
    return {**msgspec.structs.asdict(file), "parts": parts}


def _known(connection: Connection, ids: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for some in pieces(ids):
        query = select(attempts.c.id).where(attempts.c.id.in_(some))
        found.update(connection.execute(query).scalars())
    return found


def _newest(connection: Connection, keys: Collection[str]) -> dict[str, str]:
    """The last stored version of each session."""
    query = select(sessions.c.key, sessions.c.attempt).order_by(sessions.c.number)
    found: dict[str, str] = {}
    for some in pieces(sorted(keys)):
        rows = connection.execute(query.where(sessions.c.key.in_(some)))
        found.update((row.key, row.attempt) for row in rows)
    return found


def _insert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), rows)
