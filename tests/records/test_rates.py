"""A rate says of how many, and between which bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.records.estimate import pool_rates, wilson_rate


def test_known_wilson_bounds() -> None:
    made = wilson_rate(8, 10)
    assert made is not None
    assert (made.value, made.of) == (0.8, 10)
    assert made.low == pytest.approx(0.490162, abs=1e-6)
    assert made.high == pytest.approx(0.943318, abs=1e-6)


def test_a_rate_of_nothing_is_none_and_not_zero() -> None:
    assert wilson_rate(0, 0) is None
    assert pool_rates(None, None) is None


@given(st.integers(1, 500).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))))
def test_bounds_hold_the_value_and_stay_between_zero_and_one(counts: tuple[int, int]) -> None:
    made = wilson_rate(*counts)
    assert made is not None
    assert 0 <= made.low <= made.value <= made.high <= 1


def test_pooling_adds_counts() -> None:
    assert pool_rates(wilson_rate(1, 2), None, wilson_rate(3, 4)) == wilson_rate(4, 6)
