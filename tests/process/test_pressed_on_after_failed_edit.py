"""pressed-on-after-failed-edit: as if it had worked."""

from __future__ import annotations

import pytest
from rules import edit, found, pytest_run

from closeloop.records.finding import Unmeasured

RULE = "pressed-on-after-failed-edit"
FAILED = {
    "edit": {"path": "a.py", "before": "x", "after": "long text", "ok": False, "error": "not found"}
}
REFUSED = {"edit": {"path": "a.py", "ok": False, "error": "The user doesn't want to proceed"}}


@pytest.mark.parametrize(
    "events",
    [[edit("b.py")], [pytest_run()], [{"claim": "Done."}], [{"say": "Next."}, edit("b.py")]],
)
def test_the_work_goes_on(events: list[dict]) -> None:
    (finding,) = found(RULE, [{"user": "Fix it"}, {"read": "a.py"}, FAILED, *events])
    assert finding.events == (3,)
    assert "a.py" in finding.message


@pytest.mark.parametrize(
    "events",
    [
        [{"read": "a.py"}, edit("b.py")],
        [edit("a.py"), pytest_run()],
        [{"run": {"command": "grep -n x a.py", "exit": 0}}, pytest_run()],
        [{"run": {"command": "sed -i s/x/y/ a.py", "exit": 0}}, pytest_run()],
        [pytest_run("t.py::a"), edit("a.py")],
        [{"tool": {"name": "grep", "arguments": {"path": "src/a.py"}}}, pytest_run()],
        [{"edit": {"path": "src/b.py", "after": "some long text here"}}, pytest_run()],
        [edit("b.py"), {"claim": "Done, but I could not apply the change to a.py."}],
        [{"ask": "Which a.py do you mean?"}, {"user": "Never mind"}, edit("b.py")],
        [{"user": "Leave that, do b instead"}, edit("b.py")],
        [{"think": "These errors persist. I will do it in b.py instead."}, edit("b.py")],
        [],
    ],
)
def test_what_is_not_pressing_on(events: list[dict]) -> None:
    assert found(RULE, [{"user": "Fix it"}, FAILED, *events]) == []


def test_a_change_that_was_a_guess_may_belong_elsewhere() -> None:
    elsewhere = [{"run": {"command": "grep -rn total src", "exit": 0}}, edit("b.py")]
    assert found(RULE, [{"user": "Fix it"}, {"read": "a.py"}, FAILED, *elsewhere]) == []
    assert found(RULE, [{"user": "Fix it"}, FAILED, edit("b.py")]) == []


def test_scratch_files_and_calls_without_text_do_not_matter() -> None:
    scratch = {"edit": {**FAILED["edit"], "path": "reproduce_it.py"}}
    empty = {"edit": {"path": "a.py", "ok": False, "error": "old_str is required"}}
    for failed in (scratch, empty):
        assert found(RULE, [{"user": "Fix it"}, failed, pytest_run()]) == []


def test_what_the_user_refused_did_not_fail() -> None:
    assert found(RULE, [REFUSED, edit("b.py"), {"claim": "Done."}]) == []


def test_one_call_for_many_files_fails_once() -> None:
    events = [{"edit": {**FAILED["edit"], "path": path}} for path in ("a.py", "b.py", "c.py")]
    assert len(found(RULE, [*events, pytest_run()])) == 1


def test_edits_without_results_say_nothing() -> None:
    said = found(RULE, [{"edit": {"path": "a.py", "ok": None}}, pytest_run()])
    assert isinstance(said, Unmeasured)


def test_an_empty_trace_has_none() -> None:
    assert found(RULE, []) == []


@pytest.mark.parametrize(
    "command", ["git commit -m 'fix the total'", "git log --format=%s", "python format.py"]
)
def test_a_word_in_a_command_repairs_nothing(command: str) -> None:
    run = {"run": {"command": command, "exit": 0, "output": ""}}
    assert found(RULE, [{"user": "Fix it"}, FAILED, run, edit("b.py")])


@pytest.mark.parametrize("command", ["npm run lint:fix", "make format", "cargo fmt"])
def test_a_tool_that_repairs_is_an_answer(command: str) -> None:
    run = {"run": {"command": command, "exit": 0, "output": ""}}
    assert not found(RULE, [{"user": "Fix it"}, FAILED, run, edit("b.py")])
