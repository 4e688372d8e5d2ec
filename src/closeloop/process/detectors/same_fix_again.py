"""A fix that did not help, as a check had shown, is made again.

## What it looks for

An edit, also one made in the shell, adds the same lines as an earlier edit of the same file (at
least 0.9 of all lines of either, ignoring blanks), although after the earlier edit a check failed
no less than before, or a script that shows the fault printed the same as before without reporting
success. The earlier fix must have been removed since, or must replace the same text: the same lines
at another place of the file are another fix, and so is another indentation where it matters. A file
that is rewritten as a whole adds only the lines that its previous version did not have. Fixes of
fewer than twenty letters are too short. Scratch files do not count, nor does work that did not fix
a known failure and was lost by `git checkout` or `git stash`. Nor does an edit made in the shell
that prints something, or that was only taken back and made again, to see the base.

## Why it matters

The agent has forgotten what it tried, often after its context was truncated. A list of failed fixes
in the conversation helps.

## Bad

```text
#3  edit client.py      + return session.get(url, timeout=30)
#4  pytest              FAILED test_fetch - ReadTimeout
#5  edit client.py      - return session.get(url, timeout=30)   + return fetch_with_retry(url)
#6  pytest              FAILED test_fetch - ReadTimeout
#7  edit client.py      - return fetch_with_retry(url)         + return session.get(url, timeout=30)
```

## Good

```text
#5  edit client.py      + return fetch_with_retry(url)
#6  pytest              FAILED test_fetch - ReadTimeout
#7  read tests/test_fetch.py
#8  edit client.py      + adapter = local_adapter()
```

## When it can be measured

If checks have known results, and edits contain the text that they add.

## Thresholds and silencing

`likeness` (0.9): the minimum similarity of the added lines; `letters` (20): shorter fixes are
ignored.

```toml
[rules.same-fix-again]
likeness = 1.0

[[silence]]
rule = "same-fix-again"
path = "migrations/**"
reason = "generated files are written again and again"
```

## How sure it is

It may gate. A reworded fix is not found; if nothing else changes, it is a [spiral](spiral.md).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set

from msgspec.structs import replace

from closeloop.process.check_results import prints_same, same_failures, states_success
from closeloop.process.edit_contents import (
    diff_edit,
    is_debug_line,
    is_scratch_path,
    list_code_changes,
    list_file_edits,
)
from closeloop.process.rule_helpers import explain_unreadable_checks, truncate_line, uses_stash
from closeloop.process.verification import EVENT_NUMBER
from closeloop.records.change import CheckFailures, Iteration, LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.record import Record
from closeloop.records.trace import Edit

rule = Rule(
    name="same-fix-again",
    version=4,
    about="A fix that did not help, as a check had shown, is made again.",
    severity="warning",
    gates=True,
    thresholds={"likeness": 0.9, "letters": 20},
)

_INDENTED_ENDINGS = (".py", ".pyi", ".pyx", ".yaml", ".yml", ".nim", ".coffee")
MAX_REMEMBERED_FIXES = 50
"""Latest unsuccessful fixes of a file that are compared."""


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find edits whose added lines equal those of an earlier edit after which the same failed."""
    if reason := explain_unreadable_checks(reading):
        return Unmeasured(rule=rule.name, reason=reason)
    return [
        finding for lane in reading.lanes.values() for finding in _findings_in_lane(lane, limits)
    ]


class _AppliedFix(Record):
    """An edit and the lines it adds."""

    path: str
    lines: frozenset[str]
    place: str | None
    """What it replaces."""
    layout: Mapping[str, int]
    """Indentation of its lines if it matters: a fix of the indentation is a different one."""
    number: int
    in_shell: bool = False


