"""How many times as much: known answers, coverage, and what has no ratio."""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.records.errors import BadInput
from closeloop.statistics.mean_comparison import estimate_ratio

amounts = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(st.floats(-5, 1e300), max_size=4), max_size=6
)


def test_a_known_ratio_by_hand() -> None:
    # Log ratios ln 2, ln 4, ln 8: mean ln 4, deviation ln 2; t(2) at 0.975 is 4.302652729749464.
    found = estimate_ratio(
        {"a": [1.0], "b": [2.0], "c": [10.0]}, {"a": [2.0], "b": [8.0], "c": [80.0]}
    )
    assert found.here is None
    assert found.alike is not None
    half = 4.302652729749464 * log(2) / sqrt(3)
    assert found.alike.value == pytest.approx(4)
    assert found.alike.low == pytest.approx(4 * exp(-half), abs=1e-9)
    assert found.alike.high == pytest.approx(4 * exp(half), rel=1e-9)


def test_swapping_the_sides_gives_the_inverse() -> None:
    first, second = {"a": [1.0, 3.0], "b": [2.0, 2.5]}, {"a": [4.0, 1.0], "b": [9.0, 8.0]}
    one, other = estimate_ratio(first, second), estimate_ratio(second, first)
    for here, there in ((one.here, other.here), (one.alike, other.alike)):
        assert here is not None
        assert there is not None
        assert here.value == pytest.approx(1 / there.value)
        assert here.low == pytest.approx(1 / there.high)


@pytest.mark.parametrize(("tasks", "repeats"), [(5, 3), (10, 1), (30, 5)])
def test_bounds_hold_the_truth_as_often_as_they_say(tasks: int, repeats: int) -> None:
    chance, rounds = np.random.RandomState(tasks), 500
    here = alike = 0
    for _ in range(rounds):
        sizes, steps = chance.normal(3, 1, tasks), chance.normal(0.3, 0.4, tasks)
        sides = [
            {str(t): np.exp(middle + chance.normal(0, 0.5, repeats)).tolist() for t, middle in rows}
            for rows in (enumerate(sizes), enumerate(sizes + steps))
        ]
        found = estimate_ratio(*sides)
        assert found.alike is not None
        alike += found.alike.low <= exp(0.3) <= found.alike.high
        if found.here:
            here += found.here.low <= exp(steps.mean()) <= found.here.high
    assert 0.92 <= alike / rounds <= 0.995
    assert repeats == 1 or 0.92 <= here / rounds <= 0.995


def test_negative_times_and_zeros_are_left_out_and_counted() -> None:
    found = estimate_ratio({"a": [1.0, -3.0], "b": [2.0]}, {"a": [2.0, 0.0], "b": [4.0]})
    assert found.attempts == 4
    assert "2 values that are not above zero were excluded." in found.notes


def test_no_overlap_is_said() -> None:
    found = estimate_ratio({"a": [1.0]}, {"b": [1.0]})
    assert found.here is found.alike is None
    assert found.notes == ("No task has a value above zero for both.",)


def test_one_pair_shows_no_noise_and_a_constant_promises_nothing() -> None:
    alone = estimate_ratio({"a": [1.0]}, {"a": [2.0]})
    assert alone.here is alone.alike is None
    assert "run more" in alone.notes[0]
    constant = estimate_ratio({"a": [1.0], "b": [1.0]}, {"a": [2.0], "b": [2.0]})
    assert constant.alike is not None
    assert (constant.alike.low, constant.alike.high) == (2, 2)
    assert "have no width" in constant.notes[0]


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(BadInput, match="not a number"):
        estimate_ratio({"a": [float("nan")]}, {"a": [1.0]})


@settings(deadline=None)
@given(amounts, amounts)
def test_any_amounts_give_finite_bounds_or_none(first, second) -> None:
    found = estimate_ratio(first, second)
    for one in (found.here, found.alike):
        if one is not None:
            assert 0 < one.low <= one.high < float("inf")
            assert one.low <= one.value * (1 + 1e-9)
            assert one.value <= one.high * (1 + 1e-9)
