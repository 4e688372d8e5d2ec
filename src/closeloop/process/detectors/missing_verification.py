"""The agent ended with code that no check and no run had tested.

## What it looks for

The whole attempt, including sub-agents, ends with changed code, and after the last change there was
neither a check nor a run of the program itself. Reverted changes, and changes of only comments or
layout, do not count. If the agent claims that checks pass, or that the work is done after something
had run, [unverified-claim](unverified-claim.md) reports it and this rule does not. So at most one
of the two rules reports a claim.

| since the first change of code | the agent says | rule |
| --- | --- | --- |
| nothing was run | nothing, or that it is done | missing-verification |
| nothing was run | that tests pass | unverified-claim |
| something ran, then code was changed | nothing about it | missing-verification |
| something ran, then code was changed | that it is done, or that tests pass | unverified-claim |
| the last check failed | that it is done, or that tests pass | false-claim |

Documents, comments and scratch files are not code, deletions need not run, and restoring tested
code needs no new test. An attempt that was stopped from outside (time, money, a crash), or a
recording that ends without a message of the agent, is excluded, because it is unknown what the
agent would have run next. A truncated recording has a finding only if four changes of existing
files had accumulated since the last run or check, linters included, or three since one that
failed. Nothing is reported if the user said that nothing needs to be run.

## Why it matters

Untested work is a guess. This is also one of the categories in which an attempt may end.

## Bad

```text
#2  grep -rn colour src
#3  edit src/paint.py
#4  edit src/cli.py
#5  "I renamed the option."
```

## Good

```text
#3  edit src/paint.py
#4  edit src/cli.py
#5  pytest -q        31 passed
#6  "I renamed the option, and the tests pass."
```

## When it can be measured

If the agent ran at least one command, or the attempt was run by closeloop. In a recording without
any command the agent may have had no way to run one.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.missing-verification]
enabled = false

[[silence]]
rule = "missing-verification"
task = "config-*"
reason = "there is nothing to run for these"
```

## How sure it is

It may gate. Its precision is known from the labelled traces; in 194 recorded sessions of other
agents it fired three times, each time rightly, which is too few for a rate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from closeloop.process.agent_claims import list_closings, parse_claim
from closeloop.process.edit_contents import (
    deletes_file,
    find_standing_changes,
    is_undo,
    list_code_changes,
)
from closeloop.process.rule_helpers import collect_user_requests, waives_checks
from closeloop.process.verification import (
    EVENT_NUMBER,
    could_not_run,
    find_backing,
    find_trial_between,
    is_run,
    list_trace_checks,
    list_trials_after,
)
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Command, Edit
from closeloop.text.wording import compile_lazily

rule = Rule(
    name="missing-verification",
    version=8,
    about="The agent ended with code that no check and no run had tested.",
    severity="warning",
    gates=True,
)

MIN_RESTORING = 3
"""A change, its reversal, and the same change again."""
MIN_PILE = 4
"""Code changes without a run that are too many even in a truncated recording."""
_RUN_WISH = re.compile(
    r"\b(?:re-?run|run|execute)\b[^.\n]{0,40}\b(?:tests?|scripts?|suite|it|pytest|python\d?|bash)\b"
)

_SYNTAX_CHECK = compile_lazily(
    r"\b(?:py_compile|compileall|ast\.parse\(|node (?:-c|--check)\b|bash -n\b|php -l\b|ruby -c\b)"
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Report if code was changed, by sub-agents too, and no check ran since the first change."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    if not reading.lanes:
        return []
    root = next(iter(reading.lanes.values()))
    changes = _standing_code_changes(reading, root)
    backing = find_backing(changes, list_trace_checks(reading))
    if (
        backing is None
        or all(map(deletes_file, changes))
        or backing.has_current_check
        or next(list_trials_after(reading, root, backing.last), None) is not None
        or _restores_tried_code(root, changes)
    ):
        return []
    if _is_stopped(reading) or not _ends_work(reading, root, backing.last):
        # An interrupted agent may have been about to run something.
        return _find_pile(reading, root, changes)
    if not _could_run_commands(reading):
        reason = "the trace contains no command: the agent may have had no way to run one"
        return Unmeasured(rule=rule.name, reason=reason)
    if waives_checks(reading):
        return []
    stale_check = backing.stale if backing.stale and not could_not_run(backing.stale) else None
    earlier = stale_check or find_trial_between(reading, root, backing)
    if _is_claimed(root, backing.last, checked=earlier is not None):
        return []
    reason_clause = "no check ran since the first change"
    if earlier is not None:
        reason_clause = "nothing ran after that, unlike before"
    if isinstance(backing.last.event, Command) and _SYNTAX_CHECK.search(backing.last.event.command):
        reason_clause = "only its syntax was checked"
    numbers = (backing.last.number, earlier.number if earlier else backing.first.number)
    return [
        make_finding(
            rule,
            f"{backing.last.written[0]} was changed, but {reason_clause}.",
            list(dict.fromkeys(numbers)),
            lane=root.lane.id,
            confidence=0.9,
        )
    ]


def _is_stopped(reading: TraceReading) -> bool:
    return reading.attempt is not None and reading.attempt.exit not in ("finished", "gave_up")


def _find_pile(
    reading: TraceReading, root: LaneReading, changes: Sequence[TraceStep]
) -> list[Finding]:
    """Report a recording that ends during the work, after many untested changes."""
    runs = [
        step
        for lane in reading.lanes.values()
        for step in lane.steps
        if step.check is not None or is_run(step)
    ]
    last = max(runs, key=EVENT_NUMBER, default=None)
    created_files = find_standing_changes(reading).made
    untried_changes = _leave_out_undone(
        step
        for step in changes
        if (last is None or step.number > last.number)
        and created_files.keys().isdisjoint(step.written)
    )
    min_count = MIN_PILE if last is None or not last.failed else MIN_PILE - 1
    if len(untried_changes) < min_count or not _could_run_commands(reading):
        return []
    if waives_checks(reading):
        return []
    since_clause = "and nothing was ever run"
    if last is not None:
        since_clause = "since the last run, which failed" if last.failed else "since the last run"
    return [
        make_finding(
            rule,
            f"It ends after {len(untried_changes)} changes of code {since_clause}.",
            [step.number for step in untried_changes[-MIN_PILE:]],
            lane=root.lane.id,
            confidence=0.8,
        )
    ]


def _leave_out_undone(changes: Iterable[TraceStep]) -> Sequence[TraceStep]:
    """Return the changes without those that the editor undid, and the undoing."""
    kept_changes: list[TraceStep] = []
    for step in changes:
        if not (isinstance(step.event, Edit) and is_undo(step.event)):
            kept_changes.append(step)
            continue
        same_file = (change for change in reversed(kept_changes) if change.written == step.written)
        if undone := next(same_file, None):
            kept_changes.remove(undone)
    return kept_changes


def _restores_tried_code(root: LaneReading, changes: Sequence[TraceStep]) -> bool:
    """Whether the last two changes revert a tested one and make it again."""
    if len(changes) < MIN_RESTORING or len(changes[-1].edits) != 1:
        return False
    last, undoing_step = changes[-1].edits[0], changes[-2]
    if not any(
        _makes_change(edit, last.after, last.before, last.path) for edit in undoing_step.edits
    ):
        return False
    same_changes = (
        step
        for step in reversed(changes[:-2])
        if any(_makes_change(edit, last.before, last.after, last.path) for edit in step.edits)
    )
    first = next(same_changes, None)
    return first is not None and any(
        is_run(step) for step in root.steps if first.number < step.number < undoing_step.number
    )


def _makes_change(edit: Edit, before: str | None, after: str | None, path: str) -> bool:
    return bool(after) and edit.path == path and (edit.before, edit.after) == (before, after)


def _ends_work(reading: TraceReading, root: LaneReading, last: TraceStep) -> bool:
    """Whether the agent hands over after its last change; a recording that just ends shows
    nothing."""
    if reading.attempt is not None and reading.attempt.origin == "experiment":
        return True
    return any(closing.message.number > last.number for closing in list_closings(root))


def _standing_code_changes(reading: TraceReading, root: LaneReading) -> Sequence[TraceStep]:
    """Return code changes that were not reverted."""
    changes = list_code_changes(root)
    standing_paths = find_standing_changes(reading).changed if changes else {}
    return [
        step
        for step in changes
        if not step.written or any(path in standing_paths for path in step.written)
    ]


def _could_run_commands(reading: TraceReading) -> bool:
    """Whether it ran a command, is a built-in agent, or was asked to run something."""
    if reading.attempt is not None and reading.attempt.origin == "experiment":
        return True
    if any(step.effect for lane in reading.lanes.values() for step in lane.steps):
        return True
    return _RUN_WISH.search(collect_user_requests(reading)) is not None


def _is_claimed(root: LaneReading, last: TraceStep, *, checked: bool) -> bool:
    """Whether unverified-claim covers it: a claim that checks pass, or that it is done after some
    ran."""
    claims = (
        parse_claim(end.message) for end in list_closings(root) if end.message.number > last.number
    )
    return any(claim is not None and (checked or claim.passing) for claim in claims)
