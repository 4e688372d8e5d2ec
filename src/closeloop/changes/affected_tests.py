"""Tests that a change affects: those that reach it, and those that were lost by it."""

from __future__ import annotations

import re
import shlex
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import is_test_file
from closeloop.changes.risk.import_graph import ImportResolver, build_import_graph
from closeloop.grading.testing.runner_instrumentation import detect_runner
from closeloop.records.change import (
    FileChange,
)
from closeloop.records.inspection import (
    Inspection,
    SourceImport,
)
from closeloop.records.record import Record
from closeloop.sqlite_files import has_columns, open_database
from closeloop.text.wording import count_with_noun

RAN_STATUSES = ("passed", "failed", "error")
SKIPPED, NOT_RUN = "was skipped", "did not run"
MIN_NAME_CHARS = 3
MAX_LOST = 2_000
"""More than these are not examined one by one."""
_TEST_CASE = re.compile(r"\[.*\]$| \(line \d+\)$", re.DOTALL)
"""What tells the cases of one test apart; a documentation test moves with the lines above it."""
_ID_SEPARATOR = re.compile(r"::| > |\.|/")
_PREFIX_END = re.compile(r"::| > |\.(?=\w+(?:\.|$))")


class LostTests(Record):
    """Tests that passed before and do not run now."""

    kept_from_running: Mapping[str, str] = {}
    """What became of each."""
    removed: tuple[str, ...] = ()


def rename_tests(sides: ChangeSides, before: Iterable[str], after: Iterable[str]) -> dict[str, str]:
    """New ids by old ones, of tests whose files the change renamed and that run after it."""
    known, new_paths = set(after), _new_paths(sides.change.files)
    renamed = {}
    for name in before if new_paths else ():
        for prefix in _id_prefixes(name) if name not in known else ():
            ids = [path + name[len(prefix) :] for path in new_paths.get(prefix, ())]
            if ids and ids[0] in known:
                renamed[name] = ids[0]
    return renamed


def find_lost_tests(
    sides: ChangeSides, before: Mapping[str, str], after: Mapping[str, str]
) -> LostTests:
    """Of the tests by their status before and after, those that passed and no longer run."""
    running = {name for name, status in after.items() if status in RAN_STATUSES}
    bare_names = {_TEST_CASE.sub("", name) for name in running}
    new_names = {_own_name(name) for name in running - before.keys()}
    changed = _ChangedFiles(sides)
    not_running: dict[str, str] = {}
    removed: list[str] = []
    for name, status in before.items():
        if status != "passed" or name in running:
            continue
        moved = _own_name(name) in new_names
        if name in after:
            not_running[name] = SKIPPED
        elif len(not_running) >= MAX_LOST:
            not_running[name] = NOT_RUN
        elif _has_other_cases(name, bare_names) or changed.removes_test(name, moved):
            removed += [] if moved else [name]
        else:
            not_running[name] = NOT_RUN
    return LostTests(kept_from_running=not_running, removed=tuple(removed))


def _has_other_cases(name: str, bare_names: set[str]) -> bool:
    """Whether a test still runs, with other parameters or without one of its subtests."""
    bare = _TEST_CASE.sub("", name)
    return (bare != name and bare in bare_names) or bare.rpartition("/")[0] in bare_names


class _ChangedFiles:
    """The files that a change touches and their texts, before it and after it."""

    def __init__(self, sides: ChangeSides) -> None:
        self._sides, self._tree = sides, sides.tree("before")
        files = (file for file in sides.change.files if file.status != "added")
        self._files = {file.old_path or file.path: file for file in files}
        self._texts: dict[str, tuple[str, str]] = {}

    def removes_test(self, name: str, moved: bool) -> bool:
        """Whether the change takes away a test's file, or its name from the file.

        Of one that runs elsewhere by the same name, the name of a class around it is enough.
        """
        paths, rest = self._locate_file(name)
        if any(self._files[path].status == "deleted" for path in paths or ()):
            return True
        texts = [self._read_texts(path) for path in (self._files if paths is None else paths)]
        named = False
        for part in _name_texts(rest):
            after = [new for old, new in texts if _mentions_name(old, part)]
            if after and not any(_mentions_name(new, part) for new in after):
                return True
            if after and not moved:
                return False
            named = named or bool(after)
        # An id that is put together when the tests run stands in no file.
        return bool(paths) and not named

    def _locate_file(self, name: str) -> tuple[Sequence[str] | None, str]:
        """The changed file that a test belongs to, if it is one, and the id without it.

        None where the id does not tell its file.
        """
        for prefix in _id_prefixes(name):
            rest = name[len(prefix) :]
            for path in (prefix, f"{prefix.replace('.', '/')}.py"):
                if path in self._tree:
                    return [path] if path in self._files else [], rest
            # The tests may be run in a folder below the root.
            below = [path for path in self._files if path.endswith(f"/{prefix}")]
            if below and "." in prefix:
                return below, rest
        return None, name

    def _read_texts(self, path: str) -> tuple[str, str]:
        if path not in self._texts:
            before = self._sides.read("before", path) or b""
            after = self._sides.read("after", self._files[path].path) or b""
            self._texts[path] = before.decode(errors="replace"), after.decode(errors="replace")
        return self._texts[path]


