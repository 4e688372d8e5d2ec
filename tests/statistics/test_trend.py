"""Windows over time, and where a row of values changed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.records.errors import BadInput
from closeloop.statistics.sequences import find_change_points, rolling_windows


def test_a_window_holds_what_came_within_its_width() -> None:
    found = rolling_windows([1.0, 2.0, 3.0, 9.0], [1.0, 0.0, 1.0, 1.0], 2, [2, 3, 6, 9])
    assert [(one.end, one.estimate.n, one.estimate.value) for one in found] == [
        (2, 2, 0.5),
        (3, 2, 0.5),
        (9, 1, 1.0),
    ]
    assert all(one.faint for one in found)


def test_five_items_are_no_longer_faint() -> None:
    assert not rolling_windows([n / 10 for n in range(1, 6)], [1.0] * 5, 1, [1])[0].faint


def test_values_that_are_no_shares_get_a_mean_with_bounds() -> None:
    # t(2) at 0.975 is 4.302652729749464; the deviation of 2, 4, 6 is 2.
    found = rolling_windows([1, 2, 3], [2.0, 4.0, 6.0], 5, [3])[0].estimate
    assert found.value == 4
    assert found.high == pytest.approx(4 + 4.302652729749464 * 2 / 3**0.5, abs=1e-9)


def test_one_item_that_is_no_share_is_a_faint_window_without_bounds() -> None:
    (found,) = rolling_windows([1], [2.0], 5, [3])
    assert (found.estimate.value, found.estimate.n, found.faint) == (2, 1, True)
    assert (found.estimate.low, found.estimate.high) == (None, None)


def test_a_drop_is_found_where_it_is() -> None:
    chance = np.random.RandomState(1)
    row = [*chance.binomial(1, 0.9, 60), *chance.binomial(1, 0.4, 60)]
    (found,) = find_change_points([float(one) for one in row])
    assert abs(found.at - 60) <= 6
    assert found.before.value > 0.8 > 0.6 > found.after.value
    assert found.p < 1e-4


def test_two_changes_are_both_found() -> None:
    chance = np.random.RandomState(2)
    row = [*chance.normal(0, 1, 80), *chance.normal(3, 1, 80), *chance.normal(-1, 1, 80)]
    found = find_change_points([float(one) for one in row])
    assert [round(one.at / 80) for one in found] == [1, 2]


@pytest.mark.parametrize("length", [12, 40, 200])
def test_where_nothing_changed_one_row_in_twenty_is_cut_at_most(length: int) -> None:
    chance, rounds = np.random.RandomState(length), 400
    cut = sum(
        bool(find_change_points(chance.binomial(1, 0.7, length).astype(float)))
        for _ in range(rounds)
    )
    assert cut / rounds <= 0.06


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=40))
def test_any_row_is_cut_in_order_or_not_at_all(row: list[float]) -> None:
    found = find_change_points(row)
    places = [one.at for one in found]
    assert places == sorted(set(places))
    assert all(5 <= place <= len(row) - 5 for place in places)
    assert all(0 <= one.p < 0.05 for one in found)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(BadInput, match="not a number"):
        find_change_points([1.0, float("nan")] * 10)
    with pytest.raises(BadInput, match="not a number"):
        rolling_windows([1], [float("inf")], 1, [1])


def test_a_constant_and_a_short_row_are_not_cut() -> None:
    assert find_change_points([0.7] * 50) == []
    assert find_change_points([0.0, 1.0] * 4) == []
    assert find_change_points([]) == []
