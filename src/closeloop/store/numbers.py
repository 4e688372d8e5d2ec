"""What numbers are made of: narrow columns of many attempts at once, and no body of theirs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    Table,
    func,
    insert,
    select,
    type_coerce,
)

from closeloop.model.delivery import Delivery
from closeloop.model.errors import BadInput
from closeloop.model.measurement import Measurement
from closeloop.model.record import Record
from closeloop.model.task import Task
from closeloop.model.variant import Variant
from closeloop.store import facts, measured, rows, schema
from closeloop.store.bodies import unpack

Do = Callable[[Callable[[Connection], Any]], Any]
Columns = dict[str, list[Any]]
"""By name; all of one length, a place an attempt."""
AT_ONCE = 4000

OF_ATTEMPT = (
    "id", "origin", "task", "task_digest", "variant", "number", "retry", "started",
    "seconds", "input_tokens", "output_tokens", "cost", "turns", "events", "files_changed", "user",
)  # fmt: skip
OF_GRADE = ("grading", "version", "outcome", "broken")
OF_SESSION = ("agent", "model", "repo", "branch")
OF_ALL = (*OF_ATTEMPT, *OF_GRADE, *OF_SESSION)
OF_MEASUREMENT = tuple(
    column.name
    for column in schema.measurements.c
    if column.name not in ("number", "found", "body")
)
OF_DELIVERY = tuple(name for name in Delivery.__struct_fields__ if name != "at")


class Span(Record):
    """Which attempts: those of some variants, of some time."""

    variants: tuple[str, ...] | None = None
    """Digests; None is any, and any session too."""
    since: datetime | None = None
    until: datetime | None = None
    """The first moment that is not in it."""


class Numbers:
    """The part of an open store that metrics are made of."""

    def __init__(self, read: Do, write: Do) -> None:
        self._read = read
        self._write = write

    def attempts(self, span: Span) -> Columns:
        """Columns `OF_ALL`, with the grade that counts; moments are microseconds since 1970."""
        attempts, grades, sessions = schema.attempts, schema.grades, schema.sessions
        shown: list[ColumnElement[Any]] = [attempts.c[name] for name in OF_ATTEMPT]
        shown[OF_ATTEMPT.index("started")] = type_coerce(attempts.c.started, BigInteger)
        shown += [grades.c[name] for name in OF_GRADE]
        shown += [sessions.c[name] for name in OF_SESSION]
        query = rows.counting().with_only_columns(*shown, maintain_column_froms=True)
        query = query.where(*_within(span)).order_by(None)
        return self._columns(OF_ALL, query)

    def measurements(self, span: Span) -> Columns:
        """All that were made of them, on whatever basis."""
        return self._columns(OF_MEASUREMENT, _of(span, schema.measurements, OF_MEASUREMENT))

    def deliveries(self, span: Span) -> Columns:
        """Of each attempt the newest."""
        table, later = schema.deliveries, schema.deliveries.alias()
        newest = select(func.max(later.c.number)).where(later.c.attempt == table.c.attempt)
        query = _of(span, table, OF_DELIVERY).where(table.c.number == newest.scalar_subquery())
        return self._columns(OF_DELIVERY, query)

    def save_delivery(self, delivery: Delivery) -> None:
        """Add what became of an attempt's change; it counts from now on."""
        columns = {name: getattr(delivery, name) for name in Delivery.__struct_fields__}

        def work(on: Connection) -> None:
            if not facts.has(on, delivery.attempt):
                raise BadInput(f"No attempt {delivery.attempt!r} was delivered: save it first.")
            on.execute(insert(schema.deliveries), columns)

        self._write(work)

    def tasks(self) -> dict[str, Task]:
        """By digest, as they were saved last."""
        table = schema.tasks
        return {key: unpack(body, Task) for key, body in self._newest(table, "digest")}

    def variants(self) -> dict[str, Variant]:
        """By digest, as they were saved last."""
        table = schema.variants
        return {key: unpack(body, Variant) for key, body in self._newest(table, "digest")}

    def _newest(self, table: Table, key: str) -> Collection[tuple[str, bytes]]:
        query = select(table.c[key], table.c.body).order_by(table.c.number)
        found: list[tuple[str, bytes]] = self._read(lambda on: on.execute(query).all())
        return dict(found).items()

    def _columns(self, names: Sequence[str], query: Select[Any]) -> Columns:
        """Straight from the driver, some rows at a time: else rows take more than their content."""

        def work(on: Connection) -> Columns:
            columns: Columns = {name: [] for name in names}
            cursor = on.execute(query).cursor
            while cursor and (part := cursor.fetchmany(AT_ONCE)):
                for column, values in zip(columns.values(), zip(*part, strict=True), strict=True):
                    column.extend(values)
            return columns

        found: Columns = self._read(work)
        return found


def columns_of(made: Sequence[tuple[str, str, Measurement]]) -> Columns:
    """What the table will show of measurements that were made just now."""
    rows = [measured.columns(*one) for one in made]
    return {name: [row[name] for row in rows] for name in OF_MEASUREMENT}


def _within(span: Span) -> list[ColumnElement[bool]]:
    table = schema.attempts
    found: list[ColumnElement[bool]] = []
    if span.variants is not None:
        found.append(table.c.variant.in_(span.variants))
    if span.since is not None:
        found.append(table.c.started >= span.since)
    if span.until is not None:
        found.append(table.c.started < span.until)
    return found


def _of(span: Span, table: Table, names: Sequence[str]) -> Select[Any]:
    query = select(*(table.c[name] for name in names))
    if limits := _within(span):
        query = query.where(table.c.attempt.in_(select(schema.attempts.c.id).where(*limits)))
    return query
