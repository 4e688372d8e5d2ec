"""Try a project's commands once, in the sandbox where they will be run, before anybody relies on
them."""

from __future__ import annotations

import re
from collections.abc import Callable

from closeloop.changes.affected_tests import RAN_STATUSES
from closeloop.changes.change_check import list_check_tools
from closeloop.changes.tool_comparison import CheckTool, ToolResult, run_tool, tool_ending
from closeloop.grading.tool_outcomes import find_missing_program
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.settings import CommandSettings
from closeloop.records.task import Limits
from closeloop.sandbox.workspaces import WorkspacePool
from closeloop.tasks.mining.mining_environments import extract_error_line
from closeloop.text.wording import count_with_noun

TRIAL_SECONDS = 600.0
_LOG_NOTICE = re.compile(r"(?m)^npm (?:error|ERR!) A complete log of this run .*$")


class CommandTrial(Record):
    """What became of a command."""

    works: bool
    """It ran and said something: tests may fail, and linters complain."""
    text: str
    """In a few words: `41 tests passed in 3.2 s`, `did not run: uv: command not found`."""


async def try_commands(
    workspaces: WorkspacePool,
    repo: str,
    commit: str,
    commands: CommandSettings,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, CommandTrial]:
    """Every command at a commit, each in a fresh workspace; where setup fails, nothing else."""
    trials: dict[str, CommandTrial] = {}
    try:
        base = await workspaces.prepare_base(repo, commit, commands.setup, tell=tell)
    except BadInput as fault:
        command, _, output = str(fault).partition("\n")
        text = f"{command} {extract_error_line(output)}" if output else command
        return {"setup": CommandTrial(works=False, text=text)}
    if commands.setup:
        trials["setup"] = CommandTrial(works=True, text="works")
    limits = Limits(command_seconds=TRIAL_SECONDS, idle_seconds=TRIAL_SECONDS)
    for tool in list_check_tools(commands, {}):
        tell(f"trying {tool.name}: {tool.command}")
        async with workspaces.open(base, limits) as workspace:
            result = await run_tool(workspace.cage, tool, "after", TRIAL_SECONDS)
        trials[tool.name] = judge_trial(tool, result)
    return trials


def judge_trial(tool: CheckTool, result: ToolResult) -> CommandTrial:
    """Whether a command is of use, by how it ended at an untouched commit."""
    seconds = f"{result.seconds:.1f} s"
    ran = sum(status in RAN_STATUSES for status in result.tests.values())
    what = f"{count_with_noun(ran, 'test')} " if ran else ""
    if result.state == "passed":
        return CommandTrial(works=True, text=f"{what}passed in {seconds}")
    if result.state == "timed out":
        text = f"took longer than {TRIAL_SECONDS:.0f} s"
        return CommandTrial(works=True, text=text)
    if missing := find_missing_program(result.output):
        return CommandTrial(works=False, text=f"did not run: {missing} is not installed")
    # A linter's complaints can be compared; a build that fails has nothing to be compared with.
    if tool_ending(result) == "failed" and tool.name != "build":
        kind = "test" if tool.is_test else "complaint"
        failing = f"{count_with_noun(len(result.failures), kind)} {'of ' * bool(ran)}{what}"
        text = f"fails at this commit: {failing.strip()} in {seconds}"
        return CommandTrial(works=True, text=text)
    verb = "failed" if result.state == "failed" else "did not run"
    output = _LOG_NOTICE.sub("", result.output)
    reason = extract_error_line(output) if output.strip() else result.note
    return CommandTrial(works=False, text=f"{verb}: {reason}")
