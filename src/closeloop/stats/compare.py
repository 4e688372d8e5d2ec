"""Is the second better than the first? Two questions, both answered in a word.

On exactly these tasks, repeats decide. On tasks like these, tasks do.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, harmonic_mean
from statistics import variance as spread

from closeloop.model.estimate import Advice, Comparison, Estimate, Word
from closeloop.stats import power
from closeloop.stats.differences import alike, difference
from closeloop.stats.exactly import jeffreys
from closeloop.stats.paired import FEWEST, paired_test
from closeloop.stats.values import Values, check_shares, common

MARGIN = 0.05


def compare(first: Values, second: Values, *, margin: float = MARGIN) -> Comparison:
    """How much more the second has than the first; more is better."""
    check_shares(first)
    check_shares(second)
    tasks = common(first, second)
    found = difference(first, second)
    if found is None:
        return Comparison(tasks=0, margin=margin, notes=("No task was scored for both.",))
    here = Estimate(
        value=found.difference,
        low=found.low,
        high=found.high,
        n=found.tasks,
        method="noise of repeats",
    )
    beyond = alike(first, second)
    test = paired_test(first, second)
    here_word = word(here, margin)
    alike_word = "not enough data" if len(tasks) < FEWEST else word(beyond, margin)
    if alike_word in ("better", "worse") and (test is None or test.p > 0.05):
        alike_word = "not enough data"
    repeats = harmonic_mean([len(side[task]) for side in (first, second) for task in tasks])
    return Comparison(
        tasks=len(tasks),
        first=found.first,
        second=found.second,
        here=here,
        here_word=here_word,
        alike=beyond,
        alike_word=alike_word,
        margin=margin,
        test=test,
        detectable=power.detectable(len(tasks), repeats),
        advice=_advice(first, second, tasks, repeats, max(margin, abs(here.value)))
        if "not enough data" in (here_word, alike_word)
        else None,
        notes=tuple(_notes(first, second, tasks)),
    )


def word(estimate: Estimate | None, margin: float) -> Word:
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


def _advice(
    first: Values, second: Values, tasks: Sequence[str], repeats: float, effect: float
) -> Advice:
    """By how much these tasks were seen to vary, within and between."""
    noise = fmean(jeffreys(first[task]) + jeffreys(second[task]) for task in tasks)
    differences = [fmean(second[task]) - fmean(first[task]) for task in tasks]
    between = max(0.0, spread(differences) - noise) if len(tasks) > 1 else 0.0
    within = fmean(_single(side[task]) for side in (first, second) for task in tasks)
    return power.advice(effect, len(tasks), repeats, within=within, between=between)


def _single(values: Sequence[float]) -> float:
    """The variance of one repeat, from the posterior mean of the rate."""
    rate = (sum(values) + 0.5) / (len(values) + 1)
    return rate * (1 - rate)


def _notes(first: Values, second: Values, tasks: Sequence[str]) -> list[str]:
    notes = []
    if len(tasks) < FEWEST:
        notes.append(
            f"{_tasks(len(tasks))} cannot decide for tasks like these: "
            f"under {FEWEST}, no exact paired test can reach 0.05."
        )
    for side, name in ((first, "first"), (second, "second")):
        if lone := sum(1 for repeats in side.values() if len(repeats)) - len(tasks):
            rest = "is" if lone == 1 else "are"
            notes.append(f"{_tasks(lone)} had a score only for the {name} and {rest} left out.")
    if len({value for side in (first, second) for task in tasks for value in side[task]}) == 1:
        notes.append("Every value is the same: there is nothing to test.")
    return notes


def _tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"
