"""The columns that metrics are computed from: many attempts at once, without bodies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from closeloop.records.pull_request import Delivery
from closeloop.records.record import Record
from closeloop.records.task import Task, Variant
from closeloop.store import attempt_rows, fact_rows, schema
from closeloop.store.engine import Connection
from closeloop.store.fact_rows import StoreSection, TransactionRunner
from closeloop.store.record_bodies import unpack_record
from closeloop.store.sql_expressions import BigInteger, SqlExpression, Text, case, func, type_coerce
from closeloop.store.sql_statements import Select, Table, select

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


# Columns of many rows: numbers, and texts of which each is stored once.


class TextColumn(Record):
    """A column of texts with few distinct values, as codes; None is a label for missing text."""

    codes: Any
    labels: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> TextColumn:
        return TextColumn(codes=self.codes[rows], labels=self.labels)

    def tolist(self) -> list[Any]:
        labels = self.labels
        return [labels[code] for code in self.codes.tolist()]

    def each(self, number: Callable[[Any], float | None]) -> Array:
        """Map each row's text to a number, NaN for None; `number` is called once per label."""
        import numpy as np

        numbers: Array = np.array([number(label) for label in self.labels], np.float64)[self.codes]
        return numbers

    def are(self, texts: Collection[str]) -> Array:
        """Return a mask of the rows whose text is one of these."""
        import numpy as np

        mask: Array = np.array([label in texts for label in self.labels], np.bool_)[self.codes]
        return mask

    def known(self) -> Array:
        import numpy as np

        has_text = [label is not None for label in self.labels]
        mask: Array = np.array(has_text, np.bool_)[self.codes]
        return mask

    def translated(self, translate: Callable[[Any], Any]) -> TextColumn:
        return TextColumn(codes=self.codes, labels=tuple(map(translate, self.labels)))

    def otherwise(self, fallback: TextColumn) -> TextColumn:
        """Fill missing texts from another column."""
        import numpy as np

        codes = np.where(self.known(), self.codes, fallback.codes + len(self.labels))
        return TextColumn(codes=codes, labels=self.labels + fallback.labels)


Column = Any
"""An array of numbers, NaN if unknown, or a `TextColumn`."""


class AttemptColumns(Record):
    """Rows of attempts, stored by column."""

    attempts: list[str]
    """The attempt id of each row."""
    held: dict[str, Column]


def make_text_column(values: Sequence[Any]) -> TextColumn:
    """Build a column of texts from row values."""
    import numpy as np

    code_by_value = number_by_first_use()
    codes = np.fromiter(map(code_by_value.__getitem__, values), np.int32, len(values))
    return TextColumn(codes=codes, labels=tuple(code_by_value))


def number_by_first_use() -> defaultdict[Any, int]:
    """Return a dictionary that numbers keys by first lookup: 0, 1, …."""
    number_by_key: defaultdict[Any, int] = defaultdict()
    number_by_key.default_factory = number_by_key.__len__
    return number_by_key


def collect_columns(
    parts: Iterator[Sequence[Sequence[Any]]], kinds: Mapping[str, bool]
) -> AttemptColumns:
    """Collect rows into columns; the first value is the attempt, `kinds` says which are texts.

    Values are packed as they arrive: Python objects take more than ten times the memory.
    """
    import numpy as np

    attempts: list[str] = []
    codes_by_name = {name: number_by_first_use() for name, is_text in kinds.items() if is_text}
    pieces_by_name: dict[str, list[Array]] = {name: [] for name in kinds}
    for part in parts:
        first, *columns = zip(*part, strict=True)
        attempts.extend(first)
        for name, values in zip(kinds, columns, strict=True):
            pieces_by_name[name].append(
                _pack_texts(values, codes_by_name[name])
                if name in codes_by_name
                else _pack_numbers(values)
            )
    arrays: dict[str, Column] = {}
    for name, pieces in pieces_by_name.items():
        array = np.concatenate(pieces) if pieces else np.empty(0, np.int32)
        arrays[name] = (
            TextColumn(codes=array, labels=tuple(codes_by_name[name]))
            if name in codes_by_name
            else array.astype(np.float64, copy=False)
        )
    return AttemptColumns(attempts=attempts, held=arrays)


def _pack_texts(values: Sequence[Any], code_by_value: Mapping[Any, int]) -> Array:
    import numpy as np

    if values.count(values[0]) == len(values):
        return np.full(len(values), code_by_value[values[0]], np.int32)
    return np.fromiter(map(code_by_value.__getitem__, values), np.int32, len(values))


