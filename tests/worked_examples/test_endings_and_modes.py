"""Worked examples: failure modes, outcome categories, and the measured quality of a rule."""

from __future__ import annotations

from typing import Any

import pytest
from by_hand import assert_rate
from measured import measure_events, read_events
from msgspec.structs import replace
from rules import edit, pytest_run

from closeloop import plugins
from closeloop.process.rulebook import (
    ReadingCounts,
    build_rulebook,
    decide_gate,
    load_measured_quality,
    quality_by_rule,
    rate_readings,
)
from closeloop.process.trace_measurement import (
    classify_ending,
    list_examined_modes,
    tag_failure_modes,
)
from closeloop.records.attempt import Attempt, Grade, Outcome
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.records.task import Task

PATCH = """diff --git a/src/cart.py b/src/cart.py
--- a/src/cart.py
+++ b/src/cart.py
@@ -1 +1 @@
-a
+b
"""


def finding(rule: str, severity: Any = "warning", **given: Any) -> Finding:
    return Finding(rule=rule, version=1, severity=severity, message=rule, events=(1,), **given)


def grade(result: Any = "pass", **given: Any) -> Grade:
    given = {"outcome": Outcome(result=result), **given}
    return Grade(attempt="a", grading="g", version=1, **given)


def attempt(end: Any, **given: Any) -> Attempt:
    return Attempt(id="a", origin="experiment", exit=end, **given)


# Failure modes


def modes(found: list[Finding] | None = None, **known: Any) -> list[tuple[str, str]]:
    tags = tag_failure_modes(
        read_events({"user": "Mend it"}, edit("src/other.py"), **known), found or []
    )
    return [(tag.mode, tag.source) for tag in tags]


def test_a_silent_regression_breaks_another_test_while_the_tasks_tests_pass() -> None:
    """2 of 2 wanted tests pass and one other broke. With 1 of 2, it is an ordinary failure."""
    broke = {"broken": ("tests/test_x.py::a",)}
    assert modes(grade=grade("fail", fail_to_pass=(2, 2), **broke)) == [
        ("silent regression", "grade")
    ]
    assert modes(grade=grade("fail", fail_to_pass=(1, 2), **broke)) == []
    assert modes(grade=grade("fail", **broke)) == []


def test_scope_creep_is_one_file_outside_the_declared_scope() -> None:
    assert modes(grade=grade(out_of_scope=("README.md",))) == [("scope creep", "grade")]


def test_context_blindness_is_a_needed_file_that_failed_work_never_opened() -> None:
    """The reference changes src/cart.py; the agent only edited src/other.py."""
    task = Task(id="t", prompt="", reference=PATCH)
    assert modes(task=task, grade=grade("fail")) == [("context blindness", "grade")]
    assert modes(task=task, grade=grade("pass")) == []
    assert modes(task=task) == []


def test_a_name_that_a_failing_test_misses_and_nothing_has_is_a_hallucinated_api() -> None:
    """The grade looked for such names, and found one, found none, or did not look."""
    assert modes(grade=grade("fail", missing_names=("fetch_all",))) == [
        ("hallucinated API", "grade")
    ]
    assert modes(grade=grade("fail", missing_names=())) == []
    assert modes(grade=grade("fail")) == []


def test_reasons_from_grades_claim_no_more_than_the_grade_shows() -> None:
    """A file of the reference need not be changed; a missing name is one that the change uses."""
    task = Task(id="t", prompt="", reference=PATCH)
    graded = grade("fail", missing_names=("clean",))
    reading = read_events({"user": "Mend it"}, edit("src/other.py"), task=task, grade=graded)
    assert {tag.mode: tag.reason for tag in tag_failure_modes(reading, [])} == {
        "hallucinated API": "A failing test shows that `clean`, a name that the change uses, "
        "does not exist.",
        "context blindness": "The reference changes src/cart.py, which the agent never opened.",
    }


