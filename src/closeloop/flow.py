"""The system on one page: tasks go in, agents work on them in cages, what they did is graded.

    plan ──► prepare every task: its base tree, and what its tests say before any change
         ──► for every task × variant × repeat that has no scored attempt yet:
                workspace ──► agent ──► trace and change ──► clean room ──► grade ──► store
         ──► what the rules say of every trace

What agents recorded elsewhere comes in beside it, by `intake`; `measuring` applies the rules.

Parts do not know each other: this page passes records between them. Nothing here is undone by a
kill: an attempt is stored whole, in one transaction, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec

from closeloop.measuring.attempts import book_of, measured
from closeloop.model.attempt import Attempt, AttemptRow, Proof
from closeloop.model.change import Change
from closeloop.model.errors import BadInput, Fault, unknown
from closeloop.model.patches import parse
from closeloop.model.plan import Place, Plan, Progress, Results, Slot
from closeloop.model.protocols import Assignment, Model, Work
from closeloop.model.record import Record, digest
from closeloop.model.settings import Settings
from closeloop.model.task import Task
from closeloop.model.trace import Trace
from closeloop.model.variant import Experiment
from closeloop.process.rulebook import Rulebook
from closeloop.runs import grade as grading
from closeloop.runs.executors.local import each, plainly
from closeloop.runs.models.budget import budgeted
from closeloop.runs.models.opening import open_model
from closeloop.runs.variants import Crew, assemble
from closeloop.runs.workspaces import Base, Unreadable, Workspaces, resolve_commit
from closeloop.store import Store, open_store, row_of
from closeloop.store.owners import is_dead, this_process
from closeloop.tasks.files import load_tasks
from closeloop.traces.redact import redact

LEASE_SECONDS = 120.0
GRACE_SECONDS = 60.0
"""An agent stops itself at its time limit; one that does not is stopped this much later."""


class Workshop(Record):
    """What the work is done with, opened once."""

    store: Store
    workspaces: Workspaces
    crews: Mapping[str, Crew]
    """By the variant's digest."""
    models: Mapping[str, Model | None]
    """By the variant's digest; shared by its attempts."""
    retries: int
    rules: Rulebook
    owner: str


class Prepared(Record):
    """A task ready to be worked on."""

    task: Task
    base: Base | None
    proof: Proof


Tell = Callable[[Progress], None]


@asynccontextmanager
async def open_workshop(
    settings: Settings, root: Path, variants: Sequence[str], environ: Mapping[str, str]
) -> AsyncIterator[Workshop]:
    """Open store, workspaces and models; everything is closed again at the end."""
    crews: dict[str, Crew] = {}
    for crew in (assemble(name, settings, root) for name in dict.fromkeys(variants)):
        twin = crews.setdefault(crew.variant.digest, crew)
        if twin is not crew:
            names = f"{twin.variant.name!r} and {crew.variant.name!r}"
            raise BadInput(f"The variants {names} are the same in all but name: run one of them.")
    async with AsyncExitStack() as opened:
        store = opened.enter_context(open_named_store(settings, root))
        workspaces = await opened.enter_async_context(open_workspaces(settings, root))
        models: dict[str, Model | None] = {}
        for crew in crews.values():
            if crew.model is not None:
                model = open_model(
                    crew.variant.model or "",
                    crew.model,
                    crew.variant.limits,
                    environ=environ,
                    folder=root,
                )
                opened.push_async_callback(model.close)
                models[crew.variant.digest] = model
        yield Workshop(
            store=store,
            workspaces=workspaces,
            crews=crews,
            models=models,
            retries=settings.retries,
            rules=book_of(settings),
            owner=this_process(),
        )


def open_workspaces(settings: Settings, root: Path) -> Workspaces:
    """Workspaces in the project's cache folder, in the sandbox that the settings name."""
    return Workspaces(root / (settings.cache or ".closeloop/cache"), settings.sandbox)


def guarded(workspaces: Workspaces) -> str:
    """How commands are caged here, and what is not enforced."""
    guards = workspaces.guards
    return f"{guards.kind}: {guards.note}" if guards.note else guards.kind


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


def open_named_store(settings: Settings, root: Path) -> Store:
    """The store that the settings name: an address, or a path below the project's root."""
    if "://" in settings.store:
        return open_store(settings.store)
    store = open_store(str(root / settings.store))
    ours = root / ".closeloop"
    if ours.is_dir() and not (ours / ".gitignore").exists():
        # Nobody's source: git need not be told in the project's own file.
        (ours / ".gitignore").write_text("*\n", encoding="utf-8")
    return store


