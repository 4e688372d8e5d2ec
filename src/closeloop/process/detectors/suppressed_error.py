"""An error was silenced, swallowed or masked instead of fixed.

## What it looks for

Lines that the agent added, by edits or in the shell, to permanent files (moved lines, existing
lines and lines that it removed again do not count):

- a comment or attribute that silences a tool (`noqa`, `type: ignore`, `eslint-disable`,
  `@ts-ignore`, `#[allow(…)]`, `nolint`, …), after a check had complained about this file, and
  without a reason; without a complaint, only those that hide everything;
- a handler that swallows every error: `except: pass`, `except Exception: continue`, `catch (e) {}`.
  A handler that logs or has a comment, an optional import, and closing or removing something that
  may no longer exist do not count;
- a check in a workflow, or in an existing script, that can no longer fail: `pytest || true`, `set
  +e`.

And commands: a check run with `|| true` whose result is unknown and then claimed to pass, and a
commit or push with `--no-verify` right after a hook had rejected one.

Nothing is reported if the user asked to ignore, allow or disable something, in scratch files, and,
for swallowed errors, in tests. `grep … || true` hides nothing and does not count.

## Why it matters

The complaint was information. A silenced error returns as a fault that is harder to find.

## Bad

```text
#3  mypy store.py    store.py:12: error: Incompatible return value type
#5  edit store.py    + return None  # type: ignore[return-value]
#6  mypy store.py    Success
```

## Good

```text
#3  mypy store.py    store.py:12: error: Incompatible return value type
#5  edit store.py    - def load(key) -> str:
                     + def load(key) -> str | None:
#6  mypy store.py    Success
```

## When it can be measured

If at least one edit contains its text, or there is no edit.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.suppressed-error]
enabled = false

[[silence]]
rule = "suppressed-error"
path = "scripts/**"
reason = "best effort by design"
```

## How sure it is

It is advisory. The trace alone does not show whether a suppression is justified: the confidence is
0.9 if a check had complained before, else 0.6.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from operator import attrgetter

from ahocorasick_rs import AhoCorasick

from closeloop.process.agent_claims import list_closings, parse_claim
from closeloop.process.edit_contents import (
    MAX_EDIT_CHARS,
    EditLines,
    diff_edit,
    find_temporary_files,
    is_scratch_path,
    is_source_path,
    is_test_source,
    list_file_edits,
    list_submitted_edits,
    list_trace_changes,
)
from closeloop.process.rule_helpers import collect_user_requests, contains_request, truncate_line
from closeloop.process.text_facts import build_automaton
from closeloop.process.verification import FailingChecks
from closeloop.records.change import TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Command, Edit
from closeloop.text.code_patterns import (
    CHECK_COMMAND,
    MASKED_EXIT,
    SUPPRESSION_WISH,
    find_new_mark,
    find_swallowed_errors,
)

rule = Rule(
    name="suppressed-error",
    version=2,
    about="An error was silenced, swallowed or masked instead of fixed.",
    severity="warning",
)

SUPPRESSION_HINTS = (
    "except:", "except Exc", "except Base", "except (", "catch", "|| ", "set +e", "noqa", "ignore",
    "disable", "@ts-", "[allow(", "nolint", "@Supp",
)  # fmt: skip
"""Without a new one of these there is nothing to find."""
MAX_LATER_CHANGES = 50
"""Later changes of a file that may remove a line again."""
_STATIC_CHECK = re.compile(
    r"lint|mypy|pyright|pyre|ruff|flake8|pycodestyle|tsc|type|check|clippy|vet|build|compile|black"
)
_SCRIPT_ENDINGS = (".yml", ".yaml", ".sh", ".toml", ".cfg", ".json", ".mk")


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find lines that the agent added, and commands that hide the output of a check or a hook."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    changes = list_trace_changes(reading)
    edits = [step for step in changes if isinstance(step.event, Edit)]
    if edits and not any(_new_text(step.event) for step in edits):
        return Unmeasured(rule=rule.name, reason="no edit in the trace contains its text")
    findings = [*_edit_findings(reading, changes), *_command_findings(reading)]
    if findings and contains_request(collect_user_requests(reading), SUPPRESSION_WISH):
        return []
    return sorted(findings, key=lambda finding: finding.events)


def _new_text(event: object) -> str:
    return (event.after or event.patch or "")[:MAX_EDIT_CHARS] if isinstance(event, Edit) else ""


def _edit_findings(reading: TraceReading, changes: Sequence[TraceStep]) -> Iterator[Finding]:
    complaints: FailingChecks | None = None
    by_path: dict[str, list[TraceStep]] = {}
    for step in changes:
        for path in step.written:
            by_path.setdefault(path, []).append(step)
    for step, path, edit in _list_lasting_edits(reading, changes):
        text = _new_text(edit) if _is_relevant_path(path) else ""
        if text and _has_new_hint(edit, text):
            complaints = complaints or FailingChecks(reading)
            complaint = complaints.last_check_naming(step.number, (path.rpartition("/")[2],))
            for line, message in _describe_suppressions(path, edit, complaint):
                if not _is_taken_back(line, path, by_path.get(path, ()), step):
                    yield _build_finding(step, message, complaint)


def _list_lasting_edits(
    reading: TraceReading, changes: Sequence[TraceStep]
) -> Iterator[tuple[TraceStep, str, Edit]]:
    """Yield the submitted diff with the step that last changed each file; without one, all
    edits."""
    submitted = list_submitted_edits(reading)
    if submitted is not None:
        step_by_path = {path: step for step in changes for path in step.written}
        for edit in submitted:
            if edit.path in step_by_path:
                yield step_by_path[edit.path], edit.path, edit
        return
    temporary_files: frozenset[str] | None = None
    for step in changes:
        for path, edit in list_file_edits(step):
            if edit.action != "delete":
                temporary_files = (
                    find_temporary_files(changes) if temporary_files is None else temporary_files
                )
                if path not in temporary_files:
                    yield step, path, edit


@cache
def _hint_automaton() -> AhoCorasick:
    return build_automaton(SUPPRESSION_HINTS)


def _has_new_hint(edit: Edit, text: str) -> bool:
    hints = _hint_automaton().find_matches_as_strings(text, overlapping=True)
    if not hints or not edit.before:
        return bool(hints)
    return any(count > edit.before.count(hint) for hint, count in Counter(hints).items())


@lru_cache(maxsize=4096)
def _is_relevant_path(path: str) -> bool:
    is_code = is_source_path(path) or path.endswith(_SCRIPT_ENDINGS) or "Makefile" in path
    return is_code and not is_scratch_path(path)


def _is_taken_back(line: str, path: str, changes: Sequence[TraceStep], step: TraceStep) -> bool:
    """Whether a later edit of the file removes the line."""
    start = bisect_right(changes, step.number, key=attrgetter("event.number"))
    return any(
        edited_path == path and (lines := diff_edit(edit)) is not None and line in lines.removed
        for later in changes[start : start + MAX_LATER_CHANGES]
        for edited_path, edit in list_file_edits(later)
    )


def _describe_suppressions(
    path: str, edit: Edit, complaint: TraceStep | None
) -> Iterator[tuple[str, str]]:
    """Yield each line that silences, swallows or masks, with its description."""
    lines = diff_edit(edit)
    if lines is None or (edit.patch and "@@" not in edit.patch):
        return  # the previous text is unknown
    removed_text = "\n".join(lines.removed)
    for line in lines.added:
        mark = find_new_mark(line, lines.removed, has_complaint=_is_about_marks(complaint))
        if mark is not None and mark not in removed_text:
            yield line, f"{truncate_line(line)} was added to {path}"
            break
    is_lasting = edit.action != "create" or ".github/" in path or ".gitlab" in path
    for line in lines.added if is_lasting else ():
        if line == "set +e" or (
            "||" in line and MASKED_EXIT.search(line) and CHECK_COMMAND.search(line)
        ):
            yield line, f"{truncate_line(line)} in {path} can no longer fail"
            break
    if not is_test_source(path) and (swallow := _find_new_swallow(edit, lines)) is not None:
        quote = truncate_line(" ".join(swallow.split()))
        yield swallow.partition("\n")[0], f"Every error is swallowed in {path}: {quote}"


def _is_about_marks(complaint: TraceStep | None) -> bool:
    """Whether the complaint is from a tool that a mark can silence: not a test or a crash."""
    check = complaint.check if complaint else None
    return check is not None and bool(_STATIC_CHECK.search(f"{check.tool} {check.target}"))


def _find_new_swallow(edit: Edit, lines: EditLines) -> str | None:
    """Return the first handler that the edit makes do nothing, including its unchanged parts."""
    after = edit.after if edit.after is not None else _text_from_patch(edit.patch or "")
    before = edit.before or ""
    added = set(lines.added)
    counts = Counter(match[0] for match in find_swallowed_errors(_strip_lines(before)))
    for match in find_swallowed_errors(_strip_lines(after)):
        counts[match[0]] -= 1
        # Code before a handler on its line belongs to the added line.
        start = match.string.rfind("\n", 0, match.start()) + 1
        line = match.string[start:].partition("\n")[0]
        if counts[match[0]] < 0 and line in added:
            return match.string[start : match.end()]
    return None


def _strip_lines(text: str) -> str:
    return "\n".join(line.strip() for line in text[:MAX_EDIT_CHARS].splitlines())


def _text_from_patch(patch: str) -> str:
    """Return the new side of a patch's hunks."""
    lines = patch[:MAX_EDIT_CHARS].splitlines()
    return "\n".join(line[1:] for line in lines if line[:1] in ("+", " ") and line[:3] != "+++")


