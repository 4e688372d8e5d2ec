"""Tests that a change affects: those that reach its lines, and those that no longer run."""

from __future__ import annotations

import ast
import re
import secrets
import shlex
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

import msgspec

from closeloop.changes.change_sides import ChangeSides, CheckContext, apply_side
from closeloop.changes.file_kinds import is_test_file
from closeloop.concurrency import compute_in_thread
from closeloop.grading.suite_run import TIMEOUT_CAUSES, detect_runner, simple_commands
from closeloop.records.change import FileChange, Inspection, SourceImport
from closeloop.records.errors import BadInput, Fault
from closeloop.records.finding import Unmeasured
from closeloop.records.protocols import Sandbox
from closeloop.records.record import Record
from closeloop.records.task import Limits
from closeloop.sandbox.admission import admit_suite
from closeloop.sqlite_files import has_columns, open_database
from closeloop.text.code_patterns import parse_python
from closeloop.text.wording import count_with_noun

# Lines that the tests reach: from coverage data, or by running them once more.
#
# Existing coverage data, with its age taken into account.

_MAX_DATA_BYTES = 200_000_000
_MAX_NUMBITS_BYTES = 25_000
"""Maximum bytes of line bits read per file, eight lines per byte."""
_MAX_TOTAL_LINES = 20_000_000
"""Maximum lines in all blocks of a profile."""
_DATABASE_SECONDS = 60.0
"""Timeout in seconds for reading a coverage database."""
_COVERAGE_TABLES = {
    "file": ("id", "path"),
    "line_bits": ("file_id", "numbits"),
    "arc": ("file_id", "fromno", "tono"),
}
_MAX_SOURCE_FOLDERS = 100
"""Maximum number of source folders of an XML report."""
_MAX_PATH_CHARS = 4_000
"""Maximum length of a path, in characters."""
_READ_ERRORS = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError),
    *(sqlite3.Error, ElementTree.ParseError, msgspec.MsgspecError),
)
USUAL_PATHS = (
    *(".coverage", "coverage.xml", "lcov.info", "coverage/lcov.info", "coverage.json"),
    *("coverage.out", "cover.out"),
)
_GO_BLOCK = re.compile(r"(.{1,4000}):(\d{1,9})\.\d{1,9},(\d{1,9})\.\d{1,9} \d{1,9} (\d{1,18})")


class LineCoverage(Record):
    """Coverage of one file."""

    covered: frozenset[int]
    missed: frozenset[int] | None = None
    """Lines that could have run but did not; None if the data does not say."""


class Coverage(Record):
    """Coverage data, by path from the repository's root."""

    files: Mapping[str, LineCoverage] = {}
    source: str
    stale: frozenset[str] = frozenset()
    """Files modified after the data was written: their lines may have moved."""


def find_coverage(root: Path) -> Path | None:
    """Return the coverage file in one of the usual places; None if there is none."""
    return next((root / name for name in USUAL_PATHS if (root / name).is_file()), None)


def read_coverage(path: Path, root: Path) -> Coverage:
    """Read a coverage file; raise BadInput if it is not one."""
    line_coverage = read_line_coverage(path)
    written_at = _modified_at(path)
    files = {
        repository_path: lines
        for name, lines in line_coverage.items()
        if (repository_path := _repository_path(name, root))
    }
    stale = frozenset(name for name in files if _modified_at(root / name) > written_at + 1)
    return Coverage(files=files, source=path.name, stale=stale)


def read_line_coverage(path: Path) -> dict[str, LineCoverage]:
    """Read a coverage file, by the file names it uses; raise BadInput if it is not one."""
    try:
        if path.stat().st_size > _MAX_DATA_BYTES:
            raise BadInput(f"{path} is over 200 MB: give coverage data of this repository only.")
        with path.open("rb") as file:
            head = file.read(64)
        return dict(_read_by_format(path, head))
    except _READ_ERRORS as error:
        raise BadInput(f"{path} is not readable as coverage data: {error}.") from None


def find_runnable_lines(source: bytes) -> frozenset[int]:
    """Return the executable lines of Python source, for data that lists only lines that ran."""
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    skipped = {
        number
        for number, line in enumerate(source.splitlines(), 1)
        if re.search(rb"#\s*pragma:\s*no ?cover", line)
    }
    return frozenset(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and not _is_docstring(node) and node.lineno not in skipped
    )


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _read_by_format(path: Path, head: bytes) -> Iterator[tuple[str, LineCoverage]]:
    if head.startswith(b"SQLite format 3"):
        return _read_sqlite(path)
    if head.lstrip().startswith(b"<"):
        return _read_cobertura(path)
    if head.lstrip().startswith(b"{"):
        return _read_json(path)
    if re.match(rb"\s*(?:TN:|SF:)", head):
        return _read_lcov(path)
    if head.startswith(b"mode: "):
        return _read_go_profile(path)
    raise ValueError("it is not in the format of SQLite, XML, JSON, lcov or Go")


