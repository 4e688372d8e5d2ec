"""Worked examples: one task over its repeats, as `closeloop show --task` prints it."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from closeloop.metrics.task_log import group_task_repeats
from closeloop.records.attempt import (
    AWAITING_REVIEW,
    AttemptMarks,
    AttemptRow,
    CommandResult,
    Grade,
    IntegrityCheck,
    Outcome,
    is_failure_fixed,
)
from closeloop.records.attempt import TestResult as SingleTest
from closeloop.records.attempt import TestRun as SuiteRun
from closeloop.records.estimate import wilson_rate


def run_tests(when: Literal["before", "after"], flaky: str = "", **statuses: Any) -> SuiteRun:
    results = tuple(SingleTest(id=name, status=status) for name, status in statuses.items())
    return SuiteRun(when=when, tests=results, flaky=tuple(flaky), ran=True)


def commands_run(when: Literal["before", "after"], **codes: int) -> SuiteRun:
    results = (
        CommandResult(command=name, exit_code=code, seconds=1, output="")
        for name, code in codes.items()
    )
    return SuiteRun(when=when, commands=tuple(results))


def fixed(result: str = "fail", **given: Any) -> bool | None:
    given.setdefault("before", run_tests("before", a="failed", b="passed"))
    outcome = Outcome(result=result)  # type: ignore[arg-type]
    return is_failure_fixed(Grade(attempt="x", grading="g", version=1, outcome=outcome, **given))


# Original failure fixed


def test_the_failure_is_gone_when_all_that_failed_at_the_base_passes() -> None:
    """Another test that breaks makes the attempt fail, and the failure is fixed all the same."""
    assert fixed(after=run_tests("after", a="passed", b="failed")) is True
    assert fixed(after=run_tests("after", a="failed", b="passed")) is False
    assert fixed("pass", after=run_tests("after", a="passed", b="passed")) is True


def test_named_tests_decide_where_a_task_names_some() -> None:
    after = run_tests("after", a="failed", b="passed")
    assert fixed(after=after, fail_to_pass=(2, 2)) is True
    assert fixed(after=after, fail_to_pass=(1, 2)) is False


def test_commands_decide_where_there_are_no_tests() -> None:
    before = commands_run("before", build=1, lint=0)
    assert fixed(before=before, after=commands_run("after", build=0, lint=1)) is True
    assert fixed(before=before, after=commands_run("after", build=2, lint=0)) is False


def test_where_nothing_was_run_changed_or_believed_it_is_not_fixed_or_not_known() -> None:
    after = run_tests("after", a="passed")
    assert fixed() is False, "nothing was changed"
    assert fixed("unscored", after=after) is None
    assert fixed(before=None) is None
    assert fixed(before=run_tests("before", b="passed"), after=after) is None, "nothing failed"
    assert fixed(before=run_tests("before", "a", a="failed"), after=after) is None, "it is flaky"
    forged = (IntegrityCheck(name="controls", state="violated"),)
    assert fixed(after=after, fail_to_pass=(1, 1), integrity=forged) is False


# The table


def row(name: str, number: int, **given: Any) -> AttemptRow:
    known = {"task": "half-cents", "task_digest": "d", "variant": "v", "variant_name": "closer"}
    return AttemptRow(id=name, origin="experiment", exit="finished", number=number, **known | given)


def test_repeats_stand_in_rows_and_add_up_by_variant() -> None:
    """Three repeats of closer, the second begun twice: iterations (2 + 5 + 1) / 3, converged in 1
    of the 2 in which a check failed, output used in 2 + 1 of 2 + 4 turns, fixed 2 of 3.
    """
    rows = [
        row("a", 1, outcome="pass", fixed=True),
        row("b", 2, outcome="unscored"),
        row("c", 2, retry=1, outcome="fail", fixed=False),
        row("d", 3, outcome="pass", fixed=True),
        row("e", 1, variant="r", variant_name="again", fixed=True, replay_of="a"),
    ]
    marks = {
        "a": AttemptMarks(iterations=2, converged_after=2, feedback=wilson_rate(2, 2)),
        "c": AttemptMarks(iterations=5, feedback=wilson_rate(1, 4)),
        "d": AttemptMarks(iterations=1),
    }
    [table] = group_task_repeats(rows, marks, {})
    assert [(one.attempt, one.number) for one in table.repeats] == [
        ("e", 1),
        ("a", 1),
        ("c", 2),
        ("d", 3),
    ]
    [closer] = table.variants
    assert (closer.variant, closer.repeats) == ("closer", 3)
    assert closer.iterations == pytest.approx(8 / 3)
    assert closer.converged == wilson_rate(1, 2)
    assert closer.output_used == wilson_rate(3, 6)
    assert closer.fixed == wilson_rate(2, 3)


def test_where_nothing_is_checked_a_repeat_is_what_most_reviewers_say() -> None:
    """Merged by 2 of 3 reviewers: pass; by 1 of 2: fail; read by none: unscored; a grade stands."""
    rows = [
        row("a", 1, outcome="unscored", outcome_cause=AWAITING_REVIEW),
        row("b", 2, outcome="unscored", outcome_cause=AWAITING_REVIEW),
        row("c", 3, outcome="unscored", outcome_cause=AWAITING_REVIEW),
        row("d", 4, outcome="fail"),
    ]
    [table] = group_task_repeats(rows, {}, {"a": 2 / 3, "b": 0.5, "d": 1.0})
    assert [one.outcome for one in table.repeats] == ["pass", "fail", "unscored", "fail"]
