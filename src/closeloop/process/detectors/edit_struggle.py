"""Edits of one file go wrong again and again, and nothing is run in between.

## What it looks for

Four attempts or more to change one file that come to nothing, with no run of the code or of a
check between them, and with at least as many of them as there are edits of the file that succeed:

- the edit **failed**: the text that it is to replace is not there, or is there more than once, or
  the call lacks what the tool needs;
- the edit **puts in again** what another one has put in since the last run: at the same place, or
  the same lines once more.

Attempts that are alike to the letter in an unchanged workspace are left to
[repeated-failure](repeated-failure.md), and so is what was never carried out because another call
failed or the user broke in. Edits of one answer count once. To read the file in between does not
begin a new count: what was read did not help.

## Why it matters

The agent works against a picture of the file that is wrong, and each half-successful attempt leaves
doubled or broken lines behind.

## Bad

```text
#4  edit cart.py     old text not found
#5  edit cart.py     old text not found
#6  edit cart.py     3 places match: must be unique
#7  edit cart.py     old text not found
```

## Good

```text
#4  edit cart.py     old text not found
#5  read cart.py
#6  edit cart.py
#7  pytest -q
```

## When it can be measured

When the trace holds edits that tell whether they succeeded.

## Thresholds and silencing

`attempts` (4): so many attempts in vain are a struggle.

```toml
[rules.edit-struggle]
attempts = 6

[[silence]]
rule = "edit-struggle"
path = "generated/**"
reason = "these files change while they are edited"
```

## How sure it is

It may gate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from closeloop.process.rule_helpers import cite_row, fails_by_itself, truncate_line
from closeloop.process.verification import is_run
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import (
    Edit,
)

rule = Rule(
    name="edit-struggle",
    version=1,
    about="Edits of one file go wrong again and again, and nothing is run in between.",
    severity="warning",
    gates=True,
    thresholds={"attempts": 4},
)

MAX_CITED = 12
MIN_LETTERS = 20
"""Shorter texts are put in twice for good reasons."""


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Files of which many edits in a row came to nothing."""
    edits = [step for lane in reading.lanes.values() for step in lane.edits]
    if edits and all(step.failed is None for step in edits):
        return Unmeasured(rule=rule.name, reason="no edit in the trace says whether it succeeded")
    return [
        make_finding(
            rule,
            f"{len(vain)} edits of {truncate_line(vain[0].written[0])} came to nothing, and nothing"
            " was run in between.",
            cite_row([step.number for step in vain], MAX_CITED),
            lane=lane.lane.id,
            confidence=0.9,
        )
        for lane in reading.lanes.values()
        if len(lane.edits) >= limits["attempts"]
        for row in _rows_without_run(lane)
        if len(vain := _attempts_in_vain(row)) >= limits["attempts"]
    ]


def _rows_without_run(lane: LaneReading) -> Iterator[Sequence[TraceStep]]:
    """Edits of one file between two runs."""
    rows: dict[str, list[TraceStep]] = {}
    for step in lane.steps:
        if isinstance(step.event, Edit):
            rows.setdefault(step.written[0], []).append(step)
        elif rows and is_run(step):
            yield from rows.values()
            rows = {}
    yield from rows.values()


def _attempts_in_vain(row: Sequence[TraceStep]) -> Sequence[TraceStep]:
    """Those of the edits that failed or did again what was done; none where most went well."""
    vain: list[TraceStep] = []
    made: set[tuple[str | None, str]] = set()
    wanted: set[tuple[int, str | None, str | None]] = set()
    good = good_between = 0
    for step in row:
        edit = step.event
        assert isinstance(edit, Edit), "rows hold edits"
        text = (edit.after or "").strip()
        again = len(text) >= MIN_LETTERS and edit.action != "create" and (edit.before, text) in made
        if again if not step.failed else fails_by_itself(step):
            if vain and edit.turn is not None and edit.turn == vain[-1].event.turn:
                # Calls of one answer fail together: the agent had no chance to learn from it.
                continue
            vain.append(step)
            wanted.add((step.state, edit.before, edit.after))
            good_between = good
        elif not step.failed:
            made.add((edit.before, text))
            good += bool(vain)
    return vain if len(vain) >= good_between and len(wanted) > 1 else ()
