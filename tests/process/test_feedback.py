"""Feedback use: what a failing check says, and what is done next."""

from __future__ import annotations

from rules import edit, found, pytest_run
from story import story

from closeloop.process.measures.feedback_use import feedback_rate, list_feedback_uses
from closeloop.process.trace_reading import build_reading
from closeloop.records.estimate import wilson_rate

VAT = "tests/test_vat.py::test_greek_prefix"


def uses(*events: dict[str, object]) -> list[str]:
    lanes = build_reading(story(events)).lanes
    return [use.use for use in list_feedback_uses(lanes["root"])]


def test_opening_or_editing_what_the_output_names_is_use() -> None:
    assert uses(pytest_run(VAT), {"read": "src/vat.py"}, pytest_run()) == ["used"]
    assert uses(pytest_run(VAT), edit("src/vat.py"), pytest_run()) == ["used"]
    assert uses(pytest_run(VAT), edit("a.py", after="def greek(): ..."), pytest_run()) == ["used"]


def test_narrowing_to_the_failing_test_is_use() -> None:
    narrow = pytest_run(VAT, command=f"pytest {VAT}")
    wide = pytest_run(VAT, "tests/test_x.py::test_y")
    assert uses(wide, narrow, edit("src/vat.py"), pytest_run()) == ["used", "used"]


def test_changing_something_else_is_not() -> None:
    assert uses(pytest_run(VAT), edit("README.md", after="words"), pytest_run(VAT)) == ["ignored"]


def test_what_an_earlier_failure_of_the_same_test_named_counts() -> None:
    first = pytest_run("t.py::a1", error="No module named 'ledger'")
    second = pytest_run("t.py::a1", error="assert 0 == 3")
    last = edit("ledger.py", after="rows = 3")
    assert uses(first, edit("ledger.py"), second, last, pytest_run()) == ["used", "used"]
    other = pytest_run("t.py::b1", error="assert 0 == 3")
    assert uses(first, edit("ledger.py"), other, edit("x.md"), pytest_run()) == ["used", "ignored"]


def test_running_the_very_same_again_is_not() -> None:
    assert uses(pytest_run(VAT), pytest_run(VAT)) == ["repeated"]


def test_looking_closer_is_neither() -> None:
    closer = pytest_run(VAT, command="pytest -q -vv --tb=long")
    assert uses(pytest_run("t.py::a1"), closer, edit("src/vat.py"), pytest_run()) == ["used"]


def test_claiming_success_is_not_use_but_owning_up_is() -> None:
    assert uses(pytest_run(VAT), {"claim": "All done."}) == ["claimed"]
    assert uses(pytest_run(VAT), {"claim": "test_greek_prefix still fails."}) == ["used"]


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
    assert feedback_rate(list_feedback_uses(root)) == wilson_rate(2, 3)


def test_the_rule_reports_what_was_not_used() -> None:
    events = [pytest_run(VAT), edit("README.md", after="words"), pytest_run()]
    (finding,) = found("ignored-feedback", events)
    assert finding.events == (1, 2)
    assert "test_greek_prefix" in finding.message


def test_a_healthy_run_ignores_nothing() -> None:
    events = [{"user": "Add Greek VAT ids"}]
    for left in range(5, 0, -1):
        failing = [f"tests/test_vat.py::test_prefix_{number}" for number in range(left)]
        events += [pytest_run(*failing), edit("src/vat.py", after=f"step {left}")]
    assert found("ignored-feedback", [*events, pytest_run()]) == []
