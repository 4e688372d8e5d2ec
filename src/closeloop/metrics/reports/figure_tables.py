"""Figures as a table that programs read: CSV and Parquet, a row a figure."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec

from closeloop.metrics.reports.report_content import ReportContent, ReportFigure, list_figure_rows
from closeloop.records.errors import BadInput

FIGURE_COLUMNS = ReportFigure.__struct_fields__
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins so is run by a spreadsheet: names of users and repositories are not ours."""


def as_csv(held: ReportContent) -> bytes:
    """UTF-8, one header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIGURE_COLUMNS)
    for line in list_figure_rows(held):
        writer.writerow([_csv_cell(value) for value in msgspec.structs.astuple(line)])
    return text.getvalue().encode("utf-8", "replace")


def _csv_cell(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA_STARTS) else value
    return "" if value is None else value


def as_parquet(held: ReportContent) -> bytes:
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
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in FIGURE_COLUMNS])
    rows = [msgspec.structs.asdict(line) for line in list_figure_rows(held)]
    file = io.BytesIO()
    table = pyarrow.Table.from_pylist(rows, schema=schema)
    parquet.write_table(table, file, compression="zstd")
    return file.getvalue()
