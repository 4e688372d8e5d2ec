"""How seldom can bounds of a difference be right, if they hold what they promise elsewhere?

    python quality/attainable.py

For single tries of a few tasks near 0.95, as in the table of docs/measurements/statistics.md.
Bounds say of each possible difference which results would speak against it. Whatever they are,
without a lot being drawn: where all tasks of a variant have one rate, such results must come in one
experiment of twenty at most. Among all choices that keep to this the one that speaks most often
against the truth is found, difference by difference. No bounds cover less.
"""

from __future__ import annotations

import sys

import numpy as np
from coverage import _rates
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.stats import binom

EXPERIMENTS, DIFFERENCES, PLACES = 8000, 16, 60
OUTSIDE = 0.05


def least(tasks: int, base: float = 0.95) -> float:
    """The smallest share of experiments in which the truth is held."""
    chance = np.random.RandomState(tasks)
    pairs = [_rates(chance, base, step, tasks) for _ in range(EXPERIMENTS) for step in (0.0, -1.0)]
    truths = np.array([float(np.mean(second - first)) for first, second in pairs])
    spoken = 0.0
    for part in np.array_split(np.argsort(truths), DIFFERENCES):
        seen = sum(np.outer(*(_counts(side) for side in pairs[place])) for place in part)
        spoken += _most(seen / len(pairs), float(np.median(truths[part])), len(part) / len(pairs))
    return 1 - spoken


def _most(weights: np.ndarray, difference: float, share: float) -> float:
    """How often results that may speak against that difference come, at the most."""
    tasks = len(weights) - 1
    numbers = np.arange(tasks + 1)
    rates = np.linspace(max(0.0, -difference), min(1.0, 1 - difference), PLACES)
    chances = [
        np.outer(
            *(binom.pmf(numbers, tasks, np.clip(each, 0, 1)) for each in (rate, rate + difference))
        )
        for rate in rates
    ]
    limit = LinearConstraint(np.array([each.ravel() for each in chances]), ub=OUTSIDE)
    found = milp(
        -weights.ravel() / share,
        constraints=limit,
        bounds=Bounds(0, 1),
        integrality=np.ones(weights.size),
        options={"mip_rel_gap": 1e-3, "time_limit": 20},
    )
    return -float(found.mip_dual_bound) * share


def _counts(rates: np.ndarray) -> np.ndarray:
    """How likely each number of passes is, task by task."""
    chances = np.ones(1)
    for rate in rates:
        chances = np.convolve(chances, [1 - rate, rate])
    return chances


def main() -> None:
    known = {tasks: least(tasks) for tasks in range(1, 9)}
    for tasks, share in known.items():
        sys.stdout.write(f"{tasks} tasks, tried once: {share:.2%} at least\n")
    for tasks in (5, 8):
        both = sum(
            binom.pmf(each, tasks, 0.9**2) * share for each, share in known.items() if each <= tasks
        ) / (1 - binom.pmf(0, tasks, 0.9**2))
        sys.stdout.write(f"{tasks} tasks, one try in ten lost: {both:.2%} at least\n")


if __name__ == "__main__":
    main()
