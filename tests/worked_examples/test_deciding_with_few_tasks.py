"""Worked examples: estimates, intervals, exact tests, power, verdicts, ratios, many tests."""

from __future__ import annotations

from math import exp, hypot, log, sqrt

import pytest
from by_hand import T, wilson

from closeloop.records.estimate import Estimate
from closeloop.statistics.mean_comparison import estimate_ratio
from closeloop.statistics.rate_comparison import (
    classify_difference,
    compare_rates,
    detectable_difference,
    paired_t_difference,
    rate_difference,
    run_paired_test,
)
from closeloop.statistics.rate_estimate import (
    estimate_pass_all_k,
    estimate_pass_at_k,
    estimate_rate,
)
from closeloop.statistics.sequences import (
    adjust_benjamini_hochberg,
    adjust_holm,
    check_sample_ratio,
    estimate_running_mean,
    monitor_difference,
)


def tasks(*repeats: list[float]) -> dict[str, list[float]]:
    return {f"t{number}": values for number, values in enumerate(repeats)}


# One rate


def test_a_rate_on_exactly_these_tasks_has_the_bounds_of_as_many_attempts_as_vary_like_them() -> (
    None
):
    """Two tasks pass always, two never, five repeats each: mean ½. A task's Jeffreys variance is
    5.5 · 0.5 / (6² · 7) = 0.010913; for few repeats times 7/5 · 36/31: 0.017742. The mean's is
    4 · 0.017742 / 4² = 0.0044355, that of ¼ / 0.0044355 = 56.364 attempts of one rate, which are
    more than the 20 made: Beta(28.682, 28.682) has the quantiles 0.3722 and 0.6278.
    """
    found = estimate_rate(tasks([1] * 5, [1] * 5, [0] * 5, [0] * 5))
    assert found is not None
    assert found.here is not None
    assert (found.here.value, found.here.n, found.attempts) == (0.5, 4, 20)
    assert (found.here.low, found.here.high) == pytest.approx((0.3722, 0.6278), abs=1e-4)


def test_a_rate_on_exactly_these_tasks_is_never_less_sure_than_its_attempts() -> None:
    """Four tasks of one try, one passes: Jeffreys' bounds of 1 in 4. All pass: up to 1."""
    one, every = estimate_rate(tasks([1], [0], [0], [0])), estimate_rate(tasks([1], [1], [1], [1]))
    assert one is not None
    assert every is not None
    assert one.here is not None
    assert every.here is not None
    assert (one.here.low, one.here.high) == pytest.approx((0.028471, 0.716248), abs=1e-6)
    assert (every.here.low, every.here.high) == pytest.approx((0.555237, 1.0), abs=1e-6)


def test_a_rate_on_tasks_like_these_has_a_beta_binomial_posterior() -> None:
    """2, 1 and 0 of 2, integrated numerically on another grid: 0.1312 and 0.8690."""
    found = estimate_rate(tasks([1, 1], [1, 0], [0, 0], []))
    assert found is not None
    assert found.alike is not None
    assert (found.alike.value, found.alike.n, found.attempts) == (0.5, 3, 6)
    assert (found.alike.low, found.alike.high) == pytest.approx((0.1312, 0.8690), abs=1e-3)


def test_nothing_scored_is_no_estimate() -> None:
    assert estimate_rate(tasks([], [])) is None


# pass@k and pass^k


def test_pass_at_k_and_pass_all_k_are_unbiased_and_no_powers_of_the_mean() -> None:
    """n = 4, 2 passes, k = 2: of 6 choices 1 holds no pass and 1 holds two: 5/6 and 1/6, where
    powers of the mean would give 3/4 and 1/4. The task with one repeat has no choice of two.
    """
    values = tasks([1, 1, 0, 0], [1])
    at, every = estimate_pass_at_k(values, 2), estimate_pass_all_k(values, 2)
    assert at is not None
    assert every is not None
    assert (at.value, at.n) == (pytest.approx(5 / 6), 1)
    assert (every.value, every.n) == (pytest.approx(1 / 6), 1)
    assert estimate_pass_at_k(values, 5) is None


