"""The same action fails repeatedly in the same way, without a change in between.

## What it looks for

The same action (a check of the same target, the same command, edit, read or tool call) has the same
failing result in the same state of the workspace, three times. The same command after a change is
normal work. Waiting and polling (`sleep`, `tail -f`, the status of a job or a server) are excluded,
and so are calls that were never executed because another one failed or the user interrupted, and a
test that was just written to fail first, as it or a commit says. Volatile parts of the result
(times, addresses, process ids) are ignored.

Two times are enough if the agent sends the same text again in a later response: an edit that
failed is repeated to the letter and its file has not changed since; or the next action after a
command that failed for a reason that cannot go away by itself (a syntax error, a missing file,
program or module) is the same command.

Also reported are responses and calls that the client rejects for the same format error, such as two
commands instead of one, or a call without a required parameter, four times or more in a session.

## Why it matters

Repeating it cannot help: the agent did not read the result, or hopes for luck.

## Bad

```text
#3  npm run build       sh: 1: vite: not found
#4  npm run build       sh: 1: vite: not found
#5  npm run build       sh: 1: vite: not found
```

## Good

```text
#3  npm run build       sh: 1: vite: not found
#4  npm install
#5  npm run build       built in 2.1s
```

## When it can be measured

If at least one action of the trace has a known result.

## Thresholds and silencing

`times` (3): the minimum number of equal failures. `refusals` (4): the minimum number of rejected
responses.

```toml
[rules.repeated-failure]
times = 4

[[silence]]
rule = "repeated-failure"
task = "network-*"
reason = "the registry needs several tries"
```

## How sure it is

It may gate. With `times = 2` it is closest to what people call a repetition: see [how the rules
were measured](README.md#against-the-labels-of-other-people).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from closeloop.process.failure_collector import normalise_output
from closeloop.process.rule_helpers import fails_by_itself, truncate_line
from closeloop.process.verification import EVENT_NUMBER
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Command, Edit, Handoff, Note, Read, ToolUse

rule = Rule(
    name="repeated-failure",
    version=5,
    about="The same action fails repeatedly in the same way, without a change in between.",
    severity="warning",
    gates=True,
    thresholds={"times": 3, "refusals": 4},
)

_NUMBER = re.compile(r"\d+")
_FAULT_OF_FORM = re.compile(
    r"Parameter `\w+` is required(?: for command: \w+)?|[Mm]issing (?:a )?required \w+[^\n]{0,60}"
    r"|required (?:parameter|property|argument) [`'\"]?\w+[`'\"]? is missing"
    r"|InputValidationError[^\n]{0,60}"
)
_CERTAIN_FAILURE = re.compile(
    r"syntax error|SyntaxError|can't open file|No such file|not found|[Nn]ot a directory"
    r"|File exists|No module named|unrecognized arguments|(?:invalid|unknown) option"
)
"""Failures that do not go away by themselves."""
_MEANT_TO_FAIL = re.compile(
    r"\bshould (?:FAIL|fail (?:until|now|first|before))\b|\bTDD\b"
    r"|\b(?:expected|supposed|meant) to fail (?:until|now|first|before|at first|for now)\b"
    r"|\b[Aa]dd(?:s|ing|ed)? (?:an? )?failing (?:\w+ )?tests?\b"
)
_MAX_TEXT_CHARS = 10_000
_RESULT_TAIL_CHARS = 1000
"""Characters at the end of a result that are compared, where errors are."""


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find equal failing actions in one state of the workspace; after a change they are normal."""
    lanes = reading.lanes.values()
    refusal_findings = _refused_answers(reading, limits["refusals"])
    steps = [step for lane in lanes for step in lane.steps]
    if not refusal_findings and steps and all(step.failed is None for step in steps):
        return Unmeasured(rule=rule.name, reason="no action in the trace shows whether it failed")
    rows = [
        (lane, row)
        for lane in lanes
        for row in _failing_rows(lane, limits["times"])
        if not _is_meant_to_fail(lane, row)
    ]
    findings = [
        make_finding(
            rule,
            f"Failed {len(row)} times in the same way without a change in between: "
            f"{truncate_line(_describe_action(row[0]))}",
            [step.number for step in row],
            lane=lane.lane.id,
        )
        for lane, row in rows
    ]
    reported_numbers = {step.number for _, row in rows for step in row}
    for lane in lanes:
        for row in _repeated_words(lane):
            numbers = [step.number for step in row]
            if reported_numbers.isdisjoint(numbers):
                reported_numbers.update(numbers)
                message = f"Failed again word for word: {truncate_line(_describe_action(row[0]))}"
                findings.append(make_finding(rule, message, numbers, lane=lane.lane.id))
    refusal_findings += [
        finding
        for lane in lanes
        for finding in _refused_calls(lane, limits["refusals"])
        if reported_numbers.isdisjoint(finding.events)
    ]
    return findings + refusal_findings


