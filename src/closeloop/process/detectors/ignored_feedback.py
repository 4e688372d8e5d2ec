"""A check failed, and the agent continued without using its output.

## What it looks for

Every failing check, up to the next comparable one, is one cycle, judged by its effect. The feedback
was **used** if the failures are gone, fewer or different then, or if a check that could not run
runs now. It was **not used** if the same failures return after changed code, if the check is
repeated without a change, or if the agent claims success despite them. If no comparable check and
no claim follows, the cycle is open and does not count. Fixing the cause in a file that the output
does not name counts as use; rewording the same fix does not.

Checks are comparable if they are in one lane and run overlapping tests, or run the same program on
the same targets in the same folder. Flags that select fewer tests or change the output do not make
another check. Running the check again with other flags to see more is not a separate cycle, nor is
a look at the base with `git stash`.

The share of used cycles is the rate `feedback` of the process score. The rule itself reports only
the clear cases, where the same command

- is repeated without a change and with the same result;
- fails the same way after a change of neither program text nor anything that the output names;
- fails as tests, linters and compilers do, and the agent next says that the checks pass. Scripts
  are not reported, because a script may be intended to end with an error.

## Why it matters

Closing the loop means to use the output of a failed command. An agent that guesses instead needs
luck and more turns.

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

If checks have known results.

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

It is advisory.
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
    about="A check failed, and the agent continued without using its output.",
    severity="warning",
)

_CONSEQUENCES = {
    "returned": "it failed the same way after an unrelated change",
    "repeated": "it was run again without any change",
    "claimed": "success was claimed next",
}


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find failing checks whose output the agent did not use before its next check."""
    if reason := explain_unreadable_checks(reading):
        return Unmeasured(rule=rule.name, reason=reason)
    return [
        _build_finding(use, lane)
        for lane in reading.lanes.values()
        for use in list_feedback_uses(lane)
        if _is_ignored(use)
    ]


def _is_ignored(use: FeedbackUse) -> bool:
    """Whether the failures were not used.

    A change of code that did not help is a use. Claims after an unchecked change are left to
    unverified-claim.
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
