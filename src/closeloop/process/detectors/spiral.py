"""The agent makes one change after another, and the same failure is there after each of them.

## What it looks for

Three or more iterations in a row (changes of the workspace, then a check) whose failure set
neither shrinks nor changes. What counts is what fails: the ids of the failing tests, or the
signatures of the errors, with times, addresses, temporary paths and values taken out. How the
agent words its thoughts and commands does not count, nor do flags that only change how the output
looks.

A check of fewer tests than before goes on with the row when it fails in what had failed already.
A different failing test, another kind of error in the same test, or one failure fewer ends it:
that is progress. So is a row in which more tests pass each time: new work beside a failure that
was known.

## Why it matters

A spiral burns money and time, and ends in a bad change or in none. An agent that works well
stops, looks closer or asks after the second failure of the same fix.

## Bad

```text
#4  pytest -q            FAILED test_cart.py::test_total - TypeError: unsupported operand
#5  edit cart.py
#6  pytest -q -x         FAILED test_cart.py::test_total - TypeError: unsupported operand
#7  edit cart.py
#8  pytest --tb=short    FAILED test_cart.py::test_total - TypeError: unsupported operand
#9  edit cart.py
#10 pytest -q            FAILED test_cart.py::test_total - TypeError: unsupported operand
```

## Good

```text
#4  pytest -q            5 failed
#5  edit cart.py
#6  pytest -q            3 failed
#7  edit cart.py
#8  pytest -q            8 passed
```

## When it can be measured

When at least one check says, by exit code or by output, whether it passed.

## Thresholds and silencing

`iterations` (3): so many iterations make a spiral.

```toml
[rules.spiral]
iterations = 4

[[silence]]
rule = "spiral"
task = "flaky-*"
reason = "the machine under test needs several tries"
```

## How sure it is

It may gate. Where the output could not be parsed and only its last lines were compared, the
finding says so by a confidence of 0.7.
"""

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
