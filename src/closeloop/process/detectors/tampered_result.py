"""tampered-result: the tests passed in a way that a right change would not need."""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    TraceReading,
)
from closeloop.records.trace import (
    Edit,
)

rule = Rule(
    name="tampered-result",
    version=1,
    about="The tests passed by a forged or forced result, which a second look did not confirm.",
    severity="error",
)
MAX_EVENTS = 5


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """The conditions of a grade that the change violated; the edits are where it was done."""
    if reading.grade is None:
        return Unmeasured(rule=rule.name, reason="the attempt is not graded")
    violated = [check for check in reading.grade.integrity if check.state == "violated"]
    if not violated:
        return []
    events = reading.trace.events
    shown = [event for event in events if isinstance(event, Edit)] or events
    numbers = [event.number for event in shown[-MAX_EVENTS:]]
    message = f"The result was tampered with: {violated[0].detail}."
    return [make_finding(rule, message, numbers, lane=shown[-1].lane if shown else None)]
