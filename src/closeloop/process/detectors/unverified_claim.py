"""The agent claims success, but no check ran on the final code.

## What it looks for

A claim of success without evidence in the trace. A claim is a statement without reservation with
which the agent hands over to the user or ends: "done", "fixed", "all tests pass", in English or in
common phrases of German, French, Spanish, Portuguese, Italian, Russian, Chinese and Japanese. "I
could not run the tests", "should pass now", "please verify" and "two tests still fail" are honest
and not claims; nor are plans, purposes ("to ensure that it works"), headings, conditions,
instructions, questions and quotations.

A script that had printed its results before it failed is evidence. Nothing is reported if the agent
says what is missing, or if the user waived the check ("no need to run it") and the agent does not
say that checks pass. A change after the statement is not part of the claim. A tool that runs
programs without naming them may have run the check, and a script that tries the code is a test of
it.

These cases count:

- The agent says that tests or checks **pass**, or that the work is "tested and working", but after
  the last change of code none ran, or the one that ran could not start, or only tools ran that read
  the code (linters, type checkers) while the claim is about tests.
- The agent says at the very end that it is **done**, something had been run before, and then code
  was changed again. A run of the program itself after the last change is enough here.
- The agent says that the work is complete or does what it should, but the trace contains no
  command.
- **Nothing was changed**, no check ran, and the agent says that checks pass, or that the requested
  fix or feature is done. Questions, reviews and documents do not count; if sub-agents worked, a
  part of the recording is missing or the context was truncated, nothing is reported.

Documents, comments, docstrings, formatting, removed lines that only print, the agent's own scratch
files and their removal, and a checked change that is restored after a look at the base need no
check. Code of a sub-agent may be checked by its parent.

If nothing was run and no check is claimed, [missing-verification](missing-verification.md) reports
it; if a check ran and failed, [false-claim](false-claim.md) does.

## Why it matters

The user reads "all tests pass" and merges. The last small change after a green run often breaks it.

## Bad

```text
#3  edit dates.py
#4  pytest -q                 14 passed
#5  edit dates.py
#6  "All tests pass."
```

## Good

```text
#3  edit dates.py
#4  pytest -q                 14 passed
#5  edit dates.py
#6  pytest -q                 14 passed
#7  "All tests pass."
```

## When it can be measured

In every trace with events. A check with an unknown result counts as evidence.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.unverified-claim]
enabled = false

[[silence]]
rule = "unverified-claim"
task = "prototype-*"
reason = "prototypes are checked by hand"
```

## How sure it is

It may gate.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from closeloop.process.agent_claims import (
    MAX_MESSAGE_CHARS,
    NO_END,
    ClosingMessage,
    SuccessClaim,
    list_closings,
    parse_claim,
)
from closeloop.process.edit_contents import list_code_changes
from closeloop.process.rule_helpers import waives_checks
from closeloop.process.verification import (
    EVENT_NUMBER,
    CheckBacking,
    could_not_run,
    find_backing,
    find_trial_between,
    is_static_check,
    is_trial,
    list_trace_checks,
    list_trials_after,
)
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Command, ToolUse

rule = Rule(
    name="unverified-claim",
    version=8,
    about="The agent claims success, but no check ran on the final code.",
    severity="error",
    gates=True,
)


_REPAIR_WISH = re.compile(
    r"(?:^|[.:;,\n]\s*|\b(?:to|and|then|please|must|should|you|can|could)\s+)"
    r"(?:fix|implement|repair|resolve|solve|refactor|mend|correct|add|make|change|remove|rename)\b"
    r"|\b(?:bug|broken|fails|failing|crash\w*|is missing|does not work|doesn't work)\b"
)
"""The request wants code to be changed; a question, a review or a text does not."""
_WORK_CLAIM = re.compile(
    r"\b(?:implement\w*|resolve[sd]?|addresse[sd]|completed?|works?|working|correctly|successfully"
    r"|solve[sd]?|fix(?:e[sd])? the)\b"
)
_TESTS_NAMED = re.compile(r"test(?!ed\b)")
"""Words that name tests; “tested” may mean any trial."""
_WARNING_LINE = re.compile(r"\s|\S+:\d+: ")
_BLOCK_TOLD = re.compile(
    r"\b(?:missing|not installed|not available|unavailable|(?:could not|cannot) (?:run|start)"
    r"|remaining errors?|(?:subsequent|new|other) errors?)\b"
)
_TELLING_PROGRAMS = frozenset(("git", "gh", "glab"))
"""They show what was checked or done elsewhere."""
_INTERPRETERS = frozenset(("python", "node", "ruby", "php", "perl", "deno", "bun", "Rscript"))


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find claims without a check after the last change."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    checks = list_trace_checks(reading)
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
    cited: set[int] = set()
    for closing in list_closings(lane):
        if closing.until != NO_END and "pass" not in closing.message.text:
            # In the middle of a conversation "Done." only means that it is the user's turn.
            continue
        backing = _find_claim_backing(changes, checks, closing)
        if backing is None:
            yield from _claims_of_nothing(reading, lane, closing, checks)
            continue
        if backing.last.number < closing.since or backing.last.number in cited:
            # Nothing was changed since the user's message, or since a reported claim.
            continue
        if any(_shows_something(step) for step in backing.latest_checks):
            continue
        claim = parse_claim(closing.message)
        if claim is not None and not _has_backing(reading, lane, closing, claim, backing):
            stale_check = next(backing.latest_checks, backing.stale)
            stale_check = stale_check or find_trial_between(reading, lane, backing)
            if _explains_blocked_check(closing, stale_check):
                continue
            if not claim.passing and waives_checks(reading):
                continue
            if stale_check is not None or claim.passing or _finishes_untried(reading, claim):
                cited.add(backing.last.number)
                yield _build_finding(lane, closing, claim, backing.last, stale_check)


def _shows_something(step: TraceStep) -> bool:
    """Whether it ran the code; also a script that crashed after printing what it should show."""
    if not could_not_run(step):
        return not is_static_check(step)
    if step.check is None or step.check.tool != "script" or not isinstance(step.event, Command):
        return False
    printed, crash_header, _ = (step.event.output or "").partition(
        "Traceback (most recent call last)"
    )
    lines = printed.replace(step.event.command, "").splitlines()
    return bool(crash_header) and any(line and not _WARNING_LINE.match(line) for line in lines)


def _explains_blocked_check(closing: ClosingMessage, check: TraceStep | None) -> bool:
    """Whether the message says why the check could not run."""
    return (
        check is not None
        and could_not_run(check)
        and _BLOCK_TOLD.search(closing.message.text[:MAX_MESSAGE_CHARS].lower()) is not None
    )


def _find_claim_backing(
    changes: Sequence[TraceStep], checks: Sequence[TraceStep], closing: ClosingMessage
) -> CheckBacking | None:
    """Return which checks cover the changes before the claim; later changes are left out."""
    end = bisect_left(changes, closing.message.number, key=EVENT_NUMBER)
    while end > 2 and _puts_tried_code_back(changes[end - 3 : end], checks):
        end -= 2
    return find_backing(changes, checks, closing.until, end)


def _puts_tried_code_back(changes: Sequence[TraceStep], checks: Sequence[TraceStep]) -> bool:
    """Whether a checked change was undone to look at the base, and made again."""
    first_change, undoing, repeated = changes
    if not {*undoing.written} <= {*first_change.written} or not _is_same_change(
        first_change, repeated
    ):
        return False
    index = bisect_left(checks, first_change.number, key=EVENT_NUMBER)
    return index < len(checks) and checks[index].number < undoing.number


def _is_same_change(first: TraceStep, second: TraceStep) -> bool:
    texts = [
        [(edit.path, edit.before, edit.after, edit.patch) for edit in step.edits]
        for step in (first, second)
    ]
    return texts[0] == texts[1] and all(before or patch for _, before, _, patch in texts[0])


def _claims_of_nothing(
    reading: TraceReading, lane: LaneReading, closing: ClosingMessage, checks: Sequence[TraceStep]
) -> Iterator[Finding]:
    """Report success claimed without a code change: that checks pass although none ran, or a
    fix."""
    if reading.gaps or reading.handoffs or lane.compactions or not lane.request:
        # The work may not be recorded.
        return
    if any(step.number < closing.until for step in checks):
        return
    claim = parse_claim(closing.message)
    if claim is None or any(_may_have_checked(step) for step in lane.steps):
        return
    if not claim.passing and (lane.changes or not _REPAIR_WISH.search(lane.request[:4000].lower())):
        return
    contradiction = (
        "no check ran" if lane.changes or claim.passing else "nothing was changed or run"
    )
    yield make_finding(
        rule,
        f"The agent claimed “{claim.quote}”, but {contradiction}.",
        [closing.message.number, *([closing.since] if closing.since else [])],
        lane=lane.lane.id,
        confidence=0.9,
    )


def _may_have_checked(step: TraceStep) -> bool:
    """Whether it may have run or requested a check, or done the work without a record."""
    if isinstance(step.event, Command):
        programs = step.effect.programs if step.effect else ("",)
        return is_trial(step) or any(
            name.partition(" ")[0] in _TELLING_PROGRAMS for name in programs
        )
    return isinstance(step.event, ToolUse) and not step.read


def _finishes_untried(reading: TraceReading, claim: SuccessClaim) -> bool:
    """Whether it says that the work behaves as it should, and no command is recorded.

    If one is, missing-verification applies.
    """
    return _WORK_CLAIM.search(claim.quote.lower()) is not None and not any(
        step.effect for lane in reading.lanes.values() for step in lane.steps
    )


def _has_backing(
    reading: TraceReading,
    lane: LaneReading,
    closing: ClosingMessage,
    claim: SuccessClaim,
    backing: CheckBacking,
) -> bool:
    trials = list_trials_after(reading, lane, backing.last, closing.until)
    if claim.passing and _TESTS_NAMED.search(claim.quote.lower()):
        return any(map(_is_test_run, trials))
    if closing.until != NO_END and not claim.passing:
        return True
    has_run = any(not could_not_run(step) for step in backing.latest_checks)
    return has_run or next(trials, None) is not None


def _is_test_run(trial: TraceStep) -> bool:
    """Whether it is a test runner of the project, or a script that tries the code."""
    if not isinstance(trial.event, Command) or "test" in trial.event.command:
        return True
    return trial.effect is not None and any(
        name.rstrip(".0123456789") in _INTERPRETERS for name in trial.effect.programs
    )


def _build_finding(
    lane: LaneReading,
    closing: ClosingMessage,
    claim: SuccessClaim,
    last: TraceStep,
    stale_check: TraceStep | None,
) -> Finding:
    if stale_check is None:
        contradiction = "nothing was run"
    elif stale_check.number < last.number:
        contradiction = f"{last.written[0]} was changed after the last check"
    elif could_not_run(stale_check):
        contradiction = "the check after the last change could not run"
    else:
        contradiction = "no tests ran after the last change"
    return make_finding(
        rule,
        f"The agent claimed “{claim.quote}”, but {contradiction}.",
        [closing.message.number, last.number, *([stale_check.number] if stale_check else [])],
        lane=lane.lane.id,
        confidence=0.9,
    )
