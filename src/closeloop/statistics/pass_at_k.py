"""Of k repeats, does one pass (pass@k), do all (pass^k)? Unbiased, on exactly these tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import comb, sqrt
from statistics import fmean

from closeloop.records.errors import BadInput
from closeloop.records.estimate import Estimate
from closeloop.statistics.distributions import Z95
from closeloop.statistics.task_values import TaskValues


def estimate_pass_at_k(values: TaskValues, k: int) -> Estimate | None:
    """The chance that at least one of k repeats passes, over tasks with k or more."""
    return _estimate_over_tasks(
        values, k, f"pass@{k}", lambda n, hits: 1 - all_hits_share(n, n - hits, k), True
    )


def estimate_pass_all_k(values: TaskValues, k: int) -> Estimate | None:
    """The chance that each of k repeats passes, over tasks with k or more."""
    return _estimate_over_tasks(
        values, k, f"pass^{k}", lambda n, hits: all_hits_share(n, hits, k), False
    )


def all_hits_share(n: int, hits: int, k: int) -> float:
    """The share of the choices of k from n that are all hits."""
    return comb(hits, k) / comb(n, k)


def _estimate_over_tasks(
    values: TaskValues, k: int, name: str, unbiased: Callable[[int, int], float], misses: bool
) -> Estimate | None:
    if k < 1:
        raise BadInput(f"{name} has no meaning: ask for one repeat or more.")
    if any(value not in (0, 1) for repeats in values.values() for value in repeats):
        raise BadInput(f"{name} counts passes: give values of 0 and 1.")
    repeat_counts = [(len(one), int(sum(one))) for one in values.values() if len(one) >= k]
    if not repeat_counts:
        return None
    value = fmean(unbiased(n, hits) for n, hits in repeat_counts)
    noise = sum(
        times * _estimator_variance(n, n - hits if misses else hits, k)
        for (n, hits), times in Counter(repeat_counts).items()
    )
    half = Z95 * sqrt(noise) / len(repeat_counts)
    return Estimate(
        value=value,
        low=max(0.0, value - half),
        high=min(1.0, value + half),
        n=len(repeat_counts),
        method=f"unbiased {name}, noise of repeats",
    )


def _estimator_variance(n: int, hits: int, k: int) -> float:
    """Of the unbiased estimator, over what the task's rate may be by its Jeffreys posterior.

    Widened for few repeats, as `exactly.variance` is, which it equals for one repeat.
    """
    import numpy as np
    from scipy.special import betaln, gammaln  # type: ignore[import-untyped]

    one, other = hits + 0.5, n - hits + 0.5
    numbers = np.arange(k, n + 1)
    choices = gammaln(n + 1) - gammaln(numbers + 1) - gammaln(n - numbers + 1)
    chances = choices + betaln(numbers + one, n - numbers + other) - betaln(one, other)
    shares = gammaln(numbers + 1) - gammaln(numbers - k + 1) - gammaln(n + 1) + gammaln(n - k + 1)
    square = float(np.exp(chances + 2 * shares).sum())
    mean = float(np.exp(betaln(one + 2 * k, other) - betaln(one, other)))
    return max(0.0, square - mean) * (n + 2) * (n + 1) / (n * n + n + 1)
