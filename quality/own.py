"""The labelled traces of our own: what every rule says of them, and what people say."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from closeloop import plugins
from closeloop.process.trace_reading import build_reading
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.protocols import Detector
from closeloop.records.record import Record

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "process"))
from story import Labelled, labelled


class Score(Record):
    """How a rule did. One case counts once, however many findings it has."""

    rule: str
    right: tuple[str, ...] = ()
    """Cases in which it found what is there."""
    missed: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    """Cases in which it found what is not there."""
    hard: int = 0
    """Cases written to mislead it: negative ones in its own folder."""
    labelled: int = 0
    """Cases that say of this rule whether it should speak."""

    @property
    def precision(self) -> Rate | None:
        return wilson_rate(len(self.right), len(self.right) + len(self.wrong))

    @property
    def recall(self) -> Rate | None:
        return wilson_rate(len(self.right), len(self.right) + len(self.missed))


def scores(cases: Iterable[Labelled] | None = None) -> list[Score]:
    """Every installed rule over the labelled traces."""
    readings = [
        (
            case,
            msgspec.structs.replace(
                build_reading(case.trace), task=case.task, attempt=case.attempt, grade=case.grade
            ),
        )
        for case in (labelled() if cases is None else cases)
    ]
    return [
        _score(
            detector,
            [
                (case, found(detector.detect(reading, detector.rule.thresholds)))
                for case, reading in readings
                if detector.rule.name not in case.allow
            ],
        )
        for detector in plugins.load_plugins("detectors")
    ]


def found(said: Sequence[Finding] | Unmeasured) -> Sequence[Finding]:
    """What cannot be measured is not found."""
    return () if isinstance(said, Unmeasured) else said


def _score(detector: Detector, told: Sequence[tuple[Labelled, Sequence[Finding]]]) -> Score:
    name = detector.rule.name
    right, missed, wrong, hard = [], [], [], 0
    for case, findings in told:
        there = set(case.expect.get(name, ()))
        if not there:
            hard += case.name.startswith(f"{name}/")
        elif any(there.intersection(finding.events) for finding in findings):
            right.append(case.name)
        else:
            missed.append(case.name)
        if any(there.isdisjoint(finding.events) for finding in findings):
            wrong.append(case.name)
    return Score(
        rule=name,
        right=tuple(right),
        missed=tuple(missed),
        wrong=tuple(wrong),
        hard=hard,
        labelled=len(told),
    )
