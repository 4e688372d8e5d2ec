"""Is the second more than the first, of a number that is no rate: a count, an amount, a mark.

On exactly these tasks the repeats of a task are chance; on tasks like these, the tasks are, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from math import sqrt
from statistics import fmean, variance

from closeloop.records.estimate import Comparison, Estimate
from closeloop.statistics.log_ratios import pooled_variance
from closeloop.statistics.rate_comparison import (
    MIN_PAIRED_TASKS,
    classify_difference,
    comparison_notes,
    sign_flip_test,
)
from closeloop.statistics.rate_estimate import TaskValues, check_finite, common_tasks, t_quantile


def compare_means(
    first: TaskValues, second: TaskValues, *, margin: float, comparisons: int = 1
) -> Comparison:
    """How much more the second has, in the number's own unit; the margin is in it, too.

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
    here = None
    if freedom and noise:
        half = t_quantile(1 - 0.025 / comparisons, freedom) * sqrt(floor / len(tasks))
        here = _make_estimate(value, half, len(tasks), "noise of repeats, pooled")
    alike = None
    marks = {value for side in (first, second) for task in tasks for value in side[task]}
    if len(tasks) > 1 and (spread := max(variance(differences), floor) or rounding_variance(marks)):
        half = t_quantile(0.975, len(tasks) - 1) * sqrt(spread / len(tasks))
        alike = _make_estimate(value, half, len(tasks), "paired t, variance floored")
    test = (
        sign_flip_test([Fraction(one) for one in differences])
        if len(tasks) >= MIN_PAIRED_TASKS
        else None
    )
    word = "not enough data" if test is None else classify_difference(alike, margin)
    if word in ("better", "worse") and (test is None or test.p > 0.05):
        word = "not enough data"
    return Comparison(
        tasks=len(tasks),
        first=fmean(fmean(first[task]) for task in tasks),
        second=fmean(fmean(second[task]) for task in tasks),
        here=here,
        here_word=classify_difference(here, margin),
        alike=alike,
        alike_word=word,
        margin=margin,
        test=test,
        notes=(*_repeat_notes(freedom), *comparison_notes(first, second, tasks)),
    )


def rounding_variance(values: Iterable[float]) -> float:
    """Of a difference between two values, where nothing else shows any: what rounding makes.

    Marks are a step apart, the least that two of them differ by: each may be off by half of it.
    """
    marks = sorted({*values})
    step = min((after - before for before, after in pairwise(marks)), default=0.0)
    return 2 * step**2 / 12


def _make_estimate(value: float, half: float, tasks: int, method: str) -> Estimate:
    return Estimate(value=value, low=value - half, high=value + half, n=tasks, method=method)


def _repeat_notes(freedom: int) -> tuple[str, ...]:
    if freedom:
        return ()
    return ("Without repeats of a task nothing shows its noise: no bounds on exactly these tasks.",)
