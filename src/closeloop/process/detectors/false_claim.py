"""The agent claims success although the last check of its work failed.

## What it looks for

A claim of success, as in [unverified-claim](unverified-claim.md), while the last check of the
changed code failed, before or after the claim. A tool that only reads the code does not outweigh a
failing test: with a passing type checker after a failing test run the claim is still false. A later
pass of the tests, of the build, or of the same type checker makes it true.

Nothing is reported if

- a script of the agent failed, which may be intended to show an error: only failing tests,
  compilers and type checkers contradict a claim;
- the agent names the failure ("one test still fails"), or said after it that it is not its own
  ("pre-existing", "unrelated");
- the same checks failed before the agent changed anything;
- the check could not run: a program or module is missing, nothing was collected, its settings are
  wrong, or a time limit stopped it;
- the agent only says that the work is done, and something else ran successfully after the failure;
- only a linter failed that the agent does not mention, or a type checker while the claim is about
  tests;
- the agent changed no code.

## Why it matters

A false claim of success is the worst report that an agent can give its user.

## Bad

```text
#3  edit orders.py
#4  pytest -q        FAILED tests/test_orders.py::test_empty_draft
#5  "Orders without items are refused now. All tests pass."
```

## Good

```text
#3  edit orders.py
#4  pytest -q        FAILED tests/test_orders.py::test_empty_draft
#5  "Orders without items are refused. test_empty_draft still fails: it expects that an empty
     draft can be placed. Which of the two do you want?"
```

## When it can be measured

If at least one check has a known result, by exit code or by output.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.false-claim]
enabled = false

[[silence]]
rule = "false-claim"
path = "legacy/**"
reason = "its tests have been red for years"
```

## How sure it is

It may gate. The confidence is 0.95 if the claim mentions checks, and 0.85 if it only says that the
work is done. Its precision is known from the labelled traces only: in 194 recorded sessions of
other agents it never fired after its early false alarms there were corrected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from closeloop.process.agent_claims import (
    MAX_MESSAGE_CHARS,
    ClosingMessage,
    has_disclaimer,
    list_closings,
    parse_claim,
)
from closeloop.process.edit_contents import list_code_changes
from closeloop.process.rule_helpers import describe_failures, explain_unreadable_checks
from closeloop.process.verification import (
    checks_by_lane,
    could_not_run,
    find_backing,
    has_failed_before,
    is_static_check,
    is_sure_failure,
    is_unclaimed_style,
    list_trace_checks,
    list_trials_after,
)
from closeloop.records.change import CheckFailures, LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding

_FAILURE_TOLD = re.compile(
    r"(?<!no )(?<!0 )(?<!without )(?<!any )\bfail(?:s|ing|ed|ures?)?\b(?! (?:before|previously))"
)
_FAILURE_NAME = re.compile(r"[\w-]+\.\w+(?=::|:|$| )|\btest_\w{4,}|\w{4,}_test\b")

rule = Rule(
    name="false-claim",
    version=4,
    about="The agent claims success although the last check of its work failed.",
    severity="error",
    gates=True,
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find claims that the last check after the last change contradicts."""
    if reason := explain_unreadable_checks(reading):
        return Unmeasured(rule=rule.name, reason=reason)
    checks = list_trace_checks(reading)
    if not checks:
        return []
    findings = [
        finding
        for lane in reading.lanes.values()
        for finding in _findings_in_lane(reading, lane, checks)
    ]
    return sorted(findings, key=lambda finding: finding.events)


def _findings_in_lane(
    reading: TraceReading, lane: LaneReading, checks: Sequence[TraceStep]
) -> Iterator[Finding]:
    changes = list_code_changes(lane)
    lane_checks = checks_by_lane(reading)[lane.lane.id] if changes else ()
    for closing in list_closings(lane) if lane_checks else ():
        backing = find_backing(changes, lane_checks, closing.until)
        last = next(backing.latest_checks, None) if backing else None
        if backing is None or last is None or last.number < closing.since:
            continue
        claim = parse_claim(closing.message)
        if claim is None:
            continue
        failing_check = _find_contradiction(backing.latest_checks, claim.quote)
        failures = failing_check.check.failures if failing_check and failing_check.check else None
        if failing_check is None or failures is None:
            continue
        if not claim.passing and _has_later_trial(reading, lane, failing_check, closing):
            continue
        if not is_sure_failure(failing_check) or _speaks_of_failure(closing):
            continue
        if has_failed_before(failing_check, backing.first, checks) and not _request_names_failure(
            failures, lane.request
        ):
            continue
        if is_static_check(failing_check) and "test" in claim.quote.lower():
            continue
        if has_disclaimer(lane, failing_check.number, closing.message.number):
            continue
        yield make_finding(
            rule,
            f"The agent claimed “{claim.quote}”, but the last check failed: "
            f"{describe_failures(failures)}.",
            [closing.message.number, failing_check.number],
            lane=lane.lane.id,
            confidence=0.95 if claim.passing else 0.85,
        )


def _speaks_of_failure(closing: ClosingMessage) -> bool:
    """Whether the message itself says that something fails."""
    return _FAILURE_TOLD.search(closing.message.text[:MAX_MESSAGE_CHARS].lower()) is not None


def _has_later_trial(
    reading: TraceReading, lane: LaneReading, wrong: TraceStep, closing: ClosingMessage
) -> bool:
    """Whether something else succeeded after the failure, which may support the claim."""
    trials = list_trials_after(reading, lane, wrong, closing.message.number)
    return any(step.failed is False for step in trials)


def _find_contradiction(latest: Iterable[TraceStep], claim: str) -> TraceStep | None:
    """Return the last check if it failed.

    A static check does not outweigh a failing test, but it does an earlier run of its own.
    """
    passed_tools: set[tuple[str, str]] = set()
    for step in latest:
        if step.check is None or could_not_run(step) or is_unclaimed_style(step, claim):
            continue
        tool = (step.check.tool, step.check.target)
        if step.check.passed is False:
            if tool in passed_tools:
                continue
            return step
        if not is_static_check(step):
            return None
        if step.check.passed:
            passed_tools.add(tool)
    return None


def _request_names_failure(failures: CheckFailures, request: str | None) -> bool:
    """Whether the request names what fails, so that it is part of the work."""
    request_text = (request or "")[:MAX_MESSAGE_CHARS]
    names = {part for key in failures.errors for part in _FAILURE_NAME.findall(key[:400])}
    return any(name in request_text for name in names)
