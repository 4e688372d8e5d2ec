"""Full-text search: what attempts say, as words of an index that both engines keep.

A document is one text of an attempt: its work, or what the rules found in it. SQLite indexes it by
FTS5 without a copy of its own, PostgreSQL by a `tsvector`, in parts where it is long. The text is
not stored again: all of it is made of facts, and can be made anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)

from closeloop.records.attempt import Attempt
from closeloop.records.finding import Finding, Measurement
from closeloop.records.record import content_digest
from closeloop.records.trace import Trace
from closeloop.store.attempt_rows import column_text
from closeloop.store.fact_rows import StoreSection, split_values
from closeloop.store.record_bodies import unpack_record
from closeloop.store.schema import attempt_bodies, attempts, measurements, search_documents
from closeloop.text.search_text import (
    SearchPhrase,
    SearchSnippet,
    collect_search_text,
    find_snippet,
    fold_words,
)

SEARCHED_TABLES = frozenset({"attempts", "attempt_bodies", "measurements"})
"""What the index is made of."""
VECTOR_CHARS = 100_000
"""A part of a document on PostgreSQL: a `tsvector` holds a megabyte and 16,383 positions."""
BATCH_ATTEMPTS = 200
OUTDATED = "outdated"
"""The kind of a document that is replaced."""
FEW_MATCHES = 2_000
"""So many are looked up one by one; where there are more, the list is walked and each is tested."""
_INSERT_WORDS = {
    "sqlite": text("INSERT INTO search_words (rowid, words) VALUES (:document, :words)"),
    "postgresql": text(
        "INSERT INTO search_words (document, words)"
        " VALUES (:document, to_tsvector('simple', :words))"
    ),
}
_DELETE_ALL_WORDS = {
    "sqlite": text("INSERT INTO search_words (search_words) VALUES ('delete-all')"),
    "postgresql": text("DELETE FROM search_words"),
}


def insert_work_texts(connection: Connection, texts: Mapping[str, str]) -> None:
    """Index what `collect_search_text` says of attempts that were just stored, by their ids."""
    storable = {attempt: column_text(said) for attempt, said in texts.items()}
    _insert_documents(connection, "work", storable)


def replace_finding_texts(
    connection: Connection, findings: Mapping[str, Sequence[Finding]]
) -> None:
    """Index what the rules say of attempts now, in place of what they said before."""
    documents = search_documents.c
    digests: dict[str, str] = {}
    for part in split_values(list(findings)):
        same = select(documents.attempt, documents.digest).where(
            documents.attempt.in_(part), documents.kind == "findings"
        )
        digests.update((row[0], row[1]) for row in connection.execute(same))
    new: dict[str, str] = {}
    for attempt, found in findings.items():
        lines = (f"{one.rule}: {one.message}" for one in found if one.silenced is None)
        said = column_text("\n".join(dict.fromkeys(lines)))
        if (content_digest(said) if said else None) != digests.get(attempt):
            new[attempt] = said
    # FTS5 lets go of words only with their text: the document stays, and no longer counts.
    for part in split_values([attempt for attempt in new if attempt in digests]):
        known = (documents.attempt.in_(part), documents.kind == "findings")
        connection.execute(update(search_documents).where(*known).values(kind=OUTDATED))
    _insert_documents(
        connection, "findings", {attempt: said for attempt, said in new.items() if said}
    )


def _insert_documents(
    connection: Connection, kind: Literal["work", "findings"], texts: Mapping[str, str]
) -> None:
    if not texts:
        return
    rows = [
        {"attempt": attempt, "kind": kind, "digest": content_digest(said)}
        for attempt, said in texts.items()
    ]
    connection.execute(insert(search_documents), rows)
    documents = search_documents.c
    numbers: dict[str, int] = {}
    for part in split_values(list(texts)):
        query = select(documents.attempt, documents.number)
        query = query.where(documents.attempt.in_(part), documents.kind == kind)
        numbers.update((row[0], row[1]) for row in connection.execute(query))
    dialect = connection.dialect.name
    words = [
        {"document": numbers[attempt], "words": part}
        for attempt, said in texts.items()
        for part in _split_words(fold_words(said), dialect)
    ]
    connection.execute(_INSERT_WORDS[dialect], words)


def _split_words(words: str, dialect: str) -> Iterator[str]:
    """The parts of a text that one row of the index holds."""
    while dialect == "postgresql" and len(words) > VECTOR_CHARS:
        end = words.rfind(" ", 0, VECTOR_CHARS)
        end = end if end > 0 else VECTOR_CHARS
        yield words[:end]
        words = words[end:]
    yield words


def rebuild_search_index(connection: Connection) -> None:
    """Index everything anew, from what is stored now; what stood there before is forgotten."""
    connection.execute(_DELETE_ALL_WORDS[connection.dialect.name])
    connection.execute(delete(search_documents))
    while missing := _list_unindexed(connection):
        _index_stored(connection, missing)


# Conditions: which attempts have all phrases in one text of theirs or another.


def search_conditions(
    connection: Connection, phrases: Iterable[SearchPhrase]
) -> list[ColumnElement[bool]]:
    """That an attempt has every phrase somewhere."""
    return [_phrase_condition(connection, phrase) for phrase in phrases]


def _phrase_condition(connection: Connection, phrase: SearchPhrase) -> ColumnElement[bool]:
    documents = search_documents.c
    found = _select_matches(connection.dialect.name, phrase)
    few: Select[Any] = (
        select(literal_column("1")).select_from(found.subquery()).limit(FEW_MATCHES + 1)
    )
    count = connection.execute(select(func.count()).select_from(few.subquery())).scalar() or 0
    if count <= FEW_MATCHES:
        matches = select(documents.attempt).where(
            documents.number.in_(found), documents.kind != OUTDATED
        )
        return attempts.c.id.in_(matches)
    matches = select(documents.number).where(
        documents.attempt == attempts.c.id,
        documents.number.in_(found),
        documents.kind != OUTDATED,
    )
    return matches.exists()


def _select_matches(dialect: str, phrase: SearchPhrase) -> Select[Any]:
    """The numbers of documents with a phrase. Its words are letters and digits only."""
    column: ColumnElement[int]
    if dialect == "sqlite":
        query = f'"{" ".join(phrase.words)}"' + ("" if phrase.is_whole else "*")
        condition = text("search_words MATCH :query").bindparams(
            bindparam("query", query, unique=True)
        )
        column = literal_column("rowid").label("number")
    else:
        query = " <-> ".join(phrase.words) + ("" if phrase.is_whole else ":*")
        condition = text("words @@ to_tsquery('simple', :query)").bindparams(
            bindparam("query", query, unique=True)
        )
        column = literal_column("document").label("number")
    return select(column).select_from(text("search_words")).where(condition)


class SearchSection(StoreSection):
    """The part of an open store that finds attempts by what they say."""

    def find_snippets(
        self, ids: Sequence[str], phrases: Sequence[SearchPhrase]
    ) -> dict[str, SearchSnippet]:
        """By attempt, a piece of its text with the first phrase that stands in it."""
        snippets: dict[str, SearchSnippet] = {}
        for attempt, said in self._read(partial(_load_work_texts, ids=ids)).items():
            if found := find_snippet(said, phrases):
                snippets[attempt] = found
        return snippets

    def index_missing(self) -> int:
        """Index attempts that the index does not know; how many those were."""
        indexed = 0
        while missing := self._read(_list_unindexed):
            indexed += len(missing)
            self._write(partial(_index_stored, ids=missing))
        return indexed


def _list_unindexed(connection: Connection) -> list[str]:
    known = select(search_documents.c.number).where(
        search_documents.c.attempt == attempts.c.id, search_documents.c.kind == "work"
    )
    query = select(attempts.c.id).where(~known.exists()).limit(BATCH_ATTEMPTS)
    return list(connection.execute(query).scalars())


def _load_work_texts(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
    """What attempts are found by, from their bodies."""
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
    """Index attempts that are stored, with what the rules said last."""
    insert_work_texts(connection, _load_work_texts(connection, ids))
    newest = select(func.max(measurements.c.number)).where(measurements.c.attempt.in_(ids))
    said = connection.execute(
        select(measurements.c.attempt, measurements.c.body).where(
            measurements.c.number.in_(newest.group_by(measurements.c.attempt))
        )
    )
    findings = {row.attempt: unpack_record(row.body, Measurement).findings for row in said}
    replace_finding_texts(connection, findings)
