"""Runs whose outcome is known: do those that failed show more findings than those that did not?"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from math import exp, log, sqrt
from pathlib import Path

from own import found

from closeloop import plugins
from closeloop.process.trace_reading import build_reading
from closeloop.records.estimate import Z95
from closeloop.records.record import Record
from closeloop.records.trace import Trace
from closeloop.traces.file_source import FileSource, find_reader

PASSED = ("resolved=True", "is_resolved=True", "reward=1.0", "resolved")
FAILED = ("resolved=False", "is_resolved=False", "reward=0.0", "unresolved", "empty_patch")


class Odds(Record):
    """Findings of a rule in runs that failed and in runs that did not."""

    rule: str
    failed: int
    """Failed runs with a finding."""
    of_failed: int
    passed: int
    of_passed: int

    @property
    def ratio(self) -> tuple[float, float, float]:
        """Odds ratio with its 95 % interval; half a run is added to each count."""
        a, b = self.failed + 0.5, self.of_failed - self.failed + 0.5
        c, d = self.passed + 0.5, self.of_passed - self.passed + 0.5
        middle, half = log(a * d / (b * c)), Z95 * sqrt(1 / a + 1 / b + 1 / c + 1 / d)
        return exp(middle), exp(middle - half), exp(middle + half)


def odds(folder: Path) -> list[Odds]:
    """Every rule over the runs of the folder whose outcome its PROVENANCE.csv tells."""
    counts: dict[str, list[int]] = {}
    totals = [0, 0]
    for trace, passed in _runs(folder):
        totals[passed] += 1
        reading = build_reading(trace)
        for detector in plugins.load_plugins("detectors"):
            rule = detector.rule
            known = counts.setdefault(rule.name, [0, 0])
            known[passed] += bool(found(detector.detect(reading, rule.thresholds)))
    return [
        Odds(rule=rule, failed=failed, passed=passed, of_failed=totals[0], of_passed=totals[1])
        for rule, (failed, passed) in sorted(counts.items())
    ]


def _runs(folder: Path) -> Iterator[tuple[Trace, bool]]:
    with (folder / "PROVENANCE.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            word = (row["outcome"] or "").split(" ")[0].rstrip(";")
            path = folder / row["format"] / row["file"]
            if word in PASSED + FAILED and path.is_file():
                source = FileSource(path)
                reader = find_reader(source)
                sessions = list(reader.read(source)) if reader else []
                if len(sessions) == 1 and sessions[0].trace.events:
                    yield sessions[0].trace, word in PASSED
