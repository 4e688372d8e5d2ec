"""misunderstood-brief: a sub-agent changes files, but not near those that it was asked about."""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.process.handoff_briefs import (
    HandoffContext,
    list_handoff_contexts,
    list_missed_files,
)
from closeloop.process.rule_helpers import truncate_line
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    TraceReading,
)

rule = Rule(
    name="misunderstood-brief",
    version=1,
    about="A sub-agent changes files, but never comes near those that its brief names.",
    severity="warning",
    mode="instruction drift",
)
_MAX_CITED = 3


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Files named in the brief that are neither opened nor searched for nor seen in any output."""
    handoffs = list_handoff_contexts(reading)
    if not handoffs:
        return []
    if all(one.child is None for one in handoffs):
        return Unmeasured(rule=rule.name, reason="no sub-agent's own work is in the trace")
    return [_build_finding(one, files) for one in handoffs if (files := list_missed_files(one))]


def _build_finding(one: HandoffContext, files: tuple[str, ...]) -> Finding:
    changes = [step for step in one.work if step.changed and step.written]
    return make_finding(
        rule,
        f"The brief is about {truncate_line(', '.join(files))}; the sub-agent never looked there"
        f" and changed {truncate_line(changes[0].written[0])}.",
        [changes[0].number, one.event.number, *(step.number for step in changes[1:_MAX_CITED])],
        lane=one.event.child,
        confidence=0.8,
    )
