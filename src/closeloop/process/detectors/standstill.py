"""The agent's actions give the same result repeatedly: no read, run or message is new.

## What it looks for

Five kinds, in each lane:

- **The same read or run**: the same command has exactly the same output three times, and nothing
  was changed in between by anybody. Commands and names of missing files that differ only in a
  number count from the fifth in a row. So does any command, such as `mkdir -p`, that is repeated to
  the letter three times in a row with the same output.
- **The agent's own script fails the same way**: a script that the agent wrote to try something
  fails with the same error three times in a row, although the agent rewrote it, or what it needs,
  each time; or two errors return that others had replaced. The output in a log counts if the agent
  opens the log.
- **Paging instead of searching**: eight reads in a row show one part of a file after the other, and
  after at least half of them the agent says that it has not found what it looks for, or reads on. A
  search would have shown the place at once.
- **Looking without end**: a change was requested, fifteen reads and searches follow one another,
  whatever they show, and the root lane never changes any code, except in scratch files.
- **Responses without action**: three responses in a row contain only text and no action, although
  the client told the agent after each to continue.

Nothing is reported if the user wrote or the context was truncated in between, if the agent waits or
polls, for tests (a second run may show that they are stable), and for commands that failed (see
[repeated-failure](repeated-failure.md); a search without a match did not fail). The output of a
script counts only if the command was executed. Fixes of the code itself that leave the same failure
are a [spiral](spiral.md).

## Why it matters

Each repetition costs as much as the first and brings nothing new: the agent has lost track of what
it knows, or tries what it cannot do.

## Bad

```text
#3  ls src     cart.py rates.py
#5  ls src     cart.py rates.py
#7  ls src     cart.py rates.py
```

## Good

```text
#3  ls src     cart.py rates.py
#5  cat src/cart.py
```

## When it can be measured

In every trace with events.

## Thresholds and silencing

`times` (3): the minimum number of equal results. `pages` (8): the minimum number of reads in a row.
`looks` (15): the minimum number of reads and searches in a row.

```toml
[rules.standstill]
times = 5

[[silence]]
rule = "standstill"
task = "watch-*"
reason = "these are to look until something changes"
```

## How sure it is

It is advisory: the count is exact, but a second try may have a reason.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from closeloop.process.check_results import LOOK_PROGRAMS, last_line
from closeloop.process.detectors.gave_up_early import CHANGE_WISH, NO_CHANGE_WISH
from closeloop.process.edit_contents import find_created_files, list_code_changes
from closeloop.process.rule_helpers import cite_row, truncate_line
from closeloop.process.verification import EVENT_NUMBER, is_run
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.trace import Command, Message, Read, Thought
from closeloop.text.client_markup import strip_client_markup
from closeloop.text.wording import compile_lazily

rule = Rule(
    name="standstill",
    version=5,
    about="The agent's actions give the same result repeatedly: no read, run or message is new.",
    severity="warning",
    thresholds={"times": 3, "pages": 8, "looks": 15},
)

MAX_CITED = 12
MAX_REQUEST_CHARS = 12_000
MAX_COMMAND_CHARS = 500
"""Longer commands are programs; their numbers are not compared."""
COUNTING_MARGIN = 2
"""Additional repetitions required if a number changes, as it may be a search."""
MIN_RETURNS = 2
MAX_WORDS_CHARS = 1000
"""Characters of a message after a read that are searched."""
MIN_ANSWER_CHARS = 20
"""A shorter answer only ends the work."""
_INTERPRETERS = frozenset(("python", "node", "ruby", "php", "perl", "cd", "echo"))
_SHELL_SETTINGS = frozenset(("cd", "export", "source", "set", "unset"))
"""Commands that prepare the next one and print nothing."""
_ERROR_LINE = re.compile(r"[A-Z]\w*(?:Error|Exception)\b|^(?:error|fatal)\b|\b[Ee]rror:|\bcannot\b")
_SEEKING_WORDS = compile_lazily(
    r"\bstill (?:no|not|don't|haven't)\b|\bunable to (?:find|locate|see)\b"
    r"|\bnot (?:\w+ ){0,3}(?:find\w*|found|see\w*|in (?:this|the)|here|there|present|visible|shown"
    r"|located|yet)\b"
    r"|n['’]t (?:\w+ ){0,3}(?:find|found|seen?|contain|include|show|appear|located?|defined|visible"
    r"|present|here|there|in (?:this|the))\b"
    r"|\b(?:look|search|check|scroll|view|read)\w* (?:even |a bit )?further\b"
    r"|\bnext (?:lines|section)\b"
    r"|\bcontinue (?:viewing|reading|looking|searching|scrolling|to)\b",
    re.IGNORECASE,
)
"""Words of an agent that has not found what it looks for."""
_NUMBER = re.compile(r"\d+")
_REDIRECTION = re.compile(r"[^2<>&|]>>?\s*([\w./-]+)\s*(?:2>&1\s*)?&?\s*$")


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Find rows of reads, runs and answers that bring nothing new."""
    if not reading.trace.events:
        return Unmeasured(rule=rule.name, reason="the trace is empty")
    min_count = int(limits["times"])
    findings = [
        make_finding(rule, message, cite_row(numbers, MAX_CITED), lane=lane.lane.id, confidence=0.9)
        for lane in reading.lanes.values()
        for message, numbers in (
            *_list_rows(lane, min_count),
            *_rows_of_pages(reading, lane, limits["pages"]),
        )
    ]
    findings += _find_endless_looks(reading, int(limits["looks"]), findings)
    return sorted(findings, key=lambda finding: finding.events)


