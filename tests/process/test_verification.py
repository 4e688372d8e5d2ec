"""Verified: a check ran on the code as it was left. Tampering is counted."""

from __future__ import annotations

from rules import edit, pytest_run
from story import Told, story

from closeloop.process.trace_measurement import count_tampering
from closeloop.process.trace_reading import build_reading
from closeloop.process.verification import has_verification, list_trace_checks
from closeloop.records.finding import Finding, Unmeasured


def measured(*events: Told) -> bool | None:
    reading = build_reading(story(events))
    return has_verification(next(iter(reading.lanes.values())), list_trace_checks(reading))


def test_a_check_after_the_last_edit_verifies_whatever_it_says() -> None:
    assert measured(edit(), pytest_run()) is True
    assert measured(edit(), pytest_run("tests/test_cart.py::test_total")) is True


def test_a_check_before_the_last_edit_does_not() -> None:
    assert measured(pytest_run(), edit()) is False
    assert measured(edit(), pytest_run(), edit()) is False


def test_without_an_edit_of_code_there_is_nothing_to_verify() -> None:
    assert measured(pytest_run()) is None
    assert measured(edit("README.md")) is None


def test_a_comment_after_the_check_takes_nothing_back() -> None:
    assert measured(edit(), pytest_run(), edit(before="# a", after="# b")) is True


def test_a_parents_check_verifies_its_childs_code() -> None:
    reading = build_reading(story([{"lane": "child", **edit()}, pytest_run()], {"child": "root"}))
    assert [
        has_verification(lane, list_trace_checks(reading)) for lane in reading.lanes.values()
    ] == [True, True]


def finding(rule: str, silenced: str | None = None) -> Finding:
    return Finding(rule=rule, version=1, severity="error", message="", silenced=silenced)


def test_tampering_counts_what_is_not_silenced() -> None:
    findings = [
        finding("weakened-test"), finding("suppressed-error", "asked for"), finding("spiral"),
    ]  # fmt: skip
    assert count_tampering(findings) == 1
    assert count_tampering([]) == 0


def test_tampering_is_unknown_when_no_rule_could_look() -> None:
    names = ("weakened-test", "suppressed-error", "answer-from-history")
    assert count_tampering([], [Unmeasured(rule=name, reason="no text") for name in names]) is None
    assert count_tampering([], [Unmeasured(rule=names[0], reason="no text")]) == 0
