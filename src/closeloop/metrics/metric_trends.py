"""Metrics over time, their change points, and regressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from zlib import crc32

from closeloop.metrics.attempt_groups import group_attempts
from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_figures import (
    REPEAT_KINDS,
    first_positions,
    mark_changes,
    number_tasks,
)
from closeloop.metrics.score_columns import find_metric, select_metrics
from closeloop.records.errors import BadInput
from closeloop.records.estimate import (
    ChangePoint,
    Estimate,
    Metric,
    MetricRegression,
    MetricSeries,
    PeriodShift,
    RollingWindow,
    TrendReport,
    TurningPoint,
    VersionMark,
)
from closeloop.records.record import Record
from closeloop.statistics.rate_comparison import newcombe_bounds
from closeloop.statistics.sequences import (
    adjust_benjamini_hochberg,
    estimate_mean,
    find_change_points,
    rolling_windows,
)

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


# Results over time, item by item: one task in one week, or one session.
#
# Repeats are not more tasks, so a task's repeats in one week are one item.

WEEK_SECONDS = 7 * 86400.0
MIN_WEEKS = 4
"""Weeks in which a task must occur before its own level is subtracted."""


class TimelineItems(Record):
    """Values sorted by time: each is one task in one week, or one session."""

    at: Any
    """Seconds since 1970."""
    values: Any
    units: Any
    repeats: Any

    def level_values(self) -> Array:
        """Return values without each task's own level; those with few repeats are shrunk.

        Otherwise weeks with harder tasks, or a week that has only begun, would look like a change.
        """
        import numpy as np

        _, units, counts = np.unique(self.units, return_inverse=True, return_counts=True)
        means = (np.bincount(units, self.values) / counts)[units]
        repeat_weights = np.sqrt(self.repeats / self.repeats.max())
        level = self.values.mean() + (self.values - means) * repeat_weights
        leveled: Array = np.where(counts[units] >= MIN_WEEKS, level, self.values)
        return leveled


class MetricTimeline:
    """Attempts with a known start, sorted once for all metrics: by group, task and week."""

    def __init__(self, work: AttemptTable, by: Sequence[str]) -> None:
        import numpy as np

        self._groups, places, group = group_attempts(work, by)
        at = work.columns["started"][places] / 1e6
        units = number_tasks(work)[places]
        weeks = np.floor(at / WEEK_SECONDS)
        order = np.lexsort((at, weeks, units, group))
        self._order = order[np.isfinite(at[order])]
        self._places = places[self._order]
        self._at, self._weeks = at[self._order], weeks[self._order]
        self._group, self._units = group[self._order], units[self._order]
        self._lots = _stable_draws(work)[self._places]

    def group_items(self, values: Array) -> Iterator[tuple[tuple[str, ...], TimelineItems]]:
        """Yield the items of each group that has known values."""
        import numpy as np

        values = values[self._places]
        known = np.isfinite(values)
        if not known.any():
            return
        values, at, draws, weeks, units, group = (
            column[known]
            for column in (values, self._at, self._lots, self._weeks, self._units, self._group)
        )
        first = np.flatnonzero(mark_changes(group, units, weeks))
        repeats = np.diff(first, append=len(values))
        means = np.add.reduceat(values, first) / repeats
        at, draws, weeks, units, group = (
            column[first] for column in (at, draws, weeks, units, group)
        )
        # Tasks that come every week are run in the same order, so they are put in that of a draw.
        task = np.cumsum(mark_changes(group, units)) - 1
        is_recurring = np.bincount(task)[task] > 1
        at = np.where(is_recurring, weeks * WEEK_SECONDS, at)
        order = np.lexsort((_weekly_draws(draws, weeks), at, group))
        for part in np.split(order, first_positions(group[order])[1:]):
            yield (
                self._groups[group[part[0]]],
                TimelineItems(
                    at=at[part], values=means[part], units=units[part], repeats=repeats[part]
                ),
            )


def _stable_draws(work: AttemptTable) -> Array:
    """Return a stable number per task digest or session id: the same in every store."""
    import numpy as np

    tasks = work.columns["task_digest"]
    own = np.array([crc32(name.encode("utf-8", "replace")) for name in work.attempts], np.uint64)
    by_task = np.array([crc32((name or "").encode()) for name in tasks.labels], np.uint64)
    return np.where(tasks.known(), by_task[tasks.codes], own)


def _weekly_draws(lots: Array, weeks: Array) -> Array:
    """Return another draw each week (the last steps of splitmix64)."""
    import numpy as np

    mixed = (lots << np.uint64(20)) ^ weeks.astype(np.int64).astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def first_version_times(work: AttemptTable) -> Iterator[tuple[tuple[str | None, ...], float]]:
    """Yield each combination of variant, agent and model, with when it was first seen."""
    import numpy as np

    columns = [work.columns[name] for name in ("variant", "agent", "model")]
    started = work.columns["started"] / 1e6
    order = np.lexsort((started, *(column.codes for column in columns)))
    order = order[np.isfinite(started[order])]
    if not len(order):
        return
    for place in order[mark_changes(*(column.codes[order] for column in columns))].tolist():
        names = tuple(column.labels[column.codes[place]] for column in columns)
        yield names, float(started[place])


WATCHED_METRICS = (
    "pass rate", "task completion rate", "regression introduction rate", "review loop count",
    "first-review merge rate", "CI pass rate on first push", "review comments", "feedback",
    "recovery", "convergence", "without findings", "scope creep", "hallucinated API", "cost",
)  # fmt: skip
MAX_REGRESSION_P = 0.05
"""A change for the worse is reported as a regression if its adjusted p is below this."""


def compute_trends(
    work: AttemptTable,
    by: Sequence[str] = (),
    only: Sequence[str] = (),
    *,
    weeks: int = 4,
    baseline: datetime | None = None,
) -> TrendReport:
    """Compute the trends of all attempts, or of each group.

    By default the baseline ends halfway.
    """
    wanted = select_metrics(work, only or WATCHED_METRICS)
    wanted = [one for one in wanted if one.kind not in REPEAT_KINDS or one.name in only]
    if not_followed := next((one.name for one in wanted if one.kind in REPEAT_KINDS), None):
        raise BadInput(
            f"{not_followed} is defined over repeats, not over time: use 'pass rate' instead."
        )
    if ratio := next((one.name for one in wanted if one.kind == "per pass"), None):
        raise BadInput(
            f"{ratio} is not a mean over attempts: `closeloop metrics --cost` shows it by week."
        )
    marks = tuple(list_version_marks(work))
    timeline = MetricTimeline(work, by)
    courses = [
        _compute_series(
            metric.name, dict(zip(by, group, strict=True)), items, weeks, baseline, marks
        )
        for metric in wanted
        for group, items in timeline.group_items(find_metric(work, metric.name)[1](work.columns))
    ]
    return TrendReport(
        weeks=weeks,
        courses=tuple(courses),
        marks=marks,
        regressions=tuple(_find_regressions(courses, {one.name: one for one in wanted})),
        notes=(
            "Observational: other things may have changed over the same time.",
            *work.notes,
        ),
    )


def list_version_marks(work: AttemptTable) -> Iterator[VersionMark]:
    """Yield when each variant, model and prompt version was first seen, except the first ones."""
    first: dict[str, float] = {}
    for (variant, agent, model), started in first_version_times(work):
        known = work.variants.get(variant or "")
        what = (
            f"variant {known.name} {known.digest[:8]}"
            if known
            else f"{agent or 'an agent'} with {model or 'a model'}"
        )
        first[what] = min(started, first.get(what, started))
    for prompt, started in _first_prompt_times(work):
        first[f"prompt {prompt[:12]}"] = started
    earliest = min(first.values(), default=0.0)
    for what, at in sorted(first.items(), key=lambda pair: (pair[1], pair[0])):
        if at > earliest:
            yield VersionMark(at=_moment_from_seconds(at), what=what)


def _first_prompt_times(work: AttemptTable) -> Iterator[tuple[str, float]]:
    """Yield when each prompt version was first used, in seconds."""
    import numpy as np

    prompts, started = work.columns["prompt"], work.columns["started"]
    for place, prompt in enumerate(prompts.labels):
        times = started[prompts.codes == place]
        times = times[np.isfinite(times)]
        if prompt is not None and len(times):
            yield prompt, float(times.min()) / 1e6


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
                until=_moment_from_seconds(rolling_window.end),
                estimate=rolling_window.estimate,
                faint=rolling_window.faint,
            )
            for rolling_window in rolling_windows(at, values, WEEK_SECONDS * weeks, ends)
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
    """Estimate the shift between two means; None if either is unknown."""
    then, now = estimate_mean(before), estimate_mean(after)
    if then is None or now is None:
        return None
    low, high = newcombe_bounds(then, now)
    return PeriodShift(before=then, after=now, low=low, high=high)


def _build_turns(
    items: TimelineItems, found: Sequence[ChangePoint], marks: Sequence[VersionMark]
) -> Iterator[TurningPoint]:
    """Yield each change point with the means of the periods before and after it."""
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


def _find_regressions(
    courses: Sequence[MetricSeries], wanted: Mapping[str, Metric]
) -> list[MetricRegression]:
    """Return changes for the worse, clearest first; p is adjusted for multiple tests."""
    all_turns = [(course, turn) for course in courses for turn in course.turns]
    adjusted = adjust_benjamini_hochberg(
        {str(place): turn.p for place, (_, turn) in enumerate(all_turns)}
    )
    regressions = [
        MetricRegression(
            metric=course.metric, group=course.group, turn=turn, adjusted=adjusted[str(place)]
        )
        for place, (course, turn) in enumerate(all_turns)
        if _is_worse(wanted[course.metric], turn.before, turn.after)
        and adjusted[str(place)] < MAX_REGRESSION_P
    ]
    return sorted(
        regressions, key=lambda one: (one.adjusted, one.turn.p, one.metric, str(one.group))
    )


def _is_worse(metric: Metric, before: Estimate, after: Estimate) -> bool:
    return metric.better is not None and (after.value < before.value) == (metric.better == "more")


def select_new_regressions(
    found: TrendReport,
    told: Mapping[str, object],
    *,
    now: datetime,
    weeks: int = 4,
    sure: float = 0.01,
) -> list[MetricRegression]:
    """Return the regressions worth an alert: certain, recent, and not reported before."""
    since = now - timedelta(weeks=weeks)
    return [
        regression
        for regression in found.regressions
        if regression.adjusted < sure and regression.turn.at >= since and regression.key not in told
    ]


def _moment_from_seconds(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