def _find_endless_looks(
    reading: TraceReading, min_count: int, known: Sequence[Finding]
) -> Iterator[Finding]:
    """Report the longest row of looks in the root lane if no code is changed at all."""
    root = next(iter(reading.lanes.values()), None)
    if root is None or reading.handoffs or len(root.users) > 1 or not root.request:
        return
    if len(root.steps) < min_count or list_code_changes(root):
        return
    row = _longest_row_of_looks(root)
    if len(row) < min_count:
        return
    request = strip_client_markup(root.request[:MAX_REQUEST_CHARS]).lower()
    if not CHANGE_WISH.search(request) or NO_CHANGE_WISH.search(request):
        return
    if any(set(finding.events) & set(row) for finding in known):
        return
    yield make_finding(
        rule,
        f"{len(row)} reads and searches follow one another, and no code is ever changed.",
        cite_row(row, MAX_CITED),
        lane=root.lane.id,
        confidence=0.8,
    )


def _longest_row_of_looks(root: LaneReading) -> Sequence[int]:
    longest: list[int] = []
    row: list[int] = []
    for step in root.steps:
        if step.changed or step.written or is_run(step):
            row = []
        elif isinstance(step.event, Read) or step.read or (step.effect and step.effect.searches):
            row.append(step.number)
            longest = row if len(row) > len(longest) else longest
    return longest


def _list_rows(lane: LaneReading, min_count: int) -> Iterator[tuple[str, Sequence[int]]]:
    reported: set[int] = set()
    for row in _same_results(lane, min_count):
        text = truncate_line(getattr(row[0].event, "command", ""))
        message = f"`{text}` showed the same {len(row)} times, without a change in between."
        reported.update(step.number for step in row)
        yield message, [step.number for step in row]
    for row in _idle_rows(lane, min_count):
        numbers = [step.number for step in row]
        if reported.isdisjoint(numbers):
            text = truncate_line(getattr(row[0].event, "command", ""))
            yield f"`{text}` ran {len(row)} times in a row with the same output.", numbers
    for row in _counting_rows(lane, min_count + COUNTING_MARGIN):
        message = f"{len(row)} tries in a row differ only in a number and give the same result."
        yield message, [step.number for step in row]
    for row, behaviour in _alike_scripts(lane, min_count):
        message = f"The agent's own script {behaviour}: {truncate_line(last_line(row[-1]), 100)}"
        yield message, [step.number for step in row]
    for answers in _rows_of_answers(lane, min_count):
        message = f"{len(answers)} responses in a row contain only text: no action in between."
        yield message, [answer.number for answer in answers]


def _same_results(lane: LaneReading, min_count: int) -> Iterator[Sequence[TraceStep]]:
    """Yield the same command in one state of the workspace with the same output."""
    rows: dict[tuple[int, str], list[TraceStep]] = {}
    for step in lane.commands if len(lane.commands) >= min_count else ():
        if isinstance(step.event, Command):
            rows.setdefault((step.state, step.event.command), []).append(step)
    for row in rows.values():
        if len(row) < min_count or not _is_repeatable(row[0]):
            continue
        break_count = _count_breaks(lane, row[0])
        same_runs = [
            step
            for step in row
            if _is_repeatable(step)
            and _count_breaks(lane, step) == break_count
            and _output_of(step) == _output_of(row[0])
        ]
        if len(same_runs) >= min_count:
            yield same_runs


def _idle_rows(lane: LaneReading, min_count: int) -> Iterator[Sequence[TraceStep]]:
    """Yield the same command repeated as the very next action, whatever it changes."""
    row: list[TraceStep] = []
    for step in lane.commands if len(lane.commands) >= min_count else ():
        if row and not (
            _is_again(row[-1], step) and _count_breaks(lane, row[-1]) == _count_breaks(lane, step)
        ):
            if len(row) >= min_count:
                yield row
            row = []
        if _is_idle(step):
            row.append(step)
    if len(row) >= min_count:
        yield row


