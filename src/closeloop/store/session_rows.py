"""Imported sessions and their files, the full-text index, links and spans."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from closeloop.records.attempt import Attempt
from closeloop.records.finding import Finding, Measurement
from closeloop.records.record import Record, content_digest
from closeloop.records.task import PromptVersion
from closeloop.records.trace import Session, Trace
from closeloop.store.attempt_rows import (
    COPY_MARKS,
    OWN_KEY_CHARACTERS,
    attempt_columns,
    column_text,
    short_column_text,
)
from closeloop.store.engine import Connection
from closeloop.store.fact_rows import (
    StoreSection,
    add_attempt_prompts,
    insert_or_ignore,
    resolve_attempt_id,
    split_values,
)
from closeloop.store.record_bodies import pack_record, unpack_record
from closeloop.store.schema import (
    attempt_bodies,
    attempts,
    imports,
    links,
    measurements,
    search_documents,
    sessions,
    spans,
)
from closeloop.store.sql_expressions import SqlExpression, func, literal_column, text
from closeloop.store.sql_statements import Select, Table, delete, insert, select, update
from closeloop.text.search_text import (
    SearchPhrase,
    SearchSnippet,
    collect_search_text,
    find_snippet,
    fold_words,
)
from closeloop.text.wording import repository_name


def list_addresses(connection: Connection) -> dict[str, list[str]]:
    """Return the addresses of the repositories of sessions, by `owner/name`."""
    query = select(sessions.c.repo).where(sessions.c.repo.is_not(None)).distinct()
    addresses: dict[str, list[str]] = {}
    for address in connection.execute(query.order_by(sessions.c.repo)).scalars():
        addresses.setdefault(repository_name(address), []).append(address)
    return addresses


# Full-text search: the texts of attempts, as words of an index in both engines.
#
# A document is one text of an attempt: its work, or the rules' findings in it. SQLite indexes it
# with FTS5 without a copy of its own, PostgreSQL with a `tsvector`, split if it is long. The text
# is not stored again: it is derived from facts, and can be rebuilt.


SEARCHED_TABLES = frozenset({"attempts", "attempt_bodies", "measurements"})
"""Tables that the full-text index is built from."""
VECTOR_CHARS = 100_000
"""Characters of a part of a document in PostgreSQL.

