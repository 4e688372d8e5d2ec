"""Run an experiment: plan it, prepare its tasks, and fill every slot with a graded attempt.

A slot is one task, one variant and one repeat. It is leased while an attempt at it is made, so that
several processes may fill one plan, and tried again only where the machine failed it. Nothing here
is undone by a kill: an attempt is stored whole, in one transaction, or not at all.
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
    attempt_id,
    default_job_count,
    maintain_leases,
    open_executor,
)
from closeloop.attempts.attempt_saving import (
    ATTEMPTS_FOLDER,
    pick_fault_to_report,
    recover_batches,
    save_attempt_result,
)
from closeloop.attempts.run_resources import (
    ProgressCallback,
    RunResources,
    forecast_run,
    open_run_resources,
    prepare_task,
    require_prices,
    sandbox_description,
)
from closeloop.concurrency import WorkPlace, run_in_places, run_limited, unwrap_exception_group
from closeloop.grading import grading, task_proof
from closeloop.grading.variants import ResolvedVariant
from closeloop.records.attempt import AttemptRow, Proof
from closeloop.records.change import Change
from closeloop.records.errors import Fault
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
from closeloop.records.finding import Measurement
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import ExperimentSettings, Settings
from closeloop.records.task import Experiment, Task
from closeloop.store import Store, make_attempt_row
from closeloop.store.fact_rows import current_owner, is_owner_dead
from closeloop.store.metrics_section import AttemptSpan
from closeloop.store.store import open_project_store
from closeloop.text.redaction import redact_grade

AgentBriefing = Callable[[Task, ResolvedVariant, str], str]
"""Returns an agent's context besides its task; also receives the attempt's id."""


def tell_nothing(task: Task, resolved_variant: ResolvedVariant, attempt: str) -> str:
    """Return an empty context."""
    return ""


class RunContext(Record):
    """The resources of a run, opened once."""

    store: Store
    tools: RunResources
    retries: int
    owner: str


class RunState(Record):
    """A running plan."""

    plan: ExperimentPlan
    context: RunContext
    executor: AttemptExecutor
    pace: AttemptPacer
    mode: RunMode
    report_progress: ProgressCallback
    brief: AgentBriefing = tell_nothing
    jobs: int = 1
    last_attempts: Mapping[SlotPlace, AttemptRow] = {}
    """The last try of every slot that had one when the run began."""
    faults: list[Fault] = []
    """Faults; after one nothing more starts, but attempts in progress finish."""


class TaskPreparations:
    """Which tasks of a plan are prepared, and why others cannot be run."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.proofs: dict[str, Proof] = {}
        """Test results before any change, by task id."""
        self.skipped: dict[str, str] = {}
        """Reasons by task id."""
        self._ended = {task.id: anyio.Event() for task in tasks}

    def end_event(self, slot: ScheduledAttempt) -> anyio.Event:
        """Return the event that is set when it is known whether the slot's task can be run."""
        return self._ended[slot.task.id]

    def mark_ended(self, task: Task) -> None:
        self._ended[task.id].set()


@asynccontextmanager
async def open_run_context(
    settings: Settings, root: Path, variants: Sequence[str], environ: Mapping[str, str]
) -> AsyncIterator[RunContext]:
    """Open the store and the resources of attempts; everything is closed at the end."""
    async with AsyncExitStack() as exit_stack:
        store = exit_stack.enter_context(open_project_store(settings, root))
        recover_batches(store, root / ATTEMPTS_FOLDER)
        resources_opening = open_run_resources(
            settings, root, variants, environ, lambda name: tuple(store.load_exchanges(name))
        )
        tools = await exit_stack.enter_async_context(resources_opening)
        yield RunContext(store=store, tools=tools, retries=settings.retries, owner=current_owner())


def plan_experiment(
    context: RunContext, tasks: Sequence[Task], options: ExperimentSettings, name: str | None = None
) -> ExperimentPlan:
    """Save an experiment over those tasks and all variants of the context."""
    resolved_variants = context.tools.resolved_variants
    require_prices(options.budget, resolved_variants)
    variants = tuple(resolved.variant for resolved in resolved_variants.values())
    digests = tuple(task.digest for task in tasks), tuple(variant.digest for variant in variants)
    experiment = Experiment(
        id=content_digest(*digests, options.repeats)[:12],
        tasks=digests[0],
        variants=digests[1],
        repeats=options.repeats,
        name=name,
        seed=options.seed or 0,
        feedback=options.feedback,
        budget=options.budget,
    )
    for resolved_variant in resolved_variants.values():
        context.store.save_prompt(resolved_variant.prompt)
        context.store.save_variant(resolved_variant.variant)
    for task in tasks:
        context.store.save_task(task)
    context.store.save_experiment(experiment)
    return ExperimentPlan(experiment=experiment, tasks=tuple(tasks), variants=variants)


