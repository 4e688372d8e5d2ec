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

from closeloop.attempts import attempt_saving
from closeloop.attempts.attempt_execution import (
    LEASE_SECONDS,
    AttemptExecutor,
    AttemptPacer,
    attempt_identity,
    maintain_leases,
    open_executor,
)
from closeloop.attempts.attempt_saving import (
    ATTEMPTS_FOLDER,
    pick_fault_to_report,
    recover_batches,
    save_attempt_result,
)
from closeloop.attempts.experiment_status import forecast_run, require_prices
from closeloop.attempts.run_resources import (
    RunResources,
    describe_sandbox,
    open_run_resources,
    open_workspaces,
    prepare_task_base,
    sandbox_description,
)
from closeloop.concurrency import run_limited, unwrap_exception_group
from closeloop.grading import grading
from closeloop.grading import task_proof as proving
from closeloop.metrics.attempt_measuring import measure_attempts, project_rulebook
from closeloop.process.rulebook import Rulebook
from closeloop.records.attempt import AttemptRow, Proof
from closeloop.records.change import Change
from closeloop.records.errors import BadInput, Fault, unknown_name_error
from closeloop.records.experiment_plan import (
    AttemptOrder,
    ExperimentForecast,
    ExperimentPlan,
    ExperimentResults,
    RunMode,
    RunProgress,
    ScheduledAttempt,
    SlotPlace,
)
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import ExperimentSettings, Settings
from closeloop.records.task import Experiment, Task
from closeloop.reviews.agent_context import UpcomingWork
from closeloop.reviews.agent_prompts import (
    ContextProvider,
    clone_repository_name,
    open_context_provider,
    provide_context,
)
from closeloop.sandbox.workspaces import WorkspacePool, resolve_commit
from closeloop.store import Store, make_attempt_row
from closeloop.store.job_leases import current_owner, is_owner_dead
from closeloop.store.store_opening import open_existing_store, open_project_store
from closeloop.tasks.task_files import load_tasks
from closeloop.text.redaction import redact_grade, redact_proof

__all__ = [
    "ProgressCallback",
    "RunContext",
    "RunProgress",
    "collect_results",
    "describe_sandbox",
    "forecast_missing",
    "open_existing_store",
    "open_project_store",
    "open_run_context",
    "open_workspaces",
    "plan_experiment",
    "prove_tasks",
    "run_experiment",
    "sandbox_description",
    "select_tasks",
]


class RunContext(Record):
    """What the work is done with, opened once."""

    store: Store
    tools: RunResources
    retries: int
    rules: Rulebook
    owner: str
    briefing: ContextProvider | None = None
    """What agents are told of what reviewers taught, where they are."""


class RunState(Record):
    """A plan under way."""

    workshop: RunContext
    executor: AttemptExecutor
    pace: AttemptPacer
    mode: RunMode
    tell: ProgressCallback
    faults: list[Fault] = []
    """What went wrong: nothing more is begun then; what is under way is paid for, and ends."""


ProgressCallback = Callable[[RunProgress], None]


@asynccontextmanager
async def open_run_context(
    settings: Settings, root: Path, variants: Sequence[str], environ: Mapping[str, str]
) -> AsyncIterator[RunContext]:
    """Open the store, and what attempts are made with; everything is closed again at the end."""
    async with AsyncExitStack() as opened:
        store = opened.enter_context(open_project_store(settings, root))
        recover_batches(store, root / ATTEMPTS_FOLDER)
        resources_opening = open_run_resources(
            settings, root, variants, environ, lambda name: tuple(store.load_exchanges(name))
        )
        tools = await opened.enter_async_context(resources_opening)
        yield RunContext(
            store=store,
            tools=tools,
            retries=settings.retries,
            rules=project_rulebook(settings),
            owner=current_owner(),
            briefing=open_context_provider(store, settings, root, environ),
        )


