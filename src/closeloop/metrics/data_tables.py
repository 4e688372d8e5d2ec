"""The tables for analysts: attempts, findings, events, scores and pull requests.

`closeloop export --table` writes them, and the Python API returns them. A row is a dictionary with
every column of its table; None means unknown. Attempts at held-out tasks are excluded.
"""

from __future__ import annotations

import csv
import io
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, BinaryIO, Literal, Union, cast, get_args, get_origin

import msgspec

from closeloop.metrics.attempt_measuring import add_judge_findings, measure_attempts
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.metrics.score_columns import ScoreRow, list_score_rows
from closeloop.process.rulebook import Rulebook
from closeloop.records.attempt import AttemptRow, TableName
from closeloop.records.errors import BadInput
from closeloop.records.finding import Finding
from closeloop.records.pull_request import PullRow
from closeloop.records.trace import AnyEvent
from closeloop.store import Store
from closeloop.store.metrics_section import AttemptSpan
from closeloop.tasks.task_sets import require_unsealed
from closeloop.text.wording import without_formula

ColumnType = Literal["integer", "number", "boolean", "time", "text", "integers", "texts", "json"]
TableRow = dict[str, Any]
BATCH_ROWS = 5000
"""Rows of one row group of a Parquet file."""

_SCALAR_TYPES: dict[Any, ColumnType] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    datetime: "time",
    str: "text",
}


def table_columns(name: TableName) -> dict[str, ColumnType]:
    """Return the columns of a table, in order, with their types."""
    match name:
        case "attempts":
            return record_columns(AttemptRow)
        case "findings":
            return {"attempt": "text", **record_columns(Finding)}
        case "events":
            return event_columns()
        case "scores":
            return record_columns(ScoreRow)
        case "pulls":
            return record_columns(PullRow)


def event_columns() -> dict[str, ColumnType]:
    """Return every field of any kind of event, those of all events first."""
    columns: dict[str, ColumnType] = {"attempt": "text", "kind": "text"}
    for event in get_args(AnyEvent):
        columns |= {
            field: kind for field, kind in record_columns(event).items() if field not in columns
        }
    return columns


def record_columns(record: type[msgspec.Struct]) -> dict[str, ColumnType]:
    """Return the fields of a record as columns."""
    return {field.name: column_type(field.type) for field in msgspec.structs.fields(record)}


def column_type(annotation: Any) -> ColumnType:
    """Return the column type of a field's annotation; values that no type fits become JSON."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = {column_type(arg) for arg in get_args(annotation) if arg is not type(None)}
        if kinds == {"integer", "number"}:
            return "number"
        return kinds.pop() if len(kinds) == 1 else "json"
    if get_origin(annotation) is Literal:
        return "text"
    if get_origin(annotation) is tuple and get_args(annotation)[1:] == (...,):
        inner = column_type(get_args(annotation)[0])
        return cast(ColumnType, f"{inner}s") if inner in ("integer", "text") else "json"
    return _SCALAR_TYPES.get(annotation, "json")


def list_table_rows(
    name: TableName, store: Store, rulebook: Rulebook, attempts: Sequence[str] = ()
) -> Iterator[TableRow]:
    """Yield the rows of a table; `attempts` limits them to some, by id or prefix."""
    chosen_attempts = [store.load_attempt(attempt) for attempt in attempts]
    for digest in {attempt.task_digest for attempt in chosen_attempts if attempt.task_digest}:
        require_unsealed(store.load_task(digest))
    ids = frozenset(attempt.id for attempt in chosen_attempts) if attempts else None
    match name:
        case "attempts":
            return map(msgspec.structs.asdict, list_open_attempts(store, ids))
        case "findings":
            return _list_findings(store, rulebook, ids)
        case "events":
            return _list_events(store, ids)
        case "scores":
            span = AttemptSpan(
                attempts=tuple(attempt.id for attempt in chosen_attempts) if attempts else None
            )
            table = load_attempt_table(store, rulebook, span)
            return map(msgspec.structs.asdict, list_score_rows(table, store))
        case "pulls":
            pulls = store.pulls.list_pulls()
            return (
                msgspec.structs.asdict(pull) for pull in pulls if ids is None or pull.attempt in ids
            )


def list_open_attempts(store: Store, ids: frozenset[str] | None = None) -> list[AttemptRow]:
    """List every attempt, or some of them, except those at held-out tasks."""
    sealed = store.held_out.list_sealed_digests()
    return [
        row
        for row in store.list_attempts()
        if row.task_digest not in sealed and (ids is None or row.id in ids)
    ]


def _list_findings(
    store: Store, rulebook: Rulebook, ids: frozenset[str] | None
) -> Iterator[TableRow]:
    measured = measure_attempts(store, list_open_attempts(store, ids), rulebook)
    for attempt in add_judge_findings(measured, store):
        for finding in attempt.measurement.findings:
            yield {"attempt": attempt.row.id, **msgspec.structs.asdict(finding)}


def _list_events(store: Store, ids: frozenset[str] | None) -> Iterator[TableRow]:
    empty = dict.fromkeys(event_columns())
    for row in list_open_attempts(store, ids):
        trace = store.load_trace(row.id) if row.events is not None else None
        for event in trace.events if trace else ():
            kind = type(event).__struct_config__.tag
            yield {**empty, "attempt": row.id, "kind": kind, **msgspec.structs.asdict(event)}


# Write tables row by row, whatever their size.


def write_csv(columns: Mapping[str, ColumnType], rows: Iterable[TableRow], file: BinaryIO) -> int:
    """Write a header and a line for each row; lists are JSON, unknown values are empty."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(columns)
    count = 0
    for row in rows:
        writer.writerow([_csv_cell(row[column], kind) for column, kind in columns.items()])
        count += 1
    text.detach()
    return count


