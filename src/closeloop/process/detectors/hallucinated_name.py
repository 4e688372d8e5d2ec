"""The agent used a name that no output showed, and a result shows it does not exist.

## What it looks for

A failing result names something that does not exist: an attribute, an imported name, a submodule, a
keyword argument, a function, a command-line option (Python, TypeScript, JavaScript, Go, Rust and
common option parsers). The name is reported if

- the lane introduced it, with an edit or with a script of more than one or two lines in a command;
- no earlier text showed it: no file, no output, no message of the user, no brief;
- the agent does not define it anywhere, before or after.

Not reported are: a test written before its function, a package or a plug-in that is not installed,
a forgotten import that is added later, names with fewer than four characters, attributes of numbers
and of None, and one-line commands that only test whether something exists. A guessed path that does
not exist is exploration; three or more are reported if no listing, output or message had shown any
of them.

Invented text counts too: an edit replaces lines of a file that the agent never opened, most of
these lines were never shown, and the tool reports that they do not exist.

## Why it matters

An invented name that fails immediately costs a turn. The same habit also invents names in code that
no test runs.

## Bad

```text
#2  read  client.py       class Client: def get(self, path)
#3  edit  orders.py       client.fetch_all_pages('/orders')
#4  pytest -q             AttributeError: 'Client' object has no attribute 'fetch_all_pages'
```

## Good

```text
#2  read  client.py       class Client: def get(self, path)
#3  edit  orders.py       client.get('/orders')
#4  pytest -q             12 passed
```

## When it can be measured

If the trace contains what the agent read. Names that never fail in the trace are not found.

## Thresholds and silencing

It has no thresholds.

```toml
[rules.hallucinated-name]
enabled = false

[[silence]]
rule = "hallucinated-name"
path = "**/*.ipynb"
reason = "notebooks try things out"
```

## How sure it is

It may gate, with confidence 0.9. Every finding is based on a failure that names the missing thing;
the remaining doubt is whether unrecorded text had shown it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter

from ahocorasick_rs import AhoCorasick

from closeloop.process.edit_contents import diff_edit, find_created_files, list_trace_changes
from closeloop.process.rule_helpers import truncate_line
from closeloop.process.stale_files import ABSENT_MESSAGES, ABSENT_TEXT, error_mentions
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.record import Record
from closeloop.records.trace import AnyEvent, Command, Edit, Handoff, Message, Read, ToolUse
from closeloop.text.code_patterns import (
    NAME_DEFINITION,
    MissingName,
    MissingNameKind,
    find_missing_names,
)

rule = Rule(
    name="hallucinated-name",
    version=5,
    about="The agent used a name that no output showed, and a result shows it does not exist.",
    severity="warning",
    mode="hallucinated API",
    gates=True,
)
MAX_NAMES = 40
"""Names of one lane that are examined."""
_MAX_EXAMINED_NAMES = 200
_MAX_CHANGES_BACK = 40
"""Earlier changes that may have introduced a name."""
_MAX_TEXT_CHARS = 100_000
_MIN_SCRIPT_LINES = 3
_MIN_PATHS = 3
"""This many missing paths are invented, not just tried."""
_MIN_LINE_CHARS = 7
_MAX_LINES = 6
_MAX_STEPS_BACK = 300
"""Earlier results that are searched for a text."""
_MAX_CITED = 8

# A bare word may be a typo; a call of a name that never existed is more than that.
_AFTER_NAME: Mapping[MissingNameKind, re.Pattern[str]] = {
    "name": re.compile(r"\s*\("),
    "keyword": re.compile(r"\s*="),
}
_NAME_END = re.compile(r"(?!\w)")
_NO_WORD, _NO_OPTION = re.compile(r"\W?\Z"), re.compile(r"[^\w-]?\Z")
"""What may precede a name, and an option."""


class _MissingNameUse(Record):
    missing: MissingName
    failing: TraceStep
    step: TraceStep
    """The step that introduced the name."""


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Report one finding per name, where it first failed."""
    invention_findings = [
        finding for lane in reading.lanes.values() for finding in _find_inventions(lane)
    ]
    uses_by_name: dict[str, _MissingNameUse] = {}
    for lane in reading.lanes.values():
        for use in islice(_find_uses(lane), MAX_NAMES):
            uses_by_name.setdefault(use.missing.name, use)
    if not uses_by_name:
        return invention_findings
    reads = [step for lane in reading.lanes.values() for step in lane.steps if step.read]
    if reads and all(_shown_text(step.event) is None for step in reads):
        return Unmeasured(
            rule=rule.name, reason="the trace does not contain the output that the agent saw"
        )
    _drop_known_names(reading, uses_by_name)
    _drop_own_modules(reading, uses_by_name)
    findings = [*invention_findings, *(_build_finding(use) for use in uses_by_name.values())]
    return sorted(findings, key=lambda finding: min(finding.events))


