"""Bounds of many figures at once, for tasks like these: repeats are not more tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, Any

from closeloop.model.estimate import Estimate
from closeloop.model.record import Record
from closeloop.stats.distributions import binomial_share, t_quantile
from closeloop.stats.exactly import jeffreys_each, posterior_bounds
from closeloop.stats.single import estimate
from closeloop.stats.values import Values

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]
    Chance = Callable[[Values, int], Estimate | None]

MOST_REPEATS = 5
FEW = 50
"""Tasks: of more, the mean's own spread is as good as a posterior, and much faster."""


class Bounds(Record):
    """A value, and what its method says of it."""

    value: float
    low: float | None = None
    high: float | None = None
    method: str
    more: dict[str, float] = {}


def rate_bounds(sums: Array, counts: Array) -> Bounds:
    """Of values from 0 to 1, summed by task."""
    if int(counts.max()) == 1:
        return _once(float(sums.sum()), len(counts))
    if len(counts) <= FEW:
        return _posterior(tuple(sorted(zip(sums.tolist(), counts.tolist(), strict=True))))
    means = sums / counts
    noise = max(float(means.var(ddof=1)), float(jeffreys_each(sums, counts).mean()))
    value = float(means.mean())
    half = t_quantile(0.975, len(counts) - 1) * sqrt(noise / len(counts))
    return Bounds(
        value=value,
        low=max(0.0, value - half),
        high=min(1.0, value + half),
        method="t of task means, variance floored",
    )


def repeat_bounds(sums: Array, counts: Array, chance: Chance) -> Bounds:
    """Of passes by task, each tried more than once: that one of k repeats passes, or all do."""
    k = min(MOST_REPEATS, int(counts.min()))
    tasks = enumerate(zip(sums.tolist(), counts.tolist(), strict=True))
    found = chance({str(place): _repeats(*task) for place, task in tasks}, k)
    if found is None:
        raise AssertionError("a task without enough repeats")
    return Bounds(
        value=found.value, low=found.low, high=found.high, method=found.method, more={"k": k}
    )


def _once(hits: float, of: int) -> Bounds:
    """With one attempt a task, the posterior of a beta-binomial is that of a binomial."""
    low, high = posterior_bounds(hits / of, of)
    return Bounds(value=hits / of, low=low, high=high, method="Jeffreys posterior")


@lru_cache(maxsize=1024)
def _posterior(tasks: tuple[tuple[float, int], ...]) -> Bounds:
    found = estimate({str(place): _repeats(*task) for place, task in enumerate(tasks)})
    if found is None or found.alike is None:
        raise AssertionError("a task without a value")
    alike = found.alike
    return Bounds(value=alike.value, low=alike.low, high=alike.high, method=alike.method)


def _repeats(total: float, count: int) -> list[float]:
    """Values with that sum: ones and zeros where there can be."""
    if total == int(total):
        return [1.0] * int(total) + [0.0] * (count - int(total))
    return [total / count] * count


def mean_bounds(means: Array) -> Bounds:
    """t over tasks; one task shows no spread."""
    value = float(means.mean())
    if len(means) < 2:
        return Bounds(value=value, method="one task: no bounds")
    half = t_quantile(0.975, len(means) - 1) * float(means.std(ddof=1)) / sqrt(len(means))
    low = value - half if means.min() < 0 else max(0.0, value - half)
    return Bounds(value=value, low=low, high=value + half, method="t of task means")


def median_bounds(means: Array) -> Bounds:
    """Between which of the ordered tasks the median lies: no shape is assumed."""
    import numpy as np

    ordered = np.sort(means)
    count = len(ordered)
    more = {"p90": float(np.quantile(ordered, 0.9)), "worst": float(ordered[-1])}
    value, rank = float(np.median(ordered)), _rank(count)
    if rank is None:
        return Bounds(value=value, method="too few tasks for bounds", more=more)
    low, high = float(ordered[rank]), float(ordered[count - 1 - rank])
    return Bounds(value=value, low=low, high=high, method="order statistics", more=more)


@lru_cache(maxsize=1024)
def _rank(count: int) -> int | None:
    """The innermost task that is surely far enough out, counted from the end."""
    low, high = -1, count // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial_share(middle, count) <= 0.025 else (low, middle)
    return None if low < 0 else low
