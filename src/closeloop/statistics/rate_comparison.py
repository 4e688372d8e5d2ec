"""Is the second better than the first? Two questions with one verdict each.

On exactly these tasks, repeats are random. On tasks like these, tasks are too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate
from math import ceil, comb, hypot, lcm, sqrt
from statistics import NormalDist, fmean, harmonic_mean, variance

from closeloop.records.estimate import (
    Comparison,
    ComparisonVerdict,
    Estimate,
    PairedTest,
    SampleSizeAdvice,
)
from closeloop.records.record import Record
from closeloop.statistics.rate_estimate import (
    TaskValues,
    check_shares,
    common_tasks,
    estimate_noisy_mean,
    jeffreys_variance,
    posterior_bounds,
)
from closeloop.statistics.special_functions import binomial_share, normal_tail, t_quantile

# The difference between two variants, on the
# tasks that both tried and on tasks like these.
#
# Tasks weigh equally; a task's value is the mean of its repeats. On exactly these tasks only the
# repeats are random; on tasks like these, so are the tasks.


class DifferenceInterval(Record):
    """Difference of the second to the first."""

    tasks: int
    first: float
    second: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        return self.second - self.first


def rate_difference(
    first: TaskValues, second: TaskValues, *, comparisons: int = 1
) -> DifferenceInterval | None:
    """Return the difference with its 95 % interval; None without a common task.

    The interval combines those of the two sides by Newcombe's method (1998), and holds for all of
    so many comparisons together.
    """
    tasks = common_tasks(first, second)
    if not tasks:
        return None
    before, after = (
        estimate_noisy_mean([side[task] for task in tasks]) for side in (first, second)
    )
    (before_low, before_high), (after_low, after_high) = (
        posterior_bounds(side.mean, side.attempts, 0.05 / comparisons) for side in (before, after)
    )
    value = after.mean - before.mean
    return DifferenceInterval(
        tasks=len(tasks),
        first=before.mean,
        second=after.mean,
        low=max(-1.0, value - hypot(after.mean - after_low, before_high - before.mean)),
        high=min(1.0, value + hypot(after_high - after.mean, before.mean - before_low)),
    )


def newcombe_bounds(first: Estimate, second: Estimate) -> tuple[float, float]:
    """Return bounds of the difference from those of two independent estimates."""
    value = second.value - first.value
    return (
        value - sqrt((second.value - second.low) ** 2 + (first.high - first.value) ** 2),
        value + sqrt((second.high - second.value) ** 2 + (first.value - first.low) ** 2),
    )


def paired_t_difference(
    first: TaskValues, second: TaskValues, *, comparisons: int = 1
) -> Estimate | None:
    """Return a paired t-interval of the tasks' differences; None with fewer than two tasks.

    Their variance is at least that of their repeats: else tasks that happen to agree would promise
    that all others do. The interval holds at 95 % for all of so many comparisons together.
    """
    tasks = common_tasks(first, second)
    if len(tasks) < 2:
        return None
    differences = [fmean(second[task]) - fmean(first[task]) for task in tasks]
    floor = fmean(
        jeffreys_variance(first[task]) + jeffreys_variance(second[task]) for task in tasks
    )
    noise = max(variance(differences), floor)
    reach = t_quantile(1 - 0.025 / comparisons, len(tasks) - 1)
    value, half_width = fmean(differences), reach * sqrt(noise / len(tasks))
    return Estimate(
        value=value,
        low=max(-1.0, value - half_width),
        high=min(1.0, value + half_width),
        n=len(tasks),
        method="paired t, variance floored",
    )


# Exact tests of paired tasks: could the signs of the differences be random?

MIN_PAIRED_TASKS = 6
"""With fewer tasks, the smallest p of an exact two-sided test is over 0.05."""
MAX_ENUMERATED_TASKS = 20
MAX_TABLE_CELLS = 50_000_000
SIGN_DRAWS = 100_000
MAX_DRAWN_TASKS = 500
"""With more tasks, the sum of signs is practically normal."""
SUM_TOLERANCE = 1e-9
"""Sums that differ by less are equal up to rounding."""


def run_paired_test(first: TaskValues, second: TaskValues) -> PairedTest | None:
    """Test paired tasks by McNemar for single yes-or-no repeats, else by sign flips.

    None if there are too few tasks, or none differs.
    """
    tasks = common_tasks(first, second)
    pairs = [(first[task], second[task]) for task in tasks]
    if len(tasks) < MIN_PAIRED_TASKS:
        return None
    if all(
        len(before) == len(after) == 1 and {before[0], after[0]} <= {0, 1}
        for before, after in pairs
    ):
        gained = sum(after[0] > before[0] for before, after in pairs)
        lost = sum(after[0] < before[0] for before, after in pairs)
        return mcnemar_test(gained, lost, len(tasks)) if gained + lost else None
    return sign_flip_test([_exact_mean(after) - _exact_mean(before) for before, after in pairs])


def mcnemar_test(gained: int, lost: int, tasks: int) -> PairedTest:
    """Test whether the tasks that changed sides are split evenly."""
    changed = gained + lost
    p = min(1.0, 2 * binomial_share(min(gained, lost), changed))
    return PairedTest(p=p, n=tasks, method="exact McNemar")


def sign_flip_test(differences: Sequence[Fraction]) -> PairedTest | None:
    """Return the share of all sign choices whose sum is at least as far from 0."""
    nonzero_differences = [difference for difference in differences if difference]
    if not nonzero_differences:
        return None
    observed_sum, tasks = abs(sum(nonzero_differences, Fraction())), len(differences)
    sizes = [float(abs(nonzero_difference)) for nonzero_difference in nonzero_differences]
    if len(nonzero_differences) <= MAX_ENUMERATED_TASKS:
        return PairedTest(
            p=_enumerate_signs(sizes, float(observed_sum)), n=tasks, method="exact sign-flip"
        )
    scale = lcm(*(nonzero_difference.denominator for nonzero_difference in nonzero_differences))
    integer_sizes = [
        abs(int(nonzero_difference * scale)) for nonzero_difference in nonzero_differences
    ]
    if (sum(integer_sizes) + 1) * len(integer_sizes) <= MAX_TABLE_CELLS:
        p = _count_sign_sums(integer_sizes, int(observed_sum * scale))
        return PairedTest(p=p, n=tasks, method="exact sign-flip")
    if len(nonzero_differences) > MAX_DRAWN_TASKS:
        p = 2 * normal_tail(float(observed_sum) / sqrt(sum(size * size for size in sizes)))
        return PairedTest(p=p, n=tasks, method="sign-flip, normal limit")
    p = _draw_signs(sizes, float(observed_sum))
    return PairedTest(p=p, n=tasks, method=f"sign-flip, {SIGN_DRAWS:,} draws")


def _exact_mean(values: Sequence[float]) -> Fraction:
    return Fraction(sum(values)) / len(values)


def _count_sign_sums(sizes: Sequence[int], observed_sum: int) -> float:
    """Compute the exact distribution of sums of positive values, task by task."""
    import numpy as np

    chances = np.zeros(sum(sizes) + 1)
    chances[0], max_sum = 1.0, 0
    for size in sizes:
        chances[size : max_sum + size + 1] += chances[: max_sum + 1].copy()
        max_sum += size
        chances[: max_sum + 1] /= 2
    sums = np.abs(2 * np.arange(len(chances)) - sum(sizes))
    return min(1.0, float(chances[sums >= observed_sum].sum()))


def _enumerate_signs(sizes: Sequence[float], observed_sum: float) -> float:
    """Enumerate every choice of signs; the first sign is irrelevant."""
    import numpy as np

    sums = np.array([sizes[0]])
    for size in sizes[1:]:
        sums = np.concatenate([sums - size, sums + size])
    return float(np.mean(np.abs(sums) >= observed_sum - SUM_TOLERANCE))


def _draw_signs(sizes: Sequence[float], observed_sum: float) -> float:
    """Draw random signs with a fixed seed; the observed sum counts as one draw."""
    import numpy as np

    random_state, extreme_draws = np.random.RandomState(0), 0
    for _ in range(SIGN_DRAWS // 1000):
        signs = random_state.randint(0, 2, size=(1000, len(sizes))) * 2 - 1
        extreme_draws += int(
            np.sum(np.abs(signs @ np.array(sizes)) >= observed_sum - SUM_TOLERANCE)
        )
    return (extreme_draws + 1) / (SIGN_DRAWS + 1)


# The power of a plan before it is run, and what would increase it afterwards.
#
# Both variants try the same tasks, so the tasks' differences are compared with a paired t-test,
# at 5 % and with 80 % power.

SIGNIFICANCE, POWER = 0.05, 0.8
NORMAL_975, NORMAL_POWER = 1.959964, 0.841621
"""Quantiles of the normal distribution at 97.5 % and at the power."""
DEFAULT_REPEAT_VARIANCE = 0.2
"""Variance of one repeat: that of a task which three of four attempts pass, or one of four."""
MAX_COUNTED_ATTEMPTS = 100
"""Above this the normal distribution is near enough."""
EFFECT_PRECISION = 0.001
MAX_ADDITIONS = 10_000
"""More additional tasks or repeats are infeasible."""


def detectable_difference(
    tasks: int, repeats: float, *, within: float = DEFAULT_REPEAT_VARIANCE, between: float = 0.0
) -> float | None:
    """Return the smallest detectable difference in pass rate; None if even 1 is not detectable.

    Before a run, a task's difference is assumed to vary by its repeats alone. It varies at least
    that much, so fewer tasks never suffice.
    """
    if tasks < 2 or repeats < 1:
        return None
    freedom = tasks - 1
    steps = t_quantile(1 - SIGNIFICANCE / 2, freedom) + t_quantile(POWER, freedom)
    effect = steps * sqrt((between + 2 * within / repeats) / tasks)
    return effect if effect <= 1 else None


def detectable_on_these_tasks(tasks: int, repeats: float, *, comparisons: int = 1) -> float | None:
    """Return the smallest detectable difference on exactly these tasks; None if there is none.

    `rate_difference` decides. It is assumed to compare two groups of `tasks` × `repeats` attempts,
    whose rates are equally far from a half, where rates vary most.
    """
    attempts, alpha = int(tasks * repeats), SIGNIFICANCE / comparisons
    if attempts > MAX_COUNTED_ATTEMPTS:
        z_sum = NormalDist().inv_cdf(1 - alpha / 2) + NORMAL_POWER
        return z_sum / sqrt(2 * attempts + z_sum * z_sum)
    if attempts < 1:
        return None
    bounds = [posterior_bounds(hits / attempts, attempts, alpha) for hits in range(attempts + 1)]
    needed_hits = [_smallest_better(hits / attempts, bounds) for hits in range(attempts + 1)]
    if needed_hits[0] is None:
        return None
    combinations = [comb(attempts, hits) for hits in range(attempts + 1)]
    low, high = 0.0, 1.0
    while high - low > EFFECT_PRECISION:
        middle = (low + high) / 2
        low, high = (
            (low, middle) if _power(middle, needed_hits, combinations) >= POWER else (middle, high)
        )
    return high


def _smallest_better(worse_rate: float, bounds: Sequence[tuple[float, float]]) -> int | None:
    """Return the fewest hits of one group that are surely better than the other's rate."""
    attempts = len(bounds) - 1
    worse_high = bounds[round(worse_rate * attempts)][1]
    for hits, (better_low, _) in enumerate(bounds):
        better_rate = hits / attempts
        if better_rate - worse_rate > hypot(better_rate - better_low, worse_high - worse_rate):
            return hits
    return None


