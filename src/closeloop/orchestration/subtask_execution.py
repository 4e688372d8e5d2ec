"""One try of a sub-agent at a task of a plan, and the changes of several put together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from msgspec.structs import replace

from closeloop.agents.trace_recorder import replace_surrogates, shorten_middle
from closeloop.attempts.attempt_execution import run_agent, with_refusals, with_trace
from closeloop.attempts.run_resources import RunResources
from closeloop.grading.variants import ResolvedVariant
from closeloop.orchestration.plan_ending import describe_failing_checks
from closeloop.orchestration.subtask_loop import (
    AcceptedExecutions,
    SubtaskOrder,
    find_needed_tasks,
    order_by_plan,
)
from closeloop.records.attempt import CommandResult
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.evaluation import ComputedFact, EvaluationIssue, RubricVerdict
from closeloop.records.experiment_plan import ScheduledAttempt
from closeloop.records.orchestration import (
    TOGETHER_CHECK,
    Orchestration,
    SubtaskExecution,
    SubtaskResult,
    SubtaskSpec,
)
from closeloop.records.record import Record
from closeloop.records.task import Task
from closeloop.sandbox.workspaces import Workspace, WorkspaceBase
from closeloop.sandbox.workspaces.source_repository import START_ENVIRONMENT
from closeloop.store.plan_section import pack_exchanges
from closeloop.text.redaction import redact_record, redact_text
from closeloop.text.wording import matches_globs

MAX_REPORT_CHARACTERS = 100_000
MAX_OUTPUT_CHARACTERS = 1_500
COMMIT_COMMAND = (
    "git -c core.hooksPath=/dev/null -c commit.gpgSign=false commit -q --allow-empty -m 'Done'"
)


async def attempt_subtask(
    order: SubtaskOrder,
    crew: ResolvedVariant,
    base: WorkspaceBase | None,
    tools: RunResources,
    context: str = "",
) -> SubtaskResult:
    """The whole of one try; nothing of it is kept yet."""
    started, checks = datetime.now(UTC), list[CommandResult]()

    async def prepare(workspace: Workspace) -> None:
        await apply_earlier_changes(workspace, order)

    async def check(workspace: Workspace) -> None:
        checks.extend(
            [await run_acceptance_command(workspace, command) for command in order.task.commands]
        )

    slot = ScheduledAttempt(
        task=task_from_order(order),
        variant=crew.variant,
        number=order.number,
        experiment=order.plan.id,
        context=context,
    )
    agent_run = await run_agent(slot, base, tools, before=prepare, after=check)
    work, _ = redact_record(with_refusals(with_trace(agent_run), agent_run.refused))
    execution = SubtaskExecution(
        plan=order.plan.id,
        task=order.task.id,
        number=order.number,
        variant=crew.variant.name,
        agent=crew.variant.agent,
        model=crew.variant.model,
        brief=redact_text(order.brief, {}),
        built_on=tuple(one.task for one in order.beneath),
        exit=work.exit,
        cause=work.cause,
        report=shorten_middle(replace_surrogates(work.summary or ""), MAX_REPORT_CHARACTERS),
        patch=agent_run.change.patch,
        files=tuple(file.path for file in agent_run.change.files),
        checks=tuple(checks),
        usage=work.usage,
        started=started,
        ended=datetime.now(UTC),
    )
    facts = tuple(
        redact_record(fact)[0] for fact in with_certain_facts(execution, order.task).facts
    )
    return SubtaskResult(
        execution=replace(execution, facts=facts),
        trace=work.trace,
        exchanges=pack_exchanges(agent_run.exchanges),
    )


def task_from_order(order: SubtaskOrder) -> Task:
    """What the sub-agent is asked, as agents are used to it."""
    plan = order.plan
    return Task(id=order.task.id, prompt=order.brief, repo=plan.repo, base=plan.base)


async def apply_earlier_changes(workspace: Workspace, order: SubtaskOrder) -> None:
    """The changes it builds on, as if they had always been there, and then its own last one."""
    if (why := await apply_executions(workspace, order.beneath)) is not None:
        raise MachineFailed(f"What {order.task.id} builds on does not go together: {why}")
    if any(one.patch for one in order.beneath):
        await workspace.cage.run(f"git add -A && {COMMIT_COMMAND}", env=START_ENVIRONMENT)
        await workspace.settle_changes()
    if (
        order.last is not None
        and (why := await apply_executions(workspace, [order.last])) is not None
    ):
        raise MachineFailed(f"What {order.task.id} did before cannot be laid out again: {why}")


async def run_acceptance_command(workspace: Workspace, command: str) -> CommandResult:
    """One command that must succeed."""
    command_run = await workspace.cage.run(command)
    result = CommandResult(
        command=command,
        exit_code=command_run.exit_code,
        seconds=command_run.seconds,
        output=shorten_middle(
            replace_surrogates(command_run.output).strip(), MAX_OUTPUT_CHARACTERS
        ),
        stopped=command_run.stopped,
    )
    return redact_record(result)[0]


def with_certain_facts(execution: SubtaskExecution, task: SubtaskSpec) -> SubtaskExecution:
    """What is certain of a try: how it ended, what its commands said, where it changed files."""
    facts = []
    if execution.checks:
        failures = "\n\n".join(describe_failing_checks(execution.checks))
        text = failures or "All commands that must succeed do."
        # One that fails shows that the task is not done; none shows that it is.
        name = "acceptance" if failures else "commands"
        facts.append(
            ComputedFact(name=name, verdict=_verdict_word(not failures), text=text, blocks=True)
        )
    if execution.exit not in ("finished", "machine"):
        why = execution.cause or execution.exit.replace("_", " ")
        text = f"The agent did not finish: {why}."
        facts.append(ComputedFact(name="exit", verdict="no", text=text, blocks=True))
    if task.scope:
        strays = [path for path in execution.files if not matches_globs(path, task.scope)]
        outside = ", ".join(strays[:5])
        text = f"Changed outside the scope: {outside}" if outside else "All within the scope."
        facts.append(
            ComputedFact(name="scope", verdict=_verdict_word(not outside), text=text, blocks=True)
        )
    return replace(execution, facts=tuple(facts))


def _verdict_word(holds: bool) -> RubricVerdict:
    return "yes" if holds else "no"


async def merge_conflict(
    made: Sequence[SubtaskExecution], base: WorkspaceBase | None, tools: RunResources
) -> str | None:
    """Why changes do not go together in this order; None where they do."""
    if base is None:
        return None
    async with tools.workspaces.open(base, tools.settings.limits) as workspace:
        return await apply_executions(workspace, made)


async def apply_executions(workspace: Workspace, made: Sequence[SubtaskExecution]) -> str | None:
    """Apply changes one after the other; why they do not go together, if they do not."""
    try:
        await workspace.apply_patch("".join(one.patch for one in made))
    except BadInput as fault:
        return str(fault)
    return None


# All changes together: what commands say of them, and whose change breaks a command.


class WholeChange(Record):
    """All changes as one."""

    patch: str = ""
    checks: tuple[CommandResult, ...] = ()
    broken_by: dict[str, str] = {}
    """By command that fails, the task whose change breaks it."""


async def check_whole_change(
    plan: Orchestration,
    accepted: AcceptedExecutions,
    base: WorkspaceBase | None,
    tools: RunResources,
) -> WholeChange:
    """All changes as one, with what the commands of all tasks say of it."""
    if base is None:
        return WholeChange()
    owners: dict[str, str] = {}
    for task in plan.tasks:
        if task.id in accepted:
            owners |= {line: task.id for line in task.commands if line not in owners}

    async def run_together(names: set[str], commands: Sequence[str]) -> WholeChange:
        chosen = {name: one for name, one in accepted.items() if name in names}
        return await merge_executions(order_by_plan(plan, chosen), base, tools, commands)

    whole = await run_together({*accepted}, [*owners])
    if not {one.command for one in whole.checks} <= {*owners}:
        return whole  # the changes do not even apply
    checks = [
        one
        if one.exit_code == 0
        else await run_failing_again(one, partial(run_together, {*accepted}))
        for one in whole.checks
    ]
    broken_by: dict[str, str] = {}
    for command in [one.command for one in checks if one.exit_code != 0]:

        async def holds(names: set[str], command: str = command) -> bool:
            return not describe_failing_checks((await run_together(names, [command])).checks)

        broken_by[command] = await find_breaking_task(plan, accepted, owners[command], holds)
    return replace(whole, checks=tuple(checks), broken_by=broken_by)


async def run_failing_again(
    failing: CommandResult, run_commands: Callable[[Sequence[str]], Awaitable[WholeChange]]
) -> CommandResult:
    """A command that failed, run once more: what passes then is flaky, and nobody's fault."""
    for again in (await run_commands([failing.command])).checks:
        if again.command == failing.command and again.exit_code == 0:
            note = f"It failed at first and passed when it was run again: flaky.\n{failing.output}"
            return replace(again, output=note)
    return failing