def _command_findings(reading: TraceReading) -> Iterator[Finding]:
    for lane in reading.lanes.values():
        masked_check = None
        for step in lane.checks:
            event = step.event
            command = event.command if isinstance(event, Command) and "||" in event.command else ""
            is_unknown = step.check is None or step.check.passed is not True
            masked_check = step if is_unknown and command and MASKED_EXIT.search(command) else None
        if masked_check is not None:
            closings = list_closings(lane)
            claim = parse_claim(closings[-1].message) if closings else None
            if claim is not None and claim.passing:
                yield _build_finding(
                    masked_check, "The check that is claimed to pass cannot fail", None
                )
        yield from _hook_bypass_findings(lane.commands)


def _hook_bypass_findings(steps: Sequence[TraceStep]) -> Iterator[Finding]:
    """Yield commits that bypass a hook that stopped the one before."""
    stopped: TraceStep | None = None
    for step in steps:
        if step.effect is None or "git" not in step.effect.programs:
            continue
        command = step.event.command if isinstance(step.event, Command) else ""
        if "commit" not in command and "push" not in command:
            continue
        if stopped is not None and "--no-verify" in command:
            yield _build_finding(
                step, f"{truncate_line(command)} bypassed the hook that had failed", stopped
            )
        stopped = step if step.failed else None


def _build_finding(step: TraceStep, message: str, complaint: TraceStep | None) -> Finding:
    return make_finding(
        rule,
        f"{message}.",
        [step.number, *([complaint.number] if complaint else [])],
        lane=step.event.lane,
        confidence=0.9 if complaint else 0.6,
    )
