"""Which tests reach a change: for suites that are too slow to run whole, and stated as such."""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from closeloop.changes.file_kinds import is_test_file
from closeloop.changes.risk.import_graph import ImportResolver, build_import_graph
from closeloop.grading.testing.runner_instrumentation import detect_runner
from closeloop.records.inspection import Inspection, SourceImport
from closeloop.records.plural import count_with_noun
from closeloop.records.record import Record
from closeloop.sqlite_files import has_columns, open_database

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
