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

    def __init__(self, work: AttemptTable, group_by: Sequence[str]) -> None:
        import numpy as np

        self._groups, rows, group = group_attempts(work, group_by)
        times = work.columns["started"][rows] / 1e6
        units, group = number_tasks(work)[rows].astype(np.int32), group.astype(np.int32)
        order = np.lexsort((times, units, group))  # and so by week, too
        order = order[np.isfinite(times[order])]
        self._at, self._units, self._group = times[order], units[order], group[order]
        del times, units, group
        self._weeks = np.floor(self._at / WEEK_SECONDS).astype(np.int32)
        self._places = rows[order]
        self._draws = _stable_draws(work)[self._places]

    def group_items(self, values: Array) -> Iterator[tuple[tuple[str, ...], TimelineItems]]:
        """Yield the items of each group that has known values."""
        import numpy as np

        values = values[self._places]
        is_known = np.isfinite(values)
        if not is_known.any():
            return
        chosen = slice(None) if is_known.all() else is_known
        values, times, draws, weeks, units, group = (
            column[chosen]
            for column in (values, self._at, self._draws, self._weeks, self._units, self._group)
        )
        first = np.flatnonzero(mark_changes(group, units, weeks))
        repeats = np.diff(first, append=len(values))
        means = np.add.reduceat(values, first) / repeats
        times, draws, weeks, units, group = (
            column[first] for column in (times, draws, weeks, units, group)
        )
        # Weekly tasks run in the same order, so they are shuffled.
        task = np.cumsum(mark_changes(group, units)) - 1
        is_recurring = np.bincount(task)[task] > 1
        times = np.where(is_recurring, weeks * WEEK_SECONDS, times)
        order = np.lexsort((_weekly_draws(draws, weeks), times, group))
        times, means, units, repeats, group = (
            column[order] for column in (times, means, units, repeats, group)
        )
        # The caller works with these items before it asks for the next.
        del values, draws, weeks, first, task, is_recurring, order, is_known, chosen
        for start, end in pairwise([*first_positions(group).tolist(), len(group)]):
            yield (
                self._groups[group[start]],
                TimelineItems(
                    at=times[start:end],
                    values=means[start:end],
                    units=units[start:end],
                    repeats=repeats[start:end],
                ),
            )


def _stable_draws(work: AttemptTable) -> Array:
    """Return a stable number per task digest or session id: the same in every store."""
    import numpy as np

    tasks = work.columns["task_digest"]
    draws = (crc32(name.encode("utf-8", "replace")) for name in work.attempts)
    by_session = np.fromiter(draws, np.uint32, len(work))
    by_task = np.array([crc32((name or "").encode()) for name in tasks.labels], np.uint32)
    return np.where(tasks.known(), by_task[tasks.codes], by_session)


def _weekly_draws(draws: Array, weeks: Array) -> Array:
    """Return another draw each week (the last steps of splitmix64)."""
    import numpy as np

    mixed = (draws.astype(np.uint64) << np.uint64(20)) ^ weeks.astype(np.int64).astype(np.uint64)
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
    for row in order[mark_changes(*(column.codes[order] for column in columns))].tolist():
        names = tuple(column.labels[column.codes[row]] for column in columns)
        yield names, float(started[row])


WATCHED_METRICS = (
    "pass rate", "task completion rate", "regression introduction rate", "review loop count",
    "first-review merge rate", "CI pass rate on first push", "review comments", "feedback",
    "recovery", "convergence", "without findings", "scope creep", "hallucinated API", "cost",
)  # fmt: skip
MAX_REGRESSION_P = 0.05
"""A change for the worse is reported as a regression if its adjusted p is below this."""


def compute_trends(
    work: AttemptTable,
    group_by: Sequence[str] = (),
    only: Sequence[str] = (),
    *,
    weeks: int = 4,
    baseline: datetime | None = None,
) -> TrendReport:
    """Compute the trends of all attempts, or of each group.

    By default the baseline ends halfway.
    """
    metrics = select_metrics(work, only or WATCHED_METRICS)
    metrics = [
        metric for metric in metrics if metric.kind not in REPEAT_KINDS or metric.name in only
    ]
    if not_followed := next(
        (metric.name for metric in metrics if metric.kind in REPEAT_KINDS), None
    ):
        raise BadInput(
            f"{not_followed} is defined over repeats, not over time: use 'pass rate' instead."
        )
    if ratio := next((metric.name for metric in metrics if metric.kind == "per pass"), None):
        raise BadInput(
            f"{ratio} is not a mean over attempts: `closeloop metrics --cost` shows it by week."
        )
    version_marks = tuple(list_version_marks(work))
    timeline = MetricTimeline(work, group_by)
    series = [
        _compute_series(
            metric.name,
            dict(zip(group_by, group, strict=True)),
            items,
            weeks,
            baseline,
            version_marks,
        )
        for metric in metrics
        for group, items in timeline.group_items(
            work.columns.compute(find_metric(work, metric.name)[1])
        )
    ]
    return TrendReport(
        weeks=weeks,
        courses=tuple(series),
        marks=version_marks,
        regressions=tuple(_find_regressions(series, {metric.name: metric for metric in metrics})),
        notes=("Observational: other things may have changed over the same time.", *work.notes),
    )


