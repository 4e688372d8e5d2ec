"""Trials: assigned once and for good, shared as written, stopped for a reason."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from scripted_work import BOOK, START, add_attempt

from closeloop.cli import main
from closeloop.metrics.variant_trials import (
    assign_variant,
    draw_variant,
    parse_shares,
    report_trial,
)
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import Trial, TrialAssignment, TrialReport
from closeloop.records.pull_request import Delivery
from closeloop.store import Store, open_store

METRIC = "first-review merge rate"
TRIAL = Trial(name="x", shares={"a": 0.5, "b": 0.5}, metric=METRIC, started=START)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def test_a_key_falls_to_one_variant_for_good(store: Store) -> None:
    store.trials.start_trial(TRIAL)
    first = assign_variant(store, TRIAL, "PR 7", START)
    again = assign_variant(store, TRIAL, "PR 7", START + timedelta(days=1))
    assert first == again
    assert store.trials.list_assignments("x") == [first]
    changed = Trial(name="x", shares={"a": 0.01, "b": 0.99}, metric=METRIC, started=START)
    assert store.trials.start_trial(changed) == TRIAL
    with pytest.raises(BadInput, match="Nothing to assign"):
        assign_variant(store, TRIAL, " ", START)


def test_work_is_shared_as_it_is_written() -> None:
    trial = Trial(name="y", shares={"a": 0.2, "b": 0.8}, metric=METRIC, started=START)
    counts = Counter(draw_variant(trial, f"task {n}") for n in range(5000))
    assert 900 < counts["a"] < 1100


@pytest.mark.parametrize(
    "written", ["", "a", "a=1", "a=0.5", "a=0.5,a=0.5", "a=0.7,b=0.7", "a=x,b=0.5", "a=nan,b=1"]
)
def test_shares_that_are_none_are_refused(written: str) -> None:
    with pytest.raises(BadInput):
        parse_shares(written)


def run(rates: dict[str, float], count: int, horizon: int | None = None) -> TrialReport:
    """So many pieces of work, and what became of them."""
    chance = random.Random(6)
    trial = Trial(
        name="x", shares={"a": 0.5, "b": 0.5}, metric=METRIC, started=START, horizon=horizon
    )
    with open_store(":memory:") as store:
        store.trials.start_trial(trial)
        for n in range(count):
            at = START + timedelta(minutes=n)
            # Lots are drawn by the name: they must not depend on which tests ran before.
            begun = at + timedelta(seconds=5)
            made = add_attempt(store, None, None, None, started=begun, id=f"{n:012x}")
            one = assign_variant(store, trial, made.id, at)
            first = chance.random() < rates[one.variant]
            store.pulls.save_delivery(
                Delivery(attempt=made.id, at=at, merged=first, first_review=first, cycles=1)
            )
        return report_trial(store, BOOK, trial)


@pytest.mark.parametrize(
    ("rates", "horizon", "call"),
    [
        ({"a": 0.2, "b": 0.9}, None, "better"),
        ({"a": 0.9, "b": 0.2}, None, "worse"),
        ({"a": 0.5, "b": 0.55}, None, "go on"),
        ({"a": 0.2, "b": 0.9}, 150, "better"),
        ({"a": 0.5, "b": 0.5}, 150, "hopeless"),
        ({"a": 0.2, "b": 0.9}, 500, "go on"),
    ],
)
def test_a_trial_says_better_worse_hopeless_or_go_on(
    rates: dict[str, float], horizon: int | None, call: str
) -> None:
    report = run(rates, 150, horizon)
    (standing,) = report.standings
    assert standing.call == call
    assert sum(arm.assigned for arm in report.arms) == 150
    assert sum(arm.outcomes for arm in report.arms) == 150
    assert report.arms[0].rates["revision cycles"] == 1
    assert report.arms[0].rates["tokens in"] is None


def test_work_that_was_not_shared_by_lot_gets_no_call(store: Store) -> None:
    store.trials.start_trial(TRIAL)
    for n in range(40):
        store.trials.save_assignment(TrialAssignment(trial="x", key=str(n), variant="a", at=START))
    report = report_trial(store, BOOK, TRIAL)
    assert report.standings == ()
    assert report.refusal is not None
    assert report.refusal == (
        "Sample ratio mismatch: a has 40 of 40 instead of 50 %, b has 0 of 40 instead of 50 % "
        "(p 2e-12). Find out which work is missing before comparing."
    )


def test_only_work_that_began_after_its_assignment_counts(store: Store) -> None:
    store.trials.start_trial(TRIAL)
    made = add_attempt(store, None, None, None, started=START)
    assign_variant(store, TRIAL, made.id, START + timedelta(hours=1))
    store.pulls.save_delivery(Delivery(attempt=made.id, at=START, first_review=True))
    assert sum(arm.outcomes for arm in report_trial(store, BOOK, TRIAL).arms) == 0


def test_the_command_starts_assigns_and_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "closeloop.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert leave("ab", "start", "t", "--variants", "a=0.5,b=0.5") == 0
    assert leave("ab", "start", "t", "--variants", "a=0.5,b=0.5") == 0
    assert leave("ab", "start", "t", "--variants", "a=0.4,b=0.6") == 2
    assert leave("ab", "start", "u") == 2
    assert leave("ab", "start", "u", "--variants", "a=0.5,b=0.5", "--score", "cost") == 2
    assert leave("ab", "status", "nobody") == 2
    capsys.readouterr()
    assert leave("ab", "assign", "t", "PR-1") == 0
    assert capsys.readouterr().out.strip() in ("a", "b")
    assert leave("ab", "assign", "t") == 2
    assert leave("ab", "status", "t") == 0
    assert "no outcome is known for both arms yet" in capsys.readouterr().out


def leave(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return int(left.value.code or 0)


def test_a_look_every_time_is_seldom_wrong() -> None:
    """The sequence is looked at after every outcome of fifty equal trials."""
    from closeloop.statistics.sequences import monitor_difference

    wrong = 0
    for seed in range(50):
        chance = random.Random(seed)
        outcomes = [(chance.random() < 0.5, float(chance.random() < 0.6)) for _ in range(120)]
        looks = (monitor_difference(outcomes[:n]) for n in range(10, 121, 10))
        wrong += any(one is not None and not one.low <= 0 <= one.high for one in looks)
    assert wrong <= 5
