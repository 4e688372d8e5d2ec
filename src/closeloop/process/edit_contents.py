"""The content of edits: added and removed lines, and the kind of file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from functools import lru_cache, partial
from itertools import islice
from operator import attrgetter
from typing import Literal

from closeloop.process.command_effects import PROJECT_FOLDER
from closeloop.process.edit_recovery import split_patch
from closeloop.process.rule_helpers import cache_on_reading, list_git_verbs
from closeloop.process.text_facts import is_same_path
from closeloop.records.change import (
    Change,
    LaneReading,
    RecoveredFile,
    RecoveredHunk,
    TraceReading,
    TraceStep,
)
from closeloop.records.record import Record
from closeloop.records.trace import AnyEvent, Command, Edit, Note
from closeloop.text.wording import compile_lazily

MAX_EDIT_CHARS = 200_000
"""Characters of one edit that are examined."""
MAX_COMMENT_CHARS = 10_000
"""An edit with more text is more than a comment."""
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
_TEMPORARY_FOLDER = compile_lazily(rf"/(?:tmp|var|private)/(?!.*{PROJECT_FOLDER})")
"""A workspace may be in a temporary folder; then its path says so."""
_COMMENT_STARTS = ("#", "//", "* ", "*/", "/*", "<!--", '"""', "'''")
_TRAILING_COMMENT = compile_lazily(r"""\s(?://|#\s)[^"'`]{0,300}$""")
_HASH_COMMENT = compile_lazily(r"""\s#[^"'`]{0,300}$""")
_SLASH_OPERATOR_ENDINGS = (".py", ".pyi", ".pl", ".pm", ".jl")
"""In these languages, `//` is an operator."""
_PYTHON_ENDINGS = (".py", ".pyi")
_DOCSTRING = compile_lazily(
    r"""(\A\s*(?=[rRuU]?(?:\"{3}|'{3}) ?[\w`:>])|:[ \t]*\n\s*)"""
    r"""[rRuU]?(\"{3}|'{3}).*?\2[ \t]*(?=\n|\Z)""",
    re.DOTALL,
)
"""At the top, or below the line that opens a block; elsewhere such a string is a value."""
_DOCSTRING_LINES = (">>> ", ":param", ":return", ":rtype", ":raises", ":type ", ".. ")
"""No line of Python code begins like this."""


_DEBUG_LINE = compile_lazily(
    r"(?:print|pprint|console\.\w+|logg?(?:er|ing)?\.\w+|fmt\.Print\w*|dbg!|println!|eprintln!"
    r"|System\.\w+\.println|var_dump|import (?:pdb|sys|logging|traceback|pprint)|breakpoint)\b"
)


class EditLines(Record):
    """Lines without indentation that an edit added and removed; moved ones are neither."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


# Several rules call this for all edits of a trace, one after the other.
@lru_cache(maxsize=16_384)
def diff_edit(event: Edit) -> EditLines | None:
    """Return the lines that an edit removes and adds; None if the recording lacks the text."""
    if event.before is not None or event.after is not None:
        if event.before is None and event.action != "create":
            return _lines_from_patch(event.patch[:MAX_EDIT_CHARS]) if event.patch else None
        return _diff_lines(_split_lines(event.before), _split_lines(event.after))
    if event.patch is not None:
        return _lines_from_patch(event.patch[:MAX_EDIT_CHARS])
    return None


def is_undo(event: Edit) -> bool:
    """Whether it changed a file without text: the editor's undo."""
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
    first, last, max_common = 0, 0, min(len(before), len(after))
    while first < max_common and _is_same_line(before[first], after[first]):
        first += 1
    while last < max_common - first and _is_same_line(before[-1 - last], after[-1 - last]):
        last += 1
    old = [line.strip() for line in before[first : len(before) - last]]
    new = [line.strip() for line in after[first : len(after) - last]]
    if set(old).isdisjoint(new):
        return EditLines(added=tuple(new), removed=tuple(old))
    return EditLines(added=_subtract_lines(new, old), removed=_subtract_lines(old, new))


