"""What an edit adds and takes away, and what kind of file it touches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from operator import attrgetter

from closeloop.model.record import Record
from closeloop.model.steps import LaneReading, Reading, Step
from closeloop.model.trace import Command, Edit
from closeloop.process.once import once

MOST_TEXT = 200_000
"""So much of one edit is looked at."""
MOST_COMMENT = 10_000
"""An edit with more text than this is more than a comment."""
SOURCE = frozenset((
    "py", "pyi", "pyx", "js", "jsx", "mjs", "cjs", "ts", "tsx", "mts", "cts", "vue", "svelte",
    "go", "rs", "java", "kt", "kts", "scala", "groovy", "c", "h", "cc", "cpp", "cxx", "hpp",
    "cs", "fs", "rb", "php", "swift", "m", "mm", "sh", "bash", "lua", "ex", "exs", "erl", "hs",
    "ml", "clj", "dart", "r", "jl", "sql", "zig", "proto", "pl", "elm", "nim", "v", "sol", "cu",
))  # fmt: skip
FORMATTERS = frozenset((
    "black", "isort", "prettier", "gofmt", "goimports", "rustfmt", "clang-format", "autopep8",
    "yapf",
))  # fmt: skip
_SCRATCH = ("repro", "debug", "scratch", "demo", "tmp", "temp", "try_", "verify_", "check_")
_COMMENT = ("#", "//", "* ", "*/", "/*", "<!--", '"""', "'''")
_REMARK = re.compile(r"""\s(?://|#\s)[^"'`]{0,300}$""")
_HASHED = re.compile(r"""\s#[^"'`]{0,300}$""")
_DIVIDING = (".py", ".pyi", ".pl", ".pm", ".jl")
"""In these languages, `//` divides or chooses."""


