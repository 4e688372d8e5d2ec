"""The gate: catches what became worse, and lets noise pass."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from closeloop.measuring.attempts import Measured
from closeloop.measuring.gate import compare, coverage
from closeloop.model.attempt import AttemptRow
from closeloop.model.baseline import Baseline, GateReport
from closeloop.model.finding import Finding
from closeloop.model.measurement import Measurement, ProcessScore
from closeloop.model.rates import rate

BASELINE = Baseline(name="main", experiment="e", attempts=(), at=datetime(2026, 11, 1, tzinfo=UTC))
SPIRAL = Finding(rule="spiral", version=1, severity="error", message="…")


def attempt(
    task: int, number: int, *, passed: bool | None = True, spiral: bool = False, used: float = 1.0
) -> Measured:
    outcome = {True: "pass", False: "fail", None: "unscored"}[passed]
    return Measured(
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
            score=ProcessScore(feedback=rate(used * 10, 10)),
        ),
    )


def side(make: Callable[[int, int], Measured], tasks: int = 9, repeats: int = 3) -> list[Measured]:
    return [make(task, number) for task in range(tasks) for number in range(repeats)]


def gate(before: list[Measured], now: list[Measured]) -> GateReport:
    return compare(BASELINE, before, now, "f", frozenset({"spiral"}))


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
    assert verdicts(report)["without findings"] == "worse"
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

    def noisy(task: int, number: int) -> Measured:
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
    assert coverage(now) == pytest.approx(1 / 3)
    assert verdicts(report)["passed"] == "no clear difference"
