"""How far a mean over exactly these tasks may be off, from the repeats of each.

A task's noise is the variance of its rate's Jeffreys posterior, widened for the few repeats it is
estimated from. All tasks together vary no more than as many attempts of one rate would (Hoeffding
1956), so bounds are those of Jeffreys' posterior after as many attempts of one rate as vary like
these. Values between 0 and 1 that are no yes or no vary less than this allows for, so their bounds
are safe. docs/decisions tells why.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from closeloop.records.record import Record
from closeloop.statistics.distributions import beta_quantile

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


class NoisyMean(Record):
    """A mean, and how many attempts of one rate would be as noisy."""

    mean: float
    attempts: float


def estimate_noisy_mean(tasks: Sequence[Sequence[float]]) -> NoisyMean:
    """Of tasks, each with the values of its repeats."""
    mean = fmean(map(fmean, tasks))
    attempts = len(tasks) ** 2 / sum(1 / len(repeats) for repeats in tasks)
    mean_variance = sum(map(task_rate_variance, tasks)) / len(tasks) ** 2
    return NoisyMean(mean=mean, attempts=max(attempts, mean * (1 - mean) / mean_variance))


def posterior_bounds(mean: float, attempts: float, outside: float = 0.05) -> tuple[float, float]:
    """Of a rate, by Jeffreys' prior; where all is alike, up to the end (Brown and others 2001)."""
    one, other = mean * attempts + 0.5, (1 - mean) * attempts + 0.5
    return (
        min(mean, beta_quantile(outside / 2, one, other)) if mean > 0 else 0.0,
        max(mean, beta_quantile(1 - outside / 2, one, other)) if mean < 1 else 1.0,
    )


def task_rate_variance(values: Sequence[float]) -> float:
    """Of a task's rate; right on average where repeats pass and fail alike."""
    repeats = len(values)
    small_sample_factor = (repeats + 2) / repeats * (repeats + 1) ** 2 / (repeats**2 + repeats + 1)
    return jeffreys_variance(values) * small_sample_factor


def jeffreys_variance(values: Sequence[float]) -> float:
    """The variance of the posterior that Jeffreys' prior gives."""
    repeats, hits = len(values), sum(values)
    one, other = hits + 0.5, repeats - hits + 0.5
    whole = one + other
    return one * other / (whole * whole * (whole + 1))


def jeffreys_variances(hits: Array, of: Array) -> Array:
    """The same of many tasks at once, by their sums and counts."""
    variances: Array = (hits + 0.5) * (of - hits + 0.5) / (of + 1.0) ** 2 / (of + 2.0)
    return variances
