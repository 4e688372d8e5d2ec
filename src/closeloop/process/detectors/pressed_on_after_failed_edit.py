"""An edit failed, nobody looked at it again, and the work went on as if it had worked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.steps import LaneReading, Reading, Step
from closeloop.model.trace import AnyEvent, Message, Note, Thought
from closeloop.process.measures.recovery import abandoned, flags
from closeloop.process.telling import short

rule = Rule(
    name="pressed-on-after-failed-edit",
    version=2,
    about="An edit failed, and the work goes on as if it had worked.",
    severity="error",
    mode="context blindness",
    gates=True,
)
_NEXT = 5


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """One finding for each edit that was never made good."""
    lanes = reading.lanes.values()
    if not any(_says_whether(lane) for lane in lanes):
        if any(lane.edits for lane in lanes):
            return Unmeasured(rule=rule.name, reason="the trace does not say whether edits worked")
        return []
    findings = [
        found(
            rule,
            f"The edit of {short(item.path or '', 100)} failed, and the file was never looked at "
            "or edited again.",
            [item.step.number],
            lane=name,
        )
        for name, lane in reading.lanes.items()
        for item in abandoned(lane)
        if item.step is not None and not _is_noticed(reading.trace.events, item.step)
    ]
    return sorted(findings, key=lambda finding: finding.events)


def _says_whether(lane: LaneReading) -> bool:
    """Something that was to write a file says whether it did."""
    return (
        any(step.failed is not None for step in lane.edits)
        or any(step.written for step in lane.failing)
        or any(step.failed is False and step.written for step in lane.changes)
    )


def _is_noticed(events: Sequence[AnyEvent], step: Step) -> bool:
    """Its next thought is about the failure: then it goes another way, and knows why."""
    for event in events[step.number : step.number + _NEXT]:
        if event.lane == step.event.lane and not isinstance(event, Note):
            said = event.text if isinstance(event, Thought | Message) else ""
            return flags(said[:1000])
    return False