def _is_same_line(first: str, second: str) -> bool:
    return first == second or first.strip() == second.strip()


def _subtract_lines(lines: Sequence[str], subtracted: Sequence[str]) -> tuple[str, ...]:
    remaining, unmatched = Counter(subtracted), []
    for line in lines:
        if remaining.get(line):
            remaining[line] -= 1
        else:
            unmatched.append(line)
    return tuple(unmatched)


@lru_cache(maxsize=4096)
def is_source_path(path: str) -> bool:
    """Whether it is source code, not documentation or settings."""
    _, dot, ending = path.rsplit("/", 1)[-1].rpartition(".")
    return bool(dot) and ending.lower() in SOURCE_ENDINGS


@lru_cache(maxsize=4096)
def is_test_source(path: str) -> bool:
    """Whether it is a test file, by its name and folder."""
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
    """Whether it is a scratch file."""
    name = path.rsplit("/", 1)[-1].lower().removeprefix("test_")
    return (
        name.startswith(_SCRATCH_PREFIXES)
        or "repro" in name.partition(".")[0].split("_")
        or _TEMPORARY_FOLDER.match(path) is not None
    )


@lru_cache(maxsize=1024)
def changes_only_comments(event: Edit) -> bool:
    """Whether only comments, docstrings and empty lines differ."""
    return _differs_in_comments(event) or (
        event.path.endswith(_PYTHON_ENDINGS) and _differs_in_docstrings(event)
    )


def is_debug_line(line: str) -> bool:
    """Whether a line only prints for debugging."""
    return _DEBUG_LINE.match(line) is not None


@lru_cache(maxsize=1024)
def removes_debug_lines(event: Edit) -> bool:
    """Whether only printing lines are removed, and none is added."""
    if event.before is not None and len(event.after or "") >= len(event.before):
        return False
    lines = diff_edit(event)
    if lines is None or any(lines.added):
        return False
    removed_lines = [line for line in lines.removed if line]
    return bool(removed_lines) and all(map(is_debug_line, removed_lines))


def _differs_in_docstrings(event: Edit) -> bool:
    """Whether docstrings differ, as far as the edit shows where they begin and end."""
    if event.after is None or (event.before is None and event.action != "change"):
        return False
    before, after = event.before or "", event.after
    if before == after or len(before) + len(after) > MAX_COMMENT_CHARS:
        return False
    return (code := _undocumented_lines(before)) is not None and code == _undocumented_lines(after)


def _undocumented_lines(text: str) -> list[str] | None:
    """Return the code lines with indentation; None if a docstring is cut off."""
    if any(text.count(quotes) % 2 for quotes in ('"""', "'''")):
        return None
    lines = []
    for source_line in _DOCSTRING.sub(r"\1", text).splitlines():
        line = source_line.lstrip()
        if not line.startswith(_DOCSTRING_LINES) and (code := _strip_comment(_HASH_COMMENT, line)):
            lines.append(source_line[: len(source_line) - len(line)] + code.rstrip())
    return lines


def _differs_in_comments(event: Edit) -> bool:
    code = partial(
        _strip_comment,
        _HASH_COMMENT if event.path.endswith(_SLASH_OPERATOR_ENDINGS) else _TRAILING_COMMENT,
    )
    if event.after is not None and (event.before is not None or event.action == "change"):
        # Without old text it is an insertion.
        old_text = event.before or ""
        if len(old_text) + len(event.after) > MAX_COMMENT_CHARS:
            return False
        for line in event.after.splitlines():
            if (new_line := line.strip()) not in old_text and code(new_line) not in old_text:
                return False
        before, after = _stripped_lines(old_text), _stripped_lines(event.after)
        touched_lines = before ^ after
    elif event.patch is None or len(event.patch) > MAX_COMMENT_CHARS:
        return False
    else:
        lines = _lines_from_patch(event.patch)
        before, after = {*lines.removed}, {*lines.added}
        touched_lines = before | after
    shared_code = set(map(code, before)).intersection(map(code, after))
    return bool(touched_lines) and set(map(code, touched_lines)) <= {"", *shared_code}


