"""A check failed, and what it said led to nothing.

## What it looks for

Every failing check, up to the next comparable one, is a turn of the loop, judged by its effect. The
feedback was **used** when the failures are gone, fewer or different by then, or when a check that
could not run was made to run. It was **not used** when the same failures return after changed code,
when the check is repeated with nothing changed, or when success is claimed on top of them. Where
nothing comparable follows and nothing is claimed, the turn stays open and is not counted. A fix of
the cause in a file that the output never named is use; a spiral in new words is not.

Comparable are checks of one lane that exercise overlapping tests, or run the same program on the
same targets in the same folder. Flags that select fewer tests or change the output do not make
another check. Running the check once more with other flags to see more is no turn of its own, and
neither is a look at the base with `git stash`.

The share of turns that were used is the process score's rate `feedback`. The rule itself reports
only the plain cases: the very same command

- repeated with nothing changed, and with the same result;
- failing so again after a change of no program text and of nothing that the output names;
- failing as tests, linters and compilers do, and the agent says next that the checks pass. A script
  may end with the very error that it is to show, so of scripts nothing is said.

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

When checks say whether they passed.

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

It advises.
"""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.process.feedback_use import FeedbackUse, list_feedback_uses
from closeloop.process.rule_helpers import (
    describe_failures,
    explain_unreadable_checks,
    truncate_line,
)
from closeloop.process.verification import is_sure_failure
from closeloop.records.change import LaneReading, TraceCheck, TraceReading
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding

rule = Rule(
    name="ignored-feedback",
    version=6,
    about="A check failed, and the agent went on without using what it said.",
    severity="warning",
)

_CONSEQUENCES = {
    "returned": "it failed so again after a change that has nothing to do with it",
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
        if _is_ignored(use)
    ]


def _is_ignored(use: FeedbackUse) -> bool:
    """Failures that return after a fix of the code were used, though in vain; of claims after a
    change that nobody checked, unverified-claim speaks: no finding.
    """
    if use.use == "repeated":
        return True
    if use.changes_code or not use.is_plain:
        return False
    if use.use == "returned":
        return use.opened is False
    return use.use == "claimed" and is_sure_failure(use.check)


def _build_finding(use: FeedbackUse, lane: LaneReading) -> Finding:
    check = use.check.check
    assert check is not None, "feedback is that of a failing check"
    return make_finding(
        rule,
        f"{_describe_check(check)}, and {_CONSEQUENCES[use.use]}.",
        (use.check.number, *use.then[:5]),
        lane=lane.lane.id,
        confidence=0.7 if use.use == "returned" else 0.9,
    )


def _describe_check(check: TraceCheck) -> str:
    if check.failures is not None:
        return f"{describe_failures(check.failures)} failed"
    return f"{truncate_line(check.target)} could not run ({check.blocked})"