def _is_again(before: TraceStep, step: TraceStep) -> bool:
    if step.index != before.index + 1:
        return False
    first, second = before.event, step.event
    return (
        isinstance(first, Command)
        and isinstance(second, Command)
        and (first.command, first.output) == (second.command, second.output)
        and (second.turn is None or first.turn != second.turn)
    )


def _is_idle(step: TraceStep) -> bool:
    """Whether it succeeded, and is neither a wait nor a test, which may be repeated on purpose."""
    event, effect = step.event, step.effect
    return (
        isinstance(event, Command)
        and effect is not None
        and not (effect.waits or effect.checks or step.failed or event.stopped)
        and event.output is not None
        and bool(event.command.strip())
    )


def _output_of(step: TraceStep) -> str | None:
    return step.event.output if isinstance(step.event, Command) else None


def _is_repeatable(step: TraceStep) -> bool:
    """Whether it is a read or a script run that did not fail, so that repeating it shows the
    same."""
    effect, event = step.effect, step.event
    if effect is None or effect.waits or step.changed or step.failed:
        return False
    if not isinstance(event, Command) or event.output is None or event.stopped:
        return False
    if not event.command.strip():
        # An empty line waits for a running command.
        return False
    if step.check is not None and step.check.tool != "script":
        return False
    if _SHELL_SETTINGS.issuperset(effect.programs):
        return False
    return all(name in LOOK_PROGRAMS or name in _INTERPRETERS for name in effect.programs)


def _count_breaks(lane: LaneReading, step: TraceStep) -> tuple[int, int]:
    """Return how often the user had spoken and the context had been compacted by then."""
    users = bisect_left(lane.users, step.number, key=lambda message: message.number)
    return users, bisect_left(lane.compactions, step.number)


def _counting_rows(lane: LaneReading, min_count: int) -> Iterator[Sequence[TraceStep]]:
    """Yield consecutive tries of one command or file name with changing numbers."""
    row: list[TraceStep] = []
    last = ""
    for step in (*lane.steps, None) if len(lane.steps) >= min_count else ():
        text = _name_attempt(step) if step is not None else ""
        if not _differ_in_number(last, text):
            if len(row) >= min_count and _come_out_alike(row, min_count):
                yield row
            row = []
        last = text
        if step is not None and text:
            row.append(step)


def _name_attempt(step: TraceStep) -> str:
    """Return what was tried: a missing file, or a command."""
    event = step.event
    if type(event) is Command:
        return event.command if len(event.command) <= MAX_COMMAND_CHARS else ""
    return event.path if type(event) is Read and event.ok is False else ""


def _differ_in_number(first: str, second: str) -> bool:
    """Whether they are equal except for their numbers; most differ at the start and are skipped."""
    if not first or first[:8] != second[:8]:
        return False
    return first == second or _NUMBER.sub("#", first) == _NUMBER.sub("#", second)


def _come_out_alike(row: Sequence[TraceStep], min_count: int) -> bool:
    """Whether they differ in a number, and their results do not."""
    if isinstance(row[0].event, Read):
        inputs = {step.event.path for step in row if isinstance(step.event, Read)}
        return len(inputs) >= min_count
    inputs = {step.event.command for step in row if isinstance(step.event, Command)}
    if len(inputs) < min_count or not all(map(_is_repeatable, row)):
        return False
    return len({_NUMBER.sub("#", last_line(step)) for step in row}) == 1


def _alike_scripts(lane: LaneReading, min_count: int) -> Iterator[tuple[Sequence[TraceStep], str]]:
    """Yield runs of the agent's own script that end in the same error after each rewrite, or
    alternate between errors.
    """
    if len(lane.commands) < min_count or len(lane.changes) < min_count:
        return
    created = set(map(_base_name, find_created_files(lane.changes)))
    if not created:
        return
    runs: dict[str, list[TraceStep]] = {}
    for name, step in _own_runs(lane, created):
        runs.setdefault(name, []).append(step)
    for steps in runs.values():
        if len(steps) < min_count:
            continue
        rows = list(_rows_of_errors(lane, steps, created))
        longest = max(rows, key=len, default=[])
        turns = [row[0] for row in rows]
        if len({last_line(step) for step in turns}) == 1:
            longest = [step for row in rows for step in row]
        if len(longest) >= min_count:
            yield longest, "failed the same way, however it was rewritten"
        elif _count_returns(turns) >= MIN_RETURNS:
            yield turns, "alternated between errors"


