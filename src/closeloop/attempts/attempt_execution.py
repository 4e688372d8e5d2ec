"""One attempt: an agent works in a workspace, and its change is graded in a clean room."""

from __future__ import annotations

import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
from anyio import to_thread

from closeloop.attempts.run_resources import RunResources, prepare_task_base, sandbox_description
from closeloop.gateway.attempt_proxy import AttemptProxy
from closeloop.grading import grading
from closeloop.grading.variants import ResolvedVariant, add_agent_context
from closeloop.records.attempt import Attempt, Exit, Insight
from closeloop.records.change import Change
from closeloop.records.errors import BadInput, Fault, MachineFailed
from closeloop.records.experiment_plan import (
    AttemptOrder,
    AttemptResult,
    ExperimentPlan,
    ScheduledAttempt,
)
from closeloop.records.protocols import Assignment, ModelProxy, Work
from closeloop.records.record import Record, content_digest
from closeloop.records.task import REFERENCE_AGENT, Experiment, Limits, Task
from closeloop.records.trace import Exchange, Lane, Note, Trace
from closeloop.sandbox.workspace_sandbox import WorkspaceSandbox
from closeloop.sandbox.workspaces import UnreadableChange, Workspace, WorkspaceBase
from closeloop.store import Store
from closeloop.text.client_markup import build_prompt_version
from closeloop.text.patches import parse_patch
from closeloop.text.redaction import redact_grade, redact_record
from closeloop.text.wording import count_with_noun
from closeloop.traces.file_source import session_from_gateway, session_from_recordings
from closeloop.traces.readers.gateway import find_system_prompt

GRACE_SECONDS = 60.0
"""An agent stops itself at its time limit; otherwise it is stopped this much later."""
MAX_FEEDBACK_CHARACTERS = 20_000

WorkspaceStep = Callable[[Workspace], Awaitable[None]]


class AgentRun(Record):
    """An agent's work, and its exchanges with the model."""

    work: Work
    change: Change
    exchanges: Sequence[Exchange] = ()
    mend: str | None = None
    refused: Mapping[str, int] = {}
    """Hosts that were refused to it, with counts."""
    sandbox: str | None = None
    """What its commands ran in; None if it never began."""


EndAgentWork = Callable[[float | None], Awaitable[None]]
"""Called with the cost of an agent's work when only its grade is missing."""


async def keep_place(cost: float | None) -> None:
    """Let nothing else begin before the attempt is graded."""


async def make_attempt(
    order: AttemptOrder, tools: RunResources, end_agent_work: EndAgentWork = keep_place
) -> AttemptResult:
    """Make one attempt, from a fresh workspace to its grade, without storing it.

    Where the machine failed the agent, `end_agent_work` is not called: it may work again.
    """
    slot = order.slot
    if slot.task.digest not in tools.bases:
        tools.bases[slot.task.digest] = await prepare_task_base(slot.task, tools.workspaces)
    base, started = tools.bases[slot.task.digest], datetime.now(UTC)
    agent_run = await run_agent(slot, base, tools, before=partial(lay_out_patches, order))
    work, _ = redact_record(with_refusals(with_trace(agent_run), agent_run.refused))
    trace = work.trace if work.trace.events else None  # nothing is known of how it worked
    attempt = Attempt(
        **attempt_identity(order),
        started=started,
        ended=datetime.now(UTC),
        exit=work.exit,
        cause=work.cause,
        usage=work.usage,
        summary=work.summary,
        sandbox=agent_run.sandbox or sandbox_description(tools.workspaces),
    )
    if work.exit != "machine":
        await end_agent_work(work.usage.cost)
    submission = grading.GradedSubmission(
        attempt=attempt, change=agent_run.change, trace=trace, proof=order.proof
    )
    grade = await grading.grade_attempt(tools.workspaces, base, slot.task, submission)
    return AttemptResult(
        attempt=attempt,
        trace=trace,
        change=agent_run.change,
        grade=redact_grade(grade),
        exchanges=agent_run.exchanges,
        prompt=build_prompt_version(
            find_system_prompt(agent_run.exchanges), "gateway", slot.variant.agent
        ),
        insights=feedback_insights(attempt, slot.task, work.feedback),
        mend=agent_run.mend,
    )


