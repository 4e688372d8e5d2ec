"""Tier 1: the repository's own tools, in clean workspaces, before the change and after it.

Only what differs is held against a change: what was red before is told, not blamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio

from closeloop.checking.bench import Bench, put
from closeloop.model.attempt import TestRun
from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.inspection import Side
from closeloop.model.plural import plural
from closeloop.model.protocols import Ran
from closeloop.model.record import Record
from closeloop.model.report import ToolRun, ToolState
from closeloop.model.task import Acceptance
from closeloop.model.trace import Command
from closeloop.model.variant import Limits
from closeloop.process.checks import check_of
from closeloop.process.commands import doing_of
from closeloop.runs.sandbox.cage import Cage
from closeloop.runs.testing.instrument import runner_of
from closeloop.runs.testing.run import KILLED, NOT_FOUND, OVERTIME, run_tests

SHOWN = 4_000
"""So much of a tool's output goes into a report."""
NAMED = 2_000
RERUNS = 2
"""How often newly failing tests are run again: they count only when they fail always."""
FULL_DISK = "No space left on device"
CANNOT_RUN = (126, NOT_FOUND)
NO_TESTS = (0, 5)
"""How runners leave when there was nothing to run."""


UNREAD = "known by its exit code alone, not test by test"


class Tool(Record):
    """A command of the repository's own, and what it is for."""

    name: str
    command: str
    is_test: bool = False
    selected: str | None = None
    """How its tests were chosen, where they are not all."""


class Tried(Record):
    """What became of a tool at one end."""

    state: ToolState
    failures: Mapping[str, str] = {}
    """What fails, and its message: test ids, or signatures of what the tool complains about."""
    output: str = ""
    seconds: float = 0.0
    note: str | None = None


async def run_tools(bench: Bench, tools: Sequence[Tool]) -> list[ToolRun]:
    """Every tool at both ends, both at once; one that fails to run hides none of the others."""
    results: dict[tuple[str, Side], Tried] = {}

    async def one_end(side: Side) -> None:
        for tool in tools:
            bench.tell(f"{tool.name} {side} the change")
            results[tool.name, side] = await attempt(bench, tool, side)

    async with anyio.create_task_group() as group:
        group.start_soon(one_end, "before")
        group.start_soon(one_end, "after")
    return [
        await _compared(bench, tool, results[tool.name, "before"], results[tool.name, "after"])
        for tool in tools
    ]


async def attempt(bench: Bench, tool: Tool, side: Side, patch: str = "") -> Tried:
    """One tool at one end, or with a patch on top of it, in a workspace of its own."""
    limits = Limits(command_seconds=bench.timeout, idle_seconds=bench.timeout)
    try:
        async with bench.workspaces.open(bench.bases[side], limits) as workspace:
            await put(bench, workspace, side)
            await workspace.apply(patch)
            return await run_tool(workspace.cage, tool, bench.timeout)
    except BadInput as fault:
        return Tried(state="failed", output=str(fault), note="the project cannot be set up")
    except (MachineFailed, OSError) as fault:
        return Tried(state="machine trouble", note=str(fault))


async def run_tool(cage: Cage, tool: Tool, seconds: float) -> Tried:
    """A tool in a workspace as it stands."""
    if tool.is_test:
        run = await run_tests(cage, Acceptance(run=tool.command, timeout=seconds), "after")
        return _of_tests(run, known=runner_of(tool.command) is not None)
    ran = await cage.run(tool.command, seconds=seconds)
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
        state=state, failures=failures, output=result.output, seconds=result.seconds, note=note
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


async def _compared(bench: Bench, tool: Tool, before: Tried, after: Tried) -> ToolRun:
    broke = _new(before, after)
    note, again = after.note, after
    whole = before.state == "passed" and after.state == "failed" and not after.failures
    for _ in range(RERUNS if (broke or whole) and tool.is_test else 0):
        bench.tell(f"{tool.name} once more, to see whether it always fails")
        again = await attempt(bench, tool, "after")
        if whole and again.state == "passed":
            after, note = again, "failed once and passed when run again"
            break
        if whole:
            continue
        steady = [name for name in broke if name in again.failures]
        if len(steady) < len(broke):
            flaky = plural(len(broke) - len(steady), "test")
            note = f"{flaky} failed once and passed when run again"
        broke = steady
        if not broke:
            after = again
            break
    return ToolRun(
        name=tool.name,
        command=tool.command,
        before=before.state,
        after=after.state,
        broke=tuple(told(after, name) for name in broke[:NAMED]),
        already=tuple(name for name in after.failures if name in before.failures)[:NAMED],
        mended=tuple(name for name in before.failures if name not in after.failures)[:NAMED],
        output=telling(after, broke),
        seconds=after.seconds,
        selected=tool.selected,
        note=note,
    )


def _new(before: Tried, after: Tried) -> list[str]:
    """What fails after the change and did not before; nothing where before is not known."""
    if after.state != "failed" or before.state not in ("passed", "failed"):
        return []
    return [name for name in after.failures if name not in before.failures]


def told(tried: Tried, name: str) -> str:
    message = tried.failures.get(name, "").strip().splitlines()
    return f"{name}: {message[0][:200]}" if message else name


def telling(tried: Tried, names: Sequence[str]) -> str:
    """What matters of an output: the lines about what broke, else its end."""
    if tried.state == "passed":
        return ""
    if names and any(tried.failures.get(name) for name in names):
        blocks = (f"{name}\n{tried.failures.get(name, '')}" for name in names)
        return "\n\n".join(blocks)[:SHOWN]
    return tried.output.strip()[-SHOWN:]


def has_broken(run: ToolRun) -> bool:
    """Whether the change made it worse."""
    red = ("failed", "timed out", "inert")
    return bool(run.broke) or (run.before == "passed" and run.after in red)