def list_version_marks(work: AttemptTable) -> Iterator[VersionMark]:
    """Yield when each known variant, model and prompt was first seen, except the first ones."""
    versions = [*first_version_times(work)]
    first: dict[str, float] = {}
    for (variant, agent, model), started in versions:
        stored_variant = work.variants.get(variant or "")
        if stored_variant is None and agent is None and model is None:
            continue
        label = (
            f"variant {stored_variant.name} {stored_variant.digest[:8]}"
            if stored_variant
            else f"{agent or 'an agent'} with {model or 'a model'}"
        )
        first[label] = min(started, first.get(label, started))
    for prompt, started in _first_prompt_times(work):
        first[f"prompt {prompt[:12]}"] = started
    earliest = min((started for _, started in versions), default=0.0)
    for label, first_seen in sorted(first.items(), key=lambda pair: (pair[1], pair[0])):
        if first_seen > earliest:
            yield VersionMark(at=_moment_from_seconds(first_seen), what=label)


def _first_prompt_times(work: AttemptTable) -> Iterator[tuple[str, float]]:
    """Yield when each prompt version was first used, in seconds."""
    import numpy as np

    prompts, started = work.columns["prompt"], work.columns["started"]
    for code, prompt in enumerate(prompts.labels):
        times = started[prompts.codes == code]
        times = times[np.isfinite(times)]
        if prompt is not None and len(times):
            yield prompt, float(times.min()) / 1e6


def _compute_series(
    metric: str,
    group: dict[str, str],
    items: TimelineItems,
    weeks: int,
    baseline: datetime | None,
    version_marks: Sequence[VersionMark],
) -> MetricSeries:
    times, values = items.at, items.values
    first, last = float(times[0]), float(times[-1])
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
            for rolling_window in rolling_windows(times, values, WEEK_SECONDS * weeks, ends)
        ),
        week=estimate_shift(
            values[(times > last - 2 * WEEK_SECONDS) & (times <= last - WEEK_SECONDS)],
            values[times > last - WEEK_SECONDS],
        ),
        since=estimate_shift(values[times < cut], values[times >= cut]),
        turns=tuple(_build_turns(items, find_change_points(items.level_values()), version_marks)),
    )


def estimate_shift(
    before: Sequence[float] | Array, after: Sequence[float] | Array
) -> PeriodShift | None:
    """Estimate the shift between two means; None if either is unknown."""
    mean_before, mean_after = estimate_mean(before), estimate_mean(after)
    if mean_before is None or mean_after is None:
        return None
    low, high = newcombe_bounds(mean_before, mean_after)
    return PeriodShift(before=mean_before, after=mean_after, low=low, high=high)


def _build_turns(
    items: TimelineItems, change_points: Sequence[ChangePoint], version_marks: Sequence[VersionMark]
) -> Iterator[TurningPoint]:
    """Yield each change point with the means of the periods before and after it."""
    edges = [0, *(point.at for point in change_points), len(items.at)]
    means = [estimate_mean(items.values[i:j]) for i, j in pairwise(edges)]
    for index, change_point in enumerate(change_points):
        before, after = means[index], means[index + 1]
        moment = _moment_from_seconds(float(items.at[change_point.at]))
        nearby = [mark.what for mark in version_marks if abs(moment - mark.at) <= timedelta(days=7)]
        yield TurningPoint(
            at=moment,
            before=before or change_point.before,
            after=after or change_point.after,
            p=change_point.p,
            near=tuple(nearby[:5]),
        )


def _find_regressions(
    all_series: Sequence[MetricSeries], metric_by_name: Mapping[str, Metric]
) -> list[MetricRegression]:
    """Return changes for the worse, clearest first; p is adjusted for multiple tests."""
    all_turns = [(series, turn) for series in all_series for turn in series.turns]
    adjusted = adjust_benjamini_hochberg(
        {str(index): turn.p for index, (_, turn) in enumerate(all_turns)}
    )
    regressions = [
        MetricRegression(
            metric=series.metric,
            group=series.group,
            kind=metric_by_name[series.metric].kind,
            unit=metric_by_name[series.metric].unit,
            turn=turn,
            adjusted=adjusted[str(index)],
        )
        for index, (series, turn) in enumerate(all_turns)
        if _is_worse(metric_by_name[series.metric], turn.before, turn.after)
        and adjusted[str(index)] < MAX_REGRESSION_P
    ]
    return sorted(
        regressions,
        key=lambda regression: (
            regression.adjusted,
            regression.turn.p,
            regression.metric,
            str(regression.group),
        ),
    )


def list_standing_regressions(report: TrendReport) -> list[MetricRegression]:
    """Return the regressions after which no later turn made the metric as good as before."""
    last_turns = {
        (series.metric, *series.group.items()): series.turns[-1]
        for series in report.courses
        if series.turns
    }

    def is_standing(regression: MetricRegression) -> bool:
        before = regression.turn.before.value
        last_turn = last_turns[regression.metric, *regression.group.items()]
        return (regression.turn.after.value < before) == (last_turn.after.value < before) and (
            last_turn.after.value != before
        )

    return [regression for regression in report.regressions if is_standing(regression)]


def _is_worse(metric: Metric, before: Estimate, after: Estimate) -> bool:
    return metric.better is not None and (after.value < before.value) == (metric.better == "more")


def select_new_regressions(
    report: TrendReport,
    reported: Mapping[str, object],
    *,
    now: datetime,
    weeks: int = 4,
    sure: float = 0.01,
) -> list[MetricRegression]:
    """Return the regressions worth an alert: certain, recent, and not reported before."""
    since = now - timedelta(weeks=weeks)
    return [
        regression
        for regression in report.regressions
        if regression.adjusted < sure
        and regression.turn.at >= since
        and regression.key not in reported
    ]


def _moment_from_seconds(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
