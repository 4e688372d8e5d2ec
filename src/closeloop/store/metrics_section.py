"""The columns that metrics are computed from: many attempts at once, without bodies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from closeloop.records.errors import MachineFailed, ReadOnlyStore
from closeloop.records.pull_request import Delivery
from closeloop.records.record import Record, content_digest
from closeloop.records.task import Task, Variant
from closeloop.store import attempt_rows, fact_rows, schema
from closeloop.store.engine import Connection
from closeloop.store.fact_rows import StoreSection, TransactionRunner
from closeloop.store.packed_columns import (
    AttemptColumns,
    RowPlacer,
    align_columns,
    collect_columns,
    join_rows,
    leave_out_attempts,
    pack_segment,
    unpack_segment,
)
from closeloop.store.record_bodies import unpack_record
from closeloop.store.schema import column_segments
from closeloop.store.sql_expressions import (
    BigInteger,
    SqlExpression,
    Text,
    case,
    func,
    literal_column,
    type_coerce,
)
from closeloop.store.sql_statements import Select, Table, delete, insert, select

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
    "files_recall", "similarity", "evidence",
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

    def pack_segments(self) -> None:
        """Pack rows that are not in a segment yet, if they fill one."""
        # What is not packed is read row by row, so a store that cannot be written now works too.
        with suppress(ReadOnlyStore, MachineFailed):
            for table in self._read(_list_tables_to_pack):
                while self._write(partial(_pack_next_segment, table=table)):
                    pass

    def load_attempt_columns(self, span: AttemptSpan) -> AttemptColumns:
        """Load attempts with the grade that counts and the session; times in µs since 1970.

        Grades and sessions are read by themselves and joined here, in a third of the time.
        """
        if span == AttemptSpan():
            self.pack_segments()
        superseded_query = attempt_rows.select_superseded_attempts(_span_conditions(span))

        def work(connection: Connection) -> AttemptColumns:
            loaded = _load_table(connection, schema.attempts, span)
            if span.attempts is None:
                superseded = [*connection.execute(superseded_query).scalars()]
                loaded = leave_out_attempts(loaded, superseded)
            placer = RowPlacer(loaded.attempts)
            graded = _load_table(connection, schema.grades, span)
            in_order = keep_newest_grades(placer.find_places(graded), graded.columns["version"])
            held = loaded.columns.join(align_columns(graded, in_order, placer.size))
            recorded = _load_table(connection, schema.sessions, span)
            places = placer.find_places(recorded)
            return AttemptColumns(
                attempts=loaded.attempts,
                columns=held.join(align_columns(recorded, places, placer.size)),
            )

        return self._read(work)

    def load_measurement_columns(self, span: AttemptSpan) -> AttemptColumns:
        """Load all measurements, on any basis, the newest last; rates as shares."""
        unsaved_rows = list(self._unsaved.values())
        return self._read(
            lambda connection: _load_table(connection, schema.measurements, span, unsaved_rows)
        )

    def load_delivery_columns(self, span: AttemptSpan) -> AttemptColumns:
        """Load all deliveries, the newest of an attempt last."""
        return self._read(lambda connection: _load_table(connection, schema.deliveries, span))

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
            checked_modes.c.report
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

        return self._read(work)

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

    def _load_columns(self, query: Select) -> AttemptColumns:
        return self._read(lambda connection: load_columns(connection, query))


def _select_checked_modes() -> Select:
    """Select checked modes by attempt; a check of a pull request's head counts for its attempt."""
    reports, pulls = schema.reports, schema.pulls
    return (
        select(
            func.coalesce(reports.c.attempt, pulls.c.attempt).label("attempt"),
            reports.c.modes.label("checked_modes"),
            reports.c.examined.label("checked_examined"),
            # Not `number`: that is the repeat of an attempt.
            reports.c.number.label("report"),
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


# Segments: what metrics read of the rows of a table, packed by columns, many rows in one value.
#
# Facts are added and never changed, so a segment never becomes outdated: it has all rows whose
# numbers are in its range, and a range is packed when no transaction can add to it. Rows with
# higher numbers are read one by one. A purge changes facts, and deletes all segments.

SEGMENT_ROWS = 16_384
JOINED_SEGMENTS = 8
"""Segments that are in memory unjoined: many small arrays leave gaps that nothing else fills."""
SEGMENT_FORMAT = 1
"""Of what `pack_segment` writes."""
SEGMENTED_TABLES = (
    schema.attempts, schema.grades, schema.sessions, schema.measurements, schema.deliveries,
)  # fmt: skip
LOCK_MILLISECONDS = 2000


def _select_table(table: Table, span: AttemptSpan) -> Select:
    """Select what metrics need of a table, for the attempts of a span."""
    if table is schema.attempts:
        selected: list[SqlExpression] = [table.c[name] for name in ATTEMPT_FIELDS]
        started = type_coerce(table.c.started, BigInteger).label("started")
        selected[ATTEMPT_FIELDS.index("started")] = started
        return select(table.c.id, *selected).where(*_span_conditions(span))
    fields = {
        "grades": GRADE_FIELDS,
        "sessions": SESSION_FIELDS,
        "measurements": MEASUREMENT_FIELDS,
        "deliveries": DELIVERY_FIELDS,
    }
    query = select_within(span, table, fields[table.name])
    if table is not schema.measurements:
        return query
    shares = (
        (table.c[f"{name}_hits"] / func.nullif(table.c[f"{name}_of"], 0)).label(name)
        for name in RATE_NAMES
    )
    return query.add_columns(*shares)


def _row_number(table: Table) -> SqlExpression:
    """Return the number that grows with each row of a table."""
    if table is schema.attempts:
        return literal_column("attempts.rowid", BigInteger)
    return table.c.number


def _load_table(
    connection: Connection,
    table: Table,
    span: AttemptSpan,
    extra_rows: Sequence[tuple[Any, ...]] = (),
) -> AttemptColumns:
    """Load the rows of a table in the order of their numbers, from segments where they are."""
    query, number = _select_table(table, span), _row_number(table)
    if span != AttemptSpan():
        ordered = query if table is schema.attempts else query.order_by(number)
        return load_columns(connection, ordered, extra_rows)
    segments = column_segments.c
    bodies = connection.fetch_parts(
        select(segments.body)
        .where(segments.layout == _segment_layout(connection, query))
        .order_by(segments.place),
        1,
    )
    parts, packed_rows = [], 0
    for ((body,),) in bodies:
        parts.append(unpack_segment(body))
        packed_rows += SEGMENT_ROWS
        if len(parts) == JOINED_SEGMENTS:
            parts = [join_rows(parts)]
    newer = query.where(number > packed_rows).order_by(number)
    return join_rows([*parts, load_columns(connection, newer, extra_rows)])


def _segment_layout(connection: Connection, query: Select) -> str:
    """Return a digest of what a segment has: other columns make other segments."""
    sql = query.render_statement(connection.dialect, ()).sql
    return content_digest(SEGMENT_FORMAT, SEGMENT_ROWS, sql)


def _list_tables_to_pack(connection: Connection) -> list[Table]:
    """List the tables with enough rows for another segment."""
    return [table for table in SEGMENTED_TABLES if _find_next_place(connection, table) is not None]


def _find_next_place(connection: Connection, table: Table) -> int | None:
    """Return the place of the next segment; None if the rows do not fill it."""
    last_row = connection.execute(select(func.max(_row_number(table))).select_from(table)).scalar()
    if (last_row or 0) < SEGMENT_ROWS:
        return None
    layout = _segment_layout(connection, _select_table(table, AttemptSpan()))
    query = select(func.count()).select_from(column_segments)
    place: int = connection.execute(query.where(column_segments.c.layout == layout)).scalar_one()
    return place if last_row >= (place + 1) * SEGMENT_ROWS else None


def _pack_next_segment(connection: Connection, table: Table) -> bool:
    """Pack the next segment of a table; False if its rows do not fill one."""
    if connection.dialect == "postgresql":
        # No transaction that took a lower number is still open then, nor a purge.
        connection.execute_sql(f"SET LOCAL lock_timeout = '{LOCK_MILLISECONDS}ms'")
        connection.execute_sql(f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE")
    place = _find_next_place(connection, table)
    if place is None:
        return False
    query, number = _select_table(table, AttemptSpan()), _row_number(table)
    layout = _segment_layout(connection, query)
    if place == 0:
        outdated = (column_segments.c.source == table.name) & (column_segments.c.layout != layout)
        connection.execute(delete(column_segments).where(outdated))
    first, last = place * SEGMENT_ROWS, (place + 1) * SEGMENT_ROWS
    rows = load_columns(connection, query.where(number > first, number <= last).order_by(number))
    segment = {"layout": layout, "place": place, "source": table.name, "body": pack_segment(rows)}
    connection.execute(insert(column_segments), segment)
    return True


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
