"""The same failure returns, or changes of a file are undone and redone.

## What it looks for

A failure set of a check returns after another one, twice or more: the same tests or places with the
same messages, read from outputs that were truncated in the same way. Or the content of a file
returns to an earlier version twice or more, recognised by edits that undo each other, by equal
texts, or by undo calls of the editor; deletion, by an edit or by `rm`, is a version too. Scratch
files are excluded.

For files, two different versions must return, or one version three times: returning twice to the
same version is a short experiment (a print that is added and removed again). A pass in between is a
state too, but its return is welcome and does not count. `git stash` and back does not count either.
Several edits that undo several others are one return, and text that was removed for a commit may be
restored after that commit. Tries that the editor undoes one after the other do not count if none is
made again, nor does one that is undone to run something without it.

A single return is reported if consecutive edits of one place end with the text with which they
began, and nothing was run, read or said in between.

## Why it matters

Two requirements conflict, and the agent alternates between them. It needs to see both at once, or
to ask which one applies.

## Bad

```text
#3  edit rounding.py    round down
#4  pytest              FAILED test_invoice_total
#5  edit rounding.py    round up
#6  pytest              FAILED test_discount
#7  edit rounding.py    round down
#8  pytest              FAILED test_invoice_total
#9  edit rounding.py    round up
#10 pytest              FAILED test_discount
```

## Good

```text
#3  edit rounding.py    round down
#4  pytest              FAILED test_invoice_total
#5  read tests/test_discount.py
#6  edit rounding.py    round only the total
#7  pytest              12 passed
```

## When it can be measured

Failure sets: if checks have known results. Versions of files: if edits contain the text that they
replace.

## Thresholds and silencing

`returns` (2): the minimum number of returns.

```toml
[rules.oscillation]
returns = 3

[[silence]]
rule = "oscillation"
task = "tune-*"
reason = "trying values in turn is the task"
```

## How sure it is

It may gate. Content that commands write into a file is not tracked, only that they delete it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

from closeloop.process.check_results import hides_output
from closeloop.process.edit_contents import deletes_file, is_scratch_path, is_undo
from closeloop.process.rule_helpers import (
    describe_failures,
    explain_unreadable_checks,
    list_git_verbs,
    truncate_line,
    uses_stash,
)
from closeloop.process.verification import is_linter_check, is_run
from closeloop.records.change import LaneReading, TraceCheck, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Command, Edit

rule = Rule(
    name="oscillation",
    version=7,
    about="The same failure returns, or changes of a file are undone and redone.",
    severity="warning",
    gates=True,
    thresholds={"returns": 2},
)

_REMOVE_COMMAND = re.compile(r"\b(?:rm|unlink)\s([^;&|\n]*)")
_MAX_STEPS_TO_COMMIT = 3
_FIRST_VERSION = 0
"""The version of a file before any edit."""
_GONE_VERSION = "\0gone"
"""The version of a file that does not exist."""


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find failure sets or file versions that return after they were left."""
    findings = [
        finding
        for lane in reading.lanes.values()
        for finding in (
            *_failure_findings(lane, limits["returns"]),
            *_file_findings(lane, limits["returns"]),
        )
    ]
    reported_numbers = {number for finding in findings for number in finding.events}
    findings += [
        finding
        for lane in reading.lanes.values()
        for finding in _undone_at_once(lane)
        if reported_numbers.isdisjoint(finding.events)
    ]
    if not findings and (reason := explain_unreadable_checks(reading)):
        return Unmeasured(rule=rule.name, reason=reason)
    return sorted(findings, key=lambda finding: finding.events)


