"""Plans on one page: sub-agents of `running` do the work, the judges of `judging` weigh it.

    discover ──► plan ──► carry out: work, judge, try again with what was wrong ──► finish
                          (`runs.orchestrate.loop` arranges it, what is here does it)

Every try is kept when it comes back, and every verdict: a plan goes on where it was left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread
from msgspec.structs import replace

from closeloop.attempts.attempt_execution import LEASE_SECONDS, maintain_leases
from closeloop.attempts.attempt_saving import JudgedTry, ResultSaver, recover_batches
from closeloop.attempts.run_resources import RunResources, is_paid_model, sandbox_description
from closeloop.concurrency import unwrap_exception_group
from closeloop.grading.variants import ResolvedVariant
from closeloop.judges.judge_panel import JudgePanel, rubric_for_task
from closeloop.orchestration.plan_execution import (
    WholeChange,
    attempt_subtask,
    build_plan_ending,
    build_together_issues,
    check_whole_change,
    is_finished,
    judge_execution,
    merge_conflict,
    merge_plan_traces,
    scores_from_plan,
    sum_try_usage,
    with_quality_errors,
    with_rule_findings,
)
from closeloop.orchestration.plan_request import PlanBudget, describe_repository, plan_with_model
from closeloop.orchestration.subtask_loop import (
    AcceptedExecutions,
    SubtaskCallbacks,
    SubtaskOrder,
    list_mergeable,
    run_subtasks,
)
from closeloop.process.rulebook import Rulebook
from closeloop.providers.model_opening import find_model_settings
from closeloop.providers.model_prices import find_model_prices
from closeloop.records.attempt import Attempt, Usage, sum_usage
from closeloop.records.errors import BadInput, Fault, unknown_name_error
from closeloop.records.evaluation import EvaluationIssue, JudgeVersion
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.orchestration import (
    Orchestration,
    OrchestrationHistory,
    OrchestrationPlan,
    OrchestrationProgress,
    PlanningRun,
    SubtaskAssessment,
    SubtaskExecution,
    SubtaskTry,
)
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import OrchestrateSettings
from closeloop.records.task import Limits
from closeloop.reviews.agent_context import UpcomingWork
from closeloop.reviews.agent_prompts import (
    ContextProvider,
    clone_repository_name,
    merge_context,
    provide_context,
)
from closeloop.sandbox.workspaces import WorkspaceBase, resolve_commit
from closeloop.sandbox.workspaces.workspace_patches import git_folder, run_own_git
from closeloop.store import Store
from closeloop.store.fact_rows import is_owner_dead
from closeloop.text.patches import parse_patch
from closeloop.text.redaction import redact_record, redact_text

UNSAVED_PLANS = Path(".closeloop/plans")


class OrchestrationContext(Record):
    """The resources a plan is carried out with."""

    store: Store
    tools: RunResources
    judge_panel: JudgePanel
    rules: Rulebook
    orchestrate_settings: OrchestrateSettings
    """With the planner and the workers named."""
    owner: str
    report_progress: Callable[[OrchestrationProgress], None]
    briefing: ContextProvider | None = None
    """Provides team rules to agents, if enabled."""


# Before the work


async def begin_plan(
    request: str | OrchestrationPlan, context: OrchestrationContext, repo: Path | None
) -> Orchestration:
    """Save a plan: as given, or as a model makes it from a request."""
    base = resolve_commit(repo, "HEAD") if repo else None
    summary = await discover_repository(repo, base, context)
    planning = None
    if isinstance(request, str):
        request, planning = await make_plan(redact_text(request, {}), summary, context)
    created_at = datetime.now(UTC)
    plan = Orchestration(
        id=content_digest(request, base, created_at)[:12],
        at=created_at,
        request=request.request,
        tasks=request.plan,
        repo=str(repo) if repo else None,
        base=base,
        about=summary,
        worker=context.orchestrate_settings.workers[0],
        written=context.tools.settings.variants.get(context.orchestrate_settings.workers[0]),
        judges=tuple(judge.model for judge in context.judge_panel.judges),
        planning=planning,
    )
    require_plan_resources(plan, context)
    # Agents get the stored texts: a resumed plan is the same plan.
    plan, _ = redact_record(plan)
    context.store.plans.save_plan(plan)
    return plan


async def discover_repository(
    repo: Path | None, base: str | None, context: OrchestrationContext
) -> str:
    """Describe the repository, as far as that is cheap."""
    if repo is None or base is None:
        return ""
    tree_listing = await run_own_git(git_folder(repo), "ls-tree", "-r", "--name-only", "-z", base)
    return describe_repository(
        [name for name in tree_listing.split("\0") if name], context.tools.settings.commands
    )


async def make_plan(
    request: str, summary: str, context: OrchestrationContext
) -> tuple[OrchestrationPlan, PlanningRun]:
    settings, name = context.tools.settings, context.orchestrate_settings.planner
    if name is None:
        raise BadInput("No model plans: give one with --planner, or set orchestrate.planner.")
    require_model_price(name, context)
    limits = Limits(money=settings.limits.money, tokens=settings.limits.tokens)
    model = find_model_settings(name, settings.models)
    async with context.tools.gateway.open_proxy(name, model, limits, first=True) as proxy:
        return await plan_with_model(proxy, request, summary, context.orchestrate_settings.workers)


def require_plan_resources(plan: Orchestration, context: OrchestrationContext) -> None:
    """BadInput for a plan whose workers or rubrics do not exist, before any cost arises."""
    names = variants_by_name(context.tools)
    for task in plan.tasks:
        if (task.variant or plan.worker) not in names:
            raise unknown_name_error("variant", task.variant or plan.worker, names)
        for judge in context.judge_panel.judges:
            rubric_for_task(task, judge)
    for judge in context.judge_panel.judges:
        require_model_price(judge.model, context)


def require_model_price(name: str, context: OrchestrationContext) -> None:
    """BadInput for a model without a known price, whose cost no budget could count."""
    model = find_model_settings(name, context.tools.settings.models)
    if (
        context.orchestrate_settings.budget is not None
        and is_paid_model(model)
        and find_model_prices(model) is None
    ):
        raise BadInput(f"The budget needs the price of {name!r}: set its prices, or no budget.")


def variants_by_name(tools: RunResources) -> dict[str, ResolvedVariant]:
    """Return the variants by name."""
    return {resolved.variant.name: resolved for resolved in tools.resolved_variants.values()}


# The work


async def continue_plan(plan: Orchestration, context: OrchestrationContext) -> OrchestrationHistory:
    """Continue a plan where it stopped, and return its history."""
    store, job = context.store, plan.job
    require_plan_resources(plan, context)
    base = await prepare_plan_base(plan, context.tools)
    if not store.claim_job(job, context.owner, LEASE_SECONDS, is_owner_dead):
        raise BadInput(f"Another process runs plan {plan.id}: wait for it, or stop it first.")
    recover_batches(store, unsaved_folder(context), plan.id)
    with unwrap_exception_group():
        async with anyio.create_task_group() as group:
            group.start_soon(partial(maintain_leases, store, context.owner, min_leases=1))
            try:
                history = await finish_plan(
                    plan, base, context, await work_on_plan(plan, base, context)
                )
            finally:
                group.cancel_scope.cancel()
                with suppress(Fault):
                    store.release_jobs(context.owner, job)
    return history


def unsaved_folder(context: OrchestrationContext) -> Path:
    return context.tools.root / UNSAVED_PLANS


async def prepare_plan_base(plan: Orchestration, tools: RunResources) -> WorkspaceBase | None:
    if plan.repo is None or plan.base is None:
        return None
    return await tools.workspaces.prepare_base(plan.repo, plan.base, tools.settings.commands.setup)


class SettledTasks(Record):
    """The state of a plan when nothing more can start."""

    stopped: dict[str, str]
    """Tasks that were not started or not continued, with the reason."""
    held: str | None
    """Why nothing more was started."""
    whole: WholeChange | None
    """All changes together, if every task is accepted and they work together."""


async def work_on_plan(
    plan: Orchestration, base: WorkspaceBase | None, plan_context: OrchestrationContext
) -> SettledTasks:
    """Settle every task, and let tasks that break the whole try again."""
    variants, tools = variants_by_name(plan_context.tools), plan_context.tools
    result_saver = ResultSaver(plan_context.store, unsaved_folder(plan_context), plan.id)
    budget = PlanBudget(plan_context.orchestrate_settings, plan.id)
    history = plan_context.store.plans.load_exact_story(plan.id)
    earlier_tries = history.tries
    budget.add_usage(
        sum_usage([sum_try_usage(earlier_tries), plan.planning.usage if plan.planning else Usage()])
    )
    judge_slots = anyio.Semaphore(max(1, plan_context.judge_panel.concurrency))
    judges: dict[str, tuple[JudgeVersion, ...]] = {}
    newest_executions = {
        earlier_try.execution.task: earlier_try.execution for earlier_try in earlier_tries
    }
    known_executions = {**newest_executions}
    sound_changes: list[WholeChange] = []

    async def work(order: SubtaskOrder) -> SubtaskExecution:
        resolved = variants[order.task.variant or plan.worker]
        context = await to_thread.run_sync(
            provide_context, plan_context.briefing, resolved, work_from_order(order)
        )
        result = await attempt_subtask(order, resolved, base, tools, context)
        result = await with_quality_errors(
            with_rule_findings(result, plan_context.rules), order, tools
        )
        budget.add_usage(result.execution.usage)
        await result_saver.save_result(result)
        newest_executions[order.task.id] = result.execution
        return result.execution

    async def judge(execution: SubtaskExecution) -> SubtaskAssessment:
        # A try's base is accepted, so it remains the newest of its task.
        base_patches = [newest_executions[name].patch for name in execution.built_on]
        async with judge_slots:
            assessment, judges[execution.task] = await judge_execution(
                plan, execution, plan_context.judge_panel, tools, base_patches
            )
        budget.add_usage(assessment.evaluation.usage if assessment.evaluation else Usage())
        return assessment

    async def merge(executions: Sequence[SubtaskExecution]) -> str | None:
        return await merge_conflict(executions, base, tools)

    async def check_whole(accepted: AcceptedExecutions) -> dict[str, EvaluationIssue]:
        if is_finished(history) and accepted.items() <= known_executions.items():
            return {}  # already reported when it ended
        sound_change = await check_whole_change(plan, accepted, base, tools)
        issues = build_together_issues(sound_change)
        sound_changes[:] = [] if issues else [sound_change]
        return issues

    async def keep(assessment: SubtaskAssessment) -> None:
        await result_saver.save_result(
            JudgedTry(assessment=assessment, judges=judges.pop(assessment.task, ()))
        )

    callbacks = SubtaskCallbacks(
        work=work,
        judge=judge,
        merge=merge,
        check_whole=check_whole,
        keep=keep,
        find_block_reason=budget.find_block_reason,
        report_progress=plan_context.report_progress,
    )
    known_tries = [reset_unjudged_try(earlier_try) for earlier_try in earlier_tries]
    stopped = await run_subtasks(
        plan, plan_context.orchestrate_settings, callbacks, known_tries, tools.settings.retries
    )
    sound_change = sound_changes[0] if sound_changes else None
    return SettledTasks(stopped=stopped, held=budget.reached, whole=sound_change)


def work_from_order(order: SubtaskOrder) -> UpcomingWork:
    """Describe a try to the team memory; either all tries of a plan receive rules, or none."""
    plan = order.plan
    return UpcomingWork(
        repo=clone_repository_name(plan.repo or ""),
        text=order.brief,
        key=f"{plan.id}/{order.task.id}/{order.number}",
        assignment_key=plan.id,
        names=(plan.repo,) if plan.repo else (),
    )


def reset_unjudged_try(subtask_try: SubtaskTry) -> SubtaskTry:
    """Reset a try without a verdict, so that it is judged again."""
    lacks_verdict = subtask_try.assessment is not None and subtask_try.assessment.passed is None
    return (
        SubtaskTry(execution=subtask_try.execution)
        if lacks_verdict and subtask_try.execution.exit != "machine"
        else subtask_try
    )


# After the work


async def finish_plan(
    plan: Orchestration,
    base: WorkspaceBase | None,
    context: OrchestrationContext,
    settled: SettledTasks,
) -> OrchestrationHistory:
    """Judge the whole, and save one attempt with the joined trace and the merged change."""
    store, block_reason = context.store, settled.held
    history = store.plans.load_exact_story(plan.id)
    if is_finished(history):
        return store.plans.load_story(plan.id)
    whole_change = settled.whole or await check_whole_change(
        plan, list_mergeable(plan, history), base, context.tools
    )
    plan_ending = build_plan_ending(
        history, settled.stopped, block_reason, whole_change.checks, whole_change.broken_by
    )
    worker = variants_by_name(context.tools)[plan.worker].variant
    try_marks = [
        (
            subtask_try.execution.task,
            subtask_try.execution.number,
            subtask_try.assessment and subtask_try.assessment.at,
        )
        for subtask_try in history.tries
    ]
    attempt = Attempt(
        id=content_digest("plan", plan.id, try_marks, plan_ending.summary, whole_change.checks)[
            :12
        ],
        origin="production",
        task=f"plan-{plan.id}",
        variant=worker.digest,
        started=plan.at,
        ended=plan_ending.at,
        exit="out_of_budget" if block_reason else "finished",
        cause=block_reason,
        usage=plan_ending.usage,
        summary=plan_ending.summary,
        sandbox=sandbox_description(context.tools.workspaces),
        repo=plan.repo,
        links={"plan": plan.id},
    )
    trace, _ = redact_record(
        merge_plan_traces(history, store.plans.load_traces(plan.id), plan_ending)
    )
    store.save_variant(worker)
    store.save_attempt(
        AttemptResult(
            attempt=attempt, trace=trace, change=parse_patch(whole_change.patch, base=plan.base)
        )
    )
    plan_ending = replace(plan_ending, attempt=attempt.id)
    store.scores.add_scores(scores_from_plan(history, plan_ending))
    store.plans.save_ending(plan, plan_ending)
    merge_context(store, clone_repository_name(plan.repo or ""), f"{plan.id}/", attempt.id)
    return store.plans.load_story(plan.id)