async def find_breaking_task(
    plan: Orchestration,
    accepted: AcceptedExecutions,
    owner: str,
    holds: Callable[[set[str]], Awaitable[bool]],
) -> str:
    """The task whose change makes a command of `owner` fail, which all changes together do.

    The owner's change is taken with what it was built on, and others are added in the order of
    the plan: by halves, so that a plan of many tasks takes few runs.
    """
    needed = find_needed_tasks(plan, accepted, [owner])
    others = [one.task for one in order_by_plan(plan, accepted) if one.task not in needed]
    if not others or not await holds(needed):
        return owner  # it fails without anybody else's change
    holding, failing = 0, len(others)
    while failing - holding > 1:
        middle = (holding + failing) // 2
        if await holds(find_needed_tasks(plan, accepted, [owner, *others[:middle]])):
            holding = middle
        else:
            failing = middle
    return others[failing - 1]


def build_together_issues(whole: WholeChange) -> dict[str, EvaluationIssue]:
    """What each task is told whose change breaks a command of all changes together."""
    failures: dict[str, list[str]] = {}
    for check in whole.checks:
        if check.command in whole.broken_by:
            texts = failures.setdefault(whole.broken_by[check.command], [])
            texts += describe_failing_checks([check])
    return {
        task: EvaluationIssue(
            check=TOGETHER_CHECK,
            criterion=None,
            text="Together with the changes of the other tasks, this change makes commands fail"
            f" that must succeed: {'; '.join(texts)}",
            source="fact",
        )
        for task, texts in failures.items()
    }


async def merge_executions(
    made: Sequence[SubtaskExecution],
    base: WorkspaceBase,
    tools: RunResources,
    commands: Sequence[str],
) -> WholeChange:
    """Changes as one, with what commands say of it."""
    async with tools.workspaces.open(base, tools.settings.limits) as workspace:
        if (why := await apply_executions(workspace, made)) is not None:
            failed = CommandResult(command="git apply", exit_code=1, seconds=0.0, output=why)
            return WholeChange(checks=(failed,))
        patch = await workspace.read_diff()
        checks = [await run_acceptance_command(workspace, command) for command in commands]
        return WholeChange(patch=patch, checks=tuple(checks))
