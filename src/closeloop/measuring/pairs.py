"""Two variants task by task: who got what right, by how much, at what cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from statistics import fmean
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from closeloop.measuring.definitions import METRICS, PRIMARY
from closeloop.measuring.secondary import secondaries
from closeloop.measuring.verdicts import words
from closeloop.measuring.work import Work
from closeloop.model.estimate import Comparison, Estimate
from closeloop.model.record import Record
from closeloop.model.versus import PairTable, Side, TaskPair, Versus
from closeloop.stats.compare import compare, word
from closeloop.stats.differences import difference
from closeloop.stats.many import holm
from closeloop.stats.ratios import ratio

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

RATIOS = {
    "cost": "cost",
    "time": "seconds",
    "tokens in": "input_tokens",
    "tokens out": "output_tokens",
}
SIGNIFICANCE = 0.05


class Held(Record):
    """One side of a comparison, with its attempts at hand."""

    side: Side
    mask: Any
    values: dict[str, list[float]]
    """By task, the outcomes of its repeats."""


def against_first(work: Work, held: Sequence[Held], margin: float) -> tuple[Versus, ...]:
    """Several held against the first need surer verdicts: wider bounds, and Holm's p."""
    found = [_versus(work, held[0], other, margin) for other in held[1:]]
    if len(found) > 1:
        tests = {one.second: one.comparison.test.p for one in found if one.comparison.test}
        adjusted = holm(tests)
        found = [
            replace(
                one,
                comparison=_together(
                    one.comparison,
                    (held[0].values, other.values),
                    len(found),
                    adjusted.get(one.second),
                ),
                adjusted=adjusted.get(one.second),
            )
            for one, other in zip(found, held[1:], strict=True)
        ]
    return tuple(replace(one, words=tuple(words(one))) for one in found)


def values_of(
    work: Work, mask: Array, dropped: set[str], column: str | None = None
) -> dict[str, list[float]]:
    """By task, what its repeats show, in their order; what is not known is left out."""
    columns = work.columns
    shown = columns[column] if column else METRICS[PRIMARY][1](columns)
    rows = sorted(
        zip(
            columns["task_digest"][mask].tolist(),
            columns["number"][mask].tolist(),
            shown[mask].tolist(),
            strict=True,
        )
    )
    values: dict[str, list[float]] = {}
    for task, _, value in rows:
        if not isnan(value) and task not in dropped:
            values.setdefault(task, []).append(value)
    return values


def _versus(work: Work, first: Held, second: Held, margin: float) -> Versus:
    columns = work.columns
    names = dict(zip(columns["task_digest"].tolist(), columns["task"].tolist(), strict=True))
    pairs = [
        TaskPair(
            task=names[task] or task,
            first=tuple(map(int, first.values[task])),
            second=tuple(map(int, second.values[task])),
        )
        for task in first.values
        if task in second.values
    ]
    pairs.sort(key=lambda one: (-abs(fmean(one.second) - fmean(one.first)), one.task))
    sides = first, second
    return Versus(
        first=first.side.name,
        second=second.side.name,
        primary=PRIMARY,
        comparison=compare(first.values, second.values, margin=margin),
        words=(),
        table=_table(pairs),
        tasks=tuple(pairs),
        secondary=secondaries(work, first.mask, second.mask),
        ratios={
            name: ratio(*(values_of(work, one.mask, set(), column) for one in sides))
            for name, column in RATIOS.items()
        },
    )


def _table(pairs: Sequence[TaskPair]) -> PairTable:
    right = [(fmean(one.first) > 0.5, fmean(one.second) > 0.5) for one in pairs]
    return PairTable(
        both=right.count((True, True)),
        only_first=right.count((True, False)),
        only_second=right.count((False, True)),
        neither=right.count((False, False)),
    )


def _together(
    alone: Comparison,
    sides: tuple[Mapping[str, Sequence[float]], Mapping[str, Sequence[float]]],
    comparisons: int,
    p: float | None,
) -> Comparison:
    """One of several comparisons: bounds that hold for all at once, and no call without its p."""
    wider = difference(*sides, comparisons=comparisons)
    if wider is None or alone.here is None:
        return alone
    here = Estimate(
        value=wider.difference,
        low=wider.low,
        high=wider.high,
        n=wider.tasks,
        method=f"{alone.here.method}, {comparisons} comparisons",
    )
    called = alone.alike_word in ("better", "worse")
    sure = p is not None and p < SIGNIFICANCE
    return replace(
        alone,
        here=here,
        here_word=word(here, alone.margin),
        alike_word="not enough data" if called and not sure else alone.alike_word,
    )
