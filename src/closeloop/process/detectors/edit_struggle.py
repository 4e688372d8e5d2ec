"""Edits of one file fail repeatedly, and nothing is run in between.

## What it looks for

Four or more unsuccessful tries to change one file, without a run of the code or of a check in
between, and at least as many as the successful edits of the file:

- the edit **failed**: the text to replace does not exist or is not unique, or the call lacks a
  parameter;
- the edit **inserts again** what another edit has inserted since the last run: at the same place,
  or the same lines.

Three are enough if they follow one another without a successful edit of the file, and each tried to
replace a text of at least 20 characters that the file does not contain, or not once: it was written
from memory.

Identical tries in an unchanged workspace are reported by [repeated-failure](repeated-failure.md)
instead. Calls that were never executed, because another call failed or the user interrupted, do not
count. Edits of one response count once. Reading the file in between does not reset the count.

## Why it matters

The agent has a wrong picture of the file, and each partly successful try leaves duplicated or
broken lines.

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

If the trace contains edits with their results.

## Thresholds and silencing

`attempts` (4): the minimum number of unsuccessful tries; one fewer if each tried to replace a text
that is not there.

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

import re
from collections.abc import Iterator, Mapping, Sequence

from closeloop.process.rule_helpers import cite_row, fails_by_itself, truncate_line
from closeloop.process.verification import is_run
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Edit

rule = Rule(
    name="edit-struggle",
    version=2,
    about="Edits of one file fail repeatedly, and nothing is run in between.",
    severity="warning",
    gates=True,
    thresholds={"attempts": 4},
)

_NO_MATCH = re.compile(
    r"not (?:be )?(?:found|unique|exist|appear|match)|n't (?:find|match|exist)|no (?:exact )?match"
    r"|multiple (?:occurrences|matches)|failed to (?:find|match)|\bmatches\b.{0,40}\bunique",
    re.IGNORECASE,
)
"""The text to replace is not there, or not once."""
MAX_ERROR_CHARS = 300
MAX_CITED = 12
MIN_LETTERS = 20
"""Shorter texts are put in twice for good reasons, and are no recollection of a file."""


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find files with many unsuccessful edits in a row."""
    edits = [step for lane in reading.lanes.values() for step in lane.edits]
    if edits and all(step.failed is None for step in edits):
        return Unmeasured(rule=rule.name, reason="no edit in the trace says whether it succeeded")
    return [
        make_finding(
            rule,
            f"{len(vain_steps)} edits of {truncate_line(vain_steps[0].written[0])} failed or were "
            "undone, and nothing was run in between.",
            cite_row([step.number for step in vain_steps], MAX_CITED),
            lane=lane.lane.id,
            confidence=0.9,
        )
        for lane in reading.lanes.values()
        if len(lane.edits) >= limits["attempts"] - all(step.failed for step in lane.edits)
        for row in _rows_without_run(lane)
        if (vain_steps := _attempts_in_vain(row, limits["attempts"]))
    ]


def _rows_without_run(lane: LaneReading) -> Iterator[Sequence[TraceStep]]:
    """Yield the edits of one file between two runs."""
    rows: dict[str, list[TraceStep]] = {}
    for step in lane.steps:
        if isinstance(step.event, Edit):
            rows.setdefault(step.written[0], []).append(step)
        elif rows and is_run(step):
            yield from rows.values()
            rows = {}
    yield from rows.values()


def _attempts_in_vain(row: Sequence[TraceStep], min_count: float) -> Sequence[TraceStep]:
    """Return the edits that failed or repeated an edit.

    Empty if most edits succeeded, or if there are too few.
    """
    vain_steps: list[TraceStep] = []
    made_edits: set[tuple[str | None, str]] = set()
    vain_changes: set[tuple[int, str | None, str | None]] = set()
    good_count = good_between = 0
    for step in row:
        edit = step.event
        assert isinstance(edit, Edit), "rows hold edits"
        text = (edit.after or "").strip()
        is_repeated = (
            len(text) >= MIN_LETTERS
            and edit.action != "create"
            and (edit.before, text) in made_edits
        )
        if is_repeated if not step.failed else fails_by_itself(step):
            if vain_steps and edit.turn is not None and edit.turn == vain_steps[-1].event.turn:
                # Calls of one answer fail together: the agent could not react in between.
                continue
            vain_steps.append(step)
            vain_changes.add((step.state, edit.before, edit.after))
            good_between = good_count
        elif not step.failed:
            made_edits.add((edit.before, text))
            good_count += bool(vain_steps)
    if len(vain_steps) < max(good_between, min_count - 1) or len(vain_changes) < 2:
        return ()
    is_enough = len(vain_steps) >= min_count
    return (
        vain_steps
        if is_enough or (not good_between and all(map(_replaces_missing_text, vain_steps)))
        else ()
    )


def _replaces_missing_text(step: TraceStep) -> bool:
    """Whether it failed because the text to replace was not found."""
    edit = step.event
    assert isinstance(edit, Edit), "rows hold edits"
    if not step.failed or len(edit.before or "") < MIN_LETTERS:
        return False
    error = edit.error or ""
    # Some tools repeat the whole text in between.
    return _NO_MATCH.search(f"{error[:MAX_ERROR_CHARS]} {error[-MAX_ERROR_CHARS:]}") is not None
