"""What numbers are made of: narrow columns of many attempts at once, and no body of theirs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    Table,
    Text,
    func,
    select,
    type_coerce,
)

from closeloop.model.delivery import Delivery
from closeloop.model.record import Record
from closeloop.model.task import Task
from closeloop.model.variant import Variant
from closeloop.store import rows, schema
from closeloop.store.bodies import unpack
from closeloop.store.columns import Columns, gathered
from closeloop.store.part import Do, Part

AT_ONCE = 500

OF_ATTEMPT = (
    "origin", "task", "task_digest", "variant", "number", "retry", "started", "seconds",
    "input_tokens", "output_tokens", "cost", "turns", "events", "files_changed", "user",
)  # fmt: skip
OF_GRADE = ("grading", "version", "outcome", "broken")
OF_SESSION = ("agent", "model", "repo", "branch")
OF_MEASUREMENT = ("basis", "findings", "category", "modes", "converged_after")
RATES = ("handoff", "feedback", "recovery", "convergence")
OF_DELIVERY = tuple(name for name in Delivery.__struct_fields__ if name not in ("attempt", "at"))


class Span(Record):
    """Which attempts: those of some variants, of some time."""

    variants: tuple[str, ...] | None = None
    """Digests; None is any, and any session too."""
    since: datetime | None = None
    until: datetime | None = None
    """The first moment that is not in it."""


class Numbers(Part):
    """The part of an open store that metrics are made of."""

    def __init__(self, read: Do, write: Do) -> None:
        super().__init__(read, write)
        self._unsaved: dict[tuple[str, str], tuple[Any, ...]] = {}
        """Measurements of a store that can only be read, by attempt and basis."""

    def hold_measurements(self, made: Sequence[Mapping[str, Any]]) -> None:
        """Keep rows of `measurements` in memory, while the store is open."""
        for row in made:
            pairs = ((row[f"{name}_hits"], row[f"{name}_of"]) for name in RATES)
            shares = (hits / of if of else None for hits, of in pairs)
            columns = (row[name] for name in OF_MEASUREMENT)
            self._unsaved[row["attempt"], row["basis"]] = (row["attempt"], *columns, *shares)

    def attempts(self, span: Span) -> Columns:
        """With the grade that counts and the session; moments are microseconds since 1970."""
        attempts, grades, sessions = schema.attempts, schema.grades, schema.sessions
        shown: list[ColumnElement[Any]] = [attempts.c[name] for name in OF_ATTEMPT]
        shown[OF_ATTEMPT.index("started")] = type_coerce(attempts.c.started, BigInteger).label(
            "started"
        )
        shown += [grades.c[name] for name in OF_GRADE]
        shown += [sessions.c[name] for name in OF_SESSION]
        query = rows.counting().with_only_columns(attempts.c.id, *shown, maintain_column_froms=True)
        return self._columns(query.where(*_within(span)).order_by(None))

    def measurements(self, span: Span) -> Columns:
        """All that were made of them, on whatever basis, the newest last; rates as shares."""
        table = schema.measurements
        shares = [
            (table.c[f"{name}_hits"] / func.nullif(table.c[f"{name}_of"], 0)).label(name)
            for name in RATES
        ]
        query = _of(span, table, OF_MEASUREMENT).add_columns(*shares).order_by(table.c.number)
        return self._columns(query, list(self._unsaved.values()))

    def deliveries(self, span: Span) -> Columns:
        """All that were told, the newest of an attempt last."""
        query = _of(span, schema.deliveries, OF_DELIVERY)
        return self._columns(query.order_by(schema.deliveries.c.number))

    def tasks(self) -> dict[str, Task]:
        """By digest, as they were saved last, and in that order."""
        table = schema.tasks
        return {key: unpack(body, Task) for key, body in self._newest(table, "digest")}

    def variants(self) -> dict[str, Variant]:
        """By digest, as they were saved last, and in that order."""
        table = schema.variants
        return {key: unpack(body, Variant) for key, body in self._newest(table, "digest")}

    def _newest(self, table: Table, key: str) -> Collection[tuple[str, bytes]]:
        query = select(table.c[key], table.c.body).order_by(table.c.number)
        found: list[tuple[str, bytes]] = self._read(lambda on: on.execute(query).all())
        newest: dict[str, bytes] = {}
        for name, body in reversed(found):
            newest.setdefault(name, body)
        return list(newest.items())[::-1]

    def _columns(self, query: Select[Any], more: Sequence[tuple[Any, ...]] = ()) -> Columns:
        """Straight from the driver: rows of its wrapper would take more than their content."""
        kinds = {column.name: isinstance(column.type, Text) for column in query.selected_columns}
        kinds.pop(next(iter(kinds)))

        def work(on: Connection) -> Columns:
            parts = _parts(on.execute(query).cursor)
            return gathered(chain(parts, [more]) if more else parts, kinds)

        found: Columns = self._read(work)
        return found


def _parts(cursor: Any) -> Iterator[list[tuple[Any, ...]]]:
    while cursor and (part := cursor.fetchmany(AT_ONCE)):
        yield part


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


def _of(span: Span, table: Table, names: Collection[str]) -> Select[Any]:
    query = select(table.c.attempt, *(table.c[name] for name in names))
    if limits := _within(span):
        query = query.where(table.c.attempt.in_(select(schema.attempts.c.id).where(*limits)))
    return query
