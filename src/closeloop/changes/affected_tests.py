"""Tests that a change affects: those that reach it, and those that were lost by it."""

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

# Which lines the tests reach: as coverage data says, or by running them once more.


# Which lines tests reach, as coverage data already says; the data's own age is looked at.

_MAX_DATA_BYTES = 200_000_000
_MAX_NUMBITS_BYTES = 25_000
"""Bytes of bits that are read of one file, eight lines each."""
_MAX_TOTAL_LINES = 20_000_000
"""Lines in all blocks of a profile."""
_DATABASE_SECONDS = 60.0
"""What reading a database may take."""
_COVERAGE_TABLES = {
    "file": ("id", "path"),
    "line_bits": ("file_id", "numbits"),
    "arc": ("file_id", "fromno", "tono"),
}
_MAX_SOURCE_FOLDERS = 100
"""Folders that an XML report may start its paths from."""
_MAX_PATH_CHARS = 4_000
"""Characters of a path."""
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
    """What is known of one file."""

    covered: frozenset[int]
    missed: frozenset[int] | None = None
    """None where the data does not say which other lines could have run."""


class Coverage(Record):
    """Coverage data, by path from the repository's root."""

    files: Mapping[str, LineCoverage] = {}
    source: str
    stale: frozenset[str] = frozenset()
    """Files that were written after the data was: their lines may have moved."""


def find_coverage(root: Path) -> Path | None:
    """Coverage data where tools usually leave it."""
    return next((root / name for name in USUAL_PATHS if (root / name).is_file()), None)


def read_coverage(path: Path, root: Path) -> Coverage:
    """The data of a file; BadInput when it is none."""
    line_coverage = read_line_coverage(path)
    written = _modified_at(path)
    files = {
        place: lines
        for name, lines in line_coverage.items()
        if (place := _repository_path(name, root))
    }
    stale = frozenset(name for name in files if _modified_at(root / name) > written + 1)
    return Coverage(files=files, source=path.name, stale=stale)


def read_line_coverage(path: Path) -> dict[str, LineCoverage]:
    """The data of a file by the names that it uses; BadInput when it is none."""
    try:
        if path.stat().st_size > _MAX_DATA_BYTES:
            raise BadInput(f"{path} is over 200 MB: give coverage data of this repository only.")
        with path.open("rb") as file:
            head = file.read(64)
        return dict(_read_by_format(path, head))
    except _READ_ERRORS as error:
        raise BadInput(f"{path} is not readable as coverage data: {error}.") from None


def find_runnable_lines(source: bytes) -> frozenset[int]:
    """Lines of Python on which something can run, for data that only says what did."""
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
            for place, byte in enumerate(bits[:_MAX_NUMBITS_BYTES]):
                lines.update(place * 8 + bit for bit in range(8) if byte & (1 << bit))
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
            for place in [f"{source}/{name}" for source in sources] + [name]:
                yield place, _line_coverage(hits)
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
                (place["start"]["line"], facts["s"].get(number, 0) > 0)
                for number, place in facts["statementMap"].items()
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
    """`example.org/mod/file.go:12.3,15.2 2 1`: from, to, statements, hits; one line per block."""
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
            # A block that was not reached ends with its brace, which nobody runs.
            for number in range(first, last + (hit or first == last)):
                lines[number] = lines.get(number, False) or hit
    for name, lines in hits.items():
        yield name, _line_coverage(list(lines.items()))


def _line_coverage(hits: list[tuple[int, bool]]) -> LineCoverage:
    covered = frozenset(number for number, hit in hits if hit)
    return LineCoverage(covered=covered, missed=frozenset(number for number, _ in hits) - covered)


def _repository_path(name: str, root: Path) -> str | None:
    """The path from the repository's root; of a file elsewhere, the part that is found there."""
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
    """A test command that leaves coverage data."""

    command: str
    after: str | None = None
    """What turns the data into the report."""


