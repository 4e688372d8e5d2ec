"""What an edit adds and takes away, and what kind of file it touches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from operator import attrgetter

from closeloop.process.rule_helpers import cache_on_reading
from closeloop.process.shell.command_effects import PROJECT_FOLDER
from closeloop.records.inspection import (
    LaneReading,
    TraceReading,
    TraceStep,
)
from closeloop.records.record import Record
from closeloop.records.trace import (
    Command,
    Edit,
)

MAX_EDIT_CHARS = 200_000
"""So much of one edit is looked at."""
MAX_COMMENT_CHARS = 10_000
"""An edit with more text than this is more than a comment."""
SOURCE_ENDINGS = frozenset((
    "py", "pyi", "pyx", "js", "jsx", "mjs", "cjs", "ts", "tsx", "mts", "cts", "vue", "svelte",
    "go", "rs", "java", "kt", "kts", "scala", "groovy", "c", "h", "cc", "cpp", "cxx", "hpp",
    "cs", "fs", "rb", "php", "swift", "m", "mm", "sh", "bash", "lua", "ex", "exs", "erl", "hs",
    "ml", "clj", "dart", "r", "jl", "sql", "zig", "proto", "pl", "elm", "nim", "v", "sol", "cu",
))  # fmt: skip
FORMATTERS = frozenset((
    "black", "isort", "prettier", "gofmt", "goimports", "rustfmt", "clang-format", "autopep8",
    "yapf",
))  # fmt: skip
_SCRATCH_PREFIXES = (
    "repro",
    "debug",
    "scratch",
    "demo",
    "tmp",
    "temp",
    "try_",
    "verify_",
    "check_",
)
_TEMPORARY_FOLDER = re.compile(rf"/(?:tmp|var|private)/(?!.*{PROJECT_FOLDER})")
"""A workspace may lie in a temporary folder; then something on its way says so."""
_COMMENT_STARTS = ("#", "//", "* ", "*/", "/*", "<!--", '"""', "'''")
_TRAILING_COMMENT = re.compile(r"""\s(?://|#\s)[^"'`]{0,300}$""")
_HASH_COMMENT = re.compile(r"""\s#[^"'`]{0,300}$""")
_SLASH_OPERATOR_ENDINGS = (".py", ".pyi", ".pl", ".pm", ".jl")
"""In these languages, `//` divides or chooses."""
_PYTHON_ENDINGS = (".py", ".pyi")
_DOCSTRING = re.compile(
    r"""(\A\s*(?=[rRuU]?(?:\"{3}|'{3}) ?[\w`:>])|:[ \t]*\n\s*)"""
    r"""[rRuU]?(\"{3}|'{3}).*?\2[ \t]*(?=\n|\Z)""",
    re.DOTALL,
)
"""At the top, or below the line that opens a block; elsewhere such a string is a value."""
_DOCSTRING_LINES = (">>> ", ":param", ":return", ":rtype", ":raises", ":type ", ".. ")
"""No line of Python begins so."""


_DEBUG_LINE = re.compile(
    r"(?:print|pprint|console\.\w+|logg?(?:er|ing)?\.\w+|fmt\.Print\w*|dbg!|println!|eprintln!"
    r"|System\.\w+\.println|var_dump|import (?:pdb|sys|logging|traceback|pprint)|breakpoint)\b"
)