def _strip_comment(remark: re.Pattern[str], line: str) -> str:
    """Return a line without its comment."""
    if not line or line.startswith(_COMMENT_STARTS):
        return ""
    return remark.sub("", line).rstrip() if "#" in line or "//" in line else line


@cache_on_reading
def list_trace_changes(reading: TraceReading) -> Sequence[TraceStep]:
    """List every change of the trace once, in order, whichever lane made it."""
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
    """Yield a step's edits with their common path, relative to the project if known."""
    if isinstance(step.event, Edit):
        yield step.written[0], step.event
    else:
        yield from ((edit.path, edit) for edit in step.edits)


def find_created_files(changes: Iterable[TraceStep]) -> Mapping[str, int]:
    """Return files that the agent created, with the event of each."""
    creation_numbers: dict[str, int] = {}
    known_paths: set[str] = set()
    for step in changes:
        for path in step.written:
            if path not in known_paths and _creates_path(step, path):
                creation_numbers[path] = step.number
            known_paths.add(path)
    return creation_numbers


def _creates_path(step: TraceStep, path: str) -> bool:
    actions = [edit.action for name, edit in list_file_edits(step) if name == path]
    return "create" in actions if actions else creates_file(step)


def creates_file(step: TraceStep) -> bool:
    """Whether it writes a whole file, according to its text."""
    event = step.event
    if isinstance(event, Edit):
        return event.action == "create"
    return isinstance(event, Command) and (">" in event.command or "touch" in event.command)


def deletes_file(step: TraceStep) -> bool:
    """Whether it deletes a file."""
    return any(edit.action == "delete" for edit in step.edits)


def deletes_path(step: TraceStep, path: str) -> bool:
    """Whether it deletes this file."""
    return any(
        edited_path == path and edit.action == "delete"
        for edited_path, edit in list_file_edits(step)
    )


@cache_on_reading
def list_code_changes(lane: LaneReading) -> Sequence[TraceStep]:
    """List changes of source code, which checks are for.

    Documents, layout, scratch files and their removal, and files restored by git are left out.
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
    """Return scripts that the agent made and ran, above the existing code that it changed."""
    scripts = {
        name.rpartition("/")[2]
        for step in lane.commands
        if step.effect is not None
        for name in step.effect.runs
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
    parent_folders = {
        _folder(path_and_folder)
        for folder in folders
        for path_and_folder in _path_and_folders(folder)
    } - folders
    return frozenset(
        path
        for path in created
        if path.rpartition("/")[2] in scripts and _folder(path) in parent_folders
    )


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def find_temporary_files(changes: Iterable[TraceStep]) -> frozenset[str]:
    """Return files that the agent created and removed again, possibly with their folder."""
    changes = list(changes)
    deleted_paths: set[str] = set()
    for step in changes:
        deleted_paths.difference_update(step.written)
        deleted_paths.update(
            path for path, edit in list_file_edits(step) if edit.action == "delete"
        )
    created = find_created_files(changes)
    temporary_files = frozenset(
        path for path in created if not deleted_paths.isdisjoint(_path_and_folders(path))
    )
    return temporary_files | frozenset(_removed_along(changes, temporary_files))


MIN_OWN_SHARE = 2 / 3
"""Of the files that one command removes, beside which the others are the agent's own, too."""


def _removed_along(changes: Iterable[TraceStep], own_files: Collection[str]) -> Iterator[str]:
    """Yield files of unknown origin that one command removes among the agent's own beside them."""
    for step in changes:
        own = {path for path in step.written if path in own_files}
        if own and all(edit.action == "delete" for _, edit in list_file_edits(step)):
            folders = set(map(_folder, own))
            if len(own) >= MIN_OWN_SHARE * len(step.written):
                yield from (path for path in step.written if _folder(path) in folders)