async def measure_coverage(bench: CheckContext, command: str | None) -> Coverage | Unmeasured:
    """What a run of the tests after the change reaches; or why that cannot be told."""
    name = f".closeloop-{secrets.token_hex(16)}"
    if command is None or add_coverage_options(command, name) is None:
        reason = f"`{command}` does not run pytest or go" if command else "no test command is known"
        return _no_coverage(f"{reason}: {COVERAGE_ADVICE}")
    bench.tell("the tests after the change, with coverage")
    limits = Limits(command_seconds=bench.timeout, idle_seconds=bench.timeout)
    try:
        async with bench.workspaces.open(bench.bases["after"], limits) as workspace:
            await apply_side(bench, workspace, "after")
            async with admit_suite():
                line_coverage = await _run_with_coverage(workspace.cage, command, name)
    except (Fault, OSError) as fault:
        return _no_coverage(str(fault)[:500])
    if isinstance(line_coverage, Unmeasured):
        return line_coverage
    return Coverage(
        files=relocate_coverage(line_coverage, bench.sides.tree("after")), source=COVERAGE_SOURCE
    )


async def _run_with_coverage(
    cage: Sandbox, command: str, name: str
) -> Mapping[str, LineCoverage] | Unmeasured:
    plan = add_coverage_options(command, f"{cage.root}/{name}")
    assert plan is not None
    ran = await cage.run(plan.command)
    if ran.stopped in TIMEOUT_CAUSES:
        return _no_coverage("with coverage, the tests take longer than check.timeout")
    if plan.after:
        await cage.run(plan.after)
    try:
        content = await cage.read(name, MAX_DATA_BYTES)
        return await compute_in_thread(_parse_coverage, content)
    except (Fault, OSError):
        lacking = ran.exit_code == 127 or "No module named coverage" in ran.output
        last_line = ran.output.strip().splitlines()[-1:] or [f"exit code {ran.exit_code}"]
        return _no_coverage(
            "coverage is not installed where the tests run: add it to commands.setup"
            if lacking
            else f"the run produced no data ({last_line[0][:200]})"
        )


def add_coverage_options(command: str, report: str) -> CoverageCommand | None:
    """The command with its first runner made to tell what it reaches; None for other runners."""
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
    found: Mapping[str, LineCoverage], paths: Iterable[str]
) -> dict[str, LineCoverage]:
    """The same by paths from the root; data may name files from a folder below or above it."""
    known = set(paths)
    by_name: dict[str, list[str]] = {}
    for path in known:
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    lines_by_path: dict[str, LineCoverage] = {}
    for name, lines in found.items():
        same_name_paths = by_name.get(name.rpartition("/")[2], [])
        above = [path for path in same_name_paths if f"/{name}".endswith(f"/{path}")]
        below = [path for path in same_name_paths if path.endswith(f"/{name}")]
        if name in known:
            lines_by_path[name] = lines
        elif above or len(below) == 1:
            lines_by_path[max(above, key=len) if above else below[0]] = lines
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
        how = "those that reach the change according to coverage data"
    else:
        covered = _importing_tests(inspection, changed - tests)
        how = "those that import the changed code, directly or indirectly"
    chosen = sorted(tests | (covered & set(inspection.sides.tree("after"))))
    if not chosen or len(chosen) > MAX_SELECTED_FILES:
        return None
    old_paths = {file.path: file.old_path or file.path for file in inspection.files}
    tree = inspection.sides.tree("before")
    paths_before = [path for path in (old_paths.get(path, path) for path in chosen) if path in tree]
    return SuiteSelection(
        command=f"{command} {shlex.join(chosen)}",
        command_before=f"{command} {shlex.join(paths_before)}" if paths_before else "",
        how=f"{count_with_noun(len(chosen), 'test file')}, {how}",
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
    # Not above: the risk of a change is made of its coverage.
    from closeloop.changes.risk.import_graph import ImportResolver, build_import_graph

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
