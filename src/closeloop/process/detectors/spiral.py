"""spiral: one fix after another, and the same failure every time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from closeloop.process.measures.convergence import find_standstills
from closeloop.process.rule_helpers import describe_failures, explain_unreadable_checks
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    Iteration,
    LaneReading,
    TraceReading,
)
from closeloop.records.trace import (
    Command,
)

rule = Rule(
    name="spiral",
    version=2,
    about="One fix after another leaves the same failure: the agent is stuck and does not stop.",
    severity="error",
    gates=True,
    thresholds={"iterations": 3},
)

_OUTPUT_TAIL_CHARS = 2000
"""So much of the end of an output is searched for its counts."""
_PASSED_COUNT = re.compile(r"\b(\d{1,6}) pass(?:ed|ing)\b")


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Rows of iterations whose failure set neither shrinks nor changes, however they are worded."""
    if reason := explain_unreadable_checks(reading):
        return Unmeasured(rule=rule.name, reason=reason)
    return [
        _build_finding(row, lane)
        for lane in reading.lanes.values()
        for row in find_standstills(lane)
        if len(row) >= limits["iterations"] and not _shows_progress(row)
    ]


def _shows_progress(row: Sequence[Iteration]) -> bool:
    """More tests pass after each round: new work goes on beside a failure known before."""
    passed = [_count_passed_tests(iteration) for iteration in row]
    return all(0 < one < other for one, other in pairwise(passed))


def _count_passed_tests(iteration: Iteration) -> int:
    event = iteration.checks[-1].event
    output = event.output if isinstance(event, Command) and event.output else ""
    counts = _PASSED_COUNT.findall(output[-_OUTPUT_TAIL_CHARS:])
    return int(counts[-1]) if counts else 0


def _build_finding(row: Sequence[Iteration], lane: LaneReading) -> Finding:
    failures = row[-1].failures
    assert failures is not None, "a row holds failing iterations"
    events = [step.number for iteration in row for step in iteration.checks]
    return make_finding(
        rule,
        f"{len(row)} rounds of changes in a row ended in the same failure: "
        f"{describe_failures(failures)}.",
        events,
        lane=lane.lane.id,
        confidence=0.7 if failures.parser == "tail" else 1.0,
    )
