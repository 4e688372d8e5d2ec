"""One attempt: an agent works in a workspace, what it left is graded in a clean room."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from closeloop.model.attempt import Attempt, Exit
from closeloop.model.change import Change
from closeloop.model.errors import BadInput, Fault
from closeloop.model.exchange import Exchange
from closeloop.model.insight import Insight
from closeloop.model.patches import parse
from closeloop.model.plan import Made, Slot, Try
from closeloop.model.plural import plural
from closeloop.model.protocols import Assignment, Door, Work
from closeloop.model.record import Record, digest
from closeloop.model.task import Task
from closeloop.model.trace import Lane, Note, Trace
from closeloop.model.variant import Limits
from closeloop.running.tools import Tools, base_of, guarded
from closeloop.runs import grade as grading
from closeloop.runs.gateway.door import OpenDoor
from closeloop.runs.variants import Crew, with_context
from closeloop.runs.workspaces import Base, Unreadable, Workspace
from closeloop.traces.recorded import recorded, recorded_by_gateway
from closeloop.traces.redact import redact, redact_grade

GRACE_SECONDS = 60.0
"""An agent stops itself at its time limit; one that does not is stopped this much later."""
LONGEST_FEEDBACK = 20_000

Step = Callable[[Workspace], Awaitable[None]]


class Done(Record):
    """What an agent did, and what went between it and its model."""

    work: Work
    change: Change
    exchanges: Sequence[Exchange] = ()
    mend: str | None = None
    refused: Mapping[str, int] = {}
    """Hosts that it asked for in vain, and how often."""


async def make(one: Try, tools: Tools) -> Made:
    """The whole of one try, from a fresh workspace to its grade. Nothing of it is kept yet."""
    slot = one.slot
    if slot.task.digest not in tools.bases:
        tools.bases[slot.task.digest] = await base_of(slot.task, tools.workspaces)
    base, started = tools.bases[slot.task.digest], datetime.now(UTC)
    done = await let_work(slot, base, tools)
    work, _ = redact(with_refusals(with_trace(done), done.refused))
    attempt = Attempt(
        **identity(one),
        started=started,
        ended=datetime.now(UTC),
        exit=work.exit,
        cause=work.cause,
        usage=work.usage,
        summary=work.summary,
        sandbox=guarded(tools.workspaces),
    )
    submission = grading.Submission(
        attempt=attempt, change=done.change, trace=work.trace, proof=one.proof
    )
    grade = await grading.grade(tools.workspaces, base, slot.task, submission)
    return Made(
        attempt=attempt,
        trace=work.trace,
        change=done.change,
        grade=redact_grade(grade),
        exchanges=done.exchanges,
        insights=insights(attempt, slot.task, work.feedback),
        mend=done.mend,
    )


def unmade(one: Try, started: datetime, cause: str) -> Made:
    """A try that the machine lost, with all that came of it."""
    attempt = Attempt(
        **identity(one), started=started, ended=datetime.now(UTC), exit="machine", cause=cause
    )
    return Made(attempt=attempt)


def identity(one: Try) -> dict[str, Any]:
    """Which attempt it is, however it ends."""
    slot = one.slot
    return {
        "id": digest(one.key)[:12],
        "origin": "experiment",
        "task": slot.task.id,
        "task_digest": slot.task.digest,
        "variant": slot.variant.digest,
        "experiment": slot.experiment,
        "number": slot.number,
        "retry": one.retry,
        "parent": one.parent,
    }


async def nothing(workspace: Workspace) -> None:
    """All is as it should be."""


async def let_work(
    slot: Slot, base: Base | None, tools: Tools, *, before: Step = nothing, after: Step = nothing
) -> Done:
    """The agent at work in its own workspace; where we or a plug-in fail it, exit `machine`.

    `before` it begins and `after` its change is known, others may do something there.
    """
    crew, limits = tools.crews[slot.variant.digest], slot.variant.limits
    work = Work(exit="out_of_time", trace=Trace(reader=crew.agent.name, reader_version=1))
    change = Change(base=slot.task.base)
    door: OpenDoor | None = None
    began = ended = time.monotonic()
    refused: Mapping[str, int] = {}
    try:
        async with AsyncExitStack() as opened:
            if crew.model is not None:
                way = tools.gateway.open(slot.variant.model or "", crew.model, limits)
                door = await opened.enter_async_context(way)
            workspace = await opened.enter_async_context(tools.workspaces.open(base, limits))
            refused = workspace.cage.refused
            await before(workspace)
            began = time.monotonic()
            with anyio.move_on_after(limits.seconds + GRACE_SECONDS):
                work = await crew.agent.work(assignment(slot, crew, workspace, door))
            ended = min(time.monotonic(), began + limits.seconds)
            # An agent hands over what it has when it is cancelled, but then the run is over.
            await anyio.lowlevel.checkpoint_if_cancelled()
            change = parse(await workspace.diff(), base=slot.task.base)
            await after(workspace)
    except BadInput as fault:
        if door is None or not isinstance(await door.closed(), BadInput):
            raise
        work = msgspec.structs.replace(work, exit="machine", cause=str(fault))
    except Unreadable as error:
        work = msgspec.structs.replace(work, exit="crashed", cause=str(error))
    except Fault as fault:
        work = msgspec.structs.replace(work, exit="machine", cause=str(fault))
    except Exception as error:  # a plug-in may raise anything; the other attempts go on
        cause = f"the agent {crew.agent.name!r} raised {type(error).__name__}: {error}"
        work = msgspec.structs.replace(work, exit="machine", cause=cause)
    if door is None or not door.exchanges:
        return Done(work=work, change=change, refused=refused)
    shut = await door.closed()
    if (silence := find_provider_fault(work.exit, door, (began, ended), limits)) is not None:
        work = msgspec.structs.replace(work, exit="machine", cause=silence)
    return Done(
        work=msgspec.structs.replace(work, usage=door.usage),
        change=change,
        exchanges=door.exchanges,
        mend=str(shut) if isinstance(shut, BadInput) else None,
        refused=refused,
    )


def find_provider_fault(
    exit_: Exit, door: OpenDoor, span: tuple[float, float], limits: Limits
) -> str | None:
    """Why an attempt that did not end well says nothing about the agent: its model was silent.

    Of a program that gave up because an answer broke off, that is the reason too.
    """
    if exit_ not in ("out_of_time", "idle", "gave_up", "crashed"):
        return None
    silence = door.describe_silence(*span, limits.seconds)
    return silence or (door.describe_break() if exit_ in ("gave_up", "crashed") else None)


def assignment(slot: Slot, crew: Crew, workspace: Workspace, door: Door | None) -> Assignment:
    """What an agent is handed."""
    return Assignment(
        prompt=slot.task.prompt,
        system=with_context(crew, slot.context),
        cage=workspace.cage,
        model=door,
        door=door,
        variant=slot.variant,
        limits=slot.variant.limits,
        answer=answers(slot.task),
        feedback=slot.feedback or crew.written.feedback,
    )


def with_trace(done: Done) -> Work:
    """An agent that did not tell its work itself left files about it, or at least its requests."""
    work = msgspec.structs.replace(done.work, recordings=())
    if work.trace.events:
        return work
    session = recorded(done.work.recordings) or recorded_by_gateway(done.exchanges)
    if session is None:
        return work
    summary = work.summary or session.summary
    return msgspec.structs.replace(work, trace=session.trace, summary=summary)


def with_refusals(work: Work, refused: Mapping[str, int]) -> Work:
    """A note in the trace for every host that the sandbox did not let it reach."""
    trace = work.trace
    lanes = trace.lanes or (Lane(id="root"),)
    notes = (
        Note(
            number=number,
            lane=lanes[0].id,
            about="refused host",
            text=f"{host}, {plural(times, 'time')}",
        )
        for number, (host, times) in enumerate(sorted(refused.items()), len(trace.events) + 1)
    )
    if not refused:
        return work
    trace = msgspec.structs.replace(trace, lanes=lanes, events=(*trace.events, *notes))
    return msgspec.structs.replace(work, trace=trace)


def insights(attempt: Attempt, task: Task, feedback: str | None) -> tuple[Insight, ...]:
    """What the agent said it lacked, where it said anything."""
    if not feedback or not feedback.strip() or attempt.ended is None:
        return ()
    return (
        Insight(
            attempt=attempt.id,
            repo=task.repo,
            type="agent_self_feedback",
            text=feedback.strip()[:LONGEST_FEEDBACK],
            at=attempt.ended,
        ),
    )


def answers(task: Task) -> Callable[[str], str | None]:
    """What the user says when asked, by the task's script."""

    def answer(question: str) -> str | None:
        for pattern, reply in task.answers.items():
            if re.search(pattern, question, re.IGNORECASE | re.DOTALL):
                return reply
        return None

    return answer
