"""misunderstood-brief: a sub-agent changes files, but not near those that it was asked about."""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.steps import Reading
from closeloop.process.briefs import missed
from closeloop.process.handing import Handed, handed
from closeloop.process.telling import short

rule = Rule(
    name="misunderstood-brief",
    version=1,
    about="A sub-agent changes files, but never comes near those that its brief names.",
    severity="warning",
    mode="instruction drift",
)
_CITED = 3


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Files named in the brief that are neither opened nor searched for nor seen in any output."""
    handoffs = handed(reading)
    if not handoffs:
        return []
    if all(one.child is None for one in handoffs):
        return Unmeasured(rule=rule.name, reason="no sub-agent's own work is in the trace")
    return [_finding(one, files) for one in handoffs if (files := missed(one))]


def _finding(one: Handed, files: tuple[str, ...]) -> Finding:
    changes = [step for step in one.work if step.changed and step.written]
    return found(
        rule,
        f"The brief is about {short(', '.join(files))}; the sub-agent never looked there and "
        f"changed {short(changes[0].written[0])}.",
        [changes[0].number, one.event.number, *(step.number for step in changes[1:_CITED])],
        lane=one.event.child,
        confidence=0.8,
    )