class _RemovedLines:
    """When lines of a file were last removed."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, int]] = {}
        self._all: dict[str, int] = {}

    def note_lines(self, path: str, lines: Iterable[str], number: int) -> None:
        self._lines.setdefault(path, {}).update(dict.fromkeys(lines, number))

    def note_command(self, step: TraceStep) -> None:
        """Record a command's changes; one that names no files may have changed any.

        Stashed work is not abandoned.
        """
        if not uses_stash(step):
            self._all.update(dict.fromkeys(step.written or ("",), step.number))

    def is_taken_back(self, fix: _AppliedFix, *, tried: bool) -> bool:
        """Whether the fix has been removed since; untried work may just be lost."""
        if tried and max(self._all.get(fix.path, 0), self._all.get("", 0)) > fix.number:
            return True
        removed_lines = self._lines.get(fix.path, {})
        return sum(removed_lines.get(line, 0) > fix.number for line in fix.lines) * 2 >= len(
            fix.lines
        )


def _findings_in_lane(lane: LaneReading, limits: Mapping[str, float]) -> Iterable[Finding]:
    if len(lane.iterations) < 2:
        return
    iterations, repeated_paths = _list_iterations(lane)
    if not repeated_paths:
        return
    useless_fixes: dict[str, deque[tuple[_AppliedFix, int, bool]]] = {}
    """By file: unsuccessful edits, with the check's event and whether it was a fix."""
    seen_lines: set[tuple[str, str]] = set()
    """Every line of them with its file, as a quick filter."""
    removed_lines, written_files = _RemovedLines(), dict[str, frozenset[str]]()
    for iteration, has_helped, tried in iterations:
        fixes = []
        for fix in _list_fixes(iteration, removed_lines, written_files, repeated_paths):
            if sum(map(len, fix.lines)) < limits["letters"]:
                continue
            is_known = any((fix.path, line) in seen_lines for line in fix.lines)
            for earlier, check, was_tried in useless_fixes[fix.path] if is_known else ():
                is_alike = _line_likeness(fix.lines, earlier.lines) >= limits["likeness"]
                if (
                    is_alike
                    and _is_indented_alike(fix, earlier)
                    and not (fix.in_shell and _looks_at_base(lane, earlier, fix))
                ) and (
                    # The same lines elsewhere in the file are another fix.
                    (was_tried and fix.place and fix.place == earlier.place)
                    or removed_lines.is_taken_back(earlier, tried=was_tried)
                ):
                    yield _build_finding(fix, earlier, check, lane)
                    break
            fixes.append(fix)
        if not has_helped:
            for fix in fixes:
                remembered = useless_fixes.setdefault(fix.path, deque(maxlen=MAX_REMEMBERED_FIXES))
                remembered.append((fix, iteration.checks[-1].number, tried))
                seen_lines.update((fix.path, line) for line in fix.lines)


def _list_iterations(lane: LaneReading) -> tuple[list[tuple[Iteration, bool, bool]], set[str]]:
    """Return iterations with whether they helped and whether something failed before, and files
    edited in vain again."""
    iterations = []
    vain_files: set[str] = set()
    repeated_files: set[str] = set()
    before = _initial_failures(lane)
    printed = {step.check.target: step for step in lane.checks if step.check and not step.state}
    for iteration in lane.iterations:
        is_silent = _prints_as_before(iteration, printed)
        has_helped = not is_silent and not _is_useless(iteration, before)
        edited = [
            path
            for step in iteration.changes
            if _shows_text(step)
            for path, _ in list_file_edits(step)
        ]
        repeated_files.update(vain_files.intersection(edited))
        if not has_helped:
            vain_files.update(edited)
        iterations.append((iteration, has_helped, before is not None or is_silent))
        before = iteration.failures
    return iterations, repeated_files


def _looks_at_base(lane: LaneReading, earlier: _AppliedFix, fix: _AppliedFix) -> bool:
    """Whether it was only taken back and made again, as `sed` does to see the base."""
    changes = list_code_changes(lane)
    begin = bisect_right(changes, earlier.number, key=EVENT_NUMBER)
    return bisect_left(changes, fix.number, key=EVENT_NUMBER) <= begin + 1