def _path_and_folders(path: str) -> Iterator[str]:
    while path.strip("/"):
        yield path
        path = _folder(path)


def _find_missing_files(changes: Iterable[TraceStep]) -> frozenset[str]:
    """Return files that were to be removed and did not exist."""
    return frozenset(
        path
        for step in changes
        if isinstance(step.event, Command) and "cannot remove '" in (step.event.output or "")
        for path in step.written
        if f"cannot remove '{path}'" in (step.event.output or "")
    )


def _writes_lasting_source(step: TraceStep) -> bool:
    paths: Iterable[str] = step.written
    if step.effect is not None and step.effect.restored:
        paths = (
            path
            for path, raw_path in zip(step.written, step.effect.written, strict=True)
            if raw_path not in step.effect.restored
        )
    return any(map(_is_lasting_source, paths)) and not _only_formats(step)


@lru_cache(maxsize=4096)
def _is_lasting_source(path: str) -> bool:
    return is_source_path(path) and not is_scratch_path(path)


def _only_formats(step: TraceStep) -> bool:
    return step.effect is not None and not FORMATTERS.isdisjoint(step.effect.programs)


# The change that a session delivers: the final state, whatever the earlier steps did.


_MAX_LAST_EVENTS = 6
"""A patch is submitted at the end."""
_PATCH_START = "diff --git "


@cache_on_reading
def list_submitted_edits(reading: TraceReading) -> Sequence[Edit] | None:
    """Return the submitted diff's edits, numbered as the event that submitted it; None if none.

    A diff is the attempt's change, a recorded submission, or a last `git diff` of everything.
    """
    patch, number = _find_patch(reading)
    if patch is None:
        return None if reading.change is None else _edits_from_files(reading.change, number)
    return [
        Edit(
            number=number,
            lane=next(iter(reading.lanes), ""),
            path=file_edit.path,
            action=file_edit.action,
            after=file_edit.after,
            patch=file_edit.patch,
        )
        for file_edit in split_patch(patch)
    ]


def _edits_from_files(change: Change, number: int) -> list[Edit]:
    """Return edits without text for a change of which only the files are known."""
    actions: Mapping[str, Literal["create", "delete"]] = {"added": "create", "deleted": "delete"}
    return [
        Edit(number=number, lane="", path=file.path, action=actions.get(file.status, "change"))
        for file in change.files
    ]


def _find_patch(reading: TraceReading) -> tuple[str | None, int]:
    events = reading.trace.events
    last_action = next(
        (event.number for event in reversed(events) if isinstance(event, Command)), 0
    )
    if reading.change is not None and reading.change.patch:
        return reading.change.patch, last_action
    if reading.change is not None:
        return None, last_action
    for event in islice(reversed(events), _MAX_LAST_EVENTS):
        text = _submitted_text(event)
        if text is not None and _PATCH_START in text[:200]:
            return text, last_action or event.number
    return None, 0


def _submitted_text(event: AnyEvent) -> str | None:
    if isinstance(event, Note):
        return event.text if event.about == "submission" else None
    if (
        isinstance(event, Command)
        and event.output
        and event.command.rstrip().endswith(
            ("git diff --cached", "git diff", "git diff --staged", "git diff HEAD")
        )
    ):
        return event.output
    return None


# The change of a recording without a stored diff, built from the edits that it contains.

MAX_RECOVERED_FILES = 300
MAX_HUNK_LINES = 4000
MAX_COMPARED_PAIRS = 4_000_000
"""Lines before × lines after that are aligned; larger texts are shown one after the other."""
_CONTEXT_LINES = 3
_PATCH_HEADERS = ("diff ", "index ", "--- ", "+++ ", "*** ", "new file", "deleted file")


