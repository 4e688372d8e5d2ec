"""Values in time order: change points, and bounds that hold at every look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, isclose, lgamma, log, pi, sqrt
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from closeloop.records.errors import BadInput
from closeloop.records.estimate import (
    ChangePoint,
    Estimate,
    SampleRatio,
    WindowEstimate,
    WindowMean,
)
from closeloop.statistics.agreement import estimate_proportion
from closeloop.statistics.special_functions import (
    chi_square_tail,
    log_gamma,
    normal_tail,
    t_quantile,
)

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]
    Row = Sequence[float] | Array
    Readings = np.ndarray[tuple[int], np.dtype[np.float64]]


MIN_ITEMS = 5
"""Fewer items are drawn faint, and no change point is sought beside fewer."""
SIGNIFICANCE = 0.05


def rolling_windows(
    moments: Row, values: Row, width: float, ends: Sequence[float]
) -> list[WindowEstimate]:
    """Return the mean of each window of that width; empty windows are left out."""
    import numpy as np

    times, row = np.asarray(moments, np.float64), _require_finite(values)
    order = np.argsort(times, kind="stable")
    times, row = times[order], row[order]
    window_means = []
    for end in ends:
        window = row[slice(*np.searchsorted(times, (end - width, end), side="right"))]
        if len(window):
            mean = _estimate_window(window)
            window_means.append(
                WindowEstimate(end=end, estimate=mean, faint=len(window) < MIN_ITEMS)
            )
    return window_means


def _estimate_window(window: Array) -> WindowMean:
    """Without bounds if nothing shows the noise; it is then drawn faint."""
    mean = estimate_mean(window)
    if mean is None:
        return WindowMean(value=float(window.mean()), n=len(window), method="one item: no bounds")
    return WindowMean(value=mean.value, low=mean.low, high=mean.high, n=mean.n, method=mean.method)


def estimate_mean(values: Row) -> Estimate | None:
    """Estimate the mean of independent items: Wilson for shares, else t. None if noise is
    unknown."""
    import numpy as np

    row = np.asarray(values, np.float64)
    count = len(row)
    if not count:
        return None
    if row.min() >= 0 and row.max() <= 1:
        return estimate_proportion(float(row.sum()), count)
    if count < 2:
        return None
    value = float(row.mean())
    half_width = t_quantile(0.975, count - 1) * sqrt(float(row.var(ddof=1)) / count)
    return Estimate(
        value=value, low=value - half_width, high=value + half_width, n=count, method="t"
    )


def _require_finite(values: Row) -> Array:
    import numpy as np

    row = np.asarray(values, np.float64)
    if not np.isfinite(row).all():
        raise BadInput("A trend has a value that is not a number: leave it out.")
    return row


def find_change_points(values: Row) -> list[ChangePoint]:
    """Find where the mean changed: the clearest split first, then each part."""
    row = _require_finite(values)
    change_points, parts = [], [(0, len(row))]
    while parts:
        first, last = parts.pop()
        best = _best_cut(row[first:last])
        if best is not None:
            cut = first + best[0]
            before, after = estimate_mean(row[first:cut]), estimate_mean(row[cut:last])
            assert before is not None
            assert after is not None
            change_points.append(ChangePoint(at=cut, before=before, after=after, p=best[1]))
            parts += [(first, cut), (cut, last)]
    return sorted(change_points, key=lambda change: change.at)


def _best_cut(row: Array) -> tuple[int, float] | None:
    """Return the clearest split and its p; None if it could be chance."""
    import numpy as np

    count = len(row)
    if count < 2 * MIN_ITEMS:
        return None
    if row.min() == row.max():
        return None
    noise = float(row.var(ddof=1))
    cuts = np.arange(MIN_ITEMS, count - MIN_ITEMS + 1)
    sums = np.cumsum(row - row.mean())[cuts - 1]
    distance = np.abs(sums) / np.sqrt(noise * cuts * (count - cuts) / count)
    best = int(np.argmax(distance))
    p = _largest_distance_p(float(distance[best]), MIN_ITEMS / count, len(cuts))
    return (int(cuts[best]), p) if p < SIGNIFICANCE else None


def _largest_distance_p(distance: float, margin: float, cut_count: int) -> float:
    """Return the probability of such a maximum (Miller and Siegmund 1982, or Bonferroni)."""
    single = min(1.0, cut_count * 2 * normal_tail(distance))
    if distance <= 1:
        return 1.0
    density = exp(-distance * distance / 2) / sqrt(2 * pi)
    odds = ((1 - margin) / margin) ** 2
    joint = density * ((distance - 1 / distance) * log(odds) + 4 / distance)
    return min(single, joint)


# Adjust many p-values at once, for all of them to hold together.


def adjust_holm(tests: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted so that at most 5 % of runs have a false one under 0.05."""
    adjusted, largest = {}, 0.0
    ordered = sorted(tests, key=tests.__getitem__)
    for rank, name in enumerate(ordered):
        largest = max(largest, min(1.0, tests[name] * (len(ordered) - rank)))
        adjusted[name] = largest
    return {name: adjusted[name] for name in tests}


