"""Is the second better than the first? Two questions, both answered in a word.

On exactly these tasks, repeats decide. On tasks like these, tasks do.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, harmonic_mean
from statistics import variance as spread

from closeloop.records.estimate import Comparison, ComparisonVerdict, Estimate, SampleSizeAdvice
from closeloop.statistics import power_analysis
from closeloop.statistics.paired_tests import MIN_PAIRED_TASKS, run_paired_test
from closeloop.statistics.rate_differences import paired_t_difference, rate_difference
from closeloop.statistics.repeat_noise import jeffreys_variance
from closeloop.statistics.task_values import TaskValues, check_shares, common_tasks

DEFAULT_MARGIN = 0.05


def compare_rates(
    first: TaskValues, second: TaskValues, *, margin: float = DEFAULT_MARGIN
) -> Comparison:
    """How much more the second has than the first; more is better."""
    check_shares(first)
    check_shares(second)
    tasks = common_tasks(first, second)
    interval = rate_difference(first, second)
    if interval is None:
        return Comparison(tasks=0, margin=margin, notes=("No task was scored for both.",))
    here = Estimate(
        value=interval.difference,
        low=interval.low,
        high=interval.high,
        n=interval.tasks,
        method="noise of repeats",
    )
    alike_estimate = paired_t_difference(first, second)
    test = run_paired_test(first, second)
    here_word = classify_difference(here, margin)
    alike_word = (
        "not enough data"
        if len(tasks) < MIN_PAIRED_TASKS
        else classify_difference(alike_estimate, margin)
    )
    if alike_word in ("better", "worse") and (test is None or test.p > 0.05):
        alike_word = "not enough data"
    repeats = harmonic_mean([len(side[task]) for side in (first, second) for task in tasks])
    return Comparison(
        tasks=len(tasks),
        first=interval.first,
        second=interval.second,
        here=here,
        here_word=here_word,
        alike=alike_estimate,
        alike_word=alike_word,
        margin=margin,
        test=test,
        detectable=power_analysis.detectable_difference(len(tasks), repeats),
        advice=_build_advice(first, second, tasks, repeats, max(margin, abs(here.value)))
        if "not enough data" in (here_word, alike_word)
        else None,
        notes=tuple(_comparison_notes(first, second, tasks)),
    )


def classify_difference(estimate: Estimate | None, margin: float) -> ComparisonVerdict:
    """What the bounds of a difference allow to say."""
    if estimate is None:
        return "not enough data"
    if estimate.low > 0:
        return "better"
    if estimate.high < 0:
        return "worse"
    if -margin <= estimate.low and estimate.high <= margin:
        return "no difference larger than the margin"
    return "not enough data"


def _build_advice(
    first: TaskValues, second: TaskValues, tasks: Sequence[str], repeats: float, effect: float
) -> SampleSizeAdvice:
    """By how much these tasks were seen to vary, within and between."""
    noise = fmean(
        jeffreys_variance(first[task]) + jeffreys_variance(second[task]) for task in tasks
    )
    differences = [fmean(second[task]) - fmean(first[task]) for task in tasks]
    between = max(0.0, spread(differences) - noise) if len(tasks) > 1 else 0.0
    within = fmean(_repeat_variance(side[task]) for side in (first, second) for task in tasks)
    return power_analysis.advise_sample_size(
        effect, len(tasks), repeats, within=within, between=between
    )


def _repeat_variance(values: Sequence[float]) -> float:
    """The variance of one repeat, from the posterior mean of the rate."""
    rate = (sum(values) + 0.5) / (len(values) + 1)
    return rate * (1 - rate)


def _comparison_notes(first: TaskValues, second: TaskValues, tasks: Sequence[str]) -> list[str]:
    notes = []
    if len(tasks) < MIN_PAIRED_TASKS:
        notes.append(
            f"{_task_count_text(len(tasks))} cannot decide for tasks like these: "
            f"under {MIN_PAIRED_TASKS}, no exact paired test can reach 0.05."
        )
    for side, name in ((first, "first"), (second, "second")):
        if unpaired_count := sum(1 for repeats in side.values() if len(repeats)) - len(tasks):
            verb = "is" if unpaired_count == 1 else "are"
            notes.append(
                f"{_task_count_text(unpaired_count)} had a score only for the {name} and {verb}"
                " left out."
            )
    if len({value for side in (first, second) for task in tasks for value in side[task]}) == 1:
        notes.append("Every value is the same: there is nothing to test.")
    return notes


def _task_count_text(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"
