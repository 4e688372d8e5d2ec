"""stale-assumption: edits from memory of a file that has changed since."""

from __future__ import annotations

import pytest
from rules import edit, found

from closeloop.records.finding import Unmeasured

RULE = "stale-assumption"
READ = {"read": {"path": "a.py", "text": "x = 1"}}
MISSED = {"edit": {"path": "a.py", "before": "x", "ok": False, "error": "String not found in file"}}


def _run(command: str) -> dict:
    return {"run": {"command": command, "exit": 0, "output": ""}}


@pytest.mark.parametrize(
    "command", ["sed -i s/x/y/ a.py", "black a.py", "black .", "git checkout main", "git pull"]
)
def test_an_edit_that_misses_what_a_command_changed(command: str) -> None:
    (finding,) = found(RULE, [READ, _run(command), MISSED])
    assert finding.events == (3, 2)
    assert "a.py" in finding.message


def test_a_file_that_another_lane_changed_is_written_over() -> None:
    events = [
        READ,
        {"handoff": {"brief": "Do a.py", "child": "child"}},
        {"lane": "child", **edit("a.py")},
        {"edit": {"path": "a.py", "action": "create", "after": "all new"}},
    ]
    (finding,) = found(RULE, events, lanes={"child": "root"})
    assert finding.events == (4, 3)
    assert "was overwritten" in finding.message


def test_a_file_that_the_user_changed_is_written_over() -> None:
    events = [
        {"user": "Fix it"},
        READ,
        {"user": "I have just updated a.py, go on."},
        {"edit": {"path": "a.py", "action": "create", "after": "all new"}},
    ]
    assert [finding.events for finding in found(RULE, events)] == [(4, 3)]


def test_the_editing_tool_may_say_so_itself() -> None:
    error = "File has been modified since read, either by the user or by a linter."
    events = [READ, {"edit": {"path": "a.py", "ok": False, "error": error}}]
    assert [finding.events for finding in found(RULE, events)] == [(2,)]


@pytest.mark.parametrize(
    "events",
    [
        [READ, _run("black a.py"), READ, MISSED],
        [READ, _run("black a.py && cat a.py"), MISSED],
        [READ, _run("black b.py"), MISSED],
        [READ, _run("git stash"), _run("git stash pop"), MISSED],
        [READ, edit("a.py"), MISSED],
        [READ, _run("black a.py"), edit("a.py")],
        [READ, _run("cat > a.py <<'E'\nx = 2\nE"), MISSED],
        [_run("black a.py"), MISSED],
        [
            READ,
            _run("black a.py"),
            {"edit": {"path": "a.py", "ok": False, "error": "Found 2 matches of the string"}},
        ],
        [READ, _run("git checkout a.py"), {"edit": {"path": "a.py", "action": "create"}}],
    ],
)
def test_what_is_no_stale_assumption(events: list[dict]) -> None:
    assert found(RULE, events) == []


def test_a_lane_that_reads_again_is_fine() -> None:
    events = [
        READ,
        {"lane": "child", **edit("a.py")},
        READ,
        {"edit": {"path": "a.py", "action": "create", "after": "all new"}},
    ]
    assert found(RULE, events, lanes={"child": "gone"}) == []


def test_without_edits_nothing_can_be_said() -> None:
    assert isinstance(found(RULE, [_run("sed -i s/x/y/ a.py")]), Unmeasured)
    assert isinstance(found(RULE, []), Unmeasured)


def test_where_nothing_was_changed_nothing_was_stale() -> None:
    assert found(RULE, [_run("ls")]) == []
