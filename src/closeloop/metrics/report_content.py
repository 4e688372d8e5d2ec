"""What a report of all numbers says, and its forms as Markdown and as tables."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import msgspec

from closeloop.metrics.attempt_groups import UNKNOWN_LABEL
from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_definitions import PRIMARY_METRIC
from closeloop.metrics.metric_figures import (
    compute_metrics,
    format_bounds,
    format_metric_value,
    metrics_command,
)
from closeloop.metrics.plan_figures import add_plan_figures
from closeloop.records.errors import BadInput
from closeloop.records.estimate import (
    CompareReport,
    Metric,
    MetricsReport,
    MetricValue,
    VariantComparison,
)
from closeloop.records.orchestration import PlanTotals
from closeloop.records.record import Record
from closeloop.text.untrusted import make_visible
from closeloop.text.wording import count_with_noun, format_percent

# What a report says, before it is a page or a table.

HEADLINE_METRICS = (
    "pass rate", "task completion rate", "regression introduction rate", "review loop count",
    "first-review merge rate", "feedback", "convergence", "without findings", "cost", "time",
)  # fmt: skip
"""What is drawn; the tables have all."""


class ReportContent(Record):
    """One look at a store."""

    attempts: int
    tasks: int
    first: datetime | None
    last: datetime | None
    """When the first and the last attempt began."""
    whole: MetricsReport
    sides: tuple[MetricsReport, ...]
    """The same, by each side that was asked for."""
    comparison: CompareReport | None = None


class ReportFigure(Record):
    """One figure with all that it must carry, as a row of a table."""

    metric: str
    family: str
    by: str
    group: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    attempts: int
    coverage: float | None
    unit: str
    method: str | None
    more: str
    definition: str
    query: str


def build_report_content(
    work: AttemptTable,
    sides: Sequence[Sequence[str]],
    comparison: CompareReport | None = None,
    plans: PlanTotals | None = None,
) -> ReportContent:
    """All figures of all attempts, and by each side; and what came of plans."""
    began = work.columns["started"]
    known = began[began == began]  # noqa: PLR0124
    times = (
        [datetime.fromtimestamp(each / 1e6, UTC) for each in (known.min(), known.max())]
        if len(known)
        else [None, None]
    )
    return ReportContent(
        attempts=len(work),
        tasks=len({*work.columns["task_digest"].tolist()} - {None}),
        first=times[0],
        last=times[1],
        whole=add_plan_figures(compute_metrics(work, ()), plans or PlanTotals()),
        sides=tuple(compute_metrics(work, by) for by in sides),
        comparison=comparison,
    )


def list_figure_rows(held: ReportContent) -> list[ReportFigure]:
    """Every figure that is known, and of the whole those that are not."""
    rows = [build_figure_row(figure, metric) for figure, metric in pair_with_metrics(held.whole)]
    for side in held.sides:
        pairs = pair_with_metrics(side)
        rows += [
            build_figure_row(figure, metric) for figure, metric in pairs if figure.value is not None
        ]
    return rows


def pair_with_metrics(found: MetricsReport) -> list[tuple[MetricValue, Metric]]:
    by_name = {metric.name: metric for metric in found.definitions}
    return [(figure, by_name[figure.metric]) for figure in found.figures]


def build_figure_row(figure: MetricValue, metric: Metric) -> ReportFigure:
    return ReportFigure(
        metric=metric.name,
        family=metric.family,
        by=", ".join(figure.group),
        group=", ".join(figure.group.values()),
        value=figure.value,
        low=figure.low,
        high=figure.high,
        n=figure.n,
        attempts=figure.attempts,
        coverage=figure.coverage,
        unit=metric.unit,
        method=figure.method,
        more=", ".join(f"{name} {value:g}" for name, value in figure.more.items()),
        definition=metric.says,
        query=metrics_command(metric.name, tuple(figure.group)),
    )


def headline_figures(side: MetricsReport) -> list[tuple[Metric, list[MetricValue]]]:
    """Headlines with more than one group that is known by name."""
    headlines = []
    for metric in side.definitions:
        figures = [
            figure
            for figure in side.figures
            if figure.metric == metric.name
            and figure.value is not None
            and set(figure.group.values()) != {UNKNOWN_LABEL}
        ]
        if metric.name in HEADLINE_METRICS and len(figures) > 1:
            headlines.append((metric, figures))
    return headlines


# A report as Markdown: tables, with definitions and queries below them.


def as_markdown(held: ReportContent) -> bytes:
    return ("\n".join(_render_page(held)) + "\n").encode("utf-8", "replace")


def _render_page(held: ReportContent) -> Iterator[str]:
    yield "# How the agents work, in numbers"
    yield ""
    yield describe_scope(held)
    for note in held.whole.notes:
        yield f"\n> {escape_cell(note)}"
    if held.comparison:
        yield from _render_comparison(held.comparison)
    yield from _render_families(held.whole)
    for side in held.sides:
        yield from _render_grouping(side)
    yield from _render_definitions(held.whole)


def describe_scope(held: ReportContent) -> str:
    """One sentence of what this is about."""
    time = f", from {held.first:%Y-%m-%d} to {held.last:%Y-%m-%d}" if held.first else ""
    return (
        f"{count_with_noun(held.attempts, 'attempt')}, at"
        f" {count_with_noun(held.tasks, 'task')}{time}."
    )


def _render_families(found: MetricsReport) -> Iterator[str]:
    for family, pairs in groupby(pair_with_metrics(found), key=lambda pair: pair[1].family):
        yield f"\n## {family.capitalize()}\n"
        yield from _render_table(
            ("metric", "value", "95 % interval", "tasks", "attempts", "coverage"),
            [(metric.name, *_figure_cells(figure, metric)) for figure, metric in pairs],
        )


def _render_grouping(found: MetricsReport) -> Iterator[str]:
    yield f"\n## By {', '.join(found.by)}"
    for name, pairs in groupby(pair_with_metrics(found), key=lambda pair: pair[1].name):
        known = [pair for pair in pairs if pair[0].value is not None]
        if known:
            yield f"\n### {name}\n"
            yield from _render_table(
                (*found.by, "value", "95 % interval", "tasks", "attempts", "coverage"),
                [
                    (*figure.group.values(), *_figure_cells(figure, metric))
                    for figure, metric in known
                ],
            )
            yield f"\n`{metrics_command(name, found.by)}`"


def _render_definitions(found: MetricsReport) -> Iterator[str]:
    yield "\n## Definitions and queries\n"
    yield from _render_table(
        ("metric", "definition", "query"),
        [(one.name, one.says, f"`{metrics_command(one.name)}`") for one in found.definitions],
    )


def _render_comparison(report: CompareReport) -> Iterator[str]:
    yield f"\n## {escape_cell(' against '.join(side.name for side in reversed(report.sides)))}\n"
    if report.refusal:
        yield escape_cell(report.refusal)
    for pair in report.pairs:
        yield from (f"- {escape_cell(line)}" for line in pair.words)
        yield ""
        yield from _render_table(("task", pair.first, pair.second), _task_rows(pair))
    yield from (f"\n> {escape_cell(line)}" for line in (*report.left_out, *report.notes))
    yield f"\n`{escape_cell(compare_command(report))}`"


def compare_command(report: CompareReport) -> str:
    """The command that gives the verdict again, by the score that decided it."""
    names = [side.name for side in report.sides]
    primary = report.pairs[0].primary if report.pairs else PRIMARY_METRIC
    asked = ["--score", primary] if primary != PRIMARY_METRIC else []
    return shlex.join(["closeloop", "compare", *names, *asked])


def _task_rows(pair: VariantComparison) -> list[tuple[str, str, str]]:
    return [(one.task, draw_repeats(one.first), draw_repeats(one.second)) for one in pair.tasks]


def draw_repeats(repeats: Sequence[float]) -> str:
    """A dot a repeat; a count where they would be too many; the values of what is not yes or no."""
    if not {*repeats} <= {0, 1}:
        return " ".join(f"{value:.3g}" for value in repeats)
    if len(repeats) > 10:
        return f"{sum(repeats)} of {len(repeats)}"
    return "".join("●" if value else "○" for value in repeats)


def _figure_cells(figure: MetricValue, metric: Metric) -> tuple[str, ...]:
    return (
        format_metric_value(figure.value, metric),
        format_bounds(figure, metric),
        f"{figure.n:,}",
        f"{figure.attempts:,}",
        "–" if figure.coverage is None else format_percent(figure.coverage),
    )


def _render_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(map(escape_cell, head))} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(escape_cell, row))} |"


def escape_cell(text: str) -> str:
    """Text that is not ours ends no cell, opens no tag and makes no link."""
    plain = make_visible(text).replace("\n", " ").replace("|", "\\|")
    return plain.replace("<", "&lt;").replace("[", "\\[").replace("](", "] (")


# Figures as a table that programs read: CSV and Parquet, a row a figure.

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