def plan(workshop: Workshop, tasks: Sequence[Task], repeats: int) -> Plan:
    """An experiment over those tasks and all variants of the workshop, written down."""
    variants = tuple(crew.variant for crew in workshop.crews.values())
    digests = tuple(task.digest for task in tasks), tuple(variant.digest for variant in variants)
    experiment = Experiment(
        id=digest(*digests, repeats)[:12], tasks=digests[0], variants=digests[1], repeats=repeats
    )
    for crew in workshop.crews.values():
        workshop.store.save_prompt(crew.prompt)
        workshop.store.save_variant(crew.variant)
    for task in tasks:
        workshop.store.save_task(task)
    workshop.store.save_experiment(experiment)
    return Plan(experiment=experiment, tasks=tuple(tasks), variants=variants)


async def run(plan: Plan, workshop: Workshop, *, jobs: int, tell: Tell) -> None:
    """Fill every slot of the plan, `jobs` at a time. What is already filled is left as it is."""
    ready: dict[str, Prepared] = {}
    tried = last_tries(plan, workshop.store)

    async def prepare_one(task: Task) -> None:
        tell(Progress(stage="preparing", task=task.id))
        prepared = await prepare(task, workshop)
        if prepared.proof.state == "unproved":
            why = prepared.proof.reasons[0]
            tell(Progress(stage="skipped", task=task.id, why=why))
        else:
            ready[task.id] = prepared
            tell(Progress(stage="prepared", task=task.id))

    async def settle_one(slot: Slot) -> None:
        await settle(slot, ready[slot.task.id], workshop, tried.get(slot.place), tell)

    await each(plan.tasks, prepare_one, jobs=jobs)
    slots = (slot for slot in plan.slots() if slot.task.id in ready)
    with plainly():
        async with anyio.create_task_group() as group:
            group.start_soon(keep_leases, workshop)
            try:
                await each(slots, settle_one, jobs=jobs)
            finally:
                workshop.store.release(workshop.owner)
                group.cancel_scope.cancel()


async def prepare(task: Task, workshop: Workshop) -> Prepared:
    """The task's base tree, and what its tests say there: made once, then remembered."""
    base = await base_of(task, workshop.workspaces)
    proof = workshop.store.proof(task.grading)
    if proof is None or proof.version != grading.GRADER_VERSION:
        proof = await grading.look(workshop.workspaces, base, task)
        # What is wrong may lie outside the task, such as a tool that is not installed yet.
        if proof.state != "unproved":
            remember(proof, workshop.store)
    return Prepared(task=task, base=base, proof=proof)


def remember(proof: Proof, store: Store) -> None:
    """Keep a proof; but what the machine spoiled today may be well tomorrow."""
    runs = (proof.before, proof.reference)
    if not any(run is not None and run.trouble is not None for run in runs):
        store.save_proof(proof)


async def base_of(task: Task, workspaces: Workspaces) -> Base | None:
    """The tree that the task starts from; None for a question without a repository."""
    if task.repo is None or task.base is None:
        return None
    return await workspaces.base(task.repo, task.base, task.setup)


async def settle(
    slot: Slot, prepared: Prepared, workshop: Workshop, row: AttemptRow | None, tell: Tell
) -> None:
    """Fill one slot, given its last try: begun again only while the machine failed it."""
    if row is not None and row.exit != "machine":
        if wants_grading(row, slot.task):
            row = await regrade(row, prepared, workshop)
        tell(slot.told("settled", row))
        return
    first = 0 if row is None else row.retry + 1
    for retry in range(first, first + workshop.retries + 1):
        if not workshop.store.claim(slot.key(retry), workshop.owner, LEASE_SECONDS, is_dead):
            tell(slot.told("elsewhere"))
            return
        tell(slot.told("started"))
        row = await attempt(slot, retry, row.id if row else None, prepared, workshop)
        if row is None or row.exit != "machine":
            break
    tell(slot.told("settled" if row else "elsewhere", row))


def wants_grading(row: AttemptRow, task: Task) -> bool:
    """Graded never, in another way, by an older grader, or without success."""
    current = row.grading == task.grading and row.version == grading.GRADER_VERSION
    return not current or row.outcome not in ("pass", "fail")


