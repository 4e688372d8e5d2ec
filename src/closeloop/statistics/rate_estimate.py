"""Rates on exactly these tasks and on tasks like these; the base of all estimators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import comb, isfinite, pi, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Any

from closeloop.records.errors import BadInput
from closeloop.records.estimate import Z95, Estimate, TwoEstimates
from closeloop.records.record import Record
from closeloop.statistics.special_functions import beta_quantile, log_beta, log_gamma

if TYPE_CHECKING:
    import numpy as np

    Grid = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    Array = np.ndarray[Any, np.dtype[Any]]


# The input of estimators: for each task, the values of its scored repeats.

TaskValues = Mapping[str, Sequence[float]]
"""Task → the values of its repeats. Unscored ones are left out, never 0."""


def common_tasks(first: TaskValues, second: TaskValues) -> list[str]:
    """Return the tasks for which both have a value."""
    return [task for task in first if len(first[task]) and len(second.get(task, ()))]


def check_shares(values: TaskValues) -> None:
    """Require values from 0 to 1."""
    for task, repeats in values.items():
        for value in repeats:
            if not 0 <= value <= 1:
                raise BadInput(
                    f"Task {task!r} has the value {value}, but a rate needs values from 0 to 1."
                )


def check_finite(values: TaskValues) -> None:
    """Require finite numbers."""
    for task, repeats in values.items():
        for value in repeats:
            if not isfinite(value):
                raise BadInput(
                    f"{task!r} has the value {value}, which is not a number: leave it out."
                )


# The posterior of a rate over tasks like these, when tasks differ: a beta-binomial on a grid.

COARSE, FINE = (48, 24), (240, 40)
"""Grid points for the mean rate, and for the spread of tasks around it: 1 is all or nothing."""
NEGLIGIBLE_WEIGHT = 1e-7
"""Relative to the largest weight; smaller cells of the coarse grid are not refined."""


def beta_binomial_bounds(values: TaskValues) -> tuple[float, float]:
    """Return the 95 % bounds of the mean rate.

    Rates are spaced by their angles, where equal weights are Jeffreys' prior; the spread of tasks
    is uniform from 0 to 1.
    """
    import numpy as np

    # Scores are rounded to a twentieth of a repeat, so that few counts differ; passes stay whole.
    tasks = [(round(sum(repeats) * 20) / 20, len(repeats)) for repeats in values.values()]
    counts = (
        Counter(hits for hits, _ in tasks),
        Counter(total - hits for hits, total in tasks),
        Counter(float(total) for _, total in tasks),
    )
    angles, spreads = np.linspace(0, pi / 2, COARSE[0] + 1), np.linspace(0, 1, COARSE[1] + 1)
    for points in (COARSE, FINE):
        weights = _cell_weights(counts, angles, spreads)
        angles = _refine_edges(angles, weights.sum(axis=1), points[0])
        spreads = _refine_edges(spreads, weights.sum(axis=0), points[1])
    rate_weights = _cell_weights(counts, angles, spreads).sum(axis=1)
    cumulative_weights = np.concatenate([[0.0], np.cumsum(rate_weights / rate_weights.sum())])
    low, high = np.interp((0.025, 0.975), cumulative_weights, angles)
    return float(np.sin(low) ** 2), float(np.sin(high) ** 2)


def _cell_weights(counts: Sequence[Counter[float]], angles: Grid, spreads: Grid) -> Grid:
    """Return the likelihood of the counts at the centre of each cell, scaled to a maximum of 1."""
    import numpy as np

    rates = np.sin((angles[1:] + angles[:-1]) / 2) ** 2
    middles = (spreads[1:] + spreads[:-1]) / 2
    size = 1 / middles - 1
    log_likelihood = np.zeros((len(rates), len(size)))
    # The beta functions of all tasks, taken apart: equal counts are computed once.
    for prior, occurrences, sign in zip(
        (np.outer(rates, size), np.outer(1 - rates, size), size), counts, (1, 1, -1), strict=True
    ):
        prior_term = log_gamma(prior)
        log_likelihood -= sign * occurrences.total() * prior_term
        for number, times in occurrences.items():
            term = log_gamma(prior + number) if number else prior_term
            log_likelihood += sign * times * term
    weights: Grid = np.exp(log_likelihood - log_likelihood.max())
    return weights


def _refine_edges(edges: Grid, weights: Grid, points: int) -> Grid:
    """Return the edges of finer cells where there is weight, with one cell more on each side."""
    import numpy as np

    weighty_cells = np.flatnonzero(weights > NEGLIGIBLE_WEIGHT * weights.max())
    first, last = max(0, weighty_cells[0] - 1), min(len(edges) - 1, weighty_cells[-1] + 2)
    refined_edges: Grid = np.linspace(edges[first], edges[last], points + 1)
    return refined_edges


# The uncertainty of a mean over exactly these tasks, from the repeats of each.
#
# A task's noise is the variance of its rate's Jeffreys posterior, widened for the few repeats it
# is estimated from. All tasks together vary no more than as many attempts of one rate would
# (Hoeffding 1956), so bounds are those of Jeffreys' posterior after as many attempts of one rate
# as vary like these. Values between 0 and 1 that are no yes or no vary less than this allows for,
# so their bounds are safe. docs/decisions tells why.


class NoisyMean(Record):
    """A mean, and the number of attempts with equal noise."""

    mean: float
    attempts: float


def estimate_noisy_mean(tasks: Sequence[Sequence[float]]) -> NoisyMean:
    """Estimate the mean over tasks, each with the values of its repeats."""
    mean = fmean(map(fmean, tasks))
    attempts = len(tasks) ** 2 / sum(1 / len(repeats) for repeats in tasks)
    mean_variance = sum(map(task_rate_variance, tasks)) / len(tasks) ** 2
    return NoisyMean(mean=mean, attempts=max(attempts, mean * (1 - mean) / mean_variance))


def posterior_bounds(mean: float, attempts: float, alpha: float = 0.05) -> tuple[float, float]:
    """Return the bounds of a rate by Jeffreys' prior (Brown and others 2001).

    If all attempts have the same result, they reach 0 or 1.
    """
    a, b = mean * attempts + 0.5, (1 - mean) * attempts + 0.5
    return (
        min(mean, beta_quantile(alpha / 2, a, b)) if mean > 0 else 0.0,
        max(mean, beta_quantile(1 - alpha / 2, a, b)) if mean < 1 else 1.0,
    )


def task_rate_variance(values: Sequence[float]) -> float:
    """Return the variance of a task's rate; unbiased if repeats both pass and fail."""
    repeats = len(values)
    small_sample_factor = (repeats + 2) / repeats * (repeats + 1) ** 2 / (repeats**2 + repeats + 1)
    return jeffreys_variance(values) * small_sample_factor


