"""The columns that metrics are computed from: many attempts at once, without bodies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from closeloop.records.pull_request import Delivery
from closeloop.records.record import Record
from closeloop.records.task import Task, Variant
from closeloop.store import attempt_rows, fact_rows, schema
from closeloop.store.engine import Connection
from closeloop.store.fact_rows import StoreSection, TransactionRunner
from closeloop.store.packed_columns import (
    AttemptColumns,
    RowPlacer,
    align_columns,
    collect_columns,
    leave_out_attempts,
)
from closeloop.store.record_bodies import unpack_record
from closeloop.store.sql_expressions import BigInteger, SqlExpression, Text, case, func, type_coerce
from closeloop.store.sql_statements import Select, Table, select

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


FETCH_ROWS = 500

ATTEMPT_FIELDS = (
    "origin", "task", "task_digest", "variant", "number", "retry", "started", "seconds",
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost", "turns",
    "events", "files_changed", "user",
)  # fmt: skip
GRADE_FIELDS = (
    "grading", "version", "outcome", "broken", "asked", "fixed", "files_precision",
    "files_recall", "similarity",
)  # fmt: skip
SESSION_FIELDS = ("agent", "model", "repo", "branch")
MEASUREMENT_FIELDS = (
    "basis", "findings", "category", "modes", "examined", "modules", "opened_precision",
    "opened_recall", "context_tokens", "drift_slope", "converged_after",
)  # fmt: skip
RATE_NAMES = ("handoff", "feedback", "recovery", "convergence")
DELIVERY_FIELDS = tuple(
    name for name in Delivery.__struct_fields__ if name not in ("attempt", "at")
)


class AttemptSpan(Record):
    """Which attempts: those of some variants, of a period, or some by id."""

    attempts: tuple[str, ...] | None = None
    """Ids; all of them count then, also earlier tries."""
    variants: tuple[str, ...] | None = None
    """Digests; None means any variant, and sessions too."""
    since: datetime | None = None
    until: datetime | None = None
    """End of the period, exclusive."""


class MetricsSection(StoreSection):
    """The store's section for metrics."""

    def __init__(self, read: TransactionRunner, write: TransactionRunner) -> None:
        super().__init__(read, write)
        self._unsaved: dict[tuple[str, str], tuple[Any, ...]] = {}
        """Measurements of a read-only store, by attempt and basis."""

    def hold_measurements(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Hold rows of `measurements` in memory while the store is open."""
        for row in rows:
            pairs = ((row[f"{name}_hits"], row[f"{name}_of"]) for name in RATE_NAMES)
            shares = (hits / total if total else None for hits, total in pairs)
            columns = (row[name] for name in MEASUREMENT_FIELDS)
            self._unsaved[row["attempt"], row["basis"]] = (row["attempt"], *columns, *shares)

    def load_attempt_columns(self, span: AttemptSpan) -> AttemptColumns:
        """Load attempts with the grade that counts and the session; times in µs since 1970.

        Grades and sessions are read by themselves and joined here, in a third of the time.
        """
        attempts, grades, sessions = schema.attempts, schema.grades, schema.sessions
        selected: list[SqlExpression] = [attempts.c[name] for name in ATTEMPT_FIELDS]
        selected[ATTEMPT_FIELDS.index("started")] = type_coerce(
            attempts.c.started, BigInteger
        ).label("started")
        attempt_query = select(attempts.c.id, *selected).where(*_span_conditions(span))
        grade_query = select_within(span, grades, GRADE_FIELDS).order_by(grades.c.number)
        session_query = select_within(span, sessions, SESSION_FIELDS)
        superseded_query = attempt_rows.select_superseded_attempts(_span_conditions(span))

        def work(connection: Connection) -> AttemptColumns:
            loaded = load_columns(connection, attempt_query)
            if span.attempts is None:
                superseded = [*connection.execute(superseded_query).scalars()]
                loaded = leave_out_attempts(loaded, superseded)
            placer = RowPlacer(loaded.attempts)
            graded = load_columns(connection, grade_query)
            in_order = keep_newest_grades(placer.find_places(graded), graded.held["version"])
            held = loaded.held.join(align_columns(graded, in_order, placer.size))
            recorded = load_columns(connection, session_query)
            places = placer.find_places(recorded)
            return AttemptColumns(
                attempts=loaded.attempts,
                held=held.join(align_columns(recorded, places, placer.size)),
            )

        loaded: AttemptColumns = self._read(work)
        return loaded

    def load_measurement_columns(self, span: AttemptSpan) -> AttemptColumns:
        """Load all measurements, on any basis, the newest last; rates as shares."""
        table = schema.measurements
        shares = [
            (table.c[f"{name}_hits"] / func.nullif(table.c[f"{name}_of"], 0)).label(name)
            for name in RATE_NAMES
        ]
        query = (
            select_within(span, table, MEASUREMENT_FIELDS)
            .add_columns(*shares)
            .order_by(table.c.number)
        )
        return self._load_columns(query, list(self._unsaved.values()))

    def load_delivery_columns(self, span: AttemptSpan) -> AttemptColumns:
        """Load all deliveries, the newest of an attempt last."""
        query = select_within(span, schema.deliveries, DELIVERY_FIELDS)
        return self._load_columns(query.order_by(schema.deliveries.c.number))

    def has_deliveries(self) -> bool:
        """Whether anything is known of what people did with some work."""
        query = select(schema.deliveries.c.number).limit(1)
        return bool(self._read(lambda connection: connection.execute(query).first() is not None))

    def load_check_columns(self) -> AttemptColumns:
        """Load the failure modes that change checks found and looked for, newest last."""
        return self._load_columns(_select_checked_modes().order_by(schema.reports.c.number))

    def load_plan_columns(self) -> AttemptColumns:
        """Load, for attempts that are plans, whether they passed, and retries with their cost."""
        plans, tries = schema.plans, schema.executions
        counts = (
            select(
                tries.c.plan,
                func.count().label("tries"),
                func.count(tries.c.task.distinct()).label("tasks"),
                func.sum(case((tries.c["try"] > 1, tries.c.cost))).label("retried_cost"),
            )
            .where(tries.c.exit != "machine")
            .group_by(tries.c.plan)
            .subquery()
        )
        query = (
            select(
                plans.c.attempt,
                plans.c.overall_pass.label("plan_passed"),
                (counts.c.tries - counts.c.tasks).label("plan_retries"),
                counts.c.retried_cost.label("plan_retried_cost"),
            )
            .join_from(plans, counts, plans.c.id == counts.c.plan)
            .where(plans.c.attempt.is_not(None))
        )
        return self._load_columns(query.order_by(plans.c.number))

    def list_checked_modes(self, attempts: Collection[str]) -> list[tuple[str, Any, Any]]:
        """List attempt, mode and source, from the newest change check of each attempt."""
        checked_modes = _select_checked_modes().subquery()
        query = select(checked_modes.c.attempt, checked_modes.c.checked_modes).order_by(
            checked_modes.c.number
        )
        newest = self._newest_values(query, checked_modes.c.attempt, attempts)
        tokens = [
            (attempt, token.removesuffix(")").partition(" ("))
            for attempt, text in newest.items()
            for token in (text or "").split(", ")
        ]
        return [(attempt, mode, source) for attempt, (mode, _, source) in tokens if mode]

    def list_regressed_attempts(self, attempts: Collection[str]) -> list[str]:
        """List the attempts whose newest delivery says that they were reverted or fixed."""
        table = schema.deliveries
        query = select(table.c.attempt, table.c.regressed).order_by(table.c.number)
        newest = self._newest_values(query, table.c.attempt, attempts)
        return [attempt for attempt, regressed in newest.items() if regressed]

    def _newest_values(
        self, query: Select, key: SqlExpression, attempts: Collection[str]
    ) -> dict[str, Any]:
        """Return the last value by attempt, from a query for attempt and value."""
        queries = [query.where(key.in_(part)) for part in fact_rows.split_values(list(attempts))]

        def work(connection: Connection) -> dict[str, Any]:
            return {name: value for query in queries for name, value in connection.execute(query)}

        newest: dict[str, Any] = self._read(work)
        return newest

    def load_tasks(self) -> dict[str, Task]:
        """Load tasks by digest, each as saved last, in the order of saving."""
        table = schema.tasks
        return {
            key: unpack_record(body, Task) for key, body in self._newest_bodies(table, "digest")
        }

    def load_variants(self) -> dict[str, Variant]:
        """Load variants by digest, each as saved last, in the order of saving."""
        table = schema.variants
        return {
            key: unpack_record(body, Variant) for key, body in self._newest_bodies(table, "digest")
        }

    def _newest_bodies(self, table: Table, key: str) -> Collection[tuple[str, bytes]]:
        query = select(table.c[key], table.c.body).order_by(table.c.number)
        all_bodies: list[tuple[str, bytes]] = self._read(
            lambda connection: connection.execute(query).all()
        )
        newest: dict[str, bytes] = {}
        for name, body in reversed(all_bodies):
            newest.setdefault(name, body)
        return list(newest.items())[::-1]

    def _load_columns(
        self, query: Select, extra_rows: Sequence[tuple[Any, ...]] = ()
    ) -> AttemptColumns:
        loaded: AttemptColumns = self._read(
            lambda connection: load_columns(connection, query, extra_rows)
        )
        return loaded


def _select_checked_modes() -> Select:
    """Select checked modes by attempt; a check of a pull request's head counts for its attempt."""
    reports, pulls = schema.reports, schema.pulls
    return (
        select(
            func.coalesce(reports.c.attempt, pulls.c.attempt).label("attempt"),
            reports.c.modes.label("checked_modes"),
            reports.c.examined.label("checked_examined"),
            reports.c.number,
        )
        .outerjoin_from(
            reports, pulls, (pulls.c.repo == reports.c.repo) & (pulls.c.head == reports.c.head)
        )
        .where(reports.c.examined.is_not(None))
    )


def keep_newest_grades(places: Array, versions: Array) -> Array:
    """Return the places with -1 for all but one grade of each: the last of the newest version."""
    import numpy as np

    order = np.lexsort((versions, places))
    is_replaced = places[order][1:] == places[order][:-1]
    newest = places.copy()
    newest[order[:-1][is_replaced]] = -1
    return newest


def load_columns(
    connection: Connection, query: Select, extra_rows: Sequence[tuple[Any, ...]] = ()
) -> AttemptColumns:
    """Load columns straight from the driver; row objects would take more memory than values."""
    kinds = {column.name or "": isinstance(column.type, Text) for column in query.selected_columns}
    kinds.pop(next(iter(kinds)))
    parts = connection.fetch_parts(query, FETCH_ROWS)
    return collect_columns(chain(parts, [extra_rows]) if extra_rows else parts, kinds)


def _span_conditions(span: AttemptSpan) -> list[SqlExpression]:
    table = schema.attempts
    conditions: list[SqlExpression] = []
    if span.attempts is not None:
        conditions.append(table.c.id.in_(span.attempts))
    if span.variants is not None:
        conditions.append(table.c.variant.in_(span.variants))
    if span.since is not None:
        conditions.append(table.c.started >= span.since)
    if span.until is not None:
        conditions.append(table.c.started < span.until)
    return conditions


def select_within(span: AttemptSpan, table: Table, names: Collection[str]) -> Select:
    """Select columns of a table about attempts, for the attempts of a span."""
    query = select(table.c.attempt, *(table.c[name] for name in names))
    if span.attempts is not None:
        return query.where(table.c.attempt.in_(span.attempts))
    if limits := _span_conditions(span):
        query = query.where(table.c.attempt.in_(select(schema.attempts.c.id).where(*limits)))
    return query