def _new_paths(files: Iterable[FileChange]) -> dict[str, list[str]]:
    """How ids begin after renames, by how they began: also from a folder below the root."""
    prefixes: dict[str, list[str]] = {}
    for file in files:
        if file.status != "renamed" or file.old_path is None:
            continue
        old, new = file.old_path.split("/"), file.path.split("/")
        shared = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
        for start in range(shared + 1):
            pair = "/".join(old[start:]), "/".join(new[start:])
            for before, after in (pair, (_module_path(pair[0]), _module_path(pair[1]))):
                prefixes.setdefault(before, []).append(after)
    return prefixes


def _module_path(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _id_prefixes(name: str) -> Iterator[str]:
    """The beginnings of a test id that may name its file."""
    bare = _TEST_CASE.sub("", name)
    yield from (bare[: end.start()] for end in _PREFIX_END.finditer(bare))


def _own_name(name: str) -> str:
    return _ID_SEPARATOR.split(_TEST_CASE.sub("", name))[-1]


def _name_texts(name: str) -> Iterator[str]:
    """What a file may write of a test's id: its last part first, then with its first words cut."""
    for part in reversed(_ID_SEPARATOR.split(_TEST_CASE.sub("", name))):
        words = part.split(" ")
        texts = (" ".join(words[start:]) for start in range(len(words)))
        yield from (text for text in texts if len(text) >= MIN_NAME_CHARS)


def _mentions_name(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


# Which tests reach a change: for suites that are too slow to run whole, and stated as such.

MAX_SELECTED_FILES = 400
"""More files than this and the whole suite may as well run."""
COVERAGE_SECONDS = 20.0
"""What looking into coverage data may take."""
COVERAGE_TABLES = {
    "context": ("id", "context"),
    "line_bits": ("file_id", "context_id"),
    "file": ("id", "path"),
}


class SuiteSelection(Record):
    """A narrower command, and how it was chosen."""

    command: str
    command_before: str
    """With the files as they are called before the change; empty where none is there."""
    how: str


def select_test_files(inspection: Inspection, command: str) -> SuiteSelection | None:
    """The tests that coverage data or imports lead to; None where that cannot be told."""
    if detect_runner(command) != "pytest":
        return None
    changed = {file.path for file in inspection.files}
    if any(path.rpartition("/")[2] == "conftest.py" for path in changed):
        return None  # it reaches tests that do not import it
    tests = {
        path for path in changed if is_test_file(path) and path in inspection.sides.tree("after")
    }
    covered = _covering_tests(inspection.sides.root, changed - tests)
    if covered is not None:
        how = "those that coverage data shows to reach the change"
    else:
        covered = _importing_tests(inspection, changed - tests)
        how = "those that import what was changed, directly or not"
    chosen = sorted(tests | (covered & set(inspection.sides.tree("after"))))
    if not chosen or len(chosen) > MAX_SELECTED_FILES:
        return None
    old_paths = {file.path: file.old_path or file.path for file in inspection.files}
    tree = inspection.sides.tree("before")
    paths_before = [path for path in (old_paths.get(path, path) for path in chosen) if path in tree]
    return SuiteSelection(
        command=f"{command} {shlex.join(chosen)}",
        command_before=f"{command} {shlex.join(paths_before)}" if paths_before else "",
        how=f"{count_with_noun(len(chosen), 'file')} of tests, {how}",
    )


def _covering_tests(root: Path, changed: Iterable[str]) -> set[str] | None:
    """Files of tests whose contexts touched a changed file; None without contexts."""
    path = root / ".coverage"
    if not path.is_file():
        return None
    test_paths: set[str] = set()
    try:
        with open_database(path, COVERAGE_SECONDS) as data:
            if not has_columns(data, COVERAGE_TABLES):
                return None
            for name in changed:
                rows = data.execute(
                    "SELECT DISTINCT context.context FROM context"
                    " JOIN line_bits ON line_bits.context_id = context.id"
                    " JOIN file ON file.id = line_bits.file_id WHERE file.path = ?",
                    (str(root / name),),
                )
                test_paths |= {str(row[0]).split("::")[0] for row in rows if "::" in str(row[0])}
    except (sqlite3.Error, OSError, ValueError):
        return None
    return test_paths or None


def _importing_tests(inspection: Inspection, changed: Iterable[str]) -> set[str]:
    """Files of tests from which imports lead to a changed file."""
    imports: dict[str, tuple[SourceImport, ...]] = {}
    for path in inspection.index.paths():
        module = inspection.index.module(path)
        if module is not None and module.language == "python":
            imports[path] = module.imports
    importers = build_import_graph(imports, {})
    reached, waiting = set(changed), list(changed)
    while waiting:
        new = importers.get(waiting.pop(), frozenset()) - reached
        reached |= new
        waiting += new
    files = ImportResolver(imports.keys(), {})
    return {
        path
        for path, lines in imports.items()
        if is_test_file(path)
        and any(
            not reached.isdisjoint(files.resolve_import("python", path, line)) for line in lines
        )
    }
