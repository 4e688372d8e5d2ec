"""The smallest difference that a plan will show, and what would show more."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.statistics.rate_comparison import (
    advise_sample_size,
    detectable_difference,
    detectable_on_these_tasks,
    rate_difference,
)
from closeloop.statistics.special_functions import t_quantile


@pytest.mark.parametrize(
    ("share", "freedom", "value"),
    [
        (0.975, 1, 12.70620474),
        (0.975, 2, 4.30265273),
        (0.975, 9, 2.26215716),
        (0.975, 30, 2.04227246),
        (0.5, 7, 0.0),
    ],
)
def test_quantiles_are_those_of_the_tables(share: float, freedom: int, value: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize(("tasks", "effect"), [(5, 0.47), (10, 0.28), (20, 0.18)])
def test_five_repeats_show_what_was_simulated(tasks: int, effect: float) -> None:
    assert detectable_difference(tasks, 5) == pytest.approx(effect, abs=0.01)


def test_it_agrees_with_the_power_of_a_paired_t_test() -> None:
    # statsmodels' TTestPower().solve_power(nobs=10, alpha=0.05, power=0.8): 0.9960 deviations.
    assert detectable_difference(10, 1, within=0.125) == pytest.approx(0.9960 * 0.5, rel=0.01)


@given(st.integers(3, 300), st.integers(1, 50))
def test_more_tasks_or_repeats_never_show_less(tasks: int, repeats: int) -> None:
    here = detectable_difference(tasks, repeats)
    for more in (
        detectable_difference(tasks + 1, repeats),
        detectable_difference(tasks, repeats + 1),
    ):
        assert here is None or (more is not None and 0 < more <= here <= 1)


def test_one_task_shows_nothing() -> None:
    assert detectable_difference(1, 100) is None
    assert detectable_difference(2, 5) is None


@given(st.integers(1, 40), st.integers(1, 10), st.floats(0.02, 0.9), st.floats(0, 0.2))
def test_what_is_advised_suffices_and_less_does_not(
    tasks: int, repeats: int, effect: float, between: float
) -> None:
    def shows(number: int, each: int) -> bool:
        seen = detectable_difference(number, each, between=between)
        return number >= 6 and seen is not None and seen <= effect

    found = advise_sample_size(effect, tasks, repeats, between=between)
    if found.tasks is not None:
        assert shows(tasks + found.tasks, repeats)
        assert found.tasks == 0 or not shows(tasks + found.tasks - 1, repeats)
    if found.repeats is not None:
        assert shows(tasks, repeats + found.repeats)
        assert found.repeats == 0 or not shows(tasks, repeats + found.repeats - 1)


def test_where_tasks_differ_repeats_alone_never_suffice() -> None:
    found = advise_sample_size(0.05, 10, 5, between=0.05)
    assert found.repeats is None
    assert found.tasks is not None
    assert found.tasks > 200


@pytest.mark.parametrize(("tasks", "repeats"), [(1, 3), (3, 1), (1, 5), (9, 1), (5, 3), (10, 5)])
def test_what_is_detectable_on_these_tasks_is_decided_four_times_in_five(
    tasks: int, repeats: int
) -> None:
    """Every outcome of two sides, by how likely it is where the rates differ by that much."""
    effect = detectable_on_these_tasks(tasks, repeats)
    assert effect is not None
    attempts = tasks * repeats

    def chance(hits: int, rate: float) -> float:
        return comb(attempts, hits) * rate**hits * (1 - rate) ** (attempts - hits)

    def decides(worse: int, better: int) -> bool:
        sides = [
            {str(place): [float(place < hits)] for place in range(attempts)}
            for hits in (worse, better)
        ]
        found = rate_difference(*sides)
        return found is not None and found.low > 0

    power = sum(
        chance(worse, (1 - effect) / 2) * chance(better, (1 + effect) / 2)
        for worse in range(attempts + 1)
        for better in range(worse + 1, attempts + 1)
        if decides(worse, better)
    )
    assert 0.77 < power < 0.84


def test_one_attempt_of_each_decides_nothing_on_any_task() -> None:
    assert detectable_on_these_tasks(1, 1) is None
    assert detectable_on_these_tasks(0, 5) is None
    whole, beyond = detectable_on_these_tasks(20, 5), detectable_on_these_tasks(21, 5)
    assert whole == pytest.approx(beyond, abs=0.01), "counted, and by the normal distribution"
    few, many = detectable_on_these_tasks(4, 5), detectable_on_these_tasks(4, 5, comparisons=3)
    assert few is not None
    assert many is not None
    assert few < many
