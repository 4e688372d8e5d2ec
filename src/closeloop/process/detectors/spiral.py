"""spiral: one fix after another, and the same failure every time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from closeloop.model.finding import Finding, Rule, Unmeasured, found
from closeloop.model.steps import Iteration, LaneReading, Reading
from closeloop.model.trace import Command
from closeloop.process.convergence import standstills
from closeloop.process.telling import told_failures, unreadable_checks

rule = Rule(
    name="spiral",
    version=2,
    about="One fix after another leaves the same failure: the agent is stuck and does not stop.",
    severity="error",
    gates=True,
    thresholds={"iterations": 3},
)

_TAIL = 2000
"""So much of the end of an output is searched for its counts."""
_PASSED = re.compile(r"\b(\d{1,6}) pass(?:ed|ing)\b")


def detect(reading: Reading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Rows of iterations whose failure set neither shrinks nor changes, however they are worded."""
    if reason := unreadable_checks(reading):
        return Unmeasured(rule=rule.name, reason=reason)
    return [
        _finding(row, lane)
        for lane in reading.lanes.values()
        for row in standstills(lane)
        if len(row) >= limits["iterations"] and not _grows(row)
    ]


def _grows(row: Sequence[Iteration]) -> bool:
    """More tests pass after each round: new work goes on beside a failure known before."""
    passed = [_passed(iteration) for iteration in row]
    return all(0 < one < other for one, other in pairwise(passed))


def _passed(iteration: Iteration) -> int:
    event = iteration.checks[-1].event
    output = event.output if isinstance(event, Command) and event.output else ""
    counts = _PASSED.findall(output[-_TAIL:])
    return int(counts[-1]) if counts else 0


def _finding(row: Sequence[Iteration], lane: LaneReading) -> Finding:
    failures = row[-1].failures
    assert failures is not None, "a row holds failing iterations"
    events = [step.number for iteration in row for step in iteration.checks]
    return found(
        rule,
        f"{len(row)} rounds of changes in a row ended in the same failure: "
        f"{told_failures(failures)}.",
        events,
        lane=lane.lane.id,
        confidence=0.7 if failures.parser == "tail" else 1.0,
    )