def lost_attempt(order: AttemptOrder, started: datetime, cause: str) -> AttemptResult:
    """Build the result of a try that a machine fault lost."""
    attempt = Attempt(
        **attempt_identity(order),
        started=started,
        ended=datetime.now(UTC),
        exit="machine",
        cause=cause,
    )
    return AttemptResult(attempt=attempt)


def attempt_id(order: AttemptOrder) -> str:
    return content_digest(order.key)[:12]


def attempt_identity(order: AttemptOrder) -> dict[str, Any]:
    """Return the fields that identify the attempt, however it ends."""
    slot = order.slot
    return {
        "id": attempt_id(order),
        "origin": "experiment",
        "task": slot.task.id,
        "task_digest": slot.task.digest,
        "variant": slot.variant.digest,
        "experiment": slot.experiment,
        "number": slot.number,
        "retry": order.retry,
        "parent": order.parent,
    }


async def lay_out_patches(order: AttemptOrder, workspace: Workspace) -> None:
    """Apply the change that an agent continues; BadInput if it does not apply."""
    if order.beneath.strip():
        await workspace.apply_patch(order.beneath)
        await workspace.settle_changes()
    await workspace.apply_patch(order.draft)


async def apply_control_change(slot: ScheduledAttempt, workspace: Workspace) -> None:
    """Apply the task's reference after the control `reference` has ended, which never sees it."""
    if slot.variant.agent != REFERENCE_AGENT or not slot.task.reference:
        return
    try:
        await workspace.apply_patch(slot.task.reference)
    except BadInput as fault:
        raise MachineFailed(f"The task's reference change does not apply: {fault}") from fault


async def do_nothing(workspace: Workspace) -> None:
    """Do nothing."""


async def run_agent(
    slot: ScheduledAttempt,
    base: WorkspaceBase | None,
    tools: RunResources,
    *,
    before: WorkspaceStep = do_nothing,
    after: WorkspaceStep = do_nothing,
) -> AgentRun:
    """The agent at work in its own workspace; where we or a plug-in fail it, exit `machine`.

    `before` it begins and `after` its change is known, others may do something there.
    """
    resolved_variant, limits = tools.resolved_variants[slot.variant.digest], slot.variant.limits
    work = Work(
        exit="out_of_time", trace=Trace(reader=resolved_variant.agent.name, reader_version=1)
    )
    change = Change(base=slot.task.base)
    proxy: AttemptProxy | None = None
    started = ended = time.monotonic()
    refused: Mapping[str, int] = {}
    workspace_sandbox: WorkspaceSandbox | None = None
    try:
        async with AsyncExitStack() as exit_stack:
            if resolved_variant.model is not None:
                proxy_opening = tools.gateway.open_proxy(
                    slot.variant.model or "", resolved_variant.model, limits
                )
                proxy = await exit_stack.enter_async_context(proxy_opening)
            workspace = await exit_stack.enter_async_context(
                tools.workspaces.open(base, limits, standing=True)
            )
            workspace_sandbox = workspace.sandbox
            refused = workspace_sandbox.refused
            await before(workspace)
            started = time.monotonic()
            with anyio.move_on_after(limits.seconds + GRACE_SECONDS):
                work = await resolved_variant.agent.work(
                    build_assignment(slot, resolved_variant, workspace, proxy)
                )
            ended = min(time.monotonic(), started + limits.seconds)
            # A cancelled agent returns what it has, but then the run is over.
            await anyio.lowlevel.checkpoint_if_cancelled()
            await apply_control_change(slot, workspace)
            change = parse_patch(await workspace.read_diff(), base=slot.task.base)
            await after(workspace)
    except BadInput as fault:
        if proxy is None or not isinstance(await proxy.closed(), BadInput):
            raise
        work = msgspec.structs.replace(work, exit="machine", cause=str(fault))
    except UnreadableChange as error:
        work = msgspec.structs.replace(work, exit="crashed", cause=str(error))
    except Fault as fault:
        work = msgspec.structs.replace(work, exit="machine", cause=str(fault))
    except Exception as error:  # a plug-in may raise anything; the other attempts go on
        cause = f"the agent {resolved_variant.agent.name!r} raised {type(error).__name__}: {error}"
        work = msgspec.structs.replace(work, exit="machine", cause=cause)
    description = workspace_sandbox.describe() if workspace_sandbox is not None else None
    if proxy is None or not proxy.exchanges:
        return AgentRun(work=work, change=change, refused=refused, sandbox=description)
    closing_fault = await proxy.closed()
    if (silence := find_provider_fault(work.exit, proxy, (started, ended), limits)) is not None:
        work = msgspec.structs.replace(work, exit="machine", cause=silence)
    return AgentRun(
        work=msgspec.structs.replace(work, usage=proxy.usage),
        change=change,
        exchanges=proxy.exchanges,
        mend=str(closing_fault) if isinstance(closing_fault, BadInput) else None,
        refused=refused,
        sandbox=description,
    )


