"""The repository's own tools, each run in a clean workspace at one end of a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from closeloop.changes.check_context import CheckContext, apply_side
from closeloop.grading.testing.runner_instrumentation import detect_runner
from closeloop.grading.testing.suite_run import (
    KILLED_EXIT_CODES,
    NOT_FOUND_EXIT_CODE,
    TIMEOUT_CAUSES,
    run_tests,
)
from closeloop.grading.tool_outcomes import ToolEnding
from closeloop.process.check_results import check_from_command
from closeloop.process.command_analysis import analyse_command
from closeloop.records.attempt import TestRun
from closeloop.records.change_report import ToolState
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.inspection import ChangeSide
from closeloop.records.protocols import ProcessResult
from closeloop.records.record import Record
from closeloop.records.task import Acceptance
from closeloop.records.trace import Command
from closeloop.records.variant import Limits
from closeloop.sandbox.admission import OVERSUBSCRIBED_MESSAGE, run_suite
from closeloop.sandbox.workspace_sandbox import WorkspaceSandbox

MAX_OUTPUT_CHARS = 4_000
"""So much of a tool's output goes into a report."""
FULL_DISK = "No space left on device"
CANNOT_RUN_CODES = (126, NOT_FOUND_EXIT_CODE)
NO_TESTS_CODES = (0, 5)
"""How runners leave when there was nothing to run."""


NOT_SET_UP_NOTE = "the project cannot be set up"
EXIT_CODE_ONLY_NOTE = "known by its exit code alone, not test by test"


class CheckTool(Record):
    """A command of the repository's own, and what it is for."""

    name: str
    command: str
    is_test: bool = False
    selected: str | None = None
    """How its tests were chosen, where they are not all."""
    command_before: str | None = None
    """The same before the change, where chosen files are not there or have other names; empty
    where none of them is there."""

    def command_at(self, side: ChangeSide) -> str:
        if side == "before" and self.command_before is not None:
            return self.command_before
        return self.command


class ToolResult(Record):
    """What became of a tool at one end."""

    state: ToolState
    failures: Mapping[str, str] = {}
    """What fails, and its message: test ids, or signatures of what the tool complains about."""
    tests: Mapping[str, str] = {}
    """Of a test runner: the status of every test that it names."""
    output: str = ""
    seconds: float = 0.0
    note: str | None = None


def tool_ending(tried: ToolResult) -> ToolEnding:
    """How a tool ended, for the table of outcomes."""
    if tried.state == "failed" and not tried.failures and not tried.tests:
        return "no results"
    return tried.state


async def run_tool_at_side(
    bench: CheckContext, tool: CheckTool, side: ChangeSide, patch: str = ""
) -> ToolResult:
    """One tool at one end, or with a patch on top of it, in a workspace of its own."""
    if side in bench.unready:
        return ToolResult(state="not set up", output=bench.unready[side], note=NOT_SET_UP_NOTE)
    if not tool.command_at(side):
        return ToolResult(
            state="inert", note="none of the selected tests was there before the change"
        )
    try:
        result, oversubscribed = await run_suite(
            lambda clock: _run_tool_once(bench, tool, side, patch, clock),
            lambda tried: tried.state == "timed out",
        )
    except BadInput as fault:
        return ToolResult(state="not set up", output=str(fault), note=NOT_SET_UP_NOTE)
    except (MachineFailed, OSError) as fault:
        return ToolResult(state="machine trouble", note=str(fault))
    if oversubscribed:
        return msgspec.structs.replace(result, state="machine trouble", note=OVERSUBSCRIBED_MESSAGE)
    return result


async def _run_tool_once(
    bench: CheckContext, tool: CheckTool, side: ChangeSide, patch: str, clock: int
) -> ToolResult:
    seconds = clock * bench.timeout
    limits = Limits(command_seconds=seconds, idle_seconds=seconds)
    async with bench.workspaces.open(bench.bases[side], limits) as workspace:
        await apply_side(bench, workspace, side)
        await workspace.apply_patch(patch)
        return await run_tool(workspace.cage, tool, side, seconds)


async def run_tool(
    cage: WorkspaceSandbox, tool: CheckTool, side: ChangeSide, seconds: float
) -> ToolResult:
    """A tool in a workspace as it stands."""
    command = tool.command_at(side)
    if tool.is_test:
        run = await run_tests(cage, Acceptance(run=command, timeout=seconds), "after")
        return _result_from_tests(run, known=detect_runner(command) is not None)
    ran = await cage.run(command, seconds=seconds)
    return _result_from_command(tool, ran)


def _result_from_tests(run: TestRun, *, known: bool) -> ToolResult:
    """Of a runner that is not known, the exit code is all there is."""
    result = run.commands[0]
    failures = {
        test.id: test.message or "" for test in run.tests if test.status in ("failed", "error")
    }
    state: ToolState = "failed" if failures or result.exit_code != 0 else "passed"
    note = next(iter(run.notes), None)
    if run.trouble is not None:
        state, note = "machine trouble", run.trouble
    elif result.stopped in TIMEOUT_CAUSES:
        state = "timed out"
    elif result.exit_code in CANNOT_RUN_CODES:
        state = "inert"
    elif not run.ran and not failures and not known:
        note = EXIT_CODE_ONLY_NOTE
    elif not run.ran and not failures and result.exit_code in NO_TESTS_CODES:
        state = "inert"
    return ToolResult(
        state=state,
        failures=failures,
        tests={test.id: test.status for test in run.tests},
        output=result.output,
        seconds=result.seconds,
        note=note,
    )


def _result_from_command(tool: CheckTool, ran: ProcessResult) -> ToolResult:
    state: ToolState = "passed" if ran.exit_code == 0 else "failed"
    if ran.stopped in TIMEOUT_CAUSES:
        state = "timed out"
    elif ran.stopped is not None or ran.exit_code in KILLED_EXIT_CODES or FULL_DISK in ran.output:
        state = "machine trouble"
    elif ran.exit_code in CANNOT_RUN_CODES:
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
        check = check_from_command(event, analyse_command(tool.command, (tool.command,)))
        failures = check.failures.errors if check and check.failures else {}
    return ToolResult(
        state=state, failures=failures, output=ran.output, seconds=ran.seconds, note=ran.stopped
    )


def relevant_output(tried: ToolResult, names: Sequence[str]) -> str:
    """What matters of an output: the lines about what broke, else its end."""
    if tried.state == "passed":
        return ""
    if names and any(tried.failures.get(name) for name in names):
        blocks = (f"{name}\n{tried.failures.get(name, '')}" for name in names)
        return "\n\n".join(blocks)[:MAX_OUTPUT_CHARS]
    return tried.output.strip()[-MAX_OUTPUT_CHARS:]