def adjust_benjamini_hochberg(tests: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted so that of those under 0.05, 5 % are expected to be false."""
    adjusted, smallest = {}, 1.0
    ordered = sorted(tests, key=tests.__getitem__)
    for rank, name in reversed(list(enumerate(ordered, 1))):
        smallest = min(smallest, tests[name] * (len(ordered) / rank))
        adjusted[name] = smallest
    return {name: adjusted[name] for name in tests}


# Intervals that stay valid however often one looks, and whether work was split as planned.

ALPHA = 0.05
MAX_STAKE = 0.5
"""The largest share of the capital that may be lost at once."""
BISECTION_STEPS = 40


def estimate_running_mean(
    values: Sequence[float], *, low: float = -1.0, high: float = 1.0
) -> Estimate | None:
    """Estimate the mean of values that arrive one by one and are bounded by these limits."""
    import numpy as np

    if not len(values):
        return None
    row = (np.asarray(values, dtype=np.float64) - low) / (high - low)
    if not bool(np.all((row >= 0) & (row <= 1))):
        raise BadInput(f"A value is outside {low:g} and {high:g}: give the limits of the metric.")
    stakes = _betting_stakes(row)
    bottom, top = _lowest_unbeaten(row, stakes), 1 - _lowest_unbeaten(1 - row, stakes)
    value = float(row.mean())
    rescaled = [
        low + (high - low) * bound for bound in (value, min(value, bottom), max(value, top))
    ]
    return Estimate(
        value=rescaled[0],
        low=rescaled[1],
        high=rescaled[2],
        n=len(values),
        method="betting sequence",
    )


def monitor_difference(
    outcomes: Sequence[tuple[bool, float]], share: float = 0.5
) -> Estimate | None:
    """Return how much higher the second variant's outcomes are, from 0 to 1, in arrival order.

    Each outcome says whether the second made it; it was assigned by lot with that share.
    Two shares differ by 1 at the most: what lies beyond is not told.
    """
    if not 0 < share < 1:
        raise BadInput(f"The share must be between 0 and 1, not {share:g}.")
    if any(not 0 <= value <= 1 for _, value in outcomes):
        raise BadInput("An outcome is outside 0 and 1: use shares, not amounts.")
    total, scores = 0.5, []
    for count, (is_second, value) in enumerate(outcomes, 1):
        # The expected value of each is subtracted first: means are unchanged, and the variance
        # falls.
        surprise = value - total / count
        scores.append(surprise / share if is_second else -surprise / (1 - share))
        total += value
    limit = 1 / min(share, 1 - share)
    estimate = estimate_running_mean(scores, low=-limit, high=limit)
    if estimate is None:
        return None
    value, low, high = (
        min(1.0, max(-1.0, bound)) for bound in (estimate.value, estimate.low, estimate.high)
    )
    return replace(estimate, value=value, low=low, high=high)


def _betting_stakes(row: Readings) -> Readings:
    """Return what to bet each time, from the values seen before."""
    import numpy as np

    count = np.arange(1, len(row) + 1)
    means = (0.5 + np.cumsum(row)) / (count + 1)
    spreads = (0.25 + np.cumsum((row - means) ** 2)) / (count + 1)
    before = np.concatenate([[0.25], spreads[:-1]])
    stakes: Readings = np.sqrt(2 * log(2 / ALPHA) / (before * count * np.log(1 + count)))
    return stakes


def _lowest_unbeaten(row: Readings, stakes: Readings) -> float:
    """Return the smallest candidate that was never rejected: the gain falls as the candidate
    rises."""
    import numpy as np

    low, high = 0.0, 1.0
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        gains = np.minimum(stakes, MAX_STAKE / middle) * (row - middle)
        is_beaten = np.cumsum(np.log1p(gains)).max() >= log(2 / ALPHA)
        low, high = (middle, high) if is_beaten else (low, middle)
    return low


# Did each variant get its planned share of the work? If not, something is broken.

MIN_RATIO_P = 0.001
"""Checks run continuously, so only a p below this counts."""


def check_sample_ratio(
    counts: Mapping[str, int], shares: Mapping[str, float]
) -> SampleRatio | None:
    """Test the assignment: exact binomial for two variants, chi-square for more.

    None before any assignment.
    """
    if counts.keys() - shares.keys():
        raise BadInput(f"There is no share for {sorted(counts.keys() - shares.keys())[0]!r}.")
    if any(share <= 0 for share in shares.values()) or not isclose(sum(shares.values()), 1):
        raise BadInput("The shares of the variants must be above 0 and add up to 1.")
    total = sum(counts.values())
    if not total or len(shares) < 2:
        return None
    observed_counts = [counts.get(name, 0) for name in shares]
    if len(observed_counts) == 2:
        p, method = (
            _binomial_p(observed_counts[0], total, next(iter(shares.values()))),
            "exact binomial",
        )
    else:
        expected = [share * total for share in shares.values()]
        distance = sum(
            (observed - expected_count) ** 2 / expected_count
            for observed, expected_count in zip(observed_counts, expected, strict=True)
        )
        p, method = chi_square_tail(distance, len(observed_counts) - 1), "chi-square"
    return SampleRatio(p=p, method=method, holds=p >= MIN_RATIO_P)


def _binomial_p(hits: int, total: int, share: float) -> float:
    """Sum all counts that are no more likely than the observed one."""
    import numpy as np

    numbers = np.arange(total + 1)
    log_likelihood = lgamma(total + 1) - log_gamma(numbers + 1) - log_gamma(total - numbers + 1)
    log_likelihood += numbers * log(share) + (total - numbers) * log(1 - share)
    threshold = log_likelihood[hits] + 1e-9
    return min(1.0, float(np.exp(log_likelihood[log_likelihood <= threshold]).sum()))
