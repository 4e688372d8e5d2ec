"""A trace as a Parquet table: one row an event. Needs the extra `parquet`."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any, BinaryIO, get_args

import msgspec

from closeloop.records.errors import BadInput
from closeloop.records.trace import AnyEvent, Trace
from closeloop.traces.export.tool_call_export import ExportSource

_INTEGERS = frozenset({"number", "turn", "exit_code", "first_line", "last_line"})


def export_parquet(of: ExportSource, trace: Trace) -> bytes:
    """One table of one trace."""
    file = io.BytesIO()
    write_parquet([(of, trace)], file)
    return file.getvalue()


def write_parquet(traces: Iterable[tuple[ExportSource, Trace]], file: BinaryIO) -> int:
    """One table of many traces, each written when it comes; how many rows there are."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError:
        raise BadInput("Parquet needs pyarrow: pip install 'closeloop[parquet]'.") from None
    schema = _make_schema(pyarrow)
    rows = 0
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for of, trace in traces:
            trace_rows = [_event_row(of, event) for event in trace.events]
            writer.write_table(pyarrow.Table.from_pylist(trace_rows, schema=schema))
            rows += len(trace_rows)
    return rows


def parquet_columns() -> list[str]:
    """Every field that any event has, those of all events first."""
    fields = (name for event in get_args(AnyEvent) for name in event.__struct_fields__)
    return ["attempt", "kind", *dict.fromkeys(fields)]


def _make_schema(pyarrow: Any) -> Any:
    kinds = {"at": pyarrow.timestamp("us", "UTC"), "seconds": pyarrow.float64(),
             "ok": pyarrow.bool_()}  # fmt: skip
    kinds |= dict.fromkeys(_INTEGERS, pyarrow.int64())
    return pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in parquet_columns()])


def _event_row(of: ExportSource, event: AnyEvent) -> dict[str, Any]:
    row = {"attempt": of.id, "kind": type(event).__struct_config__.tag}
    row |= msgspec.structs.asdict(event)
    arguments = row.get("arguments")
    if arguments is not None:
        row["arguments"] = msgspec.json.encode(arguments).decode()
    return row
