"""A sub-agent changes files, but never comes near those that its brief names.

## What it looks for

The brief names files of code. The sub-agent edits others, and in all its work none of the brief's
files and names turns up: not opened, not searched for, not in a command, not in any output, not
in what it hands on itself. Files that the brief says to leave alone, and documents that it points
at, are no targets. A brief that tells in words what the edited files are about was not
misunderstood.

A sub-agent that does what its brief forbids is found by [lost-constraint](lost-constraint.md).

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

When the sub-agent's own steps are in the trace.

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

It advises. It is right on every labelled trace, but among the real handoffs it was tried on there
was no case of it, so its precision in the field is not known. The measure `understood` looks
closer: the share of handoffs whose sub-agent aims at a target of the brief within its first five
steps.
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