def _pack_numbers(values: Sequence[Any]) -> Array:
    """NaN where nothing is known; numpy itself takes ten times as long for that."""
    import numpy as np

    unknown, size = values.count(None), len(values)
    if unknown == size:
        return np.full(size, np.nan)
    if unknown:
        values = [np.nan if value is None else value for value in values]
    return np.fromiter(values, np.float64, size)


def align_columns(part: AttemptColumns, positions: Array, rows: int) -> dict[str, Column]:
    """Expand columns of some rows to all rows: `positions` is the place of each, -1 for none.

    If several have the same place, the last counts.
    """
    import numpy as np

    placed_rows = np.flatnonzero(positions >= 0)
    aligned: dict[str, Column] = {}
    for name, column in part.held.items():
        if isinstance(column, TextColumn):
            codes = np.full(rows, len(column.labels), np.int32)
            codes[positions[placed_rows]] = column.codes[placed_rows]
            aligned[name] = TextColumn(codes=codes, labels=(*column.labels, None))
        else:
            aligned[name] = np.full(rows, np.nan)
            aligned[name][positions[placed_rows]] = column[placed_rows]
    return aligned


def find_row_places(part: AttemptColumns, position_by_attempt: Mapping[str, int]) -> Array:
    """Return the place of each row's attempt; -1 if it does not count."""
    import numpy as np

    row_numbers = map(position_by_attempt.get, part.attempts, repeat(-1))
    return np.fromiter(row_numbers, np.intp, len(part.attempts))


def find_last_rows(positions: Array, *keys: TextColumn) -> Array:
    """Return the rows that count, in order: the last of each place and combination of keys."""
    import numpy as np

    counted_rows = np.flatnonzero(positions >= 0)[::-1]
    key = positions[counted_rows]
    for column in keys:
        key = key * len(column.labels) + column.codes[counted_rows]
    return np.sort(counted_rows[np.unique(key, return_index=True)[1]])


def divide_known(sums: Array, counts: Array) -> Array:
    """Return the mean of each place; NaN if its count is 0."""
    import numpy as np

    means: Array = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    return means


class RowPlacer:
    """Maps the attempts of score lists to their places in a table.

    One review gives many scores, so a list often equals the previous one and is reused.
    """

    def __init__(self, position_by_attempt: Mapping[str, int]) -> None:
        self.size = len(position_by_attempt)
        self._places = position_by_attempt
        self._attempts: list[str] = []
        self._at: Array | None = None

    def find_places(self, part: AttemptColumns) -> Array:
        """Return the place of each row's attempt; -1 if it does not count."""
        if self._at is None or part.attempts != self._attempts:
            self._attempts, self._at = part.attempts, find_row_places(part, self._places)
        return self._at

    def find_newest(self, part: AttemptColumns) -> tuple[Array, Array]:
        """Return the places of each attempt's and person's last values, and those values."""
        import numpy as np

        positions = self.find_places(part)
        rows = find_last_rows(positions, part.held["who"])
        rows = rows[np.isfinite(part.held["value"][rows])]
        return positions[rows], part.held["value"][rows]


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
        """Load attempts with the grade that counts and the session; times in µs since 1970."""
        attempts, grades, sessions = schema.attempts, schema.grades, schema.sessions
        selected: list[SqlExpression] = [attempts.c[name] for name in ATTEMPT_FIELDS]
        selected[ATTEMPT_FIELDS.index("started")] = type_coerce(
            attempts.c.started, BigInteger
        ).label("started")
        selected += [grades.c[name] for name in GRADE_FIELDS]
        selected += [sessions.c[name] for name in SESSION_FIELDS]
        attempt_query = attempt_rows.select_counted_attempts(
            include_superseded=span.attempts is not None
        )
        query = attempt_query.with_only_columns(
            attempts.c.id, *selected, maintain_column_froms=True
        )
        return self._load_columns(query.where(*_span_conditions(span)).order_by(None))

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


def load_columns(
    connection: Connection, query: Select, extra_rows: Sequence[tuple[Any, ...]] = ()
) -> AttemptColumns:
    """Load columns straight from the driver; row objects would take more memory than values."""
    kinds = {column.name or "": isinstance(column.type, Text) for column in query.selected_columns}
    kinds.pop(next(iter(kinds)))
    parts = _fetch_parts(connection.execute(query).cursor)
    return collect_columns(chain(parts, [extra_rows]) if extra_rows else parts, kinds)


def _fetch_parts(cursor: Any) -> Iterator[list[tuple[Any, ...]]]:
    while cursor and (part := cursor.fetchmany(FETCH_ROWS)):
        yield part


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