def _find_inventions(lane: LaneReading) -> Iterator[Finding]:
    """Find lines and paths that nothing had shown and that do not exist."""
    edits, paths = _list_absent(lane)
    for path, steps in edits.items():
        if unseen := [step for step in steps if _invents_text(lane, step)]:
            yield make_finding(
                rule,
                f"{truncate_line(path, 100)} was never opened, and the text to be "
                "replaced in it does not exist.",
                [step.number for step in unseen],
                lane=lane.lane.id,
                confidence=0.9,
            )
    if len(paths) < _MIN_PATHS:
        return
    guessed_steps = [
        step for path, step in paths.items() if not _path_was_shown(lane, path, step.number)
    ]
    if len(guessed_steps) >= _MIN_PATHS:
        yield make_finding(
            rule,
            f"{len(guessed_steps)} files or folders that no output had shown were opened, "
            "and none exists.",
            [step.number for step in guessed_steps],
            lane=lane.lane.id,
            confidence=0.9,
        )


def _list_absent(
    lane: LaneReading,
) -> tuple[Mapping[str, list[TraceStep]], Mapping[str, TraceStep]]:
    """Return first edits of unread files whose text is missing, and missing paths."""
    edits: dict[str, list[TraceStep]] = {}
    paths: dict[str, TraceStep] = {}
    opened_names: set[str] = set()
    is_needed = any(isinstance(step.event, Edit | Read) for step in lane.failing)
    for step in lane.steps if is_needed else ():
        event = step.event
        opened_names.update(path.rpartition("/")[2] for path in step.read)
        if step.changed:
            opened_names.update(path.rpartition("/")[2] for path in step.written)
        if not step.failed or len(edits) + len(paths) >= MAX_NAMES:
            continue
        if isinstance(event, Edit) and event.path.rpartition("/")[2] not in opened_names:
            row = edits.get(event.path, [])
            if len(row) < _MAX_CITED and error_mentions(event.error, ABSENT_TEXT):
                edits[event.path] = [*row, step]
        elif isinstance(event, Read) and error_mentions(event.error, ABSENT_MESSAGES):
            paths.setdefault(event.path.rstrip("/"), step)
    return edits, dict(islice(paths.items(), _MAX_CITED))


def _invents_text(lane: LaneReading, step: TraceStep) -> bool:
    """Whether no command had named the file, and most lines had been shown nowhere."""
    event = step.event
    assert isinstance(event, Edit), event
    name = event.path.rpartition("/")[2]
    if any(name in getattr(earlier.event, "command", "") for earlier in lane.steps[: step.index]):
        return False
    lines = [line.strip() for line in (event.before or "").splitlines()]
    lines = [line for line in lines if len(line) >= _MIN_LINE_CHARS][:_MAX_LINES]
    unseen = [line for line in lines if not _was_shown(lane, line, step.number)]
    return 2 * len(unseen) > len(lines)


