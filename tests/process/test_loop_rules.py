"""oscillation, repeated-failure and same-fix-again: real loops, and work that resembles them."""

from __future__ import annotations

import pytest
from rules import edit, found, pytest_run

from closeloop.records.finding import Unmeasured

FIX = "return session.get(url, timeout=30)"
OTHER = "return fetch_with_retry(url, attempts=3)"


def test_two_failures_in_turn_are_an_oscillation() -> None:
    events = []
    for number in range(5):
        name = "t.py::up" if number % 2 else "t.py::down"
        events += [edit(after=f"{number}"), pytest_run(name)]
    (finding,) = found("oscillation", events)
    assert finding.events == (6, 8, 10)
    assert "3 times" in finding.message


def test_red_green_red_green_with_new_tests_is_work() -> None:
    events = []
    for number in range(4):
        events += [edit("t.py", after=f"{number}"), pytest_run(f"t.py::test_{number}")]
        events += [edit("cart.py", after=f"{number}"), pytest_run()]
    assert found("oscillation", events) == []


def test_a_file_undone_and_redone_is_an_oscillation() -> None:
    events = [edit(before=a, after=b) for a, b in ("xy", "yx", "xy", "yx")]
    (finding,) = found("oscillation", events)
    assert "cart.py" in finding.message
    assert finding.events == (2, 3, 4)


def test_prints_that_come_and_go_are_a_look_around() -> None:
    look = {"run": {"command": "python cart.py", "exit": 0, "output": "12"}}
    edits = [edit(before=a, after=b) for a, b in ("xp", "px", "xq", "qx")]
    assert found("oscillation", [one for pair in edits for one in (pair, look)]) == []


def test_an_edit_that_is_taken_back_at_once_is_an_oscillation() -> None:
    (finding,) = found("oscillation", [edit(before=a, after=b) for a, b in ("xy", "yz", "zx")])
    assert "immediately changed back" in finding.message
    assert finding.events == (1, 2, 3)
    said = {"think": "No: the other caller needs it."}
    assert (
        found("oscillation", [edit(before="x", after="y"), said, edit(before="y", after="x")]) == []
    )
    commit = {"run": {"command": "git commit -qam split", "exit": 0}}
    assert (
        found("oscillation", [edit(before="x", after="y"), edit(before="y", after="x"), commit])
        == []
    )


def removed(command: str) -> dict[str, object]:
    return {"run": {"command": command, "exit": 0}}


def test_a_file_deleted_and_written_again_is_an_oscillation() -> None:
    written = {"edit": {"path": "src/shim.py", "action": "create", "after": "import six"}}
    for gone in (removed("cd src && rm -f shim.py"), removed("rm src/shim.py; pytest -q")):
        (finding,) = found("oscillation", [written, gone, written, gone, written])
        assert "src/shim.py returned" in finding.message
        assert finding.events == (3, 4, 5)
    gone = {"edit": {"path": "src/shim.py", "action": "delete"}}
    (finding,) = found("oscillation", [written, gone, written, gone])
    assert finding.events == (3, 4)


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("repro.py", "rm repro.py"),
        ("src/shim.py", "rm other.py && touch src/shim.py"),
        ("src/shim.py", "rm -rf build"),
    ],
)
def test_scratch_files_and_other_files_that_go_are_none(path: str, command: str) -> None:
    events = []
    for number in range(4):
        written = {"path": path, "action": "create", "after": f"x = {number}"}
        events += [{"edit": written}, removed(command)]
    assert found("oscillation", events) == []


def test_setting_work_aside_to_compare_is_none() -> None:
    events = [edit(after="1"), pytest_run("t.py::a"), edit(after="2"), pytest_run()]
    for _ in range(3):
        events += [{"run": {"command": "git stash", "exit": 0}}, pytest_run("t.py::a")]
        events += [{"run": {"command": "git stash pop", "exit": 0}}, pytest_run()]
    assert found("oscillation", events) == []


def test_the_same_failing_command_three_times_with_nothing_changed() -> None:
    run = {"run": {"command": "npm run deploy", "exit": 1, "output": "denied at 12:01:07"}}
    (finding,) = found("repeated-failure", [run, run, run])
    assert finding.events == (1, 2, 3)
    assert "npm run deploy" in finding.message


@pytest.mark.parametrize(
    "between", [edit(), {"run": {"command": "pip install x", "exit": 0}}], ids=["edit", "install"]
)
def test_the_same_command_after_a_change_is_normal_work(between: dict[str, object]) -> None:
    run = {"run": {"command": "npm run deploy", "exit": 1, "output": "denied"}}
    assert found("repeated-failure", [run, between, run, between, run]) == []


