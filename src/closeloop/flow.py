"""The system on one page: tasks go in, agents work on them in cages, what they did is graded.

    plan ──► prepare every task: its base tree, and what its tests say before any change
         ──► for every task × variant × repeat that has no scored attempt yet:
                workspace ──► agent ──► trace and change ──► clean room ──► grade ──► store
         ──► what the rules say of every trace

`running` makes the attempts, on this machine or a cluster. What agents recorded elsewhere comes in
beside them, by `intake`; `measuring` applies the rules. Plans of several agents are carried out by
`orchestrating`, which stands beside this page.

Parts do not know each other: this page passes records between them. Nothing here is undone by a
kill: an attempt is stored whole, in one transaction, or not at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio import to_thread
from msgspec.structs import replace

from closeloop.measuring.attempts import book_of, measured
from closeloop.model.attempt import AttemptRow, Proof
from closeloop.model.change import Change
from closeloop.model.errors import BadInput, Fault, unknown
from closeloop.model.plan import Forecast, Mode, Place, Plan, Progress, Results, Slot, Try
from closeloop.model.record import Record, digest
from closeloop.model.settings import ExperimentSettings, Settings
from closeloop.model.task import Task
from closeloop.model.variant import Experiment
from closeloop.process.rulebook import Rulebook
from closeloop.reviewing.briefing import Briefing, brief, called, open_briefing
from closeloop.reviewing.hydrating import Work
from closeloop.running import announcing
from closeloop.running.attempting import identity
from closeloop.running.executing import Executor, open_executor
from closeloop.running.forecasting import demand_prices, forecast
from closeloop.running.keeping import keep
from closeloop.running.leases import LEASE_SECONDS, keep_leases
from closeloop.running.pacing import Pace
from closeloop.running.safekeeping import ATTEMPTS, recover
from closeloop.running.tools import (
    Tools,
    base_of,
    describe_sandbox,
    guarded,
    open_tools,
    open_workspaces,
)
from closeloop.runs import grade as grading
from closeloop.runs import proof as proving
from closeloop.runs.executors.local import each, plainly
from closeloop.runs.workspaces import Workspaces, resolve_commit
from closeloop.store import Store, row_of
from closeloop.store.named import open_kept_store, open_named_store
from closeloop.store.owners import is_dead, this_process
from closeloop.tasks.files import load_tasks
from closeloop.traces.redact import redact_grade, redact_proof

__all__ = [
    "Progress",
    "Tell",
    "Workshop",
    "choose",
    "describe_sandbox",
    "expect",
    "guarded",
    "open_kept_store",
    "open_named_store",
    "open_workshop",
    "open_workspaces",
    "plan",
    "prove",
    "results",
    "run",
]


class Workshop(Record):
    """What the work is done with, opened once."""

    store: Store
    tools: Tools
    retries: int
    rules: Rulebook
    owner: str
    briefing: Briefing | None = None
    """What agents are told of what reviewers taught, where they are."""


class Going(Record):
    """A plan under way."""

    workshop: Workshop
    executor: Executor
    pace: Pace
    mode: Mode
    tell: Tell
    faults: list[Fault] = []
    """What went wrong: nothing more is begun then; what is under way is paid for, and ends."""


Tell = Callable[[Progress], None]


@asynccontextmanager
async def open_workshop(
    settings: Settings, root: Path, variants: Sequence[str], environ: Mapping[str, str]
) -> AsyncIterator[Workshop]:
    """Open the store, and what attempts are made with; everything is closed again at the end."""
    async with AsyncExitStack() as opened:
        store = opened.enter_context(open_named_store(settings, root))
        recover(store, root / ATTEMPTS)
        making = open_tools(
            settings, root, variants, environ, lambda name: tuple(store.exchanges(name))
        )
        tools = await opened.enter_async_context(making)
        yield Workshop(
            store=store,
            tools=tools,
            retries=settings.retries,
            rules=book_of(settings),
            owner=this_process(),
            briefing=open_briefing(store, settings, root, environ),
        )


def choose(settings: Settings, root: Path, names: Sequence[str]) -> list[Task]:
    """The project's tasks, or those named: by id, or by file."""
    files = [Path(name) for name in names if name.endswith(".md")]
    ids = [name for name in names if not name.endswith(".md")]
    chosen = load_tasks(files, root, resolve_commit) if files else []
    if ids or not files:
        known = {task.id: task for task in load_tasks(root / settings.tasks, root, resolve_commit)}
        for name in ids:
            if name not in known:
                raise unknown("task", name, known)
        chosen += [known[name] for name in ids or known]
    return list({task.id: task for task in chosen}.values())


