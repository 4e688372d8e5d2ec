"""Figures as a table that programs read: CSV and Parquet, a row a figure."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec

from closeloop.measuring.reports.content import Content, Line, lines
from closeloop.model.errors import BadInput

COLUMNS = Line.__struct_fields__
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins so is run by a spreadsheet: names of users and repositories are not ours."""


def as_csv(held: Content) -> bytes:
    """UTF-8, one header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in lines(held):
        writer.writerow([_cell(value) for value in msgspec.structs.astuple(line)])
    return text.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return "" if value is None else value


def as_parquet(held: Content) -> bytes:
    """One table with the columns of the CSV."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError:
        raise BadInput("Parquet needs pyarrow: pip install 'closeloop[parquet]'.") from None
    numbers = {"value", "low", "high", "coverage"}
    kinds = dict.fromkeys(numbers, pyarrow.float64()) | dict.fromkeys(
        ("n", "attempts"), pyarrow.int64()
    )
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in COLUMNS])
    rows = [msgspec.structs.asdict(line) for line in lines(held)]
    file = io.BytesIO()
    table = pyarrow.Table.from_pylist(rows, schema=schema)
    parquet.write_table(table, file, compression="zstd")
    return file.getvalue()