def jeffreys_variance(values: Sequence[float]) -> float:
    """Return the variance of the posterior under Jeffreys' prior."""
    repeats, hits = len(values), sum(values)
    a, b = hits + 0.5, repeats - hits + 0.5
    total = a + b
    return a * b / (total * total * (total + 1))


def jeffreys_variances(hits: Array, totals: Array) -> Array:
    """Return the same for many tasks at once, from sums and counts."""
    variances: Array = (hits + 0.5) * (totals - hits + 0.5) / (totals + 1.0) ** 2 / (totals + 2.0)
    return variances


def estimate_rate(values: TaskValues) -> TwoEstimates | None:
    """None if nothing was scored."""
    check_shares(values)
    scored = {task: repeats for task, repeats in values.items() if len(repeats)}
    if not scored:
        return None
    return TwoEstimates(
        here=rate_on_these_tasks(scored),
        alike=rate_on_like_tasks(scored),
        attempts=sum(len(repeats) for repeats in scored.values()),
    )


def rate_on_these_tasks(values: TaskValues) -> Estimate:
    noisy_mean = estimate_noisy_mean(list(values.values()))
    low, high = posterior_bounds(noisy_mean.mean, noisy_mean.attempts)
    return Estimate(
        value=noisy_mean.mean, low=low, high=high, n=len(values), method="noise of repeats"
    )


