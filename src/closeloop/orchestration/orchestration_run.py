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
    bench: JudgePanel
    rules: Rulebook
    terms: OrchestrateSettings
    """With the planner and the workers named."""
    owner: str
    tell: Callable[[OrchestrationProgress], None]
    briefing: ContextProvider | None = None
    """Provides team rules to agents, if enabled."""


# Before the work


async def begin_plan(
    request: str | OrchestrationPlan, means: OrchestrationContext, repo: Path | None
) -> Orchestration:
    """Save a plan: as given, or as a model makes it from a request."""
    base = resolve_commit(repo, "HEAD") if repo else None
    summary = await discover_repository(repo, base, means)
    planning = None
    if isinstance(request, str):
        request, planning = await make_plan(redact_text(request, {}), summary, means)
    at = datetime.now(UTC)
    plan = Orchestration(
        id=content_digest(request, base, at)[:12],
        at=at,
        request=request.request,
        tasks=request.plan,
        repo=str(repo) if repo else None,
        base=base,
        about=summary,
        worker=means.terms.workers[0],
        written=means.tools.settings.variants.get(means.terms.workers[0]),
        judges=tuple(judge.model for judge in means.bench.judges),
        planning=planning,
    )
    require_plan_resources(plan, means)
    # Agents are given what is written down: a plan that goes on later is the same plan.
    plan, _ = redact_record(plan)
    means.store.plans.save_plan(plan)
    return plan


async def discover_repository(
    repo: Path | None, base: str | None, means: OrchestrationContext
) -> str:
    """Describe the repository, as far as that is cheap."""
    if repo is None or base is None:
        return ""
    tree_listing = await run_own_git(git_folder(repo), "ls-tree", "-r", "--name-only", "-z", base)
    return describe_repository(
        [name for name in tree_listing.split("\0") if name], means.tools.settings.commands
    )


async def make_plan(
    request: str, known: str, means: OrchestrationContext
) -> tuple[OrchestrationPlan, PlanningRun]:
    settings, name = means.tools.settings, means.terms.planner
    if name is None:
        raise BadInput("No model plans: give one with --planner, or set orchestrate.planner.")
    require_model_price(name, means)
    limits = Limits(money=settings.limits.money, tokens=settings.limits.tokens)
    model = find_model_settings(name, settings.models)
    async with means.tools.gateway.open_proxy(name, model, limits, first=True) as door:
        return await plan_with_model(door, request, known, means.terms.workers)


def require_plan_resources(plan: Orchestration, means: OrchestrationContext) -> None:
    """BadInput for a plan whose workers or rubrics do not exist, before any cost arises."""
    names = variants_by_name(means.tools)
    for task in plan.tasks:
        if (task.variant or plan.worker) not in names:
            raise unknown_name_error("variant", task.variant or plan.worker, names)
        for judge in means.bench.judges:
            rubric_for_task(task, judge)
    for judge in means.bench.judges:
        require_model_price(judge.model, means)


def require_model_price(name: str, means: OrchestrationContext) -> None:
    """BadInput for a model without a known price, whose cost no budget could count."""
    model = find_model_settings(name, means.tools.settings.models)
    if means.terms.budget is not None and is_paid_model(model) and find_model_prices(model) is None:
        raise BadInput(f"The budget needs the price of {name!r}: set its prices, or no budget.")


def variants_by_name(tools: RunResources) -> dict[str, ResolvedVariant]:
    """Return the variants by name."""
    return {crew.variant.name: crew for crew in tools.crews.values()}


# The work


async def continue_plan(plan: Orchestration, means: OrchestrationContext) -> OrchestrationHistory:
    """Continue a plan where it stopped, and return its history."""
    store, job = means.store, plan.job
    require_plan_resources(plan, means)
    base = await prepare_plan_base(plan, means.tools)
    if not store.claim_job(job, means.owner, LEASE_SECONDS, is_owner_dead):
        raise BadInput(f"Another process runs plan {plan.id}: wait for it, or stop it first.")
    recover_batches(store, unsaved_folder(means), plan.id)
    with unwrap_exception_group():
        async with anyio.create_task_group() as group:
            group.start_soon(partial(maintain_leases, store, means.owner, least=1))
            try:
                story = await finish_plan(plan, base, means, await work_on_plan(plan, base, means))
            finally:
                group.cancel_scope.cancel()
                with suppress(Fault):
                    store.release_jobs(means.owner, job)
    return story