async def attempt(
    slot: Slot, retry: int, parent: str | None, prepared: Prepared, workshop: Workshop
) -> AttemptRow | None:
    """One try: work in a workspace, grade in a clean room, keep all of it in one transaction.

    None when this process slept so long that another one took over and was first.
    """
    started = datetime.now(UTC)
    work, change = await let_work(slot, prepared.base, workshop)
    work, _ = redact(work)
    made = Attempt(
        id=digest(slot.key(retry))[:12],
        origin="experiment",
        task=slot.task.id,
        task_digest=slot.task.digest,
        variant=slot.variant.digest,
        experiment=slot.experiment,
        number=slot.number,
        retry=retry,
        parent=parent,
        started=started,
        ended=datetime.now(UTC),
        exit=work.exit,
        cause=work.cause,
        usage=work.usage,
        summary=work.summary,
        sandbox=guarded(workshop.workspaces),
    )
    submission = grading.Submission(
        attempt=made, change=change, trace=work.trace, proof=prepared.proof
    )
    grade = await grading.grade(workshop.workspaces, prepared.base, slot.task, submission)
    saved = workshop.store.save_attempt(
        made, trace=work.trace, change=change, grade=grade, job=slot.key(retry)
    )
    return row_of(made, work.trace, change, grade) if saved else None


async def let_work(slot: Slot, base: Base | None, workshop: Workshop) -> tuple[Work, Change]:
    """The agent at work in its own workspace; where we or a plug-in fail it, exit `machine`."""
    crew, limits = workshop.crews[slot.variant.digest], slot.variant.limits
    model = workshop.models.get(slot.variant.digest)
    work = Work(exit="out_of_time", trace=Trace(reader=crew.agent.name, reader_version=1))
    change = Change(base=slot.task.base)
    try:
        async with workshop.workspaces.open(base, limits) as workspace:
            assignment = Assignment(
                prompt=slot.task.prompt,
                system=crew.system,
                cage=workspace.cage,
                model=model and budgeted(model, limits),
                variant=slot.variant,
                limits=limits,
                answer=answers(slot.task),
            )
            with anyio.move_on_after(limits.seconds + GRACE_SECONDS):
                work = await crew.agent.work(assignment)
            # An agent hands over what it has when it is cancelled, but then the run is over.
            await anyio.lowlevel.checkpoint_if_cancelled()
            change = parse(await workspace.diff(), base=slot.task.base)
    except BadInput:
        raise
    except Unreadable as error:
        work = msgspec.structs.replace(work, exit="crashed", cause=str(error))
    except Fault as fault:
        work = msgspec.structs.replace(work, exit="machine", cause=str(fault))
    except Exception as error:  # a plug-in may raise anything; the other attempts go on
        cause = f"the agent {crew.agent.name!r} raised {type(error).__name__}: {error}"
        work = msgspec.structs.replace(work, exit="machine", cause=cause)
    return work, change


async def regrade(row: AttemptRow, prepared: Prepared, workshop: Workshop) -> AttemptRow:
    """Grade a kept attempt again, by its kept change."""
    store = workshop.store
    made, trace = store.attempt(row.id), store.trace(row.id)
    change = store.change(row.id) or Change()
    submission = grading.Submission(attempt=made, change=change, trace=trace, proof=prepared.proof)
    grade = await grading.grade(workshop.workspaces, prepared.base, prepared.task, submission)
    store.save_grade(grade)
    return row_of(made, trace, change, grade)


async def keep_leases(workshop: Workshop) -> None:
    """Say now and then that this process is alive, so that nobody takes over its attempts."""
    while True:
        await anyio.sleep(LEASE_SECONDS / 4)
        workshop.store.heartbeat(workshop.owner, LEASE_SECONDS)


def answers(task: Task) -> Callable[[str], str | None]:
    """What the user says when asked, by the task's script."""

    def answer(question: str) -> str | None:
        for pattern, reply in task.answers.items():
            if re.search(pattern, question, re.IGNORECASE | re.DOTALL):
                return reply
        return None

    return answer


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
        skipped=skipped,
        sandbox=guarded(workshop.workspaces),
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


async def check(
    tasks: Sequence[Task], store: Store, workspaces: Workspaces, *, repeats: int, tell: Tell
) -> list[Proof]:
    """Prove each task by its controls, and remember what came of it."""
    proofs = []
    for task in tasks:
        tell(Progress(stage="preparing", task=task.id))
        proof = await grading.prove(workspaces, await base_of(task, workspaces), task, repeats)
        store.save_task(task)
        remember(proof, store)
        tell(Progress(stage="prepared", task=task.id))
        proofs.append(proof)
    return proofs
