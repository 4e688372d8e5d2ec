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

from closeloop.records.pull_request import Delivery
from closeloop.records.record import Record
from closeloop.records.task import Task, Variant
from closeloop.store import attempt_rows, schema
from closeloop.store.column_arrays import AttemptColumns, collect_columns
from closeloop.store.record_bodies import unpack_record
from closeloop.store.store_section import StoreSection, TransactionRunner

FETCH_ROWS = 500

ATTEMPT_FIELDS = (
    "origin", "task", "task_digest", "variant", "number", "retry", "started", "seconds",
    "input_tokens", "output_tokens", "cost", "turns", "events", "files_changed", "user",
)  # fmt: skip
GRADE_FIELDS = ("grading", "version", "outcome", "broken")
SESSION_FIELDS = ("agent", "model", "repo", "branch")
MEASUREMENT_FIELDS = ("basis", "findings", "category", "modes", "converged_after")
RATE_NAMES = ("handoff", "feedback", "recovery", "convergence")
DELIVERY_FIELDS = tuple(
    name for name in Delivery.__struct_fields__ if name not in ("attempt", "at")
)


class AttemptSpan(Record):
    """Which attempts: those of some variants, of some time."""

    variants: tuple[str, ...] | None = None
    """Digests; None is any, and any session too."""
    since: datetime | None = None
    until: datetime | None = None
    """The first moment that is not in it."""


class MetricsSection(StoreSection):
    """The part of an open store that metrics are made of."""

    def __init__(self, read: TransactionRunner, write: TransactionRunner) -> None:
        super().__init__(read, write)
        self._unsaved: dict[tuple[str, str], tuple[Any, ...]] = {}
        """Measurements of a store that can only be read, by attempt and basis."""

    def hold_measurements(self, made: Sequence[Mapping[str, Any]]) -> None:
        """Keep rows of `measurements` in memory, while the store is open."""
        for row in made:
            pairs = ((row[f"{name}_hits"], row[f"{name}_of"]) for name in RATE_NAMES)
            shares = (hits / of if of else None for hits, of in pairs)
            columns = (row[name] for name in MEASUREMENT_FIELDS)
            self._unsaved[row["attempt"], row["basis"]] = (row["attempt"], *columns, *shares)

    def load_attempt_columns(self, span: AttemptSpan) -> AttemptColumns:
        """With the grade that counts and the session; moments are microseconds since 1970."""
        attempts, grades, sessions = schema.attempts, schema.grades, schema.sessions
        selected: list[ColumnElement[Any]] = [attempts.c[name] for name in ATTEMPT_FIELDS]
        selected[ATTEMPT_FIELDS.index("started")] = type_coerce(
            attempts.c.started, BigInteger
        ).label("started")
        selected += [grades.c[name] for name in GRADE_FIELDS]
        selected += [sessions.c[name] for name in SESSION_FIELDS]
        query = attempt_rows.select_counted_attempts().with_only_columns(
            attempts.c.id, *selected, maintain_column_froms=True
        )
        return self._load_columns(query.where(*_span_conditions(span)).order_by(None))

    def load_measurement_columns(self, span: AttemptSpan) -> AttemptColumns:
        """All that were made of them, on whatever basis, the newest last; rates as shares."""
        table = schema.measurements
        shares = [
            (table.c[f"{name}_hits"] / func.nullif(table.c[f"{name}_of"], 0)).label(name)
            for name in RATE_NAMES
        ]
        query = (
            _select_within(span, table, MEASUREMENT_FIELDS)
            .add_columns(*shares)
            .order_by(table.c.number)
        )
        return self._load_columns(query, list(self._unsaved.values()))

    def load_delivery_columns(self, span: AttemptSpan) -> AttemptColumns:
        """All that were told, the newest of an attempt last."""
        query = _select_within(span, schema.deliveries, DELIVERY_FIELDS)
        return self._load_columns(query.order_by(schema.deliveries.c.number))

    def load_tasks(self) -> dict[str, Task]:
        """By digest, as they were saved last, and in that order."""
        table = schema.tasks
        return {
            key: unpack_record(body, Task) for key, body in self._newest_bodies(table, "digest")
        }

    def load_variants(self) -> dict[str, Variant]:
        """By digest, as they were saved last, and in that order."""
        table = schema.variants
        return {
            key: unpack_record(body, Variant) for key, body in self._newest_bodies(table, "digest")
        }

    def _newest_bodies(self, table: Table, key: str) -> Collection[tuple[str, bytes]]:
        query = select(table.c[key], table.c.body).order_by(table.c.number)
        all_bodies: list[tuple[str, bytes]] = self._read(lambda on: on.execute(query).all())
        newest: dict[str, bytes] = {}
        for name, body in reversed(all_bodies):
            newest.setdefault(name, body)
        return list(newest.items())[::-1]

    def _load_columns(
        self, query: Select[Any], more: Sequence[tuple[Any, ...]] = ()
    ) -> AttemptColumns:
        """Straight from the driver: rows of its wrapper would take more than their content."""
        kinds = {column.name: isinstance(column.type, Text) for column in query.selected_columns}
        kinds.pop(next(iter(kinds)))

        def work(on: Connection) -> AttemptColumns:
            parts = _fetch_parts(on.execute(query).cursor)
            return collect_columns(chain(parts, [more]) if more else parts, kinds)

        loaded: AttemptColumns = self._read(work)
        return loaded


def _fetch_parts(cursor: Any) -> Iterator[list[tuple[Any, ...]]]:
    while cursor and (part := cursor.fetchmany(FETCH_ROWS)):
        yield part


def _span_conditions(span: AttemptSpan) -> list[ColumnElement[bool]]:
    table = schema.attempts
    conditions: list[ColumnElement[bool]] = []
    if span.variants is not None:
        conditions.append(table.c.variant.in_(span.variants))
    if span.since is not None:
        conditions.append(table.c.started >= span.since)
    if span.until is not None:
        conditions.append(table.c.started < span.until)
    return conditions


def _select_within(span: AttemptSpan, table: Table, names: Collection[str]) -> Select[Any]:
    query = select(table.c.attempt, *(table.c[name] for name in names))
    if limits := _span_conditions(span):
        query = query.where(table.c.attempt.in_(select(schema.attempts.c.id).where(*limits)))
    return query