class EditLines(Record):
    """Lines, without their indentation, that an edit added and removed; moved ones are neither."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


# Several rules ask this of all edits of a trace, one after the other.
@lru_cache(maxsize=16_384)
def diff_edit(event: Edit) -> EditLines | None:
    """None where the recording does not tell: a file that was overwritten, an edit without text."""
    if event.before is not None or event.after is not None:
        if event.before is None and event.action != "create":
            return _lines_from_patch(event.patch[:MAX_EDIT_CHARS]) if event.patch else None
        return _diff_lines(_split_lines(event.before), _split_lines(event.after))
    if event.patch is not None:
        return _lines_from_patch(event.patch[:MAX_EDIT_CHARS])
    return None


def is_undo(event: Edit) -> bool:
    """It changed a file and tells no text: the editor was told to take the last edit back."""
    return (
        event.action == "change"
        and event.ok is True
        and event.before is None
        and event.after is None
        and event.patch is None
        and not event.path.endswith(".ipynb")
    )


def _split_lines(text: str | None) -> list[str]:
    return text[:MAX_EDIT_CHARS].splitlines() if text else []


def _stripped_lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines()}


def _lines_from_patch(patch: str) -> EditLines:
    added, removed = [], []
    for line in patch.splitlines():
        if line.startswith("+") and not line.startswith("+++"):
            added.append(line[1:])
        elif line.startswith("-") and not line.startswith("---"):
            removed.append(line[1:])
    return _diff_lines(removed, added)


def _diff_lines(before: Sequence[str], after: Sequence[str]) -> EditLines:
    first, last, most = 0, 0, min(len(before), len(after))
    while first < most and _is_same_line(before[first], after[first]):
        first += 1
    while last < most - first and _is_same_line(before[-1 - last], after[-1 - last]):
        last += 1
    old = [line.strip() for line in before[first : len(before) - last]]
    new = [line.strip() for line in after[first : len(after) - last]]
    if set(old).isdisjoint(new):
        return EditLines(added=tuple(new), removed=tuple(old))
    return EditLines(added=_subtract_lines(new, old), removed=_subtract_lines(old, new))


def _is_same_line(one: str, other: str) -> bool:
    return one == other or one.strip() == other.strip()


def _subtract_lines(lines: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    remaining, unmatched = Counter(others), []
    for line in lines:
        if remaining.get(line):
            remaining[line] -= 1
        else:
            unmatched.append(line)
    return tuple(unmatched)


@lru_cache(maxsize=4096)
def is_source_path(path: str) -> bool:
    """Program text: what a check is there for. Documents and settings are not."""
    _, dot, ending = path.rsplit("/", 1)[-1].rpartition(".")
    return bool(dot) and ending.lower() in SOURCE_ENDINGS


@lru_cache(maxsize=4096)
def is_test_source(path: str) -> bool:
    """A file of tests, by its name and where it lies."""
    folders, _, name = path.replace("\\", "/").rpartition("/")
    stem, _, ending = name.partition(".")
    if not is_source_path(path):
        return False
    return (
        stem.startswith("test_")
        or stem == "conftest"
        or stem.endswith(("_test", "_spec", "Test", "Tests", "Spec"))
        or ending.startswith(("test.", "spec."))
        or not {"test", "tests", "__tests__", "spec", "specs"}.isdisjoint(folders.split("/"))
    )


@lru_cache(maxsize=4096)
def is_scratch_path(path: str) -> bool:
    """Made to look at something, not to be kept."""
    name = path.rsplit("/", 1)[-1].lower().removeprefix("test_")
    return (
        name.startswith(_SCRATCH_PREFIXES)
        or "repro" in name.partition(".")[0].split("_")
        or _TEMPORARY_FOLDER.match(path) is not None
    )


@lru_cache(maxsize=1024)
def changes_only_comments(event: Edit) -> bool:
    """Nothing but comments, docstrings and empty lines differ."""
    return _differs_in_comments(event) or (
        event.path.endswith(_PYTHON_ENDINGS) and _differs_in_docstrings(event)
    )


def is_debug_line(line: str) -> bool:
    """A line that only shows how the program goes."""
    return _DEBUG_LINE.match(line) is not None


@lru_cache(maxsize=1024)
def removes_debug_lines(event: Edit) -> bool:
    """Nothing but lines that print are taken out, and none is put in."""
    if event.before is not None and len(event.after or "") >= len(event.before):
        return False
    lines = diff_edit(event)
    if lines is None or any(lines.added):
        return False
    removed = [line for line in lines.removed if line]
    return bool(removed) and all(map(is_debug_line, removed))


def _differs_in_docstrings(event: Edit) -> bool:
    """As far as the edit shows where they begin and end."""
    if event.after is None or (event.before is None and event.action != "change"):
        return False
    before, after = event.before or "", event.after
    if before == after or len(before) + len(after) > MAX_COMMENT_CHARS:
        return False
    return (code := _undocumented_lines(before)) is not None and code == _undocumented_lines(after)


def _undocumented_lines(text: str) -> list[str] | None:
    """Its lines of code, indented as they are; None where a docstring is cut off."""
    if any(text.count(quotes) % 2 for quotes in ('"""', "'''")):
        return None
    lines = []
    for told in _DOCSTRING.sub(r"\1", text).splitlines():
        line = told.lstrip()
        if not line.startswith(_DOCSTRING_LINES) and (code := _strip_comment(_HASH_COMMENT, line)):
            lines.append(told[: len(told) - len(line)] + code.rstrip())
    return lines


def _differs_in_comments(event: Edit) -> bool:
    code = partial(
        _strip_comment,
        _HASH_COMMENT if event.path.endswith(_SLASH_OPERATOR_ENDINGS) else _TRAILING_COMMENT,
    )
    if event.after is not None and (event.before is not None or event.action == "change"):
        # Without text before, it was put between the lines of the file.
        old = event.before or ""
        if len(old) + len(event.after) > MAX_COMMENT_CHARS:
            return False
        for line in event.after.splitlines():
            if (told := line.strip()) not in old and code(told) not in old:
                return False
        before, after = _stripped_lines(old), _stripped_lines(event.after)
        touched = before ^ after
    elif event.patch is None or len(event.patch) > MAX_COMMENT_CHARS:
        return False
    else:
        lines = _lines_from_patch(event.patch)
        before, after = {*lines.removed}, {*lines.added}
        touched = before | after
    same = set(map(code, before)).intersection(map(code, after))
    return bool(touched) and set(map(code, touched)) <= {"", *same}


