"""Exact tests of paired tasks: could the signs of the differences be chance?"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm, sqrt

from closeloop.model.estimate import PairedTest
from closeloop.stats.distributions import binomial_share, normal_tail
from closeloop.stats.values import Values, common

FEWEST = 6
"""Tasks: with fewer, the smallest p of an exact two-sided test is over 0.05."""
ENUMERATED = 20
CELLS = 50_000_000
DRAWS = 100_000
DRAWN = 500
"""Tasks: the sum of more signs than this is normal, as near as draws would tell."""
NEAR = 1e-9
"""Sums that differ by less are equal: their parts were rounded."""


def paired_test(first: Values, second: Values) -> PairedTest | None:
    """McNemar's test of single yes or no repeats, else sign-flip; None where none can be made."""
    tasks = common(first, second)
    pairs = [(first[task], second[task]) for task in tasks]
    if len(tasks) < FEWEST:
        return None
    if all(len(one) == len(other) == 1 and {one[0], other[0]} <= {0, 1} for one, other in pairs):
        gained = sum(other[0] > one[0] for one, other in pairs)
        lost = sum(other[0] < one[0] for one, other in pairs)
        return mcnemar(gained, lost, len(tasks)) if gained + lost else None
    return sign_flip([_mean(other) - _mean(one) for one, other in pairs])


def mcnemar(gained: int, lost: int, tasks: int) -> PairedTest:
    """Of the tasks that changed sides, as many to each side were expected."""
    changed = gained + lost
    p = min(1.0, 2 * binomial_share(min(gained, lost), changed))
    return PairedTest(p=p, n=tasks, method="exact McNemar")


def sign_flip(differences: Sequence[Fraction]) -> PairedTest | None:
    """The share of all choices of signs whose sum is at least as far from 0."""
    moved = [one for one in differences if one]
    if not moved:
        return None
    seen, tasks = abs(sum(moved, Fraction())), len(differences)
    sizes = [float(abs(one)) for one in moved]
    if len(moved) <= ENUMERATED:
        return PairedTest(p=_enumerated(sizes, float(seen)), n=tasks, method="exact sign-flip")
    scale = lcm(*(one.denominator for one in moved))
    whole = [abs(int(one * scale)) for one in moved]
    if (sum(whole) + 1) * len(whole) <= CELLS:
        p = _counted(whole, int(seen * scale))
        return PairedTest(p=p, n=tasks, method="exact sign-flip")
    if len(moved) > DRAWN:
        p = 2 * normal_tail(float(seen) / sqrt(sum(size * size for size in sizes)))
        return PairedTest(p=p, n=tasks, method="sign-flip, normal limit")
    p = _drawn(sizes, float(seen))
    return PairedTest(p=p, n=tasks, method=f"sign-flip, {DRAWS:,} draws")


def _mean(values: Sequence[float]) -> Fraction:
    return Fraction(sum(values)) / len(values)


def _counted(sizes: Sequence[int], seen: int) -> float:
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


def _enumerated(sizes: Sequence[float], seen: float) -> float:
    """Every choice of signs; the first one's does not matter."""
    import numpy as np

    sums = np.array([sizes[0]])
    for size in sizes[1:]:
        sums = np.concatenate([sums - size, sums + size])
    return float(np.mean(np.abs(sums) >= seen - NEAR))


def _drawn(sizes: Sequence[float], seen: float) -> float:
    """Signs by lot, the same at every call; what was seen counts as one draw."""
    import numpy as np

    lot, hits = np.random.RandomState(0), 0
    for _ in range(DRAWS // 1000):
        signs = lot.randint(0, 2, size=(1000, len(sizes))) * 2 - 1
        hits += int(np.sum(np.abs(signs @ np.array(sizes)) >= seen - NEAR))
    return (hits + 1) / (DRAWS + 1)