def _read_sqlite(path: Path) -> Iterator[tuple[str, LineCoverage]]:
    with open_database(path, _DATABASE_SECONDS) as connection:
        if not has_columns(connection, _COVERAGE_TABLES):
            raise ValueError("its tables are not those of coverage.py")
        names = dict(connection.execute("SELECT id, path FROM file"))
        covered: dict[int, set[int]] = {number: set() for number in names}
        line_total = 0
        for number, bits in connection.execute("SELECT file_id, numbits FROM line_bits"):
            lines = covered.setdefault(number, set())
            for index, byte in enumerate(bits[:_MAX_NUMBITS_BYTES]):
                lines.update(index * 8 + bit for bit in range(8) if byte & (1 << bit))
            line_total += 8 * len(bits)
            if line_total > _MAX_TOTAL_LINES:
                raise ValueError("it has an impossible number of lines")
        for number, start, end in connection.execute("SELECT file_id, fromno, tono FROM arc"):
            covered.setdefault(number, set()).update(abs(line) for line in (start, end) if line > 0)
    for number, name in names.items():
        yield str(name), LineCoverage(covered=frozenset(covered[number]))


def _read_cobertura(path: Path) -> Iterator[tuple[str, LineCoverage]]:
    sources: list[str] = []
    for _, element in ElementTree.iterparse(path):  # noqa: S314  expat bounds entities; the size is bounded
        if element.tag == "source" and element.text and len(sources) < _MAX_SOURCE_FOLDERS:
            sources.append(element.text.strip())
        elif element.tag == "class":
            hits = [
                (int(x.get("number", "0")), x.get("hits", "0") != "0") for x in element.iter("line")
            ]
            name = element.get("filename", "")
            for file_path in [f"{source}/{name}" for source in sources] + [name]:
                yield file_path, _line_coverage(hits)
            element.clear()


def _read_json(path: Path) -> Iterator[tuple[str, LineCoverage]]:
    data: Any = msgspec.json.decode(path.read_bytes())
    if isinstance(data.get("files"), dict):
        for name, facts in data["files"].items():
            yield (
                name,
                LineCoverage(
                    covered=frozenset(facts["executed_lines"]),
                    missed=frozenset(facts["missing_lines"]),
                ),
            )
        return
    for name, facts in data.items():
        if isinstance(facts, dict) and "statementMap" in facts:
            hits = [
                (location["start"]["line"], facts["s"].get(number, 0) > 0)
                for number, location in facts["statementMap"].items()
            ]
            yield facts.get("path", name), _line_coverage(hits)


def _read_lcov(path: Path) -> Iterator[tuple[str, LineCoverage]]:
    name = ""
    hits: list[tuple[int, bool]] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("SF:"):
                name, hits = line[3:].strip(), []
            elif match := re.match(r"DA:(\d+),(\d+)", line):
                hits.append((int(match[1]), match[2] != "0"))
            elif line.startswith("end_of_record") and name:
                yield name, _line_coverage(hits)
                name, hits = "", []


def _read_go_profile(path: Path) -> Iterator[tuple[str, LineCoverage]]:
    """Parse lines such as `example.org/mod/file.go:12.3,15.2 2 1`: from, to, statements, hits."""
    hits: dict[str, dict[int, bool]] = {}
    line_total = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            match = _GO_BLOCK.fullmatch(line.rstrip())
            if match is None:
                continue
            first, last = int(match[2]), int(match[3])
            line_total += last - first
            if not first <= last or line_total > _MAX_TOTAL_LINES:
                raise ValueError("its blocks are not valid")
            lines = hits.setdefault(match[1], {})
            hit = match[4] != "0"
            # An unreached block ends with its brace, which is never executed.
            for number in range(first, last + (hit or first == last)):
                lines[number] = lines.get(number, False) or hit
    for name, lines in hits.items():
        yield name, _line_coverage(list(lines.items()))


def _line_coverage(hits: list[tuple[int, bool]]) -> LineCoverage:
    covered = frozenset(number for number, hit in hits if hit)
    return LineCoverage(covered=covered, missed=frozenset(number for number, _ in hits) - covered)