def _was_shown(lane: LaneReading, text: str, before: int) -> bool:
    """Whether a result or somebody else's message had shown it."""
    return any(text in shown_text for _, shown_text in _list_shown(lane, before))


def _path_was_shown(lane: LaneReading, path: str, before: int) -> bool:
    """Whether a result had named the file and its folder, or somebody else the end of the path."""
    parts = path.split("/")
    folder_and_name, end = parts[-2:], "/".join(parts[-3:])
    return any(
        end in shown_text or (is_result and all(part in shown_text for part in folder_and_name))
        for is_result, shown_text in _list_shown(lane, before)
    )


def _list_shown(lane: LaneReading, before: int) -> Iterator[tuple[bool, str]]:
    """Yield what was shown before an event, and whether a result showed it."""
    end = bisect_left(lane.steps, before, key=attrgetter("event.number"))
    for step in lane.steps[max(0, end - _MAX_STEPS_BACK) : end]:
        if not isinstance(step.event, Edit) and (text := _shown_text(step.event)):
            yield True, text[:_MAX_TEXT_CHARS]
    for message in lane.messages[:_MAX_STEPS_BACK]:
        if message.number < before and (text := _shown_text(message)):
            yield False, text[:_MAX_TEXT_CHARS]


def _find_uses(lane: LaneReading) -> Iterator[_MissingNameUse]:
    """Yield names reported as missing that this lane itself had introduced."""
    examined_names: set[str] = set()
    steps = lane.steps if None in [step.failed for step in lane.steps] else lane.failing
    for step in steps:
        if step.failed is False:
            continue
        output = getattr(step.event, "output", None)
        if not output or not (step.failed or _ends_in_traceback(step, output)):
            continue
        for missing in find_missing_names(output):
            if missing.name in examined_names:
                continue
            examined_names.add(missing.name)
            end = bisect_left(lane.changes, step.number, key=attrgetter("event.number"))
            introduction = _find_introduction(
                missing, step, lane.changes[max(0, end - _MAX_CHANGES_BACK) : end]
            )
            if introduction is not None:
                yield _MissingNameUse(missing=missing, failing=step, step=introduction)
        if len(examined_names) > _MAX_EXAMINED_NAMES:
            return


def _ends_in_traceback(step: TraceStep, output: str) -> bool:
    """Whether the program's output, and not a file that it shows, has a traceback."""
    shows = step.effect is None or step.effect.searches or bool(step.read)
    return not shows and "Traceback (most recent call last)" in output


def _find_introduction(
    missing: MissingName, failing: TraceStep, changes: Sequence[TraceStep]
) -> TraceStep | None:
    if missing.sort == "option":
        return failing if _uses_name(getattr(failing.event, "command", ""), missing) else None
    name = missing.name.rpartition(".")[2]
    for step in reversed(changes):
        if name in _written_text(step.event) and _uses_name(_added_text(step.event), missing):
            return step
    return failing if _uses_name(_inline_script(failing.event), missing) else None


def _added_text(event: AnyEvent) -> str:
    """Return what an action wrote."""
    if isinstance(event, Edit):
        lines = diff_edit(event)
        return "\n".join(lines.added) if lines else event.after or ""
    return _inline_script(event)


def _inline_script(event: AnyEvent) -> str:
    """Return the program in a command line; a line or two only look around."""
    if not isinstance(event, Command) or not ("<<" in event.command or " -c " in event.command):
        return ""
    is_script = event.command.count("\n") + event.command.count(";") >= _MIN_SCRIPT_LINES
    return event.command if is_script else ""


def _uses_name(text: str, missing: MissingName) -> bool:
    name = missing.name
    if missing.sort == "module":
        name = name.rpartition(".")[2]
    if name not in text:
        return False
    after = _AFTER_NAME.get(missing.sort, _NAME_END)
    before = _NO_OPTION if missing.sort == "option" else _NO_WORD
    position = text.find(name, 0, _MAX_TEXT_CHARS)
    while position >= 0:
        if before.match(text[position - 1 : position]) and after.match(
            text, position + len(name), _MAX_TEXT_CHARS
        ):
            return True
        position = text.find(name, position + 1, _MAX_TEXT_CHARS)
    return False