def forecast_missing(
    plan: ExperimentPlan, context: RunContext, mode: RunMode, jobs: int | None
) -> ExperimentForecast:
    """Forecast the missing attempts of this plan, and what the whole plan will show."""
    last_by_place = last_attempts(plan, context.store)
    missing = [
        slot for slot in plan.list_slots() if is_attempt_due(last_by_place.get(slot.place), mode)
    ]
    return forecast_run(
        plan, missing, context.tools.resolved_variants, context.store, jobs or default_job_count()
    )


@asynccontextmanager
async def open_run(
    plan: ExperimentPlan,
    context: RunContext,
    report_progress: ProgressCallback,
    jobs: int | None = None,
    mode: RunMode = "fill",
    make_context: AgentBriefing = tell_nothing,
) -> AsyncIterator[RunState]:
    """Start the executor that makes a plan's attempts, `jobs` at a time."""
    last_by_slot = last_attempts(plan, context.store)
    async with open_executor(plan, context.tools) as executor:
        yield RunState(
            plan=plan,
            context=context,
            executor=executor,
            pace=AttemptPacer(plan.experiment, context.store),
            mode=mode,
            report_progress=report_progress,
            brief=make_context,
            jobs=jobs or executor.places,
            last_attempts=last_by_slot,
        )


async def run_attempts(run: RunState) -> dict[str, str]:
    """Prepare every task, and fill its slots at once; return why tasks were skipped, by id.

    Filled slots are left unchanged.
    """
    preparations = TaskPreparations(run.plan.tasks)
    with unwrap_exception_group():
        async with anyio.create_task_group() as group:
            group.start_soon(maintain_leases, run.context.store, run.context.owner)
            try:
                async with anyio.create_task_group() as work:
                    work.start_soon(prepare_tasks, preparations, run)
                    work.start_soon(fill_slots, preparations, run)
                if run.faults:
                    raise pick_fault_to_report(run.faults)
            finally:
                group.cancel_scope.cancel()
                with suppress(Fault):
                    run.context.store.release_jobs(run.context.owner)
    return preparations.skipped


async def prepare_tasks(preparations: TaskPreparations, run: RunState) -> None:
    """Prepare every task of the plan; those that cannot be graded are skipped."""

    async def prepare_one(task: Task) -> None:
        try:
            if not run.faults:
                await _prepare_task(task, preparations, run)
        except Fault as fault:
            run.faults.append(fault)
        finally:
            preparations.mark_ended(task)

    await run_limited(run.plan.tasks, prepare_one, jobs=run.jobs)


async def _prepare_task(task: Task, preparations: TaskPreparations, run: RunState) -> None:
    run.report_progress(RunProgress(stage="preparing", task=task.id))
    proof = await prepare_task(task, run.context.tools, run.context.store)
    if proof.state == "unproved":
        preparations.skipped[task.id] = proof.reasons[0]
        run.report_progress(RunProgress(stage="skipped", task=task.id, why=proof.reasons[0]))
    else:
        preparations.proofs[task.id] = proof
        run.report_progress(RunProgress(stage="prepared", task=task.id))


async def fill_slots(preparations: TaskPreparations, run: RunState) -> None:
    """Fill every slot once its task is prepared."""
    resolved_variants = run.context.tools.resolved_variants.items()

    async def run_one_slot(slot: ScheduledAttempt, place: WorkPlace) -> None:
        proof = preparations.proofs.get(slot.task.id)
        if run.faults or proof is None:
            return
        try:
            await run_slot(slot, proof, run.last_attempts.get(slot.place), run, place)
        except Fault as fault:
            run.faults.append(fault)

    await run_in_places(
        [
            slot
            for slot in run.plan.shuffle_slots()
            if run.mode in ("fill", "all") or slot.place in run.last_attempts
        ],
        run_one_slot,
        jobs=run.jobs,
        lane=lambda slot: slot.variant.digest,
        limits_by_lane={
            key: resolved.written.jobs
            for key, resolved in resolved_variants
            if resolved.written.jobs
        },
        ready=preparations.end_event,
    )


async def run_slot(
    slot: ScheduledAttempt,
    proof: Proof,
    last_row: AttemptRow | None,
    run: RunState,
    place: WorkPlace,
) -> None:
    """Fill one slot, given its last try; retried only after machine faults.

    The next agent begins while the work of this one is graded.
    """
    context, report_progress = run.context, run.report_progress
    if last_row is not None and not is_attempt_due(last_row, run.mode):
        if wants_grading(last_row, slot.task, run.mode):
            last_row = await regrade_attempt(last_row, slot.task, proof, context)
        report_progress(slot.progress_event("settled", last_row))
        return
    first_retry = 0 if last_row is None else last_row.retry + 1
    for retry in range(first_retry, first_retry + context.retries + 1):
        # In a thread: attempts under way go on while this one waits for the database.
        order = AttemptOrder(
            slot=slot, retry=retry, parent=last_row.id if last_row else None, proof=proof
        )
        claimed_order, block_reason = await to_thread.run_sync(claim_slot, order, run)
        if claimed_order is None:
            report_progress(
                slot.progress_event("held", last_row, block_reason)
                if block_reason is not None
                else slot.progress_event("elsewhere")
            )
            return
        report_progress(slot.progress_event("started"))

        async def end_agent_work(cost: float | None, key: str = order.key) -> None:
            run.pace.add_unsaved_cost(key, cost)
            await place.give_back()

        result = await run.executor.make(claimed_order, end_agent_work)
        unsaved_folder = context.tools.root / ATTEMPTS_FOLDER
        # None when this process slept so long that another one took over and was first.
        last_row = await save_attempt_result(
            result, slot.task, context.store, order.key, unsaved_folder
        )
        run.pace.remove_unsaved_cost(order.key)
        if result.mend is not None:
            run.pace.mark_broken(slot.variant.digest, result.mend)
        if last_row is None or last_row.exit != "machine" or result.mend is not None or run.faults:
            break
    report_progress(slot.progress_event("settled" if last_row else "elsewhere", last_row))


