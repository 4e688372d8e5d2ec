"""Values in the order of time: rolling windows, and where they changed. Observational."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log, pi, sqrt
from typing import TYPE_CHECKING, Any

from closeloop.records.errors import BadInput
from closeloop.records.estimate import ChangePoint, Estimate, WindowEstimate
from closeloop.statistics.agreement import estimate_proportion
from closeloop.statistics.rate_estimate import normal_tail, t_quantile

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]
    Row = Sequence[float] | Array


MIN_ITEMS = 5
"""Items: fewer are drawn faint, and no change is looked for beside fewer."""
SIGNIFICANCE = 0.05


def rolling_windows(
    moments: Row, values: Row, width: float, ends: Sequence[float]
) -> list[WindowEstimate]:
    """Of each stretch of that width, the mean; stretches without items are not there."""
    import numpy as np

    at, row = np.asarray(moments, np.float64), _require_finite(values)
    order = np.argsort(at, kind="stable")
    at, row = at[order], row[order]
    window_means = []
    for end in ends:
        inside = row[slice(*np.searchsorted(at, (end - width, end), side="right"))]
        if mean := estimate_mean(inside):
            window_means.append(
                WindowEstimate(end=end, estimate=mean, faint=len(inside) < MIN_ITEMS)
            )
    return window_means


def estimate_mean(values: Row) -> Estimate | None:
    """Of independent items: Wilson for shares, else t. None where nothing shows the noise."""
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
    half = t_quantile(0.975, count - 1) * sqrt(float(row.var(ddof=1)) / count)
    return Estimate(value=value, low=value - half, high=value + half, n=count, method="t")


def _require_finite(values: Row) -> Array:
    import numpy as np

    row = np.asarray(values, np.float64)
    if not np.isfinite(row).all():
        raise BadInput("A trend has a value that is no number: leave out what is not known.")
    return row


def find_change_points(values: Row) -> list[ChangePoint]:
    """Where the mean changed: the most evident cut first, then each part by itself."""
    row = _require_finite(values)
    change_points, parts = [], [(0, len(row))]
    while parts:
        first, last = parts.pop()
        best = _best_cut(row[first:last])
        if best is not None:
            at = first + best[0]
            before, after = estimate_mean(row[first:at]), estimate_mean(row[at:last])
            assert before is not None
            assert after is not None
            change_points.append(ChangePoint(at=at, before=before, after=after, p=best[1]))
            parts += [(first, at), (at, last)]
    return sorted(change_points, key=lambda change: change.at)


def _best_cut(row: Array) -> tuple[int, float] | None:
    """The most evident cut and its p; None where it could be chance."""
    import numpy as np

    count = len(row)
    if count < 2 * MIN_ITEMS:
        return None
    if row.min() == row.max():
        return None
    noise = float(row.var(ddof=1))
    places = np.arange(MIN_ITEMS, count - MIN_ITEMS + 1)
    sums = np.cumsum(row - row.mean())[places - 1]
    distance = np.abs(sums) / np.sqrt(noise * places * (count - places) / count)
    best = int(np.argmax(distance))
    p = _largest_distance_p(float(distance[best]), MIN_ITEMS / count, len(places))
    return (int(places[best]), p) if p < SIGNIFICANCE else None


def _largest_distance_p(distance: float, margin: float, places: int) -> float:
    """The chance of so large a largest distance (Miller and Siegmund 1982, or Bonferroni)."""
    single = min(1.0, places * 2 * normal_tail(distance))
    if distance <= 1:
        return 1.0
    density = exp(-distance * distance / 2) / sqrt(2 * pi)
    odds = ((1 - margin) / margin) ** 2
    joint = density * ((distance - 1 / distance) * log(odds) + 4 / distance)
    return min(single, joint)


# Many p-values at once: how much smaller each must be for all to hold together.


def adjust_holm(tests: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values; with those under 0.05 called, one false call in twenty runs at most."""
    adjusted, least = {}, 0.0
    ordered = sorted(tests, key=tests.__getitem__)
    for place, name in enumerate(ordered):
        least = max(least, min(1.0, tests[name] * (len(ordered) - place)))
        adjusted[name] = least
    return {name: adjusted[name] for name in tests}


def adjust_benjamini_hochberg(tests: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values; of those under 0.05, one in twenty is expected to be false."""
    adjusted, most = {}, 1.0
    ordered = sorted(tests, key=tests.__getitem__)
    for place, name in reversed(list(enumerate(ordered, 1))):
        most = min(most, tests[name] * (len(ordered) / place))
        adjusted[name] = most
    return {name: adjusted[name] for name in tests}