def _repository_path(name: str, root: Path) -> str | None:
    """Return the path from the repository's root; for a file elsewhere, the part found there."""
    if len(name) > _MAX_PATH_CHARS:
        return None
    path = PurePosixPath(name.replace("\\", "/"))
    try:
        return path.relative_to(root.absolute().as_posix()).as_posix()
    except ValueError:
        parts = path.parts[1:] if path.is_absolute() else path.parts
    for start in range(len(parts)):
        if (root / Path(*parts[start:])).is_file() and ".." not in parts[start:]:
            return PurePosixPath(*parts[start:]).as_posix()
    return None


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


MAX_DATA_BYTES = 64 << 20
COVERAGE_SOURCE = "a run of the tests"
COVERAGE_ADVICE = (
    "coverage.xml, lcov.info and similar files are read from the root of the repository"
)


class CoverageCommand(Record):
    """A test command that writes coverage data."""

    command: str
    after: str | None = None
    """Command that turns the data into the report."""


async def measure_coverage(context: CheckContext, command: str | None) -> Coverage | Unmeasured:
    """Run the tests after the change and return their coverage, or why there is none."""
    name = f".closeloop-{secrets.token_hex(16)}"
    if command is None or add_coverage_options(command, name) is None:
        reason = f"`{command}` does not run pytest or go" if command else "no test command is known"
        return _no_coverage(f"{reason}: {COVERAGE_ADVICE}")
    context.report_progress("the tests after the change, with coverage")
    limits = Limits(command_seconds=context.timeout, idle_seconds=context.timeout)
    try:
        async with context.workspaces.open(context.bases["after"], limits) as workspace:
            await apply_side(context, workspace, "after")
            async with admit_suite():
                line_coverage = await _run_with_coverage(workspace.sandbox, command, name)
    except (Fault, OSError) as fault:
        return _no_coverage(str(fault)[:500])
    if isinstance(line_coverage, Unmeasured):
        return line_coverage
    return Coverage(
        files=relocate_coverage(line_coverage, context.sides.tree("after")), source=COVERAGE_SOURCE
    )


async def _run_with_coverage(
    sandbox: Sandbox, command: str, name: str
) -> Mapping[str, LineCoverage] | Unmeasured:
    plan = add_coverage_options(command, f"{sandbox.root}/{name}")
    assert plan is not None
    result = await sandbox.run(plan.command)
    if result.stopped in TIMEOUT_CAUSES:
        return _no_coverage("with coverage, the tests take longer than check.timeout")
    if plan.after:
        await sandbox.run(plan.after)
    try:
        content = await sandbox.read(name, MAX_DATA_BYTES)
        return await compute_in_thread(_parse_coverage, content)
    except (Fault, OSError):
        is_missing = result.exit_code == 127 or "No module named coverage" in result.output
        last_line = result.output.strip().splitlines()[-1:] or [f"exit code {result.exit_code}"]
        return _no_coverage(
            "coverage is not installed where the tests run: add it to commands.setup"
            if is_missing
            else f"the run produced no data ({last_line[0][:200]})"
        )


def add_coverage_options(command: str, report: str) -> CoverageCommand | None:
    """Add coverage options to the first test runner of a command; None for other runners."""
    runner, quoted = detect_runner(command), shlex.quote(report)
    for words in simple_commands(command) if runner in ("pytest", "go") else ():
        for word, following in zip(words, [*words[1:], None], strict=True):
            prefix, slash, name = word.text.rpartition("/")
            if name in ("pytest", "py.test") and runner == "pytest":
                tool = f"{command[: word.start]}{shlex.quote(f'{prefix}{slash}coverage')}"
                run = f"{tool} run --data-file={quoted}.data -m pytest{command[word.end :]}"
                turn = f"{tool} json -q --data-file={quoted}.data -o {quoted}"
                return CoverageCommand(command=run, after=turn)
            if name == "go" and following is not None and following.text == "test":
                options = f" -coverprofile={quoted} -coverpkg=./..."
                run = command[: following.end] + options + command[following.end :]
                return CoverageCommand(command=run)
    return None


def relocate_coverage(
    coverage_by_name: Mapping[str, LineCoverage], paths: Iterable[str]
) -> dict[str, LineCoverage]:
    """Rename coverage data to paths from the root; it may use paths from a folder below or
    above."""
    known_paths = set(paths)
    by_name: dict[str, list[str]] = {}
    for path in known_paths:
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    lines_by_path: dict[str, LineCoverage] = {}
    for name, lines in coverage_by_name.items():
        same_name_paths = by_name.get(name.rpartition("/")[2], [])
        shorter_paths = [path for path in same_name_paths if f"/{name}".endswith(f"/{path}")]
        longer_paths = [path for path in same_name_paths if path.endswith(f"/{name}")]
        if name in known_paths:
            lines_by_path[name] = lines
        elif shorter_paths or len(longer_paths) == 1:
            lines_by_path[max(shorter_paths, key=len) if shorter_paths else longer_paths[0]] = lines
    return lines_by_path


