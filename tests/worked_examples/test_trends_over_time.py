"""Worked examples of `closeloop metrics --over-time`: windows, shifts, regressions, alerts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from math import exp, log, pi, sqrt

import pytest
from by_hand import T, wilson
from scripted_work import BOOK, START, add_attempt, add_task, add_variant

from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.metrics.metric_trends import compute_trends, estimate_shift, select_new_regressions
from closeloop.records.estimate import (
    Estimate,
    MetricRegression,
    MetricSeries,
    TrendReport,
    TurningPoint,
)
from closeloop.records.pull_request import Delivery
from closeloop.statistics.sequences import estimate_mean, find_change_points, rolling_windows
from closeloop.store import Store, open_store

METRIC = "first-review merge rate"


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


# Windows and means


def test_a_window_holds_what_came_after_its_beginning_and_up_to_its_end() -> None:
    """Days 0, 7, 8, 14 in windows of 7 days that end on days 7 and 14: the one on day 7 holds day 7
    alone, the one on day 14 holds days 8 and 14.
    """
    found = rolling_windows([0, 7, 8, 14], [1.0, 0.0, 1.0, 1.0], 7, [7, 14])
    assert [(one.estimate.n, one.estimate.value) for one in found] == [(1, 0.0), (2, 1.0)]
    assert rolling_windows([0], [1.0], 7, [20]) == []


def test_a_window_of_four_items_is_faint_and_one_of_five_is_not() -> None:
    four, five = (rolling_windows(range(n), [1.0] * n, 9, [n])[0].faint for n in (4, 5))
    assert (four, five) == (True, False)


def test_shares_have_wilson_bounds_and_other_values_t_bounds() -> None:
    """1 of 4: Wilson. 1, 2, 6: 3 ∓ 4.302653 · √(7/3). One value that is no share has no bounds."""
    share, amounts = estimate_mean([1, 0, 0, 0]), estimate_mean([1, 2, 6])
    assert share is not None
    assert amounts is not None
    assert (share.value, share.low, share.high) == pytest.approx((0.25, *wilson(1, 4)))
    half = T[2] * sqrt(7 / 3)
    assert (amounts.low, amounts.high) == pytest.approx((3 - half, 3 + half))
    assert (estimate_mean([]), estimate_mean([2.0])) == (None, None)


def test_a_shift_joins_the_bounds_of_both_means() -> None:
    """2 of 4, then 1 of 4: −¼. Wilson: 0.1500 … 0.8500 and 0.0456 … 0.6994. Newcombe:
    −¼ − √((0.25 − 0.0456)² + (0.85 − 0.5)²) = −0.6553, −¼ + √(0.4494² + 0.35²) = 0.3196.
    """
    found = estimate_shift([1, 1, 0, 0], [1, 0, 0, 0])
    assert found is not None
    assert (found.before.value, found.after.value) == (0.5, 0.25)
    assert (found.low, found.high) == pytest.approx((-0.6553, 0.3196), abs=1e-4)
    assert estimate_shift([], [1.0]) is None


# Turns


def test_a_turn_is_where_the_mean_changed_with_its_p() -> None:
    """Five ones, five zeros: the only place with five on either side. s² = 2.5/9; the distance is
    2.5 / √(s² · 5 · 5 / 10) = 3, and p that of two tails beyond 3, 0.0027.
    """
    (found,) = find_change_points([1.0] * 5 + [0.0] * 5)
    assert (found.at, found.before.value, found.after.value) == (5, 1.0, 0.0)
    assert found.p == pytest.approx(0.0026998, abs=1e-7)
    assert find_change_points([1.0] * 5 + [0.0] * 4) == []


def test_looking_at_every_place_is_allowed_for() -> None:
    """Two hundred items, the first half at 7 of 10, the second at 4 of 10. At the middle the sum of
    deviations is 100 · 0.15 = 15, s² = 200 · 0.55 · 0.45 / 199, the distance
    x = 15 / √(s² · 50) = 4.2534. Miller and Siegmund: φ(x) · ((x − 1/x) · ln((0.975 / 0.025)²) +
    4/x) = 0.0014, which is less than 191 places times two tails.
    """
    row = [1, 1, 1, 0, 1, 1, 0, 1, 1, 0] * 10 + [1, 0, 0, 1, 0, 1, 0, 0, 1, 0] * 10
    (found,) = find_change_points(row)
    best = max(range(5, 196), key=lambda at: _distance(row, at))
    x = _distance(row, best)
    p = exp(-x * x / 2) / sqrt(2 * pi) * ((x - 1 / x) * 2 * log(39) + 4 / x)
    assert found.at == best
    assert found.p == pytest.approx(p)
    assert _distance(row, 100) == pytest.approx(4.2534, abs=1e-4)


def _distance(row: list[int], at: int) -> float:
    mean = sum(row) / len(row)
    variance = sum((one - mean) ** 2 for one in row) / (len(row) - 1)
    off = abs(sum(row[:at]) - at * mean)
    return off / sqrt(variance * at * (len(row) - at) / len(row))


def test_a_turn_that_may_be_chance_is_none() -> None:
    """4 of 5, then 1 of 5: distance 1.5 / √(2.5/9 · 2.5) = 1.8, two tails 0.0719 > 0.05."""
    assert find_change_points([1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0]) == []


# Courses of a metric


def sessions(store: Store, *values: tuple[float, bool], metric: str = METRIC) -> MetricSeries:
    """One delivered session for each (day, first review)."""
    for day, first in values:
        at = START + timedelta(days=day)
        made = add_attempt(store, None, None, None, started=at)
        store.pulls.save_delivery(Delivery(attempt=made.id, at=at, first_review=first))
    (course,) = compute_trends(load_attempt_table(store, BOOK), (), [metric]).courses
    return course


def test_the_last_week_is_held_against_the_one_before(store: Store) -> None:
    """Last item on day 21. Last week: after day 14. The one before: after day 7 up to day 14."""
    course = sessions(store, (0, True), (7, True), (8, False), (14, True), (15, False), (21, False))
    assert course.week is not None
    assert (course.week.before.value, course.week.before.n) == (0.5, 2)
    assert (course.week.after.value, course.week.after.n) == (0.0, 2)


def test_without_a_day_given_all_since_halfway_is_held_against_all_before(store: Store) -> None:
    """From day 0 to day 20: halfway is day 10, whose item is among the later ones."""
    course = sessions(store, (0, True), (9, False), (10, True), (20, True))
    assert course.since is not None
    assert (course.since.before.value, course.since.before.n) == (0.5, 2)
    assert (course.since.after.value, course.since.after.n) == (1.0, 2)


def test_a_tasks_repeats_of_one_week_are_one_item(store: Store) -> None:
    """Three repeats of a task on one day, 2 passed: one item of 2/3, and a window with n = 1."""
    task, variant = add_task(store, "t"), add_variant(store, "a")
    for number, passed in enumerate((True, True, False), 1):
        add_attempt(store, task, variant, passed, number=number)
    (course,) = compute_trends(load_attempt_table(store, BOOK), (), ["pass rate"]).courses
    (stretch,) = course.stretches
    assert (stretch.estimate.value, stretch.estimate.n) == (pytest.approx(2 / 3), 1)


def test_a_turn_for_the_worse_is_a_regression_and_one_for_the_better_is_none(store: Store) -> None:
    """Ten sessions, five merged at first review and five not: p = 0.0027 as above; only one turn
    was found, so that it stays so after Benjamini–Hochberg.
    """
    days = [(day, day < 5) for day in range(10)]
    sessions(store, *days)
    (one,) = compute_trends(load_attempt_table(store, BOOK), (), [METRIC]).regressions
    assert (one.turn.at, one.turn.before.value, one.turn.after.value) == (
        START + timedelta(days=5),
        1.0,
        0.0,
    )
    assert (one.turn.p, one.adjusted) == pytest.approx((0.0026998, 0.0026998), abs=1e-7)
    with open_store(":memory:") as other:
        sessions(other, *((day, not first) for day, first in days))
        assert compute_trends(load_attempt_table(other, BOOK), (), [METRIC]).regressions == ()


def test_what_was_first_seen_within_a_week_of_a_turn_stands_beside_it(store: Store) -> None:
    """The turn is on day 5. A variant of day 12 is near; one of day 12 and a minute is not."""
    sessions(store, *((day, day < 5) for day in range(10)))
    for name, minutes in (("near", 0), ("far", 1)):
        at = START + timedelta(days=12, minutes=minutes)
        add_attempt(store, add_task(store, name), add_variant(store, name), True, started=at)
    (one,) = compute_trends(load_attempt_table(store, BOOK), (), [METRIC]).regressions
    assert one.turn.near == ("variant near v-near",)


def regression(days: float, adjusted: float) -> MetricRegression:
    mean = Estimate(value=0.5, low=0.4, high=0.6, n=9, method="given")
    turn = TurningPoint(at=START - timedelta(days=days), before=mean, after=mean, p=adjusted)
    return MetricRegression(
        metric=METRIC, group={"days": str(days), "p": str(adjusted)}, turn=turn, adjusted=adjusted
    )


def test_an_alert_is_surer_than_one_in_a_hundred_recent_and_new() -> None:
    """Told: p 0.009 on the 28th day. Not: p 0.01; older than four weeks; told before."""
    new, known = regression(28, 0.009), regression(1, 0.001)
    every = (new, regression(1, 0.01), regression(28.01, 0.001), known)
    found = TrendReport(weeks=4, courses=(), marks=(), regressions=every, notes=())
    assert select_new_regressions(found, {known.key: True}, now=START) == [new]