A `tsvector` is limited to a megabyte and 16,383 positions.
"""
BATCH_ATTEMPTS = 200
OUTDATED = "outdated"
"""Kind of a document that was replaced."""
FEW_MATCHES = 2_000
"""Up to this many matches are looked up one by one; with more, each listed row is tested."""
_INSERT_WORDS = {
    "sqlite": text("INSERT INTO search_words (rowid, words) VALUES (:document, :words)"),
    "postgresql": text(
        "INSERT INTO search_words (document, words)"
        " VALUES (:document, to_tsvector('simple', :words))"
    ),
}
_INSERT_DOCUMENT = insert(search_documents).returning(search_documents.c.number)
_DELETE_ALL_WORDS = {
    "sqlite": text("INSERT INTO search_words (search_words) VALUES ('delete-all')"),
    "postgresql": text("DELETE FROM search_words"),
}


def insert_work_texts(connection: Connection, texts: Mapping[str, str]) -> None:
    """Index the output of `collect_search_text` for newly stored attempts, by id."""
    storable = {attempt: column_text(content) for attempt, content in texts.items()}
    _insert_documents(connection, "work", storable)


def replace_finding_texts(
    connection: Connection, findings: Mapping[str, Sequence[Finding]]
) -> None:
    """Index the current findings of attempts, replacing earlier ones."""
    documents = search_documents.c
    digests: dict[str, str] = {}
    for part in split_values(list(findings)):
        indexed = select(documents.attempt, documents.digest).where(
            documents.attempt.in_(part), documents.kind == "findings"
        )
        digests.update((row[0], row[1]) for row in connection.execute(indexed))
    new_texts: dict[str, str] = {}
    for attempt, attempt_findings in findings.items():
        lines = (
            f"{finding.rule}: {finding.message}"
            for finding in attempt_findings
            if finding.silenced is None
        )
        content = column_text("\n".join(dict.fromkeys(lines)))
        if (content_digest(content) if content else None) != digests.get(attempt):
            new_texts[attempt] = content
    # FTS5 can remove words only with their text: the document stays but is no longer found.
    for part in split_values([attempt for attempt in new_texts if attempt in digests]):
        conditions = (documents.attempt.in_(part), documents.kind == "findings")
        connection.execute(update(search_documents).where(*conditions).values(kind=OUTDATED))
    _insert_documents(
        connection,
        "findings",
        {attempt: content for attempt, content in new_texts.items() if content},
    )


def _insert_documents(
    connection: Connection, kind: Literal["work", "findings"], texts: Mapping[str, str]
) -> None:
    if not texts:
        return
    numbers: dict[str, int] = {}
    for attempt, content in texts.items():
        row = {"attempt": attempt, "kind": kind, "digest": content_digest(content)}
        numbers[attempt] = connection.execute(_INSERT_DOCUMENT, row).scalar_one()
    dialect = connection.dialect
    rows = [
        {"document": numbers[attempt], "words": part}
        for attempt, content in texts.items()
        for part in _split_words(fold_words(content), dialect)
    ]
    connection.execute(_INSERT_WORDS[dialect], rows)


def _split_words(folded_words: str, dialect: str) -> Iterator[str]:
    """Split a text into parts that fit in one row of the index."""
    while dialect == "postgresql" and len(folded_words) > VECTOR_CHARS:
        end = folded_words.rfind(" ", 0, VECTOR_CHARS)
        end = end if end > 0 else VECTOR_CHARS
        yield folded_words[:end]
        folded_words = folded_words[end:]
    yield folded_words


def rebuild_search_index(connection: Connection) -> None:
    """Rebuild the index from what is stored now; old entries are deleted."""
    connection.execute(_DELETE_ALL_WORDS[connection.dialect])
    connection.execute(delete(search_documents))
    while missing := _list_unindexed(connection):
        _index_stored(connection, missing)


# Conditions: which attempts have all phrases, in any of their texts.


def search_conditions(
    connection: Connection, phrases: Iterable[SearchPhrase]
) -> list[SqlExpression]:
    """Return conditions that an attempt contains every phrase."""
    return [_phrase_condition(connection, phrase) for phrase in phrases]


def _phrase_condition(connection: Connection, phrase: SearchPhrase) -> SqlExpression:
    documents = search_documents.c
    document_numbers = _select_matches(connection.dialect, phrase)
    first_matches: Select = (
        select(literal_column("1")).select_from(document_numbers.subquery()).limit(FEW_MATCHES + 1)
    )
    count = (
        connection.execute(select(func.count()).select_from(first_matches.subquery())).scalar() or 0
    )
    if count <= FEW_MATCHES:
        matches = select(documents.attempt).where(
            documents.number.in_(document_numbers), documents.kind != OUTDATED
        )
        return attempts.c.id.in_(matches)
    matches = select(documents.number).where(
        documents.attempt == attempts.c.id,
        documents.number.in_(document_numbers),
        documents.kind != OUTDATED,
    )
    return matches.exists()


def _select_matches(dialect: str, phrase: SearchPhrase) -> Select:
    """Select the numbers of documents with a phrase. Its words are letters and digits only."""
    column: SqlExpression
    if dialect == "sqlite":
        query = f'"{" ".join(phrase.words)}"' + ("" if phrase.is_whole else "*")
        condition = text("search_words MATCH :query").bindparams(query=query)
        column = literal_column("rowid").label("number")
    else:
        query = " <-> ".join(phrase.words) + ("" if phrase.is_whole else ":*")
        condition = text("words @@ to_tsquery('simple', :query)").bindparams(query=query)
        column = literal_column("document").label("number")
    return select(column).select_from(text("search_words")).where(condition)


class SearchSection(StoreSection):
    """The store's section for full-text search of attempts."""

    def find_snippets(
        self, ids: Sequence[str], phrases: Sequence[SearchPhrase]
    ) -> dict[str, SearchSnippet]:
        """Return, by attempt, a snippet of its text around the first phrase that occurs in it."""
        snippets: dict[str, SearchSnippet] = {}
        for attempt, content in self._read(partial(_load_work_texts, ids=ids)).items():
            if snippet := find_snippet(content, phrases):
                snippets[attempt] = snippet
        return snippets

    def index_missing(self) -> int:
        """Index attempts that are missing from the index; return how many."""
        indexed = 0
        while missing := self._read(_list_unindexed):
            indexed += len(missing)
            self._write(partial(_index_stored, ids=missing))
        return indexed


