"""Exact tests, against the counting of every case and published numbers."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.statistics import rate_comparison
from closeloop.statistics.rate_comparison import mcnemar_test, run_paired_test, sign_flip_test

parts = st.fractions(-1, 1, max_denominator=30)


def by_hand(differences: list[Fraction]) -> float:
    seen = abs(sum(differences))
    sums = [
        abs(sum(sign * one for sign, one in zip(signs, differences, strict=True)))
        for signs in product((-1, 1), repeat=len(differences))
    ]
    return sum(one >= seen for one in sums) / len(sums)


@settings(deadline=None)
@given(st.lists(parts, min_size=1, max_size=8).filter(any))
def test_sign_flip_is_the_share_of_all_choices_of_signs(differences: list[Fraction]) -> None:
    found = sign_flip_test(differences)
    assert found is not None
    assert found.p == pytest.approx(by_hand(differences), abs=1e-9)


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=10), st.data())
def test_counting_sums_is_as_enumerating_them(sizes: list[int], data: st.DataObject) -> None:
    signs = data.draw(st.lists(st.sampled_from([-1, 1]), min_size=len(sizes), max_size=len(sizes)))
    differences = [Fraction(size * sign) for size, sign in zip(sizes, signs, strict=True)]
    counted = rate_comparison._count_sign_sums(sizes, abs(int(sum(differences))))
    assert counted == pytest.approx(by_hand(differences), abs=1e-12)


def test_sign_flip_agrees_with_scipy() -> None:
    # scipy.stats.permutation_test(..., permutation_type="samples"), all 256: 0.0625.
    values = ["0.3", "-0.1", "0.25", "0.4", "0.05", "0.2", "0.15", "-0.05"]
    assert sign_flip_test([Fraction(one) for one in values]).p == pytest.approx(0.0625)  # type: ignore[union-attr]


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.sampled_from([Fraction(1, 5), Fraction(-2, 5), Fraction(3, 5)]), min_size=21, max_size=60
    )
)
def test_draws_come_near_the_exact_answer(differences: list[Fraction]) -> None:
    exact = sign_flip_test(differences)
    assert exact is not None
    sizes = [float(abs(one)) for one in differences]
    drawn = rate_comparison._draw_signs(sizes, abs(float(sum(differences))))
    assert drawn == pytest.approx(exact.p, abs=0.007)


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    # statsmodels' exact mcnemar, and the table of Fagerland and others (2013): 59 and 6.
    [(2, 11, 0.0224609375), (59, 6, 4.964650327128616e-12), (5, 5, 1.0), (6, 0, 0.03125)],
)
def test_mcnemar_is_that_of_the_books(gained: int, lost: int, p: float) -> None:
    assert mcnemar_test(gained, lost, 100).p == pytest.approx(p, rel=1e-9)


@settings(deadline=None)
@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=6, max_size=30).filter(any))
def test_mcnemar_is_sign_flip_of_single_repeats(signs: list[int]) -> None:
    first = {str(task): [float(sign < 0)] for task, sign in enumerate(signs)}
    second = {str(task): [float(sign > 0)] for task, sign in enumerate(signs)}
    test = run_paired_test(first, second)
    flipped = sign_flip_test([Fraction(sign) for sign in signs])
    assert test is not None
    assert flipped is not None
    assert test.method == "exact McNemar"
    assert test.p == pytest.approx(flipped.p, abs=1e-12)


def test_five_tasks_get_no_test_and_six_can_just_reach_it() -> None:
    worst = {str(task): [0.0, 0.0] for task in range(6)}
    best = {task: [1.0, 1.0] for task in worst}
    found = run_paired_test(worst, best)
    assert found is not None
    assert found.p == 2 / 64
    del best["0"]
    assert run_paired_test(worst, best) is None


def test_where_nothing_differs_there_is_no_test() -> None:
    same = {str(task): [1.0, 0.0] for task in range(10)}
    assert run_paired_test(same, same) is None
    assert run_paired_test({t: [1.0] for t in same}, {t: [1.0] for t in same}) is None


def test_a_thousand_tasks_of_ten_repeats_are_still_exact() -> None:
    first = {str(task): [1.0] * (task % 10) + [0.0] * (10 - task % 10) for task in range(1000)}
    second = {str(task): [1.0] * (task % 7) + [0.0] * (10 - task % 7) for task in range(1000)}
    found = run_paired_test(first, second)
    assert found is not None
    assert found.method == "exact sign-flip"
    assert 0 <= found.p < 1e-9