def find_provider_fault(
    exit_: Exit, proxy: AttemptProxy, span: tuple[float, float], limits: Limits
) -> str | None:
    """Return why a failed attempt says nothing about the agent: its model was silent.

    The same holds if a program gave up because an answer broke off.
    """
    if exit_ not in ("out_of_time", "idle", "gave_up", "crashed"):
        return None
    silence = proxy.describe_silence(*span, limits.seconds)
    return silence or (proxy.describe_break() if exit_ in ("gave_up", "crashed") else None)


def build_assignment(
    slot: ScheduledAttempt,
    resolved_variant: ResolvedVariant,
    workspace: Workspace,
    proxy: ModelProxy | None,
) -> Assignment:
    """Build an agent's assignment."""
    return Assignment(
        prompt=slot.task.prompt,
        system=add_agent_context(resolved_variant, slot.context),
        sandbox=workspace.sandbox,
        model=proxy,
        model_proxy=proxy,
        variant=slot.variant,
        limits=slot.variant.limits,
        answer=make_answerer(slot.task),
        feedback=slot.feedback or resolved_variant.written.feedback,
    )


def with_trace(agent_run: AgentRun) -> Work:
    """Add a trace to an agent's work that has none: from its files, or at least from its
    requests."""
    work = msgspec.structs.replace(agent_run.work, recordings=())
    if work.trace.events:
        return work
    session = session_from_recordings(agent_run.work.recordings) or session_from_gateway(
        agent_run.exchanges
    )
    if session is None:
        return work
    summary = work.summary or session.summary
    return msgspec.structs.replace(work, trace=session.trace, summary=summary)


def with_refusals(work: Work, refused: Mapping[str, int]) -> Work:
    """Add a note to the trace for every host that the sandbox refused."""
    trace = work.trace
    lanes = trace.lanes or (Lane(id="root"),)
    notes = (
        Note(
            number=number,
            lane=lanes[0].id,
            about="refused host",
            text=f"{host}, {count_with_noun(times, 'time')}",
        )
        for number, (host, times) in enumerate(sorted(refused.items()), len(trace.events) + 1)
    )
    if not refused:
        return work
    trace = msgspec.structs.replace(trace, lanes=lanes, events=(*trace.events, *notes))
    return msgspec.structs.replace(work, trace=trace)


def feedback_insights(attempt: Attempt, task: Task, feedback: str | None) -> tuple[Insight, ...]:
    """Return what the agent said it lacked, if anything."""
    if not feedback or not feedback.strip() or attempt.ended is None:
        return ()
    return (
        Insight(
            attempt=attempt.id,
            repo=task.repo,
            type="agent_self_feedback",
            text=feedback.strip()[:MAX_FEEDBACK_CHARACTERS],
            at=attempt.ended,
        ),
    )


def make_answerer(task: Task) -> Callable[[str], str | None]:
    """Return the user's answers to questions, from the task's script."""

    def answer(question: str) -> str | None:
        for pattern, reply in task.answers.items():
            if re.search(pattern, question, re.IGNORECASE | re.DOTALL):
                return reply
        return None

    return answer


# Where attempts run: on this machine, or on a cluster.


