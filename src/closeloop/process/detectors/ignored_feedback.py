"""ignored-feedback: a check failed, and what it said led to nothing."""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.steps import LaneReading, Reading
from closeloop.process.measures.feedback import Feedback, feedback_uses
from closeloop.process.telling import told_failures, unreadable_checks

rule = Rule(
    name="ignored-feedback",
    version=3,
    about="A check failed, and the agent went on without using what it said.",
    severity="warning",
)

_THEN = {
    "ignored": "what was changed next has nothing to do with it",
    "repeated": "it was run again with nothing changed",
    "claimed": "success was claimed next",
}


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Failing checks whose output the agent did not act on before its next check."""
    if reason := unreadable_checks(reading):
        return Unmeasured(rule=rule.name, reason=reason)
    return [
        _finding(use, lane)
        for lane in reading.lanes.values()
        for use in feedback_uses(lane)
        if use.use != "used"
    ]


def _finding(use: Feedback, lane: LaneReading) -> Finding:
    check = use.check.check
    assert check is not None, "feedback is that of a failing check"
    assert check.failures is not None, "feedback is that of a failing check"
    return found(
        rule,
        f"{told_failures(check.failures)} failed, and {_THEN[use.use]}.",
        (use.check.number, *use.then[:5]),
        lane=lane.lane.id,
        confidence=0.7 if use.use == "ignored" else 0.9,
    )