@cache_on_reading
def recover_change(reading: TraceReading) -> Sequence[RecoveredFile]:
    """Return every file that the session changed, with its recorded lines.

    The diff that a session submitted decides; without one, its edits in their order. Edits at one
    place become one hunk, and what was undone is left out.
    """
    submitted = list_submitted_edits(reading) or ()
    has_submission = any(
        _is_submission(event) for event in reading.trace.events[-_MAX_LAST_EVENTS:]
    )
    steps = sorted(
        (step for lane in reading.lanes.values() for step in lane.steps if step.changed),
        key=lambda step: step.number,
    )
    files: dict[str, _NetFileEdit] = {}
    if not (submitted and has_submission):
        for step in steps:
            _apply_step(files, step)
    if not files:
        _apply_edits(files, ((edit.path, edit) for edit in submitted))
    histories = [(path, history) for path, history in files.items() if history.is_changed]
    return tuple(
        RecoveredFile(
            path=path,
            status=history.status,
            hunks=tuple(history.list_hunks()),
            is_complete=history.is_complete,
        )
        for path, history in histories[:MAX_RECOVERED_FILES]
    )


def _is_submission(event: AnyEvent) -> bool:
    return isinstance(event, Note) and event.about == "submission"


def _apply_step(files: dict[str, _NetFileEdit], step: TraceStep) -> None:
    for path in step.effect.restored if step.effect else ():
        files.pop(path, None)
    paths = step.written if isinstance(step.event, Edit) else ()
    _apply_edits(files, ((paths[0] if paths else edit.path, edit) for edit in step.edits))
    edited = {paths[0] if paths else edit.path for edit in step.edits}
    restored = set(step.effect.restored) if step.effect else set()
    for path in step.written:
        if path not in edited and path not in restored:
            files.setdefault(path, _NetFileEdit()).is_complete = False


def _apply_edits(files: dict[str, _NetFileEdit], edits: Iterable[tuple[str, Edit]]) -> None:
    for path, edit in edits:
        if edit.ok is not False:
            files.setdefault(path, _NetFileEdit()).apply(edit)


class _Fragment:
    """A part of a file before and after its edits."""

    def __init__(self, before: str, after: str, event: int) -> None:
        self.before, self.after, self.event = before, after, event


class _NetFileEdit:
    """The net effect of the edits so far on one file."""

    def __init__(self) -> None:
        self.status: Literal["added", "changed", "deleted"] = "changed"
        self.is_complete = True
        self.is_gone = False
        self._fragments: list[_Fragment] = []

    @property
    def is_changed(self) -> bool:
        if self.is_gone:
            return False
        differs = any(fragment.before != fragment.after for fragment in self._fragments)
        return differs or not self.is_complete or self.status != "changed"

    def apply(self, edit: Edit) -> None:
        """Add one edit to the history."""
        if edit.action == "delete":
            self.is_gone = self.status == "added"
            self.status = "deleted"
            self._fragments = [] if edit.patch is None else self._fragments
        elif edit.action == "create":
            self.status = "changed" if self.status == "deleted" and not self.is_gone else "added"
            self.is_gone, self.is_complete = False, edit.after is not None
            self._fragments = [_Fragment("", edit.after or "", edit.number)]
        elif edit.patch is None and edit.after is None and edit.before is None:
            self.is_complete = False
        elif edit.patch is None and edit.before is None:
            self._overwrite(edit.after or "", edit.number)
        elif edit.patch is None:
            self._replace(edit.before or "", edit.after or "", edit.number)
        if edit.patch is not None:
            for before, after in _split_hunks(edit.patch):
                self._replace(before, after, edit.number)

    def _overwrite(self, after: str, event: int) -> None:
        """Replace the whole file; what it contained before remains as known."""
        before = self._fragments[0].before if len(self._fragments) == 1 else ""
        self.is_complete = self.is_complete and self.status == "added"
        self._fragments = [_Fragment(before, after, event)]

    def _replace(self, before: str, after: str, event: int) -> None:
        if before:
            for fragment in reversed(self._fragments):
                if before in fragment.after:
                    fragment.after = fragment.after.replace(before, after, 1)
                    fragment.event = event
                    return
        self._fragments.append(_Fragment(before, after, event))

    def list_hunks(self) -> Iterator[RecoveredHunk]:
        """Yield each fragment that still differs, as lines with their sign."""
        for fragment in self._fragments:
            if fragment.before != fragment.after:
                lines = _submitted_diff_lines(
                    fragment.before.splitlines(), fragment.after.splitlines()
                )
                yield RecoveredHunk(event=fragment.event, lines=tuple(lines[:MAX_HUNK_LINES]))


