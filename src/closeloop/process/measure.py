"""Measure one trace: let every rule look at it, and sum up what they and the measures say."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from closeloop.model.errors import PluginFailed
from closeloop.model.finding import Finding, Unmeasured
from closeloop.model.globs import matches
from closeloop.model.measurement import Measurement
from closeloop.model.settings import Silence
from closeloop.model.steps import Reading
from closeloop.process.endings import ending_of
from closeloop.process.measures.summary import measures_of, score_of
from closeloop.process.modes import modes_of
from closeloop.process.rulebook import Rulebook


def measure(reading: Reading, book: Rulebook) -> Measurement:
    """All that the rules say of a trace: the same trace and rules, the same measurement."""
    findings: list[Finding] = []
    unmeasured = [Unmeasured(rule="everything", reason=gap) for gap in reading.gaps]
    for chosen in book.chosen:
        try:
            said = chosen.detector.detect(reading, chosen.limits)
        except Exception as error:
            raise _blamed(chosen.detector.rule.name, error) from error
        if isinstance(said, Unmeasured):
            unmeasured.append(said)
        else:
            findings += said
    if book.silences and findings:
        findings = [_silenced(finding, reading, book.silences) for finding in findings]
    findings.sort(key=lambda finding: (min(finding.events, default=0), finding.rule))
    whole, lanes = measures_of(reading, findings, unmeasured)
    return Measurement(
        rules=book.identity,
        findings=tuple(findings),
        unmeasured=tuple(unmeasured),
        whole=whole,
        lanes=lanes,
        score=score_of(reading, whole),
        modes=modes_of(reading, findings),
        ending=ending_of(reading, findings),
    )


def _blamed(rule: str, error: Exception) -> PluginFailed:
    return PluginFailed(
        f"The rule {rule!r} raised {type(error).__name__}: {error}. Switch it off with "
        f"`enabled = false` in [rules.{rule}] and tell its author."
    )


def _silenced(finding: Finding, reading: Reading, silences: Iterable[Silence]) -> Finding:
    for silence in silences:
        if silence.rule == finding.rule and _meant(silence, finding, reading):
            return msgspec.structs.replace(finding, silenced=silence.reason)
    return finding


def _meant(silence: Silence, finding: Finding, reading: Reading) -> bool:
    task = reading.task.id if reading.task else ""
    if silence.task is not None and not matches(task, [silence.task]):
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
    return any(matches(path, [silence.path]) for path in touched)