def _strip_comment(remark: re.Pattern[str], line: str) -> str:
    """A line without its comment."""
    if not line or line.startswith(_COMMENT_STARTS):
        return ""
    return remark.sub("", line).rstrip() if "#" in line or "//" in line else line


@cache_on_reading
def list_trace_changes(reading: TraceReading) -> Sequence[TraceStep]:
    """Every change of the trace once, in order, whichever lane made it."""
    if len(reading.lanes) == 1:
        return next(iter(reading.lanes.values())).changes
    changes = [
        step
        for name, lane in reading.lanes.items()
        for step in lane.changes
        if step.event.lane == name
    ]
    return sorted(changes, key=attrgetter("event.number"))


def list_file_edits(step: TraceStep) -> Iterator[tuple[str, Edit]]:
    """A step's edits, each with the path that steps share: below the project where known."""
    if isinstance(step.event, Edit):
        yield step.written[0], step.event
    else:
        yield from ((edit.path, edit) for edit in step.edits)


def find_created_files(changes: Iterable[TraceStep]) -> Mapping[str, int]:
    """Files that the agent made itself, with the event that made each."""
    creation_numbers: dict[str, int] = {}
    known: set[str] = set()
    for step in changes:
        for path in step.written:
            if path not in known and _creates_path(step, path):
                creation_numbers[path] = step.number
            known.add(path)
    return creation_numbers


def _creates_path(step: TraceStep, path: str) -> bool:
    actions = [edit.action for name, edit in list_file_edits(step) if name == path]
    return "create" in actions if actions else creates_file(step)


def creates_file(step: TraceStep) -> bool:
    """It writes a whole file, as far as its text says."""
    event = step.event
    if isinstance(event, Edit):
        return event.action == "create"
    return isinstance(event, Command) and (">" in event.command or "touch" in event.command)


def deletes_file(step: TraceStep) -> bool:
    """It takes a file away."""
    return any(edit.action == "delete" for edit in step.edits)


def deletes_path(step: TraceStep, path: str) -> bool:
    """It takes this file away."""
    return any(one == path and edit.action == "delete" for one, edit in list_file_edits(step))


@cache_on_reading
def list_code_changes(lane: LaneReading) -> Sequence[TraceStep]:
    """Changes of program text, the only ones that a check is there for.

    Documents, layout, scratch files and their removal, and files that git brought back as they
    were are none.
    """
    changes = [step for step in lane.changes if _writes_lasting_source(step)]
    own_files = _find_probes(lane, changes)
    if any(map(deletes_file, lane.changes)):
        own_files |= find_temporary_files(lane.changes) | _find_missing_files(lane.changes)
    if not own_files:
        return changes
    return [
        step
        for step in changes
        if not own_files.issuperset(filter(_is_lasting_source, step.written))
    ]


def _find_probes(lane: LaneReading, changes: Sequence[TraceStep]) -> frozenset[str]:
    """Scripts that the agent made and ran, above the code that was there and that it changed."""
    scripts = {
        name.rpartition("/")[2]
        for step in lane.commands
        if step.doing is not None
        for name in step.doing.runs
    }
    if not scripts:
        return frozenset()
    created = find_created_files(lane.changes)
    folders = {
        _folder(path)
        for step in changes
        for path in step.written
        if path not in created and not deletes_path(step, path)
    }
    above = {_folder(one) for folder in folders for one in _path_and_folders(folder)} - folders
    return frozenset(
        path for path in created if path.rpartition("/")[2] in scripts and _folder(path) in above
    )


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def find_temporary_files(changes: Iterable[TraceStep]) -> frozenset[str]:
    """Files that the agent made itself and took away again, perhaps with their folder."""
    changes = list(changes)
    gone: set[str] = set()
    for step in changes:
        gone.difference_update(step.written)
        gone.update(path for path, edit in list_file_edits(step) if edit.action == "delete")
    created = find_created_files(changes)
    return frozenset(path for path in created if not gone.isdisjoint(_path_and_folders(path)))


def _path_and_folders(path: str) -> Iterator[str]:
    while path.strip("/"):
        yield path
        path = _folder(path)


def _find_missing_files(changes: Iterable[TraceStep]) -> frozenset[str]:
    """Files that were to be taken away, and were not there."""
    return frozenset(
        path
        for step in changes
        if isinstance(step.event, Command) and "cannot remove '" in (step.event.output or "")
        for path in step.written
        if f"cannot remove '{path}'" in (step.event.output or "")
    )


def _writes_lasting_source(step: TraceStep) -> bool:
    paths: Iterable[str] = step.written
    if step.doing is not None and step.doing.restored:
        paths = (
            path
            for path, told in zip(step.written, step.doing.written, strict=True)
            if told not in step.doing.restored
        )
    return any(map(_is_lasting_source, paths)) and not _only_formats(step)


@lru_cache(maxsize=4096)
def _is_lasting_source(path: str) -> bool:
    return is_source_path(path) and not is_scratch_path(path)


def _only_formats(step: TraceStep) -> bool:
    return step.doing is not None and not FORMATTERS.isdisjoint(step.doing.programs)
