"""An edit made from what a file said before it changed."""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.process.rule_helpers import truncate_line
from closeloop.process.stale_files import find_stale_encounters
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    TraceReading,
)

rule = Rule(
    name="stale-assumption",
    version=2,
    about="A file changed since it was last read is edited from memory.",
    severity="warning",
    mode="context blindness",
    gates=True,
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """One finding for each edit that failed for it, or wrote over what others had changed."""
    if not any(lane.edits for lane in reading.lanes.values()):
        if any(lane.changes for lane in reading.lanes.values()) or not reading.trace.events:
            return Unmeasured(rule=rule.name, reason="the trace holds no edits with their results")
        return []
    findings = [
        make_finding(
            rule,
            f"{truncate_line(one.path, 100)} was changed by {one.by} after it was last read, and "
            + ("the edit failed." if one.how == "failed edit" else "was written over."),
            list(dict.fromkeys((one.step.number, one.change))),
            lane=one.step.event.lane,
        )
        for one in find_stale_encounters(reading)
        if one.how != "read again"
    ]
    return sorted(findings, key=lambda finding: min(finding.events))