def _power(effect: float, needed_hits: Sequence[int | None], combinations: Sequence[int]) -> float:
    """Return the probability that the better of two rates with this difference is found better."""
    attempts, rate = len(combinations) - 1, (1 + effect) / 2
    chances = [
        combinations[hits] * rate**hits * (1 - rate) ** (attempts - hits)
        for hits in range(attempts + 1)
    ]
    tails = [*accumulate(reversed(chances))][::-1]
    return sum(
        chances[attempts - hits] * tails[needed]
        for hits, needed in enumerate(needed_hits)
        if needed is not None
    )


def advise_sample_size(
    effect: float,
    tasks: int,
    repeats: float,
    *,
    within: float = DEFAULT_REPEAT_VARIANCE,
    between: float = 0.0,
) -> SampleSizeAdvice:
    """Return how many more tasks, or repeats of each, would show a difference of that size."""

    def shows(task_count: int, repeat_count: float) -> bool:
        detectable = detectable_difference(task_count, repeat_count, within=within, between=between)
        return task_count >= MIN_PAIRED_TASKS and detectable is not None and detectable <= effect

    return SampleSizeAdvice(
        effect=effect,
        tasks=_smallest_sufficient(lambda extra_tasks: shows(tasks + extra_tasks, repeats)),
        repeats=_smallest_sufficient(lambda extra_repeats: shows(tasks, repeats + extra_repeats)),
    )


