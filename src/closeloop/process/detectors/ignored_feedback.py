"""A check failed, and what it said led to nothing.

## What it looks for

For every failing check: does the agent, before its next check, open, search or edit a file that
the output names, touch a name or a test in it, narrow the check to what failed, ask about it, or
hand it on? Then the feedback was used. What one of the last five failures of the same test named
counts as well: the cause may have been told by an earlier run. It was not used when the very same
command is run again with nothing changed, when only other things are changed, or when success is
claimed. Running the check once more with other flags to see more is neither, and so is a look at
the base with `git stash`. A check whose output names nothing, and one after which the attempt was
cut off, are left out.

The share of failing checks whose feedback was used is the process score's rate `feedback`.

## Why it matters

Using what a failed command says is what closing the loop means. An agent that guesses instead
needs luck, and more turns.

## Bad

```text
#6  pytest -q           FAILED tests/test_vat.py::test_greek_prefix - KeyError: 'EL'
#7  edit README.md
#8  pytest -q           FAILED tests/test_vat.py::test_greek_prefix - KeyError: 'EL'
```

## Good

```text
#6  pytest -q           FAILED tests/test_vat.py::test_greek_prefix - KeyError: 'EL'
#7  read vat.py
#8  edit vat.py         + "EL": "GR",
#9  pytest -q           14 passed
```

## When it can be measured

When checks say whether they passed, and their output names files, tests or symbols.

## Thresholds and silencing

None.

```toml
[rules.ignored-feedback]
enabled = false

[[silence]]
rule = "ignored-feedback"
task = "flaky-*"
reason = "a second run is the right answer to a flaky test"
```

## How sure it is

It advises: a fix may be right although no word in it occurs in the output.
"""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.process.measures.feedback_use import FeedbackUse, list_feedback_uses
from closeloop.process.rule_helpers import describe_failures, explain_unreadable_checks
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.inspection import (
    LaneReading,
    TraceReading,
)

rule = Rule(
    name="ignored-feedback",
    version=3,
    about="A check failed, and the agent went on without using what it said.",
    severity="warning",
)

_CONSEQUENCES = {
    "ignored": "what was changed next has nothing to do with it",
    "repeated": "it was run again with nothing changed",
    "claimed": "success was claimed next",
}


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Failing checks whose output the agent did not act on before its next check."""
    if reason := explain_unreadable_checks(reading):
        return Unmeasured(rule=rule.name, reason=reason)
    return [
        _build_finding(use, lane)
        for lane in reading.lanes.values()
        for use in list_feedback_uses(lane)
        if use.use != "used"
    ]


def _build_finding(use: FeedbackUse, lane: LaneReading) -> Finding:
    check = use.check.check
    assert check is not None, "feedback is that of a failing check"
    assert check.failures is not None, "feedback is that of a failing check"
    return make_finding(
        rule,
        f"{describe_failures(check.failures)} failed, and {_CONSEQUENCES[use.use]}.",
        (use.check.number, *use.then[:5]),
        lane=lane.lane.id,
        confidence=0.7 if use.use == "ignored" else 0.9,
    )
