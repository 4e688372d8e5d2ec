"""Values in the order of time: rolling windows, and where they changed. Observational."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, pi, sqrt
from statistics import fmean, variance

from closeloop.model.estimate import Change, Estimate, Window
from closeloop.stats.agreement import proportion
from closeloop.stats.distributions import normal_tail, t_quantile
from closeloop.stats.values import check_finite

FAINT = 5
"""Items: fewer are drawn faint, and no change is looked for beside fewer."""
SIGNIFICANCE = 0.05

Points = Sequence[tuple[float, float]]
"""When, and what."""


def windows(points: Points, width: float, ends: Sequence[float]) -> list[Window]:
    """Of each stretch of that width, the mean; stretches without items are not there."""
    check_finite({"trend": [value for _, value in points]})
    points, found = sorted(points), []
    first = last = 0
    for end in ends:
        while last < len(points) and points[last][0] <= end:
            last += 1
        while first < last and points[first][0] <= end - width:
            first += 1
        inside = [value for _, value in points[first:last]]
        if mean := mean_of(inside):
            found.append(Window(end=end, estimate=mean, faint=len(inside) < FAINT))
    return found


def mean_of(values: Sequence[float]) -> Estimate | None:
    """Of independent items: Wilson for shares, else t. None where nothing shows the noise."""
    if not len(values):
        return None
    if all(0 <= value <= 1 for value in values):
        return proportion(sum(values), len(values))
    if len(values) < 2:
        return None
    value, half = (
        fmean(values),
        t_quantile(0.975, len(values) - 1) * sqrt(variance(values) / len(values)),
    )
    return Estimate(value=value, low=value - half, high=value + half, n=len(values), method="t")


def changes(values: Sequence[float]) -> list[Change]:
    """Where the mean changed: the most evident cut first, then each part by itself."""
    check_finite({"trend": values})
    found, parts = [], [(0, len(values))]
    while parts:
        first, last = parts.pop()
        best = _best(values[first:last])
        if best is not None:
            at = first + best[0]
            before, after = mean_of(values[first:at]), mean_of(values[at:last])
            assert before is not None
            assert after is not None
            found.append(Change(at=at, before=before, after=after, p=best[1]))
            parts += [(first, at), (at, last)]
    return sorted(found, key=lambda change: change.at)


def _best(values: Sequence[float]) -> tuple[int, float] | None:
    """The most evident cut and its p; None where it could be chance."""
    import numpy as np

    count = len(values)
    if count < 2 * FAINT:
        return None
    row = np.asarray(values, dtype=np.float64)
    if row.min() == row.max():
        return None
    noise = float(row.var(ddof=1))
    places = np.arange(FAINT, count - FAINT + 1)
    sums = np.cumsum(row - row.mean())[places - 1]
    distance = np.abs(sums) / np.sqrt(noise * places * (count - places) / count)
    best = int(np.argmax(distance))
    p = _largest(float(distance[best]), FAINT / count, len(places))
    return (int(places[best]), p) if p < SIGNIFICANCE else None


def _largest(distance: float, margin: float, places: int) -> float:
    """The chance of so large a largest distance (Miller and Siegmund 1982, or Bonferroni)."""
    single = min(1.0, places * 2 * normal_tail(distance))
    if distance <= 1:
        return 1.0
    density = exp(-distance * distance / 2) / sqrt(2 * pi)
    odds = ((1 - margin) / margin) ** 2
    joint = density * ((distance - 1 / distance) * log(odds) + 4 / distance)
    return min(single, joint)
