"""How else two variants differ: every other rate, marked as the exploration that it is."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_definitions import METRICS, PRIMARY_METRIC
from closeloop.records.comparison_report import SecondaryMetric
from closeloop.records.metric_values import Metric
from closeloop.statistics.distributions import t_quantile, t_tails
from closeloop.statistics.multiple_tests import adjust_benjamini_hochberg
from closeloop.statistics.paired_tests import MIN_PAIRED_TASKS
from closeloop.statistics.repeat_noise import jeffreys_variances

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

SIGNIFICANCE = 0.05


def compare_secondary_rates(
    work: AttemptTable, first: Array, second: Array
) -> tuple[SecondaryMetric, ...]:
    """Every other metric that is a rate and that both have, adjusted for their number."""
    compared_rates = []
    tasks = work.columns["task_digest"].codes
    for name, (metric, values) in METRICS.items():
        if metric.kind == "rate" and name != PRIMARY_METRIC:
            attempt_values = values(work.columns)
            one = _compare_secondary_rate(
                metric, *(_sum_task_values(attempt_values, tasks, mask) for mask in (first, second))
            )
            compared_rates += [one] if one else []
    adjusted = adjust_benjamini_hochberg(
        {one.metric: one.p for one in compared_rates if one.p is not None}
    )
    return tuple(_add_word(one, adjusted.get(one.metric)) for one in compared_rates)


def _sum_task_values(values: Array, tasks: Array, mask: Array) -> tuple[Array, Array]:
    """Sums and counts of what is known."""
    import numpy as np

    known = mask & np.isfinite(values)
    most = int(tasks.max()) + 1
    return (
        np.bincount(tasks[known], values[known], minlength=most),
        np.bincount(tasks[known], minlength=most),
    )


def _compare_secondary_rate(
    metric: Metric, first: tuple[Array, Array], second: tuple[Array, Array]
) -> SecondaryMetric | None:
    """A paired t: the spread of the tasks' differences, floored by their repeats' noise."""
    both = (first[1] > 0) & (second[1] > 0)
    tasks = int(both.sum())
    if not tasks:
        return None
    means = [sums[both] / counts[both] for sums, counts in (first, second)]
    differences = means[1] - means[0]
    compared = SecondaryMetric(
        metric=metric.name,
        tasks=tasks,
        first=float(means[0].mean()),
        second=float(means[1].mean()),
    )
    if tasks < 2:
        return compared
    floor = sum(
        float(jeffreys_variances(sums[both], counts[both]).mean())
        for sums, counts in (first, second)
    )
    spread = sqrt(max(float(differences.var(ddof=1)), floor) / tasks)
    value, half = float(differences.mean()), t_quantile(0.975, tasks - 1) * spread
    p = (
        t_tails(value / spread, tasks - 1)
        if tasks >= MIN_PAIRED_TASKS and differences.any()
        else None
    )
    return replace(compared, low=max(-1.0, value - half), high=min(1.0, value + half), p=p)


def _add_word(one: SecondaryMetric, adjusted: float | None) -> SecondaryMetric:
    if adjusted is None or adjusted >= SIGNIFICANCE:
        return replace(one, adjusted=adjusted)
    more = one.second > one.first
    better = METRICS[one.metric][0].better
    if better is None:
        return replace(one, adjusted=adjusted, word="more" if more else "less")
    return replace(one, adjusted=adjusted, word="better" if more == (better == "more") else "worse")
