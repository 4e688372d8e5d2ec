"""Something that the user forbade or demanded, and that an action went against later."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from closeloop.process.constraint_breaches import (
    ConstraintBreach,
    constraints_from_brief,
    find_breaches,
    find_standing_changes,
    list_constraints,
)
from closeloop.process.user_constraints import UserConstraint
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    LaneReading,
    TraceReading,
)

rule = Rule(
    name="lost-constraint",
    version=3,
    about="What the user forbade or demanded is gone against later.",
    severity="error",
    mode="instruction drift",
    gates=True,
)
_MAX_CITED = 4


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """One finding for each constraint of a lane that was broken."""
    if not any(_has_instructions(lane) for lane in reading.lanes.values()):
        return Unmeasured(rule=rule.name, reason="nothing that the user said is on record")
    constraints_by_lane = {
        name: _lane_constraints(reading, lane) for name, lane in reading.lanes.items()
    }
    if not any(constraints_by_lane.values()):
        return []
    standing_changes = find_standing_changes(reading)
    findings = []
    for name, lane in reading.lanes.items():
        for constraint in constraints_by_lane[name]:
            lane_breaches = list(
                islice(find_breaches(constraint, lane, standing_changes), _MAX_CITED)
            )
            if lane_breaches:
                findings.append(_build_finding(constraint, lane_breaches, lane))
    return sorted(findings, key=lambda finding: min(finding.events))


def _has_instructions(lane: LaneReading) -> bool:
    return lane.handoff is not None or bool(lane.users)


def _lane_constraints(reading: TraceReading, lane: LaneReading) -> list[UserConstraint]:
    """What the lane was told, and what the user told those who gave it its work."""
    root = next(iter(reading.lanes.values()))
    stated_constraints = list_constraints(root)
    if lane is not root:
        handoff = lane.handoff
        own = (
            constraints_from_brief(handoff.brief, handoff.number)
            if handoff
            else list_constraints(lane)
        )
        stated_constraints = [*stated_constraints, *own]
    if not stated_constraints:
        return []
    # The request's own "only change …" is its scope: out-of-scope-edit looks after that.
    first = root.users[0].number if root.users else 0
    latest_constraints = {
        (one.kind, one.objects): one
        for one in reversed(stated_constraints)
        if one.kind != "only" or one.number != first
    }
    return list(reversed(latest_constraints.values()))


def _build_finding(
    constraint: UserConstraint, broken: list[ConstraintBreach], lane: LaneReading
) -> Finding:
    first = broken[0]
    forgotten = any(constraint.number < cut < first.step.number for cut in lane.compactions)
    return make_finding(
        rule,
        f"The agent {first.what}, though it was told: “{constraint.words}”"
        + (" Its context was cut in between." if forgotten else ""),
        [first.step.number, constraint.number, *(one.step.number for one in broken[1:])],
        lane=lane.lane.id,
        confidence=1.0 if forgotten else 0.9,
    )
