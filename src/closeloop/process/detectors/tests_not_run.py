"""The project has tests, but only scripts of the agent tried the change.

## What it looks for

The end of the root lane. Code that was there before is changed, something ran after the last
change, and all that ran since the first change are scripts and tests of the agent: files that it
created, or code in the command line. The project has tests, as a listing, a search, an opened file
or the request shows, and none of them was run.

Nothing is reported if a test, a build or another program of the project ran after the first change,
also if it could not start; if a tool or a sub-agent may have run the tests; if the agent says that
it did not test its work or that something is missing; or if the user waived the tests. If nothing
ran after the last change, see [missing-verification](missing-verification.md).

## Why it matters

A script that the agent wrote for one case shows this case. What else the change breaks, the tests
show.

## Bad

```text
#2  ls                           shop  tests  setup.py
#4  edit shop/cart.py
#5  python reproduce.py          12
#6  "The total is right now."
```

## Good

```text
#4  edit shop/cart.py
#5  python reproduce.py          12
#6  pytest -q tests/test_cart.py 14 passed
#7  "The total is right now."
```

## When it can be measured

In every trace with events.

## Thresholds and silencing

It has no thresholds.

```toml
[[silence]]
rule = "tests-not-run"
task = "sketch-*"
reason = "the tests take hours and run in CI"
```

## How sure it is

It is advisory: the tests may not cover the change, or may run elsewhere.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping

from closeloop.process.agent_claims import MAX_MESSAGE_CHARS, NO_END, admits_problem, list_closings
from closeloop.process.edit_contents import (
    find_created_files,
    is_source_path,
    is_test_source,
    list_code_changes,
)
from closeloop.process.rule_helpers import truncate_line, waives_checks
from closeloop.process.verification import EVENT_NUMBER, find_backing, is_run
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Command
from closeloop.text.wording import compile_lazily

rule = Rule(
    name="tests-not-run",
    version=1,
    about="The project has tests, but only scripts of the agent tried the change.",
    severity="info",
)

MAX_LISTED_CHARS = 20_000
"""Characters of an output that are searched for test files."""
MAX_LISTINGS = 60
MAX_RESULT_CHARS = 2_000
"""Characters at both ends of an output that are searched for results of tests."""
_TEST_PATH = compile_lazily(
    r"(?<![\w-])(?:tests|__tests__)(?:/[\w./-]+|(?=/?\s*$))|(?<![\w-])test_\w+\.py\b"
    r"|\b\w+_test\.(?:go|py|rb)\b|[\w-]+\.(?:test|spec)\.[jt]sx?\b",
    re.MULTILINE,
)
"""A test file or a folder of tests in a listing."""
_TEST_RESULTS = compile_lazily(
    r"\b(?:Ran|Found) \d{2,} test|\btest session starts\b|\b\d+ (?:passed|passing)\b"
)
"""A script that runs the tests prints their results."""
_TESTS_NAMED = compile_lazily(
    r"\b(?:test files|test suites?|testing logic|existing tests|unit tests|the tests)\b|\btests/"
)
"""A request that names the tests of the project."""
_SOURCE_NAME = compile_lazily(r"[\w./-]+\.(?:py|[jt]sx?|rb|php)\b")
_INLINE_CODE = compile_lazily(
    r"\b(?:python[\d.]*|node|ruby|php|perl)\s+(?:-\w+\s+)*(?:-[ce]\b|-?\s*<<)"
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Report if existing code was changed, and only the agent's own scripts ran."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    exit_ = reading.attempt.exit if reading.attempt else None
    if exit_ not in (None, "finished") or not reading.lanes or reading.handoffs:
        return []
    root = next(iter(reading.lanes.values()))
    closings = list_closings(root)
    backing = find_backing(list_code_changes(root), ()) if closings else None
    if backing is None or closings[-1].until != NO_END:
        return []
    closing = closings[-1].message
    last_run = _find_last_run(root, backing.last, closing.number)
    if last_run is None:
        return []
    created = find_created_files(root.changes)
    names = frozenset(path.rpartition("/")[2] for path in created)
    start = bisect_left(root.steps, backing.first.number, key=EVENT_NUMBER)
    if not all(_runs_own_script(step, names) for step in root.steps[start:] if is_run(step)):
        return []
    if not any(_changes_existing_code(step, created) for step in root.changes):
        return []
    if admits_problem(closing.text[:MAX_MESSAGE_CHARS].lower()) or waives_checks(reading):
        return []
    tests = _find_tests(root, names)
    if tests is None:
        return []
    command = last_run.event.command if isinstance(last_run.event, Command) else ""
    return [
        make_finding(
            rule,
            f"`{truncate_line(command)}` is the agent's own script; the project's tests "
            f"({truncate_line(tests)}) did not run.",
            [backing.last.number, last_run.number, closing.number],
            lane=root.lane.id,
            confidence=0.8,
        )
    ]


def _find_last_run(root: LaneReading, change: TraceStep, end: int) -> TraceStep | None:
    """Return the last run if it lies between the last change and the end."""
    for step in reversed(root.steps):
        if step.number <= change.number:
            return None
        if is_run(step):
            return step if step.number < end else None
    return None


def _runs_own_script(step: TraceStep, created: frozenset[str]) -> bool:
    """Whether it runs nothing but files that the agent created, or code in the command line."""
    if not isinstance(step.event, Command) or step.effect is None:
        return False
    command = step.event.command
    if {*step.effect.checks} - {"script"}:
        names = {path.rpartition("/")[2] for path in _SOURCE_NAME.findall(command)}
        return bool(names) and names <= created
    output = step.event.output or ""
    if _TEST_RESULTS.search(output[:MAX_RESULT_CHARS] + "\n" + output[-MAX_RESULT_CHARS:]):
        return False
    scripts = {name.rpartition("/")[2] for name in step.effect.runs} - {"activate"}
    return scripts <= created if scripts else _INLINE_CODE.search(command) is not None


def _changes_existing_code(step: TraceStep, created: Mapping[str, int]) -> bool:
    return step.changed and any(
        is_source_path(path) and not is_test_source(path) and path not in created
        for path in step.written
    )


def _find_tests(root: LaneReading, created: frozenset[str]) -> str | None:
    """Return a test of the project that the agent opened or saw in a listing, or that the user
    mentions."""
    for step in root.reads:
        for path in step.read:
            if is_test_source(path) and path.rpartition("/")[2] not in created:
                return path
    if named := _TESTS_NAMED.search((root.request or "")[:MAX_LISTED_CHARS]):
        return f"“{named[0]}” of the request"
    for step in root.steps[:MAX_LISTINGS]:
        text = getattr(step.event, "text", None) or getattr(step.event, "output", None) or ""
        if "test" not in text[:MAX_LISTED_CHARS]:
            continue
        for match in _TEST_PATH.finditer(text[:MAX_LISTED_CHARS]):
            if match[0].rpartition("/")[2] not in created:
                return match[0]
    return None