def outcomes_needed(first: Sequence[float], second: Sequence[float], effect: float) -> int | None:
    """Return how many outcomes of both groups would show a difference in one look.

    At 5 % and with 80 % power, from the observed variances and shares of the groups.
    """
    total = len(first) + len(second)
    if not first or not second or effect <= 0:
        return None
    share = len(second) / total
    noise = _repeat_variance(first) / (1 - share) + _repeat_variance(second) / share
    steps = NORMAL_975 + NORMAL_POWER
    count = ceil(steps * steps * noise / (effect * effect))
    return count if count <= 2 * MAX_ADDITIONS else None


def _smallest_sufficient(is_sufficient: Callable[[int], bool]) -> int | None:
    """Return the smallest sufficient number of a monotone condition."""
    if not is_sufficient(MAX_ADDITIONS):
        return None
    low, high = -1, MAX_ADDITIONS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_sufficient(middle) else (middle, high)
    return high


DEFAULT_MARGIN = 0.05


def compare_rates(
    first: TaskValues, second: TaskValues, *, margin: float = DEFAULT_MARGIN, comparisons: int = 1
) -> Comparison:
    """Return the difference of the second to the first; more is better.

    Bounds on exactly these tasks hold for this many comparisons at once.
    """
    check_shares(first)
    check_shares(second)
    tasks = common_tasks(first, second)
    interval = rate_difference(first, second, comparisons=comparisons)
    if interval is None:
        return Comparison(tasks=0, margin=margin, notes=("No task was scored for both.",))
    comparisons_note = f", {comparisons} comparisons" if comparisons > 1 else ""
    here_estimate = Estimate(
        value=interval.difference,
        low=interval.low,
        high=interval.high,
        n=interval.tasks,
        method=f"noise of repeats{comparisons_note}",
    )
    alike_estimate = paired_t_difference(first, second)
    test = run_paired_test(first, second)
    here_word = classify_difference(here_estimate, margin)
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
        here=here_estimate,
        here_word=here_word,
        alike=alike_estimate,
        alike_word=alike_word,
        margin=margin,
        test=test,
        repeats=repeats,
        detectable=detectable_difference(len(tasks), repeats),
        detectable_here=detectable_on_these_tasks(len(tasks), repeats, comparisons=comparisons),
        advice=_build_advice(first, second, tasks, repeats, max(margin, abs(here_estimate.value)))
        if "not enough data" in (here_word, alike_word)
        else None,
        notes=tuple(comparison_notes(first, second, tasks)),
    )


