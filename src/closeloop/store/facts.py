"""Add facts and find the newest."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

from msgspec.structs import replace
from sqlalchemy import Connection, Select, Table, bindparam, func, insert, select

from closeloop.model.attempt import Grade, TestRun
from closeloop.model.errors import BadInput
from closeloop.store import rows
from closeloop.store.bodies import Blob, pack, same, unpack
from closeloop.store.jobs import upsert
from closeloop.store.schema import attempt_bodies, attempts, blobs, grades

Columns = dict[str, Any]
Each = TypeVar("Each")
LAST = "\U0010ffff"
"""Comes after all other signs."""
AT_ONCE = 500
"""Databases bound the number of values in one question."""


def pieces(values: Sequence[Each]) -> Iterator[Sequence[Each]]:
    """As many values at once as one question may hold."""
    return (values[start : start + AT_ONCE] for start in range(0, len(values), AT_ONCE))


def newest(table: Table, *keys: str, **same: Any) -> Select[Any]:
    """The bodies that count: of each key the one said last, in the order of their numbers.

    `same` are columns that never change, and what they must hold.
    """
    where = [table.c[name] == value for name, value in same.items() if value is not None]
    last = select(func.max(table.c.number)).where(*where)
    last = last.group_by(*(table.c[key] for key in keys))
    return select(table.c.body).where(table.c.number.in_(last)).order_by(table.c.number)


def append(connection: Connection, table: Table, keys: Collection[str], columns: Columns) -> None:
    """Add a row that counts from now on, unless the one that counts says the same."""
    named = (table.c[key] == columns[key] for key in keys)
    newest = select(table).where(*named).order_by(table.c.number.desc()).limit(1)
    known = connection.execute(newest).mappings().first()
    if known is None or any(known[name] != value for name, value in columns.items()):
        connection.execute(insert(table), columns)


def append_named(
    connection: Connection, table: Table, names: Sequence[str], columns: Columns
) -> None:
    """The same under each of its names: what is said again counts again, after something else."""
    for name in names:
        append(connection, table, (name,), columns)


def append_each(
    connection: Connection, table: Table, keys: Collection[str], rows: Sequence[Columns]
) -> None:
    for columns in rows:
        append(connection, table, keys, columns)


def add_new(connection: Connection, table: Table, rows: Sequence[Columns]) -> None:
    """Add rows; what is known already stays as it is."""
    if rows:
        connection.execute(insert_once(table, connection.dialect.name), list(rows))


def share(connection: Connection, *content: Blob | None) -> None:
    """Keep content under its digest, once however many records hold it."""
    # In one order everywhere, lest two processes wait for each other.
    held = sorted({each for each in content if each})
    add_new(connection, blobs, [{"digest": digest, "body": body} for digest, body in held])


def shared(connection: Connection, digest: str | None) -> TestRun | None:
    """The test run kept under a digest."""
    if digest is None:
        return None
    body = connection.execute(select(blobs.c.body).where(blobs.c.digest == digest)).scalar_one()
    return unpack(body, TestRun)


def has(connection: Connection, attempt: str) -> bool:
    """Whether an attempt is stored."""
    found = select(attempts.c.id).where(attempts.c.id == attempt)
    return connection.execute(found).first() is not None


def bodies_of(connection: Connection, start: str, *columns: str) -> Sequence[Any]:
    """Some of the bodies of an attempt, by its id or the beginning of it."""
    query = _bodies(columns)
    found = connection.execute(query, {"id": start}).first()
    return found or connection.execute(query, {"id": full_id(connection, start)}).one()


@cache
def _bodies(columns: tuple[str, ...]) -> Select[Any]:
    wanted = [attempt_bodies.c[name] for name in columns]
    return select(*wanted).where(attempt_bodies.c.attempt == bindparam("id"))


def full_id(connection: Connection, start: str) -> str:
    """The id that is, or alone begins with, what a person typed."""
    ids = connection.execute(_near(), {"start": start, "end": start + LAST}).scalars().all()
    if not ids:
        raise BadInput(f"No attempt begins with {start!r}: `closeloop attempts` lists them.")
    if len(ids) > 1 and ids[0] != start:
        more = " and more" if len(ids) > 5 else ""
        raise BadInput(
            f"{start!r} begins several attempts, {', '.join(ids[:5])}{more}: type more of it."
        )
    return str(ids[0])


@cache
def _near() -> Select[Any]:
    name = attempts.c.id
    between = select(name).where(name >= bindparam("start"), name < bindparam("end"))
    return between.order_by(name).limit(6)


def add_attempt(connection: Connection, columns: Columns, bodies: Columns) -> bool:
    """False when it is known already; BadInput when it is known otherwise."""
    added = connection.execute(insert_once(attempts, connection.dialect.name), columns)
    if added.rowcount == 1:
        connection.execute(_insert(attempt_bodies), bodies)
        return True
    if not knows(connection, bodies):
        raise BadInput(
            f"Attempt {columns['id']} is stored with other content, and facts are never "
            "overwritten: save it as a new attempt."
        )
    return False


def knows(connection: Connection, bodies: Columns) -> bool:
    """Whether an attempt is stored with just this content."""
    query = select(attempt_bodies).where(attempt_bodies.c.attempt == bodies["attempt"])
    kept = connection.execute(query).mappings().first()
    return kept is not None and all(
        same(kept[name], bodies[name]) for name in ("body", "change", "trace")
    )


def grade_columns(grade: Grade, before: Blob | None) -> Columns:
    """A row of `grades`; the run before the change is kept apart, as many grades share it."""
    return {
        **rows.grade_columns(grade),
        "attempt": grade.attempt,
        "before": before and before[0],
        "body": pack(replace(grade, before=None)),
    }


def grade_of(connection: Connection, start: str, grading: str | None) -> Grade | None:
    """The grade of an attempt that counts, for this grading or for any."""
    given = {"id": full_id(connection, start), "grading": grading}
    row = connection.execute(_grade(any_grading=grading is None), given).first()
    if row is None:
        return None
    return replace(unpack(row.body, Grade), before=shared(connection, row.before))


@cache
def _grade(*, any_grading: bool) -> Select[Any]:
    table = grades
    query = select(table.c.body, table.c.before).where(table.c.attempt == bindparam("id"))
    if not any_grading:
        query = query.where(table.c.grading == bindparam("grading"))
    return query.order_by(table.c.version.desc(), table.c.number.desc()).limit(1)


def add_grade(connection: Connection, columns: Columns, *, first: bool) -> None:
    """Add a grade; the first of an attempt needs no look at earlier ones."""
    if first:
        connection.execute(_insert(grades), columns)
    else:
        append(connection, grades, ("attempt",), columns)


@cache
def _insert(table: Table) -> Any:
    return insert(table)


@cache
def insert_once(table: Table, dialect: str) -> Any:
    """What says, by the count of its rows, whether one was new."""
    return upsert(dialect, table).on_conflict_do_nothing()
