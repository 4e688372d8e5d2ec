"""The agent ends while the last run of its work fails, and does not report it.

## What it looks for

The end of the root lane. Code was changed; everything that ran after the last change failed (tests,
or a script that tries the code and crashes) or could not run; nothing was changed after that; and
the agent hands over as if all were well: its last message mentions no failure, no error and nothing
that it could not do. Calling the tool that ends the work counts as handing over.

Also reported, whether or not the agent hands over: its last run fails because a file that it
changed is no longer valid Python (`SyntaxError`, `IndentationError`), and this file is not fixed.

Nothing is reported if

- something ran successfully after the last change;
- the agent mentions the failure, or said after it that it is expected or not its own;
- the changed code is supposed to raise this error, or it is the exit code of another program that
  the script starts;
- a server or another endless run was stopped;
- the same tests failed before the agent changed anything;
- the user stopped the agent, or rejected the command;
- the agent claims success while tests fail or could not run: this is reported by
  [false-claim](false-claim.md) and [unverified-claim](unverified-claim.md).

If the agent says that it could not do it, [gave-up-early](gave-up-early.md) reports it.

## Why it matters

The output showed what is wrong. The next person believes that the work was tested.

## Bad

```text
#3  edit dates.py
#4  python reproduce.py     ValueError: day is out of range for month
#5  (ends)
```

## Good

```text
#3  edit dates.py
#4  python reproduce.py     ValueError: day is out of range for month
#5  edit dates.py
#6  python reproduce.py     2024-02-29
#7  (ends)
```

## When it can be measured

In every trace with events.

## Thresholds and silencing

It has no thresholds.

```toml
[[silence]]
rule = "left-failing"
task = "sketch-*"
reason = "these are only to show the way"
```

## How sure it is

It may gate. A script may be intended to end with an error: then the agent should say so.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from operator import attrgetter

from closeloop.process.agent_claims import (
    MAX_MESSAGE_CHARS,
    NO_END,
    ClosingMessage,
    list_closings,
    parse_claim,
)
from closeloop.process.edit_contents import find_created_files, is_source_path, list_code_changes
from closeloop.process.rule_helpers import truncate_line
from closeloop.process.verification import (
    EVENT_NUMBER,
    could_not_run,
    find_backing,
    has_failed_before,
    is_run,
    list_trace_checks,
)
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Command, Message, Thought
from closeloop.text.wording import compile_lazily

MAX_OUTPUT_CHARS = 4000
"""Characters at the end of an output that are searched for an error."""
MIN_LATER = 3
"""Answered steps that must follow a crashed run, so that there was time to fix it."""

rule = Rule(
    name="left-failing",
    version=4,
    about="The agent ends while the last run of its work fails, and does not report it.",
    severity="error",
    gates=True,
)

_OWNING_UP = compile_lazily(
    r"\b(?:no longer|fail\w*|error\w*|exceptions?|traceback|unable|cannot|can't|still|lost|broken"
    r"|(?:could|was|did|does|do|is|are) ?n[o']t|expected|unrelated|pre-?existing|environment\w*"
    r"|raises?d?|rejects?|missing"
    r"|no (?:\w+ )?tests?|(?:different|another|other|new) (?:issue|problem)s?"
    r"|not (?:installed|available|able|yet|run)|however|unfortunately|unresolved|limitations?"
    r"|warnings?|not resolved|reproduc\w+ (?:step|script) (?:needs|requires))\b"
)
"""Words that may mention the failure."""
_EXPLANATION = compile_lazily(
    r"\b(?:expected|unrelated|not related|pre-?existing|environment\w*|intended"
    r"|correctly raise[sd]?|network|connection|not (?:due|caused|because)|sandbox"
    r"|as (?:it )?should)\b"
)
_ERROR = compile_lazily(
    r"^Traceback \(most recent|^[\w.]*(?:Error|Exception)\b|^(?:ERROR|FAILED)\b", re.M
)
_ERROR_NAME = compile_lazily(r"^([\w.]*[A-Z]\w*)(?=: |$)", re.M)
_UNREADABLE_FILE = compile_lazily(
    r'File "([^"\n]+\.py)", line \d+\n(?:[ \t]+[^\n]*\n){0,4}'
    r"(SyntaxError|IndentationError|TabError)\b"
)
_MEANT_TO_FAIL = compile_lazily(r"\bassert (?:0|False)\b|\bpytest\.fail\b")
_REFUSED = compile_lazily(
    r"doesn't want to proceed|was rejected|denied by|interrupted by user", re.I
)


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Report if all runs since the root's last change failed, and the agent does not say so."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    if not reading.lanes:
        return []
    root = next(iter(reading.lanes.values()))
    if broken_finding := _find_broken_code(root):
        return [broken_finding]
    if reading.attempt is not None and reading.attempt.exit not in (None, "finished"):
        return []
    closing = _last_closing(root)
    changes = list_code_changes(root)
    checks = list_trace_checks(reading)
    backing = find_backing(changes, checks) if closing is not None else None
    if closing is None or backing is None or backing.last.number > closing.message.number:
        return []
    runs = _runs_between(root, backing.last, closing.message.number)
    if not runs or not all(map(_fails, runs)) or _is_explained(reading, closing, runs[-1]):
        return []
    failing = runs[-1]
    if _raises_on_purpose(failing, changes) or _has_later_change(root, failing):
        return []
    if _runs_tests(failing) and (
        parse_claim(closing.message) is not None
        or has_failed_before(failing, backing.first, checks)
    ):
        return []
    outcome = "could not run" if could_not_run(failing) else "failed"
    return [
        make_finding(
            rule,
            f"It ended after `{truncate_line(getattr(failing.event, 'command', ''))}` "
            f"{outcome}, and did not report it.",
            [closing.message.number, failing.number, backing.last.number],
            lane=root.lane.id,
            confidence=0.9,
        )
    ]


def _find_broken_code(root: LaneReading) -> Finding | None:
    """Report if the last run could not parse a changed file that was not changed since."""
    runs = [step for step in root.commands if is_run(step) and not _is_unanswered(step)]
    if not runs or runs[-1].failed is not True:
        return None
    later_steps = [step for step in root.steps[runs[-1].index + 1 :] if step.failed is not None]
    output = getattr(runs[-1].event, "output", None) or ""
    matches = list(_UNREADABLE_FILE.finditer(output[-MAX_OUTPUT_CHARS:]))
    if not matches or len(later_steps) < MIN_LATER:
        return None
    match = matches[-1]
    changed = [step for step in list_code_changes(root) if _writes_file(step, match[1])]
    if not changed or changed[0].number > runs[-1].number or _is_touched_since(root, runs[-1]):
        return None
    return make_finding(
        rule,
        f"`{truncate_line(getattr(runs[-1].event, 'command', ''))}` stopped with "
        f"{match[2]} in {truncate_line(match[1], 100)}, which the agent had changed "
        "and did not fix.",
        [changed[0].number, runs[-1].number],
        lane=root.lane.id,
        confidence=0.9,
    )


def _is_unanswered(step: TraceStep) -> bool:
    return isinstance(step.event, Command) and step.event.output is None


def _writes_file(step: TraceStep, path: str) -> bool:
    return any(
        path.endswith(written_path) or written_path.endswith(path) for written_path in step.written
    )


def _is_touched_since(root: LaneReading, run: TraceStep) -> bool:
    """Whether something was changed since; an edit without an answer is uncertain."""
    start = bisect_right(root.changes, run.number, key=EVENT_NUMBER)
    return any(step.failed is False or step.effect is not None for step in root.changes[start:])


def _last_closing(root: LaneReading) -> ClosingMessage | None:
    """Return the message or call with which it finally ends."""
    closings = list_closings(root)
    last = closings[-1] if closings else None
    return last if last is not None and last.until == NO_END else None


def _runs_between(root: LaneReading, change: TraceStep, until: int) -> Sequence[TraceStep]:
    start = bisect_left(root.commands, change.number, key=EVENT_NUMBER)
    end = bisect_left(root.commands, until, key=EVENT_NUMBER)
    return [step for step in root.commands[start:end] if is_run(step)]


def _fails(step: TraceStep) -> bool:
    """Whether it crashed and shows why, or is a test runner that could not start."""
    event = step.event
    if not isinstance(event, Command) or event.stopped is not None or not event.output:
        return False
    if not event.exit_code or _MEANT_TO_FAIL.search(event.command):
        return False
    if could_not_run(step):
        return _runs_tests(step) and _REFUSED.search(event.output[:2000]) is None
    failures = step.check.failures if step.check else None
    if failures is not None and failures.parser != "tail":
        return True
    return step.failed is True and _ERROR.search(event.output[-MAX_OUTPUT_CHARS:]) is not None


def _is_explained(reading: TraceReading, closing: ClosingMessage, failing: TraceStep) -> bool:
    """Whether its last message mentions a failure, or its thoughts say that it is none."""
    lower_text = closing.message.text[:MAX_MESSAGE_CHARS].lower().replace("’", "'")
    if closing.message.intent == "question" or _OWNING_UP.search(lower_text):
        return True
    events = reading.trace.events
    start = bisect_left(events, failing.number, key=attrgetter("number"))
    return any(
        isinstance(event, Thought | Message)
        and _EXPLANATION.search(event.text[:MAX_MESSAGE_CHARS].lower())
        for event in events[start:]
    )


def _raises_on_purpose(failing: TraceStep, changes: Sequence[TraceStep]) -> bool:
    """Whether the error is one that the changed code raises, or another program's exit code.

    Both may be what was requested.
    """
    output = failing.event.output if isinstance(failing.event, Command) else None
    names = _ERROR_NAME.findall((output or "")[-MAX_OUTPUT_CHARS:])
    if not names:
        return False
    name = names[-1].rpartition(".")[2]
    if name == "CalledProcessError" and not _runs_tests(failing):
        return True
    raise_text = f"raise {name}"
    return any(
        raise_text in (edit.after or edit.patch or "") for step in changes for edit in step.edits
    )


def _has_later_change(root: LaneReading, failing: TraceStep) -> bool:
    """Whether existing source code was changed after the failing run."""
    start = bisect_right(root.changes, failing.number, key=EVENT_NUMBER)
    later_paths = {path for step in root.changes[start:] if step.changed for path in step.written}
    return any(map(is_source_path, later_paths - find_created_files(root.changes).keys()))


def _runs_tests(step: TraceStep) -> bool:
    """Whether it is more than a script, which may show the very failure to be fixed."""
    if step.check is None:
        return False
    failures = step.check.failures
    return step.check.tool != "script" or (
        failures is not None and failures.parser not in ("tail", "traceback", "launch")
    )
