"""The same unchanged part of a file is read repeatedly.

## What it looks for

Within a lane, the same lines of the same file are read three times by any command, twice with
nothing in between, or twice within four actions if the text is long (8,000 characters). In the
meantime no lane changed the file or an unknown file, the context was not truncated, and no edit of
the file failed, except a repetition of an edit that had failed before.
Other parts may be read in between; another range of lines is another read, and so is a search for
something else, even if it shows the same lines.

Output of programs (pages, reports, anything below `_build` or `dist`) may be read again after every
command that runs something. Logs, scratch files (except Python scripts) and waiting are excluded.

## Why it matters

Every read is paid for again with every following turn. An agent that forgets what it read also
forgets its instructions.

## Bad

```text
#2  read  rates.py 1–40
#4  read  rates.py 1–40
#6  read  rates.py 1–40
```

## Good

```text
#2  read  rates.py 1–40
#4  read  rates.py 41–90
#6  edit  rates.py
```

## When it can be measured

If the trace contains the results of reads.

## Thresholds and silencing

`times` (3): the minimum number of equal reads; one fewer if two are consecutive, or if a long text
is read again soon.

```toml
[rules.needless-reread]
times = 4

[[silence]]
rule = "needless-reread"
path = "docs/**"
reason = "the agent is told to read the style guide before each step"
```

## How sure it is

It is advisory (severity info): the count is exact, but a second read may have a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from closeloop.process.edit_contents import is_scratch_path, is_source_path, list_trace_changes
from closeloop.process.rule_helpers import truncate_line
from closeloop.records.change import LaneReading, TraceReading, TraceStep
from closeloop.records.finding import Finding, Rule, Unmeasured, make_finding
from closeloop.records.record import Record
from closeloop.records.trace import Command, Edit, Read

rule = Rule(
    name="needless-reread",
    version=5,
    about="The same unchanged part of a file is read repeatedly.",
    severity="info",
    thresholds={"times": 3},
)
_GROWING_FILES = (".log", ".out", ".pid", ".tmp")
_WRITTEN_BY_HAND = (
    ".md",
    ".rst",
    ".toml",
    ".cfg",
    ".ini",
    ".yaml",
    ".yml",
    ".lock",
    ".css",
    ".scss",
)
_OUTPUT_FOLDERS = frozenset(("_build", "build", "dist", "out", "output", "target", "coverage"))
_MAX_CITED = 6
LONG_TEXT_CHARS = 8_000
LONG_REACH = 4
"""A text of this many letters is still in context this many actions later."""


class _KnownRead(Record):
    stamp: tuple[int, int, int]
    """Equal stamps: nothing happened in between that explains another read."""
    numbers: list[int]
    at_once: list[int]
    """Reads that closely follow the one before."""


def detect(reading: TraceReading, limits: Mapping[str, float]) -> list[Finding] | Unmeasured:
    """Report one finding per row of needless reads."""
    lanes = [lane for lane in reading.lanes.values() if lane.reads]
    if lanes and not any(_shown_text(step) is not None for lane in lanes for step in lane.reads):
        return Unmeasured(rule=rule.name, reason="the trace does not contain what was read")
    findings = []
    for lane in lanes:
        counts = Counter([step.read[0] for step in lane.reads])
        frequent_paths = {path for path, count in counts.items() if count >= limits["times"] - 1}
        if frequent_paths:
            findings += [
                make_finding(
                    rule,
                    f"{truncate_line(path, 100)} was read {len(numbers)} times "
                    "although it had not changed.",
                    numbers[:_MAX_CITED],
                    lane=lane.lane.id,
                )
                for path, numbers, at_once in _needless_read_rows(
                    lane, list_trace_changes(reading), frequent_paths
                )
                if len(numbers) >= limits["times"] - at_once
            ]
    return sorted(findings, key=lambda finding: finding.events)


def _needless_read_rows(
    lane: LaneReading, changes: Sequence[TraceStep], repeated_paths: set[str]
) -> Iterator[tuple[str, list[int], bool]]:
    """Yield each part of a file with the reads that saw the same for no reason."""
    known_reads: dict[tuple[str, str, str], _KnownRead] = {}
    clock = _FileClock(changes, lane.compactions)
    attempts: set[tuple[str, str | None, str | None]] = set()
    for step in lane.steps:
        if not step.read:
            clock.runs += step.effect is not None and not step.effect.searches
            if step.failed and step.written and _is_new_attempt(step, attempts):
                # Reading again after a failed edit is reasonable.
                clock.touch_paths(step.written)
            continue
        if step.read[0] not in repeated_paths:
            continue
        text = _shown_text(step)
        if not text or step.changed or step.failed or step.check is not None:
            # A search without results may look for something else each time.
            continue
        path, stamp = step.read[0], (*clock.stamp_read(step), clock.runs)
        stamp = stamp if _is_program_output(path) else (*stamp[:2], 0)
        key = (path, text, _search_words(step))
        before = known_reads.get(key)
        if before is not None and before.stamp == stamp:
            reach = LONG_REACH if len(text) >= LONG_TEXT_CHARS else 1
            is_soon = lane.steps[max(0, step.index - reach)].number <= before.numbers[-1]
            if is_soon and isinstance(step.event, Read):
                before.at_once.append(step.number)
            before.numbers.append(step.number)
            continue
        if before is not None:
            yield path, before.numbers, bool(before.at_once)
        known_reads[key] = _KnownRead(stamp=stamp, numbers=[step.number], at_once=[])
    for (path, *_), known_read in known_reads.items():
        yield path, known_read.numbers, bool(known_read.at_once)


def _search_words(step: TraceStep) -> str:
    """Return the command of a search, which may look for something else in the same lines."""
    event, effect = step.event, step.effect
    if effect is None or not effect.searches or not isinstance(event, Command):
        return ""
    return " ".join(event.command.split())


def _is_new_attempt(step: TraceStep, attempts: set[tuple[str, str | None, str | None]]) -> bool:
    """Whether it is a failed edit other than one that had failed before."""
    edit = step.event
    if not isinstance(edit, Edit):
        return True
    attempt = (edit.path, edit.before, edit.after)
    is_new = attempt not in attempts
    attempts.add(attempt)
    return is_new


class _FileClock:
    """Advances whenever there is a reason to read a file again."""

    def __init__(self, changes: Sequence[TraceStep], cuts: Sequence[int]) -> None:
        self._changes, self._cuts = changes, cuts
        self._at = self._cut = self._epoch = 0
        self._versions: dict[str, int] = {}
        self.runs = 0
        """Commands that ran something, each of which may have rewritten generated files."""

    def touch_paths(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._versions[path] = self._versions.get(path, 0) + 1

    def stamp_read(self, step: TraceStep) -> tuple[int, int]:
        while self._at < len(self._changes) and self._changes[self._at].number < step.number:
            paths = self._changes[self._at].written
            self.touch_paths(paths)
            # A command that does not name its files may have changed any.
            self._epoch += not paths
            self._at += 1
        while self._cut < len(self._cuts) and self._cuts[self._cut] < step.number:
            self._epoch, self._cut = self._epoch + 1, self._cut + 1
        versions = self._versions
        if len(step.read) == 1:
            return self._epoch, versions.get(step.read[0], 0)
        return self._epoch, sum(versions.get(path, 0) for path in step.read)


@lru_cache(maxsize=4096)
def _is_program_output(path: str) -> bool:
    if not _OUTPUT_FOLDERS.isdisjoint(path.split("/")[:-1]):
        return True
    return not is_source_path(path) and not path.endswith(_WRITTEN_BY_HAND)


def _shown_text(step: TraceStep) -> str | None:
    """Return what the read showed; None if unknown, or if it may grow by itself."""
    event = step.event
    path = step.read[0]
    if path.endswith(_GROWING_FILES) or (is_scratch_path(path) and not path.endswith(".py")):
        return None
    if isinstance(event, Read):
        return event.text
    waits = step.effect is not None and step.effect.waits
    return event.output if isinstance(event, Command) and not waits else None
