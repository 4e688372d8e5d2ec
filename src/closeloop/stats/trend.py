"""Values in the order of time: rolling windows, and where they changed. Observational."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, pi, sqrt
from typing import TYPE_CHECKING, Any

from closeloop.model.errors import BadInput
from closeloop.model.estimate import Change, Estimate, Window
from closeloop.stats.agreement import proportion
from closeloop.stats.distributions import normal_tail, t_quantile

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]
    Row = Sequence[float] | Array

FAINT = 5
"""Items: fewer are drawn faint, and no change is looked for beside fewer."""
SIGNIFICANCE = 0.05


def windows(moments: Row, values: Row, width: float, ends: Sequence[float]) -> list[Window]:
    """Of each stretch of that width, the mean; stretches without items are not there."""
    import numpy as np

    at, row = np.asarray(moments, np.float64), _finite(values)
    order = np.argsort(at, kind="stable")
    at, row = at[order], row[order]
    found = []
    for end in ends:
        inside = row[slice(*np.searchsorted(at, (end - width, end), side="right"))]
        if mean := mean_of(inside):
            found.append(Window(end=end, estimate=mean, faint=len(inside) < FAINT))
    return found


def mean_of(values: Row) -> Estimate | None:
    """Of independent items: Wilson for shares, else t. None where nothing shows the noise."""
    import numpy as np

    row = np.asarray(values, np.float64)
    count = len(row)
    if not count:
        return None
    if row.min() >= 0 and row.max() <= 1:
        return proportion(float(row.sum()), count)
    if count < 2:
        return None
    value = float(row.mean())
    half = t_quantile(0.975, count - 1) * sqrt(float(row.var(ddof=1)) / count)
    return Estimate(value=value, low=value - half, high=value + half, n=count, method="t")


def _finite(values: Row) -> Array:
    import numpy as np

    row = np.asarray(values, np.float64)
    if not np.isfinite(row).all():
        raise BadInput("A trend has a value that is no number: leave out what is not known.")
    return row


def changes(values: Row) -> list[Change]:
    """Where the mean changed: the most evident cut first, then each part by itself."""
    row = _finite(values)
    found, parts = [], [(0, len(row))]
    while parts:
        first, last = parts.pop()
        best = _best(row[first:last])
        if best is not None:
            at = first + best[0]
            before, after = mean_of(row[first:at]), mean_of(row[at:last])
            assert before is not None
            assert after is not None
            found.append(Change(at=at, before=before, after=after, p=best[1]))
            parts += [(first, at), (at, last)]
    return sorted(found, key=lambda change: change.at)


def _best(row: Array) -> tuple[int, float] | None:
    """The most evident cut and its p; None where it could be chance."""
    import numpy as np

    count = len(row)
    if count < 2 * FAINT:
        return None
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
