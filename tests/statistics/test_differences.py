"""The difference on exactly these tasks and on tasks like these: known answers."""

from __future__ import annotations

from math import sqrt

import pytest
from scipy.stats import beta

from closeloop.statistics.rate_comparison import paired_t_difference, rate_difference
from closeloop.statistics.rate_estimate import (
    estimate_noisy_mean,
    jeffreys_variance,
    posterior_bounds,
    task_rate_variance,
)


def test_the_variance_is_that_of_the_jeffreys_posterior_widened() -> None:
    # Beta(1.5, 0.5): 1.5 · 0.5 / (2² · 3) = 0.0625.
    assert jeffreys_variance([1.0]) == pytest.approx(0.0625)
    # Beta(3.5, 2.5): 8.75 / (36 · 7), times 7 / 5, times 36 / 31.
    assert task_rate_variance([1, 1, 1, 0, 0]) == pytest.approx(8.75 / (36 * 7) * 7 / 5 * 36 / 31)


@pytest.mark.parametrize("repeats", [1, 2, 3, 7])
def test_repeats_of_an_even_chance_have_their_variance_on_average(repeats: int) -> None:
    from math import comb

    mean = sum(
        comb(repeats, hits)
        / 2**repeats
        * task_rate_variance([1.0] * hits + [0.0] * (repeats - hits))
        for hits in range(repeats + 1)
    )
    assert mean == pytest.approx(0.25 / repeats, abs=1e-12)


def test_the_bounds_of_two_sides_are_put_together_as_newcombe_did() -> None:
    # 7 of 10 against 3 of 10: each side's from scipy.stats, squares of the distances added.
    first = {str(task): [float(task < 3)] for task in range(10)}
    second = {str(task): [float(task < 7)] for task in range(10)}
    found = rate_difference(first, second)
    assert found is not None
    low, high = beta.ppf([0.025, 0.975], 7.5, 3.5)
    least, most = beta.ppf([0.025, 0.975], 3.5, 7.5)
    assert found.low == pytest.approx(0.4 - sqrt((0.7 - low) ** 2 + (most - 0.3) ** 2), abs=1e-9)
    assert found.high == pytest.approx(0.4 + sqrt((high - 0.7) ** 2 + (0.3 - least) ** 2), abs=1e-9)
    assert found.difference == pytest.approx(0.4)
    assert found.tasks == 10


@pytest.mark.parametrize(
    ("hits", "low", "high"),
    [(0, 0, 0.292), (1, 0.016, 0.501), (2, 0.065, 0.648), (3, 0.139, 0.766)],
)
def test_the_bounds_of_a_rate_are_those_of_jeffreys(hits: int, low: float, high: float) -> None:
    """Brown, Cai and DasGupta 2001, table 5, of 7; but where none passed the upper is theirs."""
    found = posterior_bounds(hits / 7, 7)
    assert found == pytest.approx((low, high), abs=0.0006)


def test_tasks_that_always_pass_or_always_fail_have_little_noise() -> None:
    mixed = estimate_noisy_mean([[1.0, 0.0] * 5] * 4)
    split = estimate_noisy_mean([[1.0] * 10] * 2 + [[0.0] * 10] * 2)
    assert mixed.mean == split.mean == 0.5
    assert split.attempts > 3 * mixed.attempts


@pytest.mark.parametrize("hits", [0, 1, 10, 20])
def test_a_suite_varies_no_more_than_attempts_of_one_rate(hits: int) -> None:
    assert estimate_noisy_mean([[1.0]] * hits + [[0.0]] * (20 - hits)).attempts == pytest.approx(20)


@pytest.mark.parametrize("other", range(6))
def test_five_single_tries_tell_apart_what_lies_three_passes_apart(other: int) -> None:
    first = {str(task): [1.0] for task in range(5)}
    found = rate_difference(first, {str(task): [float(task < other)] for task in range(5)})
    assert found is not None
    assert (found.high < 0) == (other <= 2)


def test_a_clean_sheet_is_not_certain() -> None:
    found = rate_difference({"a": [1.0] * 5}, {"a": [1.0] * 5})
    assert found is not None
    assert found.low < -0.2 < 0 < 0.2 < found.high


def test_only_tasks_that_both_have_are_compared() -> None:
    assert rate_difference({"a": [1.0]}, {"b": [1.0]}) is None
    assert rate_difference({"a": [1.0], "b": []}, {"a": [1.0], "b": [0.0]}).tasks == 1  # type: ignore[union-attr]


def test_more_comparisons_need_wider_bounds() -> None:
    one, other = {"a": [1.0, 0.0]}, {"a": [0.0, 0.0]}
    alone, together = rate_difference(one, other), rate_difference(one, other, comparisons=6)
    assert alone is not None
    assert together is not None
    assert together.high > alone.high


def test_the_paired_t_is_that_of_the_books() -> None:
    # scipy.stats.ttest_rel(...).confidence_interval() of the same means.
    first = dict(zip("abcdef", ([v] * 60 for v in (0.4, 0.6, 0.4, 0.8, 0.4, 0.2)), strict=True))
    second = dict(zip("abcdef", ([v] * 60 for v in (0.6, 0.8, 0.4, 1.0, 0.2, 0.6)), strict=True))
    found = paired_t_difference(first, second)
    assert found is not None
    assert found.low == pytest.approx(-0.08343716033246243, abs=1e-9)
    assert found.high == pytest.approx(0.3501038269991291, abs=1e-9)


def test_tasks_that_happen_to_agree_do_not_speak_for_all() -> None:
    same = {str(task): [1.0] for task in range(6)}
    found = paired_t_difference(same, same)
    assert found is not None
    # t(5) times the root of two Jeffreys variances over six tasks.
    assert found.high == pytest.approx(2.5705818366147395 * sqrt(2 * 0.0625 / 6), abs=1e-9)


def test_one_task_says_nothing_of_others() -> None:
    assert paired_t_difference({"a": [1.0, 0.0]}, {"a": [1.0, 1.0]}) is None
