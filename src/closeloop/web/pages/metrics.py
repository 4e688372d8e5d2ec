"""Metrics and how they went over time; and what gates saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from closeloop.metrics.attempt_groups import DIMENSIONS, UNKNOWN_LABEL
from closeloop.metrics.attempt_selection import AttemptSelection, selection_mask
from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.baseline_gate import gate_refusal
from closeloop.metrics.metric_figures import REPEAT_KINDS, compute_metrics
from closeloop.metrics.metric_trends import WATCHED_METRICS, compute_trends
from closeloop.metrics.score_columns import attach_scores, is_derived, select_metrics
from closeloop.records.attempt import TimeRange
from closeloop.records.errors import unknown_name_error
from closeloop.records.estimate import Metric, MetricRegression, MetricSeries, VersionMark
from closeloop.records.experiment_plan import GateRun
from closeloop.records.record import Record
from closeloop.web.event_views import (
    FigureLine,
    FigureTable,
    TrendPoint,
    build_figure_lines,
    build_figure_table,
    build_trend_points,
)
from closeloop.web.page import NoQuery, Page
from closeloop.web.page_context import PageContext
from closeloop.web.pages.scores import ScoreName, load_score_summaries, require_few_scores

DEFAULT_METRICS = (
    "pass rate", "task completion rate", "without findings", "feedback", "convergence", "cost",
)  # fmt: skip
MAX_SERIES = 6
"""As many as colours that can be told apart."""
MAX_GROUPS = 30
MAX_VERSION_MARKS = 12
MAX_GATE_RUNS = 50
GROUPINGS = ("", "agent", "model", "repo", "variant", "prompt", "user")


class MetricsAsked(TimeRange):
    metric: tuple[ScoreName, ...] = ()
    """Metrics or scores; what is commonly looked at when none is named."""
    by: Annotated[str, Meta(max_length=20)] = ""
    """Each group by itself: `agent`, `model`, `repo`, `variant`, `prompt`, `user`."""


class TrendChart(Record):
    """One metric over time."""

    metric: Metric
    points: tuple[TrendPoint, ...]
    lines: tuple[FigureLine, ...]
    """What it comes to in all, or of each group."""
    week: tuple[MetricSeries, ...]
    """The series themselves: the last week against the one before, and turns."""
    several: bool
    """Whether there is more than one window to look at."""


class MetricsNumbers(Record):
    attempts: int
    charts: tuple[TrendChart, ...]
    unknown: tuple[str, ...]
    """Metrics that nothing is known of."""
    table: FigureTable | None
    """Groups below each other, where they are asked for."""
    marks: tuple[VersionMark, ...]
    regressions: tuple[MetricRegression, ...]
    weeks: int
    notes: tuple[str, ...]


class MetricsView(Record):
    """Metrics with their course over time."""

    asked: MetricsAsked
    groupings: tuple[str, ...]
    names: tuple[str, ...]
    """What may be asked for."""
    numbers: MetricsNumbers | None
    """None until they were counted the first time."""
    fresh: bool


def metrics(desk: PageContext, asked: MetricsAsked) -> MetricsView:
    require_few_scores(asked.metric)
    if asked.by not in GROUPINGS:
        raise unknown_name_error("grouping", asked.by, [one for one in GROUPINGS if one])
    key = f"metrics {asked.metric} {asked.by} {asked.since} {asked.until}"
    cached = desk.metric_cache.compute_from_work(
        key, lambda work: _compute_numbers(desk, work, asked)
    )
    summaries = load_score_summaries(desk)
    given = [one.definition.name for one in summaries.value or ()]
    return MetricsView(
        asked=asked,
        groupings=GROUPINGS,
        names=tuple(dict.fromkeys((*DEFAULT_METRICS, *WATCHED_METRICS, *given))),
        numbers=cached.value,
        fresh=cached.fresh and summaries.fresh,
    )


def _compute_numbers(desk: PageContext, work: AttemptTable, asked: MetricsAsked) -> MetricsNumbers:
    names = tuple(dict.fromkeys(asked.metric)) or DEFAULT_METRICS
    given = [name for name in names if not is_derived(name)]
    if given:
        work = attach_scores(work, desk.store, desk.score_catalogue, given)
    if asked.since or asked.until:
        chosen = AttemptSelection(name="", since=asked.since, until=asked.until)
        mask = selection_mask(work, chosen).tolist()
        kept = {name for name, keep in zip(work.attempts, mask, strict=True) if keep}
        work = work.select_rows(kept)
    by = (asked.by,) if asked.by else ()
    wanted = [
        one.name for one in select_metrics(work, names) if one.kind not in (*REPEAT_KINDS, "sum")
    ]
    trends = compute_trends(work, by, wanted)
    report = compute_metrics(work, by, wanted)
    lines = build_figure_lines(report)
    charts = [
        _build_chart(metric, trends.courses, lines, work, asked.by)
        for metric in report.definitions
        if any(line.metric == metric and line.figure.value is not None for line in lines)
    ]
    known = {chart.metric.name for chart in charts}
    return MetricsNumbers(
        attempts=len(work),
        charts=tuple(charts),
        unknown=tuple(one for one in wanted if one not in known),
        table=build_figure_table(report, MAX_GROUPS) if by else None,
        marks=trends.marks[-MAX_VERSION_MARKS:],
        regressions=trends.regressions[:MAX_SERIES],
        weeks=trends.weeks,
        notes=trends.notes,
    )


def _build_chart(
    metric: Metric,
    courses: Sequence[MetricSeries],
    lines: Sequence[FigureLine],
    work: AttemptTable,
    by: str,
) -> TrendChart:
    """The groups with the most work, as many as can be told apart."""
    own = [one for one in courses if one.metric == metric.name]
    if by:
        own = [one for one in own if one.group.get(by) != UNKNOWN_LABEL]
        sizes = _group_sizes(work, by)
        own.sort(key=lambda one: -sizes.get(one.group.get(by, ""), 0))
    shown = own[:MAX_SERIES]
    return TrendChart(
        metric=metric,
        points=build_trend_points(shown),
        lines=tuple(line for line in lines if line.metric == metric) if not by else (),
        week=tuple(replace(one, stretches=()) for one in shown),
        several=any(len(one.stretches) > 1 for one in shown),
    )


def _group_sizes(work: AttemptTable, by: str) -> dict[str, int]:
    import numpy as np

    column = DIMENSIONS[by](work)
    counts = np.bincount(column.codes, minlength=len(column.labels)).tolist()
    return {label: count for label, count in zip(column.labels, counts, strict=True) if label}


# What gates saw, each time that they ran.


class GateLine(Record):
    """One run of a gate."""

    run: GateRun
    refusal: str | None
    """Why it has no say, where it has none."""


class GatesView(Record):
    gates: tuple[GateLine, ...]
    """The latest first."""


def gates(desk: PageContext, asked: NoQuery) -> GatesView:
    runs = desk.store.course.list_gate_reports(MAX_GATE_RUNS)
    return GatesView(
        gates=tuple(GateLine(run=run, refusal=gate_refusal(run.report)) for run in runs)
    )


PAGES = (
    Page(
        path="/metrics",
        show=metrics,
        template="metrics.html",
        about="Any metric or score over time, with bounds and what changed when.",
        section="Metrics",
        key="v",
        charts=True,
    ),
    Page(
        path="/gates",
        show=gates,
        template="gates.html",
        about="What gates saw: whether agents work worse than the baseline.",
        section="Gate",
        key="b",
    ),
)
