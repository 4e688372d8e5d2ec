"""Comparison of a number that is not a rate: a count, an amount, a mark.

On exactly these tasks, only a task's repeats are random; on tasks like these, the tasks are too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain, pairwise
from math import exp, log, sqrt
from statistics import fmean, variance

from closeloop.records.estimate import Comparison, Estimate, TwoEstimates
from closeloop.statistics.rate_comparison import (
    MIN_PAIRED_TASKS,
    classify_difference,
    comparison_notes,
    newcombe_bounds,
    sign_flip_test,
)
from closeloop.statistics.rate_estimate import TaskValues, check_finite, common_tasks
from closeloop.statistics.special_functions import t_quantile
from closeloop.text.wording import count_with_noun

# The ratio of the second's use to the first's: money, time, tokens, on the same tasks.


ALL_ZERO_NOTE = "Every value is zero for both."


def _note_all_zero(first: Iterable[float], second: Iterable[float]) -> list[str]:
    """Return a note if both sides have only zeros, so that the ratio would be 0/0."""
    return [ALL_ZERO_NOTE] if {*first} == {*second} == {0.0} else []


def estimate_ratio(first: TaskValues, second: TaskValues) -> TwoEstimates:
    """Compare geometric means task by task. Values that are not positive are left out."""
    check_finite(first)
    check_finite(second)
    sides = _log_values(first), _log_values(second)
    tasks = common_tasks(*sides)
    value_count = sum(len(side[task]) for side in (first, second) for task in side)
    dropped_count = value_count - sum(len(side[task]) for side in sides for task in side)
    subject = count_with_noun(
        dropped_count, "value that is not above zero was", "values that are not above zero were"
    )
    notes = [f"{subject} excluded."] if dropped_count else []
    if not tasks:
        notes.append("No task has a value above zero for both.")
        notes += _note_all_zero(*(chain.from_iterable(side.values()) for side in (first, second)))
        return TwoEstimates(here=None, alike=None, attempts=0, notes=tuple(notes))
    pairs = [(sides[0][task], sides[1][task]) for task in tasks]
    noise, freedom = pooled_variance([group for pair in pairs for group in pair])
    here_estimate = _ratio_on_these_tasks(pairs, noise, freedom)
    alike_estimate = _ratio_on_like_tasks(pairs, noise)
    if here_estimate is None and alike_estimate is None:
        notes.append("With one value per task, noise cannot be estimated: run more repeats.")
    elif any(
        estimate is not None and estimate.low == estimate.high
        for estimate in (here_estimate, alike_estimate)
    ):
        notes.append(
            "Every task gives the same ratio, so the bounds have no width and show no noise."
        )
    return TwoEstimates(
        here=here_estimate,
        alike=alike_estimate,
        attempts=sum(len(before) + len(after) for before, after in pairs),
        notes=tuple(notes),
    )


def estimate_independent_ratio(first: Sequence[float], second: Sequence[float]) -> TwoEstimates:
    """Compare geometric means of two groups without a common task; values that are not positive are
    left out. The bounds combine those of the two sides by Newcombe's method."""
    logs = [[log(value) for value in side if value > 0] for side in (first, second)]
    if min(map(len, logs)) < 2:
        notes = ["At least two values above zero per side are needed: run more."]
        notes += _note_all_zero(first, second)
        return TwoEstimates(here=None, alike=None, attempts=0, notes=tuple(notes))
    means = [_mean_of_logs(side) for side in logs]
    low, high = newcombe_bounds(*means)
    value = means[1].value - means[0].value
    alike_estimate = Estimate(
        value=_finite_exp(value),
        low=_finite_exp(low),
        high=_finite_exp(high),
        n=len(logs[0]) + len(logs[1]),
        method="ratio of geometric means, independent groups",
    )
    return TwoEstimates(here=None, alike=alike_estimate, attempts=alike_estimate.n)


def _mean_of_logs(logs: Sequence[float]) -> Estimate:
    value = fmean(logs)
    half_width = t_quantile(0.975, len(logs) - 1) * sqrt(variance(logs) / len(logs))
    return Estimate(
        value=value, low=value - half_width, high=value + half_width, n=len(logs), method="t"
    )


LogPairs = Sequence[tuple[Sequence[float], Sequence[float]]]


def _log_values(values: TaskValues) -> dict[str, list[float]]:
    return {
        task: [log(repeat) for repeat in repeats if repeat > 0] for task, repeats in values.items()
    }


