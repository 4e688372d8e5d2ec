"""Run a task's tests in a cage and read them test by test.

Reports are files in the workspace under a name that nobody can guess. A file of the workspace
outlives its command, even one that was killed, and is read whole; what a command prints is kept
only in part, and every command has its own temporary folder.
"""

from __future__ import annotations

import secrets
import shlex
from typing import Literal

import anyio.to_thread

from closeloop.model.attempt import CommandResult, TestRun
from closeloop.model.globs import matches
from closeloop.model.protocols import Ran
from closeloop.model.task import Acceptance
from closeloop.runs.sandbox.cage import Cage
from closeloop.runs.testing.cargo import read_cargo
from closeloop.runs.testing.golang import read_go
from closeloop.runs.testing.instrument import Plan, Report, instrument
from closeloop.runs.testing.javascript import read_jest, read_mocha
from closeloop.runs.testing.node import read_node
from closeloop.runs.testing.python import (
    printed_passes,
    read_pytest,
    read_pytest_text,
    read_unittest,
)
from closeloop.runs.testing.sheet import Reading, joined, shortened
from closeloop.runs.testing.xml import read_junit

REPORT_LIMIT = 32 << 20
FILE_LIMIT = 2_000
OUTPUT_LIMIT = 20_000
ROOM = 1 << 20
KILLED = (137, -9)
OVERTIME = ("out of time", "idle")
NOT_FOUND = 127
HIDDEN_FAILURES = "tests failed, yet the test command exited with 0"

_IN_OUTPUT = {"unittest": read_unittest, "go": read_go, "cargo": read_cargo}

When = Literal["before", "after"]


async def run_tests(cage: Cage, acceptance: Acceptance, when: When) -> TestRun:
    """The tests, then the commands; no command when the tests could not be run at all."""
    run = TestRun(when=when)
    if acceptance.run is not None:
        run = await _run_tests(cage, acceptance, acceptance.run, when)
    results = list(run.commands)
    trouble = run.trouble
    for command in acceptance.commands:
        if trouble is None:
            ran = await cage.run(command, seconds=acceptance.timeout)
            results.append(_result(command, ran, ran.output))
            trouble = await _trouble(cage, results[-1])
    return TestRun(
        when=when,
        tests=run.tests,
        commands=tuple(results),
        trouble=trouble,
        ran=run.ran,
        notes=run.notes,
        printed_passes=run.printed_passes,
    )


async def _run_tests(cage: Cage, acceptance: Acceptance, command: str, when: When) -> TestRun:
    folder = f".closeloop-{secrets.token_hex(16)}"
    await cage.write(f"{folder}/output", b"")
    if acceptance.runner == "junit":
        stale = await _report_files(cage, acceptance, folder)
        names = "\0".join(stale).encode("utf-8", "surrogateescape")
        await cage.run("xargs -0 rm -f --", stdin=names)
    plan = instrument(command, acceptance.runner, f"{cage.root}/{folder}")
    line = _redirected(plan.command, f"{cage.root}/{folder}/output")
    ran = await cage.run(line, seconds=acceptance.timeout, env=plan.env)
    output = await _printed(cage, folder)
    if acceptance.runner == "junit":
        reading = await _read_junit(cage, acceptance, folder)
    else:
        reading = await _read(cage, acceptance, plan, output)
    result = _result(command, ran, output.decode("utf-8", "replace") + ran.output)
    trouble = await _trouble(cage, result)
    if trouble is None and when == "before":
        trouble = _trouble_at_base(result)
    return TestRun(
        when=when,
        tests=reading.tests,
        commands=(result,),
        ran=reading.ran,
        notes=_notes(reading, result),
        trouble=trouble,
        printed_passes=printed_passes(output),
    )


def _redirected(command: str, output: str) -> str:
    """All output into one file; a pipe fails with any of its parts, where the shell knows how."""
    pipes = "(set -o pipefail) 2>/dev/null && set -o pipefail"
    return f"{pipes}\n(\n{command}\n) >>{shlex.quote(output)} 2>&1"


async def _printed(cage: Cage, folder: str) -> bytes:
    try:
        return await cage.read(f"{folder}/output", REPORT_LIMIT)
    except OSError:
        path = shlex.quote(f"{cage.root}/{folder}/output")
        return (await cage.run(f"tail -c 200000 {path}")).output.encode()


