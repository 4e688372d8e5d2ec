"""An edit failed, and the work went on as if it had worked.

## What it looks for

An edit that failed, whose file the lane never reads, searches, names in a command or edits again,
and after which it edits other files, runs checks or claims success before the user speaks.

It keeps quiet where the agent says that the edit failed, or thinks so right after it, where it
asks, makes the same change elsewhere with success, or leaves it to a tool that repairs (`eslint
--fix`, `make format`); where the user refused the edit; and where the trace ends right there. One
call that was to change several files fails once.

Failed edits, missing files, merge conflicts, contradictory checks, files changed by others and
ambiguous requests are the surprising states of the process score's rate `recovery`: the share met
by looking again, asking or saying so. A failed edit that is only tried again without a look, and
fails again, counts against.

## Why it matters

The change that was claimed is not there, and nobody knows.

## Bad

```text
#4  edit  server.py   No match found for the text to replace
#5  pytest -q         12 passed
#6  "Client and server have a timeout now."
```

## Good

```text
#4  edit  server.py   No match found for the text to replace
#5  read  server.py
#6  edit  server.py   ok
```

## When it can be measured

When edits say whether they worked.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.pressed-on-after-failed-edit]
enabled = false

[[silence]]
rule = "pressed-on-after-failed-edit"
task = "spike-*"
reason = "half-done work is fine there"
```

## How sure it is

It may gate. It misses a failed edit of a file that was touched again for another reason.
"""

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
