"""The difference between two ways of working, on the tasks that both tried and on tasks like these.

Tasks weigh equally; a task's value is the mean of its repeats. On exactly these tasks only the
repeats are chance; on tasks like these, so are the tasks.
"""

from __future__ import annotations

from math import hypot, sqrt
from statistics import fmean
from statistics import variance as spread

from closeloop.records.estimate import Estimate
from closeloop.records.record import Record
from closeloop.statistics.distributions import t_quantile
from closeloop.statistics.repeat_noise import (
    estimate_noisy_mean,
    jeffreys_variance,
    posterior_bounds,
)
from closeloop.statistics.task_values import TaskValues, common_tasks


class DifferenceInterval(Record):
    """How much more the second has than the first."""

    tasks: int
    first: float
    second: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        return self.second - self.first


def rate_difference(
    first: TaskValues, second: TaskValues, *, comparisons: int = 1
) -> DifferenceInterval | None:
    """Bounds that hold at 95 % for all of so many comparisons; None without a common task.

    They come from those of the two sides, as Newcombe (1998) put them together.
    """
    tasks = common_tasks(first, second)
    if not tasks:
        return None
    before, after = (
        estimate_noisy_mean([side[task] for task in tasks]) for side in (first, second)
    )
    (least, most), (low, high) = (
        posterior_bounds(side.mean, side.attempts, 0.05 / comparisons) for side in (before, after)
    )
    value = after.mean - before.mean
    return DifferenceInterval(
        tasks=len(tasks),
        first=before.mean,
        second=after.mean,
        low=max(-1.0, value - hypot(after.mean - low, most - before.mean)),
        high=min(1.0, value + hypot(high - after.mean, before.mean - least)),
    )


def newcombe_bounds(first: Estimate, second: Estimate) -> tuple[float, float]:
    """Bounds of how much more the second is, from those of the two, which are independent."""
    value = second.value - first.value
    return (
        value - sqrt((second.value - second.low) ** 2 + (first.high - first.value) ** 2),
        value + sqrt((second.high - second.value) ** 2 + (first.value - first.low) ** 2),
    )


def paired_t_difference(first: TaskValues, second: TaskValues) -> Estimate | None:
    """Paired t on the tasks' differences, as if they varied by their repeats at least.

    Without that floor, tasks that happen to agree would promise that all others do.
    """
    tasks = common_tasks(first, second)
    if len(tasks) < 2:
        return None
    differences = [fmean(second[task]) - fmean(first[task]) for task in tasks]
    floor = fmean(
        jeffreys_variance(first[task]) + jeffreys_variance(second[task]) for task in tasks
    )
    noise = max(spread(differences), floor)
    value, half = fmean(differences), t_quantile(0.975, len(tasks) - 1) * sqrt(noise / len(tasks))
    return Estimate(
        value=value,
        low=max(-1.0, value - half),
        high=min(1.0, value + half),
        n=len(tasks),
        method="paired t, variance floored",
    )