def rate_on_like_tasks(values: TaskValues) -> Estimate:
    """Estimate the rate on tasks like these, each with at least one value from 0 to 1."""
    check_shares(values)
    value = fmean(fmean(repeats) for repeats in values.values())
    low, high = beta_binomial_bounds(values)
    return Estimate(
        value=value,
        low=min(low, value),
        high=max(high, value),
        n=len(values),
        method="beta-binomial posterior",
    )


# Of k repeats, does one pass (pass@k), do all (pass^k)? Unbiased, on exactly these tasks.


def estimate_pass_at_k(values: TaskValues, k: int) -> Estimate | None:
    """Return the probability that at least one of k repeats passes, over tasks with k or more."""
    return _estimate_over_tasks(
        values, k, f"pass@{k}", lambda n, hits: 1 - all_hits_share(n, n - hits, k), True
    )


def estimate_pass_all_k(values: TaskValues, k: int) -> Estimate | None:
    """Return the probability that each of k repeats passes, over tasks with k or more."""
    return _estimate_over_tasks(
        values, k, f"pass^{k}", lambda n, hits: all_hits_share(n, hits, k), False
    )


def all_hits_share(n: int, hits: int, k: int) -> float:
    """Return the share of choices of k from n that are all hits."""
    return comb(hits, k) / comb(n, k)


def _estimate_over_tasks(
    values: TaskValues, k: int, name: str, unbiased: Callable[[int, int], float], misses: bool
) -> Estimate | None:
    if k < 1:
        raise BadInput(f"{name} is not defined: use at least one repeat.")
    if not all(map({0, 1}.issuperset, values.values())):
        raise BadInput(f"{name} counts passes: use values of 0 and 1.")
    repeat_counts = [
        (len(repeats), int(sum(repeats))) for repeats in values.values() if len(repeats) >= k
    ]
    if not repeat_counts:
        return None
    value = fmean(unbiased(n, hits) for n, hits in repeat_counts)
    noise = sum(
        times * _estimator_variance(n, n - hits if misses else hits, k)
        for (n, hits), times in Counter(repeat_counts).items()
    )
    half_width = Z95 * sqrt(noise) / len(repeat_counts)
    return Estimate(
        value=value,
        low=max(0.0, value - half_width),
        high=min(1.0, value + half_width),
        n=len(repeat_counts),
        method=f"unbiased {name}, noise of repeats",
    )


@lru_cache(maxsize=4096)
def _estimator_variance(n: int, hits: int, k: int) -> float:
    """Of the unbiased estimator, over what the task's rate may be by its Jeffreys posterior.

    Widened for few repeats, as `exactly.variance` is, which it equals for one repeat.
    """
    import numpy as np

    a, b = hits + 0.5, n - hits + 0.5
    numbers = np.arange(k, n + 1)
    choices = log_gamma(n + 1) - log_gamma(numbers + 1) - log_gamma(n - numbers + 1)
    chances = choices + log_beta(numbers + a, n - numbers + b) - log_beta(a, b)
    shares = (
        log_gamma(numbers + 1)
        - log_gamma(numbers - k + 1)
        - log_gamma(n + 1)
        + log_gamma(n - k + 1)
    )
    square = float(np.exp(chances + 2 * shares).sum())
    mean = float(np.exp(log_beta(a + 2 * k, b) - log_beta(a, b)))
    return max(0.0, square - mean) * (n + 2) * (n + 1) / (n * n + n + 1)