def plan(
    workshop: Workshop, tasks: Sequence[Task], wanted: ExperimentSettings, name: str | None = None
) -> Plan:
    """An experiment over those tasks and all variants of the workshop, written down."""
    crews = workshop.tools.crews
    demand_prices(wanted.budget, crews)
    variants = tuple(crew.variant for crew in crews.values())
    digests = tuple(task.digest for task in tasks), tuple(variant.digest for variant in variants)
    experiment = Experiment(
        id=digest(*digests, wanted.repeats)[:12],
        tasks=digests[0],
        variants=digests[1],
        repeats=wanted.repeats,
        name=name,
        seed=wanted.seed,
        feedback=wanted.feedback,
        budget=wanted.budget,
    )
    for crew in crews.values():
        workshop.store.save_prompt(crew.prompt)
        workshop.store.save_variant(crew.variant)
    for task in tasks:
        workshop.store.save_task(task)
    workshop.store.save_experiment(experiment)
    return Plan(experiment=experiment, tasks=tuple(tasks), variants=variants)


def expect(plan: Plan, workshop: Workshop, mode: Mode, jobs: int) -> Forecast:
    """What the attempts that this plan still lacks will take, and what all of it will show."""
    tried = last_tries(plan, workshop.store)
    missing = [slot for slot in plan.slots() if is_due(tried.get(slot.place), mode)]
    return forecast(plan, missing, workshop.tools.crews, workshop.store, jobs)


async def run(
    plan: Plan, workshop: Workshop, *, tell: Tell, jobs: int | None = None, mode: Mode = "fill"
) -> None:
    """Fill every slot of the plan, `jobs` at a time. What is already filled is left as it is."""
    ready: dict[str, Proof] = {}
    tried = last_tries(plan, workshop.store)
    crews = workshop.tools.crews.items()

    async def prepare_one(task: Task) -> None:
        tell(Progress(stage="preparing", task=task.id))
        proof = await prepare(task, workshop)
        if proof.state == "unproved":
            tell(Progress(stage="skipped", task=task.id, why=proof.reasons[0]))
        else:
            ready[task.id] = proof
            tell(Progress(stage="prepared", task=task.id))

    async with open_executor(plan, workshop.tools) as executor:
        pace = Pace(plan.experiment, workshop.store)
        going = Going(workshop=workshop, executor=executor, pace=pace, mode=mode, tell=tell)

        def is_wanted(slot: Slot) -> bool:
            return slot.task.id in ready and (mode == "fill" or slot.place in tried)

        async def settle_one(slot: Slot) -> None:
            if going.faults:
                return
            try:
                await settle(slot, ready[slot.task.id], tried.get(slot.place), going)
            except Fault as fault:
                going.faults.append(fault)

        await each(plan.tasks, prepare_one, jobs=jobs or executor.places)
        with plainly():
            async with anyio.create_task_group() as group:
                group.start_soon(keep_leases, workshop.store, workshop.owner)
                try:
                    await each(
                        [slot for slot in plan.queue() if is_wanted(slot)],
                        settle_one,
                        jobs=jobs or executor.places,
                        lane=lambda slot: slot.variant.digest,
                        room={key: crew.written.jobs for key, crew in crews if crew.written.jobs},
                    )
                    if going.faults:
                        raise going.faults[-1]
                finally:
                    group.cancel_scope.cancel()
                    with suppress(Fault):
                        workshop.store.release(workshop.owner)


async def prepare(task: Task, workshop: Workshop) -> Proof:
    """The task's base tree, and what its tests say there: made once, then remembered."""
    tools, store = workshop.tools, workshop.store
    try:
        base = tools.bases[task.digest] = await base_of(task, tools.workspaces)
    except BadInput as fault:
        return proving.unready(task, fault)
    proof = await to_thread.run_sync(store.proof, task.grading)
    if proof is None or proof.version != proving.GRADER_VERSION:
        proof = await proving.look(tools.workspaces, base, task)
        # What is wrong may lie outside the task, such as a tool that is not installed yet.
        if proof.state != "unproved":
            await to_thread.run_sync(remember, proof, store)
    return proof


def remember(proof: Proof, store: Store) -> None:
    """Keep a proof; but what the machine spoiled today may be well tomorrow."""
    runs = (proof.before, proof.reference)
    if not any(run is not None and run.trouble is not None for run in runs):
        store.save_proof(redact_proof(proof))


async def settle(slot: Slot, proof: Proof, row: AttemptRow | None, going: Going) -> None:
    """Fill one slot, given its last try: begun again only while the machine failed it."""
    workshop, tell = going.workshop, going.tell
    if row is not None and not is_due(row, going.mode):
        if wants_grading(row, slot.task, going.mode):
            row = await regrade(row, slot.task, proof, workshop)
        tell(slot.told("settled", row))
        return
    first = 0 if row is None else row.retry + 1
    for retry in range(first, first + workshop.retries + 1):
        # In a thread: attempts under way go on while this one waits for the database.
        is_claimed, why = await to_thread.run_sync(claim_slot, slot, retry, going)
        if not is_claimed:
            tell(slot.told("held", row, why) if why is not None else slot.told("elsewhere"))
            return
        tell(slot.told("started"))
        one = Try(slot=slot, retry=retry, parent=row.id if row else None, proof=proof)
        made = await going.executor.make(await to_thread.run_sync(briefed, one, workshop))
        aside = workshop.tools.root / ATTEMPTS
        kept = await keep(made, slot.task, workshop.store, one.key, aside)
        # None when this process slept so long that another one took over and was first.
        row = row_of(kept.attempt, kept.trace, kept.change, kept.grade) if kept else None
        if made.mend is not None:
            going.pace.mend(slot.variant.digest, made.mend)
        if row is None or row.exit != "machine" or made.mend is not None or going.faults:
            break
    tell(slot.told("settled" if row else "elsewhere", row))


