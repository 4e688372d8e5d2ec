"""Distributions, special functions and logistic regression, in Python and numpy alone.

Scalars agree with published tables to about 12 digits; `log_gamma` accepts arrays. The incomplete
beta function is Lentz's continued fraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb, erfc, exp, inf, isinf, lgamma, log, log1p, pi, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[Any]]

MAX_STEPS = 100_000
TINY = 1e-300
EXACT_TRIALS = 1000
"""Up to this many trials a binomial share is computed with integers."""
STIRLING = (
    8.33333333333333333333e-2,
    -2.77777777777777777778e-3,
    7.93650793650793650794e-4,
    -5.95238095238095238095e-4,
    8.41750841750841750842e-4,
    -1.91752691752691752692e-3,
    6.41025641025641025641e-3,
)
"""B(2k) / (2k (2k − 1)): the series of the log-gamma function."""
STIRLING_FROM = 12
"""From here on these terms of the series are exact."""


def log_gamma(values: Floats | float) -> Floats:
    """Return the logarithm of the gamma function of positive numbers."""
    import numpy as np

    values = np.asarray(values, dtype=float)
    # Γ(x + n) = x (x + 1) … Γ(x): small numbers are moved to where the series is exact.
    is_small = values < STIRLING_FROM
    small = values[is_small]
    product = small.copy()
    for shift in range(1, STIRLING_FROM):
        product *= small + shift
    large = values.copy()
    large[is_small] += STIRLING_FROM
    inverse = 1 / large
    square = inverse * inverse
    series = np.zeros_like(values)
    for coefficient in reversed(STIRLING):
        series = series * square + coefficient
    logs = (large - 0.5) * np.log(large) - large + log(2 * pi) / 2 + series * inverse
    result: Floats = np.asarray(logs)
    result[is_small] -= np.log(product)
    return result


def log_beta(a: Floats | float, b: Floats | float) -> Floats:
    """Return the logarithm of the beta function of positive numbers."""
    import numpy as np

    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return log_gamma(first) + log_gamma(second) - log_gamma(first + second)


def normal_tail(value: float) -> float:
    """Return the share above a value."""
    return erfc(value / sqrt(2)) / 2


def beta_share(value: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function: a distribution's share below a value."""
    if value <= 0 or value >= 1:
        return 0.0 if value <= 0 else 1.0
    if value > (a + 1) / (a + b + 2):
        return 1.0 - beta_share_small(1 - value, b, a)
    return beta_share_small(value, a, b)


def beta_share_small(value: float, a: float, b: float) -> float:
    """Return it below the mean, where the continued fraction converges quickly."""
    log_front = a * log(value) + b * log1p(-value) - (lgamma(a) + lgamma(b) - lgamma(a + b))
    numerator, denominator = 1.0, 1 - (a + b) * value / (a + 1)
    denominator = 1 / (denominator if abs(denominator) > TINY else TINY)
    result = denominator
    for step in range(1, MAX_STEPS):
        twice = a + 2 * step
        even = step * (b - step) * value / ((twice - 1) * twice)
        odd = -(a + step) * (a + b + step) * value / (twice * (twice + 1))
        for term in (even, odd):
            denominator = 1 + term * denominator
            denominator = 1 / (denominator if abs(denominator) > TINY else TINY)
            numerator = 1 + term / numerator
            numerator = numerator if abs(numerator) > TINY else TINY
            factor = denominator * numerator
            result *= factor
        if abs(factor - 1) < 1e-16:
            break
    return exp(log_front) * result / a


@lru_cache(maxsize=4096)
def beta_quantile(share: float, a: float, b: float) -> float:
    """Return the quantile of a beta distribution."""
    if share <= 0 or share >= 1:
        return 0.0 if share <= 0 else 1.0
    low, high = 0.0, 1.0
    value = a / (a + b)
    log_scale = lgamma(a) + lgamma(b) - lgamma(a + b)
    for _ in range(200):
        error = beta_share(value, a, b) - share
        low, high = (low, value) if error > 0 else (value, high)
        density = exp((a - 1) * log(value) + (b - 1) * log1p(-value) - log_scale)
        # Newton's step where it stays inside, else the middle.
        step = value - error / density if density > 0 else inf
        step = step if low < step < high else (low + high) / 2
        if abs(step - value) <= 1e-15 * value:
            return step
        value = step
    return value


def t_tails(value: float, freedom: float) -> float:
    """Return the two-sided tail of Student's t."""
    if isinf(freedom):
        return 2 * normal_tail(abs(value))
    square = value * value
    if square < freedom:
        return 1.0 - beta_share(square / (freedom + square), 0.5, freedom / 2)
    return beta_share(freedom / (freedom + square), freedom / 2, 0.5)


