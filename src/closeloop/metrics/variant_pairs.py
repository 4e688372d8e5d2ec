"""Two variants task by task: who got what right, by how much, at what cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_definitions import METRICS, PRIMARY_METRIC
from closeloop.records.estimate import (
    Comparison,
    ComparisonVerdict,
    Estimate,
    Metric,
    PairTable,
    SampleSizeAdvice,
    SecondaryMetric,
    TaskPair,
    VariantComparison,
    VariantSide,
)
from closeloop.records.record import Record
from closeloop.statistics.log_ratios import estimate_ratio
from closeloop.statistics.rate_comparison import (
    MIN_PAIRED_TASKS,
    classify_difference,
    compare_rates,
    rate_difference,
)
from closeloop.statistics.rate_estimate import jeffreys_variances, t_quantile, t_tails
from closeloop.statistics.sequences import adjust_benjamini_hochberg, adjust_holm
from closeloop.text.wording import count_with_noun

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


# How else two variants differ: every other rate, marked as the exploration that it is.

SIGNIFICANCE = 0.05


def compare_secondary_rates(
    work: AttemptTable, first: Array, second: Array
) -> tuple[SecondaryMetric, ...]:
    """Every other metric that is a rate and that both have, adjusted for their number.

    One that only says what the primary does says nothing more.
    """
    import numpy as np

    compared_rates = []
    tasks = work.columns["task_digest"].codes
    both = first | second
    primary_values = METRICS[PRIMARY_METRIC][1](work.columns)[both]
    for metric, values in METRICS.values():
        if metric.kind != "rate":
            continue
        attempt_values = values(work.columns)
        if not np.array_equal(attempt_values[both], primary_values, equal_nan=True):
            one = _compare_secondary_rate(
                metric, *(_sum_task_values(attempt_values, tasks, mask) for mask in (first, second))
            )
            compared_rates += [one] if one else []
    adjusted = adjust_benjamini_hochberg(
        {one.metric: one.p for one in compared_rates if one.p is not None}
    )
    return tuple(_add_word(one, adjusted.get(one.metric)) for one in compared_rates)


def _sum_task_values(values: Array, tasks: Array, mask: Array) -> tuple[Array, Array]:
    """Sums and counts of what is known."""
    import numpy as np

    known = mask & np.isfinite(values)
    most = int(tasks.max()) + 1
    return (
        np.bincount(tasks[known], values[known], minlength=most),
        np.bincount(tasks[known], minlength=most),
    )


def _compare_secondary_rate(
    metric: Metric, first: tuple[Array, Array], second: tuple[Array, Array]
) -> SecondaryMetric | None:
    """A paired t: the spread of the tasks' differences, floored by their repeats' noise."""
    both = (first[1] > 0) & (second[1] > 0)
    tasks = int(both.sum())
    if not tasks:
        return None
    means = [sums[both] / counts[both] for sums, counts in (first, second)]
    differences = means[1] - means[0]
    compared = SecondaryMetric(
        metric=metric.name,
        tasks=tasks,
        first=float(means[0].mean()),
        second=float(means[1].mean()),
    )
    if tasks < 2:
        return compared
    floor = sum(
        float(jeffreys_variances(sums[both], counts[both]).mean())
        for sums, counts in (first, second)
    )
    spread = sqrt(max(float(differences.var(ddof=1)), floor) / tasks)
    value, half = float(differences.mean()), t_quantile(0.975, tasks - 1) * spread
    p = (
        t_tails(value / spread, tasks - 1)
        if tasks >= MIN_PAIRED_TASKS and differences.any()
        else None
    )
    return replace(compared, low=max(-1.0, value - half), high=min(1.0, value + half), p=p)


def _add_word(one: SecondaryMetric, adjusted: float | None) -> SecondaryMetric:
    if adjusted is None or adjusted >= SIGNIFICANCE:
        return replace(one, adjusted=adjusted)
    more = one.second > one.first
    better = METRICS[one.metric][0].better
    if better is None:
        return replace(one, adjusted=adjusted, word="more" if more else "less")
    return replace(one, adjusted=adjusted, word="better" if more == (better == "more") else "worse")


# Verdicts as sentences: what was seen, how sure it is, and what would settle the rest.


def write_verdict(pair: VariantComparison) -> Iterator[str]:
    """The answer to both questions, then what is left to do."""
    comparison = pair.comparison
    scope = (
        "On exactly this task"
        if comparison.tasks == 1
        else f"On exactly these {comparison.tasks:,} tasks"
    )
    yield _answer_sentence(scope, comparison.here_word, comparison.here, pair)
    beyond = _answer_sentence("On tasks like these", comparison.alike_word, comparison.alike, pair)
    yield beyond + _test_sentence(pair)
    yield from comparison.notes
    if comparison.advice is not None:
        yield _advice_sentence(comparison.advice, comparison)


def _answer_sentence(
    where: str, word: ComparisonVerdict, seen: Estimate | None, pair: VariantComparison
) -> str:
    if seen is None:
        return f"{where}, there is not enough data to compare {pair.second!r} with {pair.first!r}."
    bounds = f"{seen.value:+.2f} ({seen.low:+.2f} … {seen.high:+.2f})"
    match word:
        case "better" | "worse":
            return (
                f"{where}, {pair.second!r} is {word} than {pair.first!r}: {pair.primary} {bounds}."
            )
        case "not enough data":
            return (
                f"{where}, there is not enough data to say which is better: {pair.primary} of "
                f"{pair.second!r} against {pair.first!r} {bounds}."
            )
        case _:
            return (
                f"{where}, {pair.second!r} and {pair.first!r} differ by no more than "
                f"{pair.comparison.margin:g}: {pair.primary} {bounds}."
            )


def _test_sentence(pair: VariantComparison) -> str:
    test = pair.comparison.test
    if test is None:
        return ""
    holm = f", {_format_p(pair.adjusted)} after Holm" if pair.adjusted is not None else ""
    return f" {test.method}: p {_format_p(test.p)}{holm}."


def _format_p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _advice_sentence(advice: SampleSizeAdvice, held: Comparison) -> str:
    ways = []
    if advice.tasks:
        ways.append(f"{count_with_noun(advice.tasks, 'more task')} with as many repeats")
    if advice.repeats:
        ways.append(f"{count_with_noun(advice.repeats, 'more repeat')} of each task")
    effect = f"a difference of {advice.effect:.2f}"
    if not ways and 0 in (advice.tasks, advice.repeats):
        return f"As many tasks and repeats as these show {effect} four times in five."
    if not ways:
        return f"No reachable number of tasks or repeats would show {effect}."
    detectable = (
        held.detectable and f" What was run shows differences from {held.detectable:.2f} on."
    )
    return f"To see {effect} four times in five: {', or '.join(ways)}.{detectable or ''}"


RATIO_COLUMNS = {
    "cost": "cost",
    "time": "seconds",
    "tokens in": "input_tokens",
    "tokens out": "output_tokens",
}


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
