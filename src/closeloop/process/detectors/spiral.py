"""One fix after another leaves the same failure: the agent is stuck and does not stop.

## What it looks for

Three or more iterations in a row (changes of the workspace, then a check) whose failure set neither
shrinks nor changes. The failure set contains the ids of the failing tests, or the signatures of the
errors without times, addresses, temporary paths and values. The wording of the agent's thoughts and
commands does not count, nor do flags that only change the format of the output.

The **silent** kind: the same command prints the same after changed code, three times or more,
whatever its exit code, unless the agent says that this is right, or the output reports success and
the agent does not say each time that the fault remains. A script that shows a bug and ends with
exit code 0 is reported this way. So is a check that cannot start, each time for the same reason,
however its own files are changed. The iteration that introduces or reveals a failure does not
count, and neither does a change that only prints more. A script that is rewritten in between
continues the row: each output is compared with the one before the fix. If the agent opens the
result of each run, that result is compared and not the run's output.

A check after `git checkout` or `git restore` of the changed files counts for no fix: it shows what
fails without one.

A check of fewer tests than before continues the row if it fails in the same tests. A different
failing test, another kind of error in the same test, or one failure fewer ends the row: this is
progress. So is a row in which more tests pass each time: new work beside a known failure.

## Why it matters

A spiral costs money and time, and ends in a bad change or in none. A good agent stops, investigates
or asks after the second failure of the same fix.

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

If at least one check has a known result, by exit code or by output; the silent kind, if outputs are
recorded.

## Thresholds and silencing

`iterations` (3): the minimum number of iterations.

```toml
[rules.spiral]
iterations = 4

[[silence]]
rule = "spiral"
task = "flaky-*"
reason = "the machine under test needs several tries"
```

## How sure it is

It may gate. If the output could not be parsed and only its last lines were compared, the confidence
is 0.7.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from closeloop.process.check_results import (
    compare_failures,
    find_comparable,
    last_line,
    prints_same,
    runs_program,
    states_success,
)
from closeloop.process.edit_contents import creates_file, diff_edit, is_debug_line, is_source_path
from closeloop.process.feedback_use import (
    find_standstills,
    has_change_between,
    is_scratch_change,
    list_failing_checks,
)
from closeloop.process.rule_helpers import (
    describe_failures,
    explain_unreadable_checks,
    truncate_line,
)
from closeloop.process.verification import EVENT_NUMBER
from closeloop.records.change import Iteration, LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Command, Message, Thought
from closeloop.text.wording import compile_lazily

rule = Rule(
    name="spiral",
    version=10,
    about="One fix after another leaves the same failure: the agent is stuck and does not stop.",
    severity="error",
    gates=True,
    thresholds={"iterations": 3},
)

_INSTALLERS = frozenset(("pip", "apt", "apt-get", "conda", "npm", "cd", "sudo"))
_KEY_PRESS = re.compile(r"C-[a-z]")
"""What some clients send for Ctrl and a key, which ends a program and runs none."""
_CHECKS_BACK = 5
"""Checks before a change that may have shown the failure."""
_OPINION_CHARS = 300
"""Characters of an agent's comment on an output that are read."""
_OUTPUT_TAIL_CHARS = 2000
"""Characters at the end of an output that are searched for counts."""
_SUCCESS_WORDS = compile_lazily(
    r"\b(?:(?:now|fix|patch|solution|change|it|script|test|code|implementation) (?:\w+ )?works?\b"
    r"|works? (?:as expected|correctly|now|fine|well)"
    r"|is (?:now )?(?:fixed|resolved|correct|working)"
    r"|(?:been|successfully) (?:fixed|resolved|verified)|fix (?:is|was) (?:successful|working)"
    r"|confirm(?:s|ed) (?:that )?(?:the|our|my|this) (?:fix|change|solution)"
    r"|tests? pass|as expected"
    r"|success(?:ful(?:ly)?)?|correct output|output is correct|great|perfect|excellent)\b",
    re.IGNORECASE,
)
"""An agent's words about an output that it accepts."""
_FAILURE_WORDS = compile_lazily(
    r"\bstill (?:ha(?:s|ve|ving)|not?|n't|see\w*|get\w*|fail\w*|show\w*|print\w*|return\w*|the"
    r"|an?|there|persist\w*|wrong|occur\w*|exist\w*|present)\b"
    r"|\b(?:is|are|does|do|did|was)(?: not|n['’]t) (?:fully |quite |really )?"
    r"(?:work|help|fix|solve|resolve|take effect|being|what)"
    r"|\b(?:another|(?:a )?different) approach\b"
    r"|\b(?:issue|problem|error|bug)s? (?:\w+ )?(?:persists?|remains?)\b"
    r"|\bsame (?:result|output|error|issue|problem)\b|\bno (?:change|effect|difference)\b",
    re.IGNORECASE,
)
"""An agent's words about an output that shows the fault as before."""
_DENIED_SUCCESS = compile_lazily(
    r"(?:\bnot\b|n['’]t\b|\bunable\b|\bfail(?:s|ed)? to\b)[^.\n]{0,40}?"
    r"\b(?:work(?:s|ing)?|as expected|correct(?:ly)?|fixed|resolved|success\w*)\b",
    re.IGNORECASE,
)
_PASSED_COUNT = compile_lazily(r"\b(\d{1,6}) pass(?:ed|ing)\b")


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find rounds of changes after which the same fails or is printed, however worded."""
    min_count = limits["iterations"]
    findings = [
        finding
        for lane in reading.lanes.values()
        for finding in (
            *_failing_spirals(lane, min_count),
            *_silent_spirals(reading, lane, min_count),
        )
    ]
    if not findings and (reason := explain_unreadable_checks(reading)):
        return Unmeasured(rule=rule.name, reason=reason)
    return sorted(findings, key=lambda finding: finding.events)


def _failing_spirals(lane: LaneReading, min_count: float) -> Iterable[Finding]:
    """Find rows of iterations whose failure set neither shrinks nor changes."""
    for row in find_standstills(lane):
        if len(row) >= min_count:
            begins = _only_reproduces(row[0]) or _brings_failure(lane, row[0])
            fixes = [
                iteration
                for iteration in (row[1:] if begins else row)
                if not (_only_debugs(iteration) or _only_restores(iteration))
            ]
            if len(fixes) >= min_count and not _shows_progress(fixes):
                yield _build_finding(fixes, lane)


def _only_reproduces(iteration: Iteration) -> bool:
    """Whether its changes only create files that show the failure, or install what these need: no
    fix was tried yet.
    """
    return all(
        creates_file(step) or is_scratch_change(step) or _only_installs(step)
        for step in iteration.changes
    )


def _only_installs(step: TraceStep) -> bool:
    effect = step.effect
    return effect is not None and not effect.written and _INSTALLERS.issuperset(effect.programs)


def _brings_failure(lane: LaneReading, iteration: Iteration) -> bool:
    """Whether something else, or nothing, failed before these changes, so that they caused or
    showed it."""
    index = bisect_left(lane.checks, iteration.changes[0].number, key=EVENT_NUMBER)
    earlier = [
        step for step in lane.checks[max(0, index - _CHECKS_BACK) : index] if _has_result(step)
    ]
    for step in list_failing_checks(iteration):
        assert step.check is not None, "it is a check"
        for before in find_comparable(step.check, reversed(earlier)):
            if before.check is not None and before.check.passed:
                return True
            return compare_failures(before, step) in ("fewer", "different")
    return False


def _has_result(step: TraceStep) -> bool:
    return step.check is not None and step.check.passed is not None


def _only_debugs(iteration: Iteration) -> bool:
    """Whether its changes only add output for debugging, and no fix."""
    return all(map(_is_debug_change, iteration.changes))


def _only_restores(iteration: Iteration) -> bool:
    """Whether git takes its changes back: the check then shows the failures without any fix."""
    return all(
        step.effect is not None and set(step.effect.written) == {*step.effect.restored} != set()
        for step in iteration.changes
    )


def _is_debug_change(step: TraceStep) -> bool:
    lines_by_edit = [diff_edit(edit) for edit in step.edits]
    if not lines_by_edit or None in lines_by_edit:
        return False
    added = [
        line for edit_lines in lines_by_edit if edit_lines for line in edit_lines.added if line
    ]
    return bool(added) and all(map(is_debug_line, added))


def _shows_progress(row: Sequence[Iteration]) -> bool:
    """Whether more tests pass after each round: other work continues beside a known failure."""
    passed_counts = [_count_passed_tests(iteration) for iteration in row]
    return all(0 < earlier < later for earlier, later in pairwise(passed_counts))


def _count_passed_tests(iteration: Iteration) -> int:
    event = iteration.checks[-1].event
    output = event.output if isinstance(event, Command) and event.output else ""
    tail = output[-_OUTPUT_TAIL_CHARS:]
    counts = _PASSED_COUNT.findall(tail) if " pass" in tail else ()
    return int(counts[-1]) if counts else 0


def _build_finding(row: Sequence[Iteration], lane: LaneReading) -> Finding:
    failures = row[-1].failures
    assert failures is not None, "a row holds failing iterations"
    events = [step.number for iteration in row for step in list_failing_checks(iteration)]
    return make_finding(
        rule,
        f"{len(row)} iterations in a row ended in the same failure: {describe_failures(failures)}.",
        events,
        lane=lane.lane.id,
        confidence=0.7 if failures.parser == "tail" else 1.0,
    )


# The silent kind: no exit code reports failure, and no change has a visible effect.


def _silent_spirals(
    reading: TraceReading, lane: LaneReading, min_count: float
) -> Iterable[Finding]:
    """Find commands that print the same after code changes, repeatedly."""
    rows: dict[str, list[TraceStep]] = {}
    latest: dict[str, TraceStep] = {}
    """What was printed last: another script under the same name prints something else."""
    initial_runs: dict[str, int] = {}
    """Runs at the start of a row that show the state before any fix."""
    spirals: dict[tuple[str, int], list[TraceStep]] = {}
    edits = [step for step in lane.changes if not _is_debug_change(step)]
    if len(edits) < min_count:
        return
    changes = [step for step in edits if not is_scratch_change(step)]
    fixes = [step for step in changes if not creates_file(step)]
    for line, step in _list_silent_runs(lane):
        row = rows.setdefault(line, [])
        # A check that cannot start may be repaired in scratch files too.
        relevant_changes = edits if step.check and step.check.blocked else changes
        before = latest.get(line)
        latest[line] = step
        if before is not None and not has_change_between(
            relevant_changes, before.number, step.number
        ):
            if len(row) == 1 and _output_of(row[0]) != _output_of(step):
                row[0] = step
            continue
        if before is None:
            initial_runs[line] = 0 if has_change_between(fixes, 0, step.number) else 1
        elif not (prints_same(before, step) or _starts_as_little(before, step)):
            row = rows[line] = []
            initial_runs[line] = 1
        row.append(step)
        if len(row) - initial_runs[line] >= min_count:
            spirals[line, row[0].number] = row[initial_runs[line] :]
    for row in spirals.values():
        if not _is_accepted(reading, lane, row):
            yield make_finding(
                rule,
                f"{truncate_line(getattr(row[-1].event, 'command', ''))} "
                f"{_describe_result(row[-1])} after {len(row)} changes.",
                [step.number for step in row],
                lane=lane.lane.id,
                confidence=0.8,
            )


def _output_of(step: TraceStep) -> str | None:
    return step.event.output if isinstance(step.event, Command) else None


def _list_silent_runs(lane: LaneReading) -> Iterable[tuple[str, TraceStep]]:
    """Yield runs that print nothing, each with what is run."""
    for step in lane.commands:
        if isinstance(step.event, Command) and _may_be_silent(step):
            yield step.check.target if step.check else " ".join(step.event.command.split()), step


def _is_accepted(reading: TraceReading, lane: LaneReading, row: Sequence[TraceStep]) -> bool:
    """Whether the output is right, or not what the agent relies on."""
    if states_success(row[-1]) and not _is_mostly_disliked(reading, row):
        return True
    return _is_mostly_liked(reading, row) or _is_judged_elsewhere(lane, row)


def _is_judged_elsewhere(lane: LaneReading, row: Sequence[TraceStep]) -> bool:
    """Whether the agent opens what most runs created, and relies on that."""
    inspected_runs = [
        step
        for step in row
        for following in lane.steps[step.index + 1 : step.index + 2]
        if any("." in path and not is_source_path(path) for path in following.read)
    ]
    return 2 * len(inspected_runs) > len(row)


def _describe_result(step: TraceStep) -> str:
    blocked = step.check is not None and step.check.blocked is not None
    return "could not start, for the same reason," if blocked else "printed the same"


def _starts_as_little(first: TraceStep, second: TraceStep) -> bool:
    """Whether neither could start, for the same reason and with the same last line."""
    if not (first.check and second.check and first.check.blocked):
        return False
    return first.check.blocked == second.check.blocked and last_line(first) == last_line(second)


def _may_be_silent(step: TraceStep) -> bool:
    """Whether it runs the code without a passing or failing check."""
    check, effect = step.check, step.effect
    if effect is None or effect.waits or effect.searches or not runs_program(effect):
        return False
    if getattr(step.event, "stopped", None) == "not executed":
        return False
    if check is None:
        is_key = _KEY_PRESS.fullmatch(getattr(step.event, "command", "")) is not None
        return not is_key and (not step.changed or bool(step.written))
    return check.blocked is not None or (check.tool == "script" and check.failures is None)


def _is_mostly_liked(reading: TraceReading, row: Sequence[TraceStep]) -> bool:
    return 2 * sum(_is_liked(reading, step) for step in row) >= len(row)


def _is_mostly_disliked(reading: TraceReading, row: Sequence[TraceStep]) -> bool:
    """Whether the agent says each time that the output is still wrong, even if it says `1
    passed`."""
    return 4 * sum(_speaks_of(reading, step, _FAILURE_WORDS) for step in row) >= 3 * len(row)


def _is_liked(reading: TraceReading, step: TraceStep) -> bool:
    """Whether the agent's next words accept the output."""
    return _speaks_of(reading, step, _SUCCESS_WORDS) and not any(
        _speaks_of(reading, step, pattern) for pattern in (_FAILURE_WORDS, _DENIED_SUCCESS)
    )


def _speaks_of(reading: TraceReading, step: TraceStep, opinion: re.Pattern[str]) -> bool:
    following = reading.trace.events[step.number : step.number + 1]
    texts = [event.text for event in following if isinstance(event, Thought | Message)]
    return any(opinion.search(text[:_OPINION_CHARS]) for text in texts)
