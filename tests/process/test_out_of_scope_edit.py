"""out-of-scope-edit: files that the task had no business with."""

from __future__ import annotations

import pytest
from rules import edit, found

from closeloop.records.change import Change, FileChange
from closeloop.records.finding import Unmeasured
from closeloop.records.task import Task

RULE = "out-of-scope-edit"
TASK = Task(id="t", prompt="", scope=("src/**", "tests/**"))


def _run(command: str) -> dict:
    return {"run": {"command": command, "exit": 0, "output": ""}}


@pytest.mark.parametrize(
    "event", [edit("setup.cfg"), _run("sed -i s/a/b/ setup.cfg"), _run("echo x >> setup.cfg")]
)
def test_a_file_outside_the_declared_scope(event: dict) -> None:
    (finding,) = found(RULE, [{"user": "Fix it"}, edit("src/a.py"), event], task=TASK)
    assert finding.events == (3,)
    assert finding.severity == "error"
    assert "setup.cfg" in finding.message


def test_the_names_of_a_long_scope_stay_whole() -> None:
    scope = tuple(f"src/package/module_{number}.py" for number in range(9))
    task = Task(id="t", prompt="", scope=scope)
    (finding,) = found(RULE, [{"user": "Fix it"}, edit("setup.cfg")], task=task)
    assert finding.message.endswith(f" is {scope[0]}, {scope[1]}, {scope[2]} and 6 more.")


@pytest.mark.parametrize(
    "events",
    [
        [edit("src/a.py"), edit("tests/test_a.py")],
        [edit("/tmp/repro.py")],
        [{"edit": {"path": "repro.py", "action": "create", "after": "x"}}, _run("rm repro.py")],
        [edit("setup.cfg"), _run("git checkout -- setup.cfg")],
        [{"edit": {"path": "setup.cfg", "ok": False}}],
        [{"read": "setup.cfg"}],
        [edit("setup.cfg"), {"claim": "I also had to change setup.cfg, outside the scope."}],
        [{"ask": "May I change setup.cfg?"}, {"user": "Yes"}, edit("setup.cfg")],
        [edit("/home/me/project/src/a.py"), edit("/home/me/notes/todo.md")],
    ],
)
def test_what_is_no_creep(events: list[dict]) -> None:
    assert found(RULE, [{"user": "Fix it"}, *events], task=TASK) == []


def test_to_list_a_file_among_others_is_not_to_flag_it() -> None:
    events = [edit("setup.cfg"), {"claim": "Changed:\n- src/a.py\n- setup.cfg"}]
    assert len(found(RULE, events, task=TASK)) == 1


def test_absolute_paths_are_seen_from_where_the_scope_lies() -> None:
    events = [edit("/proj/p/src/a.py"), edit("/proj/p/docs/b.md")]
    assert [finding.events for finding in found(RULE, events, task=TASK)] == [(2,)]


def test_the_final_change_decides_where_it_is_known() -> None:
    files = (FileChange(path="src/a.py", status="changed"), FileChange(path="x.c", status="added"))
    events = [edit("src/a.py"), edit("setup.cfg"), _run("make generate")]
    (finding,) = found(RULE, events, task=TASK, change=Change(files=files))
    assert "x.c" in finding.message
    assert finding.events == ()


def test_a_request_that_says_only_is_a_scope_that_advises() -> None:
    events = [{"user": "Fix the typo. Only change docs/intro.md."}, edit("docs/intro.md"), edit()]
    (finding,) = found(RULE, events)
    assert finding.events == (3, 1)
    assert (finding.severity, finding.confidence) == ("info", 0.7)


def test_a_later_request_ends_what_the_first_bounded() -> None:
    events = [{"user": "Only change a.py."}, edit("a.py"), {"user": "Now the docs."}, edit("b.md")]
    assert found(RULE, events) == []


def test_without_a_scope_nothing_can_be_said() -> None:
    assert isinstance(found(RULE, [{"user": "Fix it"}, edit()]), Unmeasured)
    assert isinstance(found(RULE, []), Unmeasured)
