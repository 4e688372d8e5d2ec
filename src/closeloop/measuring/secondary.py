"""How else two variants differ: every other rate, marked as the exploration that it is."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from closeloop.measuring.definitions import METRICS, PRIMARY
from closeloop.measuring.work import Work
from closeloop.model.figure import Metric
from closeloop.model.versus import Secondary
from closeloop.stats.distributions import t_quantile, t_tails
from closeloop.stats.exactly import jeffreys_each
from closeloop.stats.many import benjamini_hochberg
from closeloop.stats.paired import FEWEST

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

SIGNIFICANCE = 0.05


def secondaries(work: Work, first: Array, second: Array) -> tuple[Secondary, ...]:
    """Every other metric that is a rate and that both have, adjusted for their number."""
    found = []
    tasks = work.columns["task_digest"].codes
    for name, (metric, values) in METRICS.items():
        if metric.kind == "rate" and name != PRIMARY:
            held = values(work.columns)
            one = _secondary(metric, *(_by_task(held, tasks, mask) for mask in (first, second)))
            found += [one] if one else []
    adjusted = benjamini_hochberg({one.metric: one.p for one in found if one.p is not None})
    return tuple(_worded(one, adjusted.get(one.metric)) for one in found)


def _by_task(values: Array, tasks: Array, mask: Array) -> tuple[Array, Array]:
    """Sums and counts of what is known."""
    import numpy as np

    known = mask & np.isfinite(values)
    most = int(tasks.max()) + 1
    return (
        np.bincount(tasks[known], values[known], minlength=most),
        np.bincount(tasks[known], minlength=most),
    )


def _secondary(
    metric: Metric, first: tuple[Array, Array], second: tuple[Array, Array]
) -> Secondary | None:
    """A paired t: the spread of the tasks' differences, floored by their repeats' noise."""
    both = (first[1] > 0) & (second[1] > 0)
    tasks = int(both.sum())
    if not tasks:
        return None
    means = [sums[both] / counts[both] for sums, counts in (first, second)]
    differences = means[1] - means[0]
    told = Secondary(
        metric=metric.name,
        tasks=tasks,
        first=float(means[0].mean()),
        second=float(means[1].mean()),
    )
    if tasks < 2:
        return told
    floor = sum(
        float(jeffreys_each(sums[both], counts[both]).mean()) for sums, counts in (first, second)
    )
    spread = sqrt(max(float(differences.var(ddof=1)), floor) / tasks)
    value, half = float(differences.mean()), t_quantile(0.975, tasks - 1) * spread
    p = t_tails(value / spread, tasks - 1) if tasks >= FEWEST and differences.any() else None
    return replace(told, low=max(-1.0, value - half), high=min(1.0, value + half), p=p)


def _worded(one: Secondary, adjusted: float | None) -> Secondary:
    if adjusted is None or adjusted >= SIGNIFICANCE:
        return replace(one, adjusted=adjusted)
    more = one.second > one.first
    wanted = METRICS[one.metric][0].better
    if wanted is None:
        return replace(one, adjusted=adjusted, word="more" if more else "less")
    return replace(one, adjusted=adjusted, word="better" if more == (wanted == "more") else "worse")
