"""Which lines the tests reach, by running them once more, with coverage."""

from __future__ import annotations

import secrets
import shlex
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from closeloop.changes.risk.coverage import Coverage, Lines, lines_of
from closeloop.checking.bench import Bench, put
from closeloop.checking.computing import compute
from closeloop.model.errors import Fault
from closeloop.model.finding import Unmeasured
from closeloop.model.protocols import Cage
from closeloop.model.record import Record
from closeloop.model.variant import Limits
from closeloop.runs.admission import admit_suite
from closeloop.runs.testing.instrument import runner_of
from closeloop.runs.testing.run import OVERTIME
from closeloop.runs.testing.shell import simple_commands

MOST_BYTES = 64 << 20
USED = "a run of the tests"
ELSE = "coverage.xml, lcov.info and the like are read where they lie at the root"


class Covered(Record):
    """A test command that leaves coverage data."""

    command: str
    after: str | None = None
    """What turns the data into the report."""


async def measure(bench: Bench, command: str | None) -> Coverage | Unmeasured:
    """What a run of the tests after the change reaches; or why that cannot be told."""
    name = f".closeloop-{secrets.token_hex(16)}"
    if command is None or covered(command, name) is None:
        what = f"`{command}` is no run of pytest or go" if command else "no test command is known"
        return _unmeasured(f"{what}: {ELSE}")
    bench.tell("the tests after the change, with coverage")
    limits = Limits(command_seconds=bench.timeout, idle_seconds=bench.timeout)
    try:
        async with bench.workspaces.open(bench.bases["after"], limits) as workspace:
            await put(bench, workspace, "after")
            async with admit_suite():
                found = await _run(workspace.cage, command, name)
    except (Fault, OSError) as fault:
        return _unmeasured(str(fault)[:500])
    if isinstance(found, Unmeasured):
        return found
    return Coverage(files=located(found, bench.sides.tree("after")), source=USED)


async def _run(cage: Cage, command: str, name: str) -> Mapping[str, Lines] | Unmeasured:
    plan = covered(command, f"{cage.root}/{name}")
    assert plan is not None
    ran = await cage.run(plan.command)
    if ran.stopped in OVERTIME:
        return _unmeasured("with coverage, the tests take longer than check.timeout")
    if plan.after:
        await cage.run(plan.after)
    try:
        content = await cage.read(name, MOST_BYTES)
        return await compute(_read, content)
    except (Fault, OSError):
        lacking = ran.exit_code == 127 or "No module named coverage" in ran.output
        said = ran.output.strip().splitlines()[-1:] or [f"exit code {ran.exit_code}"]
        return _unmeasured(
            "coverage is not installed where the tests run: add it to commands.setup"
            if lacking
            else f"the run left no data ({said[0][:200]})"
        )


def covered(command: str, report: str) -> Covered | None:
    """The command with its first runner made to tell what it reaches; None for other runners."""
    runner, quoted = runner_of(command), shlex.quote(report)
    for words in simple_commands(command) if runner in ("pytest", "go") else ():
        for word, following in zip(words, [*words[1:], None], strict=True):
            prefix, slash, name = word.text.rpartition("/")
            if name in ("pytest", "py.test") and runner == "pytest":
                tool = f"{command[: word.start]}{shlex.quote(f'{prefix}{slash}coverage')}"
                run = f"{tool} run --data-file={quoted}.data -m pytest{command[word.end :]}"
                turn = f"{tool} json -q --data-file={quoted}.data -o {quoted}"
                return Covered(command=run, after=turn)
            if name == "go" and following is not None and following.text == "test":
                options = f" -coverprofile={quoted} -coverpkg=./..."
                run = command[: following.end] + options + command[following.end :]
                return Covered(command=run)
    return None


def located(found: Mapping[str, Lines], paths: Iterable[str]) -> dict[str, Lines]:
    """The same by paths from the root; data may name files from a folder below or above it."""
    known = set(paths)
    by_name: dict[str, list[str]] = {}
    for path in known:
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    made: dict[str, Lines] = {}
    for name, lines in found.items():
        near = by_name.get(name.rpartition("/")[2], [])
        above = [path for path in near if f"/{name}".endswith(f"/{path}")]
        below = [path for path in near if path.endswith(f"/{name}")]
        if name in known:
            made[name] = lines
        elif above or len(below) == 1:
            made[max(above, key=len) if above else below[0]] = lines
    return made


def _read(content: bytes) -> Mapping[str, Lines]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return lines_of(Path(file.name))


def _unmeasured(reason: str) -> Unmeasured:
    return Unmeasured(rule="coverage", reason=reason)
