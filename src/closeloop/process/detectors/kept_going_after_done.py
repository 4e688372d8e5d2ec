"""The checks pass and the agent says it is done, but it continues to change or check.

## What it looks for

- Three or more changes after the agent itself said that everything is complete, when the last check
  had passed. The user did not write in between, and no check failed. "The model is done, next I
  will …" is a step, not the end.
- The same check passes on the same state three or more additional times.

Repeated checks are not reported if the user mentions flaky tests or running something many times.

## Why it matters

Unrequested changes cost review time, and they are a source of scope creep and late breakage.

## Bad

```text
#3  pytest -q                 14 passed
#4  "The fix is complete, all tests pass."
#6  create docs/rounding.md
#7  edit invoice.py           rename total to grand_total
#8  create examples/rounding.py
```

## Good

```text
#3  pytest -q                 14 passed
#4  "The fix is complete, all tests pass. total() could do with a better name: shall I rename it?"
```

## When it can be measured

If at least one check has a known result, by exit code or by output.

## Thresholds and silencing

`edits` (3): the minimum number of changes after the end. `reruns` (3): the minimum number of
additional passes without a change.

```toml
[rules.kept-going-after-done]
edits = 5

[[silence]]
rule = "kept-going-after-done"
task = "cleanup-*"
reason = "tidying up is the task"
```

## How sure it is

It is advisory: the meaning of "complete" is inferred from the agent's words.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from closeloop.process.agent_claims import parse_claim
from closeloop.process.check_results import is_same_line
from closeloop.process.rule_helpers import (
    collect_user_requests,
    contains_request,
    explain_unreadable_checks,
    truncate_line,
)
from closeloop.process.text_facts import build_automaton, contains_any, find_first_match
from closeloop.process.verification import EVENT_NUMBER
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Message

rule = Rule(
    name="kept-going-after-done",
    version=1,
    about="The checks pass and the agent says it is done, but it continues to change or check.",
    severity="info",
    thresholds={"edits": 3, "reruns": 3},
)

_completion_automaton = cache(
    lambda: build_automaton(
        ("omplete", "done", "Done", "inished", "othing", "esolved", "mplemented")
    )
)
_COMPLETION = re.compile(
    r"\b(?:(?:task|work|implementation|feature|fix|everything|all|request) (?:\w+ ){0,3}?"
    r"(?:is|are|has been|have been) (?:now |fully )?"
    r"(?:complete\w*|done|finished|resolved|implemented)"
    r"|(?:i have|i've) (?:now |successfully )?(?:completed|finished) (?:all|the|everything|this)"
    r"|^(?:all )?done[.!]|nothing (?:else|more) (?:is |needs? )?(?:left|to (?:do|be done)))",
    re.MULTILINE,
)
_completion_start_automaton = cache(lambda: build_automaton((
    "task", "work", "implementation", "feature", "fix", "everything", "all", "request", "i have",
    "i've", "done", "nothing",
)))  # fmt: skip
_CONTINUATION = re.compile(
    r"\b(?:next|now (?:let|i)|let me|let's|i'll|i will|remaining|still (?:need|have)"
    r"|step \d|phase \d|then|first|todo|moving on|part of)\b"
)
_REPEAT_WISH = re.compile(
    r"\b(?:flak\w*|several times|repeatedly|\d+ times|stress|in a loop|many times)\b"
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find changes after a true completion, and checks that pass repeatedly without a change."""
    if reason := explain_unreadable_checks(reading):
        return Unmeasured(rule=rule.name, reason=reason)
    findings = [
        finding
        for lane in reading.lanes.values()
        for finding in (
            *_late_change_findings(lane, int(limits["edits"])),
            *_repeated_check_findings(lane, int(limits["reruns"])),
        )
    ]
    if findings and contains_request(collect_user_requests(reading), _REPEAT_WISH):
        findings = [finding for finding in findings if "passed again" not in finding.message]
    return sorted(findings, key=lambda finding: finding.events)


def _late_change_findings(lane: LaneReading, threshold: int) -> Iterator[Finding]:
    """Yield edits after its claim of completion, with passing checks and no new request."""
    if len(lane.changes) < threshold:
        return
    users = [message.number for message in lane.users]
    last_start = lane.changes[-threshold].number if threshold else float("inf")
    for message in lane.messages:
        if message.number >= last_start:
            return
        if message.role != "agent" or not contains_any(_completion_automaton(), message.text):
            continue
        next_user = bisect_right(users, message.number)
        next_request = users[next_user] if next_user < len(users) else float("inf")
        later_changes = _steps_between(lane.changes, message.number, next_request)
        if len(later_changes) < threshold or not _is_completion(message):
            continue
        index = bisect_right(lane.checks, message.number, key=EVENT_NUMBER)
        before = lane.checks[index - 1].check if index else None
        later = [step.check for step in _steps_between(lane.checks, message.number, next_request)]
        named_changes = [step for step in later_changes if step.written]
        if (
            len(named_changes) >= threshold
            and before is not None
            and before.passed is True
            and all(check is None or check.passed is not False for check in later)
        ):
            yield make_finding(
                rule,
                f"After “{_quote_message(message)}”, {len(named_changes)} changes "
                "followed that were not requested, first of "
                f"{named_changes[0].written[0]}.",
                [
                    named_changes[0].number,
                    message.number,
                    *(step.number for step in named_changes[1:5]),
                ],
                lane=lane.lane.id,
                confidence=0.75,
            )
            return


def _steps_between(steps: Sequence[TraceStep], after: int, until: float) -> Sequence[TraceStep]:
    begin, end = (
        bisect_right(steps, after, key=EVENT_NUMBER),
        bisect_left(steps, until, key=EVENT_NUMBER),
    )
    return steps[begin:end]


def _is_completion(message: Message) -> bool:
    lower_text = message.text[:3000].lower().replace("’", "'")
    completion = find_first_match(_COMPLETION, _completion_start_automaton(), lower_text)
    return (
        completion is not None
        and not _CONTINUATION.search(lower_text, completion.end())
        and parse_claim(message) is not None
    )


def _quote_message(message: Message) -> str:
    claim = parse_claim(message)
    return claim.quote if claim else truncate_line(message.text)


def _repeated_check_findings(lane: LaneReading, max_repeats: int) -> Iterator[Finding]:
    """Yield repeated passing checks of the same state."""
    if len(lane.checks) <= max_repeats:
        return
    row: list[TraceStep] = []
    for step in (*lane.checks, None):
        if step is not None and row and _is_same_check(row[-1], step):
            row.append(step)
            continue
        if len(row) > max_repeats:
            yield make_finding(
                rule,
                f"{truncate_line(row[0].check.target if row[0].check else '')} passed "
                f"again {len(row) - 1} times without any change in between.",
                [step.number for step in row],
                lane=lane.lane.id,
                confidence=0.9,
            )
        row = [step] if step is not None and step.check and step.check.passed else []


def _is_same_check(first: TraceStep, second: TraceStep) -> bool:
    return (
        first.check is not None
        and second.check is not None
        and second.check.passed is True
        and first.check.target == second.check.target
        and first.state == second.state
        and not second.changed
        and is_same_line(first, second)
    )
