"""The gate: catches what became worse, and lets noise pass."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest

from closeloop.metrics.attempt_measuring import MeasuredAttempt
from closeloop.metrics.variant_comparison import NO_DEMANDS as NOTHING
from closeloop.metrics.variant_comparison import (
    compare_with_baseline,
    gate_to_junit,
    parse_thresholds,
    scored_share,
)
from closeloop.records.attempt import AttemptRow
from closeloop.records.errors import BadInput
from closeloop.records.estimate import wilson_rate
from closeloop.records.experiment_plan import Baseline, GateDemands, GateReport
from closeloop.records.finding import Finding, Measurement, ProcessScore

BASELINE = Baseline(name="main", experiment="e", attempts=(), at=datetime(2026, 11, 1, tzinfo=UTC))
SPIRAL = Finding(rule="spiral", version=1, severity="error", message="…")


def attempt(
    task: int, number: int, *, passed: bool | None = True, spiral: bool = False, used: float = 1.0
) -> MeasuredAttempt:
    outcome = {True: "pass", False: "fail", None: "unscored"}[passed]
    return MeasuredAttempt(
        row=AttemptRow(
            id=f"{task}-{number}",
            origin="experiment",
            task=f"t{task}",
            task_digest=f"d{task}",
            variant_name="closer",
            number=number,
            exit="finished",
            outcome=outcome,  # type: ignore[arg-type]
        ),
        measurement=Measurement(
            rules="r",
            findings=(SPIRAL,) if spiral else (),
            score=ProcessScore(feedback=wilson_rate(used * 10, 10)),
        ),
    )


def side(
    make: Callable[[int, int], MeasuredAttempt], tasks: int = 9, repeats: int = 3
) -> list[MeasuredAttempt]:
    return [make(task, number) for task in range(tasks) for number in range(repeats)]


def gate(before: list[MeasuredAttempt], now: list[MeasuredAttempt]) -> GateReport:
    return compare_with_baseline(BASELINE, before, now, "f", frozenset({"spiral"}))


def verdicts(report: GateReport) -> dict[str, str]:
    return {one.metric: one.verdict for one in report.differences}


def test_equal_work_passes() -> None:
    report = gate(side(attempt), side(attempt))
    assert report.passed
    assert set(verdicts(report).values()) == {"no clear difference", "not enough data"}


def test_a_worse_outcome_is_caught() -> None:
    report = gate(side(attempt), side(lambda t, n: attempt(t, n, passed=t < 2)))
    assert not report.passed
    assert verdicts(report)["passed"] == "worse"
    assert verdicts(report)["feedback"] == "no clear difference"


def test_a_worse_process_is_caught_although_the_outcome_is_the_same() -> None:
    report = gate(side(attempt), side(lambda t, n: attempt(t, n, spiral=True, used=0.1)))
    assert not report.passed
    assert verdicts(report)["without gating findings"] == "worse"
    assert verdicts(report)["feedback"] == "worse"
    assert verdicts(report)["passed"] == "no clear difference"


def test_getting_better_passes_and_is_told() -> None:
    report = gate(side(lambda t, n: attempt(t, n, passed=False)), side(attempt))
    assert report.passed
    assert verdicts(report)["passed"] == "better"


@pytest.mark.parametrize(("tasks", "repeats"), [(9, 1), (9, 3), (20, 5)])
def test_noise_alone_passes_more_than_nine_times_of_ten(tasks: int, repeats: int) -> None:
    chance = random.Random(tasks * 100 + repeats)
    ease = [chance.random() for _ in range(tasks)]

    def noisy(task: int, number: int) -> MeasuredAttempt:
        return attempt(
            task,
            number,
            passed=chance.random() < ease[task],
            spiral=chance.random() > ease[task],
            used=chance.random(),
        )

    rounds = 200
    passed = sum(
        gate(side(noisy, tasks, repeats), side(noisy, tasks, repeats)).passed for _ in range(rounds)
    )
    assert passed / rounds > 0.9


def test_what_only_one_side_has_is_named_and_not_compared() -> None:
    report = gate(side(attempt, tasks=3), side(attempt, tasks=4))
    assert report.left_out == ("task 't3' is not in the baseline",)
    assert {one.tasks for one in report.differences if one.metric == "passed"} == {3}


def test_attempts_that_could_not_be_scored_are_coverage_and_no_score() -> None:
    now = side(lambda t, n: attempt(t, n, passed=None if n else True))
    report = gate(side(attempt), now)
    assert scored_share(now) == pytest.approx(1 / 3)
    assert verdicts(report)["passed"] == "no clear difference"


def test_a_lost_task_does_not_hide_in_a_good_mean() -> None:
    """One of fifty tasks goes from ten of ten to none: 98 % still pass."""
    before = side(attempt, tasks=50, repeats=10)
    now = side(lambda t, n: attempt(t, n, passed=t != 7), tasks=50, repeats=10)
    report = gate(before, now)
    assert [one.task for one in report.tasks if one.verdict == "worse"] == ["t7"]
    assert not report.passed
    assert "closer: task t7 is worse, 100 % before, 0 % now" in report.reasons


def test_noise_in_single_tasks_is_let_pass() -> None:
    before = side(lambda t, n: attempt(t, n, passed=n != 0), repeats=3)
    now = side(lambda t, n: attempt(t, n, passed=n == 0), repeats=3)
    assert {one.verdict for one in gate(before, now).tasks} == {"no clear difference"}


def test_thresholds_hold_or_say_what_they_saw() -> None:
    now = side(lambda t, n: attempt(t, n, passed=(t, n) != (0, 0)))
    demands = GateDemands(least={"passed": 0.9, "each task": 0.7, "handoff": 0.5})
    report = compare_with_baseline(None, [], now, "f", frozenset(), demands)
    held = {one.metric: (one.holds, one.value) for one in report.thresholds}
    assert held == {
        "passed": (True, pytest.approx(26 / 27)),
        "each task": (False, pytest.approx(2 / 3)),
        "handoff": (False, None),
    }
    assert report.reasons == (
        "closer: each task must be 0.7 or more, and is 0.67",
        "closer: handoff must be 0.5 or more, and nothing was scored",
    )
    assert not report.passed


def test_not_worse_by_a_margin_must_be_shown() -> None:
    few = side(attempt, tasks=3, repeats=1)
    many = side(attempt, tasks=40, repeats=10)
    for attempts, passes in ((few, False), (many, True)):
        demands = GateDemands(margin=0.05)
        report = compare_with_baseline(BASELINE, attempts, attempts, "f", frozenset(), demands)
        assert report.passed is passes
    assert gate(few, few).passed


@pytest.mark.parametrize("written", ["passed", "passed=many", "passed=1.5", "passed=nan", "luck=1"])
def test_a_threshold_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(BadInput):
        parse_thresholds([written], {})
    assert parse_thresholds(["each task = 0.5"], {}) == {"each task": 0.5}
    with pytest.raises(BadInput, match="'passed' is not a threshold: add a value"):
        parse_thresholds(["passed"], {})


def test_build_servers_see_what_failed() -> None:
    now = side(lambda t, n: attempt(t, n, passed=t < 2), repeats=10)
    report = compare_with_baseline(
        BASELINE, side(attempt, repeats=10), now, "f", frozenset(), NOTHING
    )
    root = ElementTree.fromstring(gate_to_junit(report))
    failed = {
        case.get("name") for case in root.iter("testcase") if case.find("failure") is not None
    }
    assert failed == {"passed", "gate", *(f"t{n}" for n in range(2, 9))}
    assert root.get("failures") == "9"
    refused = ElementTree.fromstring(gate_to_junit(report, "too few"))
    assert refused.get("errors") == "1"
