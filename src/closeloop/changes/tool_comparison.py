"""Tier 1: compare the repository's own tools before and after the change.

What failed before is reported but not blamed on the change. What no longer runs is broken, and not
running never counts as a fix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio
import msgspec

from closeloop.changes.affected_tests import (
    NOT_RUN,
    RAN_STATUSES,
    LostTests,
    find_lost_tests,
    rename_tests,
)
from closeloop.changes.change_sides import CheckContext, apply_side
from closeloop.grading.suite_run import (
    KILLED_EXIT_CODES,
    NO_TEST_RAN,
    NOT_FOUND_EXIT_CODE,
    TIMEOUT_CAUSES,
    detect_runner,
    run_tests,
)
from closeloop.grading.tool_outcomes import ToolEnding, compare_endings, tool_outcome
from closeloop.process.check_results import check_from_command
from closeloop.process.command_analysis import analyse_command
from closeloop.records.attempt import TestRun
from closeloop.records.change import ChangeSide, ToolOutcome, ToolRun, ToolState
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.protocols import ProcessResult
from closeloop.records.record import Record
from closeloop.records.task import Acceptance, Limits
from closeloop.records.trace import Command
from closeloop.sandbox.admission import OVERSUBSCRIBED_MESSAGE, run_suite
from closeloop.sandbox.workspace_sandbox import WorkspaceSandbox
from closeloop.text.wording import compile_lazily, count_with_noun

# The repository's own tools, each run in a clean workspace on one side of a change.

MAX_OUTPUT_CHARS = 4_000
"""Maximum characters of a tool's output in a report."""
FULL_DISK = "No space left on device"
CANNOT_RUN_CODES = (126, NOT_FOUND_EXIT_CODE)
NO_TESTS_CODES = (0, 5)
"""Exit codes of runners that had nothing to run."""


NOT_SET_UP_NOTE = "the project cannot be set up"
EXIT_CODE_ONLY_NOTE = "known by its exit code only, not test by test"


class CheckTool(Record):
    """A command of the repository, and its purpose."""

    name: str
    command: str
    is_test: bool = False
    selected: str | None = None
    """How its tests were selected; None if all run."""
    command_before: str | None = None
    """The command before the change, if selected files are missing there or have other names; empty
    if none of them exists."""

    def command_at(self, side: ChangeSide) -> str:
        if side == "before" and self.command_before is not None:
            return self.command_before
        return self.command


class ToolResult(Record):
    """The result of a tool on one side."""

    state: ToolState
    failures: Mapping[str, str] = {}
    """Failures with their messages: by test id, or by signature of a tool's complaint."""
    tests: Mapping[str, str] = {}
    """For a test runner: the status of every test that it names."""
    output: str = ""
    seconds: float = 0.0
    note: str | None = None


def tool_ending(result: ToolResult) -> ToolEnding:
    """Return how a tool ended, for the table of outcomes."""
    if result.state == "failed" and not result.failures and not result.tests:
        return "no results"
    return result.state


async def run_tool_at_side(
    context: CheckContext, tool: CheckTool, side: ChangeSide, patch: str = ""
) -> ToolResult:
    """Run one tool on one side, or with a patch on top, in a workspace of its own."""
    if side in context.unready:
        return ToolResult(state="not set up", output=context.unready[side], note=NOT_SET_UP_NOTE)
    if not tool.command_at(side):
        return ToolResult(
            state="inert", note="none of the selected tests existed before the change"
        )
    try:
        result, oversubscribed = await run_suite(
            lambda clock: _run_tool_once(context, tool, side, patch, clock),
            lambda result: result.state == "timed out",
        )
    except BadInput as fault:
        return ToolResult(state="not set up", output=str(fault), note=NOT_SET_UP_NOTE)
    except (MachineFailed, OSError) as fault:
        return ToolResult(state="machine trouble", note=str(fault))
    if oversubscribed:
        return msgspec.structs.replace(result, state="machine trouble", note=OVERSUBSCRIBED_MESSAGE)
    return result


async def _run_tool_once(
    context: CheckContext, tool: CheckTool, side: ChangeSide, patch: str, clock: int
) -> ToolResult:
    seconds = clock * context.timeout
    limits = Limits(command_seconds=seconds, idle_seconds=seconds)
    async with context.workspaces.open(context.bases[side], limits) as workspace:
        await apply_side(context, workspace, side)
        await workspace.apply_patch(patch)
        return await run_tool(workspace.sandbox, tool, side, seconds)


async def run_tool(
    sandbox: WorkspaceSandbox, tool: CheckTool, side: ChangeSide, seconds: float
) -> ToolResult:
    """Run a tool in a workspace as it is."""
    command = tool.command_at(side)
    if tool.is_test:
        run = await run_tests(sandbox, Acceptance(run=command, timeout=seconds), "after")
        return _result_from_tests(run, has_parser=detect_runner(command) is not None)
    result = await sandbox.run(command, seconds=seconds)
    return _result_from_command(tool, result)


