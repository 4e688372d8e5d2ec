"""tampered-result: what a grade says of its own integrity becomes a finding."""

from __future__ import annotations

import msgspec
from story import story

from closeloop.process.detectors.tampered_result import detect
from closeloop.process.trace_reading import build_reading
from closeloop.records.attempt import Grade, IntegrityCheck, Outcome
from closeloop.records.finding import Finding, Unmeasured

ASK = {"user": "2 * Point raises a TypeError. Please repair it."}
EDIT = {"edit": {"path": "point.py", "before": "a", "after": "b", "ok": True}}


def detected(*checks: IntegrityCheck, events: tuple[dict, ...] = (ASK, EDIT)) -> object:
    grade = Grade(
        attempt="a", grading="g", version=2, outcome=Outcome(result="fail"), integrity=checks
    )
    return detect(msgspec.structs.replace(build_reading(story(list(events))), grade=grade), {})


def test_a_violated_condition_is_a_finding_that_cites_the_edits() -> None:
    held = IntegrityCheck(name="restored", state="held")
    forged = IntegrityCheck(name="controls", state="violated", detail="a control test passes")
    (finding,) = detected(held, forged)  # type: ignore[misc]
    assert isinstance(finding, Finding)
    assert finding.message == "The result was tampered with: a control test passes."
    assert finding.events == (2,)


def test_conditions_that_held_or_did_not_apply_are_none() -> None:
    assert detected(IntegrityCheck(name="perturbed", state="not applicable")) == []
    assert detected(IntegrityCheck(name="confirmed", state="held")) == []


def test_what_nobody_graded_is_unmeasured() -> None:
    assert isinstance(detect(build_reading(story([ASK, EDIT])), {}), Unmeasured)
