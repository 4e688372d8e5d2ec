"""Worked examples: resolved, right files, questions asked, scope."""

from __future__ import annotations

from typing import Any

from measured import measure_events
from rules import edit
from story import story

from closeloop.grading.grading import (
    asked_before_editing,
    files_out_of_scope,
    measure_file_precision,
)
from closeloop.grading.integrity.restore import read_steering
from closeloop.grading.suite_run import judge_suite
from closeloop.records import attempt
from closeloop.records.change import Change, FileChange
from closeloop.records.task import Acceptance, Task
from closeloop.text.patches import parse_patch


def run(when: Any, flaky: tuple[str, ...] = (), **tests: Any) -> attempt.TestRun:
    """A run of tests by name and status."""
    results = tuple(attempt.TestResult(id=name, status=status) for name, status in tests.items())
    return attempt.TestRun(when=when, tests=results, flaky=flaky, ran=True)


# Resolved: every fail-to-pass test passes and every steady pass-to-pass test still does


def test_work_is_resolved_when_wanted_tests_pass_and_the_others_still_do() -> None:
    """Wanted a and b: both pass, 2 of 2. c and d passed before and still do, 2 of 2."""
    wanted = Acceptance(run="pytest", fail_to_pass=("a", "b"))
    before = run("before", a="failed", b="error", c="passed", d="passed", e="failed")
    after = run("after", a="passed", b="passed", c="passed", d="passed", e="failed")
    verdict = judge_suite(wanted, before, after)
    assert (verdict.fail_to_pass, verdict.pass_to_pass) == ((2, 2), (2, 2))
    assert (verdict.broken, verdict.reasons) == ((), ())


def test_a_skipped_or_missing_test_does_not_pass() -> None:
    """b is skipped, d did not run: 1 of 2 and 1 of 2, with a reason for each."""
    wanted = Acceptance(run="pytest", fail_to_pass=("a", "b"))
    before = run("before", a="failed", b="failed", c="passed", d="passed")
    verdict = judge_suite(wanted, before, run("after", a="passed", b="skipped", c="passed"))
    assert (verdict.fail_to_pass, verdict.pass_to_pass) == ((1, 2), (1, 2))
    assert verdict.broken == ("d",)
    assert verdict.reasons == ("b was skipped", "d passed before and did not run")


def test_flaky_tests_are_kept_out_of_both_counts() -> None:
    """b flickers between repeats and d did at the base: 1 of 1 and 1 of 1 remain."""
    wanted = Acceptance(run="pytest", fail_to_pass=("a", "b"))
    before = run("before", ("d",), a="failed", b="failed", c="passed", d="passed")
    after = run("after", a="passed", b="failed", c="passed", d="failed")
    verdict = judge_suite(wanted, before, after, flaky=("b",))
    assert (verdict.fail_to_pass, verdict.pass_to_pass) == ((1, 1), (1, 1))
    assert verdict.reasons == ()


def test_without_named_tests_those_that_failed_before_must_pass_now() -> None:
    """a failed before: 0 of 1 now. Nothing passed before, so pass-to-pass is unmeasured."""
    verdict = judge_suite(
        Acceptance(run="pytest"), run("before", a="failed"), run("after", a="failed")
    )
    assert (verdict.fail_to_pass, verdict.pass_to_pass) == ((0, 1), None)
    assert verdict.reasons == ("a fails",)


# Right files


def patch(*paths: str) -> str:
    return "".join(
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n"
        for path in paths
    )


def change(*paths: str) -> Change:
    return parse_patch(patch(*paths))


def files(reference: tuple[str, ...] | None, *touched: str) -> tuple[float | None, float | None]:
    task = Task(
        id="t",
        prompt="Mend it",
        reference=patch(*reference) if reference else None,
        acceptance=Acceptance(run="pytest"),
    )
    found = measure_file_precision(task, change(*touched), read_steering(task, None))
    return found.precision, found.recall


