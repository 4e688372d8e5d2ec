"""A file outside the task's scope is changed, and the user is not informed.

## What it looks for

Every file that edits and commands changed is compared with the task's `scope`. If the attempt's
final change is known, only files in it count, including files that no event names. Otherwise,
reverted changes (`git checkout FILE`, removal of the agent's own new file) and scratch files do not
count.

Nothing is reported if the agent asked, or informed the user explicitly in the same sentence: `I
also had to change pyproject.toml`. Listing the file among others is not explicit.

Also reported is a script that the agent created at the top of the project to try something, and
ran, if the submitted diff contains it: nobody asked for it, no other file of the diff names it, and
its name states its purpose (`reproduce_…`, `check_…`, `debug_…`).

If the task declares no scope, the first request may: `Only change greet.py`. Files elsewhere on the
machine are not judged. If five or more files were changed and none of them is in the scope, the
request was about something else.

## Why it matters

Reviews miss unrequested changes, and such changes break things far from the task.

## Bad

```text
scope: src/**, tests/**
#3  edit  src/retry.py
#4  edit  .github/workflows/ci.yml   timeout-minutes: 10 → 60
#6  agent "The retry limit is configurable now."
```

## Good

```text
scope: src/**, tests/**
#3  edit  src/retry.py
#6  agent "The retry limit is configurable now. CI stops after ten minutes; that is too short for
     the new test, and out of my scope. Shall I change it?"
```

## When it can be measured

If the task has a `scope`, or the first request limits the files to change. A left-over script
is reported wherever a diff is submitted.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.out-of-scope-edit]
enabled = false

[[silence]]
rule = "out-of-scope-edit"
path = "poetry.lock"
reason = "follows from pyproject.toml"
```

## How sure it is

It may gate for a declared scope (severity error, confidence 1). A scope from the request is
advisory (severity info, confidence 0.7), because people often say `only` and mean less.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from closeloop.process.edit_contents import (
    find_created_files,
    find_standing_changes,
    is_scratch_path,
    list_submitted_edits,
)
from closeloop.process.rule_helpers import join_names, truncate_line
from closeloop.process.text_facts import is_same_path
from closeloop.process.user_constraints import globs_in_any_folder, list_constraints
from closeloop.records.change import TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.record import Record
from closeloop.text.wording import matches_globs

rule = Rule(
    name="out-of-scope-edit",
    version=4,
    about="A file outside the task's scope is changed, and the user is not informed.",
    severity="error",
    mode="scope creep",
    gates=True,
)
_MAX_CITED = 5
_MIN_MISREAD_FILES = 5
_MAX_MESSAGES = 500
_MAX_MESSAGE_CHARS = 20_000
_FLAGGING_WORD = re.compile(
    r"\b(?:out(?:side)?(?: of)?|beyond|scope|also|additional\w*|besides|had to|needed to|necessary"
    r"|required|note|unrelated|although|ask\w*|permission|may i|should i|shall i|okay|ok)\b",
    re.IGNORECASE,
)
_TRYING_SCRIPT = re.compile(
    r"(?:repro\w*|check|verify|debug|demo|try|inspect|apply|update|modify|patch|fix|parse|tmp|temp"
    r"|test)(?:[_-]\w+)?\.(?:py|js|ts|rb|sh|pl|php)$"
)
"""Names of scripts made to examine something or to edit by."""
_SENTENCE_BREAK = re.compile(r"(?<=[.!?])\s+|\n+")


class EditScope(Record):
    """Where changes are allowed."""

    globs: tuple[str, ...]
    declared: bool
    """Whether the task declares it; otherwise it comes from the request's words."""
    number: int = 0
    """Number of the event that states it, if any."""
    until: int | None = None


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Report one finding per file."""
    scope = find_edit_scope(reading)
    leftovers = list(_find_leftovers(reading))
    if scope is None and leftovers:
        return leftovers
    if scope is None:
        reason = "the task declares no scope, and the request does not limit the files to change"
        return Unmeasured(rule=rule.name, reason=reason)
    changed = {
        path: steps
        for path, steps in find_standing_changes(reading).changed.items()
        if not is_scratch_path(path)
    }
    roots = _project_roots(changed, scope.globs)
    outside: dict[str, list[TraceStep]] = {}
    for path, steps in changed.items():
        period_steps = [step for step in steps if _is_within_period(step, scope)]
        if period_steps and _is_outside_scope(path, scope, roots):
            outside[path] = period_steps
    within_scope = any(matches_globs(path.lstrip("/"), scope.globs) for path in changed)
    if not scope.declared and len(outside) >= _MIN_MISREAD_FILES and not within_scope:
        # If much work is done and none of it is in scope, the words meant something else.
        return leftovers
    if reading.change is not None and scope.declared:
        # Files that no event names (written by a generator, for example) appear in the change.
        paths_by_name: dict[str, list[str]] = {}
        for path in changed:
            paths_by_name.setdefault(path.rpartition("/")[2], []).append(path)
        for file in reading.change.files:
            same_name_paths = paths_by_name.get(file.path.rpartition("/")[2], ())
            is_recorded = any(is_same_path(file.path, path) for path in same_name_paths)
            if not is_recorded and not matches_globs(file.path, scope.globs):
                outside[file.path] = []
    flagged_text = _flagging_text(reading) if outside else ""
    findings = [
        _build_finding(path, steps, scope)
        for path, steps in outside.items()
        if path.rpartition("/")[2] not in flagged_text
    ]
    reported_numbers = {number for finding in findings for number in finding.events}
    findings += [leftover for leftover in leftovers if reported_numbers.isdisjoint(leftover.events)]
    return sorted(findings, key=lambda finding: min(finding.events, default=0))


def _find_leftovers(reading: TraceReading) -> Iterator[Finding]:
    """Find trial scripts at the top of the project that are part of the submitted change."""
    root = next(iter(reading.lanes.values()), None)
    created_files = find_created_files(root.changes) if root is not None and root.changes else {}
    trial_scripts = {
        path for path in created_files if "/" not in path and _TRYING_SCRIPT.match(path)
    }
    if root is None or not trial_scripts:
        return
    runs = {name for step in root.commands if step.effect for name in step.effect.runs}
    trial_scripts &= {name.removeprefix("./") for name in runs}
    submitted = (list_submitted_edits(reading) or ()) if trial_scripts else ()
    leftover_edits = [
        edit for edit in submitted if edit.action == "create" and edit.path in trial_scripts
    ]
    texts = [edit.after or edit.patch or "" for edit in submitted if edit not in leftover_edits]
    texts.append(root.request or "")
    leftover_edits = [
        edit
        for edit in leftover_edits
        if not any(edit.path.rpartition(".")[0] in text for text in texts)
    ]
    if leftover_edits:
        names = join_names([truncate_line(edit.path, 120) for edit in leftover_edits])
        scripts = "A trial script was" if len(leftover_edits) == 1 else "Trial scripts were"
        finding = make_finding(
            rule,
            f"{scripts} left in the change: {names}.",
            [leftover_edits[0].number],
            lane=root.lane.id,
            confidence=0.9,
        )
        yield msgspec.structs.replace(finding, severity="info")


def find_edit_scope(reading: TraceReading) -> EditScope | None:
    """Return the task's scope, or the request's own restriction."""
    if reading.task is not None and reading.task.scope:
        return EditScope(globs=reading.task.scope, declared=True)
    root = next(iter(reading.lanes.values()), None)
    if root is None:
        return None
    first = root.users[0].number if root.users else None
    only_constraints = [
        constraint
        for constraint in list_constraints(root)
        if constraint.kind == "only" and constraint.number == first
    ]
    if not only_constraints:
        return None
    globs = globs_in_any_folder(
        [glob for only_constraint in only_constraints for glob in only_constraint.objects]
    )
    return EditScope(
        globs=globs,
        declared=False,
        number=only_constraints[0].number,
        until=only_constraints[0].until,
    )


def _project_roots(paths: Mapping[str, Sequence[TraceStep]], globs: Sequence[str]) -> set[str]:
    """Return the project's roots, from absolute paths whose ends are in scope."""
    roots = set()
    for path in paths:
        if path.startswith("/"):
            parts = path.strip("/").split("/")
            for depth in range(1, len(parts)):
                if matches_globs("/".join(parts[depth:]), globs):
                    roots.add("/" + "/".join(parts[:depth]) + "/")
                    break
    return roots


