"""Which of the five failure modes an attempt shows, by its findings, its grade and its reading."""

from __future__ import annotations

from collections.abc import Iterable

from closeloop.model.finding import Finding
from closeloop.model.measurement import ModeTag
from closeloop.model.patches import parse
from closeloop.model.steps import Reading
from closeloop.process.edits import is_source


def modes_of(reading: Reading, findings: Iterable[Finding]) -> tuple[ModeTag, ...]:
    """One tag for each mode, with the first reason for it."""
    tags: dict[str, ModeTag] = {}
    for tag in (*_graded(reading), *_unopened(reading), *_found(findings)):
        tags.setdefault(tag.mode, tag)
    return tuple(tags.values())


def _found(findings: Iterable[Finding]) -> Iterable[ModeTag]:
    for finding in findings:
        if finding.mode is not None and finding.silenced is None:
            yield ModeTag(mode=finding.mode, reason=finding.message, events=finding.events)


def _graded(reading: Reading) -> Iterable[ModeTag]:
    grade = reading.grade
    if grade is None:
        return
    if grade.out_of_scope:
        reason = f"{grade.out_of_scope[0]} lies outside the declared scope."
        yield ModeTag(mode="scope creep", reason=reason, source="grade")
    passes = grade.fail_to_pass is not None and grade.fail_to_pass[0] == grade.fail_to_pass[1]
    if grade.broken and passes:
        reason = f"The task's tests pass, and {grade.broken[0]} does no more."
        yield ModeTag(mode="silent regression", reason=reason, source="grade")


def _unopened(reading: Reading) -> Iterable[ModeTag]:
    """Program text that the known good change needed, and that the agent never saw."""
    task, grade = reading.task, reading.grade
    failed = grade is not None and grade.outcome.result == "fail"
    if task is None or task.reference is None or not failed or not reading.trace.events:
        return
    seen = {
        path
        for lane in reading.lanes.values()
        for step in lane.steps
        for path in (*step.read, *step.written)
    }
    for file in parse(task.reference).files:
        needed = file.old_path or file.path
        opened = any(path == needed or path.endswith("/" + needed) for path in seen)
        if file.status != "added" and is_source(needed) and not opened:
            reason = f"{needed} had to be changed and was never opened."
            yield ModeTag(mode="context blindness", reason=reason, source="grade")
            return
