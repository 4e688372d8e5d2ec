"""Recovery: each surprising state is one item, met or not; what nobody can tell is left out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rules import edit, found, pytest_run
from story import story

from closeloop.process.feedback_use import find_surprises, recovery_rate
from closeloop.process.trace_measurement import count_context_losses
from closeloop.process.trace_reading import build_reading
from closeloop.records.task import Task

FAILED = {"edit": {"path": "a.py", "before": "x", "after": "y", "ok": False, "error": "not found"}}
MISSING = {"read": {"path": "a.py", "ok": False, "error": "File does not exist."}}
CONFLICT = {
    "run": {
        "command": "git merge topic",
        "exit": 1,
        "output": "CONFLICT (content): Merge conflict in a.py\nAutomatic merge failed",
    }
}


def _run(command: str) -> dict[str, Any]:
    return {"run": {"command": command, "exit": 0, "output": ""}}


def _met(events: list[dict[str, Any]], **task: Any) -> list[tuple[str, bool]]:
    reading = build_reading(story([{"user": "Fix it"}, *events]))
    if task:
        known = Task(id="t", prompt="", **task)
        reading = msgspec.structs.replace(reading, task=known)
    return [(item.surprise, item.met) for item in find_surprises(reading)["root"]]


@pytest.mark.parametrize(
    ("events", "met"),
    [
        ([FAILED, {"read": "a.py"}, edit("a.py")], True),
        ([FAILED, edit("a.py")], True),
        ([FAILED, {"ask": "Where is it?"}], True),
        ([FAILED, FAILED, {"read": "a.py"}], False),
        ([FAILED, pytest_run()], False),
    ],
)
def test_a_failed_edit(events: list[dict[str, Any]], met: bool) -> None:
    assert _met(events)[0] == ("failed edit", met)


def test_a_failed_edit_at_the_very_end_is_left_out() -> None:
    assert _met([FAILED]) == []


@pytest.mark.parametrize(
    ("events", "items"),
    [
        ([MISSING, _run("ls")], [("missing file", True)]),
        ([MISSING, {"read": "src/a.py"}], [("missing file", True)]),
        ([MISSING, MISSING], [("missing file", False)]),
        ([MISSING, {"edit": {"path": "a.py", "action": "create"}}], []),
        ([MISSING], []),
    ],
)
def test_a_missing_file(events: list[dict[str, Any]], items: list[tuple[str, bool]]) -> None:
    assert _met(events) == items


@pytest.mark.parametrize(
    ("event", "met"),
    [
        ({"read": "a.py"}, True),
        (_run("git diff"), True),
        (_run("git merge --abort"), True),
        (_run("git commit -am merged"), False),
    ],
)
def test_a_conflict(event: dict[str, Any], met: bool) -> None:
    assert _met([CONFLICT, event]) == [("conflict", met)]


def test_a_check_that_contradicts_itself() -> None:
    red, green = pytest_run("t.py::a"), pytest_run()
    assert _met([red, green, green]) == [("contradiction", True)]
    assert _met([red, green, {"claim": "Done."}]) == [("contradiction", False)]
    assert _met([red, edit(), green]) == []


def test_a_file_that_another_lane_changed() -> None:
    look = {"read": {"path": "a.py", "text": "x"}}
    over = {"edit": {"path": "a.py", "action": "create", "after": "z"}}
    theirs = {"lane": "child", **edit("a.py")}
    assert _met([look, theirs, look, over]) == [("changed file", True)]
    assert _met([look, theirs, over]) == [("changed file", False)]


def test_an_underspecified_request() -> None:
    assert _met([{"ask": "Which one?"}, edit()], ambiguous=True) == [("open question", True)]
    assumed = {"say": "I assume you mean the importer."}
    assert _met([assumed, edit()], ambiguous=True) == [("open question", True)]
    assert _met([edit()], ambiguous=True) == [("open question", False)]
    assert _met([{"claim": "Nothing to do."}], ambiguous=True) == []
    assert _met([edit()], ambiguous=False) == []


def test_the_rate_counts_what_was_met() -> None:
    reading = build_reading(story([FAILED, {"read": "a.py"}, FAILED, pytest_run()]))
    share = recovery_rate(find_surprises(reading)["root"])
    assert share is not None
    assert (share.hits, share.of) == (1, 2)
    assert recovery_rate([]) is None


def test_context_losses_are_findings_that_count() -> None:
    look = {"read": {"path": "a.py", "text": "x"}}
    findings = found("needless-reread", [look, look, look])
    assert not hasattr(findings, "reason")
    assert count_context_losses(findings) == 1
    silenced = [msgspec.structs.replace(one, silenced="known") for one in findings]
    assert count_context_losses(silenced) == 0


def test_an_empty_trace_has_no_surprises() -> None:
    assert not any(find_surprises(build_reading(story([]))).values())