def _refused_calls(lane: LaneReading, times: float) -> Iterable[Finding]:
    """Find calls of tools that lack what the tool needs, each time alike."""
    rows: dict[str, list[int]] = {}
    for step in lane.failing if len(lane.failing) >= times else ():
        event = step.event
        error_text = (
            event.error if isinstance(event, Edit | Read) else getattr(event, "output", None)
        )
        if not isinstance(event, Command) and (
            match := _FAULT_OF_FORM.search((error_text or "")[:400])
        ):
            rows.setdefault(match[0], []).append(step.number)
    for fault, numbers in rows.items():
        if len(numbers) >= times:
            yield make_finding(
                rule,
                f"{len(numbers)} calls were rejected for the same format error: {fault}",
                numbers,
                lane=lane.lane.id,
            )


def _refused_answers(reading: TraceReading, times: float) -> list[Finding]:
    """Find answers that the client could not use, for the same formal fault each time."""
    rows: dict[tuple[str, str], list[int]] = {}
    for event in reading.trace.events:
        if type(event) is Note and event.about == "format error":
            fault = _NUMBER.sub("#", truncate_line(event.text))
            rows.setdefault((event.lane, fault), []).append(event.number)
    return [
        make_finding(
            rule,
            f"The client rejected {len(numbers)} responses for the same format error: {fault}",
            numbers,
            lane=lane,
        )
        for (lane, fault), numbers in rows.items()
        if len(numbers) >= times
    ]


def _failing_rows(lane: LaneReading, times: float) -> list[list[TraceStep]]:
    """Group failing steps by state, action and result, in order of their first occurrence."""
    if len(lane.failing) < times:
        return []
    rows = [[step for step in lane.failing if not _is_waiting(step) and fails_by_itself(step)]]
    # Expensive conditions come last, and only if the others leave enough steps.
    for key_function in (_state_key, _action_key, _result_key):
        rows = [
            row for group in rows for row in _group_steps(group, key_function) if len(row) >= times
        ]
    return sorted(rows, key=lambda row: row[0].index)


def _is_meant_to_fail(lane: LaneReading, row: Sequence[TraceStep]) -> bool:
    """Whether a test was just written to fail first, as it or a commit in between says."""
    if row[0].check is None:
        return False
    count = bisect_left(lane.changes, row[0].number, key=EVENT_NUMBER)
    last_changes = lane.changes[max(0, count - 1) : count]
    texts = [edit.after or edit.patch or "" for step in last_changes for edit in step.edits]
    texts += [
        step.event.command
        for step in lane.steps[row[0].index : row[-1].index]
        if isinstance(step.event, Command)
    ]
    return any(_MEANT_TO_FAIL.search(text[:_MAX_TEXT_CHARS]) for text in texts)


