"""A file that changed since it was last read is edited from memory.

## What it looks for

A lane knows a file from the last time it read the file or wrote it as a whole. This knowledge is
stale after the file was changed by a formatter, by `sed`, by a git command that changes the tree,
by another lane, or by the user, who says so. An edit from stale knowledge is reported if it

- fails because its text is not in the file, or because the editing tool reports that the file was
  modified (after the lane's own `sed`, only if that replaced the text; after a formatter, only if
  that ran shortly before);
- overwrites the whole file, including changes of another lane, the user or another branch.

If the tool rejects the edit because somebody else changed the file, and the agent then reads it
again, nothing is reported: it could not know. The agent's own edits do not make its knowledge
stale, with one exception: an edit that fails because the agent itself had replaced its text before,
and had not read it since.

Edits that fail for another reason (two matches, no permission, another file of the same patch) are
not reported, nor is a command that prints the file afterwards, nor a file that `git stash` removed
and restored. Several edits of one file that fail because of one change are one finding.

## Why it matters

The failed edit costs a turn. The overwriting edit silently discards somebody's work.

## Bad

```text
#2  read  view.py     label = 'Sum'
#3  black view.py
#4  edit  view.py     label = 'Sum' → 'Total'    String to replace not found
```

## Good

```text
#2  read  view.py     label = 'Sum'
#3  black view.py
#4  read  view.py     label = "Sum"
#5  edit  view.py     label = "Sum" → "Total"
```

## When it can be measured

If the trace contains edits. Changes by programs that name no file are known only for common tools.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.stale-assumption]
enabled = false

[[silence]]
rule = "stale-assumption"
path = "**/generated/**"
reason = "written anew on every run"
```

## How sure it is

It may gate: both the change and the failed or overwriting edit are recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from closeloop.process.rule_helpers import truncate_line
from closeloop.process.stale_files import (
    ABSENT_TEXT,
    StaleFileEncounter,
    error_mentions,
    find_stale_encounters,
)
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Edit

rule = Rule(
    name="stale-assumption",
    version=5,
    about="A file that changed since it was last read is edited from memory.",
    severity="warning",
    mode="context blindness",
    gates=True,
)
_MAX_CITED = 6
_MAX_TEXTS = 30
"""Last replaced texts of a file that are remembered."""
_MIN_SHARED_CHARS = 20
"""Shorter texts may occur in several places."""


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Report one finding per edit that failed for it, or overwrote others' changes."""
    if not any(lane.edits for lane in reading.lanes.values()):
        if any(lane.changes for lane in reading.lanes.values()) or not reading.trace.events:
            return Unmeasured(
                rule=rule.name, reason="the trace contains no edits with their results"
            )
        return []
    findings = [
        make_finding(
            rule,
            f"{truncate_line(encounter.path, 100)} was changed by {encounter.by} after it was "
            "last read, and "
            + ("the edit failed." if encounter.how == "failed edit" else "was overwritten."),
            list(dict.fromkeys((encounter.step.number, encounter.change))),
            lane=encounter.step.event.lane,
        )
        for encounter in find_stale_encounters(reading)
        if encounter.how != "read again" and not _is_met_by_reading(reading, encounter)
    ]
    reported_numbers = {number for finding in findings for number in finding.events}
    findings += [
        finding
        for lane in reading.lanes.values()
        for finding in _find_forgotten_edits(lane)
        if reported_numbers.isdisjoint(finding.events)
    ]
    return sorted(findings, key=lambda finding: min(finding.events))


def _is_met_by_reading(reading: TraceReading, encounter: StaleFileEncounter) -> bool:
    """Whether the client refused the edit of a file changed by others, and the agent read it
    again."""
    if encounter.how != "failed edit" or encounter.by != "somebody else":
        return False
    lane = reading.lanes[encounter.step.event.lane]
    for step in lane.steps[encounter.step.index + 1 :]:
        if encounter.path in step.read or encounter.path in step.written:
            return encounter.path in step.read
    return False


def _find_forgotten_edits(lane: LaneReading) -> Iterator[Finding]:
    """Find edits that fail because they seek what the lane itself had replaced."""
    if not any(step.failed for step in lane.edits):
        return
    replaced: dict[str, dict[str, TraceStep]] = {}
    rows: dict[int, list[TraceStep]] = {}
    for step in lane.steps:
        for path in step.read:
            replaced.pop(path, None)
        event = step.event
        if not isinstance(event, Edit):
            continue
        path, before, after = step.written[0], (event.before or "").strip(), event.after or ""
        if step.failed and error_mentions(event.error, ABSENT_TEXT):
            texts = list(replaced.get(path, {}).items())[-_MAX_TEXTS:]
            earlier = next(
                (
                    replacing_step
                    for old_text, replacing_step in texts
                    if _share_text(old_text, before)
                ),
                None,
            )
            if earlier is not None:
                rows.setdefault(earlier.number, []).append(step)
        elif step.failed is False and before and before not in after:
            replaced.setdefault(path, {})[before] = step
    for number, steps in rows.items():
        yield make_finding(
            rule,
            f"{truncate_line(steps[0].written[0], 100)}: the edit searches for text "
            f"that the agent itself had replaced at #{number}.",
            [number, *(step.number for step in steps[:_MAX_CITED])],
            lane=lane.lane.id,
        )


def _share_text(replaced: str, sought: str) -> bool:
    """Whether the sought text is the replaced one, a part of it, or more around it."""
    return replaced == sought or (
        min(len(replaced), len(sought)) >= _MIN_SHARED_CHARS
        and (replaced in sought or sought in replaced)
    )