def unsaved_folder(means: OrchestrationContext) -> Path:
    return means.tools.root / UNSAVED_PLANS


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
    plan: Orchestration, base: WorkspaceBase | None, means: OrchestrationContext
) -> SettledTasks:
    """Settle every task, and let tasks that break the whole try again."""
    crews, tools = variants_by_name(means.tools), means.tools
    result_saver = ResultSaver(means.store, unsaved_folder(means), plan.id)
    bounds = PlanBudget(means.terms, plan.id)
    earlier = means.store.plans.load_exact_story(plan.id)
    earlier_tries = earlier.tries
    bounds.add_usage(
        sum_usage([sum_try_usage(earlier_tries), plan.planning.usage if plan.planning else Usage()])
    )
    places = anyio.Semaphore(max(1, means.bench.concurrency))
    judges: dict[str, tuple[JudgeVersion, ...]] = {}
    newest = {earlier_try.execution.task: earlier_try.execution for earlier_try in earlier_tries}
    known_executions = {**newest}
    sound_wholes: list[WholeChange] = []

    async def work(order: SubtaskOrder) -> SubtaskExecution:
        crew = crews[order.task.variant or plan.worker]
        context = await to_thread.run_sync(
            provide_context, means.briefing, crew, work_from_order(order)
        )
        tried = await attempt_subtask(order, crew, base, tools, context)
        tried = await with_quality_errors(with_rule_findings(tried, means.rules), order, tools)
        bounds.add_usage(tried.execution.usage)
        await result_saver.save_result(tried)
        newest[order.task.id] = tried.execution
        return tried.execution

    async def judge(execution: SubtaskExecution) -> SubtaskAssessment:
        # What a try was built on is accepted, so it is the newest of its task for good.
        beneath = [newest[name].patch for name in execution.built_on]
        async with places:
            assessment, judges[execution.task] = await judge_execution(
                plan, execution, means.bench, tools, beneath
            )
        bounds.add_usage(assessment.evaluation.usage if assessment.evaluation else Usage())
        return assessment

    async def merge(made: Sequence[SubtaskExecution]) -> str | None:
        return await merge_conflict(made, base, tools)

    async def check_whole(accepted: AcceptedExecutions) -> dict[str, EvaluationIssue]:
        if is_finished(earlier) and accepted.items() <= known_executions.items():
            return {}  # that was told when it ended
        whole = await check_whole_change(plan, accepted, base, tools)
        issues = build_together_issues(whole)
        sound_wholes[:] = [] if issues else [whole]
        return issues

    async def keep(made: SubtaskAssessment) -> None:
        await result_saver.save_result(JudgedTry(assessment=made, judges=judges.pop(made.task, ())))

    callbacks = SubtaskCallbacks(
        work=work,
        judge=judge,
        merge=merge,
        check_whole=check_whole,
        keep=keep,
        held=bounds.find_block_reason,
        tell=means.tell,
    )
    known_tries = [reset_unjudged_try(earlier_try) for earlier_try in earlier_tries]
    stopped = await run_subtasks(plan, means.terms, callbacks, known_tries, tools.settings.retries)
    whole = sound_wholes[0] if sound_wholes else None
    return SettledTasks(stopped=stopped, held=bounds.reached, whole=whole)


def work_from_order(order: SubtaskOrder) -> UpcomingWork:
    """Describe a try to the team memory; either all tries of a plan receive rules, or none."""
    plan = order.plan
    return UpcomingWork(
        repo=clone_repository_name(plan.repo or ""),
        text=order.brief,
        key=f"{plan.id}/{order.task.id}/{order.number}",
        lot=plan.id,
        names=(plan.repo,) if plan.repo else (),
    )


def reset_unjudged_try(one: SubtaskTry) -> SubtaskTry:
    """Reset a try without a verdict, so that it is judged again."""
    lacks_verdict = one.assessment is not None and one.assessment.passed is None
    return (
        SubtaskTry(execution=one.execution)
        if lacks_verdict and one.execution.exit != "machine"
        else one
    )


# After the work


async def finish_plan(
    plan: Orchestration,
    base: WorkspaceBase | None,
    means: OrchestrationContext,
    settled: SettledTasks,
) -> OrchestrationHistory:
    """Judge the whole, and save one attempt with the joined trace and the merged change."""
    store, block_reason = means.store, settled.held
    story = store.plans.load_exact_story(plan.id)
    if is_finished(story):
        return store.plans.load_story(plan.id)
    whole = settled.whole or await check_whole_change(
        plan, list_mergeable(plan, story), base, means.tools
    )
    plan_ending = build_plan_ending(
        story, settled.stopped, block_reason, whole.checks, whole.broken_by
    )
    worker = variants_by_name(means.tools)[plan.worker].variant
    try_marks = [
        (one.execution.task, one.execution.number, one.assessment and one.assessment.at)
        for one in story.tries
    ]
    attempt = Attempt(
        id=content_digest("plan", plan.id, try_marks, plan_ending.summary, whole.checks)[:12],
        origin="production",
        task=f"plan-{plan.id}",
        variant=worker.digest,
        started=plan.at,
        ended=plan_ending.at,
        exit="out_of_budget" if block_reason else "finished",
        cause=block_reason,
        usage=plan_ending.usage,
        summary=plan_ending.summary,
        sandbox=sandbox_description(means.tools.workspaces),
        repo=plan.repo,
        links={"plan": plan.id},
    )
    trace, _ = redact_record(
        merge_plan_traces(story, store.plans.load_traces(plan.id), plan_ending)
    )
    store.save_variant(worker)
    store.save_attempt(
        AttemptResult(attempt=attempt, trace=trace, change=parse_patch(whole.patch, base=plan.base))
    )
    plan_ending = replace(plan_ending, attempt=attempt.id)
    store.scores.add_scores(scores_from_plan(story, plan_ending))
    store.plans.save_ending(plan, plan_ending)
    merge_context(store, clone_repository_name(plan.repo or ""), f"{plan.id}/", attempt.id)
    return store.plans.load_story(plan.id)
