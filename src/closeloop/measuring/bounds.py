"""Bounds of many figures at once, for tasks like these: repeats are not more tasks."""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, Any

from closeloop.model.record import Record
from closeloop.stats.distributions import t_quantile
from closeloop.stats.exactly import posterior_bounds
from closeloop.stats.single import estimate

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

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
    posterior = (sums + 0.5) * (counts - sums + 0.5) / (counts + 1.0) ** 2 / (counts + 2.0)
    noise = max(float(means.var(ddof=1)), float(posterior.mean()))
    value = float(means.mean())
    half = t_quantile(0.975, len(counts) - 1) * sqrt(noise / len(counts))
    return Bounds(
        value=value,
        low=max(0.0, value - half),
        high=min(1.0, value + half),
        method="t of task means, variance floored",
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
    from scipy.special import bdtr  # type: ignore[import-untyped]

    low, high = -1, count // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bdtr(middle, count, 0.5) <= 0.025 else (low, middle)
    return None if low < 0 else low
