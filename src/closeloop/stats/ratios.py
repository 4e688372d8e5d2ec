"""How many times as much the second takes as the first: money, time, tokens, on the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import fmean, variance

from closeloop.model.estimate import Estimate, TwoEstimates
from closeloop.model.plural import plural
from closeloop.stats.distributions import t_quantile
from closeloop.stats.values import Values, check_finite, common


def ratio(first: Values, second: Values) -> TwoEstimates:
    """Geometric means, task by task. What is not above zero has no ratio, and is left out."""
    check_finite(first)
    check_finite(second)
    sides = _logs(first), _logs(second)
    tasks = common(*sides)
    given = sum(len(side[task]) for side in (first, second) for task in side)
    left = given - sum(len(side[task]) for side in sides for task in side)
    were = plural(left, "value that is not above zero was", "values that are not above zero were")
    notes = [f"{were} left out."] if left else []
    if not tasks:
        notes.append("No task has a value above zero for both.")
        return TwoEstimates(here=None, alike=None, attempts=0, notes=tuple(notes))
    pairs = [(sides[0][task], sides[1][task]) for task in tasks]
    noise, freedom = pooled([group for pair in pairs for group in pair])
    here = _here(pairs, noise, freedom)
    alike = _alike(pairs, noise)
    if here is None and alike is None:
        notes.append("One task with one value each shows no noise: run more.")
    elif any(one is not None and one.low == one.high for one in (here, alike)):
        notes.append("Every task gives the same ratio: bounds without width promise nothing.")
    return TwoEstimates(
        here=here,
        alike=alike,
        attempts=sum(len(one) + len(other) for one, other in pairs),
        notes=tuple(notes),
    )


Pairs = Sequence[tuple[Sequence[float], Sequence[float]]]


def _logs(values: Values) -> dict[str, list[float]]:
    return {task: [log(one) for one in repeats if one > 0] for task, repeats in values.items()}


def pooled(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """The variance of one value within its group, over all groups, and its degrees of freedom."""
    known = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in known)
    squares = sum(variance(group) * (len(group) - 1) for group in known)
    return (squares / freedom if freedom else 0.0), freedom


def _here(pairs: Pairs, noise: float, freedom: int) -> Estimate | None:
    if not freedom:
        return None
    spread = sqrt(noise * sum(1 / len(one) + 1 / len(other) for one, other in pairs)) / len(pairs)
    return _bounded(pairs, t_quantile(0.975, freedom) * spread, "log ratio, noise of repeats")


def _alike(pairs: Pairs, noise: float) -> Estimate | None:
    if len(pairs) < 2:
        return None
    floor = noise * fmean(1 / len(one) + 1 / len(other) for one, other in pairs)
    spread = sqrt(max(variance(_differences(pairs)), floor) / len(pairs))
    half = t_quantile(0.975, len(pairs) - 1) * spread
    return _bounded(pairs, half, "paired t of log ratios")


def _differences(pairs: Pairs) -> list[float]:
    return [fmean(other) - fmean(one) for one, other in pairs]


def _bounded(pairs: Pairs, half: float, method: str) -> Estimate:
    middle = fmean(_differences(pairs))
    low, value, high = (_power(middle + step) for step in (-half, 0.0, half))
    return Estimate(value=value, low=low, high=high, n=len(pairs), method=method)


def _power(exponent: float) -> float:
    """Kept finite: bounds of two wild values go beyond what a number can say."""
    return exp(max(-700.0, min(700.0, exponent)))
