"""Compute every metric of every group, each with n, bounds and coverage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from closeloop.metrics.attempt_groups import group_attempts
from closeloop.metrics.attempt_table import SCORED_OUTCOMES, AttemptTable
from closeloop.metrics.metric_definitions import (
    COUNTED_BESIDE,
    EXPECTED_VALUES,
    completion_values,
    is_failed,
    pass_values,
    touched_values,
)
from closeloop.metrics.score_columns import find_metric, select_metrics
from closeloop.records.estimate import (
    SHARE_KINDS,
    Estimate,
    Metric,
    MetricsReport,
    MetricValue,
    ScopeLimit,
)
from closeloop.records.orchestration import PlanTotals
from closeloop.records.record import Record
from closeloop.statistics.rate_estimate import (
    TaskValues,
    estimate_pass_all_k,
    estimate_pass_at_k,
    jeffreys_variances,
    posterior_bounds,
    rate_on_like_tasks,
)
from closeloop.statistics.special_functions import binomial_share, t_quantile
from closeloop.text.wording import format_dollars, format_percent, format_percent_range

if TYPE_CHECKING:
    import numpy as np

    from closeloop.store.packed_columns import PackedColumns

    Array = np.ndarray[Any, np.dtype[Any]]
    Chance = Callable[[TaskValues, int], Estimate | None]


# Plans of several sub-agents as figures of a report, with the numbers that `list plans` shows.


PLANS_COMMAND = "closeloop list plans --over-time --json"
_WILSON = "Wilson score interval"
_DEFINITIONS = {
    "passed": (
        "plans passed",
        "Share of the plans with a verdict of which every subtask and the merged result passed.",
    ),
    "first_try": (
        "plan tasks at the first try",
        "Share of the subtasks whose first try has a verdict that passed at the first try.",
    ),
    "after_feedback": (
        "plan tasks after feedback",
        "Share of the subtasks that failed at the first try and were retried that "
        "passed in the last verdict.",
    ),
    "final": (
        "plan tasks in the end",
        "Share of the subtasks with a verdict that passed in the last one.",
    ),
}
PLAN_METRICS = {
    field: Metric(
        name=name,
        family="plans",
        kind="rate",
        source="judge",
        says=says,
        score=name.replace(" ", "-"),
        better="more",
    )
    for field, (name, says) in _DEFINITIONS.items()
}
PLAN_METRIC_NAMES = frozenset(metric.name for metric in PLAN_METRICS.values())


def add_plan_figures(report: MetricsReport, totals: PlanTotals) -> MetricsReport:
    """Add the figures of plans to a report, if there are any plans."""
    if not totals.plans:
        return report
    return MetricsReport(
        by=report.by,
        attempts=report.attempts,
        definitions=(*report.definitions, *PLAN_METRICS.values()),
        figures=(*report.figures, *(_build_figure(field, totals) for field in PLAN_METRICS)),
        limits=report.limits,
        notes=report.notes,
    )


def _build_figure(field: str, totals: PlanTotals) -> MetricValue:
    rate, name = getattr(totals, field), PLAN_METRICS[field].name
    grade_counts = {letter: float(count) for letter, count in totals.grades.items()}
    if rate is None:
        return MetricValue(metric=name)
    return MetricValue(
        metric=name,
        value=rate.value,
        low=rate.low,
        high=rate.high,
        n=rate.of,
        attempts=rate.of,
        method=_WILSON,
        more=grade_counts if field == "passed" else {},
    )


# How large a change may be: limits suggested from failed and from completed changes.
#
# A limit on files or modules stops every change that touches more. Two are suggested for each: the
# widest that would have stopped nine of ten failures, and the narrowest that would have allowed
# nine of ten completed changes; and for both, what else they would have stopped.


AIMED_SHARE = 0.9
MIN_CHANGES = 5
"""With fewer failures, or fewer completed changes, a limit would be due to chance."""
LIMITED_MEASURES = ("files", "modules")


def suggest_scope_limits(columns: PackedColumns) -> tuple[ScopeLimit, ...]:
    """Suggest limits that have enough data; none if no limit would have helped."""
    import numpy as np

    failed = columns.compute(is_failed)
    completed = columns.compute(lambda part: completion_values(part) == 1)
    limits: list[ScopeLimit] = []
    for measure in LIMITED_MEASURES:
        touched_counts = columns.compute(partial(touched_values, measure))
        is_known = np.isfinite(touched_counts)
        sizes = (np.sort(touched_counts[is_known & mask]) for mask in (failed, completed & ~failed))
        limits += _find_limits(measure, *sizes)
    return tuple(limits)


def _find_limits(measure: str, failures: Array, completions: Array) -> Iterator[ScopeLimit]:
    if len(failures) >= MIN_CHANGES:
        # The number of smallest failures that may pass.
        spared = len(failures) - ceil(AIMED_SHARE * len(failures))
        yield from _describe_limit(
            measure, "stops failures", int(failures[spared]) - 1, failures, completions
        )
    if len(completions) >= MIN_CHANGES and len(failures):
        kept_count = ceil(AIMED_SHARE * len(completions))
        yield from _describe_limit(
            measure, "keeps completions", int(completions[kept_count - 1]), failures, completions
        )


def _describe_limit(
    measure: str, aim: Any, limit: int, failures: Array, completions: Array
) -> Iterator[ScopeLimit]:
    """Yield a limit with what it would have stopped; skip one that stops no failure or is 0."""
    stopped = int((failures > limit).sum())
    if limit >= 1 and stopped:
        yield ScopeLimit(
            measure=measure,
            aim=aim,
            most=limit,
            failures_stopped=stopped,
            failures=len(failures),
            completions_stopped=int((completions > limit).sum()),
            completions=len(completions),
        )


def describe_scope_limit(limit: ScopeLimit) -> str:
    """Describe a limit and what it would have stopped.

    `check.max_files = 3 would have stopped 18 of 20 failures, and 2 of 31 completed changes`.
    """
    return (
        f"check.max_{limit.measure} = {limit.most} would have stopped {limit.failures_stopped} of"
        f" {limit.failures} failures, and {limit.completions_stopped} of {limit.completions}"
        " completed changes"
    )


# Intervals of many figures at once, for tasks like these: repeats are not more tasks.

MAX_REPEATS = 5
MAX_POSTERIOR_TASKS = 50
"""Number of tasks above which a t interval is as good as a posterior, and much faster."""


class MetricBounds(Record):
    """A value with its bounds and method."""

    value: float
    low: float | None = None
    high: float | None = None
    method: str
    more: dict[str, float] = {}


def rate_bounds(sums: Array, counts: Array) -> MetricBounds:
    """Return the bounds of a rate, from values from 0 to 1 summed by task."""
    if int(counts.max()) == 1:
        return _single_repeat_bounds(float(sums.sum()), len(counts))
    if len(counts) <= MAX_POSTERIOR_TASKS:
        return _posterior_rate_bounds(
            tuple(sorted(zip(sums.tolist(), counts.tolist(), strict=True)))
        )
    means = sums / counts
    noise = max(float(means.var(ddof=1)), float(jeffreys_variances(sums, counts).mean()))
    value = float(means.mean())
    half = t_quantile(0.975, len(counts) - 1) * sqrt(noise / len(counts))
    return MetricBounds(
        value=value,
        low=max(0.0, value - half),
        high=min(1.0, value + half),
        method="t of task means, variance floored",
    )


def repeat_bounds(sums: Array, counts: Array, chance: Chance) -> MetricBounds:
    """Return the bounds of pass@k or pass^k, from passes by task, each tried more than once."""
    k = min(MAX_REPEATS, int(counts.min()))
    tasks = enumerate(zip(sums.tolist(), counts.tolist(), strict=True))
    chance_estimate = chance({str(index): _expand_repeats(*task) for index, task in tasks}, k)
    if chance_estimate is None:
        raise AssertionError("a task without enough repeats")
    return MetricBounds(
        value=chance_estimate.value,
        low=chance_estimate.low,
        high=chance_estimate.high,
        method=chance_estimate.method,
        more={"k": k},
    )


def _single_repeat_bounds(hits: float, count: int) -> MetricBounds:
    """Bound a rate with one attempt per task: the beta-binomial posterior is a binomial's."""
    low, high = posterior_bounds(hits / count, count)
    return MetricBounds(value=hits / count, low=low, high=high, method="Jeffreys posterior")