def test_a_test_that_is_written_to_fail_first_may_fail_again() -> None:
    commit = {"run": {"command": "git commit -am 'Add failing test of the total'", "exit": 0}}
    run = pytest_run("t.py::a")
    written = edit("t.py", after="# it should fail until total() is changed")
    assert found("repeated-failure", [written, run, run, run]) == []
    assert found("repeated-failure", [edit("t.py"), run, commit, run, run]) == []
    assert found("repeated-failure", [edit("t.py"), run, run, run])


def test_polling_is_no_loop() -> None:
    for command in ("sleep 5", "curl -sf localhost:8000/health", "tail -f server.log"):
        run = {"run": {"command": command, "exit": 7, "output": "not yet"}}
        assert found("repeated-failure", [run] * 6) == [], command


def test_a_search_without_a_hit_has_not_failed() -> None:
    run = {"run": {"command": "grep -rn frobnicate src", "exit": 1, "output": ""}}
    assert found("repeated-failure", [run] * 4) == []


def test_the_same_failing_edit_three_times() -> None:
    failing = {"edit": {"path": "a.py", "before": "x", "after": "y", "ok": False, "error": "no x"}}
    assert len(found("repeated-failure", [failing] * 3)) == 1


def test_failures_that_say_something_new_each_time_are_none() -> None:
    events = [
        {"run": {"command": "./deploy", "exit": 1, "output": f"host {name} is down"}}
        for name in ("alpha", "beta", "gamma")
    ]
    assert found("repeated-failure", events) == []


def test_without_any_result_repeated_failure_cannot_be_measured() -> None:
    said = found("repeated-failure", [{"run": {"command": "make deploy"}}] * 3)
    assert isinstance(said, Unmeasured)


def test_a_fix_that_did_not_help_made_again() -> None:
    events = [
        pytest_run("t.py::a"),
        edit(after=FIX), pytest_run("t.py::a"),
        edit(before=FIX, after=OTHER), pytest_run("t.py::a"),
        edit(before=OTHER, after=FIX), pytest_run("t.py::a"),
    ]  # fmt: skip
    (finding,) = found("same-fix-again", events)
    assert finding.events == (6, 2, 3)


def test_a_fix_made_again_in_the_shell_counts_unless_it_looks_at_the_base() -> None:
    def sed(before: str, after: str) -> dict[str, object]:
        return {"run": {"command": f"sed -i 's/{before}/{after}/' cart.py", "exit": 0}}

    fails, made, undone = pytest_run("t.py::a"), sed("a = 1", FIX), sed(FIX, "a = 1")
    other = edit("store.py", "cache = {}", "cache = Cache(size=0)")
    again = [fails, made, fails, undone, other, fails, made, fails]
    (finding,) = found("same-fix-again", again)
    assert finding.events == (7, 2, 3)
    assert found("same-fix-again", [fails, made, fails, undone, fails, made]) == []
    printed = sed("a = 1", 'print("DEBUG the value of a is", a)')
    assert found("same-fix-again", [*again[:1], printed, *again[2:6], printed, fails]) == []


def test_a_fix_that_helped_may_come_back() -> None:
    events = [
        edit(after="x"), pytest_run("t.py::a", "t.py::b"),
        edit(after=FIX), pytest_run("t.py::a"),
        edit(before=FIX, after=OTHER), pytest_run("t.py::a", "t.py::b"),
        edit(before=OTHER, after=FIX), pytest_run("t.py::a"),
    ]  # fmt: skip
    assert found("same-fix-again", events) == []


def test_a_file_written_anew_adds_only_what_is_new() -> None:
    body = "\n".join(f"line_{number} = compute({number})" for number in range(30))
    events = []
    for number in range(4):
        whole = f"{body}\nlast_of_all = attempt_number({number})"
        events += [
            {"edit": {"path": "a.py", "action": "create", "after": whole}},
            pytest_run("t.py::a", error=f"Error{'x' * number}"),
        ]
    assert found("same-fix-again", events) == []


def test_tiny_edits_are_too_short_to_tell() -> None:
    events = []
    for after in ("x = 1", "x = 2", "x = 1", "x = 2"):
        events += [edit(after=after), pytest_run("t.py::a")]
    assert found("same-fix-again", events) == []


def test_answers_that_the_client_refuses_for_the_same_fault_are_a_repeated_failure() -> None:
    def refused(count: int) -> dict[str, object]:
        return {"note": {"about": "format error", "text": f"Give ONE action, found {count}."}}

    look = {"run": {"command": "ls", "exit": 0, "output": "a"}}
    events = [refused(2), look, refused(3), look, refused(2), refused(4)]
    (finding,) = found("repeated-failure", events)
    assert finding.events == (1, 3, 5, 6)
    assert found("repeated-failure", events[:-1]) == []
