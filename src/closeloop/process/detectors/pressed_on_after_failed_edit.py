"""An edit failed, and the agent continued as if it had succeeded.

## What it looks for

An edit failed, and the lane never reads, searches, names in a command or edits the file again. The
next action shows that the agent believes in the edit: it runs a check or a program, edits another
file successfully, or claims to be done.

Nothing is reported if the agent says or thinks right after it that the edit failed; if it searches
for another place or plans again; if it asks, makes the same change elsewhere successfully, or
leaves it to a tool that repairs (`eslint --fix`, `make format`); if the user rejected the edit; for
scratch files, for calls without text, and if the trace ends there. A call that should change
several files fails once.

Failed edits, missing files, merge conflicts, contradictory checks, files changed by others and
ambiguous requests are the unexpected states of the rate `recovery` of the process score: the share
of them that the agent investigated, asked about or reported. A failed edit that is only retried
without a read, and fails again, counts against the agent.

## Why it matters

The claimed change does not exist, and nobody notices.

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

If edits have known results.

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

import re
from collections.abc import Iterator, Mapping, Sequence

from closeloop.process.edit_contents import diff_edit, is_scratch_path
from closeloop.process.feedback_use import list_abandoned_edits, mentions_problem
from closeloop.process.rule_helpers import truncate_line
from closeloop.process.stale_files import error_mentions
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import AnyEvent, Edit, Message, Note, Read, Thought

rule = Rule(
    name="pressed-on-after-failed-edit",
    version=4,
    about="An edit failed, and the agent continued as if it had succeeded.",
    severity="error",
    mode="context blindness",
    gates=True,
)
_MAX_EVENTS_AFTER = 5
MAX_WORDS_CHARS = 2000
_REPLANNING = re.compile(
    r"\b(?:instead|actually|correct(?:ly)?|alternativ\w+|another (?:way|approach|place)|different"
    r"|precise\w*|let me (?:try|check|look)|manually|unable|could(?: not|n't)|issues?|exact"
    r"|apolog\w+|difficult\w*)\b",
    re.IGNORECASE,
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Report one finding for each failed edit that was never redone."""
    lanes = reading.lanes.values()
    if not any(_reports_edit_results(lane) for lane in lanes):
        if any(lane.edits for lane in lanes):
            return Unmeasured(
                rule=rule.name, reason="the trace does not show whether edits succeeded"
            )
        return []
    findings = [
        make_finding(
            rule,
            f"The edit of {truncate_line(item.path or '', 100)} failed, and the file "
            "was never opened or edited again.",
            [item.step.number],
            lane=name,
        )
        for name, lane in reading.lanes.items()
        for item in list_abandoned_edits(lane)
        if item.step is not None
        and _could_matter(item.step)
        and not _is_redundant(lane, item.step)
        and not _notices_failure(reading.trace.events, item.step)
        and _acts_on_it(reading.trace.events, lane, item.step)
    ]
    return sorted(findings, key=lambda finding: finding.events)


def _reports_edit_results(lane: LaneReading) -> bool:
    """Whether edit tools in this lane report success or failure."""
    return (
        any(step.failed is not None for step in lane.edits)
        or any(step.written for step in lane.failing)
        or any(step.failed is False and step.written for step in lane.changes)
    )


def _could_matter(step: TraceStep) -> bool:
    """Whether it is an edit of a lasting file with text."""
    event = step.event
    if isinstance(event, Edit) and not (event.before or event.after or event.patch):
        return False
    return not all(map(is_scratch_path, step.written))


def _is_redundant(lane: LaneReading, step: TraceStep) -> bool:
    """Whether its text is already there: written or shown before, or the file exists."""
    event = step.event
    if not isinstance(event, Edit):
        return False
    if "already exist" in (event.error or "").lower():
        return True
    intended_text = (event.after or "").strip()
    return bool(intended_text) and any(
        intended_text in text
        for earlier in lane.steps[: step.index]
        for text in _texts_of_file(earlier, step)
    )


def _texts_of_file(other_step: TraceStep, step: TraceStep) -> Iterator[str]:
    """Yield what another step wrote to, or showed of, the same file."""
    event = other_step.event
    if isinstance(event, Edit) and other_step.changed and other_step.written == step.written:
        yield event.after or ""
    elif isinstance(event, Read) and other_step.read == step.written:
        yield event.text or ""


def _acts_on_it(events: Sequence[AnyEvent], lane: LaneReading, step: TraceStep) -> bool:
    """Whether the lane's next actions depend on the edit; reading elsewhere or retrying do not."""
    later = next(
        (
            candidate
            for candidate in lane.steps[step.index + 1 :]
            if not _fails_with(events, candidate, step)
        ),
        None,
    )
    last = events[-1].number + 1 if later is None else later.number
    messages = _list_words(events, step, last)
    if any(map(_REPLANNING.search, messages)):
        return False
    if later is None:
        return bool(messages)
    if isinstance(later.event, Edit):
        return later.changed and not _moves_on(lane, step, later.event)
    return later.effect is not None and not (later.read or later.effect.searches or later.changed)


def _list_words(events: Sequence[AnyEvent], step: TraceStep, before: int) -> list[str]:
    return [
        event.text[:MAX_WORDS_CHARS]
        for event in events[step.number : before - 1]
        if isinstance(event, Thought | Message) and event.lane == step.event.lane
    ]


def _fails_with(events: Sequence[AnyEvent], later: TraceStep, step: TraceStep) -> bool:
    """Whether it fails on the same file, or is an edit of the same call."""
    return later.failed is True and (
        later.written == step.written
        or (isinstance(later.event, Edit) and not _list_words(events, step, later.number))
    )


def _moves_on(lane: LaneReading, step: TraceStep, later: Edit) -> bool:
    """Whether the next edit makes the same change, or another guess about its place."""
    event = step.event
    if not isinstance(event, Edit) or error_mentions(event.error, ("multiple", "unique")):
        return False
    known_paths = {
        path for earlier in lane.steps[: step.index] for path in (*earlier.read, *earlier.written)
    }
    if event.action == "create" or known_paths.isdisjoint(step.written):
        return True
    intended_lines, later_lines = diff_edit(event), diff_edit(later)
    new_lines = (
        {line for line in intended_lines.added if len(line) > 3} if intended_lines else set()
    )
    return bool(
        later_lines
        and new_lines
        and 2 * len(new_lines.intersection(later_lines.added)) > len(new_lines)
    )


def _notices_failure(events: Sequence[AnyEvent], step: TraceStep) -> bool:
    """Whether its next thought is about the failure, so that it knowingly goes another way."""
    for event in events[step.number : step.number + _MAX_EVENTS_AFTER]:
        if event.lane == step.event.lane and not isinstance(event, Note):
            text = event.text if isinstance(event, Thought | Message) else ""
            return mentions_problem(text[:1000])
    return False
