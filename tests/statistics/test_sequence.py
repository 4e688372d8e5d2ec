"""Bounds for those who look all the time: by hand, nested, and right however often one looks."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.records.errors import BadInput
from closeloop.statistics.sequences import estimate_running_mean, monitor_difference

values = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=60)


def capital(row: list[float], mean: float) -> float:
    """The largest log capital of who bets on more than this mean, step by step as in the paper."""
    wealth = most = 0.0
    spread, total, squares = 0.25, 0.5, 0.25
    for count, value in enumerate(row, 1):
        stake = sqrt(2 * log(2 / 0.05) / (spread * count * log(1 + count)))
        wealth += log(1 + min(stake, 0.5 / mean) * (value - mean))
        most = max(most, wealth)
        total += value
        squares += (value - total / (count + 1)) ** 2
        spread = squares / (count + 1)
    return most


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_bounds_are_where_the_capital_reaches_forty(row: list[float]) -> None:
    found = estimate_running_mean(row, low=0, high=1)
    assert found is not None
    if found.low > 1e-6:
        assert capital(row, found.low - 1e-7) >= log(40) - 1e-4
        assert found.low == found.value or capital(row, found.low + 1e-7) <= log(40) + 1e-4
    flipped = [1 - value for value in row]
    if found.high < 1 - 1e-6:
        assert capital(flipped, 1 - found.high - 1e-7) >= log(40) - 1e-4


@settings(deadline=None)
@given(values, values)
def test_more_values_never_widen_the_bounds(some: list[float], more: list[float]) -> None:
    early, late = estimate_running_mean(some), estimate_running_mean(some + more)
    assert early is not None
    assert late is not None
    tolerance = 1e-9
    assert late.low >= min(early.low, late.value) - tolerance
    assert late.high <= max(early.high, late.value) + tolerance


@pytest.mark.parametrize("rate", [0.5, 0.9])
def test_whoever_looks_at_every_value_is_misled_in_one_run_of_twenty_at_most(rate: float) -> None:
    # The bounds at the end are within all those before: looking once at them is looking always.
    chance, rounds, missed, narrow = np.random.RandomState(1), 300, 0, 0
    for _ in range(rounds):
        found = estimate_running_mean(chance.binomial(1, rate, 500).astype(float), low=0, high=1)
        assert found is not None
        missed += not found.low <= rate <= found.high
        narrow += found.high - found.low < 0.25
    assert missed / rounds <= 0.05
    assert narrow == rounds


def test_an_experiment_in_production_finds_a_difference_and_holds_the_truth() -> None:
    chance, missed, found_it, rounds = np.random.RandomState(2), 0, 0, 60
    for _ in range(rounds):
        arms = chance.binomial(1, 0.3, 1500).astype(bool)
        passed = chance.binomial(1, np.where(arms, 0.9, 0.7)).astype(float)
        found = monitor_difference(
            list(zip(arms.tolist(), passed.tolist(), strict=True)), share=0.3
        )
        assert found is not None
        missed += not found.low <= 0.2 <= found.high
        found_it += found.low > 0
    assert missed / rounds <= 0.05
    assert found_it / rounds >= 0.8


def test_nothing_seen_is_no_estimate_and_nonsense_is_refused() -> None:
    assert estimate_running_mean([]) is None
    assert monitor_difference([]) is None
    with pytest.raises(BadInput, match="outside -1 and 1"):
        estimate_running_mean([2.0])
    with pytest.raises(BadInput, match="outside"):
        estimate_running_mean([float("nan")])
    with pytest.raises(BadInput, match="between 0 and 1, not 1"):
        monitor_difference([(True, 1.0)], share=1)
    with pytest.raises(BadInput, match="shares, not amounts"):
        monitor_difference([(True, 7.0)])


def test_a_hundred_thousand_values_are_bounded_quickly() -> None:
    found = estimate_running_mean([1.0, 0.0] * 50_000, low=0, high=1)
    assert found is not None
    assert found.high - found.low < 0.03