def test_a_mode_is_examined_by_rules_that_could_look_and_by_grades_that_can_tell() -> None:
    """Of the grade: scope creep needs a declared scope, silent regression tests that passed before,
    hallucinated API a search, context blindness a reference. One rule of two could not look.
    """
    task = Task(id="t", prompt="", reference=PATCH, scope=("src",))
    graded = grade(pass_to_pass=(3, 3), missing_names=())
    reading = read_events({"user": "Mend it"}, edit("src/other.py"), task=task, grade=graded)
    book = build_rulebook(plugins.load_plugins("detectors"), {})
    gaps = [Unmeasured(rule=name, reason="") for name in ("out-of-scope-edit", "bluffed-file")]
    examined = list_examined_modes(reading, book, gaps)
    assert {mode for mode, source in examined if source == "grade"} == {
        "scope creep", "silent regression", "hallucinated API", "context blindness"}  # fmt: skip
    assert {mode for mode, source in examined if source == "rule"} == {
        "hallucinated API", "instruction drift", "context blindness"}  # fmt: skip
    nothing = read_events({"user": "Mend it"}, grade=grade())
    assert all(source == "rule" for _, source in list_examined_modes(nothing, book, gaps))


def test_modes_of_findings_count_once_each_and_silenced_ones_do_not() -> None:
    """Two findings of one mode, a silenced one of another: one tag, besides that of the grade."""
    found = [
        finding("hallucinated-name", mode="hallucinated API"),
        finding("hallucinated-name", mode="hallucinated API"),
        finding("drift", mode="instruction drift", silenced="known"),
    ]
    assert modes(found, grade=grade(out_of_scope=("README.md",))) == [
        ("scope creep", "grade"),
        ("hallucinated API", "rule"),
    ]


# Outcome categories: the first that applies


CASES: list[tuple[str, dict[str, Any], list[Finding]]] = [
    ("environment failure", {"attempt": attempt("machine")}, []),
    ("environment failure", {"attempt": attempt("out_of_time"), "grade": grade("unscored")}, []),
    ("timeout", {"attempt": attempt("out_of_time")}, [finding("unverified-claim")]),
    ("timeout", {"attempt": attempt("idle")}, []),
    ("missing verification", {}, [finding("weakened-test"), finding("missing-verification")]),
    ("missing verification", {}, [finding("unverified-claim")]),
    ("instruction non-compliance", {}, [finding("spiral", "error"), finding("lost-constraint")]),
    ("instruction non-compliance", {"grade": grade("fail", out_of_scope=("x.py",))}, []),
    ("reasoning error", {"grade": grade("fail")}, []),
    ("unknown", {"attempt": attempt("gave_up"), "grade": grade("fail")}, []),
    ("reasoning error", {"attempt": attempt("out_of_budget")}, []),
    ("clean", {"attempt": attempt("finished"), "grade": grade()}, [finding("drift", "info")]),
    ("clean", {"grade": grade()}, [finding("spiral", "error")]),
]


@pytest.mark.parametrize(("category", "known", "found"), CASES)
def test_an_attempt_ends_in_the_first_category_that_applies(
    category: str, known: dict[str, Any], found: list[Finding]
) -> None:
    ending = classify_ending(read_events({"user": "Mend it"}, edit(), **known), found)
    assert ending is not None
    assert ending.category == category


RED = pytest_run("tests/test_cart.py::test_total")


def category(*events: dict[str, Any], found: list[Finding] | None = None, **known: Any) -> Any:
    ending = classify_ending(read_events({"user": "Mend it"}, *events, **known), found or [])
    assert ending is not None
    return ending.category


def test_a_reasoning_error_is_a_grave_finding_and_a_last_check_that_fails() -> None:
    """A spiral that ended well, or whose end is not on record, is none."""
    spiral = [finding("spiral", "error")]
    assert category(edit(), RED, found=spiral) == "reasoning error"
    assert category(edit(), RED, edit(), pytest_run(), found=spiral) == "clean"
    assert category(edit(), found=spiral) == "unknown"


def test_a_pass_names_the_findings_in_spite_of_which_it_is_clean() -> None:
    reading = read_events(edit(), RED, grade=grade("pass"))
    for found, reason in (
        ([], "The grade is pass, and there are no findings."),
        ([finding("spiral", "error")], "The grade is pass, in spite of findings of spiral."),
    ):
        ending = classify_ending(reading, found)
        assert ending is not None
        assert (ending.category, ending.reason) == ("clean", reason)


def test_a_recording_that_simply_ends_has_no_known_category() -> None:
    """Exits of recordings of others say only that nothing follows."""
    cut = Attempt(id="a", origin="production", exit="gave_up")
    assert category(edit(), attempt=cut) == "unknown"
    assert category(edit(), RED, attempt=cut) == "unknown"


