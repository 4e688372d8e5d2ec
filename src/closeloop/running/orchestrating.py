"""One try of a sub-agent at a task of a plan, and the changes of several put together."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from closeloop.model.attempt import CommandResult
from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.evaluation import Fact, Verdict
from closeloop.model.globs import matches
from closeloop.model.orchestration import Execution, Part, Tried
from closeloop.model.plan import Slot
from closeloop.model.record import Record
from closeloop.model.task import Task
from closeloop.running.attempting import let_work, with_refusals, with_trace
from closeloop.running.tools import Tools
from closeloop.runs.agents.texts import bounded, valid
from closeloop.runs.orchestrate.ending import failing
from closeloop.runs.orchestrate.loop import Order
from closeloop.runs.variants import Crew
from closeloop.runs.workspaces import Base, Workspace
from closeloop.runs.workspaces.repository import START
from closeloop.store.plans import pack_exchanges
from closeloop.traces.redact import redact, redact_text

LONGEST_REPORT = 100_000
LONGEST_OUTPUT = 1_500
COMMIT = "git -c core.hooksPath=/dev/null -c commit.gpgSign=false commit -q --allow-empty -m 'Done'"


async def let_try(
    order: Order, crew: Crew, base: Base | None, tools: Tools, context: str = ""
) -> Tried:
    """The whole of one try; nothing of it is kept yet."""
    started, checks = datetime.now(UTC), list[CommandResult]()

    async def prepare(workspace: Workspace) -> None:
        await lay_beneath(workspace, order)

    async def check(workspace: Workspace) -> None:
        checks.extend([await run_check(workspace, command) for command in order.task.commands])

    slot = Slot(
        task=task_of(order),
        variant=crew.variant,
        number=order.number,
        experiment=order.plan.id,
        context=context,
    )
    done = await let_work(slot, base, tools, before=prepare, after=check)
    work, _ = redact(with_refusals(with_trace(done), done.refused))
    execution = Execution(
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
        report=bounded(valid(work.summary or ""), LONGEST_REPORT),
        patch=done.change.patch,
        files=tuple(file.path for file in done.change.files),
        checks=tuple(checks),
        usage=work.usage,
        started=started,
        ended=datetime.now(UTC),
    )
    facts = tuple(redact(fact)[0] for fact in with_facts(execution, order.task).facts)
    return Tried(
        execution=replace(execution, facts=facts),
        trace=work.trace,
        exchanges=pack_exchanges(done.exchanges),
    )


def task_of(order: Order) -> Task:
    """What the sub-agent is asked, as agents are used to it."""
    plan = order.plan
    return Task(id=order.task.id, prompt=order.brief, repo=plan.repo, base=plan.base)


async def lay_beneath(workspace: Workspace, order: Order) -> None:
    """The changes it builds on, as if they had always been there, and then its own last one."""
    if (why := await lay(workspace, order.beneath)) is not None:
        raise MachineFailed(f"What {order.task.id} builds on does not go together: {why}")
    if any(one.patch for one in order.beneath):
        await workspace.cage.run(f"git add -A && {COMMIT}", env=START)
        await workspace.settle()
    if order.last is not None and (why := await lay(workspace, [order.last])) is not None:
        raise MachineFailed(f"What {order.task.id} did before cannot be laid out again: {why}")


async def run_check(workspace: Workspace, command: str) -> CommandResult:
    """One command that must succeed."""
    ran = await workspace.cage.run(command)
    result = CommandResult(
        command=command,
        exit_code=ran.exit_code,
        seconds=ran.seconds,
        output=bounded(valid(ran.output).strip(), LONGEST_OUTPUT),
        stopped=ran.stopped,
    )
    return redact(result)[0]


def with_facts(execution: Execution, task: Part) -> Execution:
    """What is certain of a try: how it ended, what its commands said, where it changed files."""
    facts = []
    if execution.checks:
        wrong = "\n\n".join(failing(execution.checks))
        text = wrong or "All commands that must succeed do."
        # One that fails shows that the task is not done; none shows that it is.
        name = "acceptance" if wrong else "commands"
        facts.append(Fact(name=name, verdict=_word(not wrong), text=text, blocks=True))
    if execution.exit not in ("finished", "machine"):
        why = execution.cause or execution.exit.replace("_", " ")
        text = f"The agent did not finish: {why}."
        facts.append(Fact(name="exit", verdict="no", text=text, blocks=True))
    if task.scope:
        strays = [path for path in execution.files if not matches(path, task.scope)]
        outside = ", ".join(strays[:5])
        text = f"Changed outside the scope: {outside}" if outside else "All within the scope."
        facts.append(Fact(name="scope", verdict=_word(not outside), text=text, blocks=True))
    return replace(execution, facts=tuple(facts))


def _word(holds: bool) -> Verdict:
    return "yes" if holds else "no"


class Whole(Record):
    """All changes as one."""

    patch: str = ""
    checks: tuple[CommandResult, ...] = ()


async def fit(made: Sequence[Execution], base: Base | None, tools: Tools) -> str | None:
    """Why changes do not go together in this order; None where they do."""
    if base is None:
        return None
    async with tools.workspaces.open(base, tools.settings.limits) as workspace:
        return await lay(workspace, made)


async def lay(workspace: Workspace, made: Sequence[Execution]) -> str | None:
    """Apply changes one after the other; why they do not go together, if they do not."""
    try:
        await workspace.apply("".join(one.patch for one in made))
    except BadInput as fault:
        return str(fault)
    return None


async def merged(
    made: Sequence[Execution], base: Base | None, tools: Tools, commands: Sequence[str]
) -> Whole:
    """All changes as one, with what commands say of it."""
    if base is None:
        return Whole()
    async with tools.workspaces.open(base, tools.settings.limits) as workspace:
        if (why := await lay(workspace, made)) is not None:
            failed = CommandResult(command="git apply", exit_code=1, seconds=0.0, output=why)
            return Whole(checks=(failed,))
        patch = await workspace.diff()
        checks = [await run_check(workspace, command) for command in commands]
        return Whole(patch=patch, checks=tuple(checks))
