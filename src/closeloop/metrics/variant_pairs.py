"""Compare two sides: what each got right, by how much, and at what cost.

Task by task if both tried the same ones, else as two independent groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_definitions import METRICS
from closeloop.metrics.metric_figures import REPEAT_KINDS, number_tasks
from closeloop.metrics.metric_trends import estimate_shift
from closeloop.metrics.score_columns import find_metric, select_metrics
from closeloop.records.estimate import (
    SHARE_KINDS,
    Comparison,
    ComparisonVerdict,
    Estimate,
    Metric,
    PairTable,
    PeriodShift,
    SampleSizeAdvice,
    SecondaryMetric,
    TaskPair,
    VariantComparison,
    VariantSide,
)
from closeloop.records.record import Record
from closeloop.statistics.mean_comparison import (
    compare_means,
    estimate_independent_ratio,
    estimate_ratio,
    rounding_variance,
)
from closeloop.statistics.rate_comparison import (
    MIN_PAIRED_TASKS,
    classify_difference,
    compare_rates,
)
from closeloop.statistics.rate_estimate import TaskValues, jeffreys_variances
from closeloop.statistics.sequences import adjust_benjamini_hochberg, adjust_holm
from closeloop.statistics.special_functions import t_quantile, t_tails
from closeloop.text.wording import (
    count_with_noun,
    format_percent,
    format_points,
    format_points_estimate,
    natural_order,
)

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


# Other differences between two variants: every other rate, marked as exploratory.

SIGNIFICANCE = 0.05
OUTCOME_RATES = ("pass rate", "task completion rate")


def compare_secondary_metrics(
    work: AttemptTable, first: Array, second: Array, primary: Metric, extra_metrics: Sequence[str]
) -> tuple[SecondaryMetric, ...]:
    """Compare every other rate that both have, and requested metrics, adjusted for their number.

    A rate equal to the primary is skipped, unless it was requested.
    """
    import numpy as np

    compared = []
    tasks = work.columns["task_digest"].codes
    in_either = first | second
    primary_values = find_metric(work, primary.name)[1](work.columns)[in_either]
    rates = [metric.name for metric, _ in METRICS.values() if metric.kind == "rate"]
    metrics = {metric.name: metric for metric in select_metrics(work, [*rates, *extra_metrics])}
    for name, metric in metrics.items():
        if metric.score == primary.score or metric.kind in (*REPEAT_KINDS, "per pass"):
            continue
        attempt_values = find_metric(work, name)[1](work.columns)
        is_same = np.array_equal(attempt_values[in_either], primary_values, equal_nan=True)
        if is_same and name not in extra_metrics and metric.score not in extra_metrics:
            continue
        result = _compare_secondary_metric(
            metric, *(_sum_task_values(attempt_values, tasks, mask) for mask in (first, second))
        )
        compared += [result] if result else []
    adjusted = adjust_benjamini_hochberg(
        {result.metric: result.p for result in compared if result.p is not None}
    )
    return tuple(
        _add_word(result, adjusted.get(result.metric), metrics[result.metric])
        for result in compared
    )


def _sum_task_values(values: Array, tasks: Array, mask: Array) -> tuple[Array, Array]:
    """Return sums and counts of known values, by task."""
    import numpy as np

    is_known = mask & np.isfinite(values)
    task_count = int(tasks.max()) + 1
    return (
        np.bincount(tasks[is_known], values[is_known], minlength=task_count),
        np.bincount(tasks[is_known], minlength=task_count),
    )


def _compare_secondary_metric(
    metric: Metric, first: tuple[Array, Array], second: tuple[Array, Array]
) -> SecondaryMetric | None:
    """Run a paired t test over tasks; a rate's variance is at least the noise of its repeats."""
    in_both = (first[1] > 0) & (second[1] > 0)
    tasks = int(in_both.sum())
    if not tasks:
        return None
    means = [sums[in_both] / counts[in_both] for sums, counts in (first, second)]
    differences = means[1] - means[0]
    compared = SecondaryMetric(
        metric=metric.name,
        tasks=tasks,
        first=float(means[0].mean()),
        second=float(means[1].mean()),
        kind=metric.kind,
        unit=metric.unit,
    )
    if tasks < 2:
        return compared
    is_rate = metric.kind == "rate"
    floor = sum(
        float(jeffreys_variances(sums[in_both], counts[in_both]).mean()) if is_rate else 0.0
        for sums, counts in (first, second)
    )
    variance = max(float(differences.var(ddof=1)), floor)
    variance = variance or rounding_variance(mean for side in means for mean in side.tolist())
    spread = sqrt(variance / tasks)
    value, half = float(differences.mean()), t_quantile(0.975, tasks - 1) * spread
    p = (
        t_tails(value / spread, tasks - 1)
        if tasks >= MIN_PAIRED_TASKS and differences.any() and spread
        else None
    )
    low, high = value - half, value + half
    if is_rate:
        low, high = max(-1.0, low), min(1.0, high)
    return replace(compared, low=low, high=high, p=p)


