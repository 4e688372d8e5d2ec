"""ignored-feedback: a check failed, and what it said led to nothing."""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.process.measures.feedback_use import FeedbackUse, list_feedback_uses
from closeloop.process.rule_helpers import describe_failures, explain_unreadable_checks
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    LaneReading,
    TraceReading,
)

rule = Rule(
    name="ignored-feedback",
    version=3,
    about="A check failed, and the agent went on without using what it said.",
    severity="warning",
)

_CONSEQUENCES = {
    "ignored": "what was changed next has nothing to do with it",
    "repeated": "it was run again with nothing changed",
    "claimed": "success was claimed next",
}


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Failing checks whose output the agent did not act on before its next check."""
    if reason := explain_unreadable_checks(reading):
        return Unmeasured(rule=rule.name, reason=reason)
    return [
        _build_finding(use, lane)
        for lane in reading.lanes.values()
        for use in list_feedback_uses(lane)
        if use.use != "used"
    ]


def _build_finding(use: FeedbackUse, lane: LaneReading) -> Finding:
    check = use.check.check
    assert check is not None, "feedback is that of a failing check"
    assert check.failures is not None, "feedback is that of a failing check"
    return make_finding(
        rule,
        f"{describe_failures(check.failures)} failed, and {_CONSEQUENCES[use.use]}.",
        (use.check.number, *use.then[:5]),
        lane=lane.lane.id,
        confidence=0.7 if use.use == "ignored" else 0.9,
    )
