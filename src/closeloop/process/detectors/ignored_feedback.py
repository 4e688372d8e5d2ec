"""A check failed, and the agent continued without using its output.

## What it looks for

Every failing check, up to the next comparable one, is one cycle, judged by its effect. The feedback
was **used** if the failures are gone, fewer or different then, or if a check that could not run
runs now. It was **not used** if the same failures return after changed code, if the check is
repeated without a change, or if the agent claims success despite them. If no comparable check and
no claim follows, the cycle is open and does not count. Fixing the cause in a file that the output
does not name counts as use; rewording the same fix does not, nor does going back to failures that
were there before, nor a fix that is undone by the next, twice or more. A change of the failing test
alone is none either: it is deleted, skipped or mocked, or made to agree with the value that the
unchanged code gives (`jest -u` too). Neither is a mark that silences a tool (`# noqa`), nor a
setting that lets the check find less: a rule switched off, a threshold lowered, `|| true`. All that
counts as use if the user asked for it. A check that passes by chance, without any change, is
neither; the next change decides.

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

Also reported is a Python script of the agent that **fails by itself**: it does not parse, imports
what is not there, or its framework is not configured, and the request does not mention this error.
The agent next changes the project's code without another run and without trying to change the
script; then the script fails in the same way, or is left as it is while no run ever succeeds.

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

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping

from closeloop.process.edit_contents import find_created_files, is_scratch_path, is_source_path
from closeloop.process.feedback_use import FeedbackUse, list_feedback_uses
from closeloop.process.rule_helpers import (
    describe_failures,
    explain_unreadable_checks,
    truncate_line,
)
from closeloop.process.verification import EVENT_NUMBER, is_run, is_sure_failure
from closeloop.records.change import LaneReading, TraceCheck, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.record import Record
from closeloop.records.trace import Command
from closeloop.text.wording import compile_lazily

rule = Rule(
    name="ignored-feedback",
    version=7,
    about="A check failed, and the agent continued without using its output.",
    severity="warning",
)

_CONSEQUENCES = {
    "returned": "it failed the same way after an unrelated change",
    "repeated": "it was run again without any change",
    "claimed": "success was claimed next",
}


MAX_OUTPUT_CHARS = 20_000
MAX_REQUEST_CHARS = 12_000
_OWN_FAULT = compile_lazily(
    r"^(?:\w+\.)*(?P<kind>SyntaxError|IndentationError|ImportError|ModuleNotFoundError|NameError"
    r"|UnboundLocalError|FileNotFoundError|ImproperlyConfigured|AppRegistryNotReady)\b[^\n\[]*",
    re.MULTILINE,
)
"""Errors of a script that was written or set up wrongly."""
_FRAMEWORK_FAULTS = frozenset(("ImproperlyConfigured", "AppRegistryNotReady"))
"""They are raised inside the framework, not in the script."""
_FRAME = compile_lazily(r'^ *File "([^"\n]+)", line \d', re.MULTILINE)
_SETUP_FILE = re.compile(r"(?:^|/)[^/]*(?:settings|config|conf|setup)[^/]*\.\w+$")


class BrokenScript(Record):
    """A failing run of the agent's own script, and why it failed by itself."""

    step: TraceStep
    names: frozenset[str]
    error: str


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find failing checks whose output the agent did not use before its next check."""
    if reason := explain_unreadable_checks(reading):
        return Unmeasured(rule=rule.name, reason=reason)
    findings = []
    for lane in reading.lanes.values():
        findings += [
            _build_finding(use, lane) for use in list_feedback_uses(lane) if _is_ignored(use)
        ]
        cited = {number for finding in findings for number in finding.events}
        findings += [
            finding
            for finding in _find_unrepaired_scripts(lane)
            if cited.isdisjoint(finding.events)
        ]
    return findings


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


def _find_unrepaired_scripts(lane: LaneReading) -> Iterator[Finding]:
    """Yield a finding for each script that failed by itself while the code was changed instead."""
    failing = [step for step in lane.failing if isinstance(step.event, Command)]
    own_names = (
        {path.rpartition("/")[2] for path in find_created_files(lane.changes)} if failing else set()
    )
    reported: set[str] = set()
    for step in failing:
        script = _find_broken_script(lane, step, own_names) if own_names else None
        if script is None or not reported.isdisjoint(script.names):
            continue
        change = _find_change_instead(lane, script, own_names)
        if change is None:
            continue
        again = _find_next_run(lane, script, change)
        if again is None and not _is_left(lane, script, change):
            continue
        reported |= script.names
        yield make_finding(
            rule,
            f"{', '.join(sorted(script.names))} failed by itself ({truncate_line(script.error)}), "
            f"and {truncate_line(change.written[0])} was changed instead.",
            (step.number, change.number, *([again.number] if again else [])),
            lane=lane.lane.id,
            confidence=0.8,
        )


def _find_broken_script(
    lane: LaneReading, step: TraceStep, own_names: set[str]
) -> BrokenScript | None:
    """Return the agent's script that a step ran, if its own error ended it."""
    names = frozenset(name.rpartition("/")[2] for name in (step.effect.runs if step.effect else ()))
    if not names or not names <= own_names or not isinstance(step.event, Command):
        return None
    output = (step.event.output or "")[-MAX_OUTPUT_CHARS:]
    faults = list(_OWN_FAULT.finditer(output))
    if not faults:
        return None
    fault = faults[-1]
    request = (lane.request or "")[:MAX_REQUEST_CHARS]
    if fault["kind"] in request or fault[0].strip() in request:
        return None
    *_, innermost = ["", *_FRAME.findall(output)]
    if innermost.rpartition("/")[2] not in names and fault["kind"] not in _FRAMEWORK_FAULTS:
        return None
    return BrokenScript(step=step, names=names, error=fault[0].strip())