def _repeated_words(lane: LaneReading) -> Iterator[list[TraceStep]]:
    """Yield failing edits and commands that are sent again literally with the same result."""
    rows: dict[Hashable, list[TraceStep]] = {}
    for step in lane.failing if len(lane.failing) > 1 else ():
        key = _exact_words(step)
        row = rows.get(key) if key is not None else None
        if row is not None and _is_sent_again(lane, row[-1], step):
            row.append(step)
        elif key is not None:
            if row is not None and len(row) > 1:
                yield row
            rows[key] = [step]
    yield from (row for row in rows.values() if len(row) > 1)


def _exact_words(step: TraceStep) -> Hashable:
    """Return what was sent; None if a second try may end differently, or it says nothing."""
    event = step.event
    if isinstance(event, Edit):
        # Long texts are compared by length first.
        lengths = [len(text or "") for text in (event.before, event.after, event.patch)]
        return (event.path, *lengths) if any(lengths) else None
    if not isinstance(event, Command) or step.effect is None or step.effect.waits:
        return None
    has_run = step.check is not None and not step.check.blocked
    if has_run or not _CERTAIN_FAILURE.search((event.output or "")[-_RESULT_TAIL_CHARS:]):
        return None
    return event.command.strip() or None


def _is_sent_again(lane: LaneReading, before: TraceStep, step: TraceStep) -> bool:
    """Whether it is sent in a later answer, with nothing done since that could change the
    result."""
    event, earlier = step.event, before.event
    if event.turn is not None and event.turn == earlier.turn:
        return False
    if not (fails_by_itself(before) and fails_by_itself(step)):
        return False
    if isinstance(event, Edit):
        texts = (event.before, event.after, event.patch)
        if not isinstance(earlier, Edit) or texts != (earlier.before, earlier.after, earlier.patch):
            return False
        steps_between = lane.steps[before.index + 1 : step.index]
        if any(
            other_step.changed and not {*step.written}.isdisjoint(other_step.written)
            for other_step in steps_between
        ):
            return False
    elif step.index != before.index + 1 or step.state != before.state:
        return False
    return _result_text(before) == _result_text(step) or _result_key(before) == _result_key(step)


def _group_steps(
    steps: Iterable[TraceStep], key_function: Callable[[TraceStep], Hashable]
) -> Iterable[list[TraceStep]]:
    rows: dict[Hashable, list[TraceStep]] = {}
    for step in steps:
        rows.setdefault(key_function(step), []).append(step)
    return rows.values()


def _is_waiting(step: TraceStep) -> bool:
    return step.effect is not None and step.effect.waits


def _state_key(step: TraceStep) -> Hashable:
    return step.state, type(step.event)


def _action_key(step: TraceStep) -> str:
    event = step.event
    if isinstance(event, Command):
        return step.check.target if step.check else " ".join(event.command.split())
    if isinstance(event, Edit):
        return f"edit {event.path} {event.before} {event.after} {event.patch}"
    if isinstance(event, Read):
        return f"read {event.path} {event.first_line} {event.last_line}"
    if isinstance(event, ToolUse):
        return f"{event.name} {event.arguments}"
    assert isinstance(event, Handoff), event
    return f"handoff {event.brief}"


def _result_key(step: TraceStep) -> str:
    if step.check and step.check.failures:
        return "\n".join(sorted(step.check.failures.errors))
    if step.check and step.check.blocked:
        return step.check.blocked
    return normalise_output(_result_text(step)[-_RESULT_TAIL_CHARS:])


def _result_text(step: TraceStep) -> str:
    event = step.event
    if isinstance(event, Edit | Read):
        return event.error or ""
    return (event.report if isinstance(event, Handoff) else event.output) or ""


def _describe_action(step: TraceStep) -> str:
    event = step.event
    if isinstance(event, Command):
        return event.command
    if isinstance(event, Edit):
        return f"edit of {event.path}"
    if isinstance(event, Read):
        return f"read of {event.path}"
    return event.name if isinstance(event, ToolUse) else "handoff"
