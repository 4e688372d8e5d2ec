"""What work showed over time, item by item: what one task did in one week, or one session.

Repeats are not more tasks, so a task's repeats of one week are one item.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from closeloop.metrics.attempt_groups import group_attempts
from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_figures import first_positions, mark_changes, number_tasks
from closeloop.records.record import Record

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

WEEK_SECONDS = 7 * 86400.0
MIN_WEEKS = 4
"""Weeks: a task that came in as many shows what is its own."""


class TimelineItems(Record):
    """In the order of time."""

    at: Any
    """In seconds since 1970."""
    values: Any
    units: Any
    repeats: Any

    def level_values(self) -> Array:
        """Values without what is a task's own, those of few repeats drawn nearer: they scatter.

        Else weeks with harder tasks, or a week that has only begun, would look like a change.
        """
        import numpy as np

        _, units, counts = np.unique(self.units, return_inverse=True, return_counts=True)
        means = (np.bincount(units, self.values) / counts)[units]
        repeat_weights = np.sqrt(self.repeats / self.repeats.max())
        level = self.values.mean() + (self.values - means) * repeat_weights
        leveled: Array = np.where(counts[units] >= MIN_WEEKS, level, self.values)
        return leveled


class MetricTimeline:
    """Attempts with a known start, sorted once for all metrics: by group, by task, by week."""

    def __init__(self, work: AttemptTable, by: Sequence[str]) -> None:
        import numpy as np

        self._groups, places, group = group_attempts(work, by)
        at = work.columns["started"][places] / 1e6
        units = number_tasks(work)[places]
        weeks = np.floor(at / WEEK_SECONDS)
        order = np.lexsort((at, weeks, units, group))
        self._order = order[np.isfinite(at[order])]
        self._places = places[self._order]
        self._at, self._weeks = at[self._order], weeks[self._order]
        self._group, self._units = group[self._order], units[self._order]
        self._lots = _stable_draws(work)[self._places]

    def group_items(self, values: Array) -> Iterator[tuple[tuple[str, ...], TimelineItems]]:
        """Of each group that has any: what those show whose value is known."""
        import numpy as np

        values = values[self._places]
        known = np.isfinite(values)
        if not known.any():
            return
        values, at, draws, weeks, units, group = (
            column[known]
            for column in (values, self._at, self._lots, self._weeks, self._units, self._group)
        )
        first = np.flatnonzero(mark_changes(group, units, weeks))
        repeats = np.diff(first, append=len(values))
        means = np.add.reduceat(values, first) / repeats
        at, draws, weeks, units, group = (
            column[first] for column in (at, draws, weeks, units, group)
        )
        # Tasks that come every week are run in the same order, so they are put in that of a draw.
        task = np.cumsum(mark_changes(group, units)) - 1
        is_recurring = np.bincount(task)[task] > 1
        at = np.where(is_recurring, weeks * WEEK_SECONDS, at)
        order = np.lexsort((_weekly_draws(draws, weeks), at, group))
        for part in np.split(order, first_positions(group[order])[1:]):
            yield (
                self._groups[group[part[0]]],
                TimelineItems(
                    at=at[part], values=means[part], units=units[part], repeats=repeats[part]
                ),
            )


def _stable_draws(work: AttemptTable) -> Array:
    """By the task's digest, or the session's id: the same in every store that holds it."""
    import numpy as np

    tasks = work.columns["task_digest"]
    own = np.array([crc32(name.encode("utf-8", "replace")) for name in work.attempts], np.uint64)
    by_task = np.array([crc32((name or "").encode()) for name in tasks.labels], np.uint64)
    return np.where(tasks.known(), by_task[tasks.codes], own)


def _weekly_draws(lots: Array, weeks: Array) -> Array:
    """Another draw each week (the last steps of splitmix64)."""
    import numpy as np

    mixed = (lots << np.uint64(20)) ^ weeks.astype(np.int64).astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def first_version_times(work: AttemptTable) -> Iterator[tuple[tuple[str | None, ...], float]]:
    """Of each variant, agent and model that worked together, when it was first seen."""
    import numpy as np

    columns = [work.columns[name] for name in ("variant", "agent", "model")]
    started = work.columns["started"] / 1e6
    order = np.lexsort((started, *(column.codes for column in columns)))
    order = order[np.isfinite(started[order])]
    if not len(order):
        return
    for place in order[mark_changes(*(column.codes[order] for column in columns))].tolist():
        names = tuple(column.labels[column.codes[place]] for column in columns)
        yield names, float(started[place])
