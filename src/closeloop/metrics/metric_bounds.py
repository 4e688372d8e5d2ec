"""Bounds of many figures at once, for tasks like these: repeats are not more tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, Any

from closeloop.records.estimate import Estimate
from closeloop.records.record import Record
from closeloop.statistics.distributions import binomial_share, t_quantile
from closeloop.statistics.rate_estimate import estimate_rate
from closeloop.statistics.repeat_noise import jeffreys_variances, posterior_bounds
from closeloop.statistics.task_values import TaskValues

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]
    Chance = Callable[[TaskValues, int], Estimate | None]

MAX_REPEATS = 5
MAX_POSTERIOR_TASKS = 50
"""Tasks: of more, the mean's own spread is as good as a posterior, and much faster."""


class MetricBounds(Record):
    """A value, and what its method says of it."""

    value: float
    low: float | None = None
    high: float | None = None
    method: str
    more: dict[str, float] = {}


def rate_bounds(sums: Array, counts: Array) -> MetricBounds:
    """Of values from 0 to 1, summed by task."""
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
    """Of passes by task, each tried more than once: that one of k repeats passes, or all do."""
    k = min(MAX_REPEATS, int(counts.min()))
    tasks = enumerate(zip(sums.tolist(), counts.tolist(), strict=True))
    chance_estimate = chance({str(place): _expand_repeats(*task) for place, task in tasks}, k)
    if chance_estimate is None:
        raise AssertionError("a task without enough repeats")
    return MetricBounds(
        value=chance_estimate.value,
        low=chance_estimate.low,
        high=chance_estimate.high,
        method=chance_estimate.method,
        more={"k": k},
    )


def _single_repeat_bounds(hits: float, of: int) -> MetricBounds:
    """With one attempt a task, the posterior of a beta-binomial is that of a binomial."""
    low, high = posterior_bounds(hits / of, of)
    return MetricBounds(value=hits / of, low=low, high=high, method="Jeffreys posterior")


@lru_cache(maxsize=1024)
def _posterior_rate_bounds(tasks: tuple[tuple[float, int], ...]) -> MetricBounds:
    estimates = estimate_rate(
        {str(place): _expand_repeats(*task) for place, task in enumerate(tasks)}
    )
    if estimates is None or estimates.alike is None:
        raise AssertionError("a task without a value")
    alike = estimates.alike
    return MetricBounds(value=alike.value, low=alike.low, high=alike.high, method=alike.method)


def _expand_repeats(total: float, count: int) -> list[float]:
    """Values with that sum: ones and zeros where there can be."""
    if total == int(total):
        return [1.0] * int(total) + [0.0] * (count - int(total))
    return [total / count] * count


def mean_bounds(means: Array) -> MetricBounds:
    """t over tasks; one task shows no spread."""
    value = float(means.mean())
    if len(means) < 2:
        return MetricBounds(value=value, method="one task: no bounds")
    half = t_quantile(0.975, len(means) - 1) * float(means.std(ddof=1)) / sqrt(len(means))
    low = value - half if means.min() < 0 else max(0.0, value - half)
    return MetricBounds(value=value, low=low, high=value + half, method="t of task means")


def median_bounds(means: Array) -> MetricBounds:
    """Between which of the ordered tasks the median lies: no shape is assumed."""
    import numpy as np

    ordered = np.sort(means)
    count = len(ordered)
    more = {"p90": float(np.quantile(ordered, 0.9)), "worst": float(ordered[-1])}
    value, rank = float(np.median(ordered)), _median_rank(count)
    if rank is None:
        return MetricBounds(value=value, method="too few tasks for bounds", more=more)
    low, high = float(ordered[rank]), float(ordered[count - 1 - rank])
    return MetricBounds(value=value, low=low, high=high, method="order statistics", more=more)


@lru_cache(maxsize=1024)
def _median_rank(count: int) -> int | None:
    """The innermost task that is surely far enough out, counted from the end."""
    low, high = -1, count // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial_share(middle, count) <= 0.025 else (low, middle)
    return None if low < 0 else low
