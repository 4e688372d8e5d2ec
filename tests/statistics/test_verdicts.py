"""Two variants compared: the right word for both questions, and none where none can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.records.errors import BadInput
from closeloop.statistics.rate_comparison import compare_rates
from closeloop.statistics.rate_estimate import TaskValues

suites = st.dictionaries(
    st.sampled_from("abcdefghij"), st.lists(st.sampled_from([0.0, 1.0, 0.25]), max_size=5)
)


def suite(tasks: int, passed: int, repeats: int) -> TaskValues:
    return {str(n): [1.0] * passed + [0.0] * (repeats - passed) for n in range(tasks)}


def test_a_clear_difference_has_its_word_for_both_questions() -> None:
    found = compare_rates(suite(9, 3, 10), suite(9, 9, 10))
    assert (found.here_word, found.alike_word) == ("better", "better")
    assert found.test is not None
    assert found.test.p == pytest.approx(2 / 512)
    assert found.advice is None
    back = compare_rates(suite(9, 9, 10), suite(9, 3, 10))
    assert (back.here_word, back.alike_word) == ("worse", "worse")


def test_five_tasks_cannot_decide_for_others_but_can_for_themselves() -> None:
    found = compare_rates(suite(5, 0, 10), suite(5, 10, 10))
    assert found.here_word == "better"
    assert found.alike_word == "not enough data"
    assert found.test is None
    assert found.detectable is not None
    assert found.alike is not None
    assert found.notes == (
        "5 tasks cannot decide for similar tasks: with fewer than 6, no exact paired test can"
        " reach 0.05.",
    )


def test_equal_variants_with_many_attempts_differ_by_no_more_than_the_margin() -> None:
    rows = suite(50, 40, 50)
    found = compare_rates(rows, rows)
    assert found.here_word == "no difference larger than the margin"
    assert compare_rates(rows, rows, margin=0.001).here_word == "not enough data"


def test_few_attempts_are_not_enough_and_more_are_advised() -> None:
    found = compare_rates(suite(8, 1, 2), suite(8, 1, 2))
    assert (found.here_word, found.alike_word) == ("not enough data", "not enough data")
    assert found.test is None
    assert found.advice is not None
    assert found.advice.effect == 0.05
    assert found.advice.tasks is not None
    assert found.advice.tasks > 100


def test_bounds_that_the_exact_test_does_not_back_decide_nothing_for_others() -> None:
    chance = np.random.RandomState(7)
    seen = 0
    for _ in range(300):
        sides = [
            {str(n): chance.binomial(1, rate, 3).astype(float).tolist() for n in range(7)}
            for rate in (0.4, 0.75)
        ]
        found = compare_rates(*sides)
        if found.alike is not None and found.test is not None and found.test.p > 0.05:
            assert found.alike_word not in ("better", "worse")
            seen += not found.alike.low <= 0 <= found.alike.high
    assert seen


def test_equal_variants_are_called_different_in_one_of_twenty_at_most() -> None:
    chance = np.random.RandomState(1)
    called = {"here": 0, "alike": 0}
    for _ in range(400):
        rates = chance.beta(1, 1, 9)
        sides = [
            {str(n): chance.binomial(1, rate, 5).astype(float).tolist() for n, rate in rows}
            for rows in (enumerate(rates), enumerate(rates))
        ]
        found = compare_rates(*sides)
        called["here"] += found.here_word in ("better", "worse")
        called["alike"] += found.alike_word in ("better", "worse")
    assert max(called.values()) / 400 <= 0.06


@pytest.mark.parametrize(
    ("first", "second"),
    [({}, {}), ({"a": [1.0]}, {"b": [1.0]}), ({"a": []}, {"a": [1.0]}), ({"a": [1.0]}, {})],
)
def test_without_a_common_task_nothing_is_said(first: TaskValues, second: TaskValues) -> None:
    found = compare_rates(first, second)
    assert found.tasks == 0
    assert found.here is found.alike is found.test is found.first is None
    assert (found.here_word, found.alike_word) == ("not enough data", "not enough data")
    assert found.notes == ("No task was scored for both.",)


def test_a_constant_gets_bounds_and_no_test() -> None:
    found = compare_rates(suite(10, 2, 2), suite(10, 2, 2))
    assert found.test is None
    assert found.here is not None
    assert found.here.low < 0 < found.here.high
    assert "Every value is the same: there is nothing to test." in found.notes


def test_what_only_one_side_has_is_told() -> None:
    found = compare_rates(suite(8, 1, 2), suite(7, 2, 2))
    assert "1 task had a score only for the first and is excluded." in found.notes


def test_a_hundred_thousand_against_three() -> None:
    found = compare_rates({"a": [1.0, 0.0] * 50_000}, {"a": [1.0, 1.0, 0.0]})
    assert found.tasks == 1
    assert found.here is not None
    assert found.here.high - found.here.low > 0.5
    many = compare_rates({str(n): [1.0] for n in range(100_000)}, {str(n): [1.0] for n in range(3)})
    assert many.tasks == 3
    assert many.alike_word == "not enough data"


def test_what_is_no_share_is_refused() -> None:
    with pytest.raises(BadInput, match="Task 'a' has the value -3"):
        compare_rates({"a": [-3.0]}, {"a": [1.0]})


@settings(max_examples=150, deadline=None)
@given(suites, suites)
def test_anything_can_be_compared(first: TaskValues, second: TaskValues) -> None:
    found = compare_rates(first, second)
    back = compare_rates(second, first)
    for one in (found.here, found.alike):
        if one is not None:
            assert -1 <= one.low <= one.value <= one.high <= 1
    if found.test is not None:
        assert found.tasks >= 6
        assert 0 < found.test.p <= 1
        assert back.test is not None
        assert back.test.p == pytest.approx(found.test.p)
    opposite = {"better": "worse", "worse": "better"}
    assert back.here_word == opposite.get(found.here_word, found.here_word)
    assert back.alike_word == opposite.get(found.alike_word, found.alike_word)
