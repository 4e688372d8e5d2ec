"""What the Overview says of a week, worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from scripted_work import add_attempt, add_task, add_variant

from closeloop.metrics.attempt_measuring import project_rulebook
from closeloop.metrics.attempt_table import AttemptTable, load_attempt_table
from closeloop.metrics.work_summary import (
    PricedPull,
    choose_period,
    find_costliest,
    list_changes,
    median_costs,
    note_session,
    period_before,
    sum_use_by_day,
    total_period,
)
from closeloop.records.attempt import Attempt, AttemptMarks, AttemptRow, TimeRange, Usage
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.settings import Settings
from closeloop.records.trace import Session, Trace
from closeloop.store import Store, open_store

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
"""A Tuesday."""


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def loaded(store: Store) -> AttemptTable:
    return load_attempt_table(store, project_rulebook(Settings()))


def ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def test_a_week_stands_beside_the_week_before(store: Store) -> None:
    """Seven days up to now: sessions of $1 and $2 and one of unknown cost, $3 in all. The seven
    before: one of $6. Pull requests merged: two this week, of which one is known to have cost
    $0.50, and one before. What began on the boundary belongs to the later week.
    """
    for days, cost in ((0, 1.0), (7, 2.0), (3, None), (7.01, 6.0), (14.5, 99.0)):
        add_attempt(store, None, None, None, started=ago(days), cost=cost)
    merged = [
        PricedPull(merged=ago(1), cost=0.5),
        PricedPull(merged=ago(2), cost=None),
        PricedPull(merged=ago(8), cost=4.0),
    ]
    work = loaded(store)
    period = TimeRange(since=ago(7), until=NOW + timedelta(seconds=1))
    week = total_period(work, merged, period)
    assert (week.sessions, week.cost, week.unknown_cost) == (3, 3.0, 1)
    assert (week.merged, week.costed, week.cost_per_merged) == (2, 1, 0.5)
    before = total_period(work, merged, period_before(period))
    assert (before.sessions, before.cost, before.merged, before.cost_per_merged) == (1, 6.0, 1, 4.0)


def test_without_a_start_the_period_begins_with_the_first_session_or_merge(store: Store) -> None:
    """Sessions 500 and 2 days ago, and a pull request merged 600 days ago: all of them count."""
    for days in (500, 2):
        add_attempt(store, None, None, None, started=ago(days), cost=1.0)
    work, merged = loaded(store), [PricedPull(merged=ago(600), cost=2.0)]
    assert choose_period(work, [], TimeRange(), NOW) == TimeRange(since=ago(500), until=NOW)
    period = choose_period(work, merged, TimeRange(), NOW)
    assert period == TimeRange(since=ago(600), until=NOW)
    whole = total_period(work, merged, period)
    assert (whole.sessions, whole.cost, whole.merged) == (2, 2.0, 1)
    store.save_attempt(
        AttemptResult(attempt=Attempt(id="undated", origin="production", exit="finished"))
    )
    assert total_period(loaded(store), merged, period).sessions == 2
    assert total_period(loaded(store), merged, period, undated=True).sessions == 3
    week = TimeRange(since=ago(7))
    assert choose_period(work, merged, week, NOW) == TimeRange(since=ago(7), until=NOW)
    assert choose_period(loaded(store).select_rows(set()), [], TimeRange(), NOW).since == NOW


def test_use_is_summed_by_day_and_tokens_of_the_cache_stand_apart(store: Store) -> None:
    """Two sessions on one day, 10 + 20 fresh tokens, 5 out, and 700 read from the cache."""
    for number, usage in enumerate(
        (Usage(input_tokens=10, output_tokens=5, cost=1.0), Usage(input_tokens=20, cost=0.5,
                                                                  cache_read_tokens=700))
    ):  # fmt: skip
        attempt = Attempt(id=f"a{number}", origin="production", exit="finished", usage=usage,
                          started=ago(1))  # fmt: skip
        store.save_attempt(AttemptResult(attempt=attempt))
    use = sum_use_by_day(loaded(store), TimeRange(since=ago(7), until=NOW))
    midnight = datetime(2026, 11, 16, tzinfo=UTC)
    assert [(one.at, one.name, one.value) for one in use.tokens] == [
        (midnight, "read from cache", 700),
        (midnight, "fresh input", 30),
        (midnight, "output", 5),
    ]
    assert [(one.name, one.value) for one in use.cost["model"]] == [("–", 1.5)]
    assert [one.value for one in use.sessions] == [2]
    assert use.days == 1
    assert (use.since.date().isoformat(), use.until.date().isoformat()) == (
        "2026-11-10",
        "2026-11-18",
    )


def test_a_long_time_is_drawn_by_weeks_that_begin_on_mondays(store: Store) -> None:
    """Sunday 2026-11-08 and Monday the 9th are in two weeks; over 62 days are drawn so."""
    for at in (datetime(2026, 11, 8, 23, tzinfo=UTC), datetime(2026, 11, 9, 1, tzinfo=UTC)):
        add_attempt(store, None, None, None, started=at)
    add_attempt(store, None, None, None, started=ago(75))
    use = sum_use_by_day(loaded(store), TimeRange(since=ago(80), until=NOW))
    assert use.days == 7
    assert [f"{one.at:%Y-%m-%d %a}" for one in use.sessions] == [
        "2026-08-31 Mon",
        "2026-11-02 Mon",
        "2026-11-09 Mon",
    ]
    assert [f"{at:%Y-%m-%d %a}" for at in (use.since, use.until)] == [
        "2026-08-24 Mon",
        "2026-11-23 Mon",
    ]


def test_a_session_is_dear_beside_the_median_of_its_agent(store: Store) -> None:
    """Of $1, $1, $1, $1 and $10 the median is $1: the last is 10 times as dear. Of fewer than five
    sessions no median is told.
    """
    variant, tasks = add_variant(store, "a"), [add_task(store, f"t{n}") for n in range(5)]
    for task, cost in zip(tasks, (1.0, 1.0, 1.0, 1.0, 10.0), strict=True):
        dear = add_attempt(store, task, variant, True, cost=cost)
    work = loaded(store)
    medians = median_costs(work)
    assert medians == {variant.agent: 1.0}
    assert find_costliest(work, 1) == [dear.id]
    row = AttemptRow(id=dear.id, origin="experiment", exit="finished", agent=variant.agent, cost=10)
    noted = note_session(row, AttemptMarks(rules=("spiral",), findings=1), medians)
    assert noted.why == (f"10 × the median of {variant.agent} ($1.00)", "spiral")


def test_what_changed_is_the_plainest_shift_around_something_new(store: Store) -> None:
    """Before a new model six sessions cost $1 each, after it six cost $5: a shift of the cost."""
    for model, days, cost in (("old", 20.0, 1.0), ("new", 5.0, 5.0)):
        for number in range(6):
            attempt = Attempt(
                id=f"{model}{number}", origin="production", exit="finished",
                started=ago(days - number / 10), usage=Usage(cost=cost + number / 100),
            )  # fmt: skip
            keep_session_of(store, attempt, model)
    (change,) = list_changes(loaded(store), 4)
    assert change.what == "codex with new"
    assert change.metric is not None
    assert change.shift is not None
    assert (change.metric.name, change.shift.before.n, change.shift.after.n) == ("cost", 6, 6)
    assert change.shift.before.value == pytest.approx(1.025)
    assert change.shift.after.value == pytest.approx(5.025)


def keep_session_of(store: Store, attempt: Attempt, model: str) -> None:
    session = Session(
        id=attempt.id, agent="codex", model=model, trace=Trace(reader="r", reader_version=1),
        started=attempt.started,
    )  # fmt: skip
    store.pulls.save_pull_attempt(attempt, session, "T")
