"""The repository's own tools, each run in a clean workspace at one end of a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from closeloop.changes.tool_outcomes import Ending
from closeloop.checking.bench import Bench, put
from closeloop.model.attempt import TestRun
from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.inspection import Side
from closeloop.model.protocols import Ran
from closeloop.model.record import Record
from closeloop.model.report import ToolState
from closeloop.model.task import Acceptance
from closeloop.model.trace import Command
from closeloop.model.variant import Limits
from closeloop.process.checks import check_of
from closeloop.process.commands import doing_of
from closeloop.runs.admission import OVERSUBSCRIBED, run_suite
from closeloop.runs.sandbox.cage import Cage
from closeloop.runs.testing.instrument import runner_of
from closeloop.runs.testing.run import KILLED, NOT_FOUND, OVERTIME, run_tests

SHOWN = 4_000
"""So much of a tool's output goes into a report."""
FULL_DISK = "No space left on device"
CANNOT_RUN = (126, NOT_FOUND)
NO_TESTS = (0, 5)
"""How runners leave when there was nothing to run."""


NOT_SET_UP = "the project cannot be set up"
UNREAD = "known by its exit code alone, not test by test"


class Tool(Record):
    """A command of the repository's own, and what it is for."""

    name: str
    command: str
    is_test: bool = False
    selected: str | None = None
    """How its tests were chosen, where they are not all."""
    command_before: str | None = None
    """The same before the change, where chosen files are not there or have other names; empty
    where none of them is there."""

    def command_at(self, side: Side) -> str:
        if side == "before" and self.command_before is not None:
            return self.command_before
        return self.command


class Tried(Record):
    """What became of a tool at one end."""

    state: ToolState
    failures: Mapping[str, str] = {}
    """What fails, and its message: test ids, or signatures of what the tool complains about."""
    tests: Mapping[str, str] = {}
    """Of a test runner: the status of every test that it names."""
    output: str = ""
    seconds: float = 0.0
    note: str | None = None


def ending_of(tried: Tried) -> Ending:
    """How a tool ended, for the table of outcomes."""
    if tried.state == "failed" and not tried.failures and not tried.tests:
        return "no results"
    return tried.state


async def attempt(bench: Bench, tool: Tool, side: Side, patch: str = "") -> Tried:
    """One tool at one end, or with a patch on top of it, in a workspace of its own."""
    if side in bench.unready:
        return Tried(state="not set up", output=bench.unready[side], note=NOT_SET_UP)
    if not tool.command_at(side):
        return Tried(state="inert", note="none of the selected tests was there before the change")
    try:
        tried, oversubscribed = await run_suite(
            lambda clock: _attempt(bench, tool, side, patch, clock),
            lambda tried: tried.state == "timed out",
        )
    except BadInput as fault:
        return Tried(state="not set up", output=str(fault), note=NOT_SET_UP)
    except (MachineFailed, OSError) as fault:
        return Tried(state="machine trouble", note=str(fault))
    if oversubscribed:
        return msgspec.structs.replace(tried, state="machine trouble", note=OVERSUBSCRIBED)
    return tried


async def _attempt(bench: Bench, tool: Tool, side: Side, patch: str, clock: int) -> Tried:
    seconds = clock * bench.timeout
    limits = Limits(command_seconds=seconds, idle_seconds=seconds)
    async with bench.workspaces.open(bench.bases[side], limits) as workspace:
        await put(bench, workspace, side)
        await workspace.apply(patch)
        return await run_tool(workspace.cage, tool, side, seconds)


async def run_tool(cage: Cage, tool: Tool, side: Side, seconds: float) -> Tried:
    """A tool in a workspace as it stands."""
    command = tool.command_at(side)
    if tool.is_test:
        run = await run_tests(cage, Acceptance(run=command, timeout=seconds), "after")
        return _of_tests(run, known=runner_of(command) is not None)
    ran = await cage.run(command, seconds=seconds)
    return _of_command(tool, ran)


def _of_tests(run: TestRun, *, known: bool) -> Tried:
    """Of a runner that is not known, the exit code is all there is."""
    result = run.commands[0]
    failures = {
        test.id: test.message or "" for test in run.tests if test.status in ("failed", "error")
    }
    state: ToolState = "failed" if failures or result.exit_code != 0 else "passed"
    note = next(iter(run.notes), None)
    if run.trouble is not None:
        state, note = "machine trouble", run.trouble
    elif result.stopped in OVERTIME:
        state = "timed out"
    elif result.exit_code in CANNOT_RUN:
        state = "inert"
    elif not run.ran and not failures and not known:
        note = UNREAD
    elif not run.ran and not failures and result.exit_code in NO_TESTS:
        state = "inert"
    return Tried(
        state=state,
        failures=failures,
        tests={test.id: test.status for test in run.tests},
        output=result.output,
        seconds=result.seconds,
        note=note,
    )


def _of_command(tool: Tool, ran: Ran) -> Tried:
    state: ToolState = "passed" if ran.exit_code == 0 else "failed"
    if ran.stopped in OVERTIME:
        state = "timed out"
    elif ran.stopped is not None or ran.exit_code in KILLED or FULL_DISK in ran.output:
        state = "machine trouble"
    elif ran.exit_code in CANNOT_RUN:
        state = "inert"
    failures: Mapping[str, str] = {}
    if state == "failed":
        event = Command(
            number=1,
            lane="tool",
            command=tool.command,
            output=ran.output,
            exit_code=ran.exit_code,
            exit_from="stated",
        )
        check = check_of(event, doing_of(tool.command, (tool.command,)))
        failures = check.failures.errors if check and check.failures else {}
    return Tried(
        state=state, failures=failures, output=ran.output, seconds=ran.seconds, note=ran.stopped
    )


def telling(tried: Tried, names: Sequence[str]) -> str:
    """What matters of an output: the lines about what broke, else its end."""
    if tried.state == "passed":
        return ""
    if names and any(tried.failures.get(name) for name in names):
        blocks = (f"{name}\n{tried.failures.get(name, '')}" for name in names)
        return "\n\n".join(blocks)[:SHOWN]
    return tried.output.strip()[-SHOWN:]
