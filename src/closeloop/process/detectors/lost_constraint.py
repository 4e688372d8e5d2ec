"""Something that the user forbade or demanded, and that an action went against later."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.steps import LaneReading, Reading
from closeloop.process.breaches import Breach, breaches
from closeloop.process.constraints import Constraint
from closeloop.process.held import constraints, of_brief
from closeloop.process.standing import standing

rule = Rule(
    name="lost-constraint",
    version=3,
    about="What the user forbade or demanded is gone against later.",
    severity="error",
    mode="instruction drift",
    gates=True,
)
_CITED = 4


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """One finding for each constraint of a lane that was broken."""
    if not any(_is_told(lane) for lane in reading.lanes.values()):
        return Unmeasured(rule=rule.name, reason="nothing that the user said is on record")
    held = {name: _held(reading, lane) for name, lane in reading.lanes.items()}
    if not any(held.values()):
        return []
    left = standing(reading)
    findings = []
    for name, lane in reading.lanes.items():
        for constraint in held[name]:
            broken = list(islice(breaches(constraint, lane, left), _CITED))
            if broken:
                findings.append(_finding(constraint, broken, lane))
    return sorted(findings, key=lambda finding: min(finding.events))


def _is_told(lane: LaneReading) -> bool:
    return lane.handoff is not None or bool(lane.users)


def _held(reading: Reading, lane: LaneReading) -> list[Constraint]:
    """What the lane was told, and what the user told those who gave it its work."""
    root = next(iter(reading.lanes.values()))
    told = constraints(root)
    if lane is not root:
        handoff = lane.handoff
        own = of_brief(handoff.brief, handoff.number) if handoff else constraints(lane)
        told = [*told, *own]
    if not told:
        return []
    # The request's own "only change …" is its scope: out-of-scope-edit looks after that.
    first = root.users[0].number if root.users else 0
    kept = {
        (one.kind, one.objects): one
        for one in reversed(told)
        if one.kind != "only" or one.number != first
    }
    return list(reversed(kept.values()))


def _finding(constraint: Constraint, broken: list[Breach], lane: LaneReading) -> Finding:
    first = broken[0]
    forgotten = any(constraint.number < cut < first.step.number for cut in lane.compactions)
    return found(
        rule,
        f"The agent {first.what}, though it was told: “{constraint.words}”"
        + (" Its context was cut in between." if forgotten else ""),
        [first.step.number, constraint.number, *(one.step.number for one in broken[1:])],
        lane=lane.lane.id,
        confidence=1.0 if forgotten else 0.9,
    )