def test_pass_at_one_has_the_noise_of_a_rate() -> None:
    """Four tasks of 1 of 2: ½. A task's variance is 1/16 · (4/2) · (9/7) = 0.160714, so that the
    bounds are ½ ∓ 1.96 · √(4 · 0.160714) / 4 = ½ ∓ 0.392867.
    """
    found = estimate_pass_at_k(tasks(*[[1.0, 0.0]] * 4), 1)
    assert found is not None
    half = 1.959964 * sqrt(4 / 16 * 2 * 9 / 7) / 4
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half))
    assert half == pytest.approx(0.392867, abs=1e-6)


# Differences


def test_a_difference_on_exactly_these_tasks_joins_the_bounds_of_both_rates() -> None:
    """1 of 4 against 3 of 4, one try each: Jeffreys' bounds 0.0285 … 0.7162 and 0.2838 … 0.9715.
    ½ − √((0.75 − 0.2838)² + (0.7162 − 0.25)²) = −0.1594,
    ½ + √((0.9715 − 0.75)² + (0.25 − 0.0285)²) = 0.8133.
    """
    found = rate_difference(tasks([1], [0], [0], [0]), tasks([0], [1], [1], [1]))
    assert found is not None
    low = 0.5 - hypot(0.75 - 0.283752, 0.716248 - 0.25)
    high = 0.5 + hypot(0.971529 - 0.75, 0.25 - 0.028471)
    assert (found.difference, found.tasks) == (0.5, 4)
    assert (found.low, found.high) == pytest.approx((low, high), abs=2e-6)
    assert (found.low, found.high) == pytest.approx((-0.1594, 0.8133), abs=1e-4)


def test_two_comparisons_need_bounds_of_97_5_percent_each() -> None:
    """Beta(1½, 3½) has the quantiles 0.0125 and 0.9875 at 0.017742 and 0.768940."""
    found = rate_difference(tasks([1], [0], [0], [0]), tasks([0], [1], [1], [1]), comparisons=2)
    assert found is not None
    half = hypot(0.75 - (1 - 0.768940), 0.768940 - 0.25)
    assert found.low == pytest.approx(0.5 - half, abs=1e-5)


def test_only_tasks_that_both_tried_are_compared_and_none_is_no_difference() -> None:
    found = rate_difference({"a": [1.0], "b": []}, {"a": [1.0], "b": [0.0], "c": [0.0]})
    assert found is not None
    assert (found.tasks, found.difference) == (1, 0.0)
    assert rate_difference({"a": [1.0]}, {"b": [1.0]}) is None
    assert paired_t_difference({"a": [1.0]}, {"a": [0.0]}) is None


def test_a_difference_on_tasks_like_these_is_a_paired_t_over_tasks() -> None:
    """Differences 1, 1, 1, 0, 0, 0: mean ½, s² = 0.3, which is more than the noise of repeats.
    ½ ∓ 2.570582 · √(0.3 / 6) = ½ ∓ 0.5748; a difference is never more than 1.
    """
    found = paired_t_difference(
        tasks(*[[0.0, 0.0]] * 6), tasks(*[[1.0, 1.0]] * 3, *[[0.0, 0.0]] * 3)
    )
    assert found is not None
    assert (found.value, found.n, found.high) == (0.5, 6, 1.0)
    assert found.low == pytest.approx(0.5 - T[5] * sqrt(0.05))


def test_tasks_that_happen_to_agree_are_taken_to_vary_by_their_repeats() -> None:
    """Four differences of ½ have no spread. Jeffreys' variances of 0 and 1 of 2 repeats are 5/144
    and 9/144: ½ ∓ 3.182446 · √(14/144 / 4) = ½ ∓ 0.4962.
    """
    found = paired_t_difference(tasks(*[[0.0, 0.0]] * 4), tasks(*[[1.0, 0.0]] * 4))
    assert found is not None
    half = T[3] * sqrt(14 / 144 / 4)
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)


# Exact tests


def test_the_sign_flip_test_counts_all_choices_of_signs() -> None:
    """Five tasks rise by ½, one falls by ½: the sum is 2. Of 64 choices of signs those with at most
    one of the six on the other side sum to 2 or more either way: 2 · (1 + 6) = 14. p = 14/64.
    """
    found = run_paired_test(
        tasks(*[[0.0, 0.0]] * 5, [1.0, 0.0]), tasks(*[[1.0, 0.0]] * 5, [0.0, 0.0])
    )
    assert found is not None
    assert (found.p, found.n, found.method) == (14 / 64, 6, "exact sign-flip")


