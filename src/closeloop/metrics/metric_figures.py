"""Every metric of every group, each with its n, its bounds and its coverage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from closeloop.metrics.attempt_groups import group_attempts
from closeloop.metrics.attempt_table import SCORED_OUTCOMES, AttemptTable
from closeloop.metrics.metric_bounds import (
    MetricBounds,
    mean_bounds,
    median_bounds,
    rate_bounds,
    repeat_bounds,
)
from closeloop.metrics.metric_definitions import METRICS
from closeloop.records.errors import unknown_name_error
from closeloop.records.metric_values import Metric, MetricsReport, MetricValue
from closeloop.statistics.pass_at_k import estimate_pass_all_k, estimate_pass_at_k

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

REPEAT_KINDS = ("one of k", "all of k")
"""Kinds that say nothing of a task that was tried once."""


def compute_metrics(
    work: AttemptTable, by: Sequence[str], only: Sequence[str] = ()
) -> MetricsReport:
    """Of all attempts, or of each group of them."""
    chosen = select_metrics(only)
    return MetricsReport(
        by=tuple(by),
        attempts=len(work),
        definitions=tuple(chosen),
        figures=tuple(_compute_figures(work, by, chosen)),
        notes=work.notes,
    )


def select_metrics(only: Sequence[str] = ()) -> list[Metric]:
    """What each metric means; all, or those named."""
    for name in only:
        if name not in METRICS:
            raise unknown_name_error("metric", name, METRICS)
    return [METRICS[name][0] for name in only or METRICS]


def _compute_figures(
    work: AttemptTable, by: Sequence[str], chosen: Sequence[Metric]
) -> Iterator[MetricValue]:
    import numpy as np

    if not len(work):
        return
    groups, places, group = group_attempts(work, by)
    tasks = TaskPartition(number_tasks(work)[places], group, len(groups))
    repeated = TaskPartition(number_repeats(work)[places], group, len(groups))
    covered = {
        source: [np.bincount(group, each[places], minlength=len(groups)) for each in pair]
        for source, pair in _source_coverage(work).items()
    }
    for metric in chosen:
        values = METRICS[metric.name][1](work.columns)[places]
        more = _unconfirmed_counts(metric, work, places, group, len(groups))
        parts = (
            repeated.sum_by_task(values, 2)
            if metric.kind in REPEAT_KINDS
            else tasks.sum_by_task(values)
        )
        for code, (sums, counts) in enumerate(parts):
            name = dict(zip(by, groups[code], strict=True))
            present, of = (each[code] for each in covered[metric.source])
            figure = _bound_figure(metric, sums, counts)
            unconfirmed = {"unconfirmed": more[code]} if more is not None and len(counts) else {}
            yield MetricValue(
                metric=metric.name,
                group=name,
                value=figure.value if figure else None,
                low=figure.low if figure else None,
                high=figure.high if figure else None,
                n=len(counts),
                attempts=int(counts.sum()),
                coverage=float(present / of) if of else None,
                method=figure.method if figure else None,
                more=(figure.more if figure else {}) | unconfirmed,
            )


def number_tasks(work: AttemptTable) -> Array:
    """A number for each task; a session is a task of its own."""
    import numpy as np

    tasks = work.columns["task_digest"]
    own = len(tasks.labels) + np.arange(len(work))
    return np.where(tasks.known(), tasks.codes, own)


def number_repeats(work: AttemptTable) -> Array:
    """A number for each task and variant: only of one variant are attempts repeats."""
    variants = work.columns["variant"]
    numbers: Array = number_tasks(work) * len(variants.labels) + variants.codes
    return numbers


def _source_coverage(work: AttemptTable) -> dict[str, tuple[Array, Array]]:
    """Which attempts have a grade, a measurement, a delivery; and which of them should."""
    import numpy as np

    columns = work.columns
    every = np.ones(len(work), dtype=bool)
    delivered = ~np.isnan(columns["merged"])
    return {
        "grade": (columns["outcome"].are(SCORED_OUTCOMES), columns["task_digest"].known()),
        "rules": (~np.isnan(columns["findings"]), every),
        "people": (delivered, delivered | columns["origin"].are(("production",))),
        "attempt": (every, every),
    }


def _unconfirmed_counts(
    metric: Metric, work: AttemptTable, places: Array, group: Array, groups: int
) -> list[float] | None:
    import numpy as np

    if metric.name != "repeated mistakes":
        return None
    beside = np.nan_to_num(work.columns["repeated_unconfirmed"][places])
    return [float(each) for each in np.bincount(group, beside, minlength=groups)]


class TaskPartition:
    """Values by group and task: sorted once for all metrics."""

    def __init__(self, units: Array, group: Array, groups: int) -> None:
        import numpy as np

        keys = group * (int(units.max()) + 1) + units
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._edges = [code * (int(units.max()) + 1) for code in range(groups + 1)]

    def sum_by_task(self, values: Array, least: int = 1) -> Iterator[tuple[Array, Array]]:
        """For each group: by task, the sum of the values that are known, and how many they are.

        Of tasks that have so many at least.
        """
        import numpy as np

        values = values[self._order]
        known = np.isfinite(values)
        keys, values = self._keys[known], values[known]
        first = first_positions(keys)
        sums = np.add.reduceat(values, first) if len(first) else values
        counts = np.diff(first, append=len(keys))
        edges = np.searchsorted(keys[first], self._edges)
        for start, end in pairwise(edges.tolist()):
            enough = counts[start:end] >= least
            yield sums[start:end][enough], counts[start:end][enough]


def first_positions(keys: Array) -> Array:
    """Of keys in order, where each begins."""
    import numpy as np

    return np.flatnonzero(mark_changes(keys))


def mark_changes(*columns: Array) -> Array:
    """Where any of them differs from the row before."""
    import numpy as np

    new = np.zeros(len(columns[0]), np.bool_)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return new


def _bound_figure(metric: Metric, sums: Array, counts: Array) -> MetricBounds | None:
    if not len(counts):
        return None
    match metric.kind:
        case "rate":
            return rate_bounds(sums, counts)
        case "one of k":
            return repeat_bounds(sums, counts, estimate_pass_at_k)
        case "all of k":
            return repeat_bounds(sums, counts, estimate_pass_all_k)
        case "mean":
            return mean_bounds(sums / counts)
        case "median":
            return median_bounds(sums / counts)
        case "sum":
            return MetricBounds(value=float(sums.sum()), method="sum")