def _is_outside_scope(path: str, scope: EditScope, roots: set[str]) -> bool:
    if not path.startswith("/") and path[1:3] != ":/":
        return not path.startswith("../") and not matches_globs(path, scope.globs)
    # It is unknown whether a file elsewhere on the machine belongs to the project.
    return any(
        path.startswith(root) and not matches_globs(path[len(root) :], scope.globs)
        for root in roots
    ) and not any(
        path.startswith(root) and matches_globs(path[len(root) :], scope.globs) for root in roots
    )


def _is_within_period(step: TraceStep, scope: EditScope) -> bool:
    return scope.number <= step.number < (scope.until or float("inf"))


def _flagging_text(reading: TraceReading) -> str:
    """Join all that the agent asked, or reported as going beyond the request."""
    agent_messages = [
        message
        for lane in reading.lanes.values()
        for message in lane.messages
        if message.role == "agent"
    ]
    return "\n".join(
        sentence
        for message in agent_messages[-_MAX_MESSAGES:]
        for sentence in _SENTENCE_BREAK.split(message.text[:_MAX_MESSAGE_CHARS])
        if message.intent == "question" or _FLAGGING_WORD.search(sentence)
    )


def _build_finding(path: str, steps: Sequence[TraceStep], scope: EditScope) -> Finding:
    allowed = join_names(dict.fromkeys(glob.removeprefix("**/") for glob in scope.globs))
    scope_phrase = "The task's scope is" if scope.declared else "The request says to change only"
    finding = make_finding(
        rule,
        f"{truncate_line(path, 120)} was changed. {scope_phrase} {allowed}.",
        [
            *([step.number for step in steps[:_MAX_CITED]]),
            *([scope.number] if scope.number else []),
        ],
        lane=steps[0].event.lane if steps else None,
        confidence=1.0 if scope.declared else 0.7,
    )
    if scope.declared:
        return finding
    # Only a declared scope may fail a build.
    return msgspec.structs.replace(finding, severity="info")