def _csv_cell(value: Any, kind: ColumnType) -> str | int | float | None:
    if value is None:
        return None
    match kind:
        case "boolean":
            return "true" if value else "false"
        case "time":
            return cast(str, msgspec.to_builtins(value))
        case "integers" | "texts" | "json":
            return msgspec.json.encode(value).decode()
    if isinstance(value, str):
        # A lone half of a surrogate pair has no UTF-8.
        return without_formula(value.encode(errors="replace").decode())
    return cast(int | float, value)


def write_jsonl(columns: Mapping[str, ColumnType], rows: Iterable[TableRow], file: BinaryIO) -> int:
    """Write an object for each row, without unknown values."""
    count = 0
    for row in rows:
        file.write(msgspec.json.encode({key: row[key] for key in columns if row[key] is not None}))
        file.write(b"\n")
        count += 1
    return count


def write_parquet(
    columns: Mapping[str, ColumnType], rows: Iterable[TableRow], file: BinaryIO
) -> int:
    """Write a Parquet table with typed columns."""
    schema = arrow_schema(columns)
    from pyarrow import parquet

    count, remaining = 0, iter(rows)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while batch := list(islice(remaining, BATCH_ROWS)):
            writer.write_table(arrow_table(batch, columns))
            count += len(batch)
    return count


TABLE_WRITERS: dict[
    str, Callable[[Mapping[str, ColumnType], Iterable[TableRow], BinaryIO], int]
] = {".csv": write_csv, ".jsonl": write_jsonl, ".parquet": write_parquet}


def arrow_schema(columns: Mapping[str, ColumnType]) -> Any:
    """Return the Arrow schema of a table; BadInput if pyarrow is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise BadInput(
            "Arrow tables and Parquet need pyarrow: pip install 'closeloop[parquet]'."
        ) from None
    kinds = {
        "integer": pyarrow.int64(),
        "number": pyarrow.float64(),
        "boolean": pyarrow.bool_(),
        "time": pyarrow.timestamp("us", "UTC"),
        "integers": pyarrow.list_(pyarrow.int64()),
        "texts": pyarrow.list_(pyarrow.string()),
    }
    return pyarrow.schema(
        [(name, kinds.get(kind, pyarrow.string())) for name, kind in columns.items()]
    )


def arrow_table(rows: Sequence[TableRow], columns: Mapping[str, ColumnType]) -> Any:
    """Convert rows to a `pyarrow.Table`."""
    schema = arrow_schema(columns)
    import pyarrow

    encoded = {name for name, kind in columns.items() if kind == "json"}
    return pyarrow.Table.from_pylist(
        [
            {
                name: msgspec.json.encode(value).decode()
                if name in encoded and value is not None
                else value
                for name, value in row.items()
            }
            for row in rows
        ],
        schema=schema,
    )
