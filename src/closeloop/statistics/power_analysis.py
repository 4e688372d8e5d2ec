"""What a plan will show before it is run, and what would show more after it.

Both variants try the same tasks, so the tasks' differences are compared with a paired t-test, at
5 % and with 80 % power.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from closeloop.records.estimate import SampleSizeAdvice
from closeloop.statistics.distributions import t_quantile
from closeloop.statistics.paired_tests import MIN_PAIRED_TASKS

SIGNIFICANCE, POWER = 0.05, 0.8
DEFAULT_REPEAT_VARIANCE = 0.2
"""Of one repeat: that of a task which three of four attempts pass, or one of four."""
MAX_ADDITIONS = 10_000
"""More tasks, or more repeats of each, nobody runs."""


def detectable_difference(
    tasks: int, repeats: float, *, within: float = DEFAULT_REPEAT_VARIANCE, between: float = 0.0
) -> float | None:
    """In pass rate, from 0 to 1; None where not even the largest difference would show.

    Before a run, a task's difference is taken to vary by its repeats alone: at least that much it
    does, so that fewer tasks never suffice.
    """
    if tasks < 2 or repeats < 1:
        return None
    freedom = tasks - 1
    steps = t_quantile(1 - SIGNIFICANCE / 2, freedom) + t_quantile(POWER, freedom)
    effect = steps * sqrt((between + 2 * within / repeats) / tasks)
    return effect if effect <= 1 else None


def advise_sample_size(
    effect: float,
    tasks: int,
    repeats: float,
    *,
    within: float = DEFAULT_REPEAT_VARIANCE,
    between: float = 0.0,
) -> SampleSizeAdvice:
    """How many more tasks, or more repeats of each, would show a difference of that size."""

    def shows(number: int, each: float) -> bool:
        seen = detectable_difference(number, each, within=within, between=between)
        return number >= MIN_PAIRED_TASKS and seen is not None and seen <= effect

    return SampleSizeAdvice(
        effect=effect,
        tasks=_smallest_sufficient(lambda more: shows(tasks + more, repeats)),
        repeats=_smallest_sufficient(lambda more: shows(tasks, repeats + more)),
    )


def _smallest_sufficient(enough: Callable[[int], bool]) -> int | None:
    """The smallest number that is enough, where more are never too few."""
    if not enough(MAX_ADDITIONS):
        return None
    low, high = -1, MAX_ADDITIONS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