def _add_word(result: SecondaryMetric, adjusted: float | None, metric: Metric) -> SecondaryMetric:
    if adjusted is None or adjusted >= SIGNIFICANCE:
        return replace(result, adjusted=adjusted)
    is_more = result.second > result.first
    if metric.better is None:
        return replace(result, adjusted=adjusted, word="more" if is_more else "less")
    verdict = "better" if is_more == (metric.better == "more") else "worse"
    return replace(result, adjusted=adjusted, word=verdict)


# The primary score: compared as its kind requires; its own direction decides what is better.


def compare_primary(
    metric: Metric, first: TaskValues, second: TaskValues, margin: float, comparisons: int = 1
) -> Comparison:
    """Compare the second with the first: a rate by its own statistics, else by means."""
    if metric.kind == "rate":
        compared = compare_rates(first, second, margin=margin, comparisons=comparisons)
    else:
        values = [fmean(repeats) for repeats in first.values() if repeats]
        scale = abs(fmean(values)) if values else 1.0
        if metric.low is not None and metric.high is not None:
            scale = metric.high - metric.low
        compared = compare_means(first, second, margin=margin * scale, comparisons=comparisons)
    if metric.better != "less":
        return compared
    return replace(
        compared,
        here_word=OPPOSITE_VERDICTS.get(compared.here_word, compared.here_word),
        alike_word=OPPOSITE_VERDICTS.get(compared.alike_word, compared.alike_word),
    )


OPPOSITE_VERDICTS: dict[ComparisonVerdict, ComparisonVerdict] = {
    "better": "worse",
    "worse": "better",
}


# Verdicts as sentences: the result, its certainty, and what would settle the rest.


def write_verdict(pair: VariantComparison) -> Iterator[str]:
    """Yield the answer on these tasks and on similar ones, then notes and advice."""
    comparison = pair.comparison
    if pair.observational:
        yield _answer_sentence("On different work", comparison.alike_word, comparison.alike, pair)
        yield (
            "Observational: they share no task, so the work itself may differ. This "
            "shows a difference, not its cause."
        )
        yield from comparison.notes
        return
    if outcome := _find_common_outcome(pair):
        yield f"Both {outcome} all {comparison.tasks:,} tasks: no difference can be seen."
        yield f"{'Easier' if outcome == 'failed' else 'Harder'} tasks would tell more."
        yield from (note for note in comparison.notes if "excluded" in note)
        return
    scope = (
        "On exactly this task"
        if comparison.tasks == 1
        else f"On exactly these {comparison.tasks:,} tasks"
    )
    yield _answer_sentence(scope, comparison.here_word, comparison.here, pair)
    beyond = _answer_sentence("On similar tasks", comparison.alike_word, comparison.alike, pair)
    yield beyond + _test_sentence(pair)
    yield from comparison.notes
    if comparison.advice is not None:
        yield _advice_sentence(comparison.advice)
    if comparison.advice is not None and comparison.repeats is not None:
        yield describe_detectable(
            comparison.tasks, comparison.repeats, comparison.detectable_here, comparison.detectable
        )


def _find_common_outcome(pair: VariantComparison) -> str | None:
    """Return `passed` or `failed` for two that did so in every attempt, if that decides nothing."""
    comparison = pair.comparison
    is_undecided = "not enough data" in (comparison.here_word, comparison.alike_word)
    if pair.primary not in OUTCOME_RATES or comparison.tasks < 2 or not is_undecided:
        return None
    if comparison.first == comparison.second == 0.0:
        return "failed"
    return "passed" if comparison.first == comparison.second == 1.0 else None


