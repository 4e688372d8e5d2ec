"""Recorded sessions and the files they came from: what is new is added, the rest is known."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, Table, func, insert, select

from closeloop.records.attempt import Attempt
from closeloop.records.record import Record, content_digest
from closeloop.records.session import Session
from closeloop.records.task import PromptVersion
from closeloop.records.trace import Trace
from closeloop.store.attempt_rows import (
    COPY_MARKS,
    OWN_KEY_CHARACTERS,
    attempt_columns,
    short_column_text,
)
from closeloop.store.fact_rows import (
    add_attempt_prompts,
    insert_or_ignore,
    resolve_attempt_id,
    split_values,
)
from closeloop.store.record_bodies import pack_record
from closeloop.store.review_tables import links
from closeloop.store.schema import attempt_bodies, attempts, imports, sessions, spans
from closeloop.store.search_section import insert_work_texts
from closeloop.text.prompt_text import build_prompt_version
from closeloop.text.search_text import collect_search_text

# Which recorded work names which address.


def add_links(connection: Connection, attempts: Iterable[Attempt]) -> None:
    """Of attempts that were just stored."""
    rows = [
        {"attempt": attempt.id, "address": short_column_text(address)}
        for attempt in attempts
        for address in dict.fromkeys(attempt.links.values())
        if "://" in address
    ]
    if rows:
        connection.execute(insert(links), rows)


class PackedSession(Record):
    """A session ready to be stored: made where it was read, so that only small things travel."""

    attempt: Attempt
    """Its parent, the session's version before, is looked up when it is stored."""
    key: str
    """What all versions of the session share."""
    columns: dict[str, Any]
    session: bytes
    trace: bytes
    search_text: str
    """What it can be found by."""
    prompt: PromptVersion | None = None
    """The system prompt that its files hold."""


class ImportedFile(Record):
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


def session_key(session: Session, path: str) -> str:
    """What all versions of a session share."""
    # An id alone may be a task's name, tried by many; when or where it began tells them apart.
    apart = content_digest(session.started or path)
    return (
        content_digest(session.agent, session.id)[:OWN_KEY_CHARACTERS]
        + COPY_MARKS[session.copy]
        + apart[:OWN_KEY_CHARACTERS]
    )


def build_packed_session(
    attempt: Attempt, session: Session, key: str, trace: bytes
) -> PackedSession:
    """Everything about a session that can be said without the store."""
    bare = Trace(reader=session.trace.reader, reader_version=session.trace.reader_version)
    columns = {
        "agent": short_column_text(session.agent),
        "model": short_column_text(session.model),
        "repo": short_column_text(attempt.repo),
        "branch": short_column_text(session.branch),
        **attempt_columns(attempt, session.trace, None),
    }
    body = pack_record(replace(session, trace=bare))
    return PackedSession(
        attempt=attempt,
        key=key,
        columns=columns,
        session=body,
        trace=trace,
        search_text=collect_search_text(attempt, session.trace, columns["title"]),
        prompt=build_prompt_version(
            session.system,
            "gateway" if session.trace.reader == "gateway" else "session",
            session.agent,
        ),
    )


def save_sessions(
    connection: Connection, new: Sequence[PackedSession], files: Sequence[ImportedFile]
) -> list[str]:
    """Add sessions that are not known yet, and what was looked at; the ids that were new."""
    known_ids = _known_attempts(connection, [each.attempt.id for each in new])
    newest_by_key = _newest_versions(connection, {each.key for each in new})
    added: list[PackedSession] = []
    for session in new:
        if session.attempt.id not in known_ids:
            known_ids.add(session.attempt.id)
            parent = newest_by_key.get(session.key)
            newest_by_key[session.key] = session.attempt.id
            added.append(replace(session, attempt=replace(session.attempt, parent=parent)))
    rows: list[list[dict[str, Any]]] = [[], [], []]
    for session in added:
        for table, row in zip(rows, _session_rows(session), strict=True):
            table.append(row)
    for target, values in zip((attempts, attempt_bodies, sessions), rows, strict=True):
        _insert_rows(connection, target, values)
    insert_work_texts(connection, {each.attempt.id: each.search_text for each in added})
    add_links(connection, (each.attempt for each in added))
    add_attempt_prompts(
        connection, [(each.attempt.id, each.prompt) for each in added if each.prompt]
    )
    _insert_rows(connection, imports, [_import_row(file) for file in files])
    return [each.attempt.id for each in added]