def _drop_known_names(reading: TraceReading, uses_by_name: dict[str, _MissingNameUse]) -> None:
    """Drop names that had been shown before, and those the agent defines itself."""
    names_by_end: dict[str, list[str]] = {}
    for name in uses_by_name:
        names_by_end.setdefault(name.rpartition(".")[2], []).append(name)
    search = AhoCorasick(list(names_by_end))

    def named(text: str) -> list[_MissingNameUse]:
        found_ends = set(search.find_matches_as_strings(text[:_MAX_TEXT_CHARS], overlapping=True))
        return [
            uses_by_name[name]
            for end in found_ends
            for name in names_by_end[end]
            if name in uses_by_name
        ]

    for event in reading.trace.events:
        shown_text = _shown_text(event)
        for use in named(shown_text) if shown_text else ():
            # Text that an edit replaced existed before it; text that a command printed may not.
            if event.number <= use.step.number - (not isinstance(event, Edit)):
                del uses_by_name[use.missing.name]
        written_text = _written_text(event)[:_MAX_TEXT_CHARS]
        for defined in named(written_text) if written_text else ():
            if _defines_name(written_text, defined.missing):
                del uses_by_name[defined.missing.name]
        if not uses_by_name:
            return


def _drop_own_modules(reading: TraceReading, uses_by_name: dict[str, _MissingNameUse]) -> None:
    """Drop modules that the agent made itself, but not where Python looks for them."""
    own_modules = {
        path.rpartition("/")[2].partition(".")[0]
        for path in find_created_files(list_trace_changes(reading))
    }
    for name in [name for name in uses_by_name if name.rpartition(".")[2] in own_modules]:
        del uses_by_name[name]


def _written_text(event: AnyEvent) -> str:
    if isinstance(event, Edit):
        return event.after or event.patch or ""
    return event.command if isinstance(event, Command) and "<<" in event.command else ""


def _shown_text(event: AnyEvent) -> str | None:
    """Return what the agent or the user saw there and had not written itself."""
    if isinstance(event, Read):
        return event.text
    if isinstance(event, Command | ToolUse):
        return event.output
    if isinstance(event, Message):
        return event.text if event.role != "agent" else None
    if isinstance(event, Handoff):
        return f"{event.brief}\n{event.report or ''}"
    if isinstance(event, Edit):
        return (
            event.before if event.patch is None else _patch_context(event.patch[:_MAX_TEXT_CHARS])
        )
    return None


def _patch_context(patch: str) -> str:
    return "\n".join(line for line in patch.splitlines() if not line.startswith("+"))


def _defines_name(text: str, missing: MissingName) -> bool:
    name = re.escape(missing.name.rpartition(".")[2])
    if missing.sort == "keyword":
        definition = rf"\bdef\s+\w+\s*\([^()]{{0,600}}\b{name}\b|\*\*\w+|\b{name}\s*:\s*\w"
    else:
        definition = NAME_DEFINITION.replace("NAME", name)
    if missing.sort == "name":
        definition += rf"|\b(?:import|use)\b[^\n]*\b{name}\b"
    return re.search(definition, text, re.MULTILINE) is not None


def _build_finding(use: _MissingNameUse) -> Finding:
    file = use.step.written[0] if use.step.written else "a command"
    return make_finding(
        rule,
        f"`{truncate_line(use.missing.name, 60)}`, used in {truncate_line(file)}, does not exist: "
        f"{truncate_line(use.missing.words)}",
        sorted({use.step.number, use.failing.number}),
        lane=use.failing.event.lane,
        confidence=0.9,
    )