def _answer_sentence(
    scope: str, verdict: ComparisonVerdict, estimate: Estimate | None, pair: VariantComparison
) -> str:
    if estimate is None:
        return f"{scope}, there is not enough data to compare {pair.second!r} with {pair.first!r}."
    is_rate = pair.kind in SHARE_KINDS
    bounds = format_difference(
        estimate.value, (estimate.low, estimate.high), pair.unit, is_rate=is_rate
    )
    match verdict:
        case "better" | "worse":
            difference = f"{pair.second!r} is {verdict} than {pair.first!r}"
            return f"{scope}, {difference}: {pair.primary} {bounds}."
        case "not enough data":
            return (
                f"{scope}, there is not enough data to say which is better: {pair.primary} of "
                f"{pair.second!r} against {pair.first!r} {bounds}."
            )
        case _:
            margin = pair.comparison.margin
            size = format_points(margin) if is_rate else f"{margin:.3g}"
            return (
                f"{scope}, {pair.second!r} and {pair.first!r} differ by no more than {size}: "
                f"{pair.primary} {bounds}."
            )


def format_difference(
    value: float, bounds: tuple[float, float] | None, unit: str, *, is_rate: bool
) -> str:
    """Format `+12 points (−5 to +29)` for a rate; else three digits each, with the unit."""
    if is_rate:
        return format_points_estimate(value, *(bounds or (None, None)))
    between = f" ({bounds[0]:+.3g} to {bounds[1]:+.3g})" if bounds else ""
    return f"{value:+.3g}{between}{' ' + unit if unit else ''}".replace("-", "−")


MAX_RATIO_SPREAD = 1000.0
"""Bounds of a ratio that lie further apart than by this factor say nothing."""


def is_ratio_bounded(ratio: Estimate) -> bool:
    """Whether the bounds of a ratio are close enough to say something."""
    return ratio.high <= MAX_RATIO_SPREAD * ratio.low


def format_ratio_bounds(ratio: Estimate) -> str:
    """Format `0.14–48.43`, or that there are too few tasks or sessions."""
    return f"{ratio.low:.2f}–{ratio.high:.2f}" if is_ratio_bounded(ratio) else "too few to say"


def format_secondary(secondary: SecondaryMetric) -> tuple[str, str, str]:
    """Return the first value, the second, and their difference, formatted."""
    bounds = (
        (secondary.low, secondary.high)
        if secondary.low is not None and secondary.high is not None
        else None
    )
    is_rate = secondary.kind in SHARE_KINDS
    difference = format_difference(
        secondary.second - secondary.first, bounds, secondary.unit, is_rate=is_rate
    )
    values = (secondary.first, secondary.second)
    first, second = (format_percent(value) if is_rate else f"{value:.3g}" for value in values)
    return first, second, difference


def _test_sentence(pair: VariantComparison) -> str:
    test = pair.comparison.test
    if test is None:
        return ""
    holm = f", {_format_p(pair.adjusted)} after Holm" if pair.adjusted is not None else ""
    method = test.method[:1].upper() + test.method[1:]
    return f" {method}: p {_format_p(test.p)}{holm}."


def _format_p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _advice_sentence(advice: SampleSizeAdvice) -> str:
    options = []
    if advice.tasks:
        options.append(f"add {count_with_noun(advice.tasks, 'task')} with the same repeats")
    if advice.repeats:
        options.append(f"add {count_with_noun(advice.repeats, 'repeat')} of each task")
    effect = f"{format_points(advice.effect)} on similar tasks"
    if not options and 0 in (advice.tasks, advice.repeats):
        return f"These tasks and repeats detect a difference of {effect} with 80 % power."
    if not options:
        return (
            f"No feasible number of tasks or repeats detects a difference of {effect} with "
            "80 % power."
        )
    return f"To detect a difference of {effect} with 80 % power, {', or '.join(options)}."


def describe_detectable(tasks: int, repeats: float, here: float | None, alike: float | None) -> str:
    """Describe what this number of tasks and repeats can detect, before or after a run."""
    size = f"With {count_with_noun(tasks, 'task')} and {repeats:.3g} "
    size += "repeat" if repeats == 1 else "repeats"
    these = "this task" if tasks == 1 else "these tasks"
    if here is None:
        return f"{size}, no difference can be shown on exactly {these}."
    least = f"a difference of {format_points(here)} or more"
    text = f"{size}, {least} can be shown on exactly {these}"
    if tasks >= MIN_PAIRED_TASKS:
        alike_text = "none" if alike is None else f"of {format_points(alike)} or more"
        text += f", and {alike_text} on similar tasks"
    return f"{text} (80 % power)."