@pytest.mark.parametrize(
    "words",
    ["I cannot do this.", "Sorry, I’m unable to complete this task.", "I won't help with that."],
)
def test_who_refuses_the_work_made_no_error_in_it(words: str) -> None:
    """Nothing was changed: the category is unknown, and no file was overlooked."""
    task = Task(id="t", prompt="", reference=PATCH)
    reading = read_events({"user": "Mend it"}, {"say": words}, task=task, grade=grade("fail"))
    ending = classify_ending(reading, [])
    assert ending is not None
    assert (ending.category, ending.events) == ("unknown", (2,))
    assert ending.reason == f"The agent gave up: “{words}”"
    assert tag_failure_modes(reading, []) == ()
    book = build_rulebook(plugins.load_plugins("detectors"), {})
    assert ("context blindness", "grade") not in list_examined_modes(reading, book, [])


def test_who_changed_code_and_then_despairs_made_an_error() -> None:
    assert category(edit(), {"say": "I cannot fix this."}, grade=grade("fail")) == "reasoning error"
    words = {"say": "I cannot reproduce it, so nothing is changed."}
    assert category(words, grade=grade("fail")) == "reasoning error"


def test_clean_is_a_last_check_that_passes_with_nothing_changed_since() -> None:
    silenced = [finding("unverified-claim", silenced="known")]
    assert category(edit(), pytest_run(), found=silenced) == "clean"
    assert category(edit(), RED) == "unknown"
    assert category(edit(), pytest_run(), edit(after="b")) == "unknown"
    assert category(edit()) == "unknown"
    assert category(edit(), {"run": "pytest -q"}) == "unknown"


def test_a_claim_that_was_checked_later_does_not_end_unverified() -> None:
    early = Finding(rule="unverified-claim", version=1, severity="error", message="", events=(3, 2))
    words = {"say": "All tests pass."}
    assert category(edit(), words, found=[early]) == "missing verification"
    assert category(edit(), words, pytest_run(), found=[early]) == "clean"


def test_work_that_waits_for_a_person_has_no_known_category() -> None:
    waiting = Grade(
        attempt="a",
        grading="g",
        version=1,
        outcome=Outcome(result="unscored", cause="awaiting review"),
    )
    assert category(edit(), grade=waiting) == "unknown"


def test_a_last_check_that_the_machine_broke_is_an_environment_failure() -> None:
    full = {"run": {"command": "pytest", "exit": 1, "output": "No space left on device"}}
    assert measure_events(edit(), full).ending.category == "environment failure"  # type: ignore[union-attr]
    assert measure_events(edit(), full, pytest_run()).ending.category == "clean"  # type: ignore[union-attr]


def test_an_attempt_of_which_nothing_is_known_has_no_category() -> None:
    assert classify_ending(read_events(), []) is None


# The quality of rules


def test_precision_and_recall_of_a_rule_come_from_the_labelled_traces() -> None:
    """Precision: right ÷ (right + wrong). Recall: right ÷ (right + missed)."""
    for rule, counts in load_measured_quality().rules.items():
        known = quality_by_rule()[rule]
        assert_rate(known.precision, counts.right, counts.right + counts.wrong)
        assert_rate(known.recall, counts.right, counts.right + counts.missed)


def test_precision_and_recall_on_real_sessions_come_from_what_readers_said() -> None:
    """25 findings read: 21 right, 3 wrong, 1 unsure: 21 of 25. 10 failures noted in whole sessions,
    7 of them found: 7 of 10. It gates from 20 read and a lower bound of 0.7 on: 0.6535 for 21 of 25
    is too low, 0.7004 for 22 of 25 is not.
    """
    counts = ReadingCounts(version=1, right=21, wrong=3, unsure=1, caught=7, missed=3)
    read = rate_readings(counts)
    assert read is not None
    assert_rate(read.precision, 21, 25)
    assert_rate(read.recall, 7, 10)
    rule = Rule(name="r", version=1, about="", severity="error", gates=True)
    assert not decide_gate(rule, read).gates
    assert decide_gate(rule, rate_readings(replace(counts, right=22, unsure=0))).gates