def _parse_coverage(content: bytes) -> Mapping[str, LineCoverage]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return read_line_coverage(Path(file.name))


def _no_coverage(reason: str) -> Unmeasured:
    return Unmeasured(rule="coverage", reason=reason)


RAN_STATUSES = ("passed", "failed", "error")
SKIPPED, NOT_RUN = "was skipped", "did not run"
MIN_NAME_CHARS = 3
MAX_LOST = 2_000
"""Maximum number of lost tests examined one by one."""
_TEST_CASE = re.compile(r"\[.*\]$| \(line \d+\)$", re.DOTALL)
"""The part of an id that separates cases of one test; a doctest moves with the lines above it."""
_ID_SEPARATOR = re.compile(r"::| > |\.|/")
_PREFIX_END = re.compile(r"::| > |\.(?=\w+(?:\.|$))")


class LostTests(Record):
    """Tests that passed before the change and do not run after it."""

    kept_from_running: Mapping[str, str] = {}
    """What happened to each test, by id."""
    removed: tuple[str, ...] = ()


def rename_tests(sides: ChangeSides, before: Iterable[str], after: Iterable[str]) -> dict[str, str]:
    """Map old test ids to new ones, for tests in renamed files that run after the change."""
    known_ids, new_paths = set(after), _new_paths(sides.change.files)
    renamed = {}
    for name in before if new_paths else ():
        for prefix in _id_prefixes(name) if name not in known_ids else ():
            ids = [path + name[len(prefix) :] for path in new_paths.get(prefix, ())]
            if ids and ids[0] in known_ids:
                renamed[name] = ids[0]
    return renamed


def find_lost_tests(
    sides: ChangeSides, before: Mapping[str, str], after: Mapping[str, str]
) -> LostTests:
    """Return tests that passed before and no longer run, given the status of each on both sides."""
    running = {name for name, status in after.items() if status in RAN_STATUSES}
    bare_names = {_TEST_CASE.sub("", name) for name in running}
    # A package or test that newly fails may have kept its tests from running.
    complete = {
        name for name in running if after[name] == "passed" or before.get(name) == after[name]
    }
    new_names = {_own_name(name) for name in running - before.keys()}
    changed = _ChangedFiles(sides)
    not_running: dict[str, str] = {}
    removed_tests: list[str] = []
    for name, status in before.items():
        if status != "passed" or name in running:
            continue
        moved = _own_name(name) in new_names
        if name in after:
            not_running[name] = SKIPPED
        elif len(not_running) >= MAX_LOST:
            not_running[name] = NOT_RUN
        elif _has_other_cases(name, bare_names, complete) or changed.removes_test(name, moved):
            removed_tests += [] if moved else [name]
        else:
            not_running[name] = NOT_RUN
    return LostTests(kept_from_running=not_running, removed=tuple(removed_tests))


def _has_other_cases(name: str, bare_names: set[str], complete: set[str]) -> bool:
    """Return whether a test still runs, with other parameters or without one of its subtests."""
    bare = _TEST_CASE.sub("", name)
    return (bare != name and bare in bare_names) or bare.rpartition("/")[0] in complete


class _ChangedFiles:
    """The files that a change touches, with their texts before and after."""

    def __init__(self, sides: ChangeSides) -> None:
        self._sides, self._tree = sides, sides.tree("before")
        files = (file for file in sides.change.files if file.status != "added")
        self._files = {file.old_path or file.path: file for file in files}
        self._texts: dict[str, tuple[str, str]] = {}

    def removes_test(self, name: str, moved: bool) -> bool:
        """Return whether the change removes a test's file, or the test's name from its file.

        If a test of the same name runs elsewhere, removing the name of its class is enough.
        """
        paths, test_name = self._locate_file(name)
        if any(self._files[path].status == "deleted" for path in paths or ()):
            return True
        texts = [self._read_texts(path) for path in (self._files if paths is None else paths)]
        is_present = False
        for part in _name_texts(test_name):
            after = [new for old, new in texts if _mentions_name(old, part)]
            if after and not any(_mentions_name(new, part) for new in after):
                return True
            if after and not moved:
                return False
            is_present = is_present or bool(after)
        # An id that is built at run time occurs in no file.
        return bool(paths) and not is_present

    def _locate_file(self, name: str) -> tuple[Sequence[str] | None, str]:
        """Return the changed file that a test belongs to, if any, and the id without the file.

        None if the id does not contain a file.
        """
        for prefix in _id_prefixes(name):
            test_name = name[len(prefix) :]
            for path in (prefix, f"{prefix.replace('.', '/')}.py"):
                if path in self._tree:
                    return [path] if path in self._files else [], test_name
            # The tests may be run in a folder below the root.
            matching_paths = [path for path in self._files if path.endswith(f"/{prefix}")]
            if matching_paths and "." in prefix:
                return matching_paths, test_name
        return None, name

    def _read_texts(self, path: str) -> tuple[str, str]:
        if path not in self._texts:
            before = self._sides.read("before", path) or b""
            after = self._sides.read("after", self._files[path].path) or b""
            self._texts[path] = before.decode(errors="replace"), after.decode(errors="replace")
        return self._texts[path]


