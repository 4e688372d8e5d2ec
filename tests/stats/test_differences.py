"""The difference on exactly these tasks: known answers, and how often its bounds are right."""

from __future__ import annotations

import random
from math import sqrt

import pytest

from closeloop.stats.differences import difference, variance


def test_the_variance_is_that_of_the_jeffreys_posterior_widened() -> None:
    # Beta(1.5, 0.5): 1.5 · 0.5 / (2² · 3) = 0.0625, times (1 + 2) / 1.
    assert variance([1.0]) == pytest.approx(0.1875)
    # Beta(3.5, 2.5): 8.75 / (36 · 7), times 7 / 5.
    assert variance([1, 1, 1, 0, 0]) == pytest.approx(3.5 * 2.5 / (36 * 7) * 7 / 5)


def test_a_known_interval() -> None:
    found = difference({"a": [1.0], "b": [1.0]}, {"a": [0.0], "b": [1.0]})
    assert found is not None
    assert found.difference == -0.5
    assert found.high == pytest.approx(-0.5 + 1.959964 * sqrt(4 * 0.1875) / 2)
    assert found.tasks == 2


def test_only_tasks_that_both_have_are_compared() -> None:
    assert difference({"a": [1.0]}, {"b": [1.0]}) is None
    assert difference({"a": [1.0], "b": []}, {"a": [1.0], "b": [0.0]}).tasks == 1  # type: ignore[union-attr]


def test_more_comparisons_need_wider_bounds() -> None:
    one, other = {"a": [1.0, 0.0]}, {"a": [0.0, 0.0]}
    alone, together = difference(one, other), difference(one, other, comparisons=6)
    assert alone is not None
    assert together is not None
    assert together.high > alone.high


@pytest.mark.parametrize(("tasks", "repeats"), [(5, 1), (10, 3), (20, 5)])
def test_the_bounds_hold_the_true_difference_as_often_as_they_say(tasks: int, repeats: int) -> None:
    chance = random.Random(f"{tasks} {repeats}")
    hits, rounds = 0, 600
    for _ in range(rounds):
        truth = {f"t{n}": (chance.random(), chance.random()) for n in range(tasks)}
        sides = [
            {
                name: [float(chance.random() < rates[side]) for _ in range(repeats)]
                for name, rates in truth.items()
            }
            for side in (0, 1)
        ]
        found = difference(*sides)
        assert found is not None
        real = sum(after - before for before, after in truth.values()) / tasks
        hits += found.low <= real <= found.high
    assert hits / rounds >= 0.93
