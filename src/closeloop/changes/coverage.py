"""Which lines the tests reach: as coverage data says, or by running them once more."""

from __future__ import annotations

import ast
import re
import secrets
import shlex
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

import msgspec

from closeloop.changes.check_context import CheckContext, apply_side
from closeloop.concurrency import compute_in_thread
from closeloop.grading.testing.runner_instrumentation import detect_runner, simple_commands
from closeloop.grading.testing.suite_run import TIMEOUT_CAUSES
from closeloop.python_trees import parse_python
from closeloop.records.errors import BadInput, Fault
from closeloop.records.finding import Unmeasured
from closeloop.records.protocols import Sandbox
from closeloop.records.record import Record
from closeloop.records.task import Limits
from closeloop.sandbox.admission import admit_suite
from closeloop.sqlite_files import has_columns, open_database

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
        raise BadInput(f"{path} is not coverage data that can be read: {error}.") from None


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
    raise ValueError("it is neither SQLite, XML, JSON, lcov nor Go's")


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
                raise ValueError("it has more lines than any program")
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
                raise ValueError("its blocks are of no program")
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
COVERAGE_ADVICE = "coverage.xml, lcov.info and the like are read where they lie at the root"


class CoverageCommand(Record):
    """A test command that leaves coverage data."""

    command: str
    after: str | None = None
    """What turns the data into the report."""


async def measure_coverage(bench: CheckContext, command: str | None) -> Coverage | Unmeasured:
    """What a run of the tests after the change reaches; or why that cannot be told."""
    name = f".closeloop-{secrets.token_hex(16)}"
    if command is None or add_coverage_options(command, name) is None:
        reason = f"`{command}` is no run of pytest or go" if command else "no test command is known"
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
            else f"the run left no data ({last_line[0][:200]})"
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