def test_right_files_are_precision_and_recall_against_the_reference() -> None:
    """Reference: a, b, c. Changed: a, b, x, y, and a test that does not count.

    2 of 4 changed files are right, 2 of 3 right files are changed.
    """
    reference = ("src/a.py", "src/b.py", "src/c.py")
    touched = ("src/a.py", "src/b.py", "src/x.py", "src/y.py", "tests/test_a.py")
    assert files(reference, *touched) == (2 / 4, 2 / 3)


def test_new_tests_speak_neither_for_nor_against_the_files_changed() -> None:
    """A task whose check runs nothing puts no file back. Reference: a. Changed: a and x, and two
    new files of tests. 1 of 2 changed files is right; a changed test of the base still counts.
    """
    task = Task(id="t", prompt="Mend it", reference=patch("src/a.py"), acceptance=Acceptance())
    steering = read_steering(task, None)
    new_tests = tuple(
        FileChange(path=path, status="added") for path in ("tests/test_a.py", "tests/data/one.json")
    )
    made = Change(files=(*change("src/a.py", "src/x.py").files, *new_tests))
    assert measure_file_precision(task, made, steering).precision == 1 / 2
    old_test = Change(files=(*made.files, *change("tests/test_old.py").files))
    assert measure_file_precision(task, old_test, steering).precision == 1 / 3


def test_without_a_change_precision_is_unmeasured_and_without_a_reference_both_are() -> None:
    assert files(("src/a.py",)) == (None, 0.0)
    assert files(None, "src/a.py") == (None, None)


def opened(reference: str, *events: dict[str, Any]) -> tuple[float | None, float | None]:
    task = Task(id="t", prompt="Mend it", reference=reference, acceptance=Acceptance(run="pytest"))
    made = Change(files=(FileChange(path="src/new.py", status="added"),))
    measured = measure_events(*events, task=task, change=made)
    return measured.opened_precision, measured.opened_recall


def test_files_opened_are_held_against_the_reference_as_well() -> None:
    """Reference: a, b, c, a new file and a test. Opened: a by reading, b by a command, x and a
    test; a new file was written. Of a, b and x two are right; of a, b and c two were opened.
    """
    added = (
        "diff --git a/src/d.py b/src/d.py\nnew file mode 100644\n--- /dev/null\n+++ b/src/d.py\n"
    )
    reference = patch("src/a.py", "src/b.py", "src/c.py", "tests/test_a.py")
    events = (
        {"user": "Mend it"},
        {"read": "src/a.py"},
        {"run": {"command": "cat src/b.py", "exit": 0}},
        {"read": "src/x.py"},
        {"read": "tests/test_a.py"},
        {"edit": "src/new.py"},
    )
    assert opened(f"{reference}{added}@@ -0,0 +1 @@\n+b\n", *events) == (2 / 3, 2 / 3)
    assert opened(reference, {"user": "Mend it"}) == (None, 0.0)


# Asked when it should, scope


def test_a_question_counts_when_it_comes_before_the_first_edit_that_worked() -> None:
    question = {"ask": "Which one?"}
    failed = {"edit": {"path": "a.py", "ok": False, "error": "not found"}}
    assert asked_before_editing(story([question, edit()])) is True
    assert asked_before_editing(story([failed, question, edit()])) is True
    assert asked_before_editing(story([edit(), question])) is False
    assert asked_before_editing(story([{"say": "Hello"}])) is False
    assert asked_before_editing(story([])) is None
    assert asked_before_editing(None) is None


def test_files_outside_the_declared_scope_are_named_and_without_a_scope_none_are() -> None:
    task = Task(id="t", prompt="", scope=("src/**",))
    assert files_out_of_scope(task, change("src/a.py", "docs/a.md")) == ("docs/a.md",)
    assert files_out_of_scope(Task(id="t", prompt=""), change("docs/a.md")) == ()