@lru_cache(maxsize=4096)
def t_quantile(share: float, freedom: float) -> float:
    """Return the quantile of Student's t."""
    if isinf(freedom):
        return NormalDist().inv_cdf(share)
    if share == 0.5:
        return 0.0
    if share < 0.5:
        return -t_quantile(1 - share, freedom)
    tails, low, high = 2 * (1 - share), 0.0, 1.0
    while t_tails(high, freedom) > tails:
        low, high = high, high * 2
    log_scale = lgamma((freedom + 1) / 2) - lgamma(freedom / 2) - log(freedom * pi) / 2
    value = (low + high) / 2
    for _ in range(200):
        error = t_tails(value, freedom) - tails
        low, high = (value, high) if error > 0 else (low, value)
        density = 2 * exp(log_scale - (freedom + 1) / 2 * log1p(value * value / freedom))
        step = value + error / density if density > 0 else inf
        step = step if low < step < high else (low + high) / 2
        if abs(step - value) <= 1e-15 * value:
            return step
        value = step
    return value


def binomial_share(hits: int, total: int) -> float:
    """Return the probability of at most this many hits with p = 0.5."""
    if hits >= total:
        return 1.0
    if hits < 0:
        return 0.0
    if total > EXACT_TRIALS:
        return beta_share(0.5, total - hits, hits + 1)
    return sum(comb(total, number) for number in range(hits + 1)) / (1 << total)


def chi_square_tail(value: float, freedom: int) -> float:
    """Return the upper tail of a chi-square distribution."""
    if value <= 0:
        return 1.0
    half = value / 2
    # Both end in closed sums: the even freedoms from an exponential, the odd ones from erfc.
    total, shape = (0.0, 0.0) if freedom % 2 == 0 else (erfc(sqrt(half)), 0.5)
    while shape < freedom / 2:
        total += exp(shape * log(half) - half - lgamma(shape + 1))
        shape += 1
    return total


# Logistic regression with a ridge towards prior weights, and the quality of its estimates.

MAX_ROUNDS = 50
MAX_STEP = 4.0
CALIBRATION_BINS = 10


def fit_ridge_logistic(
    rows: Floats,
    outcomes: Floats,
    penalty: Floats,
    towards: Floats | None = None,
    counts: Floats | None = None,
) -> Floats:
    """The weights of the columns: most likely, less `penalty`/2 × their squared way from `towards`.

    `counts` is how often each row counts. There is no constant: give a column of ones for it.
    """
    import numpy as np

    start = np.zeros(rows.shape[1]) if towards is None else np.asarray(towards, np.float64)
    times = np.ones(len(rows)) if counts is None else counts
    weights = start.copy()
    for _ in range(MAX_ROUNDS):
        chances = sigmoid(rows @ weights)
        gradient = rows.T @ (times * (outcomes - chances)) - penalty * (weights - start)
        spread = times * chances * (1 - chances)
        curvature = (rows.T * spread) @ rows + np.diag(np.maximum(penalty, 1e-9))
        step = np.clip(np.linalg.solve(curvature, gradient), -MAX_STEP, MAX_STEP)
        weights = weights + step
        if np.abs(step).max(initial=0.0) < 1e-8:
            break
    return weights


def sigmoid(logits: Floats) -> Floats:
    """Convert log odds to probabilities."""
    import numpy as np

    chances: Floats = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
    return chances


def roc_auc(scores: Sequence[float], outcomes: Sequence[bool]) -> float | None:
    """Return the probability that a hit scores above a miss; ties count half."""
    positives = sum(outcomes)
    negatives = len(outcomes) - positives
    if not positives or not negatives:
        return None
    ordered = sorted(zip(scores, outcomes, strict=True))
    rank_sum, start = 0.0, 0
    while start < len(ordered):
        end = start
        while end < len(ordered) and ordered[end][0] == ordered[start][0]:
            end += 1
        rank_sum += (start + 1 + end) / 2 * sum(hit for _, hit in ordered[start:end])
        start = end
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def calibration_error(chances: Sequence[float], outcomes: Sequence[bool]) -> float | None:
    """Return the expected calibration error in ten bins of equal width."""
    if not chances:
        return None
    bins: dict[int, list[float]] = {}
    for chance, hit in zip(chances, outcomes, strict=True):
        bins.setdefault(min(int(chance * CALIBRATION_BINS), CALIBRATION_BINS - 1), []).append(
            chance - hit
        )
    return sum(abs(sum(gaps)) for gaps in bins.values()) / len(chances)