def _list_fixes(
    iteration: Iteration,
    removals: _RemovedLines,
    written_files: dict[str, frozenset[str]],
    repeated_paths: Set[str],
) -> Iterator[_AppliedFix]:
    """Yield the iteration's edits of these files, and note in order what each change removes."""
    for step in iteration.changes:
        if not _shows_text(step):
            removals.note_command(step)
            continue
        for path, edit in list_file_edits(step):
            if path in repeated_paths and not is_scratch_path(path):
                fix = _build_fix(path, edit, removals, written_files)
                if isinstance(step.event, Edit):
                    yield fix
                elif not any(map(is_debug_line, fix.lines)):
                    yield replace(fix, in_shell=True)


def _shows_text(step: TraceStep) -> bool:
    """Whether the text of its edits is known, also of those that stand on a command line."""
    return isinstance(step.event, Edit) or (
        bool(step.edits)
        and not (step.effect and step.effect.runs)
        and all(edit.after is not None or edit.patch is not None for edit in step.edits)
    )


def _build_fix(
    path: str, edit: Edit, removals: _RemovedLines, written_files: dict[str, frozenset[str]]
) -> _AppliedFix:
    edit_lines = diff_edit(edit)
    added, removed_lines = (
        (_tidy_lines(edit_lines.added), _tidy_lines(edit_lines.removed))
        if edit_lines
        else (frozenset(), frozenset())
    )
    if edit.before is None and edit.patch is None:
        # A rewritten file adds only the lines that its previous version lacked.
        last, written_files[path] = written_files.get(path, frozenset()), added
        added, removed_lines = added - last, last - added
    # Lines whose indentation alone changed are neither.
    added, removed_lines = added - removed_lines, removed_lines - added
    removals.note_lines(path, removed_lines, edit.number)
    return _AppliedFix(
        path=path,
        lines=added,
        place=edit.before or edit.patch,
        layout=_line_indents(edit) if path.endswith(_INDENTED_ENDINGS) else {},
        number=edit.number,
    )


def _line_indents(edit: Edit) -> Mapping[str, int]:
    """Return the indentation of each new line; empty for a rewritten file."""
    lines = edit.after.splitlines() if edit.before is not None and edit.after else []
    return {" ".join(line.split()): len(line) - len(line.lstrip()) for line in lines}


def _is_indented_alike(first: _AppliedFix, second: _AppliedFix) -> bool:
    common = first.lines & second.lines & first.layout.keys() & second.layout.keys()
    return all(first.layout[line] == second.layout[line] for line in common)


def _tidy_lines(lines: Iterable[str]) -> frozenset[str]:
    # Nothing to do if words are separated by single spaces only.
    tidy_lines = [
        line if line.isprintable() and "  " not in line else " ".join(line.split())
        for line in lines
    ]
    return frozenset(tidy_lines) - {""}


def _build_finding(
    fix: _AppliedFix, earlier: _AppliedFix, check: int, lane: LaneReading
) -> Finding:
    return make_finding(
        rule,
        f"{truncate_line(fix.path)} gets the same fix again that did not help before: "
        f"{truncate_line(min(fix.lines & earlier.lines))}",
        (fix.number, earlier.number, check),
        lane=lane.lane.id,
    )


def _line_likeness(first: frozenset[str], second: frozenset[str]) -> float:
    return len(first & second) / len(first | second)


def _initial_failures(lane: LaneReading) -> CheckFailures | None:
    """Return the failures of the last check before the first change."""
    first = lane.changes[0].number if lane.changes else 0
    checks = [step.check for step in lane.checks if step.number < first]
    return checks[-1].failures if checks and checks[-1] else None


def _is_useless(iteration: Iteration, before: CheckFailures | None) -> bool:
    """Whether it failed, and not less than before."""
    if iteration.passed is not False or iteration.failures is None:
        return False
    return (
        before is None
        or iteration.failures.keys >= before.keys
        or same_failures(iteration.failures, before)
    )


def _prints_as_before(iteration: Iteration, printed: dict[str, TraceStep]) -> bool:
    """Whether a script that shows the fault without failing prints the same as before."""
    is_same = False
    for step in iteration.checks:
        check = step.check
        if check is None or check.tool != "script" or check.failures is not None:
            continue
        last = printed.get(check.target)
        is_same |= last is not None and prints_same(last, step) and not states_success(step)
        printed[check.target] = step
    return is_same
