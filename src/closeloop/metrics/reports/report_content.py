"""What a report says, before it is a page or a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from closeloop.metrics.attempt_groups import UNKNOWN_LABEL
from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.figure_wording import metrics_command
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.records.comparison_report import CompareReport
from closeloop.records.metric_values import Metric, MetricsReport, MetricValue
from closeloop.records.record import Record

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
    work: AttemptTable, sides: Sequence[Sequence[str]], comparison: CompareReport | None = None
) -> ReportContent:
    """All figures of all attempts, and by each side."""
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
        whole=compute_metrics(work, ()),
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