def _own_runs(lane: LaneReading, created: set[str]) -> Iterator[tuple[str, TraceStep]]:
    """Yield runs of scripts that the agent wrote; if one writes a log, the reads of it."""
    logs: dict[str, str] = {}
    for step in lane.commands:
        if isinstance(step.event, Command) and step.event.stopped == "not executed":
            continue
        name = _own_script(step, created)
        if name is not None and not step.failed and (log := _log_of(step)):
            logs[log] = name
            continue
        name = name or next((logs[log] for log in map(_base_name, step.read) if log in logs), None)
        if name is not None:
            yield name, step


def _rows_of_errors(
    lane: LaneReading, steps: Sequence[TraceStep], created: set[str]
) -> Iterator[list[TraceStep]]:
    """Yield consecutive runs with one error, each after a rewrite; a success ends the row."""
    row: list[TraceStep] = []
    for step in steps:
        fails = _ERROR_LINE.search(last_line(step)) is not None
        if row and (not fails or last_line(step) != last_line(row[-1])):
            yield row
            row = []
        if fails and (not row or _is_rewritten(lane, row[-1], step, created)):
            row.append(step)
    if row:
        yield row


def _count_returns(turns: Sequence[TraceStep]) -> int:
    """Count how often an error returned after another one."""
    errors: list[str] = []
    returns = 0
    for step in turns:
        error = last_line(step)
        returns += error in errors[:-1]
        errors.append(error)
    return returns


def _own_script(step: TraceStep, created: set[str]) -> str | None:
    """Return the last script that a command runs, if the agent wrote it."""
    names = list(map(_base_name, step.effect.runs if step.effect else ()))
    return names[-1] if names and names[-1] in created else None


def _log_of(step: TraceStep) -> str | None:
    """Return the file into which a command writes its output."""
    match = _REDIRECTION.search(getattr(step.event, "command", ""))
    return _base_name(match[1]) if match else None


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_rewritten(
    lane: LaneReading, before: TraceStep, after: TraceStep, created: set[str]
) -> bool:
    """Whether only the agent's own files were changed since: no fix of the code was tried."""
    begin = bisect_left(lane.changes, before.number + 1, key=EVENT_NUMBER)
    end = bisect_left(lane.changes, after.number + 1, key=EVENT_NUMBER)
    written_names = {_base_name(path) for step in lane.changes[begin:end] for path in step.written}
    return bool(written_names) and written_names <= created


def _rows_of_pages(
    reading: TraceReading, lane: LaneReading, min_count: float
) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield consecutive reads of one file by an agent that looks for something."""
    row: list[TraceStep] = []
    for step in (*filter(_is_page, lane.reads), None) if len(lane.reads) >= min_count else ():
        if row and (
            step is None or step.index != row[-1].index + 1 or step.read[0] != row[0].read[0]
        ):
            if len(row) >= min_count and _is_sought(reading, lane, row):
                path = truncate_line(row[0].read[0], 100)
                message = f"{len(row)} reads in a row look for something in {path}: no search."
                yield message, [read.number for read in row]
            row = []
        if step is not None:
            row.append(step)


def _is_page(step: TraceStep) -> bool:
    is_search = step.effect is not None and step.effect.searches
    return not (step.failed or step.changed or step.check or is_search)


def _is_sought(reading: TraceReading, lane: LaneReading, row: Sequence[TraceStep]) -> bool:
    """Whether most reads show another part, and the agent searches on after half of them."""
    texts = {getattr(step.event, "text", None) or _output_of(step) for step in row}
    agent_texts = [
        event.text[:MAX_WORDS_CHARS]
        for event in reading.trace.events[row[0].number : row[-1].number]
        if isinstance(event, Thought | Message) and event.lane == lane.lane.id
    ]
    seeking_count = sum(_SEEKING_WORDS.search(text) is not None for text in agent_texts)
    return 4 * len(texts) >= 3 * len(row) and 2 * seeking_count >= len(row) - 1


def _rows_of_answers(lane: LaneReading, min_count: int) -> Iterator[Sequence[Message]]:
    """Yield answers between which the client spoke and nobody did anything."""
    row: list[Message] = []
    is_prompted = False
    prompts = sum(message.role == "system" for message in lane.messages)
    for message in lane.messages if prompts >= min_count - 1 else ():
        if message.role == "system":
            is_prompted = True
            continue
        if row and (
            message.role == "user"
            or not is_prompted
            or _has_step_between(lane, row[-1].number, message.number)
        ):
            if len(row) >= min_count:
                yield row
            row = []
        if message.role == "agent" and len(message.text.strip()) >= MIN_ANSWER_CHARS:
            row.append(message)
        is_prompted = False
    if len(row) >= min_count:
        yield row


def _has_step_between(lane: LaneReading, first: int, last: int) -> bool:
    index = bisect_left(lane.steps, first, key=EVENT_NUMBER)
    return index < len(lane.steps) and lane.steps[index].number < last