def _submitted_diff_lines(before: list[str], after: list[str]) -> list[str]:
    if len(before) * len(after) > MAX_COMPARED_PAIRS:
        return [*(f"-{line}" for line in before), *(f"+{line}" for line in after)]
    diff = islice(unified_diff(before, after, lineterm="", n=_CONTEXT_LINES), 2, None)
    lines = [" …" if line.startswith("@@ ") else line for line in diff]
    return lines[1:] if lines[:1] == [" …"] else lines


def _split_hunks(patch: str) -> Iterator[tuple[str, str]]:
    """Yield the text before and after each hunk of a patch, without headers."""
    for hunk in re.split(r"^@@.*$", patch, flags=re.MULTILINE):
        before, after = [], []
        for line in hunk.splitlines():
            if line.startswith(_PATCH_HEADERS):
                continue
            sign = line[:1]
            if sign in ("-", " "):
                before.append(line[1:])
            if sign in ("+", " "):
                after.append(line[1:])
        if before != after:
            yield "\n".join(before), "\n".join(after)


# The result of all edits of a file together, including those made in the shell.


class NetChange(Record):
    """The net added and removed lines of all edits of one file."""

    path: str
    steps: tuple[TraceStep, ...]
    edits: tuple[Edit, ...]
    lines: tuple[EditLines, ...]
    """Lines of each edit whose text shows what it replaced."""
    added: tuple[str, ...]
    removed: tuple[str, ...]


def list_net_changes(
    reading: TraceReading, steps_by_path: Mapping[str, Collection[TraceStep]]
) -> Iterator[NetChange]:
    """Yield changes by file: of the submitted diff if there is one, else of all edits."""
    submitted = list_submitted_edits(reading) if steps_by_path else None
    for path, steps in steps_by_path.items():
        edits = (
            [edit for edit in submitted if edit.path == path]
            if submitted is not None
            else [
                edit
                for step in steps
                for edited_path, edit in list_file_edits(step)
                if edited_path == path
            ]
        )
        changing = [edit for edit in edits if edit.action == "change"]
        if changing:
            yield _build_net(path, steps, changing)


def _build_net(path: str, steps: Iterable[TraceStep], edits: Sequence[Edit]) -> NetChange:
    added: Counter[str] = Counter()
    removed: Counter[str] = Counter()
    edit_lines = []
    for edit in edits:
        lines = diff_edit(edit)
        if lines is not None and (edit.patch is None or "@@" in edit.patch):
            edit_lines.append(lines)
            added.update(lines.added)
            removed.update(lines.removed)
    return NetChange(
        path=path,
        steps=tuple(steps),
        edits=tuple(edits),
        lines=tuple(edit_lines),
        added=tuple((added - removed).elements()),
        removed=tuple((removed - added).elements()),
    )


# Which changes remain at the end: changes that the agent reverted do not count.


_UNDO_VERBS = frozenset(("checkout", "restore", "clean"))
_UNDO_ALL = compile_lazily(r"\bgit\s+(?:reset\s+--hard|checkout\s+(?:-f\s+)?(?:--\s+)?\.(?:\s|$))")
_NEW_BRANCH = compile_lazily(r"\bgit\s+checkout\s+-[bB]\b")


class StandingChanges(Record):
    """Files by their final state."""

    changed: Mapping[str, tuple[TraceStep, ...]]
    """Path → the steps that changed it, if the change remains."""
    made: Mapping[str, int]
    """Files that the agent created, with the event of each."""
    handed_in: Mapping[str, TraceStep] = {}
    """Other files of the submitted change, with the command that may have changed each."""