def describe_missing_tasks(tasks: int) -> str:
    """Describe how many tasks similar tasks need; empty if there are enough."""
    if tasks >= MIN_PAIRED_TASKS:
        return ""
    return f"To decide for similar tasks, at least {MIN_PAIRED_TASKS} are needed."


RATIO_COLUMNS = {
    "cost": "cost",
    "time": "seconds",
    "tokens in": "input_tokens",
    "tokens out": "output_tokens",
}


class ComparedSide(Record):
    """One side of a comparison, with its attempts."""

    side: VariantSide
    mask: Any
    values: dict[str, list[float]]
    """By task, the outcomes of its repeats."""


def compare_with_first(
    work: AttemptTable,
    sides: Sequence[ComparedSide],
    margin: float,
    primary: Metric,
    extra_metrics: Sequence[str] = (),
) -> tuple[VariantComparison, ...]:
    """Compare several sides with the first, with wider bounds and Holm-adjusted p."""
    pairs = [
        _compare_pair(work, (sides[0], other), margin, primary, extra_metrics, len(sides) - 1)
        for other in sides[1:]
    ]
    if len(pairs) > 1:
        tests = {pair.second: pair.comparison.test.p for pair in pairs if pair.comparison.test}
        adjusted = adjust_holm(tests)
        pairs = [_apply_holm(pair, adjusted.get(pair.second)) for pair in pairs]
    return tuple(replace(pair, words=tuple(write_verdict(pair))) for pair in pairs)


def _apply_holm(pair: VariantComparison, p: float | None) -> VariantComparison:
    """Withdraw a verdict on similar tasks unless its Holm-adjusted p is significant."""
    comparison = pair.comparison
    is_significant = p is not None and p < SIGNIFICANCE
    if comparison.alike_word in ("better", "worse") and not is_significant:
        comparison = replace(comparison, alike_word="not enough data")
    return replace(pair, comparison=comparison, adjusted=p)


def collect_task_values(
    work: AttemptTable, mask: Array, dropped: set[str], values: Array
) -> dict[str, list[float]]:
    """Return, by task, the known values of its repeats, in order."""
    columns = work.columns
    rows = sorted(
        zip(
            columns["task_digest"][mask].tolist(),
            columns["number"][mask].tolist(),
            values[mask].tolist(),
            strict=True,
        )
    )
    by_task: dict[str, list[float]] = {}
    for task, _, value in rows:
        if not isnan(value) and task not in dropped:
            by_task.setdefault(task, []).append(value)
    return by_task


def _compare_pair(
    work: AttemptTable,
    sides: tuple[ComparedSide, ComparedSide],
    margin: float,
    primary: Metric,
    extra_metrics: Sequence[str],
    comparisons: int,
) -> VariantComparison:
    columns = work.columns
    names = dict(zip(columns["task_digest"].tolist(), columns["task"].tolist(), strict=True))
    first, second = sides
    pairs = [
        TaskPair(
            task=names[task] or task,
            first=_shorten_values(first.values[task]),
            second=_shorten_values(second.values[task]),
        )
        for task in first.values
        if task in second.values
    ]
    pairs.sort(
        key=lambda pair: (-abs(fmean(pair.second) - fmean(pair.first)), natural_order(pair.task))
    )
    return VariantComparison(
        first=first.side.name,
        second=second.side.name,
        primary=primary.name,
        kind=primary.kind,
        unit=primary.unit,
        comparison=compare_primary(primary, first.values, second.values, margin, comparisons),
        words=(),
        table=_build_pair_table(pairs) if primary.kind == "rate" else None,
        tasks=tuple(pairs),
        secondary=compare_secondary_metrics(work, first.mask, second.mask, primary, extra_metrics),
        ratios={
            name: estimate_ratio(
                *(collect_task_values(work, side.mask, set(), columns[column]) for side in sides)
            )
            for name, column in RATIO_COLUMNS.items()
        },
    )


# Sides without a common task: two independent groups, with the intervals of a trend.


def collect_unit_values(units: Array, mask: Array, values: Array) -> dict[str, list[float]]:
    """Return the known values by task or session; a task's repeats are not more tasks."""
    by_unit: dict[str, list[float]] = {}
    for unit, value in zip(units[mask].tolist(), values[mask].tolist(), strict=True):
        if not isnan(value):
            by_unit.setdefault(str(unit), []).append(value)
    return by_unit