class Lines(Record):
    """Lines, without their indentation, that an edit added and removed; moved ones are neither."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@lru_cache(maxsize=4096)
def lines_of(event: Edit) -> Lines | None:
    """None where the recording does not tell: a file that was overwritten, an edit without text."""
    if event.before is not None or event.after is not None:
        if event.before is None and event.action != "create":
            return _of_patch(event.patch[:MOST_TEXT]) if event.patch else None
        return _difference(_lines(event.before), _lines(event.after))
    if event.patch is not None:
        return _of_patch(event.patch[:MOST_TEXT])
    return None


def _lines(text: str | None) -> list[str]:
    return text[:MOST_TEXT].splitlines() if text else []


def _split(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines()}


def _of_patch(patch: str) -> Lines:
    added, removed = [], []
    for line in patch.splitlines():
        if line.startswith("+") and not line.startswith("+++"):
            added.append(line[1:])
        elif line.startswith("-") and not line.startswith("---"):
            removed.append(line[1:])
    return _difference(removed, added)


def _difference(before: Sequence[str], after: Sequence[str]) -> Lines:
    first, last, most = 0, 0, min(len(before), len(after))
    while first < most and _is_same(before[first], after[first]):
        first += 1
    while last < most - first and _is_same(before[-1 - last], after[-1 - last]):
        last += 1
    old = [line.strip() for line in before[first : len(before) - last]]
    new = [line.strip() for line in after[first : len(after) - last]]
    if set(old).isdisjoint(new):
        return Lines(added=tuple(new), removed=tuple(old))
    return Lines(added=_without(new, old), removed=_without(old, new))


def _is_same(one: str, other: str) -> bool:
    return one == other or one.strip() == other.strip()


def _without(lines: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    left, kept = Counter(others), []
    for line in lines:
        if left.get(line):
            left[line] -= 1
        else:
            kept.append(line)
    return tuple(kept)


@lru_cache(maxsize=4096)
def is_source(path: str) -> bool:
    """Program text: what a check is there for. Documents and settings are not."""
    _, dot, ending = path.rsplit("/", 1)[-1].rpartition(".")
    return bool(dot) and ending.lower() in SOURCE


@lru_cache(maxsize=4096)
def is_test(path: str) -> bool:
    """A file of tests, by its name and where it lies."""
    folders, _, name = path.replace("\\", "/").rpartition("/")
    stem, _, ending = name.partition(".")
    if not is_source(path):
        return False
    return (
        stem.startswith("test_")
        or stem == "conftest"
        or stem.endswith(("_test", "_spec", "Test", "Tests", "Spec"))
        or ending.startswith(("test.", "spec."))
        or not {"test", "tests", "__tests__", "spec", "specs"}.isdisjoint(folders.split("/"))
    )


@lru_cache(maxsize=4096)
def is_scratch(path: str) -> bool:
    """Made to look at something, not to be kept."""
    name = path.rsplit("/", 1)[-1].lower().removeprefix("test_")
    return path.startswith(("/tmp/", "/var/", "/private/")) or name.startswith(_SCRATCH)  # noqa: S108


@lru_cache(maxsize=1024)
def only_comments(event: Edit) -> bool:
    """Nothing but comments and empty lines differ."""
    code = partial(_code, _HASHED if event.path.endswith(_DIVIDING) else _REMARK)
    if event.before is not None and event.after is not None:
        if len(event.before) + len(event.after) > MOST_COMMENT:
            return False
        for line in event.after.splitlines():
            if (told := line.strip()) not in event.before and code(told) not in event.before:
                return False
        before, after = _split(event.before), _split(event.after)
        touched = before ^ after
    elif event.patch is None or len(event.patch) > MOST_COMMENT:
        return False
    else:
        lines = _of_patch(event.patch)
        before, after = {*lines.removed}, {*lines.added}
        touched = before | after
    same = set(map(code, before)).intersection(map(code, after))
    return bool(touched) and set(map(code, touched)) <= {"", *same}


def _code(remark: re.Pattern[str], line: str) -> str:
    """A line without its comment."""
    if not line or line.startswith(_COMMENT):
        return ""
    return remark.sub("", line).rstrip() if "#" in line or "//" in line else line


@once
def own_changes(reading: Reading) -> Sequence[Step]:
    """Every change of the trace once, in order, whichever lane made it."""
    if len(reading.lanes) == 1:
        return next(iter(reading.lanes.values())).changes
    made = [
        step
        for name, lane in reading.lanes.items()
        for step in lane.changes
        if step.event.lane == name
    ]
    return sorted(made, key=attrgetter("event.number"))


def created(changes: Iterable[Step]) -> Mapping[str, int]:
    """Files that the agent made itself, with the event that made each."""
    made: dict[str, int] = {}
    known: set[str] = set()
    for step in changes:
        for path in step.written:
            if path not in known and makes(step):
                made[path] = step.number
            known.add(path)
    return made


def makes(step: Step) -> bool:
    """It writes a whole file, as far as its text says."""
    event = step.event
    if isinstance(event, Edit):
        return event.action == "create"
    return isinstance(event, Command) and (">" in event.command or "touch" in event.command)


def deletes(step: Step) -> bool:
    """It takes a file away."""
    event = step.event
    if isinstance(event, Edit):
        return event.action == "delete"
    programs = step.doing.programs if step.doing else ()
    if "git" in programs:
        return isinstance(event, Command) and "git rm" in event.command
    return "rm" in programs or "unlink" in programs


@once
def code_changes(lane: LaneReading) -> Sequence[Step]:
    """Changes of program text: neither documents, nor the agent's own scratch files, nor layout."""
    kept = [
        step for step in lane.changes if any(map(_is_kept, step.written)) and not _lays_out(step)
    ]
    gone = {step.number for step in kept if deletes(step)}
    if not gone:
        return kept
    made = created(lane.changes)
    return [
        step
        for step in kept
        if step.number not in gone or not made.keys() >= set(filter(_is_kept, step.written))
    ]


@lru_cache(maxsize=4096)
def _is_kept(path: str) -> bool:
    return is_source(path) and not is_scratch(path)


def _lays_out(step: Step) -> bool:
    return step.doing is not None and not FORMATTERS.isdisjoint(step.doing.programs)
