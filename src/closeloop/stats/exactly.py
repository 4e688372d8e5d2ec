"""How far a mean over exactly these tasks may be off, from the repeats of each.

A task's noise is the variance of its rate's Jeffreys posterior, widened for the few repeats it is
estimated from. All tasks together vary no more than as many attempts of one rate would (Hoeffding
1956). Attempts are added, half of them passes, so that a clean sheet is not taken for certainty
(Agresti and Coull 1998; Agresti and Caffo 2000). Values between 0 and 1 that are no yes or no vary
less than this allows for, so their bounds are safe. docs/decisions tells why.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from closeloop.model.record import Record


class Noisy(Record):
    """A mean, and the middle and the variance of what it may really be."""

    mean: float
    middle: float
    variance: float


def noisy(tasks: Sequence[Sequence[float]], added: float) -> Noisy:
    """Of tasks, each with the values of its repeats; with so many attempts added."""
    mean = fmean(map(fmean, tasks))
    attempts = len(tasks) ** 2 / sum(1 / len(repeats) for repeats in tasks)
    middle = (mean * attempts + added / 2) / (attempts + added)
    seen = sum(map(variance, tasks)) / len(tasks) ** 2
    most = middle * (1 - middle) / attempts
    return Noisy(
        mean=mean,
        middle=middle,
        variance=min(seen, most) * attempts / (attempts + added),
    )


def variance(values: Sequence[float]) -> float:
    """Of a task's rate; right on average where repeats pass and fail alike."""
    repeats = len(values)
    few = (repeats + 2) / repeats * (repeats + 1) ** 2 / (repeats**2 + repeats + 1)
    return jeffreys(values) * few


def jeffreys(values: Sequence[float]) -> float:
    """The variance of the posterior that Jeffreys' prior gives."""
    repeats, hits = len(values), sum(values)
    one, other = hits + 0.5, repeats - hits + 0.5
    whole = one + other
    return one * other / (whole * whole * (whole + 1))