@lru_cache(maxsize=1024)
def _posterior_rate_bounds(tasks: tuple[tuple[float, int], ...]) -> MetricBounds:
    estimate = rate_on_like_tasks(
        {str(index): _expand_repeats(*task) for index, task in enumerate(tasks)}
    )
    return MetricBounds(
        value=estimate.value, low=estimate.low, high=estimate.high, method=estimate.method
    )


def _expand_repeats(total: float, count: int) -> list[float]:
    """Return values with that sum: ones and zeros if possible."""
    if total == int(total):
        return [1.0] * int(total) + [0.0] * (count - int(total))
    return [total / count] * count


def mean_bounds(means: Array) -> MetricBounds:
    """Return t bounds over tasks; one task has no spread."""
    value = float(means.mean())
    if len(means) < 2:
        return MetricBounds(value=value, method="one task: no bounds")
    half = t_quantile(0.975, len(means) - 1) * float(means.std(ddof=1)) / sqrt(len(means))
    low = value - half if means.min() < 0 else max(0.0, value - half)
    return MetricBounds(value=value, low=low, high=value + half, method="t of task means")


def median_bounds(means: Array) -> MetricBounds:
    """Return the median with bounds from order statistics: no distribution is assumed."""
    import numpy as np

    ordered, count = np.sort(means), len(means)
    quantiles = {"p90": _quantile_of_sorted(ordered, 0.9)}
    value = float(ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    rank = _median_rank(count)
    if rank is None:
        return MetricBounds(value=value, method="too few tasks for bounds", more=quantiles)
    low, high = float(ordered[rank]), float(ordered[count - 1 - rank])
    return MetricBounds(value=value, low=low, high=high, method="order statistics", more=quantiles)


def _quantile_of_sorted(ordered: Array, share: float) -> float:
    """Return the same as `np.quantile`, which would import masked arrays."""
    position = share * (len(ordered) - 1)
    index = min(int(position), len(ordered) - 2) if len(ordered) > 1 else 0
    low, high = float(ordered[index]), float(ordered[min(index + 1, len(ordered) - 1)])
    weight = position - index
    if weight < 0.5:
        return low + (high - low) * weight
    return high - (high - low) * (1 - weight)


@lru_cache(maxsize=1024)
def _median_rank(count: int) -> int | None:
    """Return the innermost rank that bounds the median at 95 %; None with too few tasks."""
    low, high = -1, count // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial_share(middle, count) <= 0.025 else (low, middle)
    return None if low < 0 else low


REPEAT_KINDS = ("one of k", "all of k", "any of n")
"""Kinds that need a task with at least two repeats."""


def compute_metrics(
    work: AttemptTable, group_by: Sequence[str], only: Sequence[str] = ()
) -> MetricsReport:
    """Compute metrics of all attempts, or of each group."""
    metrics = select_metrics(work, only)
    return MetricsReport(
        by=tuple(group_by),
        attempts=len(work),
        definitions=tuple(metrics),
        figures=tuple(_compute_figures(work, group_by, metrics)),
        limits=suggest_scope_limits(work.columns)
        if not group_by and any(metric.name.startswith("blast radius") for metric in metrics)
        else (),
        notes=work.notes,
    )


def _compute_figures(
    work: AttemptTable, group_by: Sequence[str], metrics: Sequence[Metric]
) -> Iterator[MetricValue]:

    if not len(work):
        return
    rows: Any
    groups, rows, group = group_attempts(work, group_by)
    if len(rows) == len(work):  # each is in one group
        rows = slice(None)
    grouping = Grouping(of_row=group, groups=len(groups))
    tasks = TaskPartition(number_tasks(work)[rows], group, len(groups))
    repeated: TaskPartition | None = None
    covered = {
        source: [grouping.count(mask[rows]) for mask in pair]
        for source, pair in _source_coverage(work).items()
    }
    for metric in metrics:
        values = work.columns.compute(find_metric(work, metric.name)[1])[rows]
        extra_counts = _count_beside(metric, work, values, rows, grouping)
        expected = _expected_counts(metric, work, values, rows, grouping)
        if metric.kind in REPEAT_KINDS:
            repeated = repeated or TaskPartition(
                number_repeats(work)[rows],
                group,
                len(groups),
                per_task=len(work.columns["variant"].labels),
            )
            parts = repeated.sum_by_task(values, 2)
        else:
            parts = tasks.sum_by_task(values)
        passes = _count_passes(metric, work, values, rows, grouping)
        for code, (sums, counts, task_count) in enumerate(parts):
            name = dict(zip(group_by, groups[code], strict=True))
            present, total = (
                group_counts[code] for group_counts in expected or covered[metric.source]
            )
            figure = (
                _divide_by_passes(sums, passes[code])
                if metric.kind == "per pass"
                else _bound_figure(metric, sums, counts)
            )
            yield MetricValue(
                metric=metric.name,
                group=name,
                value=figure.value if figure else None,
                low=figure.low if figure else None,
                high=figure.high if figure else None,
                n=task_count,
                attempts=int(counts.sum()),
                coverage=float(present / total) if total else None,
                method=figure.method if figure else None,
                more=figure.more | extra_counts[code] if figure else {},
            )


class Grouping(Record):
    """The group of each row."""

    of_row: Any
    groups: int

    def count(self, mask: Array) -> Array:
        """Count the marked rows of each group."""
        import numpy as np

        if self.groups == 1:
            return np.array([np.count_nonzero(mask)])
        return np.bincount(self.of_row[mask], minlength=self.groups)

    def sum(self, values: Array) -> Array:
        """Sum the values of each group."""
        import numpy as np

        return np.bincount(self.of_row, values, minlength=self.groups)


def _count_passes(
    metric: Metric, work: AttemptTable, values: Array, rows: Any, grouping: Grouping
) -> list[float]:
    """Count passes by group among attempts with a value, for metrics per pass."""
    import numpy as np

    if metric.kind != "per pass":
        return [0.0] * grouping.groups
    has_passed = work.columns.compute(lambda columns: pass_values(columns) == 1)[rows]
    counts: list[float] = grouping.count(has_passed & np.isfinite(values)).astype(float).tolist()
    return counts


def number_tasks(work: AttemptTable) -> Array:
    """Number the tasks; each session is its own task."""
    import numpy as np

    tasks = work.columns["task_digest"]
    session_numbers = len(tasks.labels) + np.arange(len(work))
    return np.where(tasks.known(), tasks.codes, session_numbers)


def number_repeats(work: AttemptTable) -> Array:
    """Number the pairs of task and variant: only attempts of one variant are repeats."""
    variants = work.columns["variant"]
    numbers: Array = number_tasks(work) * len(variants.labels) + variants.codes
    return numbers


def _source_coverage(work: AttemptTable) -> dict[str, tuple[Array, Array]]:
    """Return which attempts have a grade, a measurement, a delivery, and which should."""
    import numpy as np

    columns = work.columns
    all_attempts = np.ones(len(work), dtype=bool)
    delivered = ~np.isnan(columns["merged"])
    graded = columns["task_digest"].known() & ~columns["unchecked"]
    return {
        "grade": (columns["outcome"].are(SCORED_OUTCOMES), graded),
        "rules": (~np.isnan(columns["findings"]), all_attempts),
        "people": (delivered, delivered | columns["origin"].are(("production",))),
        "attempt": (all_attempts, all_attempts),
    }


def _expected_counts(
    metric: Metric, work: AttemptTable, values: Array, rows: Any, grouping: Grouping
) -> list[Array] | None:
    """Count by group those with a value, and those that should have one.

    None if the source decides it. For failure modes and for scores of the ledger, all should.
    """
    import numpy as np

    if metric.name in EXPECTED_VALUES:
        expected = work.columns.compute(EXPECTED_VALUES[metric.name])[rows]
    elif metric.family in ("failure modes", "scores"):
        expected = np.ones(len(values), np.bool_)
    else:
        return None
    return [grouping.count(mask) for mask in (expected & np.isfinite(values), expected)]


def _count_beside(
    metric: Metric, work: AttemptTable, values: Array, rows: Any, grouping: Grouping
) -> list[dict[str, float]]:
    """Return, by group, the counts reported beside the value, if any."""
    import numpy as np

    extra_counts: list[dict[str, float]] = [{} for _ in range(grouping.groups)]
    if metric.kind == "median":  # the worst is one attempt, never a mean of repeats
        largest = np.full(grouping.groups, np.nan)
        np.fmax.at(largest, grouping.of_row, values)
        extra_counts = [{} if np.isnan(worst) else {"worst": worst} for worst in largest.tolist()]
    for name, count in COUNTED_BESIDE.get(metric.name, {}).items():
        numbers = work.columns.compute(count)[rows]
        is_mask = numbers.dtype == np.bool_
        sums = grouping.count(numbers) if is_mask else grouping.sum(np.nan_to_num(numbers))
        for code, number in enumerate(sums.tolist()):
            if number:
                extra_counts[code][name] = float(number)
    return extra_counts


class TaskPartition:
    """Values by group and task: sorted once for all metrics."""

    def __init__(self, units: Array, group: Array, groups: int, per_task: int = 1) -> None:
        import numpy as np

        # A multiple of a task's entries, so that a key divided by it is one task of one group.
        span = (int(units.max()) // per_task + 1) * per_task
        keys = group * span + units
        self._order = np.argsort(keys, kind="stable")
        is_small = groups * span <= np.iinfo(np.int32).max
        self._keys = keys[self._order].astype(np.int32 if is_small else np.int64, copy=False)
        self._edges = (np.arange(groups + 1) * span).astype(self._keys.dtype)
        self._per_task = per_task

    def sum_by_task(self, values: Array, min_count: int = 1) -> Iterator[tuple[Array, Array, int]]:
        """Yield for each group the sums and counts of known values, and the number of tasks.

        Each sum is of one task, or of one of the `per_task` parts of a task. Skips those with fewer
        than `min_count` values.
        """
        import numpy as np

        values = values[self._order]
        keys, is_known = self._keys, np.isfinite(values)
        if not is_known.all():
            keys, values = keys[is_known], values[is_known]
        first = first_positions(keys)
        sums = np.add.reduceat(values, first) if len(first) else values
        counts = np.diff(first, append=len(keys))
        edges = np.searchsorted(keys[first], self._edges)
        for start, end in pairwise(edges.tolist()):
            has_enough = counts[start:end] >= min_count
            units = keys[first[start:end][has_enough]]
            task_count = len(first_positions(units // self._per_task))
            yield sums[start:end][has_enough], counts[start:end][has_enough], task_count


def first_positions(keys: Array) -> Array:
    """Return where each of the sorted keys starts."""
    import numpy as np

    return np.flatnonzero(mark_changes(keys))


def mark_changes(*columns: Array) -> Array:
    """Mark the rows where any column differs from the row before."""
    import numpy as np

    new = np.zeros(len(columns[0]), np.bool_)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return new


def _divide_by_passes(sums: Array, passes: float) -> MetricBounds | None:
    """Divide the sum by the passes; None if nothing passed."""
    if not passes:
        return None
    value = float(sums.sum()) / passes
    return MetricBounds(value=value, method="sum ÷ passes", more={"passed": passes})


def _bound_figure(metric: Metric, sums: Array, counts: Array) -> MetricBounds | None:
    if not len(counts):
        return None
    match metric.kind:
        case "rate":
            return rate_bounds(sums, counts)
        case "one of k":
            return repeat_bounds(sums, counts, estimate_pass_at_k)
        case "all of k":
            return repeat_bounds(sums, counts, estimate_pass_all_k)
        case "any of n":
            solved = _single_repeat_bounds(float((sums > 0).sum()), len(counts))
            return replace(solved, more={"repeats": float(counts.mean())})
        case "mean":
            return mean_bounds(sums / counts)
        case "median":
            return median_bounds(sums / counts)
        case "sum" | "per pass":
            return MetricBounds(value=float(sums.sum()), method="sum")


# Figures formatted for people.


MIN_PERCENT_TASKS = 5
"""A rate of fewer tasks is a count: `1 of 1` instead of `100 %`."""


def is_shown_as_count(figure: MetricValue, metric: Metric) -> bool:
    """Return whether a rate has so few tasks, each with one yes or no, that it is a count."""
    hits = (figure.value or 0.0) * figure.n
    return (
        metric.kind == "rate"
        and figure.n == figure.attempts < MIN_PERCENT_TASKS
        and abs(hits - round(hits)) < 1e-9
    )


def format_metric_value(figure: MetricValue, metric: Metric) -> str:
    """Format a value: shares in percent, money in dollars, the rest with three digits."""
    if figure.value is None:
        return "unknown"
    if is_shown_as_count(figure, metric):
        return f"{round(figure.value * figure.n)} of {figure.n}"
    formatted = _format_bare_value(figure.value, metric)
    if metric.kind in SHARE_KINDS or metric.unit in ("", "$"):
        return formatted
    unit = metric.unit if formatted != "1" or metric.unit == "s" else metric.unit.removesuffix("s")
    return f"{formatted} {unit}"


def format_bounds(figure: MetricValue, metric: Metric) -> str:
    """Format the bounds, such as `39–86 %`, and the values beside them."""
    if figure.value is None:
        return ""
    parts = []
    if figure.low is not None and figure.high is not None:
        parts.append(
            format_percent_range(figure.low, figure.high)
            if metric.kind in SHARE_KINDS
            else "–".join(_format_bare_value(bound, metric) for bound in (figure.low, figure.high))
        )
    parts += [f"{name} {_format_number(value)}" for name, value in figure.more.items()]
    return ", ".join(parts)


def _format_bare_value(value: float, metric: Metric) -> str:
    if metric.kind in SHARE_KINDS:
        return format_percent(value)
    return format_dollars(value) if metric.unit == "$" else _format_number(value)


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def metrics_command(metric: str, group_by: Sequence[str] = ()) -> str:
    """Return the command that computes the figure again."""
    if metric in PLAN_METRIC_NAMES:
        return PLANS_COMMAND
    grouped = f" --group-by {','.join(group_by)}" if group_by else ""
    return f'closeloop metrics --score "{metric}"{grouped} --json'
