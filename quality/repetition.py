"""What people call a repetition, and which rules say so.

Their label is about two actions in a row. A rule says the same of them when one of its findings
cites both; what it says of actions further apart is neither right nor wrong here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from own import found
from people import Run

from closeloop import plugins
from closeloop.process.trace_reading import build_reading
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.record import Record

LABEL = "Repetition"
LIMITS: Mapping[str, Mapping[str, float]] = {
    "repeated-failure": {"times": 2},
    "same-fix-again": {},
    "needless-reread": {"times": 2},
}
"""Rules about doing a thing again, each from the second time on."""
TOGETHER = "these three together"
STRINGS = "the same text as any action before"


class Agreement(Record):
    """How far a rule, or another way to tell, agrees with people."""

    agent: str
    way: str
    right: int
    wrong: int
    missed: int

    @property
    def precision(self) -> Rate | None:
        return wilson_rate(self.right, self.right + self.wrong)

    @property
    def recall(self) -> Rate | None:
        return wilson_rate(self.right, self.right + self.missed)


def agreements(runs: Iterable[Run]) -> list[Agreement]:
    """Over all runs and by agent: each rule, all together, and equal strings for comparison."""
    counts: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        labels = run.labels["action_action"]
        if len(labels) != len(run.steps) - 1:
            continue
        said = {way: set(pairs) for way, pairs in _said(run)}
        said[TOGETHER] = set().union(*(said[name] for name in LIMITS))
        said[STRINGS] = set(_equal(run))
        true = {at for at, label in enumerate(labels) if label == LABEL}
        for way, pairs in said.items():
            for agent in (run.agent, "all"):
                known = counts.setdefault((agent, way), [0, 0, 0])
                for place, number in enumerate((pairs & true, pairs - true, true - pairs)):
                    known[place] += len(number)
    return [
        Agreement(agent=agent, way=way, right=right, wrong=wrong, missed=missed)
        for (agent, way), (right, wrong, missed) in sorted(counts.items())
    ]


def _said(run: Run) -> Iterator[tuple[str, Iterable[int]]]:
    """By rule: the pairs of actions that it calls one and the same, by the number of the first."""
    reading = build_reading(run.trace)
    at = {number: step for step, numbers in enumerate(run.steps) for number in numbers}
    for detector in plugins.load_plugins("detectors"):
        name = detector.rule.name
        if name in LIMITS:
            findings = found(detector.detect(reading, {**detector.rule.thresholds, **LIMITS[name]}))
            cited = [sorted({at[number] for number in finding.events}) for finding in findings]
            yield name, {a for steps in cited for a, b in pairwise(steps) if b == a + 1}


def _equal(run: Run) -> Iterator[int]:
    seen: set[str] = set()
    for step, text in enumerate(run.actions):
        if text in seen:
            yield step - 1
        seen.add(text)


MARKED = {
    ("action_action", "Repetition"): 1,
    ("thought_thought", "Redundancy"): 1,
    ("thought_thought", "Contradiction"): 1,
    ("result_thought", "Misinterpretation"): 1,
    ("thought_action", "Misalignment"): 0,
}
"""Relation and label → which step it marks: that of its row, or the one after."""


class Marked(Record):
    """Whether the rules speak where people see something wrong."""

    label: str
    there: Rate | None
    """Of the steps with this mark, those that a finding of any rule cites."""
    elsewhere: Rate | None


def marks(runs: Iterable[Run]) -> list[Marked]:
    """All rules as they are set, at the steps that people marked and at all others."""
    counts = {mark: [0, 0, 0, 0] for mark in MARKED}
    for run in runs:
        reading = build_reading(run.trace)
        spoken = {
            number
            for detector in plugins.load_plugins("detectors")
            for finding in found(detector.detect(reading, detector.rule.thresholds))
            for number in finding.events
        }
        cited = [not spoken.isdisjoint(numbers) for numbers in run.steps]
        for (relation, label), after in MARKED.items():
            labels = run.labels.get(relation, [])
            if len(labels) == len(run.steps) - after:
                for hit, told in zip(cited[after:], labels, strict=True):
                    known = counts[relation, label]
                    known[0 if told == label else 2] += hit
                    known[1 if told == label else 3] += 1
    return [
        Marked(label=label, there=wilson_rate(hit, of), elsewhere=wilson_rate(other, rest))
        for (_, label), (hit, of, other, rest) in counts.items()
    ]
