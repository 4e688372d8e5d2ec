"""spiral: the same failure after every fix, and nothing that only looks like it."""

from __future__ import annotations

from rules import edit, found, pytest_run

from closeloop.records.finding import Unmeasured

TYPE_ERROR = "TypeError: unsupported operand type(s) for +: 'int' and 'str'"
FLAGS = ["-q", "-x", "--tb=short", "-q -rA", "-vv", "--no-header -q"]


def test_six_reworded_fixes_with_the_same_error_and_jittered_flags_are_a_spiral() -> None:
    events = [
        {"user": "Fix the cart"},
        pytest_run("tests/test_cart.py::test_total", error=TYPE_ERROR),
    ]
    for number, flags in enumerate(FLAGS):
        events += [
            {"think": f"Let me try something else, idea {number}"},
            edit(after=f"a = {number} + other"),
            pytest_run(
                "tests/test_cart.py::test_total",
                command=f"python -m pytest {flags}",
                error=TYPE_ERROR,
            ),
        ]
    (finding,) = found("spiral", events)
    assert "6 iterations" in finding.message
    assert "test_total" in finding.message
    assert finding.events == (5, 8, 11, 14, 17, 20)
    assert finding.severity == "error"


def test_a_healthy_test_driven_run_raises_nothing() -> None:
    events = []
    for left in range(5, -1, -1):
        failing = [f"tests/test_cart.py::test_{number}" for number in range(left)]
        events += [edit(after=f"step {left}"), pytest_run(*failing)]
    assert found("spiral", events) == []


def test_a_different_failing_test_each_time_is_progress() -> None:
    events = []
    for number in range(6):
        events += [edit(after=f"{number}"), pytest_run(f"tests/test_cart.py::test_{number}")]
    assert found("spiral", events) == []


def test_another_error_in_the_same_test_is_progress() -> None:
    events = []
    for error in (
        "NameError: name 'x'",
        "TypeError: f() takes 1",
        "ValueError: bad",
        "KeyError: k",
    ):
        events += [edit(after=error), pytest_run("tests/test_cart.py::test_total", error=error)]
    assert found("spiral", events) == []


def test_another_value_in_the_same_assertion_is_the_same_failure() -> None:
    events = []
    for value in (3, 5, 7):
        error = f"assert {value} == 4"
        events += [edit(after=error), pytest_run("tests/test_cart.py::test_total", error=error)]
    assert len(found("spiral", events)) == 1


def test_taking_a_fix_back_is_no_fix() -> None:
    """The check then shows what fails without any."""
    error = {"error": TYPE_ERROR}
    restore = "git checkout -- cart.py && python -m pytest -q"
    events = [
        pytest_run("test_cart.py::test_total", **error),
        edit(after="a = 1 + other"),
        pytest_run("test_cart.py::test_total", **error),
        edit(after="a = 2 + other"),
        pytest_run("test_cart.py::test_total", **error),
        pytest_run("test_cart.py::test_total", command=restore, **error),
        pytest_run("test_cart.py::test_total", command=restore, **error),
    ]
    assert found("spiral", events) == []
    events += [edit(after="a = 3 + other"), pytest_run("test_cart.py::test_total", **error)]
    (finding,) = found("spiral", events)
    assert "3 iterations" in finding.message


def test_two_iterations_are_not_enough_and_the_threshold_can_be_set() -> None:
    events = []
    for number in range(2):
        events += [edit(after=f"{number}"), pytest_run("t.py::a")]
    assert found("spiral", events) == []
    assert len(found("spiral", events, limits={"iterations": 2})) == 1


def test_running_a_check_again_unchanged_is_no_iteration() -> None:
    events = [edit(), *[pytest_run("t.py::a")] * 6]
    assert found("spiral", events) == []


def test_narrowing_to_the_failing_test_goes_on_with_the_row() -> None:
    events = [
        edit(after="1"), pytest_run("t.py::a", "t.py::b"),
        edit(after="2"), pytest_run("t.py::a", command="pytest t.py::a"),
        edit(after="3"), pytest_run("t.py::a", command="pytest t.py::a"),
    ]  # fmt: skip
    assert len(found("spiral", events)) == 1


def test_a_wider_run_that_fails_in_less_ends_the_row() -> None:
    events = [
        edit(after="1"), pytest_run("t.py::a", "t.py::b"),
        edit(after="2"), pytest_run("t.py::a", command="pytest t.py::a"),
        edit(after="3"), pytest_run("t.py::a"),
    ]  # fmt: skip
    assert found("spiral", events) == []


def test_a_timing_on_the_first_line_does_not_hide_a_repeat() -> None:
    events = []
    for number in range(3):
        output = f"took {number}.{number}1s\nthe answer was not what it should be"
        events += [
            edit(after=f"{number}"),
            {"run": {"command": "make check", "exit": 2, "output": output}},
        ]
    (finding,) = found("spiral", events)
    assert finding.confidence < 1, "only the last lines could be compared"


def test_children_change_the_workspace_of_their_parent() -> None:
    events = []
    for number in range(3):
        events += [
            {"handoff": {"brief": "fix it", "child": "child"}},
            {"lane": "child", **edit(after=f"{number}")},
            pytest_run("t.py::a"),
        ]
    assert len(found("spiral", events, lanes={"child": "root"})) == 1


def test_without_a_result_nothing_can_be_said() -> None:
    events = [edit(), {"run": {"command": "pytest -q", "output": "…"}}]
    said = found("spiral", events)
    assert isinstance(said, Unmeasured)
    assert "passed" in said.reason
    assert isinstance(found("spiral", []), Unmeasured)
    assert found("spiral", [{"user": "hello"}]) == []


def shown(output: str, command: str = "python repro.py", code: int = 0) -> dict[str, object]:
    return {"run": {"command": command, "exit": code, "output": output}}


def test_the_same_output_after_three_rounds_of_changed_code_is_a_silent_spiral() -> None:
    """The script ends with exit code 0 and shows the bug; what comes before a fix counts not."""
    events = [edit("repro.py"), shown("total: 7350")]
    for number in range(3):
        events += [edit("cart.py", after=f"a = {number}"), shown("total: 7350")]
    (finding,) = found("spiral", events)
    assert finding.events == (4, 6, 8)
    assert "printed the same after 3 changes" in finding.message
    assert found("spiral", events[:-2]) == []


def test_the_same_output_is_no_spiral_where_it_states_success_or_only_looks() -> None:
    rounds = [edit("cart.py", after=f"a = {number}") for number in range(5)]
    for run in (
        shown("All 3 tests passed"),
        shown("OK"),
        shown(""),
        shown("cart.py", command="git diff --stat"),
        shown("[fmt] gofmt -w .", command="make fmt"),
    ):
        assert found("spiral", [one for change in rounds for one in (change, run)]) == []


def test_the_same_output_that_the_agent_calls_right_is_no_spiral() -> None:
    events = []
    for number in range(4):
        events += [edit("cart.py", after=f"{number}"), shown("total: 7400"), {"think": "It works."}]
    assert found("spiral", events) == []


def test_an_output_that_states_success_is_a_spiral_where_the_agent_says_otherwise() -> None:
    words = (
        "The fix didn't fully solve the issue.",
        "We're still getting the warnings.",
        "I need to take a different approach.",
        "The warnings are still there.",
    )
    run = {"run": {"command": "python build.py", "exit": 0, "output": "succeeded, 6 warnings"}}
    events = [event for text in words for event in (edit(after=text), run, {"think": text})]
    assert len(found("spiral", events)) == 1
    assert (
        found("spiral", [{"think": "Good."} if "think" in event else event for event in events])
        == []
    )