def test_single_tries_get_the_mcnemar_test_of_the_tasks_that_changed() -> None:
    """Of 8 tasks 5 are gained, 1 is lost, 2 stay: of 6 changes 2 · (1 + 6) / 2⁶ = 14/64."""
    first = tasks(*[[0.0]] * 5, [1.0], [1.0], [0.0])
    second = tasks(*[[1.0]] * 5, [0.0], [1.0], [0.0])
    found = run_paired_test(first, second)
    assert found is not None
    assert (found.p, found.n, found.method) == (pytest.approx(14 / 64), 8, "exact McNemar")


def test_under_six_tasks_or_without_a_difference_there_is_no_test() -> None:
    """Six tasks that all rise have p = 2/64; five could reach 2/32 > 0.05 at best."""
    six = run_paired_test(tasks(*[[0.0]] * 6), tasks(*[[1.0]] * 6))
    assert six is not None
    assert six.p == 2 / 64
    assert run_paired_test(tasks(*[[0.0]] * 5), tasks(*[[1.0]] * 5)) is None
    assert run_paired_test(tasks(*[[1.0]] * 6), tasks(*[[1.0]] * 6)) is None


# Power


@pytest.mark.parametrize(
    ("number", "quantiles", "effect"),
    [
        (5, 2.776445 + 0.940965, 0.4702),
        (10, 2.262157 + 0.883404, 0.2813),
        (20, 2.093024 + 0.860951, 0.1868),
    ],
)
def test_the_minimum_detectable_effect_of_tasks_with_five_repeats(
    number: int, quantiles: float, effect: float
) -> None:
    """(t of 0.975 + t of 0.8, n − 1 degrees of freedom) · √(2 · 0.2 / 5 / n)."""
    assert detectable_difference(number, 5) == pytest.approx(
        quantiles * sqrt(0.08 / number), abs=1e-6
    )
    assert detectable_difference(number, 5) == pytest.approx(effect, abs=1e-4)


def test_one_task_or_too_much_noise_shows_nothing() -> None:
    assert detectable_difference(1, 100) is None
    assert detectable_difference(2, 1) is None


def test_what_would_settle_it_follows_from_the_variances_seen() -> None:
    """Differences 1, 1, 1, 0, 0, 0 of 2 repeats. Within tasks: posterior means 1/6 and 5/6, so
    5/36. Between: 0.3 less the noise of the repeats, 2 · 5/144 = 0.069444: 0.230556. The variance
    of a task's difference is 0.230556 + 2 · 5/36 / 2 = 0.369444. To see ½: 13 tasks show 3.051422 ·
    √(0.369444 / 13) = 0.5144, 14 show 3.030521 · √(0.369444 / 14) = 0.4923. So 8 more than 6. More
    repeats of six tasks never suffice: 3.490126 · √(0.230556 / 6) = 0.684 > ½.
    """
    found = compare_rates(tasks(*[[0.0, 0.0]] * 6), tasks(*[[1.0, 1.0]] * 3, *[[0.0, 0.0]] * 3))
    assert found.advice is not None
    assert (found.advice.effect, found.advice.tasks, found.advice.repeats) == (0.5, 8, None)


def test_fewer_than_six_tasks_are_never_enough() -> None:
    """Five tasks of 40 repeats that rise from 0.45 to 0.55 on average: one more task may be enough
    by its noise, but no number of repeats is.
    """
    low, high = [1.0] * 18 + [0.0] * 22, [1.0] * 22 + [0.0] * 18
    advice = compare_rates(tasks(*[low] * 5), tasks(*[high] * 5)).advice
    assert advice is not None
    assert advice.repeats is None
    assert advice.tasks is not None
    assert advice.tasks >= 1


# Verdicts