@cache_on_reading
def find_standing_changes(reading: TraceReading) -> StandingChanges:
    """Return what the whole trace leaves behind, by the final change if known."""
    changed: dict[str, list[TraceStep]] = {}
    creation_numbers: dict[str, int] = {}
    known_paths: set[str] = set()
    reads = iter(_list_reads(reading))
    read = next(reads, None)
    for step in list_trace_changes(reading):
        while read is not None and read.number < step.number:
            known_paths.update(read.read)
            read = next(reads, None)
        if _undoes_everything(step):
            changed.clear()
        elif not step.written and _undoes_changes(step):
            # `git checkout NAME` may mean a branch or a file.
            for word in _command_words(step):
                changed.pop(word, None)
        for path in step.written:
            if path not in changed and path not in known_paths and _creates_path(step, path):
                creation_numbers.setdefault(path, step.number)
            known_paths.add(path)
            if _undoes_changes(step) or (path in creation_numbers and deletes_path(step, path)):
                changed.pop(path, None)
            else:
                changed.setdefault(path, []).append(step)
    standing_changes = StandingChanges(
        changed={path: tuple(steps) for path, steps in changed.items()}, made=creation_numbers
    )
    submitted = list_submitted_edits(reading)
    return (
        standing_changes
        if submitted is None
        else _compare_submission(standing_changes, submitted, reading)
    )


def _compare_submission(
    standing_changes: StandingChanges, submitted: Sequence[Edit], reading: TraceReading
) -> StandingChanges:
    """Return the changes that remain by the submitted diff, which is the final state."""
    by_name: dict[str, list[Edit]] = {}
    for edit in submitted:
        by_name.setdefault(edit.path.rpartition("/")[2], []).append(edit)
    changed: dict[str, tuple[TraceStep, ...]] = {}
    explained_paths: set[str] = set()
    existing_paths: set[str] = set()
    for path, steps in standing_changes.changed.items():
        for edit in by_name.get(path.rpartition("/")[2], ()):
            if is_same_path(path, edit.path):
                changed[path] = steps
                explained_paths.add(edit.path)
                if edit.action != "create":
                    existing_paths.add(path)
    unexplained_paths = [
        edit.path
        for edit in submitted
        if edit.action != "create" and edit.path not in explained_paths
    ]
    return StandingChanges(
        changed=changed,
        made={
            path: number
            for path, number in standing_changes.made.items()
            if path not in existing_paths
        },
        handed_in=_find_naming_changes(unexplained_paths, reading) if unexplained_paths else {},
    )


def _find_naming_changes(paths: Sequence[str], reading: TraceReading) -> Mapping[str, TraceStep]:
    """Return the last writing command that names each file; unnamed files were so from the
    start."""
    naming_steps: dict[str, TraceStep] = {}
    for step in list_trace_changes(reading):
        if isinstance(step.event, Command):
            for path in paths:
                if path.rpartition("/")[2] in step.event.command:
                    naming_steps[path] = step
    return naming_steps


def _list_reads(reading: TraceReading) -> list[TraceStep]:
    steps = [step for lane in reading.lanes.values() for step in lane.steps if step.read]
    return steps if len(reading.lanes) == 1 else sorted(steps, key=lambda step: step.number)


def _undoes_changes(step: TraceStep) -> bool:
    event = step.event
    return not _UNDO_VERBS.isdisjoint(list_git_verbs(step)) and not (
        isinstance(event, Command) and _NEW_BRANCH.search(event.command)
    )


def _command_words(step: TraceStep) -> list[str]:
    return step.event.command[:4000].split() if isinstance(step.event, Command) else []


def _undoes_everything(step: TraceStep) -> bool:
    event = step.event
    return (
        isinstance(event, Command)
        and "git" in event.command
        and bool(_UNDO_ALL.search(event.command))
    )