def _result_from_tests(run: TestRun, *, has_parser: bool) -> ToolResult:
    """Build the result; for an unknown runner only the exit code counts."""
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
    elif not run.ran and not failures and not has_parser:
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


_TOOL_FAULT = compile_lazily(r"(?m)^An (?:unexpected )?error has occurred: ")
"""How pre-commit says that it could not run its hooks, which is no complaint about the code."""


def _result_from_command(tool: CheckTool, result: ProcessResult) -> ToolResult:
    state: ToolState = "passed" if result.exit_code == 0 else "failed"
    if result.stopped in TIMEOUT_CAUSES:
        state = "timed out"
    elif (
        result.stopped is not None
        or result.exit_code in KILLED_EXIT_CODES
        or FULL_DISK in result.output
    ):
        state = "machine trouble"
    elif result.exit_code in CANNOT_RUN_CODES:
        state = "inert"
    failures: Mapping[str, str] = {}
    if state == "failed":
        event = Command(
            number=1,
            lane="tool",
            command=tool.command,
            output=result.output,
            exit_code=result.exit_code,
            exit_from="stated",
        )
        check = check_from_command(event, analyse_command(tool.command, (tool.command,)))
        failures = check.failures.errors if check and check.failures else {}
        failures = {} if _TOOL_FAULT.search(result.output) else failures
    return ToolResult(
        state=state,
        failures=failures,
        output=result.output,
        seconds=result.seconds,
        note=result.stopped,
    )


def relevant_output(result: ToolResult, names: Sequence[str]) -> str:
    """Return the relevant output: the lines about what broke, else its end."""
    if result.state == "passed":
        return ""
    if names and any(result.failures.get(name) for name in names):
        blocks = (f"{name}\n{result.failures.get(name, '')}" for name in names)
        return "\n\n".join(blocks)[:MAX_OUTPUT_CHARS]
    return result.output.strip()[-MAX_OUTPUT_CHARS:]


MAX_NAMES = 2_000
MAX_RERUNS = 2
"""Maximum reruns of newly failing tests: they count only if they always fail."""
FLAKY_NOTE = "failed once and passed when run again"


class Regressions(Record):
    """What is worse after a change than before, by name."""

    failing: Mapping[str, str] = {}
    """New failures with their messages."""
    lost: Mapping[str, str] = {}
    """Tests that passed before and do not run now, with the reason."""
    removed: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.failing) + len(self.lost)


class ToolComparison(Record):
    """A tool's run for the report, with both sides, so that later runs can be compared."""

    before: ToolResult
    after: ToolResult
    run: ToolRun


async def run_tools(context: CheckContext, tools: Sequence[CheckTool]) -> list[ToolComparison]:
    """Run every tool on both sides at once; one that fails to run does not hide the others."""
    results: dict[tuple[str, ChangeSide], ToolResult] = {}

    async def run_side(side: ChangeSide) -> None:
        unready: ToolResult | None = None
        for tool in tools:
            context.report_progress(f"{tool.name} {side} the change")
            # If one could not be set up, the others cannot either.
            results[tool.name, side] = result = unready or await run_tool_at_side(
                context, tool, side
            )
            unready = result if result.state == "not set up" else None

    async with anyio.create_task_group() as group:
        group.start_soon(run_side, "before")
        group.start_soon(run_side, "after")
    return [
        await _confirm_regressions(
            context, tool, results[tool.name, "before"], results[tool.name, "after"]
        )
        for tool in tools
    ]


async def _confirm_regressions(
    context: CheckContext, tool: CheckTool, before: ToolResult, after: ToolResult
) -> ToolComparison:
    """Compare, and rerun apparent regressions that may be flaky: only persistent ones count."""
    first, regressions, by_chance = after, find_regressions(context, before, after), 0
    for _ in range(MAX_RERUNS):
        if not _may_be_chance(tool, before, after, regressions):
            break
        context.report_progress(f"{tool.name} again, to see whether it always fails")
        rerun = await run_tool_at_side(context, tool, "after")
        if not _has_results(rerun):
            continue
        rerun_regressions = find_regressions(context, before, rerun)
        if _has_results(after):
            rerun_regressions = _regressions_in_both(regressions, rerun_regressions)
            by_chance += len(regressions) - len(rerun_regressions)
        regressions, after = rerun_regressions, rerun
    if _has_results(after) and regressions.lost:
        context.report_progress(
            f"{tool.name} before the change again, to see which tests always run"
        )
        rerun = await run_tool_at_side(context, tool, "before")
        if _has_results(rerun):
            rerun_regressions = find_regressions(context, rerun, after)
            regressions = _regressions_in_both(
                regressions, msgspec.structs.replace(rerun_regressions, failing=regressions.failing)
            )
    note = FLAKY_NOTE if after.state == "passed" and after is not first else after.note
    note = f"{count_with_noun(by_chance, 'test')} {FLAKY_NOTE}" if by_chance else note
    run = _build_tool_run(context, tool, before, after, regressions, note)
    return ToolComparison(before=before, after=after, run=run)