def _find_change_instead(
    lane: LaneReading, script: BrokenScript, own_names: set[str]
) -> TraceStep | None:
    """Return the next change, if it is of the project's code and nothing ran before it."""
    index = bisect_right(lane.changes, script.step.number, key=EVENT_NUMBER)
    change = next((step for step in lane.changes[index:] if step.written), None)
    if change is None or any(
        path.rpartition("/")[2] in own_names
        or is_scratch_path(path)
        or not is_source_path(path)
        or _SETUP_FILE.search(path)
        for path in change.written
    ):
        return None
    between = lane.steps[script.step.index + 1 : change.index]
    if any(is_run(step) or _touches_script(step, script) for step in between):
        return None
    return change


def _touches_script(step: TraceStep, script: BrokenScript) -> bool:
    """Whether it changes the script, tries to, or runs it."""
    paths = [*step.written, *(step.effect.runs if step.effect else ())]
    return any(path.rpartition("/")[2] in script.names for path in paths)


def _find_next_run(lane: LaneReading, script: BrokenScript, change: TraceStep) -> TraceStep | None:
    """Return the next run of the unchanged script, if it fails in the same way."""
    for step in lane.steps[change.index + 1 :]:
        if step.changed and any(path.rpartition("/")[2] in script.names for path in step.written):
            return None
        runs = step.effect.runs if step.effect else ()
        if any(name.rpartition("/")[2] in script.names for name in runs):
            output = step.event.output if isinstance(step.event, Command) else None
            return step if script.error in (output or "")[-MAX_OUTPUT_CHARS:] else None
    return None


def _is_left(lane: LaneReading, script: BrokenScript, change: TraceStep) -> bool:
    """Whether the script is not touched after the change, and nothing that runs succeeds."""
    later = lane.steps[change.index + 1 :]
    return bool(later) and not any(
        _touches_script(step, script) or (step.failed is not True and is_run(step))
        for step in later
    )
