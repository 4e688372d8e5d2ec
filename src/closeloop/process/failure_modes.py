"""Which of the five failure modes an attempt shows, by its findings, its grade and its reading."""

from __future__ import annotations

from collections.abc import Iterable

from closeloop.process.edit_contents import is_source_path
from closeloop.records.finding import Finding
from closeloop.records.measurement import ModeTag
from closeloop.records.patch_parsing import parse_patch
from closeloop.records.trace_steps import TraceReading


def tag_failure_modes(reading: TraceReading, findings: Iterable[Finding]) -> tuple[ModeTag, ...]:
    """One tag for each mode, with the first reason for it."""
    tags: dict[str, ModeTag] = {}
    for tag in (
        *_tags_from_grade(reading),
        *_tags_from_unopened_files(reading),
        *_tags_from_findings(findings),
    ):
        tags.setdefault(tag.mode, tag)
    return tuple(tags.values())


def _tags_from_findings(findings: Iterable[Finding]) -> Iterable[ModeTag]:
    for finding in findings:
        if finding.mode is not None and finding.silenced is None:
            yield ModeTag(mode=finding.mode, reason=finding.message, events=finding.events)


def _tags_from_grade(reading: TraceReading) -> Iterable[ModeTag]:
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


def _tags_from_unopened_files(reading: TraceReading) -> Iterable[ModeTag]:
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
    for file in parse_patch(task.reference).files:
        needed = file.old_path or file.path
        opened = any(path == needed or path.endswith("/" + needed) for path in seen)
        if file.status != "added" and is_source_path(needed) and not opened:
            reason = f"{needed} had to be changed and was never opened."
            yield ModeTag(mode="context blindness", reason=reason, source="grade")
            return
