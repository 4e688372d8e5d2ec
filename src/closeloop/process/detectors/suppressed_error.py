"""An error was silenced, swallowed or masked where it should have been repaired.

## What it looks for

Lines that the agent added (moved ones and those that stood there before do not count):

- a mark that silences a tool (`noqa`, `type: ignore`, `eslint-disable`, `@ts-ignore`,
  `#[allow(…)]`, `nolint`, …), after a check had complained of that file; without a complaint only
  marks that hide everything;
- every error swallowed: `except: pass`, `except Exception: continue`, `catch (e) {}`;
- a check in a script or a workflow that can no longer fail: `pytest || true`, `set +e`.

And commands: a check run with `|| true` whose result is unknown and then claimed to pass, and a
commit or push with `--no-verify` right after a hook had refused one.

It keeps quiet where the user asked to ignore, allow or disable something, in scratch files, and,
for swallowed errors, in tests. `grep … || true` hides nothing and is not counted.

## Why it matters

The complaint was information. Silenced, it comes back as a fault that is harder to find.

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

When at least one edit holds its text, or there is no edit at all.

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

It advises. Whether a suppression is justified cannot be told from the trace alone: the confidence
is 0.9 where a check had complained before and 0.6 where none had.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache

from ahocorasick_rs import AhoCorasick

from closeloop.process.agent_claims import list_closings, parse_claim
from closeloop.process.edit_contents import (
    MAX_EDIT_CHARS,
    EditLines,
    diff_edit,
    is_scratch_path,
    is_source_path,
    is_test_source,
    list_trace_changes,
)
from closeloop.process.measures.verification import FailingChecks
from closeloop.process.rule_helpers import collect_user_requests, contains_request, truncate_line
from closeloop.process.text_words import build_automaton, find_first_match
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    TraceReading,
    TraceStep,
)
from closeloop.records.trace import (
    Command,
    Edit,
)
from closeloop.text.code_patterns import (
    BLANKET_SUPPRESSION,
    CHECK_COMMAND,
    MASKED_EXIT,
    SUPPRESSION_MARKS,
    SWALLOWED_ERROR,
)

rule = Rule(
    name="suppressed-error",
    version=1,
    about="An error was silenced, swallowed or masked where it should have been repaired.",
    severity="warning",
)

SUPPRESSION_HINTS = (
    "except:", "except Exc", "except Base", "except (", "catch", "|| ", "set +e", "noqa", "ignore",
    "disable", "@ts-", "[allow(", "nolint", "@Supp",
)  # fmt: skip
"""Where none of these is new, there is nothing to find."""
_SCRIPT_ENDINGS = (".yml", ".yaml", ".sh", ".toml", ".cfg", ".json", ".mk")
_SUPPRESSION_WISH = re.compile(
    r"\b(?:ignor|suppress|silenc|swallow|disabl|noqa|best[- ]effort|tolera|no-verify|allow)\w*"
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Lines that the agent added, and commands that hide what a check or a hook said."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    changes = list_trace_changes(reading)
    edits = [step for step in changes if isinstance(step.event, Edit)]
    if edits and not any(_edit_text(step) for step in edits):
        return Unmeasured(rule=rule.name, reason="no edit in the trace holds its text")
    findings = [*_edit_findings(reading, edits), *_command_findings(reading)]
    if findings and contains_request(collect_user_requests(reading), _SUPPRESSION_WISH):
        return []
    return sorted(findings, key=lambda finding: finding.events)


def _edit_text(step: TraceStep) -> str:
    event = step.event
    return (event.after or event.patch or "")[:MAX_EDIT_CHARS] if isinstance(event, Edit) else ""


def _edit_findings(reading: TraceReading, edits: Sequence[TraceStep]) -> Iterator[Finding]:
    complaints: FailingChecks | None = None
    for step in edits:
        path = step.written[0]
        text = _edit_text(step) if _is_relevant_path(path) else ""
        if not text or not _has_new_hint(step, text):
            continue
        lines = diff_edit(step.event) if isinstance(step.event, Edit) else None
        if lines is not None:
            complaints = complaints or FailingChecks(reading)
            complaint = complaints.last_check_naming(step.number, (path.rpartition("/")[2],))
            for message in _describe_suppressions(path, lines, complained=complaint is not None):
                yield _build_finding(step, message, complaint)


@cache
def _hint_automaton() -> AhoCorasick:
    return build_automaton(SUPPRESSION_HINTS)


def _has_new_hint(step: TraceStep, text: str) -> bool:
    hints = _hint_automaton().find_matches_as_strings(text, overlapping=True)
    before = step.event.before if isinstance(step.event, Edit) else None
    if not hints or not before:
        return bool(hints)
    return any(count > before.count(hint) for hint, count in Counter(hints).items())


@lru_cache(maxsize=4096)
def _is_relevant_path(path: str) -> bool:
    named = is_source_path(path) or path.endswith(_SCRIPT_ENDINGS) or "Makefile" in path
    return named and not is_scratch_path(path)


def _describe_suppressions(path: str, lines: EditLines, *, complained: bool) -> Iterator[str]:
    added, removed = "\n".join(lines.added), "\n".join(lines.removed)
    new_marks = [mark for mark in SUPPRESSION_MARKS if mark in added and mark not in removed]
    for line in lines.added if new_marks else ():
        if any(mark in line for mark in new_marks) and (
            complained or BLANKET_SUPPRESSION.search(line)
        ):
            yield f"{truncate_line(line)} was added to {path}"
            break
    masks = "||" in added or "set +e" in added
    for line in lines.added if masks else ():
        if line == "set +e" or (
            "||" in line and MASKED_EXIT.search(line) and CHECK_COMMAND.search(line)
        ):
            yield f"{truncate_line(line)} in {path} can no longer fail"
            break
    swallow = _find_swallow(added)
    if swallow and not is_test_source(path) and not _find_swallow(removed):
        yield f"Every error is swallowed in {path}: {truncate_line(' '.join(swallow[0].split()))}"


def _find_swallow(text: str) -> re.Match[str] | None:
    """The first handler that does nothing."""
    return find_first_match(SWALLOWED_ERROR, _handler_automaton(), text)


@cache
def _handler_automaton() -> AhoCorasick:
    return build_automaton((".catch", "catch", "except"))


def _command_findings(reading: TraceReading) -> Iterator[Finding]:
    for lane in reading.lanes.values():
        masked = None
        for step in lane.checks:
            event = step.event
            command = event.command if isinstance(event, Command) and "||" in event.command else ""
            unknown = step.check is None or step.check.passed is not True
            masked = step if unknown and command and MASKED_EXIT.search(command) else None
        if masked is not None:
            ends = list_closings(lane)
            claim = parse_claim(ends[-1].message) if ends else None
            if claim is not None and claim.passing:
                yield _build_finding(masked, "The check that is claimed to pass cannot fail", None)
        yield from _hook_bypass_findings(lane.commands)


def _hook_bypass_findings(steps: Sequence[TraceStep]) -> Iterator[Finding]:
    """A hook stopped a commit, and the next one went past it."""
    stopped: TraceStep | None = None
    for step in steps:
        if step.doing is None or "git" not in step.doing.programs:
            continue
        command = step.event.command if isinstance(step.event, Command) else ""
        if "commit" not in command and "push" not in command:
            continue
        if stopped is not None and "--no-verify" in command:
            yield _build_finding(
                step, f"{truncate_line(command)} went past the hook that had failed", stopped
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
