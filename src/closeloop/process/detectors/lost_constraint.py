"""The agent violates an earlier instruction of the user.

## What it looks for

The user's messages, in English, are searched for prohibitions and demands that a program can check:

| said | broken by |
| --- | --- |
| do not touch `config.py`, leave `legacy/` alone, do not change tests | a change of such a file |
| do not remove `old.py` | its deletion |
| only change `api/` (after the first request) | a change of anything else |
| do not edit files, no changes yet | any change |
| do not create new files | a new file |
| never run `git push`, do not commit, use pnpm and not npm | such a command |
| no new dependencies | `poetry add`, a new line in a manifest |
| keep the signature of `load` | other parameters |
| use tabs | three or more lines indented the other way |
| reproduce it first, as a numbered step or in words | a change of code before anything ran |

A script that ends with an error of its own, such as a missing module, reproduces nothing, unless
the request is about this error.

`only change …` in the first request is the scope, which [out-of-scope-edit](out-of-scope-edit.md)
checks. Code blocks, quotes and pasted issues are not the user's words. A condition that cannot be
checked (`unless necessary`) is not a constraint; `unless I ask` is.

A constraint ends when the user mentions its object again without forbidding it. A phase (`do not
edit yet`) ends with the user's next message. A new test file does not violate `do not modify the
tests`. Scratch files, and changes that the agent reverted, do not count. Files may be changed by an
edit, by a command, or by a script that a command runs; if the session submits a diff, only changes
in this diff count. Sub-agents are bound by their brief and by what the user said to the calling
agent.

## Why it matters

The user said it once and relies on it. A constraint is most often lost after the context was
truncated; the finding says when this is so.

## Bad

```text
#1  user  Accept empty rows. Do not touch settings/base.py, the ops team owns it.
#9  edit  settings/base.py   LIMIT = 100 → 1000
```

## Good

```text
#1  user  Accept empty rows. Do not touch settings/base.py, the ops team owns it.
#9  agent The limit in settings/base.py is too low for this. May I raise it?
```

## When it can be measured

If the trace contains the user's messages. Only English is recognised.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.lost-constraint]
enabled = false

[[silence]]
rule = "lost-constraint"
path = "CHANGELOG.md"
reason = "written by a hook"
```

## How sure it is

It may gate. The confidence is 0.9, and 1 if the context was truncated between the message and the
action. Vague constraints are never reported, so the rule finds only a part of the violations.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from closeloop.process.edit_contents import find_standing_changes
from closeloop.process.user_constraints import (
    ConstraintBreach,
    UserConstraint,
    constraints_from_brief,
    find_breaches,
    list_constraints,
)
from closeloop.records.change import LaneReading, TraceReading
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding

rule = Rule(
    name="lost-constraint",
    version=7,
    about="The agent violates an earlier instruction of the user.",
    severity="error",
    mode="instruction drift",
    gates=True,
)
_MAX_CITED = 4


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Report one finding for each violated constraint of a lane."""
    if not any(_has_instructions(lane) for lane in reading.lanes.values()):
        return Unmeasured(rule=rule.name, reason="the trace contains no message of the user")
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
    """Return what the lane was told, and what the user told those who gave it its work."""
    root = next(iter(reading.lanes.values()))
    stated_constraints = list_constraints(root)
    if lane is not root:
        handoff = lane.handoff
        lane_constraints = (
            constraints_from_brief(handoff.brief, handoff.number)
            if handoff
            else list_constraints(lane)
        )
        stated_constraints = [*stated_constraints, *lane_constraints]
    if not stated_constraints:
        return []
    # The request's own "only change …" is its scope: see out-of-scope-edit.
    first = root.users[0].number if root.users else 0
    latest_constraints = {
        (stated_constraint.kind, stated_constraint.objects): stated_constraint
        for stated_constraint in reversed(stated_constraints)
        if stated_constraint.kind != "only" or stated_constraint.number != first
    }
    return list(reversed(latest_constraints.values()))


def _build_finding(
    constraint: UserConstraint, breaches: list[ConstraintBreach], lane: LaneReading
) -> Finding:
    first = breaches[0]
    # A premature action is visible itself; a promise is in the message.
    cited_messages = () if constraint.kind == "reproduce first" else (constraint.number,)
    was_truncated = any(
        constraint.number < compaction < first.step.number for compaction in lane.compactions
    )
    return make_finding(
        rule,
        f"The agent {first.what}, although the user said: “{constraint.words}”"
        + (" Its context was truncated in between." if was_truncated else ""),
        [first.step.number, *cited_messages, *(breach.step.number for breach in breaches[1:])],
        lane=lane.lane.id,
        confidence=1.0 if was_truncated else 0.9,
    )