def classify_difference(estimate: Estimate | None, margin: float) -> ComparisonVerdict:
    """Return the verdict that the bounds of a difference allow."""
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
    """Advise from the observed variance of these tasks, within and between."""
    noise = fmean(
        jeffreys_variance(first[task]) + jeffreys_variance(second[task]) for task in tasks
    )
    differences = [fmean(second[task]) - fmean(first[task]) for task in tasks]
    between = max(0.0, variance(differences) - noise) if len(tasks) > 1 else 0.0
    within = fmean(_repeat_variance(side[task]) for side in (first, second) for task in tasks)
    return advise_sample_size(effect, len(tasks), repeats, within=within, between=between)


def _repeat_variance(values: Sequence[float]) -> float:
    """Return the variance of one repeat, from the posterior mean of the rate."""
    rate = (sum(values) + 0.5) / (len(values) + 1)
    return rate * (1 - rate)


def comparison_notes(first: TaskValues, second: TaskValues, tasks: Sequence[str]) -> list[str]:
    """List what limits a comparison: few tasks, tasks of one side only, values that never
    differ."""
    notes = []
    if len(tasks) < MIN_PAIRED_TASKS:
        notes.append(
            f"{_task_count_text(len(tasks))} cannot decide for similar tasks: with "
            f"fewer than {MIN_PAIRED_TASKS}, no exact paired test can reach 0.05."
        )
    for side, name in ((first, "first"), (second, "second")):
        if unpaired_count := sum(1 for repeats in side.values() if len(repeats)) - len(tasks):
            verb = "is" if unpaired_count == 1 else "are"
            notes.append(
                f"{_task_count_text(unpaired_count)} had a score only for the {name} "
                f"and {verb} excluded."
            )
    if len({value for side in (first, second) for task in tasks for value in side[task]}) == 1:
        notes.append("Every value is the same: there is nothing to test.")
    return notes


def _task_count_text(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"
