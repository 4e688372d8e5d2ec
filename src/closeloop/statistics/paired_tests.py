"""Exact tests of paired tasks: could the signs of the differences be chance?"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm, sqrt

from closeloop.records.estimate import PairedTest
from closeloop.statistics.distributions import binomial_share, normal_tail
from closeloop.statistics.task_values import TaskValues, common_tasks

MIN_PAIRED_TASKS = 6
"""Tasks: with fewer, the smallest p of an exact two-sided test is over 0.05."""
MAX_ENUMERATED_TASKS = 20
MAX_TABLE_CELLS = 50_000_000
SIGN_DRAWS = 100_000
MAX_DRAWN_TASKS = 500
"""Tasks: the sum of more signs than this is normal, as near as draws would tell."""
SUM_TOLERANCE = 1e-9
"""Sums that differ by less are equal: their parts were rounded."""


def run_paired_test(first: TaskValues, second: TaskValues) -> PairedTest | None:
    """McNemar's test of single yes or no repeats, else sign-flip; None where none can be made."""
    tasks = common_tasks(first, second)
    pairs = [(first[task], second[task]) for task in tasks]
    if len(tasks) < MIN_PAIRED_TASKS:
        return None
    if all(len(one) == len(other) == 1 and {one[0], other[0]} <= {0, 1} for one, other in pairs):
        gained = sum(other[0] > one[0] for one, other in pairs)
        lost = sum(other[0] < one[0] for one, other in pairs)
        return mcnemar_test(gained, lost, len(tasks)) if gained + lost else None
    return sign_flip_test([_exact_mean(other) - _exact_mean(one) for one, other in pairs])


def mcnemar_test(gained: int, lost: int, tasks: int) -> PairedTest:
    """Of the tasks that changed sides, as many to each side were expected."""
    changed = gained + lost
    p = min(1.0, 2 * binomial_share(min(gained, lost), changed))
    return PairedTest(p=p, n=tasks, method="exact McNemar")


def sign_flip_test(differences: Sequence[Fraction]) -> PairedTest | None:
    """The share of all choices of signs whose sum is at least as far from 0."""
    nonzero_differences = [one for one in differences if one]
    if not nonzero_differences:
        return None
    observed_sum, tasks = abs(sum(nonzero_differences, Fraction())), len(differences)
    sizes = [float(abs(one)) for one in nonzero_differences]
    if len(nonzero_differences) <= MAX_ENUMERATED_TASKS:
        return PairedTest(
            p=_enumerate_signs(sizes, float(observed_sum)), n=tasks, method="exact sign-flip"
        )
    scale = lcm(*(one.denominator for one in nonzero_differences))
    integer_sizes = [abs(int(one * scale)) for one in nonzero_differences]
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


def _count_sign_sums(sizes: Sequence[int], seen: int) -> float:
    """How likely each sum of the positive ones is, task by task."""
    import numpy as np

    chances = np.zeros(sum(sizes) + 1)
    chances[0], reached = 1.0, 0
    for size in sizes:
        chances[size : reached + size + 1] += chances[: reached + 1].copy()
        reached += size
        chances[: reached + 1] /= 2
    sums = np.abs(2 * np.arange(len(chances)) - sum(sizes))
    return min(1.0, float(chances[sums >= seen].sum()))


def _enumerate_signs(sizes: Sequence[float], seen: float) -> float:
    """Every choice of signs; the first one's does not matter."""
    import numpy as np

    sums = np.array([sizes[0]])
    for size in sizes[1:]:
        sums = np.concatenate([sums - size, sums + size])
    return float(np.mean(np.abs(sums) >= seen - SUM_TOLERANCE))


def _draw_signs(sizes: Sequence[float], seen: float) -> float:
    """Signs by lot, the same at every call; what was seen counts as one draw."""
    import numpy as np

    random_state, hits = np.random.RandomState(0), 0
    for _ in range(SIGN_DRAWS // 1000):
        signs = random_state.randint(0, 2, size=(1000, len(sizes))) * 2 - 1
        hits += int(np.sum(np.abs(signs @ np.array(sizes)) >= seen - SUM_TOLERANCE))
    return (hits + 1) / (SIGN_DRAWS + 1)
