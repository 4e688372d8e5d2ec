"""Add facts and find the newest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

from msgspec.structs import replace
from sqlalchemy import Connection, Select, Table, bindparam, func, insert, select

from closeloop.records.attempt import Grade, TestRun
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.task import PromptVersion
from closeloop.store import attempt_rows
from closeloop.store.job_leases import build_insert
from closeloop.store.record_bodies import Blob, is_same_body, pack_record, unpack_record
from closeloop.store.schema import (
    attempt_bodies,
    attempt_prompts,
    attempts,
    blobs,
    grades,
    prompts,
)

RowValues = dict[str, Any]
Each = TypeVar("Each")
LAST_CHARACTER = "\U0010ffff"
"""Comes after all other signs."""
MAX_QUERY_VALUES = 500
"""Databases bound the number of values in one question."""


def split_values(values: Sequence[Each]) -> Iterator[Sequence[Each]]:
    """As many values at once as one question may hold."""
    return (
        values[start : start + MAX_QUERY_VALUES]
        for start in range(0, len(values), MAX_QUERY_VALUES)
    )


def select_newest(table: Table, *keys: str, **same: Any) -> Select[Any]:
    """The bodies that count: of each key the one said last, in the order of their numbers.

    `same` are columns that never change, and what they must hold.
    """
    where = [table.c[name] == value for name, value in same.items() if value is not None]
    last_numbers = select(func.max(table.c.number)).where(*where)
    last_numbers = last_numbers.group_by(*(table.c[key] for key in keys))
    return select(table.c.body).where(table.c.number.in_(last_numbers)).order_by(table.c.number)


def append_fact(
    connection: Connection, table: Table, keys: Collection[str], columns: RowValues
) -> None:
    """Add a row that counts from now on, unless the one that counts says the same."""
    conditions = (table.c[key] == columns[key] for key in keys)
    query = select(table).where(*conditions).order_by(table.c.number.desc()).limit(1)
    current_row = connection.execute(query).mappings().first()
    if current_row is None or any(current_row[name] != value for name, value in columns.items()):
        connection.execute(insert(table), columns)


def append_by_names(
    connection: Connection, table: Table, names: Sequence[str], columns: RowValues
) -> None:
    """The same under each of its names: what is said again counts again, after something else."""
    for name in names:
        append_fact(connection, table, (name,), columns)


def append_facts(
    connection: Connection, table: Table, keys: Collection[str], rows: Sequence[RowValues]
) -> None:
    for columns in rows:
        append_fact(connection, table, keys, columns)


def insert_new_rows(connection: Connection, table: Table, rows: Sequence[RowValues]) -> None:
    """Add rows; what is known already stays as it is."""
    if rows:
        connection.execute(insert_or_ignore(table, connection.dialect.name), list(rows))


def add_attempt_prompts(connection: Connection, seen: Sequence[tuple[str, PromptVersion]]) -> None:
    """Which system prompt attempts ran under; a prompt is saved as it was first seen."""
    if not seen:
        return
    ids = sorted({prompt.id for _, prompt in seen})
    known: set[str] = set()
    for part in split_values(ids):
        known.update(
            connection.execute(select(prompts.c.id).where(prompts.c.id.in_(part))).scalars()
        )
    new = {prompt.id: prompt for _, prompt in reversed(seen) if prompt.id not in known}
    insert_new_rows(
        connection, prompts, [{"id": key, "body": pack_record(one)} for key, one in new.items()]
    )
    rows = [
        {"attempt": attempt, "prompt": prompt.id, "source": prompt.source}
        for attempt, prompt in seen
    ]
    insert_new_rows(connection, attempt_prompts, rows)


def save_blobs(connection: Connection, *content: Blob | None) -> None:
    """Keep content under its digest, once however many records hold it."""
    # In one order everywhere, lest two processes wait for each other.
    distinct_blobs = sorted({each for each in content if each})
    insert_new_rows(
        connection, blobs, [{"digest": digest, "body": body} for digest, body in distinct_blobs]
    )


def load_test_run(connection: Connection, digest: str | None) -> TestRun | None:
    """The test run kept under a digest."""
    if digest is None:
        return None
    body = connection.execute(select(blobs.c.body).where(blobs.c.digest == digest)).scalar_one()
    return unpack_record(body, TestRun)


def attempt_exists(connection: Connection, attempt: str) -> bool:
    """Whether an attempt is stored."""
    query = select(attempts.c.id).where(attempts.c.id == attempt)
    return connection.execute(query).first() is not None


def load_bodies(connection: Connection, start: str, *columns: str) -> Sequence[Any]:
    """Some of the bodies of an attempt, by its id or the beginning of it."""
    query = _select_bodies(columns)
    row = connection.execute(query, {"id": start}).first()
    return row or connection.execute(query, {"id": resolve_attempt_id(connection, start)}).one()


@cache
def _select_bodies(columns: tuple[str, ...]) -> Select[Any]:
    selected = [attempt_bodies.c[name] for name in columns]
    return select(*selected).where(attempt_bodies.c.attempt == bindparam("id"))


def resolve_attempt_id(connection: Connection, start: str) -> str:
    """The id that is, or alone begins with, what a person typed."""
    ids = (
        connection.execute(_select_ids_between(), {"start": start, "end": start + LAST_CHARACTER})
        .scalars()
        .all()
    )
    if not ids:
        raise BadInput(f"No attempt begins with {start!r}: `closeloop attempts` lists them.")
    if len(ids) > 1 and ids[0] != start:
        more = " and more" if len(ids) > 5 else ""
        raise BadInput(
            f"{start!r} begins several attempts, {', '.join(ids[:5])}{more}: type more of it."
        )
    return str(ids[0])


@cache
def _select_ids_between() -> Select[Any]:
    name = attempts.c.id
    between = select(name).where(name >= bindparam("start"), name < bindparam("end"))
    return between.order_by(name).limit(6)


def insert_attempt(connection: Connection, columns: RowValues, bodies: RowValues) -> bool:
    """False when it is known already; BadInput when it is known otherwise."""
    added = connection.execute(insert_or_ignore(attempts, connection.dialect.name), columns)
    if added.rowcount == 1:
        connection.execute(_insert_statement(attempt_bodies), bodies)
        return True
    if not has_same_content(connection, bodies):
        raise BadInput(
            f"Attempt {columns['id']} is stored with other content, and facts are never "
            "overwritten: save it as a new attempt."
        )
    return False


def has_same_content(connection: Connection, bodies: RowValues) -> bool:
    """Whether an attempt is stored with just this content."""
    query = select(attempt_bodies).where(attempt_bodies.c.attempt == bodies["attempt"])
    stored = connection.execute(query).mappings().first()
    return stored is not None and all(
        is_same_body(stored[name], bodies[name]) for name in ("body", "change", "trace")
    )


def stored_grade_columns(grade: Grade, before: Blob | None) -> RowValues:
    """A row of `grades`; the run before the change is kept apart, as many grades share it."""
    return {
        **attempt_rows.grade_columns(grade),
        **attempt_rows.grade_score_columns(grade),
        "attempt": grade.attempt,
        "before": before and before[0],
        "body": pack_record(replace(grade, before=None)),
    }


def load_grade(connection: Connection, start: str, grading: str | None) -> Grade | None:
    """The grade of an attempt that counts, for this grading or for any."""
    parameters = {"id": resolve_attempt_id(connection, start), "grading": grading}
    row = connection.execute(_select_grade(any_grading=grading is None), parameters).first()
    if row is None:
        return None
    return replace(unpack_record(row.body, Grade), before=load_test_run(connection, row.before))


@cache
def _select_grade(*, any_grading: bool) -> Select[Any]:
    table = grades
    query = select(table.c.body, table.c.before).where(table.c.attempt == bindparam("id"))
    if not any_grading:
        query = query.where(table.c.grading == bindparam("grading"))
    return query.order_by(table.c.version.desc(), table.c.number.desc()).limit(1)


def insert_grade(connection: Connection, columns: RowValues, *, first: bool) -> None:
    """Add a grade; the first of an attempt needs no look at earlier ones."""
    if first:
        connection.execute(_insert_statement(grades), columns)
    else:
        append_fact(connection, grades, ("attempt",), columns)


@cache
def _insert_statement(table: Table) -> Any:
    return insert(table)


@cache
def insert_or_ignore(table: Table, dialect: str) -> Any:
    """What says, by the count of its rows, whether one was new."""
    return build_insert(dialect, table).on_conflict_do_nothing()


# What every part of an open store begins with.

Kept = TypeVar("Kept", bound=Record)
TransactionRunner = Callable[[Callable[[Connection], Any]], Any]


class StoreSection:
    """Reads and writes in transactions of the store that it is a part of."""

    def __init__(self, read: TransactionRunner, write: TransactionRunner) -> None:
        self._read = read
        self._write = write

    def _load_records(self, query: Select[Any], kind: type[Kept]) -> list[Kept]:
        """What the bodies that a query finds were made of."""
        bodies = self._read(lambda on: on.execute(query).scalars().all())
        return [unpack_record(body, kind) for body in bodies]

    def _load_record(self, query: Select[Any], kind: type[Kept]) -> Kept | None:
        """The same of the first one; None where there is none."""
        body = self._read(lambda on: on.execute(query).scalar())
        return None if body is None else unpack_record(body, kind)