def select_tasks(settings: Settings, root: Path, names: Sequence[str]) -> list[Task]:
    """The project's tasks, or those named: by id, or by file."""
    files = [Path(name) for name in names if name.endswith(".md")]
    ids = [name for name in names if not name.endswith(".md")]
    chosen = load_tasks(files, root, resolve_commit) if files else []
    if ids or not files:
        known = {task.id: task for task in load_tasks(root / settings.tasks, root, resolve_commit)}
        for name in ids:
            if name not in known:
                raise unknown_name_error("task", name, known)
        chosen += [known[name] for name in ids or known]
    return list({task.id: task for task in chosen}.values())


def plan_experiment(
    workshop: RunContext, tasks: Sequence[Task], wanted: ExperimentSettings, name: str | None = None
) -> ExperimentPlan:
    """An experiment over those tasks and all variants of the workshop, written down."""
    crews = workshop.tools.crews
    require_prices(wanted.budget, crews)
    variants = tuple(crew.variant for crew in crews.values())
    digests = tuple(task.digest for task in tasks), tuple(variant.digest for variant in variants)
    experiment = Experiment(
        id=content_digest(*digests, wanted.repeats)[:12],
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
    return ExperimentPlan(experiment=experiment, tasks=tuple(tasks), variants=variants)


def forecast_missing(
    plan: ExperimentPlan, workshop: RunContext, mode: RunMode, jobs: int
) -> ExperimentForecast:
    """What the attempts that this plan still lacks will take, and what all of it will show."""
    last_by_place = last_attempts(plan, workshop.store)
    missing = [
        slot for slot in plan.list_slots() if is_attempt_due(last_by_place.get(slot.place), mode)
    ]
    return forecast_run(plan, missing, workshop.tools.crews, workshop.store, jobs)


async def run_experiment(
    plan: ExperimentPlan,
    workshop: RunContext,
    *,
    tell: ProgressCallback,
    jobs: int | None = None,
    mode: RunMode = "fill",
) -> None:
    """Fill every slot of the plan, `jobs` at a time. What is already filled is left as it is."""
    proofs: dict[str, Proof] = {}
    last_by_place = last_attempts(plan, workshop.store)
    crews = workshop.tools.crews.items()

    async def prepare_one(task: Task) -> None:
        tell(RunProgress(stage="preparing", task=task.id))
        proof = await prepare_task(task, workshop)
        if proof.state == "unproved":
            tell(RunProgress(stage="skipped", task=task.id, why=proof.reasons[0]))
        else:
            proofs[task.id] = proof
            tell(RunProgress(stage="prepared", task=task.id))

    async with open_executor(plan, workshop.tools) as executor:
        pace = AttemptPacer(plan.experiment, workshop.store)
        run_state = RunState(workshop=workshop, executor=executor, pace=pace, mode=mode, tell=tell)

        def is_wanted(slot: ScheduledAttempt) -> bool:
            return slot.task.id in proofs and (mode == "fill" or slot.place in last_by_place)

        async def run_one_slot(slot: ScheduledAttempt) -> None:
            if run_state.faults:
                return
            try:
                await run_slot(slot, proofs[slot.task.id], last_by_place.get(slot.place), run_state)
            except Fault as fault:
                run_state.faults.append(fault)

        await run_limited(plan.tasks, prepare_one, jobs=jobs or executor.places)
        with unwrap_exception_group():
            async with anyio.create_task_group() as group:
                group.start_soon(maintain_leases, workshop.store, workshop.owner)
                try:
                    await run_limited(
                        [slot for slot in plan.shuffle_slots() if is_wanted(slot)],
                        run_one_slot,
                        jobs=jobs or executor.places,
                        lane=lambda slot: slot.variant.digest,
                        room={key: crew.written.jobs for key, crew in crews if crew.written.jobs},
                    )
                    if run_state.faults:
                        raise pick_fault_to_report(run_state.faults)
                finally:
                    group.cancel_scope.cancel()
                    with suppress(Fault):
                        workshop.store.release_jobs(workshop.owner)


async def prepare_task(task: Task, workshop: RunContext) -> Proof:
    """The task's base tree, and what its tests say there: made once, then remembered."""
    tools, store = workshop.tools, workshop.store
    try:
        base = tools.bases[task.digest] = await prepare_task_base(task, tools.workspaces)
    except BadInput as fault:
        return proving.unready_proof(task, fault)
    proof = await to_thread.run_sync(store.load_proof, task.grading)
    if proof is None or proof.version != proving.GRADER_VERSION:
        proof = await proving.check_gradable(tools.workspaces, base, task)
        # What is wrong may lie outside the task, such as a tool that is not installed yet.
        if proof.state != "unproved":
            await to_thread.run_sync(save_usable_proof, proof, store)
    return proof


def save_usable_proof(proof: Proof, store: Store) -> None:
    """Keep a proof; but what the machine spoiled today may be well tomorrow."""
    test_runs = (proof.before, proof.reference)
    if not any(run is not None and run.trouble is not None for run in test_runs):
        store.save_proof(redact_proof(proof))


async def run_slot(
    slot: ScheduledAttempt, proof: Proof, row: AttemptRow | None, going: RunState
) -> None:
    """Fill one slot, given its last try: begun again only while the machine failed it."""
    workshop, tell = going.workshop, going.tell
    if row is not None and not is_attempt_due(row, going.mode):
        if wants_grading(row, slot.task, going.mode):
            row = await regrade_attempt(row, slot.task, proof, workshop)
        tell(slot.progress_event("settled", row))
        return
    first = 0 if row is None else row.retry + 1
    for retry in range(first, first + workshop.retries + 1):
        # In a thread: attempts under way go on while this one waits for the database.
        is_claimed, why = await to_thread.run_sync(claim_slot, slot, retry, going)
        if not is_claimed:
            tell(
                slot.progress_event("held", row, why)
                if why is not None
                else slot.progress_event("elsewhere")
            )
            return
        tell(slot.progress_event("started"))
        order = AttemptOrder(slot=slot, retry=retry, parent=row.id if row else None, proof=proof)
        result = await going.executor.make(
            await to_thread.run_sync(with_agent_context, order, workshop)
        )
        unsaved_folder = workshop.tools.root / ATTEMPTS_FOLDER
        saved_result = await save_attempt_result(
            result, slot.task, workshop.store, order.key, unsaved_folder
        )
        # None when this process slept so long that another one took over and was first.
        row = (
            make_attempt_row(
                saved_result.attempt, saved_result.trace, saved_result.change, saved_result.grade
            )
            if saved_result
            else None
        )
        if result.mend is not None:
            going.pace.mark_broken(slot.variant.digest, result.mend)
        if row is None or row.exit != "machine" or result.mend is not None or going.faults:
            break
    tell(slot.progress_event("settled" if row else "elsewhere", row))


def claim_slot(slot: ScheduledAttempt, retry: int, going: RunState) -> tuple[bool, str | None]:
    """Whether this process may begin an attempt; else why it is held back, where it is."""
    store, owner = going.workshop.store, going.workshop.owner
    if (why := going.pace.block_reason(slot.variant.digest)) is not None:
        store.events.add([attempt_saving.blocked_event(slot, why)])
        return False, why
    if not store.claim_job(slot.job_key(retry), owner, LEASE_SECONDS, is_owner_dead):
        return False, None
    store.events.add([attempt_saving.started_event(slot, retry)])
    return True, None


def with_agent_context(one: AttemptOrder, workshop: RunContext) -> AttemptOrder:
    """With what reviewers taught, where agents are told; all who try a task are, or none is."""
    task = one.slot.task
    if workshop.briefing is None or task.repo is None:
        return one
    work = UpcomingWork(
        repo=clone_repository_name(task.repo),
        text=task.prompt,
        scope=task.scope,
        key=attempt_identity(one)["id"],
        lot=task.id,
        names=(task.repo,),
    )
    context = provide_context(
        workshop.briefing, workshop.tools.crews[one.slot.variant.digest], work
    )
    return replace(one, slot=replace(one.slot, context=context))


def is_attempt_due(row: AttemptRow | None, mode: RunMode) -> bool:
    """Whether a slot wants an attempt, given its last try."""
    match mode:
        case "fill":
            return row is None or row.exit == "machine"
        case "unscored":
            return row is not None and row.outcome not in ("pass", "fail")
        case "regrade":
            return False


def wants_grading(row: AttemptRow, task: Task, mode: RunMode) -> bool:
    """Graded never, in another way, by an older grader, without success, or as we are asked to."""
    if row.exit == "machine" or mode == "regrade":
        return row.exit != "machine"
    current = row.grading == task.grading and row.version == proving.GRADER_VERSION
    return not current or row.outcome not in ("pass", "fail")


async def regrade_attempt(
    row: AttemptRow, task: Task, proof: Proof, workshop: RunContext
) -> AttemptRow:
    """Grade a kept attempt again, by its kept change."""
    store, tools = workshop.store, workshop.tools
    attempt, trace, _ = await to_thread.run_sync(store.load_attempt_parts, row.id)
    change = await to_thread.run_sync(store.load_exact_change, row.id) or Change()
    submission = grading.GradedSubmission(attempt=attempt, change=change, trace=trace, proof=proof)
    grade = await grading.grade_attempt(
        tools.workspaces, tools.bases[task.digest], task, submission
    )
    grade = redact_grade(grade)
    await to_thread.run_sync(store.save_grade, grade)
    return make_attempt_row(attempt, trace, change, grade)


def collect_results(
    plan: ExperimentPlan, workshop: RunContext, skipped: dict[str, str]
) -> ExperimentResults:
    """What the store now holds of a plan, and what the rules say of it."""
    last_by_place = last_attempts(plan, workshop.store)
    rows = [last_by_place[slot.place] for slot in plan.list_slots() if slot.place in last_by_place]
    measured_attempts = measure_attempts(workshop.store, rows, workshop.rules)
    return ExperimentResults(
        experiment=plan.experiment.id,
        tasks=plan.tasks,
        variants=plan.variants,
        attempts=tuple(rows),
        measurements={one.row.id: one.measurement for one in measured_attempts},
        insights=tuple(workshop.store.course.list_attempt_insights([row.id for row in rows])),
        skipped=skipped,
        sandbox=sandbox_description(workshop.tools.workspaces),
    )


def last_attempts(plan: ExperimentPlan, store: Store) -> dict[SlotPlace, AttemptRow]:
    """The last try of every slot that has one, as it is graded now."""
    rows = store.list_attempts(
        task_digests=plan.experiment.tasks,
        variants=plan.experiment.variants,
        gradings=[task.grading for task in plan.tasks],
    )
    rows.sort(key=lambda row: row.retry)
    return {(row.task_digest, row.variant, row.number): row for row in rows}


async def prove_tasks(
    tasks: Sequence[Task],
    store: Store,
    workspaces: WorkspacePool,
    *,
    repeats: int,
    tell: ProgressCallback,
) -> list[Proof]:
    """Prove each task by its controls, and remember what came of it."""
    proofs = []
    for task in tasks:
        tell(RunProgress(stage="preparing", task=task.id))
        try:
            base = await prepare_task_base(task, workspaces)
            proof = await proving.prove_task(workspaces, base, task, repeats)
            save_usable_proof(proof, store)
        except BadInput as fault:
            proof = proving.unready_proof(task, fault)
        store.save_task(task)
        tell(RunProgress(stage="prepared", task=task.id))
        proofs.append(proof)
    return proofs