def claim_slot(slot: Slot, retry: int, going: Going) -> tuple[bool, str | None]:
    """Whether this process may begin an attempt; else why it is held back, where it is."""
    store, owner = going.workshop.store, going.workshop.owner
    if (why := going.pace.held(slot.variant.digest)) is not None:
        store.events.add([announcing.held(slot, why)])
        return False, why
    if not store.claim(slot.key(retry), owner, LEASE_SECONDS, is_dead):
        return False, None
    store.events.add([announcing.started(slot, retry)])
    return True, None


def briefed(one: Try, workshop: Workshop) -> Try:
    """With what reviewers taught, where agents are told; all who try a task are, or none is."""
    task = one.slot.task
    if workshop.briefing is None or task.repo is None:
        return one
    work = Work(
        repo=called(task.repo),
        text=task.prompt,
        scope=task.scope,
        key=identity(one)["id"],
        lot=task.id,
        names=(task.repo,),
    )
    context = brief(workshop.briefing, workshop.tools.crews[one.slot.variant.digest], work)
    return replace(one, slot=replace(one.slot, context=context))


def is_due(row: AttemptRow | None, mode: Mode) -> bool:
    """Whether a slot wants an attempt, given its last try."""
    match mode:
        case "fill":
            return row is None or row.exit == "machine"
        case "unscored":
            return row is not None and row.outcome not in ("pass", "fail")
        case "regrade":
            return False


def wants_grading(row: AttemptRow, task: Task, mode: Mode) -> bool:
    """Graded never, in another way, by an older grader, without success, or as we are asked to."""
    if row.exit == "machine" or mode == "regrade":
        return row.exit != "machine"
    current = row.grading == task.grading and row.version == proving.GRADER_VERSION
    return not current or row.outcome not in ("pass", "fail")


async def regrade(row: AttemptRow, task: Task, proof: Proof, workshop: Workshop) -> AttemptRow:
    """Grade a kept attempt again, by its kept change."""
    store, tools = workshop.store, workshop.tools
    made, trace, _ = await to_thread.run_sync(store.recorded, row.id)
    change = await to_thread.run_sync(store.exact_change, row.id) or Change()
    submission = grading.Submission(attempt=made, change=change, trace=trace, proof=proof)
    grade = await grading.grade(tools.workspaces, tools.bases[task.digest], task, submission)
    grade = redact_grade(grade)
    await to_thread.run_sync(store.save_grade, grade)
    return row_of(made, trace, change, grade)


def results(plan: Plan, workshop: Workshop, skipped: dict[str, str]) -> Results:
    """What the store now holds of a plan, and what the rules say of it."""
    tried = last_tries(plan, workshop.store)
    rows = [tried[slot.place] for slot in plan.slots() if slot.place in tried]
    looked = measured(workshop.store, rows, workshop.rules)
    return Results(
        experiment=plan.experiment.id,
        tasks=plan.tasks,
        variants=plan.variants,
        attempts=tuple(rows),
        measurements={one.row.id: one.measurement for one in looked},
        insights=tuple(workshop.store.course.insights_of([row.id for row in rows])),
        skipped=skipped,
        sandbox=guarded(workshop.tools.workspaces),
    )


def last_tries(plan: Plan, store: Store) -> dict[Place, AttemptRow]:
    """The last try of every slot that has one, as it is graded now."""
    rows = store.attempts(
        task_digests=plan.experiment.tasks,
        variants=plan.experiment.variants,
        gradings=[task.grading for task in plan.tasks],
    )
    rows.sort(key=lambda row: row.retry)
    return {(row.task_digest, row.variant, row.number): row for row in rows}


async def prove(
    tasks: Sequence[Task], store: Store, workspaces: Workspaces, *, repeats: int, tell: Tell
) -> list[Proof]:
    """Prove each task by its controls, and remember what came of it."""
    proofs = []
    for task in tasks:
        tell(Progress(stage="preparing", task=task.id))
        try:
            base = await base_of(task, workspaces)
            proof = await proving.prove(workspaces, base, task, repeats)
            remember(proof, store)
        except BadInput as fault:
            proof = proving.unready(task, fault)
        store.save_task(task)
        tell(Progress(stage="prepared", task=task.id))
        proofs.append(proof)
    return proofs