def bounds(low: float, high: float) -> Estimate:
    return Estimate(value=(low + high) / 2, low=low, high=high, n=9, method="given")


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.01, 0.5, "better"),
        (0.0, 0.5, "not enough data"),
        (-0.5, -0.01, "worse"),
        (-0.5, 0.0, "not enough data"),
        (-0.05, 0.05, "no difference larger than the margin"),
        (-0.05, 0.0501, "not enough data"),
    ],
)
def test_a_verdict_is_a_word_that_the_bounds_allow(low: float, high: float, said: str) -> None:
    assert classify_difference(bounds(low, high), 0.05) == said
    assert classify_difference(None, 0.05) == "not enough data"


def test_the_margin_is_five_hundredths_unless_another_is_given() -> None:
    assert compare_rates(tasks([1.0]), tasks([1.0])).margin == 0.05


def test_bounds_that_the_exact_test_does_not_back_decide_nothing_for_tasks_like_these() -> None:
    """Five of six tasks rise by 1: the t bounds are 0.8333 ∓ 2.570582 · √(1/6 / 6) = 0.4049 and up,
    but McNemar's p is 2 / 2⁵ = 0.0625. With six of six it is 2 / 2⁶ = 0.03125.
    """
    five = compare_rates(tasks(*[[0.0]] * 6), tasks(*[[1.0]] * 5, [0.0]))
    assert five.alike is not None
    assert five.alike.low == pytest.approx(5 / 6 - T[5] / 6)
    assert (five.here_word, five.alike_word) == ("better", "not enough data")
    six = compare_rates(tasks(*[[0.0]] * 6), tasks(*[[1.0]] * 6))
    assert (six.here_word, six.alike_word) == ("better", "better")


# Ratios of cost, time, tokens


def test_a_ratio_is_a_geometric_mean_over_tasks() -> None:
    """Task a: 2 → 8, four times; b: 0.25 → 0.25, once: √(4 · 1) = 2 times. Log ratios ln 4 and 0:
    s² = (ln 4)² / 2, and ln 2 ∓ 12.706205 · √(s² / 2) = ln 2 ∓ 12.706205 · ln 2.
    A zero has no ratio and is left out, with a note.
    """
    found = estimate_ratio(
        {"a": [2.0], "b": [0.25], "c": [0.0]}, {"a": [8.0], "b": [0.25], "c": [1.0]}
    )
    assert found.alike is not None
    half = T[1] * log(2)
    assert (found.alike.value, found.alike.n) == (pytest.approx(2.0), 2)
    assert found.alike.low == pytest.approx(2 * exp(-half), rel=1e-5)
    assert found.alike.high == pytest.approx(2 * exp(half), rel=1e-5)
    assert found.here is None
    assert found.notes == ("1 value that is not above zero was excluded.",)


def test_a_ratio_on_exactly_these_tasks_has_the_noise_of_repeats() -> None:
    """One task: 1 and 4 against 2 and 8, twice as much. The pooled variance of a log is (ln 4)² / 2
    with 2 degrees of freedom: ln 2 ∓ 4.302653 · √((ln 4)² / 2 · (½ + ½)).
    """
    found = estimate_ratio({"a": [1.0, 4.0]}, {"a": [2.0, 8.0]})
    assert found.here is not None
    half = T[2] * log(4) / sqrt(2)
    assert found.here.value == pytest.approx(2.0)
    assert (found.here.low, found.here.high) == pytest.approx(
        (2 * exp(-half), 2 * exp(half)), rel=1e-5
    )
    assert found.alike is None


def test_equal_ratios_are_taken_to_vary_by_their_repeats() -> None:
    """Two tasks like that one: no spread between them, so (ln 4)² / 2 · (½ + ½) for each."""
    found = estimate_ratio(tasks([1.0, 4.0], [1.0, 4.0]), tasks([2.0, 8.0], [2.0, 8.0]))
    assert found.alike is not None
    half = T[1] * log(4) / sqrt(2) / sqrt(2)
    assert found.alike.high == pytest.approx(2 * exp(half), rel=1e-5)


# Many tests, many looks


def test_holm_and_benjamini_hochberg_adjust_three_p_values() -> None:
    """Holm: 0.01 · 3, 0.03 · 2, and 0.04 · 1, but no less than the one before.
    Benjamini–Hochberg: 0.04 · 3/3, 0.03 · 3/2, but no more than the one after, 0.01 · 3/1.
    """
    tests = {"a": 0.01, "b": 0.04, "c": 0.03}
    assert adjust_holm(tests) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert adjust_benjamini_hochberg(tests) == pytest.approx({"a": 0.03, "b": 0.04, "c": 0.04})