def _new_paths(files: Iterable[FileChange]) -> dict[str, list[str]]:
    """Map old id prefixes to new ones after renames, also relative to folders below the root."""
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
    """Yield the prefixes of a test id that may name its file."""
    bare = _TEST_CASE.sub("", name)
    yield from (bare[: end.start()] for end in _PREFIX_END.finditer(bare))


def _own_name(name: str) -> str:
    return _ID_SEPARATOR.split(_TEST_CASE.sub("", name))[-1]


def _name_texts(name: str) -> Iterator[str]:
    """Yield texts of a test id that a file may contain: its last part, then without first words."""
    for part in reversed(_ID_SEPARATOR.split(_TEST_CASE.sub("", name))):
        words = part.split(" ")
        texts = (" ".join(words[start:]) for start in range(len(words)))
        yield from (text for text in texts if len(text) >= MIN_NAME_CHARS)


def _mentions_name(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


# Tests that reach a change, for suites that are too slow to run fully; the report says so.

MAX_SELECTED_FILES = 400
"""Maximum number of selected test files; above this the whole suite runs."""
COVERAGE_SECONDS = 20.0
"""Timeout in seconds for reading coverage data."""
COVERAGE_TABLES = {
    "context": ("id", "context"),
    "line_bits": ("file_id", "context_id"),
    "file": ("id", "path"),
}


class SuiteSelection(Record):
    """A test command for part of the suite, and how the tests were selected."""

    command: str
    command_before: str
    """The command with file names from before the change; empty if none of them existed."""
    how: str


def select_test_files(inspection: Inspection, command: str) -> SuiteSelection | None:
    """Select tests by coverage data or imports; None if neither gives an answer."""
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
        criterion = "those that reach the change according to coverage data"
    else:
        covered = _importing_tests(inspection, changed - tests)
        criterion = "those that import the changed code, directly or indirectly"
    test_files = sorted(tests | (covered & set(inspection.sides.tree("after"))))
    if not test_files or len(test_files) > MAX_SELECTED_FILES:
        return None
    old_paths = {file.path: file.old_path or file.path for file in inspection.files}
    tree = inspection.sides.tree("before")
    paths_before = [
        path for path in (old_paths.get(path, path) for path in test_files) if path in tree
    ]
    return SuiteSelection(
        command=f"{command} {shlex.join(test_files)}",
        command_before=f"{command} {shlex.join(paths_before)}" if paths_before else "",
        how=f"{count_with_noun(len(test_files), 'test file')}, {criterion}",
    )


def _covering_tests(root: Path, changed: Iterable[str]) -> set[str] | None:
    """Return test files whose coverage contexts include a changed file; None without contexts."""
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
    """Return test files that import a changed file, directly or indirectly."""
    # Imported here: the risk of a change depends on its coverage.
    from closeloop.changes.risk.import_graph import ImportResolver, build_import_graph

    imports: dict[str, tuple[SourceImport, ...]] = {}
    for path in inspection.index.paths():
        module = inspection.index.module(path)
        if module is not None and module.language == "python":
            imports[path] = module.imports
    importers = build_import_graph(imports, {})
    reached_paths, waiting = set(changed), list(changed)
    while waiting:
        new = importers.get(waiting.pop(), frozenset()) - reached_paths
        reached_paths |= new
        waiting += new
    files = ImportResolver(imports.keys(), {})
    return {
        path
        for path, lines in imports.items()
        if is_test_file(path)
        and any(
            not reached_paths.isdisjoint(files.resolve_import("python", path, line))
            for line in lines
        )
    }
