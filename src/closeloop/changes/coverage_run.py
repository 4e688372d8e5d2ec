"""Which lines the tests reach, by running them once more, with coverage."""

from __future__ import annotations

import secrets
import shlex
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from closeloop.changes.background_computation import compute_in_thread
from closeloop.changes.check_context import CheckContext, apply_side
from closeloop.changes.risk.coverage_data import Coverage, LineCoverage, read_line_coverage
from closeloop.grading.testing.command_words import simple_commands
from closeloop.grading.testing.runner_instrumentation import detect_runner
from closeloop.grading.testing.suite_run import TIMEOUT_CAUSES
from closeloop.records.errors import Fault
from closeloop.records.finding import Unmeasured
from closeloop.records.protocols import Sandbox
from closeloop.records.record import Record
from closeloop.records.variant import Limits
from closeloop.sandbox.admission import admit_suite

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