def _list_unindexed(connection: Connection) -> list[str]:
    indexed = select(search_documents.c.number).where(
        search_documents.c.attempt == attempts.c.id, search_documents.c.kind == "work"
    )
    query = select(attempts.c.id).where(~indexed.exists()).limit(BATCH_ATTEMPTS)
    return list(connection.execute(query).scalars())


def _load_work_texts(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
    """Load the search text of attempts, from their bodies."""
    bodies = attempt_bodies.c
    rows = connection.execute(
        select(attempts.c.id, attempts.c.title, bodies.body, bodies.trace)
        .join(attempt_bodies, bodies.attempt == attempts.c.id)
        .where(attempts.c.id.in_(list(ids)))
    )
    return {
        row.id: collect_search_text(
            unpack_record(row.body, Attempt),
            None if row.trace is None else unpack_record(row.trace, Trace),
            row.title,
        )
        for row in rows
    }


def _index_stored(connection: Connection, ids: Sequence[str]) -> None:
    """Index stored attempts, with their latest findings."""
    insert_work_texts(connection, _load_work_texts(connection, ids))
    newest = select(func.max(measurements.c.number)).where(measurements.c.attempt.in_(ids))
    rows = connection.execute(
        select(measurements.c.attempt, measurements.c.body).where(
            measurements.c.number.in_(newest.group_by(measurements.c.attempt))
        )
    )
    findings = {row.attempt: unpack_record(row.body, Measurement).findings for row in rows}
    replace_finding_texts(connection, findings)


# Which recorded work mentions which URL.


def add_links(connection: Connection, attempts: Iterable[Attempt]) -> None:
    """Save the addresses that newly stored attempts mention."""
    rows = [
        {"attempt": attempt.id, "address": short_column_text(address)}
        for attempt in attempts
        for address in dict.fromkeys(attempt.links.values())
        if "://" in address
    ]
    if rows:
        connection.execute(insert(links), rows)


class PackedSession(Record):
    """A session ready to be stored: packed where it was read, so that little is transferred."""

    attempt: Attempt
    """Its parent, the session's previous version, is looked up when it is stored."""
    key: str
    """Shared by all versions of the session."""
    columns: dict[str, Any]
    session: bytes
    trace: bytes
    search_text: str
    """The text indexed for search."""
    prompt: PromptVersion | None = None
    """The system prompt found in its files."""


class ImportedFile(Record):
    """A file as it was when it was imported."""

    path: str
    size: int
    changed: int
    """Time of the last modification, in nanoseconds."""
    parts: tuple[tuple[str, int, int], ...] = ()
    """Path, size and time of the other files of the recording."""
    reader: str | None = None
    """None if no reader recognised the file."""
    version: int
    """Version of the reader, or of all readers together if none recognised the file."""
    sessions: int = 0
    """Number of sessions in it; 1 if it is a part of another file's session."""


def session_key(session: Session, path: str) -> str:
    """Return the key that all versions of a session share."""
    # An id alone may be a task's name shared by many tries: start time or folder distinguish them.
    start_digest = content_digest(session.started or path)
    return (
        content_digest(session.agent, session.id)[:OWN_KEY_CHARACTERS]
        + COPY_MARKS[session.copy]
        + start_digest[:OWN_KEY_CHARACTERS]
    )


def build_packed_session(
    attempt: Attempt, session: Session, key: str, trace: bytes
) -> PackedSession:
    """Build everything about a session that does not need the store."""
    from closeloop.text.client_markup import build_prompt_version

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
    connection: Connection, new_sessions: Sequence[PackedSession], files: Sequence[ImportedFile]
) -> list[str]:
    """Add sessions that are not stored yet, and the imported files; return the new ids."""
    known_ids = _known_attempts(connection, [session.attempt.id for session in new_sessions])
    newest_by_key = _newest_versions(connection, {session.key for session in new_sessions})
    added: list[PackedSession] = []
    for session in new_sessions:
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
    insert_work_texts(connection, {session.attempt.id: session.search_text for session in added})
    add_links(connection, (session.attempt for session in added))
    add_attempt_prompts(
        connection, [(session.attempt.id, session.prompt) for session in added if session.prompt]
    )
    _insert_rows(connection, imports, [_import_row(file) for file in files])
    return [session.attempt.id for session in added]


