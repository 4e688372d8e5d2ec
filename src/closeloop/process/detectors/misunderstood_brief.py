"""A sub-agent changes files, but none of those that its brief names.

## What it looks for

The brief names code files. The sub-agent edits other files, and none of the brief's files and names
occurs in its work: not opened, not searched for, not in a command, not in any output, not in its
own briefs. Files that the brief says to leave alone, and documents that it refers to, are not
targets. A brief that describes in words what the edited files are about was not misunderstood.

A sub-agent that violates a prohibition of its brief is found by
[lost-constraint](lost-constraint.md).

## Why it matters

The parent believes that the work is done. It is not, and something else has changed.

## Bad

```text
#2  handoff  Fix web/session_store.py: sessions are lost on restart.
#3    run    grep -rn renew billing
#5    edit   billing/renewal.py
```

## Good

```text
#2  handoff  Fix web/session_store.py: sessions are lost on restart.
#3    read   web/session_store.py
#4    read   web/boot.py
#5    edit   web/boot.py            the cause was there
```

## When it can be measured

If the sub-agent's own steps are in the trace.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.misunderstood-brief]
enabled = false

[[silence]]
rule = "misunderstood-brief"
path = "generated/**"
reason = "the generator's files stand for their source"
```

## How sure it is

It is advisory. It is right on every labelled trace, but the real handoffs it was tested on contain
no case, so its precision in practice is unknown. The measure `understood` is finer: the share of
handoffs whose sub-agent works on a target of the brief within its first five steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.process.handoff_briefs import (
    HandoffContext,
    list_handoff_contexts,
    list_missed_files,
)
from closeloop.process.rule_helpers import truncate_line
from closeloop.records.change import TraceReading
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding

rule = Rule(
    name="misunderstood-brief",
    version=1,
    about="A sub-agent changes files, but none of those that its brief names.",
    severity="warning",
    mode="instruction drift",
)
_MAX_CITED = 3


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find files named in the brief that are neither opened, searched for, nor seen in any
    output."""
    handoffs = list_handoff_contexts(reading)
    if not handoffs:
        return []
    if all(handoff.child is None for handoff in handoffs):
        return Unmeasured(
            rule=rule.name, reason="the trace does not contain the work of any sub-agent"
        )
    return [
        _build_finding(handoff, files)
        for handoff in handoffs
        if (files := list_missed_files(handoff))
    ]


def _build_finding(handoff: HandoffContext, files: tuple[str, ...]) -> Finding:
    changes = [step for step in handoff.work if step.changed and step.written]
    return make_finding(
        rule,
        f"The brief is about {truncate_line(', '.join(files))}; the sub-agent never "
        f"opened it and changed {truncate_line(changes[0].written[0])}.",
        [changes[0].number, handoff.event.number, *(step.number for step in changes[1:_MAX_CITED])],
        lane=handoff.event.child,
        confidence=0.8,
    )
