"""The loop: every task is worked on when those it depends on are accepted, judged, tried again.

    task ──► wait for its dependencies ──► work ──► judge ──► merge ──► accepted
                                            ▲                  │
                                            └── what was wrong ┘   up to max_retries times

Only work waits for a place: a judge is asked as soon as there is something to judge, so that
evaluation never waits behind new work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile

import anyio
from msgspec.structs import replace

from closeloop.model.evaluation import Issue
from closeloop.model.orchestration import (
    Assessment,
    Execution,
    Orchestration,
    Part,
    Stage,
    Told,
    Try,
)
from closeloop.model.record import Record
from closeloop.model.settings import OrchestrateSettings
from closeloop.runs.executors.local import plainly
from closeloop.runs.orchestrate.briefs import brief
from closeloop.runs.orchestrate.merging import beneath, clashed, conflict, in_plan_order


class Order(Record):
    """One try, as it is given out."""

    plan: Orchestration
    task: Part
    number: int
    brief: str
    beneath: tuple[Execution, ...]
    """Whose changes it begins with, in order."""
    last: Execution | None
    """The try before, whose change it goes on with."""


class Hands(Record):
    """Who does what the loop only arranges. Whoever works or judges also keeps what came of it."""

    work: Callable[[Order], Awaitable[Execution]]
    judge: Callable[[Execution], Awaitable[Assessment]]
    merge: Callable[[Sequence[Execution]], Awaitable[str | None]]
    """Why these changes do not go together in this order; None when they do."""
    keep: Callable[[Assessment], Awaitable[None]]
    held: Callable[[], str | None]
    """Why nothing more may be begun."""
    tell: Callable[[Told], None]


class Going(Record):
    """A plan under way."""

    plan: Orchestration
    terms: OrchestrateSettings
    lost_tries: int
    """How often in a row a try that the machine lost is begun again, now."""
    hands: Hands
    tries: dict[str, list[Try]]
    known: Mapping[str, int]
    """How many of them were made before, by task."""
    accepted: dict[str, Execution]
    stopped: dict[str, str]
    """Tasks that were not begun or not gone on with, and why."""
    settled: Mapping[str, anyio.Event]
    places: anyio.Semaphore
    merging: anyio.Lock

    def tell(self, stage: Stage, task: str, number: int = 0, why: str | None = None) -> None:
        tries = self.tries[task]
        assessment = tries[-1].assessment if tries else None
        self.hands.tell(Told(stage=stage, task=task, number=number, why=why, assessment=assessment))


async def carry_out(
    plan: Orchestration,
    terms: OrchestrateSettings,
    hands: Hands,
    known: Sequence[Try] = (),
    lost_tries: int = 2,
) -> dict[str, str]:
    """Settle every task, going on from the tries that are known; those not settled, and why."""
    tries: dict[str, list[Try]] = {task.id: [] for task in plan.tasks}
    for one in known:
        tries[one.execution.task].append(one)
    going = Going(
        plan=plan,
        terms=terms,
        lost_tries=lost_tries,
        hands=hands,
        tries=tries,
        known={name: len(each) for name, each in tries.items()},
        accepted={
            name: each[-1].execution for name, each in tries.items() if each and stands(each[-1])
        },
        stopped={},
        settled={task.id: anyio.Event() for task in plan.tasks},
        places=anyio.Semaphore(terms.concurrency),
        merging=anyio.Lock(),
    )
    with plainly():
        async with anyio.create_task_group() as group:
            for task in plan.tasks:
                group.start_soon(settle, task, going)
    return going.stopped


async def settle(task: Part, going: Going) -> None:
    """One task, from its dependencies to its last try."""
    for name in task.depends_on:
        await going.settled[name].wait()
    missing = [name for name in task.depends_on if name not in going.accepted]
    if missing:
        stop(task, going, "blocked", f"it depends on {missing[0]}, which was not accepted")
    else:
        while is_due(task, going):
            if not await try_once(task, going):
                break
    going.settled[task.id].set()


def stop(task: Part, going: Going, stage: Stage, why: str) -> None:
    going.stopped[task.id] = why
    going.tell(stage, task.id, why=why)


def stands(one: Try) -> bool:
    """Accepted: it passed, or nobody could say that it fails."""
    return (
        one.execution.exit != "machine"
        and one.assessment is not None
        and one.assessment.passed is not False
    )


def is_due(task: Part, going: Going) -> bool:
    """Whether there is something left to do for a task: judge its last try, or make another."""
    tries, terms = going.tries[task.id], going.terms
    if not tries or tries[-1].assessment is None:
        return True
    last = tries[-1]
    if last.execution.exit == "machine":
        # What failed before may be mended now.
        now = reversed(tries[going.known[task.id] :])
        row = takewhile(lambda one: one.execution.exit == "machine", now)
        return len([*row]) <= going.lost_tries
    if stands(last):
        return False
    if last.assessment is not None and last.assessment.ignored and terms.stop_when_ignored:
        return False
    return sum(one.execution.exit != "machine" for one in tries) <= terms.max_retries


async def try_once(task: Part, going: Going) -> bool:
    """Work, unless that was done before us, and judge; False when nothing more may be begun."""
    tries, hands = going.tries[task.id], going.hands
    if not tries or tries[-1].assessment is not None:
        async with going.places:
            if (why := hands.held()) is not None:
                stop(task, going, "held", why)
                return False
            order = next_order(task, going)
            going.tell("started", task.id, order.number)
            tries.append(Try(execution=await hands.work(order)))
            going.tell("returned", task.id, order.number)
    execution = tries[-1].execution
    assessment = await assess(execution, going)
    tries[-1] = Try(execution=execution, assessment=assessment)
    await hands.keep(assessment)
    going.tell("judged", task.id, execution.number)
    return True


def next_order(task: Part, going: Going) -> Order:
    tries = going.tries[task.id]
    # What the machine lost says nothing about the work.
    scored = [one for one in tries if one.execution.exit != "machine"]
    last = scored[-1] if scored else None
    under = beneath(going.plan, task, going.accepted, last)
    return Order(
        plan=going.plan,
        task=task,
        number=len(tries) + 1,
        brief=brief(going.plan, task, under, last),
        beneath=tuple(under),
        # One that did not go together with others begins anew, on top of theirs.
        last=last.execution if last and not clashed(last) else None,
    )


async def assess(execution: Execution, going: Going) -> Assessment:
    """What the judge says; and what passes must go together with all that passed before."""
    if execution.exit == "machine":
        return lost(execution)
    assessment = await going.hands.judge(execution)
    async with going.merging:
        if assessment.passed is not False:
            why = await clash(execution, going)
            if why is None:
                going.accepted[execution.task] = execution
            else:
                issues = (*assessment.issues, conflict(why))
                assessment = replace(assessment, passed=False, issues=issues)
    before = [
        one.assessment
        for one in going.tries[execution.task][:-1]
        if one.assessment is not None and one.execution.exit != "machine"
    ]
    ignored = bool(before) and ignores(assessment, before[-1])
    return replace(assessment, ignored=ignored) if ignored else assessment


async def clash(execution: Execution, going: Going) -> str | None:
    """Why a change does not go together with all that is accepted; None where it does."""
    order = in_plan_order(going.plan, {**going.accepted, execution.task: execution})
    if [one.task for one in order] == [*execution.built_on, execution.task]:
        return None  # it was made on top of them
    return await going.hands.merge(order)


def lost(execution: Execution) -> Assessment:
    """A try that the machine failed is worth nothing, and not nothing: it is not scored."""
    return Assessment(
        plan=execution.plan,
        task=execution.task,
        number=execution.number,
        passed=None,
        why=execution.cause or "the machine failed",
        at=datetime.now(UTC),
    )


def ignores(now: Assessment, before: Assessment) -> bool:
    """Whether a try mends nothing of what was wrong with the one before."""
    if now.passed is not False or not before.issues:
        return False
    better = now.score is not None and before.score is not None and now.score > before.score
    return not better and {*map(_mark, before.issues)} <= {*map(_mark, now.issues)}


def _mark(issue: Issue) -> str:
    """What makes two issues the same: judges find new words for the old; facts do not."""
    return f"{issue.check} {issue.text}" if issue.source == "fact" else issue.check