def _session_rows(
    packed_session: PackedSession,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    session_fields = {
        name: packed_session.columns[name] for name in ("agent", "model", "repo", "branch")
    }
    columns = {
        name: value for name, value in packed_session.columns.items() if name not in session_fields
    }
    attempt_id = packed_session.attempt.id
    bodies = {
        "attempt": attempt_id,
        "body": pack_record(packed_session.attempt),
        "change": None,
        "trace": packed_session.trace,
    }
    session = {"attempt": attempt_id, "key": packed_session.key, "body": packed_session.session}
    return (
        {**columns, "parent": packed_session.attempt.parent},
        bodies,
        {**session, **session_fields},
    )


def load_session_body(connection: Connection, attempt: str) -> bytes | None:
    """Load the session of an attempt, by its id or a prefix of it."""
    query = select(sessions.c.body).where(
        sessions.c.attempt == resolve_attempt_id(connection, attempt)
    )
    body: bytes | None = connection.execute(query).scalar()
    return body


def load_imported_files(connection: Connection, paths: Sequence[str]) -> dict[str, ImportedFile]:
    """Load the latest import of each file, by path."""
    files: dict[str, ImportedFile] = {}
    newest = select(func.max(imports.c.number)).group_by(imports.c.path)
    for path_part in split_values(paths):
        newest_numbers = newest.where(imports.c.path.in_(path_part))
        for row in connection.execute(select(imports).where(imports.c.number.in_(newest_numbers))):
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
    """A span as stored."""

    trace: str
    conversation: str | None
    digest: str
    body: bytes


def insert_spans(connection: Connection, new_spans: Sequence[StoredSpan]) -> int:
    """Add spans that are not stored yet; return how many."""
    statement = insert_or_ignore(spans)
    rows = (msgspec.structs.asdict(span) for span in new_spans)
    return sum(
        connection.execute(
            statement, {**row, "conversation": short_column_text(row["conversation"])}
        ).rowcount
        for row in rows
    )


def load_trace_spans(connection: Connection, trace: str) -> list[bytes]:
    """Load the spans of a trace, and of all traces of its conversation if it names just one."""
    query = select(spans.c.conversation).distinct()
    query = query.where(spans.c.trace == trace, spans.c.conversation.is_not(None))
    conversations = connection.execute(query).scalars().all()
    traces = {trace}
    if len(conversations) == 1:
        trace_query = (
            select(spans.c.trace).distinct().where(spans.c.conversation == conversations[0])
        )
        traces.update(connection.execute(trace_query).scalars())
    bodies = select(spans.c.body).where(spans.c.trace.in_(sorted(traces)))
    return list(connection.execute(bodies.order_by(spans.c.number)).scalars())


def count_spans(connection: Connection, trace: str | None = None) -> dict[str, int]:
    """Count the spans of each trace, or of one."""
    query = select(spans.c.trace, func.count()).group_by(spans.c.trace)
    if trace is not None:
        query = query.where(spans.c.trace == trace)
    return {row[0]: row[1] for row in connection.execute(query)}


def _import_row(file: ImportedFile) -> dict[str, Any]:
    parts = msgspec.msgpack.encode(file.parts) if file.parts else None
    return {**msgspec.structs.asdict(file), "parts": parts}


def _known_attempts(connection: Connection, ids: Sequence[str]) -> set[str]:
    known_ids: set[str] = set()
    for part in split_values(ids):
        query = select(attempts.c.id).where(attempts.c.id.in_(part))
        known_ids.update(connection.execute(query).scalars())
    return known_ids


def _newest_versions(connection: Connection, keys: Collection[str]) -> dict[str, str]:
    """Return the last stored version of each session, by key."""
    query = select(sessions.c.key, sessions.c.attempt).order_by(sessions.c.number)
    attempt_by_key: dict[str, str] = {}
    for part in split_values(sorted(keys)):
        rows = connection.execute(query.where(sessions.c.key.in_(part)))
        attempt_by_key.update((row.key, row.attempt) for row in rows)
    return attempt_by_key


def _insert_rows(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), rows)