def pooled_variance(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the pooled variance within groups, and its degrees of freedom."""
    repeated_groups = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in repeated_groups)
    squares = sum(variance(group) * (len(group) - 1) for group in repeated_groups)
    return (squares / freedom if freedom else 0.0), freedom


def _ratio_on_these_tasks(pairs: LogPairs, noise: float, freedom: int) -> Estimate | None:
    if not freedom:
        return None
    spread = sqrt(noise * sum(1 / len(before) + 1 / len(after) for before, after in pairs)) / len(
        pairs
    )
    return _estimate_from_logs(
        pairs, t_quantile(0.975, freedom) * spread, "log ratio, noise of repeats"
    )


def _ratio_on_like_tasks(pairs: LogPairs, noise: float) -> Estimate | None:
    if len(pairs) < 2:
        return None
    floor = noise * fmean(1 / len(before) + 1 / len(after) for before, after in pairs)
    spread = sqrt(max(variance(_log_differences(pairs)), floor) / len(pairs))
    half_width = t_quantile(0.975, len(pairs) - 1) * spread
    return _estimate_from_logs(pairs, half_width, "paired t of log ratios")


def _log_differences(pairs: LogPairs) -> list[float]:
    return [fmean(after) - fmean(before) for before, after in pairs]


def _estimate_from_logs(pairs: LogPairs, half_width: float, method: str) -> Estimate:
    middle = fmean(_log_differences(pairs))
    low, value, high = (_finite_exp(middle + step) for step in (-half_width, 0.0, half_width))
    return Estimate(value=value, low=low, high=high, n=len(pairs), method=method)


def _finite_exp(exponent: float) -> float:
    """Limit the exponent so that the result is finite."""
    return exp(max(-700.0, min(700.0, exponent)))


def compare_means(
    first: TaskValues, second: TaskValues, *, margin: float, comparisons: int = 1
) -> Comparison:
    """Return the difference of the second to the first in the number's own unit, as is the margin.

    The bounds on these tasks hold for so many comparisons at once.
    """
    check_finite(first)
    check_finite(second)
    tasks = common_tasks(first, second)
    if not tasks:
        return Comparison(tasks=0, margin=margin, notes=("No task was scored for both.",))
    noise, freedom = pooled_variance([side[task] for side in (first, second) for task in tasks])
    differences = [fmean(second[task]) - fmean(first[task]) for task in tasks]
    value = fmean(differences)
    floor = fmean(noise / len(first[task]) + noise / len(second[task]) for task in tasks)
    here_estimate = None
    if freedom and noise:
        half_width = t_quantile(1 - 0.025 / comparisons, freedom) * sqrt(floor / len(tasks))
        here_estimate = _make_estimate(value, half_width, len(tasks), "noise of repeats, pooled")
    alike_estimate = None
    distinct_values = {value for side in (first, second) for task in tasks for value in side[task]}
    if len(tasks) > 1 and (
        spread := max(variance(differences), floor) or rounding_variance(distinct_values)
    ):
        half_width = t_quantile(0.975, len(tasks) - 1) * sqrt(spread / len(tasks))
        alike_estimate = _make_estimate(value, half_width, len(tasks), "paired t, variance floored")
    test = (
        sign_flip_test([Fraction(difference) for difference in differences])
        if len(tasks) >= MIN_PAIRED_TASKS
        else None
    )
    alike_word = "not enough data" if test is None else classify_difference(alike_estimate, margin)
    if alike_word in ("better", "worse") and (test is None or test.p > 0.05):
        alike_word = "not enough data"
    return Comparison(
        tasks=len(tasks),
        first=fmean(fmean(first[task]) for task in tasks),
        second=fmean(fmean(second[task]) for task in tasks),
        here=here_estimate,
        here_word=classify_difference(here_estimate, margin),
        alike=alike_estimate,
        alike_word=alike_word,
        margin=margin,
        test=test,
        notes=(*_repeat_notes(freedom), *comparison_notes(first, second, tasks)),
    )


def rounding_variance(values: Iterable[float]) -> float:
    """Return the variance of a difference that rounding alone explains.

    Marks have a step, the smallest difference between two of them; each may be off by half of it.
    """
    distinct_values = sorted({*values})
    step = min((after - before for before, after in pairwise(distinct_values)), default=0.0)
    return 2 * step**2 / 12


def _make_estimate(value: float, half_width: float, tasks: int, method: str) -> Estimate:
    return Estimate(
        value=value, low=value - half_width, high=value + half_width, n=tasks, method=method
    )


def _repeat_notes(freedom: int) -> tuple[str, ...]:
    if freedom:
        return ()
    return ("Without repeats of a task its noise is unknown: no bounds on exactly these tasks.",)