DEFAULT_JOBS = 16
"""Requests at once that providers usually allow."""


class AttemptExecutor(Record):
    """Makes attempts, several at once."""

    make: Callable[[AttemptOrder, EndAgentWork], Awaitable[AttemptResult]]
    places: int
    """Number of attempts at once by default."""


@asynccontextmanager
async def open_executor(
    plan: ExperimentPlan, tools: RunResources
) -> AsyncIterator[AttemptExecutor]:
    """Open the executor that the settings name, for the attempts of a plan."""
    if tools.settings.executor.kind == "ray":
        from closeloop.attempts.ray_cluster import open_cluster

        async with open_cluster(plan, tools) as cluster:

            async def make_there(order: AttemptOrder, _: EndAgentWork) -> AttemptResult:
                return await cluster.run_attempt(order)

            yield AttemptExecutor(make=make_there, places=cluster.places)
        return

    async def make_here(order: AttemptOrder, end_agent_work: EndAgentWork) -> AttemptResult:
        return await make_attempt(order, tools, end_agent_work)

    yield AttemptExecutor(make=make_here, places=default_job_count())


def default_job_count() -> int:
    """Return the default number of attempts at once on this machine.

    Agents mostly wait for a model. Test suites and setups have their own limit.
    """
    return max(DEFAULT_JOBS, os.cpu_count() or 1)


# Whether another attempt of an experiment may start.

PAUSE_CHECK_SECONDS = 1.0
"""Seconds after which a pause is noticed at the latest."""


class AttemptPacer:
    """Decides by the store, which all processes of an experiment share, whether attempts may
    start."""

    def __init__(self, experiment: Experiment, store: Store) -> None:
        self._experiment = experiment
        self._course = store.experiments
        self._looked = -PAUSE_CHECK_SECONDS
        self._paused = False
        self._broken: dict[str, str] = {}
        self._unsaved_costs: dict[str, float] = {}

    def mark_broken(self, variant: str, reason: str) -> None:
        """Block a variant that cannot succeed until the user fixes something."""
        self._broken[variant] = f"they would fail like another one: {reason.rstrip('.')}"

    def add_unsaved_cost(self, key: str, cost: float | None) -> None:
        """Count the cost of an attempt that is being graded, until it is saved."""
        self._unsaved_costs[key] = cost or 0.0

    def remove_unsaved_cost(self, key: str) -> None:
        """Leave the cost of an attempt to the store."""
        self._unsaved_costs.pop(key, None)

    def block_reason(self, variant: str) -> str | None:
        """Return why no attempt of a variant may start now; None if one may."""
        experiment, now = self._experiment, time.monotonic()
        if variant in self._broken:
            return self._broken[variant]
        if now - self._looked >= PAUSE_CHECK_SECONDS:
            self._looked, self._paused = now, self._course.is_paused(experiment.id)
        if self._paused:
            return (
                f"the experiment is paused: `closeloop admin resume {experiment.id}`, "
                "then run it again"
            )
        if experiment.budget is not None:
            spent = self._course.total_cost(experiment) or 0.0
            spent += sum(self._unsaved_costs.values())
            if spent >= experiment.budget:
                return (
                    f"${spent:.2f} of the budget of ${experiment.budget:.2f} are "
                    "spent: run it again with a larger budget to continue"
                )
        return None


# Leases on attempts and plans: renewed while this process works, dropped if another has them.

LEASE_SECONDS = 120.0


async def maintain_leases(
    store: Store, owner: str, *, min_leases: int = 0, seconds: float = LEASE_SECONDS
) -> None:
    """Say now and then that this process is alive, so that nobody takes over its work.

    A database that is away for a while ends no work under way: it is asked again until it tells.
    MachineFailed when fewer than the least are still ours: somebody else does that work now.
    """
    wait = seconds / 4
    while True:
        await anyio.sleep(wait)
        try:
            lease_count = await to_thread.run_sync(store.renew_leases, owner, seconds)
        except Fault:
            wait = seconds / 24
            continue
        if lease_count < min_leases:
            raise MachineFailed("Another process has taken over this work: wait for it.")
        wait = seconds / 4