def test_a_confidence_sequence_ends_where_a_gambler_has_won_forty_fold() -> None:
    """Three times 1 in 0 … 1. Against a candidate m the stake is ½/m at most, so that the capital
    is (1 + ½ (1 − m) / m)³. It is 40 at m = 1 / (1 + 2 (40^⅓ − 1)) = 0.171236.
    """
    found = estimate_running_mean([1.0, 1.0, 1.0], low=0.0, high=1.0)
    assert found is not None
    assert (found.value, found.high, found.n) == (1.0, 1.0, 3)
    assert found.low == pytest.approx(1 / (1 + 2 * (40 ** (1 / 3) - 1)), abs=1e-9)
    assert estimate_running_mean([]) is None


@pytest.mark.parametrize("values", [[1.0, 0.0, 1.0, 1.0] * 8, [0.0, 0.0, 0.0, 0.0, 1.0] * 8])
def test_a_confidence_sequence_bets_by_the_variance_seen_before(values: list[float]) -> None:
    """At the bound the largest capital so far is 40, with stakes of √(2 ln 40 / (σ² t ln(1 + t))),
    σ² from the values before, ¼ at first, and never more than ½/m; here by a plain loop.
    """
    found = estimate_running_mean(values, low=0.0, high=1.0)
    assert found is not None
    capital = best = 1.0
    total, squares, variance = 0.5, 0.25, 0.25
    for count, value in enumerate(values, 1):
        stake = min(sqrt(2 * log(40) / (variance * count * log(1 + count))), 0.5 / found.low)
        capital *= 1 + stake * (value - found.low)
        best = max(best, capital)
        total += value
        squares += (value - total / (count + 1)) ** 2
        variance = squares / (count + 1)
    assert best == pytest.approx(40, rel=1e-4)


def test_a_monitored_difference_weighs_each_surprise_by_its_share() -> None:
    """Shares of ½. The second makes a 1, where ½ was expected: (1 − ½) / ½ = 1. The first makes a
    0, where (½ + 1) / 2 = ¾ was expected: −(0 − ¾) / ½ = 1½. The second makes a 0, where
    (½ + 1 + 0) / 3 = ½ was expected: (0 − ½) / ½ = −1. Their mean is ½. That of the first two is
    1¼, and no two shares differ by more than 1.
    """
    outcomes = [(True, 1.0), (False, 0.0), (True, 0.0)]
    found, beyond = monitor_difference(outcomes), monitor_difference(outcomes[:2])
    assert found is not None
    assert beyond is not None
    assert (found.value, found.n) == (pytest.approx(0.5), 3)
    assert (beyond.value, beyond.high, beyond.n) == (1.0, 1.0, 2)
    assert monitor_difference([]) is None


def test_the_share_of_the_work_is_tested_exactly() -> None:
    """9 of 10 at a share of ½: the counts 0, 1, 9 and 10 are no more likely: 22/1024.
    An alarm needs p < 0.001: 14 of 15 has 32/32768 = 0.00098, 9 of 9 has 2/512 = 0.0039.
    """
    half = {"a": 0.5, "b": 0.5}
    found = check_sample_ratio({"a": 9, "b": 1}, half)
    assert found is not None
    assert (found.p, found.holds) == (pytest.approx(22 / 1024), True)
    assert check_sample_ratio({"a": 14, "b": 1}, half).holds is False  # type: ignore[union-attr]
    assert check_sample_ratio({"a": 9}, half).holds is True  # type: ignore[union-attr]
    assert check_sample_ratio({}, half) is None


def test_shares_of_three_variants_get_a_chi_square_test() -> None:
    """10, 20, 30 where 20 each were expected: χ² = 100/20 + 0 + 100/20 = 10, p = e⁻⁵."""
    found = check_sample_ratio({"a": 10, "b": 20, "c": 30}, {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    assert found is not None
    assert found.p == pytest.approx(exp(-5))


def test_the_wilson_bounds_of_this_folder_are_those_of_the_books() -> None:
    """8 of 10: 0.4902 and 0.9433."""
    assert wilson(8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-6)
