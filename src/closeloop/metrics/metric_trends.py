"""How metrics went over time, where they turned, and what became worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_definitions import METRICS
from closeloop.metrics.metric_figures import REPEAT_KINDS, select_metrics
from closeloop.metrics.metric_timeline import (
    WEEK_SECONDS,
    MetricTimeline,
    TimelineItems,
    first_version_times,
)
from closeloop.records.errors import BadInput
from closeloop.records.estimate import ChangePoint, Estimate
from closeloop.records.trend_report import (
    MetricRegression,
    MetricSeries,
    PeriodShift,
    RollingWindow,
    TrendReport,
    TurningPoint,
    VersionMark,
)
from closeloop.statistics.change_points import estimate_mean, find_change_points, rolling_windows
from closeloop.statistics.multiple_tests import adjust_benjamini_hochberg
from closeloop.statistics.rate_differences import newcombe_bounds

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

WATCHED_METRICS = (
    "pass rate", "task completion rate", "regression introduction rate", "review loop count",
    "first-review merge rate", "CI pass rate on first push", "review comments", "feedback",
    "recovery", "convergence", "without findings", "scope creep", "hallucinated API", "cost",
)  # fmt: skip
MAX_REGRESSION_P = 0.05
"""A turn is told as a regression when its adjusted p is smaller."""


def compute_trends(
    work: AttemptTable,
    by: Sequence[str] = (),
    only: Sequence[str] = (),
    *,
    weeks: int = 4,
    baseline: datetime | None = None,
) -> TrendReport:
    """Of all attempts, or of each group of them. Unless it is given, the baseline ends halfway."""
    wanted = select_metrics(only or WATCHED_METRICS)
    if not_followed := next((one.name for one in wanted if one.kind in REPEAT_KINDS), None):
        raise BadInput(f"{not_followed} is of repeats, not of a time: follow 'pass rate'.")
    marks = tuple(list_version_marks(work))
    timeline = MetricTimeline(work, by)
    courses = [
        _compute_series(
            metric.name, dict(zip(by, group, strict=True)), items, weeks, baseline, marks
        )
        for metric in wanted
        for group, items in timeline.group_items(METRICS[metric.name][1](work.columns))
    ]
    return TrendReport(
        weeks=weeks,
        courses=tuple(courses),
        marks=marks,
        regressions=tuple(_find_regressions(courses)),
        notes=(
            "Observational: times differ in more than what was changed.",
            *work.notes,
        ),
    )


def list_version_marks(work: AttemptTable) -> Iterator[VersionMark]:
    """When each variant, model and prompt version was first seen, but for those of the start."""
    first: dict[str, float] = {}
    labels_by_variant = {key: _version_labels(variant) for key, variant in work.variants.items()}
    for (variant, agent, model), started in first_version_times(work):
        for what in labels_by_variant.get(variant or "") or (
            f"{agent or 'an agent'} with {model or 'a model'}",
        ):
            first[what] = min(started, first.get(what, started))
    earliest = min(first.values(), default=0.0)
    for what, at in sorted(first.items(), key=lambda pair: (pair[1], pair[0])):
        if at > earliest:
            yield VersionMark(at=_moment_from_seconds(at), what=what)


def _version_labels(variant: Any) -> tuple[str, ...]:
    named = f"variant {variant.name} {variant.digest[:8]}"
    return (named, f"prompt {variant.prompt[:12]}") if variant.prompt else (named,)


def _compute_series(
    metric: str,
    group: dict[str, str],
    items: TimelineItems,
    weeks: int,
    baseline: datetime | None,
    marks: Sequence[VersionMark],
) -> MetricSeries:
    at, values = items.at, items.values
    first, last = float(at[0]), float(at[-1])
    count = int((last - first) // WEEK_SECONDS) + 1
    ends = [last - WEEK_SECONDS * back for back in reversed(range(count))]
    cut = baseline.timestamp() if baseline else (first + last) / 2
    return MetricSeries(
        metric=metric,
        group=group,
        stretches=tuple(
            RollingWindow(
                until=_moment_from_seconds(one.end), estimate=one.estimate, faint=one.faint
            )
            for one in rolling_windows(at, values, WEEK_SECONDS * weeks, ends)
        ),
        week=estimate_shift(
            values[(at > last - 2 * WEEK_SECONDS) & (at <= last - WEEK_SECONDS)],
            values[at > last - WEEK_SECONDS],
        ),
        since=estimate_shift(values[at < cut], values[at >= cut]),
        turns=tuple(_build_turns(items, find_change_points(items.level_values()), marks)),
    )


def estimate_shift(
    before: Sequence[float] | Array, after: Sequence[float] | Array
) -> PeriodShift | None:
    """From one mean to another; None where either is not known."""
    then, now = estimate_mean(before), estimate_mean(after)
    if then is None or now is None:
        return None
    low, high = newcombe_bounds(then, now)
    return PeriodShift(before=then, after=now, low=low, high=high)


def _build_turns(
    items: TimelineItems, found: Sequence[ChangePoint], marks: Sequence[VersionMark]
) -> Iterator[TurningPoint]:
    """Each with the means of what lies between it and its neighbours."""
    edges = [0, *(one.at for one in found), len(items.at)]
    means = [estimate_mean(items.values[i:j]) for i, j in pairwise(edges)]
    for place, one in enumerate(found):
        before, after = means[place], means[place + 1]
        at = _moment_from_seconds(float(items.at[one.at]))
        near = [mark.what for mark in marks if abs(at - mark.at) <= timedelta(days=7)]
        yield TurningPoint(
            at=at,
            before=before or one.before,
            after=after or one.after,
            p=one.p,
            near=tuple(near[:5]),
        )


def _find_regressions(courses: Sequence[MetricSeries]) -> list[MetricRegression]:
    """Turns for the worse, most evident first; several turns are looked at, so p is adjusted."""
    all_turns = [(course, turn) for course in courses for turn in course.turns]
    adjusted = adjust_benjamini_hochberg(
        {str(place): turn.p for place, (_, turn) in enumerate(all_turns)}
    )
    regressions = [
        MetricRegression(
            metric=course.metric, group=course.group, turn=turn, adjusted=adjusted[str(place)]
        )
        for place, (course, turn) in enumerate(all_turns)
        if _is_worse(course.metric, turn.before, turn.after)
        and adjusted[str(place)] < MAX_REGRESSION_P
    ]
    return sorted(
        regressions, key=lambda one: (one.adjusted, one.turn.p, one.metric, str(one.group))
    )


def _is_worse(metric: str, before: Estimate, after: Estimate) -> bool:
    better = METRICS[metric][0].better
    return better is not None and (after.value < before.value) == (better == "more")


def select_new_regressions(
    found: TrendReport,
    told: Mapping[str, object],
    *,
    now: datetime,
    weeks: int = 4,
    sure: float = 0.01,
) -> list[MetricRegression]:
    """What is worth an alert: sure, recent, and not told before."""
    since = now - timedelta(weeks=weeks)
    return [
        one
        for one in found.regressions
        if one.adjusted < sure and one.turn.at >= since and one.key not in told
    ]


def _moment_from_seconds(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