def claim_slot(
    order: AttemptOrder, run: RunState
) -> tuple[AttemptOrder, None] | tuple[None, str | None]:
    """Return the order with its agent's context, if this process may begin it.

    Otherwise None and why it is blocked; None as well if another process has it.
    """
    store, slot, owner = run.context.store, order.slot, run.context.owner
    if (block_reason := run.pace.block_reason(slot.variant.digest)) is not None:
        store.events.add([attempt_saving.blocked_event(slot, block_reason)])
        return None, block_reason
    events = [attempt_saving.started_event(slot, order.retry)]
    if not store.claim_job(order.key, owner, LEASE_SECONDS, is_owner_dead, events):
        return None, None
    return with_agent_context(order, run), None


def with_agent_context(order: AttemptOrder, run: RunState) -> AttemptOrder:
    """Add the agent's context to an order."""
    if run.brief is tell_nothing:
        return order
    slot = order.slot
    resolved_variant = run.context.tools.resolved_variants[slot.variant.digest]
    context = run.brief(slot.task, resolved_variant, attempt_id(order))
    return replace(order, slot=replace(slot, context=context))


def is_attempt_due(row: AttemptRow | None, mode: RunMode) -> bool:
    """Whether a slot needs an attempt, given its last try."""
    match mode:
        case "fill":
            return row is None or row.exit == "machine"
        case "all":
            return True
        case "unscored":
            return row is not None and row.is_unscored
        case "grades":
            return False


def wants_grading(row: AttemptRow, task: Task, mode: RunMode) -> bool:
    """Whether it was never graded, graded in another way, by an older grader or without success, or
    grading was requested."""
    if row.exit == "machine" or mode == "grades":
        return row.exit != "machine"
    current = row.grading == task.grading and row.version == task_proof.GRADER_VERSION
    return not current or row.is_unscored


async def regrade_attempt(
    row: AttemptRow, task: Task, proof: Proof, context: RunContext
) -> AttemptRow:
    """Grade a stored attempt again, by its stored change."""
    store, tools = context.store, context.tools
    attempt, trace, _ = await to_thread.run_sync(store.load_attempt_parts, row.id)
    change = await to_thread.run_sync(store.load_exact_change, row.id) or Change()
    submission = grading.GradedSubmission(attempt=attempt, change=change, trace=trace, proof=proof)
    grade = await grading.grade_attempt(
        tools.workspaces, tools.bases[task.digest], task, submission
    )
    grade = redact_grade(grade)
    await to_thread.run_sync(store.save_grade, grade)
    return make_attempt_row(attempt, trace, change, grade)


def last_attempts(plan: ExperimentPlan, store: Store) -> dict[SlotPlace, AttemptRow]:
    """Return the last try of every slot that has one, with its current grade."""
    rows = store.list_attempts(
        task_digests=plan.experiment.tasks,
        variants=plan.experiment.variants,
        gradings=[task.grading for task in plan.tasks],
    )
    rows.sort(key=lambda row: row.retry)
    return {(row.task_digest, row.variant, row.number): row for row in rows}


def list_plan_attempts(plan: ExperimentPlan, store: Store) -> list[AttemptRow]:
    """Return the last try of every slot that has one, in the order of the plan."""
    last_by_place = last_attempts(plan, store)
    return [last_by_place[slot.place] for slot in plan.list_slots() if slot.place in last_by_place]


def collect_results(
    plan: ExperimentPlan,
    context: RunContext,
    attempts: Sequence[AttemptRow],
    measurements: Mapping[str, Measurement],
    skipped: Mapping[str, str],
) -> ExperimentResults:
    """Collect the stored results of a plan, with the measurements of its attempts."""
    ids = [row.id for row in attempts]
    return ExperimentResults(
        experiment=plan.experiment.id,
        tasks=plan.tasks,
        variants=plan.variants,
        attempts=tuple(attempts),
        measurements=dict(measurements),
        insights=tuple(context.store.experiments.list_attempt_insights(ids)),
        skipped=dict(skipped),
        sandbox=sandbox_description(context.tools.workspaces),
        would_merge=context.store.scores.load_merging_shares(
            AttemptSpan(variants=plan.experiment.variants)
        ),
    )
