"""Feedback use: what a failing check says, and what is done next."""

from __future__ import annotations

from rules import edit, found, pytest_run
from story import story

from closeloop.process.feedback_use import feedback_rate, list_feedback_uses
from closeloop.process.trace_reading import build_reading
from closeloop.records.estimate import wilson_rate

VAT = "tests/test_vat.py::test_greek_prefix"


def uses(*events: dict[str, object]) -> list[str]:
    lanes = build_reading(story(events)).lanes
    return [use.use for use in list_feedback_uses(lanes["root"])]


def test_failures_that_are_gone_fewer_or_others_were_used_whatever_was_edited() -> None:
    """A root-cause fix in a file that the output never named is use."""
    two = (VAT, "tests/test_x.py::test_y")
    assert uses(pytest_run(VAT), edit("src/tables.py"), pytest_run()) == ["used"]
    assert uses(pytest_run(*two), edit("a.py"), pytest_run(VAT))[0] == "used"
    assert uses(pytest_run(VAT), edit("a.py"), pytest_run("tests/test_z.py::test_z"))[0] == "used"
    other_error = pytest_run(VAT, error="TypeError: too many")
    assert uses(pytest_run(VAT, error="KeyError: 'EL'"), edit("a.py"), other_error)[0] == "used"


def test_failures_that_return_after_changed_code_were_not_used() -> None:
    """However well the fix is worded: a reworded spiral is no use."""
    again = edit("src/vat.py", after="def greek_prefix(): ...")
    assert uses(pytest_run(VAT), again, pytest_run(VAT)) == ["returned"]
    more = pytest_run(VAT, "tests/test_x.py::test_y")
    assert uses(pytest_run(VAT), again, more) == ["returned"]


def test_a_check_that_does_not_cover_the_failure_says_nothing_of_it() -> None:
    elsewhere = pytest_run(command="pytest tests/test_x.py")
    assert uses(pytest_run(VAT, command="pytest tests/test_vat.py"), edit(), elsewhere) == []
    selected = pytest_run(command="pytest tests/test_vat.py -k other")
    assert uses(pytest_run(VAT, command="pytest tests/test_vat.py"), edit(), selected) == []
    wider = pytest_run(command="pytest -x")
    assert uses(pytest_run(VAT, command="pytest tests/test_vat.py"), edit(), wider) == ["used"]


def test_the_same_command_in_another_folder_is_another_check() -> None:
    first = pytest_run("t.py::a", command="cd api && pytest")
    assert uses(first, edit(), pytest_run(command="cd web && pytest")) == []
    assert uses(first, edit(), pytest_run(command="cd api && pytest -q")) == ["used"]


def test_narrowing_to_the_failing_test_goes_on_with_the_loop() -> None:
    narrow = pytest_run(VAT, command=f"pytest {VAT}")
    wide = pytest_run(VAT, "tests/test_x.py::test_y")
    assert uses(wide, narrow, edit("src/vat.py"), pytest_run()) == ["used"]


def test_a_check_that_could_not_run_was_used_when_it_then_ran() -> None:
    missing = {"run": {"command": "pytest -q", "exit": 127, "output": "sh: pytest: not found"}}
    install = {"run": {"command": "pip install pytest", "exit": 0, "output": "ok"}}
    assert uses(missing, install, pytest_run()) == ["used"]
    assert uses(missing, install, pytest_run(VAT)) == ["used"]
    assert uses(missing, missing) == ["repeated"]
    assert uses(missing, install, missing) == []


def test_running_the_very_same_again_is_not() -> None:
    assert uses(pytest_run(VAT), pytest_run(VAT)) == ["repeated"]


def test_looking_closer_is_neither() -> None:
    closer = pytest_run(VAT, command="pytest -q -vv --tb=long")
    assert uses(pytest_run("t.py::a1"), closer, edit("src/vat.py"), pytest_run()) == ["used"]


def test_claiming_success_is_not_use_and_owning_up_leaves_it_open() -> None:
    assert uses(pytest_run(VAT), {"claim": "All done."}) == ["claimed"]
    assert uses(pytest_run(VAT), {"claim": "test_greek_prefix still fails."}) == []


def test_a_trace_that_was_cut_off_says_nothing() -> None:
    assert uses(pytest_run(VAT)) == []
    assert feedback_rate([]) is None


def test_the_rate_counts_failing_checks() -> None:
    events = [
        pytest_run(VAT), edit("src/vat.py"),
        pytest_run(VAT), edit("README.md", after="words"),
        pytest_run(VAT), edit("src/vat.py"), pytest_run(),
    ]  # fmt: skip
    root = build_reading(story(events)).lanes["root"]
    assert feedback_rate(list_feedback_uses(root)) == wilson_rate(1, 3)


def test_the_rule_reports_what_was_not_used() -> None:
    events = [pytest_run(VAT), edit("README.md", after="words"), pytest_run(VAT)]
    (finding,) = found("ignored-feedback", events)
    assert finding.events == (1, 3)
    assert "test_greek_prefix" in finding.message


def test_a_healthy_run_ignores_nothing() -> None:
    events = [{"user": "Add Greek VAT ids"}]
    for left in range(5, 0, -1):
        failing = [f"tests/test_vat.py::test_prefix_{number}" for number in range(left)]
        events += [pytest_run(*failing), edit("src/vat.py", after=f"step {left}")]
    assert found("ignored-feedback", [*events, pytest_run()]) == []
