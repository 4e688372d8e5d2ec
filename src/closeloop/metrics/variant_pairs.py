"""Two variants task by task: who got what right, by how much, at what cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from statistics import fmean
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_definitions import METRICS, PRIMARY_METRIC
from closeloop.metrics.secondary_rates import compare_secondary_rates
from closeloop.metrics.verdict_sentences import write_verdict
from closeloop.records.comparison_report import PairTable, TaskPair, VariantComparison, VariantSide
from closeloop.records.estimate import Comparison, Estimate
from closeloop.records.record import Record
from closeloop.statistics.log_ratios import estimate_ratio
from closeloop.statistics.multiple_tests import adjust_holm
from closeloop.statistics.rate_comparison import classify_difference, compare_rates
from closeloop.statistics.rate_differences import rate_difference

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

RATIO_COLUMNS = {
    "cost": "cost",
    "time": "seconds",
    "tokens in": "input_tokens",
    "tokens out": "output_tokens",
}
SIGNIFICANCE = 0.05


class ComparedSide(Record):
    """One side of a comparison, with its attempts at hand."""

    side: VariantSide
    mask: Any
    values: dict[str, list[float]]
    """By task, the outcomes of its repeats."""


def compare_with_first(
    work: AttemptTable, held: Sequence[ComparedSide], margin: float
) -> tuple[VariantComparison, ...]:
    """Several held against the first need surer verdicts: wider bounds, and Holm's p."""
    pairs = [_compare_pair(work, held[0], other, margin) for other in held[1:]]
    if len(pairs) > 1:
        tests = {one.second: one.comparison.test.p for one in pairs if one.comparison.test}
        adjusted = adjust_holm(tests)
        pairs = [
            replace(
                one,
                comparison=_adjust_comparison(
                    one.comparison,
                    (held[0].values, other.values),
                    len(pairs),
                    adjusted.get(one.second),
                ),
                adjusted=adjusted.get(one.second),
            )
            for one, other in zip(pairs, held[1:], strict=True)
        ]
    return tuple(replace(one, words=tuple(write_verdict(one))) for one in pairs)


def collect_task_values(
    work: AttemptTable, mask: Array, dropped: set[str], column: str | None = None
) -> dict[str, list[float]]:
    """By task, what its repeats show, in their order; what is not known is left out."""
    columns = work.columns
    column_values = columns[column] if column else METRICS[PRIMARY_METRIC][1](columns)
    rows = sorted(
        zip(
            columns["task_digest"][mask].tolist(),
            columns["number"][mask].tolist(),
            column_values[mask].tolist(),
            strict=True,
        )
    )
    values: dict[str, list[float]] = {}
    for task, _, value in rows:
        if not isnan(value) and task not in dropped:
            values.setdefault(task, []).append(value)
    return values


def _compare_pair(
    work: AttemptTable, first: ComparedSide, second: ComparedSide, margin: float
) -> VariantComparison:
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
    return VariantComparison(
        first=first.side.name,
        second=second.side.name,
        primary=PRIMARY_METRIC,
        comparison=compare_rates(first.values, second.values, margin=margin),
        words=(),
        table=_build_pair_table(pairs),
        tasks=tuple(pairs),
        secondary=compare_secondary_rates(work, first.mask, second.mask),
        ratios={
            name: estimate_ratio(
                *(collect_task_values(work, one.mask, set(), column) for one in sides)
            )
            for name, column in RATIO_COLUMNS.items()
        },
    )


def _build_pair_table(pairs: Sequence[TaskPair]) -> PairTable:
    right = [(fmean(one.first) > 0.5, fmean(one.second) > 0.5) for one in pairs]
    return PairTable(
        both=right.count((True, True)),
        only_first=right.count((True, False)),
        only_second=right.count((False, True)),
        neither=right.count((False, False)),
    )


def _adjust_comparison(
    alone: Comparison,
    sides: tuple[Mapping[str, Sequence[float]], Mapping[str, Sequence[float]]],
    comparisons: int,
    p: float | None,
) -> Comparison:
    """One of several comparisons: bounds that hold for all at once, and no call without its p."""
    adjusted_interval = rate_difference(*sides, comparisons=comparisons)
    if adjusted_interval is None or alone.here is None:
        return alone
    here = Estimate(
        value=adjusted_interval.difference,
        low=adjusted_interval.low,
        high=adjusted_interval.high,
        n=adjusted_interval.tasks,
        method=f"{alone.here.method}, {comparisons} comparisons",
    )
    is_decided = alone.alike_word in ("better", "worse")
    is_significant = p is not None and p < SIGNIFICANCE
    return replace(
        alone,
        here=here,
        here_word=classify_difference(here, alone.margin),
        alike_word="not enough data" if is_decided and not is_significant else alone.alike_word,
    )
