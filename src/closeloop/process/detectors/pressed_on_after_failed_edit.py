"""An edit failed, nobody looked at it again, and the work went on as if it had worked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from closeloop.process.measures.recovery import list_abandoned_edits, mentions_problem
from closeloop.process.rule_helpers import truncate_line
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    LaneReading,
    TraceReading,
    TraceStep,
)
from closeloop.records.trace import (
    AnyEvent,
    Message,
    Note,
    Thought,
)

rule = Rule(
    name="pressed-on-after-failed-edit",
    version=2,
    about="An edit failed, and the work goes on as if it had worked.",
    severity="error",
    mode="context blindness",
    gates=True,
)
_MAX_EVENTS_AFTER = 5


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """One finding for each edit that was never made good."""
    lanes = reading.lanes.values()
    if not any(_reports_edit_results(lane) for lane in lanes):
        if any(lane.edits for lane in lanes):
            return Unmeasured(rule=rule.name, reason="the trace does not say whether edits worked")
        return []
    findings = [
        make_finding(
            rule,
            f"The edit of {truncate_line(item.path or '', 100)} failed, and the file was never"
            " looked at or edited again.",
            [item.step.number],
            lane=name,
        )
        for name, lane in reading.lanes.items()
        for item in list_abandoned_edits(lane)
        if item.step is not None and not _notices_failure(reading.trace.events, item.step)
    ]
    return sorted(findings, key=lambda finding: finding.events)


def _reports_edit_results(lane: LaneReading) -> bool:
    """Something that was to write a file says whether it did."""
    return (
        any(step.failed is not None for step in lane.edits)
        or any(step.written for step in lane.failing)
        or any(step.failed is False and step.written for step in lane.changes)
    )


def _notices_failure(events: Sequence[AnyEvent], step: TraceStep) -> bool:
    """Its next thought is about the failure: then it goes another way, and knows why."""
    for event in events[step.number : step.number + _MAX_EVENTS_AFTER]:
        if event.lane == step.event.lane and not isinstance(event, Note):
            text = event.text if isinstance(event, Thought | Message) else ""
            return mentions_problem(text[:1000])
    return False
