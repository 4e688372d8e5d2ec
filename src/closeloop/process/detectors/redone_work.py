"""An agent repeats or undoes edits or lookups of its sub-agent.

## What it looks for

After the handoff, in the parent's next 200 steps:

- an edit that adds the same lines to the same file as an edit of the sub-agent;
- an edit, `git checkout` or `git restore` that undoes an edit of the sub-agent;
- before the user's next message, three or more lookups that the sub-agent had made, and at least
  half of all its lookups: the same file from the same line on, the same search. Files that either
  of them changes do not count, because they are read to review or edit them; nor does reading the
  middle of a file, to which the report may have pointed.

## Why it matters

The handoff cost tokens and time without benefit: the report was not trusted, or not good enough to
be used.

## Bad

```text
#2  handoff  Find out how the importer retries.
             → etl/importer.py calls `again` in etl/retry.py:12: 3 tries, 2 seconds apart.
#6  read     etl/importer.py
#7  read     etl/retry.py
#8  read     etl/clock.py
```

## Good

```text
#2  handoff  Find out how the importer retries.
             → etl/importer.py calls `again` in etl/retry.py:12: 3 tries, 2 seconds apart.
#6  read     etl/retry.py           to edit it
#7  edit     etl/retry.py
```

## When it can be measured

If the sub-agent's own steps are in the trace.

## Thresholds and silencing

`alike` (0.9): the share of lines that two edits must have in common. `lookups` (3): the minimum
number of repeated lookups, if they are at least the `share` (0.5) of the sub-agent's own.

```toml
[rules.redone-work]
lookups = 6

[[silence]]
rule = "redone-work"
task = "audit-*"
reason = "there everything is looked at twice on purpose"
```

## How sure it is

It is advisory. Repeated edits have a confidence of 0.8; undoing bad work is right, so read the
finding before you judge. Repeated lookups have 0.5: some agents must read a file before they can
use it. On 318 real handoffs it reported one: ten of an explorer's fourteen lookups, repeated
immediately.
"""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.process.child_reports import (
    RedoneEdit,
    count_lookups,
    find_redone_edits,
    find_repeated_lookups,
)
from closeloop.process.handoff_briefs import (
    HandoffContext,
    list_handoff_contexts,
    step_input,
    until_user_speaks,
)
from closeloop.process.rule_helpers import truncate_line
from closeloop.records.change import TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.text.wording import count_with_noun

rule = Rule(
    name="redone-work",
    version=2,
    about="An agent repeats or undoes edits or lookups of its sub-agent.",
    severity="info",
    thresholds={"alike": 0.9, "lookups": 3, "share": 0.5},
)
_MAX_CITED = 3


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find edits with the same lines in the same file, and repeated lookups."""
    handoffs = list_handoff_contexts(reading)
    if not handoffs:
        return []
    if all(handoff.child is None for handoff in handoffs):
        return Unmeasured(
            rule=rule.name, reason="the trace does not contain the work of any sub-agent"
        )
    changed: dict[str, frozenset[str]] = {}
    findings = []
    for handoff in handoffs:
        if handoff.child is None:
            continue
        lane = handoff.event.lane
        if lane not in changed:
            changed[lane] = frozenset(
                path for step in handoff.parent.changes for path in step.written
            )
        if redone_edits := find_redone_edits(handoff, threshold=limits["alike"]):
            findings.append(_redone_edit_finding(handoff, redone_edits))
        repeated_lookups = find_repeated_lookups(until_user_speaks(handoff), changed[lane])
        min_lookups = limits["share"] * count_lookups(handoff, changed[lane])
        if len(repeated_lookups) >= max(min_lookups, limits["lookups"]):
            findings.append(_repeated_lookup_finding(handoff, repeated_lookups))
    return findings


def _redone_edit_finding(handoff: HandoffContext, redone_edits: list[RedoneEdit]) -> Finding:
    first = redone_edits[0]
    action = (
        "undoes the edit of its sub-agent" if first.undone else "repeats the edit of its sub-agent"
    )
    return make_finding(
        rule,
        f"The agent {action} in {truncate_line(first.path)}"
        + (
            f", and {count_with_noun(len(redone_edits) - 1, 'time')} more."
            if len(redone_edits) > 1
            else "."
        ),
        [number for pair in redone_edits[:_MAX_CITED] for number in (pair.parent, pair.child)],
        lane=handoff.event.lane,
        confidence=0.8,
    )


def _repeated_lookup_finding(
    handoff: HandoffContext, repeated: list[tuple[TraceStep, TraceStep]]
) -> Finding:
    return make_finding(
        rule,
        f"The agent repeats {count_with_noun(len(repeated), 'lookup')} of its "
        f"sub-agent, first {truncate_line(step_input(repeated[0][1]))}.",
        [
            number
            for child, parent in repeated[:_MAX_CITED]
            for number in (parent.number, child.number)
        ],
        lane=handoff.event.lane,
        confidence=0.5,
    )