async def _read(cage: Cage, acceptance: Acceptance, plan: Plan, output: bytes) -> Reading:
    readings = []
    for report in plan.reports:
        content = None
        if report.path is not None:
            content = await _content(cage, report.path.removeprefix(f"{cage.root}/"))
        readings.append(
            await anyio.to_thread.run_sync(_reading, report, content, output, cage.root)
        )
    reading = joined(readings)
    if reading.ran or acceptance.runner is not None or not plan.env:
        return reading
    return await anyio.to_thread.run_sync(_guessed, output)


async def _read_junit(cage: Cage, acceptance: Acceptance, folder: str) -> Reading:
    paths = await _report_files(cage, acceptance, folder)
    reports = [await _content(cage, path) or b"" for path in paths]
    return await anyio.to_thread.run_sync(read_junit, reports)


def _reading(report: Report, content: bytes | None, output: bytes, root: str) -> Reading:
    if report.runner == "pytest" and content is not None:
        return read_pytest(content, output)
    if report.runner == "pytest":
        shown = read_pytest_text(output)
        return Reading(tests=shown.tests, ran=shown.ran, unread=shown.unread)
    if report.runner in ("jest", "vitest"):
        return read_jest(content or b"", root)
    if report.runner == "mocha":
        return read_mocha(content or output, root)
    if report.runner == "node":
        return read_node(content or b"", root)
    return _IN_OUTPUT[report.runner](output)


def _guessed(output: bytes) -> Reading:
    """What the output of a command shows whose runner nobody named."""
    for read in (read_pytest_text, read_unittest, read_cargo, read_go):
        reading = read(output)
        if reading.ran or reading.tests:
            return reading
    return Reading()


async def _report_files(cage: Cage, acceptance: Acceptance, folder: str) -> list[str]:
    """The JUnit reports that are in the workspace now."""
    listing = f"{folder}/files"
    await cage.write(listing, b"")
    find = "find . -name .git -prune -o -type f -print0"
    await cage.run(f"{find} >{shlex.quote(f'{cage.root}/{listing}')}")
    content = await _content(cage, listing) or b""
    paths = (path.decode("utf-8", "surrogateescape") for path in content.split(b"\0"))
    found = [path for path in paths if path and matches(path, (acceptance.report or "",))]
    return sorted(found)[:FILE_LIMIT]


async def _content(cage: Cage, path: str) -> bytes | None:
    try:
        return await cage.read(path, REPORT_LIMIT)
    except OSError:
        return None


def _result(command: str, ran: Ran, output: str) -> CommandResult:
    return CommandResult(
        command=command,
        exit_code=ran.exit_code,
        seconds=ran.seconds,
        output=shortened(output, OUTPUT_LIMIT) or "",
        stopped=ran.stopped,
    )


def _notes(reading: Reading, result: CommandResult) -> tuple[str, ...]:
    """What forbids to call this run a pass, whatever the single tests say."""
    notes = []
    failed = any(test.status in ("failed", "error") for test in reading.tests)
    if result.stopped is not None:
        notes.append(f"the tests were stopped: {result.stopped}")
    elif not reading.ran:
        notes.append("no test ran")
    elif failed and result.exit_code == 0:
        notes.append(HIDDEN_FAILURES)
    elif not failed and result.exit_code != 0:
        notes.append(f"every test passed, yet the test command exited with {result.exit_code}")
    if reading.ran and not reading.complete and result.stopped is None:
        notes.append("the report of the tests breaks off")
    if reading.unread:
        notes.append(f"results that could not be read: {reading.unread}")
    return tuple(notes)


async def _trouble(cage: Cage, result: CommandResult) -> str | None:
    """What the machine did to a command: seen for ourselves, as output may say anything."""
    if result.exit_code == 0 or result.stopped is not None:
        return None
    if not cage.has_room(ROOM):
        return f"The disk was full while `{result.command}` ran; make room and run again."
    if result.exit_code in KILLED or result.exit_code is None:
        return f"The machine killed `{result.command}`; it may need more memory."
    return None


def _trouble_at_base(result: CommandResult) -> str | None:
    """What is wrong with the task rather than with a change. Tests that hang may be the task."""
    if result.exit_code == NOT_FOUND:
        last = result.output.strip().rpartition("\n")[2][:200]
        return f"`{result.command}` was not found ({last}); add what it needs to the task's setup."
    if result.stopped not in (None, *OVERTIME):
        return f"`{result.command}` was stopped before any change: {result.stopped}."
    return None