def compare_independent_sides(
    work: AttemptTable,
    sides: Sequence[ComparedSide],
    margin: float,
    primary: Metric,
    extra_metrics: Sequence[str] = (),
) -> tuple[VariantComparison, ...]:
    """Compare each side with the first, by means over independent tasks or sessions."""
    units = number_tasks(work)
    first, *other_sides = sides
    pairs = []
    for second in other_sides:
        pair = VariantComparison(
            first=first.side.name,
            second=second.side.name,
            primary=primary.name,
            kind=primary.kind,
            unit=primary.unit,
            observational=True,
            comparison=_compare_independent_primary(primary, first, second, margin),
            words=(),
            table=None,
            tasks=(),
            secondary=_explore_independent_metrics(work, units, first, second, extra_metrics),
            ratios={
                name: estimate_independent_ratio(
                    *(
                        _unit_means(collect_unit_values(units, side.mask, work.columns[column]))
                        for side in (first, second)
                    )
                )
                for name, column in RATIO_COLUMNS.items()
            },
        )
        pairs.append(replace(pair, words=tuple(write_verdict(pair))))
    return tuple(pairs)


def _unit_means(values: TaskValues) -> list[float]:
    return [fmean(repeats) for repeats in values.values()]


def _compare_independent_primary(
    metric: Metric, first: ComparedSide, second: ComparedSide, margin: float
) -> Comparison:
    first_means, second_means = _unit_means(first.values), _unit_means(second.values)
    scale = 1.0
    if metric.kind != "rate":
        scale = abs(fmean(first_means)) if first_means else 1.0
        if metric.low is not None and metric.high is not None:
            scale = metric.high - metric.low
    shift = estimate_shift(first_means, second_means)
    if shift is None:
        return Comparison(
            tasks=0,
            margin=margin * scale,
            first=fmean(first_means) if first_means else None,
            second=fmean(second_means) if second_means else None,
            notes=(
                "With one task or session per side, noise cannot be estimated: there are "
                "no bounds.",
            ),
        )
    estimate = _shift_estimate(shift, clamp=metric.kind == "rate")
    verdict = classify_difference(estimate, margin * scale)
    if metric.better == "less":
        verdict = OPPOSITE_VERDICTS.get(verdict, verdict)
    return Comparison(
        tasks=0,
        first=shift.before.value,
        second=shift.after.value,
        alike=estimate,
        alike_word=verdict,
        margin=margin * scale,
    )


def _shift_estimate(shift: PeriodShift, *, clamp: bool) -> Estimate:
    low, high = (max(-1.0, shift.low), min(1.0, shift.high)) if clamp else (shift.low, shift.high)
    return Estimate(
        value=shift.after.value - shift.before.value,
        low=low,
        high=high,
        n=shift.before.n + shift.after.n,
        method=f"independent groups, {shift.before.method}",
    )


def _explore_independent_metrics(
    work: AttemptTable,
    units: Array,
    first: ComparedSide,
    second: ComparedSide,
    extra_metrics: Sequence[str],
) -> tuple[SecondaryMetric, ...]:
    """Compare other requested metrics, with bounds but no test: one may differ by chance."""
    explored = []
    for metric in select_metrics(work, extra_metrics) if extra_metrics else ():
        if metric.kind in REPEAT_KINDS:
            continue
        values = find_metric(work, metric.name)[1](work.columns)
        sides = [
            _unit_means(collect_unit_values(units, side.mask, values)) for side in (first, second)
        ]
        if all(sides):
            shift = estimate_shift(*sides)
            estimate = _shift_estimate(shift, clamp=metric.kind == "rate") if shift else None
            explored.append(
                SecondaryMetric(
                    metric=metric.name,
                    tasks=0,
                    first=fmean(sides[0]),
                    second=fmean(sides[1]),
                    low=estimate.low if estimate else None,
                    high=estimate.high if estimate else None,
                    kind=metric.kind,
                    unit=metric.unit,
                    word="observational",
                )
            )
    return tuple(explored)


def _shorten_values(values: Sequence[float]) -> tuple[int | float, ...]:
    """Convert whole numbers to integers, so that pass and fail are 1 and 0."""
    return tuple(int(value) if value.is_integer() else value for value in values)


def _build_pair_table(pairs: Sequence[TaskPair]) -> PairTable:
    passes = [(fmean(pair.first) > 0.5, fmean(pair.second) > 0.5) for pair in pairs]
    return PairTable(
        both=passes.count((True, True)),
        only_first=passes.count((True, False)),
        only_second=passes.count((False, True)),
        neither=passes.count((False, False)),
    )