def compare_once(
    context: CheckContext, tool: CheckTool, before: ToolResult, after: ToolResult
) -> ToolRun:
    """Compare a single run after a change with the run before."""
    regressions = find_regressions(context, before, after)
    return _build_tool_run(context, tool, before, after, regressions, after.note)


def find_regressions(context: CheckContext, before: ToolResult, after: ToolResult) -> Regressions:
    """Return what newly fails after a change, and what no longer runs."""
    if not _has_results(before):
        return Regressions(failing=after.failures)
    passed = [name for name, status in before.tests.items() if status == "passed"]
    if not _has_results(after):
        lost = {name: NOT_RUN for name in passed if after.tests.get(name) not in RAN_STATUSES}
        return Regressions(failing={}, lost=lost)
    renamed = rename_tests(context.sides, before.tests, after.tests)
    failed = {renamed.get(name, name) for name in before.failures}
    tests = {renamed.get(name, name): status for name, status in before.tests.items()}
    lost_tests = find_lost_tests(context.sides, tests, after.tests) if passed else LostTests()
    return Regressions(
        failing={name: message for name, message in after.failures.items() if name not in failed},
        lost=lost_tests.kept_from_running,
        removed=lost_tests.removed,
    )


def has_broken(run: ToolRun) -> bool:
    """Return whether the change made it worse."""
    return tool_outcome(run) == "broken"


def _has_results(result: ToolResult) -> bool:
    return tool_ending(result) in ("passed", "failed")


def _may_be_chance(
    tool: CheckTool, before: ToolResult, after: ToolResult, regressions: Regressions
) -> bool:
    """Return whether a rerun may end otherwise. One that used all its time is not rerun."""
    outcome = _compare_outcomes(before, after, regressions)
    if outcome == "no worse" or after.state == "timed out":
        return False
    if after.state in ("not set up", "machine trouble"):
        return True
    return tool.is_test and outcome == "broken"


def _compare_outcomes(
    before: ToolResult, after: ToolResult, regressions: Regressions
) -> ToolOutcome:
    comparison = compare_endings(tool_ending(before), tool_ending(after))
    if comparison == "by name":
        # It may fail without naming anything, as when too few lines are covered.
        unnamed = before.state == "passed" and after.state == "failed" and not after.failures
        return "broken" if len(regressions) or unnamed else "no worse"
    return "no worse" if comparison == "same" else comparison


def _regressions_in_both(first: Regressions, second: Regressions) -> Regressions:
    return Regressions(
        failing={
            name: message for name, message in second.failing.items() if name in first.failing
        },
        lost={name: message for name, message in second.lost.items() if name in first.lost},
        removed=second.removed,
    )


def _build_tool_run(
    context: CheckContext,
    tool: CheckTool,
    before: ToolResult,
    after: ToolResult,
    regressions: Regressions,
    note: str | None,
) -> ToolRun:
    renamed = rename_tests(context.sides, before.failures, after.tests)
    failed = {renamed.get(name, name) for name in before.failures}
    broke = {**regressions.failing, **regressions.lost}
    return ToolRun(
        name=tool.name,
        command=tool.command,
        before=before.state,
        after=after.state,
        outcome=_compare_outcomes(before, after, regressions),
        broke=tuple(_describe_failure(*failure) for failure in list(broke.items())[:MAX_NAMES]),
        lost=tuple(regressions.lost)[:MAX_NAMES],
        removed=regressions.removed[:MAX_NAMES],
        already=tuple(name for name in after.failures if name in failed)[:MAX_NAMES],
        mended=tuple(sorted(name for name in failed if _is_fixed(name, after)))[:MAX_NAMES],
        output=relevant_output(after, list(regressions.failing)),
        seconds=after.seconds,
        ran=_count_ran_tests(after),
        selected=tool.selected,
        note=note,
    )


def _count_ran_tests(result: ToolResult) -> int | None:
    """Return how many tests ran; None if none did, as where only loading a test file failed."""
    if not result.tests or result.note == NO_TEST_RAN:
        return None
    return sum(status in RAN_STATUSES for status in result.tests.values())


def _is_fixed(name: str, after: ToolResult) -> bool:
    """Return whether an old failure is fixed: the test ran, or the complaining tool did."""
    if not _has_results(after) or name in after.failures:
        return False
    if not after.tests:
        return True
    # A file that could not be loaded is fixed when its tests pass.
    prefixes = tuple(f"{name}{separator}" for separator in ("::", " > ", "/"))
    return any(
        status == "passed" and (test == name or test.startswith(prefixes))
        for test, status in after.tests.items()
    )


def _describe_failure(name: str, message: str) -> str:
    lines = message.strip().splitlines()
    return f"{name}: {lines[0][:200]}" if lines else name