def _failure_findings(lane: LaneReading, min_count: float) -> Iterable[Finding]:
    """Report, by target, failure sets that return after other ones; passing checks are left out."""
    rows: dict[str, list[tuple[Hashable, TraceStep]]] = {}
    # A return needs an earlier equal version and a different one in between.
    for iteration in lane.iterations if len(lane.iterations) > min_count else ():
        if all(uses_stash(step) for step in iteration.changes):
            continue
        for step in iteration.checks:
            if step.check and step.check.passed is not None and not is_linter_check(step):
                failures = step.check.failures
                value = frozenset(failures.errors.items()) if failures else frozenset()
                rows.setdefault(_row_key(step, step.check), []).append((value, step))
    for target, row in rows.items():
        returns = [(value, step) for value, step in _find_returns(row) if value]
        if len(returns) >= min_count:
            failures = returns[-1][1].check.failures  # type: ignore[union-attr]
            failure_text = describe_failures(failures) if failures else target
            yield make_finding(
                rule,
                f"The same failure came back {len(returns)} times after it was gone:"
                f" {failure_text}.",
                [step.number for _, step in returns],
                lane=lane.lane.id,
            )


def _row_key(step: TraceStep, check: TraceCheck) -> str:
    """Return what was checked and how the output was cut: other parts show other failures."""
    event = step.event
    if hides_output(step) and isinstance(event, Command):
        return " ".join(event.command.split())
    return check.target


def _file_findings(lane: LaneReading, min_count: float) -> Iterable[Finding]:
    """Find file versions by edits that undo each other; one alone may be exploration."""
    rows: dict[str, list[tuple[Hashable, TraceStep]]] = {}
    for path, changes in _changes_by_path(lane).items() if len(lane.changes) > min_count else ():
        if len(changes) > min_count:
            rows[path] = list(_list_versions(changes))
    commits = _commit_numbers(lane) if rows else ()
    for path, row in rows.items():
        returns = list(_find_turns(row, commits))
        if _only_takes_back(lane, [step for _, step in returns]):
            continue
        return_counts = Counter(value for value, _ in returns)
        if len(returns) >= min_count and (len(return_counts) > 1 or len(returns) > min_count):
            yield make_finding(
                rule,
                f"{truncate_line(path)} returned to an earlier version {len(returns)} times.",
                [step.number for _, step in returns],
                lane=lane.lane.id,
            )


def _only_takes_back(lane: LaneReading, returns: Sequence[TraceStep]) -> bool:
    """Whether one try after another is undone by the editor and not made again, or one was undone
    and made again to run something without it.
    """
    undos = [step for step in returns if isinstance(step.event, Edit) and is_undo(step.event)]
    if not undos or len(returns) > len(undos) + 1:
        return False
    if len(returns) == len(undos):
        return True
    runs = lane.steps[undos[0].index + 1 : returns[-1].index]
    return len(undos) == 1 and any(map(is_run, runs))


def _undone_at_once(lane: LaneReading) -> Iterable[Finding]:
    """Find edits of one place that end where they began, with nothing done or said in between."""
    row: list[TraceStep] = []
    for step in (*lane.edits, None) if len(lane.edits) > 1 else ():
        if row and (step is None or not _follows_at_once(row[-1], step)):
            reverting_steps = _find_way_back(row)
            if reverting_steps and not _is_committed(lane, reverting_steps[-1]):
                yield make_finding(
                    rule,
                    f"{truncate_line(row[0].written[0])} was changed and immediately "
                    "changed back, without running or reading anything in between.",
                    [reverting.number for reverting in reverting_steps],
                    lane=lane.lane.id,
                    confidence=0.9,
                )
            row = []
        if step is not None and step.changed and _places_text(step):
            row.append(step)


def _is_committed(lane: LaneReading, last: TraceStep) -> bool:
    """Whether what was reverted was taken out for a commit."""
    following = lane.steps[last.index + 1 : last.index + 1 + _MAX_STEPS_TO_COMMIT]
    return any(list_git_verbs(step) & {"add", "commit", "stash"} for step in following)


def _places_text(step: TraceStep) -> bool:
    edit = step.event
    return (
        isinstance(edit, Edit)
        and bool((edit.before or "").strip())
        and bool((edit.after or "").strip())
        # A change of indentation is not a reversal.
        and (edit.before or "").strip() != (edit.after or "").strip()
        and not is_scratch_path(step.written[0])
    )


def _follows_at_once(before: TraceStep, step: TraceStep) -> bool:
    """Whether the very next event changes what the last one wrote."""
    first_edit, second_edit = before.event, step.event
    return (
        step.number == before.number + 1
        and step.written == before.written
        and step.changed
        and isinstance(first_edit, Edit)
        and isinstance(second_edit, Edit)
        and (first_edit.after or "").strip() == (second_edit.before or "").strip()
    )


