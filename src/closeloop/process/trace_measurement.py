"""Measure one trace: let every rule look at it, and sum up what they and the measures say."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from closeloop.process.attempt_endings import classify_ending
from closeloop.process.failure_modes import tag_failure_modes
from closeloop.process.measures.measure_summary import measure_lanes, process_score
from closeloop.process.rulebook import Rulebook
from closeloop.records.errors import PluginFailed
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.globs import matches_globs
from closeloop.records.measurement import Measurement
from closeloop.records.settings import SilenceSettings
from closeloop.records.trace_steps import TraceReading


def measure_reading(reading: TraceReading, book: Rulebook) -> Measurement:
    """All that the rules say of a trace: the same trace and rules, the same measurement."""
    findings: list[Finding] = []
    unmeasured = [Unmeasured(rule="everything", reason=gap) for gap in reading.gaps]
    for chosen in book.chosen:
        try:
            result = chosen.detector.detect(reading, chosen.limits)
        except Exception as error:
            raise _blame_rule(chosen.detector.rule.name, error) from error
        if isinstance(result, Unmeasured):
            unmeasured.append(result)
        else:
            findings += result
    if book.silences and findings:
        findings = [_apply_silences(finding, reading, book.silences) for finding in findings]
    findings.sort(key=lambda finding: (min(finding.events, default=0), finding.rule))
    whole, lanes = measure_lanes(reading, findings, unmeasured)
    return Measurement(
        rules=book.identity,
        findings=tuple(findings),
        unmeasured=tuple(unmeasured),
        whole=whole,
        lanes=lanes,
        score=process_score(reading, whole),
        modes=tag_failure_modes(reading, findings),
        ending=classify_ending(reading, findings),
    )


def _blame_rule(rule: str, error: Exception) -> PluginFailed:
    return PluginFailed(
        f"The rule {rule!r} raised {type(error).__name__}: {error}. Switch it off with "
        f"`enabled = false` in [rules.{rule}] and tell its author."
    )


def _apply_silences(
    finding: Finding, reading: TraceReading, silences: Iterable[SilenceSettings]
) -> Finding:
    for silence in silences:
        if silence.rule == finding.rule and _silence_applies(silence, finding, reading):
            return msgspec.structs.replace(finding, silenced=silence.reason)
    return finding


def _silence_applies(silence: SilenceSettings, finding: Finding, reading: TraceReading) -> bool:
    task = reading.task.id if reading.task else ""
    if silence.task is not None and not matches_globs(task, [silence.task]):
        return False
    if silence.path is None:
        return True
    cited = set(finding.events)
    touched = (
        path
        for lane in reading.lanes.values()
        for step in lane.steps
        if step.number in cited
        for path in (*step.written, *step.read)
    )
    return any(matches_globs(path, [silence.path]) for path in touched)