def _session_rows(each: PackedSession) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    session_fields = {name: each.columns[name] for name in ("agent", "model", "repo", "branch")}
    columns = {name: value for name, value in each.columns.items() if name not in session_fields}
    name = each.attempt.id
    bodies = {
        "attempt": name,
        "body": pack_record(each.attempt),
        "change": None,
        "trace": each.trace,
    }
    session = {"attempt": name, "key": each.key, "body": each.session}
    return {**columns, "parent": each.attempt.parent}, bodies, {**session, **session_fields}


def load_session_body(connection: Connection, attempt: str) -> bytes | None:
    """The session behind an attempt, by its id or the beginning of it."""
    query = select(sessions.c.body).where(
        sessions.c.attempt == resolve_attempt_id(connection, attempt)
    )
    return connection.execute(query).scalar()


def load_imported_files(connection: Connection, paths: Sequence[str]) -> dict[str, ImportedFile]:
    """What is known of files."""
    files: dict[str, ImportedFile] = {}
    newest = select(func.max(imports.c.number)).group_by(imports.c.path)
    for some in split_values(paths):
        chosen = newest.where(imports.c.path.in_(some))
        for row in connection.execute(select(imports).where(imports.c.number.in_(chosen))):
            parts = msgspec.msgpack.decode(row.parts) if row.parts else ()
            files[row.path] = ImportedFile(
                path=row.path,
                size=row.size,
                changed=row.changed,
                parts=tuple(tuple(part) for part in parts),
                reader=row.reader,
                version=row.version,
                sessions=row.sessions,
            )
    return files


class StoredSpan(Record):
    """A span as it is kept."""

    trace: str
    conversation: str | None
    digest: str
    body: bytes


def insert_spans(connection: Connection, new: Sequence[StoredSpan]) -> int:
    """Add spans that are not known yet; how many were."""
    statement = insert_or_ignore(spans, connection.dialect.name)
    rows = (msgspec.structs.asdict(one) for one in new)
    return sum(
        connection.execute(
            statement, {**row, "conversation": short_column_text(row["conversation"])}
        ).rowcount
        for row in rows
    )


def load_trace_spans(connection: Connection, trace: str) -> list[bytes]:
    """The spans of a trace, and of all traces of the one conversation that it names."""
    query = select(spans.c.conversation).distinct()
    query = query.where(spans.c.trace == trace, spans.c.conversation.is_not(None))
    names = connection.execute(query).scalars().all()
    traces = {trace}
    if len(names) == 1:
        same = select(spans.c.trace).distinct().where(spans.c.conversation == names[0])
        traces.update(connection.execute(same).scalars())
    bodies = select(spans.c.body).where(spans.c.trace.in_(sorted(traces)))
    return list(connection.execute(bodies.order_by(spans.c.number)).scalars())


def count_spans(connection: Connection, trace: str | None = None) -> dict[str, int]:
    """How many spans there are of each trace, or of one."""
    query = select(spans.c.trace, func.count()).group_by(spans.c.trace)
    if trace is not None:
        query = query.where(spans.c.trace == trace)
    return {row[0]: row[1] for row in connection.execute(query)}


def _import_row(file: ImportedFile) -> dict[str, Any]:
    parts = msgspec.msgpack.encode(file.parts) if file.parts else None
    return {**msgspec.structs.asdict(file), "parts": parts}


def _known_attempts(connection: Connection, ids: Sequence[str]) -> set[str]:
    known_ids: set[str] = set()
    for some in split_values(ids):
        query = select(attempts.c.id).where(attempts.c.id.in_(some))
        known_ids.update(connection.execute(query).scalars())
    return known_ids


def _newest_versions(connection: Connection, keys: Collection[str]) -> dict[str, str]:
    """The last stored version of each session."""
    query = select(sessions.c.key, sessions.c.attempt).order_by(sessions.c.number)
    attempt_by_key: dict[str, str] = {}
    for some in split_values(sorted(keys)):
        rows = connection.execute(query.where(sessions.c.key.in_(some)))
        attempt_by_key.update((row.key, row.attempt) for row in rows)
    return attempt_by_key


def _insert_rows(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), rows)