def _find_way_back(row: Sequence[TraceStep]) -> Sequence[TraceStep]:
    """Return the first part of the row that ends with the text an earlier edit began with."""
    index_by_text: dict[str, int] = {}
    for index, step in enumerate(row):
        first = index_by_text.get(getattr(step.event, "after", "").strip())
        if first is not None:
            return row[first : index + 1]
        index_by_text[getattr(step.event, "before", "").strip()] = index
    return ()


def _changes_by_path(lane: LaneReading) -> dict[str, list[TraceStep]]:
    """Group edits by file, with commands that removed it; scratch files are left out."""
    changes: dict[str, list[TraceStep]] = {}
    for step in lane.changes:
        if isinstance(step.event, Edit):
            if not is_scratch_path(step.written[0]):
                changes.setdefault(step.written[0], []).append(step)
        elif isinstance(step.event, Command) and deletes_file(step):
            for path in step.written:
                if path in changes and _removes_path(step.event, path):
                    changes[path].append(step)
    return changes


def _removes_path(event: Command, path: str) -> bool:
    """Whether the line removes this path; it may write other files too."""
    name = path.rpartition("/")[2]
    return any(
        name in words.split() or f"/{name}" in words
        for words in _REMOVE_COMMAND.findall(event.command)
    )


def _list_versions(changes: Iterable[TraceStep]) -> Iterable[tuple[Hashable, TraceStep]]:
    """Yield each change with the version it leaves: undoing an edit leaves the one before."""
    transitions: dict[Hashable, Hashable] = {}
    version: Hashable = _FIRST_VERSION
    left_versions: list[Hashable] = []
    """Versions that edits left, which an undo restores in turn."""
    for number, step in enumerate(changes, 1):
        edit = step.event
        if not isinstance(edit, Edit) or edit.action == "delete":
            if number == 1:
                yield version, step
            version = _GONE_VERSION
            yield version, step
            continue
        if is_undo(edit) and left_versions:
            version = left_versions.pop()
            yield version, step
            continue
        left_versions.append(version)
        if number == 1 and (edit.before is not None or edit.action == "change"):
            yield version, step
        if edit.before is None:
            # A whole file with equal text is an equal version; an insertion, or an edit known only
            # by its patch, makes a new one.
            after: Hashable = edit.after if edit.action == "create" and edit.after else number
        else:
            after = transitions.setdefault((version, edit.before, edit.after), number)
            transitions[after, edit.after, edit.before] = version
        version = after
        yield version, step


def _commit_numbers(lane: LaneReading) -> Sequence[int]:
    return [step.number for step in lane.commands if "commit" in list_git_verbs(step)]


def _find_turns(
    row: Iterable[tuple[Hashable, TraceStep]], commits: Sequence[int]
) -> Iterable[tuple[Hashable, TraceStep]]:
    """Yield the returns to an earlier version; several edits that undo others are one return.

    Removing uncommitted work for a commit and restoring it afterwards is not a return.
    """
    version_index: dict[Hashable, int] = {}
    committed_versions: set[Hashable] = {_FIRST_VERSION}
    last: Hashable = _FIRST_VERSION
    direction = committed = 0
    for value, step in row:
        before, committed = committed, bisect_left(commits, step.number)
        if committed > before:
            committed_versions.add(last)
        is_known = value in version_index
        version_index.setdefault(value, len(version_index))
        if is_known and value != last:
            last_direction, direction = (
                direction,
                1 if version_index[value] > version_index[last] else -1,
            )
            # Uncommitted work is removed for a commit and restored after it.
            if last_direction != direction and (committed == before or value in committed_versions):
                yield value, step
        elif not is_known:
            direction = 0
        last = value


def _find_returns(
    row: Iterable[tuple[Hashable, TraceStep]],
) -> Iterable[tuple[Hashable, TraceStep]]:
    """Yield where a value returns after another one."""
    seen_values: set[Hashable] = set()
    last: Hashable = None
    for value, step in row:
        if value != last:
            if value in seen_values:
                yield value, step
            seen_values.add(value)
            last = value
