"""suppressed-error: what complained was silenced, and not repaired."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache

from ahocorasick_rs import AhoCorasick

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.steps import Reading, Step
from closeloop.model.suppression import BLANKET, CHECKS, MARKS, MASKS, SWALLOWS
from closeloop.model.trace import Command, Edit
from closeloop.process.asked import asked, asked_for
from closeloop.process.claims import claim_of, closings
from closeloop.process.complaints import Complaints
from closeloop.process.edits import (
    MOST_TEXT,
    Lines,
    is_scratch,
    is_source,
    is_test,
    lines_of,
    own_changes,
)
from closeloop.process.phrases import automaton, first
from closeloop.process.telling import short

rule = Rule(
    name="suppressed-error",
    version=1,
    about="An error was silenced, swallowed or masked where it should have been repaired.",
    severity="warning",
)

HINTS = (
    "except:", "except Exc", "except Base", "except (", "catch", "|| ", "set +e", "noqa", "ignore",
    "disable", "@ts-", "[allow(", "nolint", "@Supp",
)  # fmt: skip
"""Where none of these is new, there is nothing to find."""
_SCRIPTS = (".yml", ".yaml", ".sh", ".toml", ".cfg", ".json", ".mk")
_WISH = re.compile(
    r"\b(?:ignor|suppress|silenc|swallow|disabl|noqa|best[- ]effort|tolera|no-verify|allow)\w*"
)


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Lines that the agent added, and commands that hide what a check or a hook said."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    changes = own_changes(reading)
    edits = [step for step in changes if isinstance(step.event, Edit)]
    if edits and not any(_text(step) for step in edits):
        return Unmeasured(rule=rule.name, reason="no edit in the trace holds its text")
    findings = [*_in_edits(reading, edits), *_in_commands(reading)]
    if findings and asked_for(asked(reading), _WISH):
        return []
    return sorted(findings, key=lambda finding: finding.events)


def _text(step: Step) -> str:
    event = step.event
    return (event.after or event.patch or "")[:MOST_TEXT] if isinstance(event, Edit) else ""


def _in_edits(reading: Reading, edits: Sequence[Step]) -> Iterator[Finding]:
    complaints: Complaints | None = None
    for step in edits:
        path = step.written[0]
        text = _text(step) if _matters(path) else ""
        if not text or not _has_new_hint(step, text):
            continue
        lines = lines_of(step.event) if isinstance(step.event, Edit) else None
        if lines is not None:
            complaints = complaints or Complaints(reading)
            complaint = complaints.before(step.number, (path.rpartition("/")[2],))
            for message in _told(path, lines, complained=complaint is not None):
                yield _finding(step, message, complaint)


@cache
def _hints() -> AhoCorasick:
    return automaton(HINTS)


def _has_new_hint(step: Step, text: str) -> bool:
    there = _hints().find_matches_as_strings(text, overlapping=True)
    before = step.event.before if isinstance(step.event, Edit) else None
    if not there or not before:
        return bool(there)
    return any(count > before.count(hint) for hint, count in Counter(there).items())


@lru_cache(maxsize=4096)
def _matters(path: str) -> bool:
    named = is_source(path) or path.endswith(_SCRIPTS) or "Makefile" in path
    return named and not is_scratch(path)


def _told(path: str, lines: Lines, *, complained: bool) -> Iterator[str]:
    added, removed = "\n".join(lines.added), "\n".join(lines.removed)
    fresh = [mark for mark in MARKS if mark in added and mark not in removed]
    for line in lines.added if fresh else ():
        if any(mark in line for mark in fresh) and (complained or BLANKET.search(line)):
            yield f"{short(line)} was added to {path}"
            break
    masks = "||" in added or "set +e" in added
    for line in lines.added if masks else ():
        if line == "set +e" or ("||" in line and MASKS.search(line) and CHECKS.search(line)):
            yield f"{short(line)} in {path} can no longer fail"
            break
    swallow = _swallow(added)
    if swallow and not is_test(path) and not _swallow(removed):
        yield f"Every error is swallowed in {path}: {short(' '.join(swallow[0].split()))}"


def _swallow(text: str) -> re.Match[str] | None:
    """The first handler that does nothing."""
    return first(SWALLOWS, _handlers(), text)


@cache
def _handlers() -> AhoCorasick:
    return automaton((".catch", "catch", "except"))


def _in_commands(reading: Reading) -> Iterator[Finding]:
    for lane in reading.lanes.values():
        masked = None
        for step in lane.checks:
            event = step.event
            command = event.command if isinstance(event, Command) and "||" in event.command else ""
            unknown = step.check is None or step.check.passed is not True
            masked = step if unknown and command and MASKS.search(command) else None
        if masked is not None:
            ends = closings(lane)
            claim = claim_of(ends[-1].message) if ends else None
            if claim is not None and claim.passing:
                yield _finding(masked, "The check that is claimed to pass cannot fail", None)
        yield from _unhooked(lane.commands)


def _unhooked(steps: Sequence[Step]) -> Iterator[Finding]:
    """A hook stopped a commit, and the next one went past it."""
    stopped: Step | None = None
    for step in steps:
        if step.doing is None or "git" not in step.doing.programs:
            continue
        command = step.event.command if isinstance(step.event, Command) else ""
        if "commit" not in command and "push" not in command:
            continue
        if stopped is not None and "--no-verify" in command:
            yield _finding(step, f"{short(command)} went past the hook that had failed", stopped)
        stopped = step if step.failed else None


def _finding(step: Step, message: str, complaint: Step | None) -> Finding:
    return found(
        rule,
        f"{message}.",
        [step.number, *([complaint.number] if complaint else [])],
        lane=step.event.lane,
        confidence=0.9 if complaint else 0.6,
    )
