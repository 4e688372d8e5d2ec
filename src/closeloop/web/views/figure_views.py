"""Figures as pages show them: with their words, their bounds and their definition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from closeloop.metrics.figure_wording import format_bounds, format_metric_value
from closeloop.metrics.reports.report_content import pair_with_metrics
from closeloop.records.metric_values import Metric, MetricsReport, MetricValue
from closeloop.records.record import Record, Time
from closeloop.records.trend_report import MetricSeries


class FigureLine(Record):
    """One figure, and how people read it."""

    metric: Metric
    figure: MetricValue
    text: str
    bounds: str


class FigureRow(Record):
    """What is known of one group: a cell for each metric, None where it is not measured."""

    name: str
    cells: tuple[FigureLine | None, ...]


class FigureTable(Record):
    """Groups below each other, metrics beside each other."""

    by: str
    metrics: tuple[Metric, ...]
    rows: tuple[FigureRow, ...]
    more: int = 0
    """Groups that are not shown."""


class TrendPoint(Record):
    at: Time
    value: float
    low: float
    high: float
    n: int
    name: str
    faint: bool


def build_figure_lines(found: MetricsReport) -> tuple[FigureLine, ...]:
    return tuple(_figure_line(figure, metric) for figure, metric in pair_with_metrics(found))


def build_figure_table(
    found: MetricsReport, most: int, order: Sequence[str] | None = None
) -> FigureTable:
    """By one dimension; in the given order of groups, or that of their names."""
    cells: dict[str, dict[str, FigureLine]] = {}
    for line in build_figure_lines(found):
        name = ", ".join(line.figure.group.values())
        if line.figure.value is not None:
            cells.setdefault(name, {})[line.metric.name] = line
    names = [name for name in (sorted(cells) if order is None else order) if name in cells]
    metrics = tuple(
        metric for metric in found.definitions if any(metric.name in cells[name] for name in names)
    )
    return FigureTable(
        by=", ".join(found.by),
        metrics=metrics,
        rows=tuple(
            FigureRow(name=name, cells=tuple(cells[name].get(one.name) for one in metrics))
            for name in names[:most]
        ),
        more=max(0, len(names) - most),
    )


def build_trend_points(courses: Iterable[MetricSeries]) -> tuple[TrendPoint, ...]:
    """The rolling windows of courses, one after the other."""
    return tuple(
        TrendPoint(
            at=stretch.until,
            value=stretch.estimate.value,
            low=stretch.estimate.low,
            high=stretch.estimate.high,
            n=stretch.estimate.n,
            name=", ".join(course.group.values()) or course.metric,
            faint=stretch.faint,
        )
        for course in courses
        for stretch in course.stretches
    )


def _figure_line(figure: MetricValue, metric: Metric) -> FigureLine:
    return FigureLine(
        metric=metric,
        figure=figure,
        text=format_metric_value(figure.value, metric),
        bounds=format_bounds(figure, metric),
    )
