"""The difference between two ways of working, on exactly the tasks that both were tried on.

Tasks weigh equally; a task's value is the mean of its repeats. Each side's noise is the variance of
the Jeffreys posterior of the task's rate, widened for the few repeats it is estimated from. Values
between 0 and 1 that are no yes or no vary less than this allows for, so their bounds are safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import NormalDist, fmean

from closeloop.model.record import Record

Values = Mapping[str, Sequence[float]]
"""Task → the values, from 0 to 1, of its repeats."""


class Interval(Record):
    """How much more the second has than the first."""

    tasks: int
    first: float
    second: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        return self.second - self.first


def difference(first: Values, second: Values, *, comparisons: int = 1) -> Interval | None:
    """Bounds that hold at 95 % for all of so many comparisons; None without a common task."""
    tasks = [task for task in first if first[task] and second.get(task)]
    if not tasks:
        return None
    z = NormalDist().inv_cdf(1 - 0.025 / comparisons)
    noise = sum(variance(first[task]) + variance(second[task]) for task in tasks)
    half = z * sqrt(noise) / len(tasks)
    before = fmean(fmean(first[task]) for task in tasks)
    after = fmean(fmean(second[task]) for task in tasks)
    return Interval(
        tasks=len(tasks),
        first=before,
        second=after,
        low=max(-1.0, after - before - half),
        high=min(1.0, after - before + half),
    )


def variance(values: Sequence[float]) -> float:
    """Of a task's rate, from its repeats."""
    repeats, hits = len(values), sum(values)
    one, other = hits + 0.5, repeats - hits + 0.5
    whole = one + other
    return one * other / (whole * whole * (whole + 1)) * (repeats + 2) / repeats
