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

from closeloop.judging.bench import Bench, rubric_for
from closeloop.judging.cases import found
from closeloop.judging.evaluate import cases_of, evaluate_cases
from closeloop.model.attempt import Attempt, Usage
from closeloop.model.errors import BadInput, Fault, PluginFailed, unknown
from closeloop.model.evaluation import Fact, JudgeVersion, Output, Site
from closeloop.model.orchestration import (
    Assessment,
    Blueprint,
    Execution,
    Orchestration,
    Planning,
    PlanStory,
    Told,
    Tried,
    Try,
)
from closeloop.model.patch_redaction import redact_new_secrets, redact_patch
from closeloop.model.patches import parse
from closeloop.model.plan import Made
from closeloop.model.record import Record, digest
from closeloop.model.settings import OrchestrateSettings
from closeloop.model.usage import total
from closeloop.model.variant import Limits
from closeloop.process.measure import measure
from closeloop.process.reading import read
from closeloop.process.rulebook import Rulebook
from closeloop.reviewing.briefing import Briefing, brief, called, sum_up
from closeloop.reviewing.hydrating import Work
from closeloop.running.forecasting import is_paid
from closeloop.running.leases import LEASE_SECONDS, keep_leases
from closeloop.running.orchestrating import fit, let_try, merged
from closeloop.running.safekeeping import Judged, Safe, recover
from closeloop.running.tools import Tools, guarded
from closeloop.runs.executors.local import plainly
from closeloop.runs.models.opening import settings_of
from closeloop.runs.models.prices import prices_of
from closeloop.runs.orchestrate.bounds import Bounds
from closeloop.runs.orchestrate.discovery import about
from closeloop.runs.orchestrate.ending import ending, last_moment
from closeloop.runs.orchestrate.lanes import joined
from closeloop.runs.orchestrate.loop import Hands, Order, carry_out, stands
from closeloop.runs.orchestrate.merging import in_plan_order
from closeloop.runs.orchestrate.planning import plan_with
from closeloop.runs.orchestrate.rates import used
from closeloop.runs.variants import Crew
from closeloop.runs.workspaces import Base, resolve_commit
from closeloop.runs.workspaces.repository import git, git_folder
from closeloop.store import Store
from closeloop.store.owners import is_dead
from closeloop.traces.redact import redact, redact_text

UNSAVED = Path(".closeloop/plans")


class Means(Record):
    """What a plan is carried out with, opened by somebody else."""

    store: Store
    tools: Tools
    bench: Bench
    rules: Rulebook
    terms: OrchestrateSettings
    """With the planner and the workers named."""
    owner: str
    tell: Callable[[Told], None]
    briefing: Briefing | None = None
    """What agents are told of what reviewers taught, where they are."""


# Before the work


async def begin(asked: str | Blueprint, means: Means, repo: Path | None) -> Orchestration:
    """A plan that is written down: as it is given, or as a model makes it of a request."""
    base = resolve_commit(repo, "HEAD") if repo else None
    known = await discover(repo, base, means)
    planning = None
    if isinstance(asked, str):
        asked, planning = await make_plan(redact_text(asked, {}), known, means)
    at = datetime.now(UTC)
    plan = Orchestration(
        id=digest(asked, base, at)[:12],
        at=at,
        request=asked.request,
        tasks=asked.plan,
        repo=str(repo) if repo else None,
        base=base,
        about=known,
        worker=means.terms.workers[0],
        written=means.tools.settings.variants.get(means.terms.workers[0]),
        judges=tuple(judge.model for judge in means.bench.judges),
        planning=planning,
    )
    demand_means(plan, means)
    # Agents are given what is written down: a plan that goes on later is the same plan.
    plan, _ = redact(plan)
    means.store.plans.begin(plan)
    return plan


async def discover(repo: Path | None, base: str | None, means: Means) -> str:
    """What the repository is, as far as that is cheap to know."""
    if repo is None or base is None:
        return ""
    listed = await git(git_folder(repo), "ls-tree", "-r", "--name-only", "-z", base)
    return about([name for name in listed.split("\0") if name], means.tools.settings.commands)


async def make_plan(request: str, known: str, means: Means) -> tuple[Blueprint, Planning]:
    settings, name = means.tools.settings, means.terms.planner
    if name is None:
        raise BadInput("Name the model that plans: --planner, or orchestrate.planner.")
    demand_price(name, means)
    limits = Limits(money=settings.limits.money, tokens=settings.limits.tokens)
    model = settings_of(name, settings.models)
    async with means.tools.gateway.open(name, model, limits, first=True) as door:
        return await plan_with(door, request, known, means.terms.workers)


def demand_means(plan: Orchestration, means: Means) -> None:
    """BadInput for a plan whose workers or rubrics are not there, before anything is paid."""
    names = crews_of(means.tools)
    for task in plan.tasks:
        if (task.variant or plan.worker) not in names:
            raise unknown("variant", task.variant or plan.worker, names)
        for judge in means.bench.judges:
            rubric_for(task, judge)
    for judge in means.bench.judges:
        demand_price(judge.model, means)


def demand_price(name: str, means: Means) -> None:
    """BadInput for a model whose cost no budget could count."""
    model = settings_of(name, means.tools.settings.models)
    if means.terms.budget is not None and is_paid(model) and prices_of(model) is None:
        raise BadInput(f"The budget needs the price of {name!r}: give it, or set none.")


def crews_of(tools: Tools) -> dict[str, Crew]:
    """By name."""
    return {crew.variant.name: crew for crew in tools.crews.values()}


# The work


async def go_on(plan: Orchestration, means: Means) -> PlanStory:
    """Carry a plan out from where it stands, and say what came of it."""
    store, job = means.store, plan.job
    demand_means(plan, means)
    base = await base_of(plan, means.tools)
    if not store.claim(job, means.owner, LEASE_SECONDS, is_dead):
        raise BadInput(f"Another process carries out plan {plan.id}: let it, or end it first.")
    recover(store, unsaved(means), plan.id)
    with plainly():
        async with anyio.create_task_group() as group:
            group.start_soon(partial(keep_leases, store, means.owner, least=1))
            try:
                stopped, held = await work_on(plan, base, means)
                story = await finish(plan, base, means, stopped, held)
            finally:
                group.cancel_scope.cancel()
                with suppress(Fault):
                    store.release(means.owner, job)
    return story


def unsaved(means: Means) -> Path:
    return means.tools.root / UNSAVED


async def base_of(plan: Orchestration, tools: Tools) -> Base | None:
    if plan.repo is None or plan.base is None:
        return None
    return await tools.workspaces.base(plan.repo, plan.base, tools.settings.commands.setup)


async def work_on(
    plan: Orchestration, base: Base | None, means: Means
) -> tuple[dict[str, str], str | None]:
    """Settle every task: those that could not be, and why nothing more was begun."""
    crews, tools = crews_of(means.tools), means.tools
    safe = Safe(means.store, unsaved(means), plan.id)
    bounds = Bounds(means.terms, plan.id)
    before = means.store.plans.exact_story(plan.id).tries
    bounds.spend(total([used(before), plan.planning.usage if plan.planning else Usage()]))
    places = anyio.Semaphore(max(1, means.bench.concurrency))
    judges: dict[str, tuple[JudgeVersion, ...]] = {}
    newest = {one.execution.task: one.execution for one in before}

    async def work(order: Order) -> Execution:
        crew = crews[order.task.variant or plan.worker]
        context = await to_thread.run_sync(brief, means.briefing, crew, work_of(order))
        tried = with_findings(await let_try(order, crew, base, tools, context), means.rules)
        bounds.spend(tried.execution.usage)
        await safe.keep(tried)
        newest[order.task.id] = tried.execution
        return tried.execution

    async def judge(execution: Execution) -> Assessment:
        # What a try was built on is accepted, so it is the newest of its task for good.
        beneath = [newest[name].patch for name in execution.built_on]
        async with places:
            made, judges[execution.task] = await assessed(plan, execution, means, beneath)
        bounds.spend(made.evaluation.usage if made.evaluation else Usage())
        return made

    async def merge(made: Sequence[Execution]) -> str | None:
        return await fit(made, base, tools)

    async def keep(made: Assessment) -> None:
        await safe.keep(Judged(assessment=made, judges=judges.pop(made.task, ())))

    hands = Hands(work=work, judge=judge, merge=merge, keep=keep, held=bounds.held, tell=means.tell)
    known = [ready(one) for one in before]
    stopped = await carry_out(plan, means.terms, hands, known, tools.settings.retries)
    return stopped, bounds.reached


def work_of(order: Order) -> Work:
    """A try, as the memory knows work; all of a plan's are told, or none is."""
    plan = order.plan
    return Work(
        repo=called(plan.repo or ""),
        text=order.brief,
        key=f"{plan.id}/{order.task.id}/{order.number}",
        lot=plan.id,
        names=(plan.repo,) if plan.repo else (),
    )


def with_findings(tried: Tried, rules: Rulebook) -> Tried:
    """With what the rules say of how it was worked on, among the facts for the judge."""
    if tried.trace is None:
        return tried
    try:
        facts = [*found(measure(read(tried.trace, rules.own_checks), rules).findings)]
    except PluginFailed as fault:
        facts = [Fact(name="rules", text=str(fault))]  # the try is paid for, and kept
    execution = replace(tried.execution, facts=(*tried.execution.facts, *facts))
    return replace(tried, execution=execution)


def ready(one: Try) -> Try:
    """As it is gone on with: a try that got no verdict from its judge is judged again."""
    unsaid = one.assessment is not None and one.assessment.passed is None
    return Try(execution=one.execution) if unsaid and one.execution.exit != "machine" else one


async def assessed(
    plan: Orchestration, execution: Execution, means: Means, beneath: Sequence[str]
) -> tuple[Assessment, tuple[JudgeVersion, ...]]:
    """What the judges say of one try, its facts first, and who they are."""
    name = execution.task
    patch = redact_patch(execution.patch)
    output = Output(task=name, text=execution.report, change=patch or None, author=execution.model)
    cases = cases_of(plan.request, plan.tasks, {name: output}, {name: execution.facts})
    site = site_of(plan, means.tools, [*map(redact_new_secrets, beneath)])
    if site is not None:
        site = replace(site, change=redact_new_secrets(execution.patch))
    made = await evaluate_cases(means.bench, [replace(case, site=site) for case in cases])
    one = made.evaluations[0]
    return (
        Assessment(
            plan=plan.id,
            task=name,
            number=execution.number,
            passed=one.passed,
            score=one.score,
            issues=one.issues,
            why=one.abstained,
            evaluation=one,
            at=datetime.now(UTC),
        ),
        made.judges,
    )


def site_of(plan: Orchestration, tools: Tools, beneath: Sequence[str]) -> Site | None:
    """Where a judge that looks finds what a try was made on top of."""
    if plan.repo is None or plan.base is None:
        return None
    setup = tools.settings.commands.setup
    return Site(repo=plan.repo, commit=plan.base, setup=setup, beneath=tuple(beneath))


# After the work


async def finish(
    plan: Orchestration, base: Base | None, means: Means, stopped: dict[str, str], held: str | None
) -> PlanStory:
    """The verdict on the whole, one attempt with the trace of all, and the merged change."""
    store = means.store
    story = store.plans.exact_story(plan.id)
    if story.ending is not None and story.ending.at == last_moment(story):
        return store.plans.story(plan.id)  # nothing has come since it ended
    accepted = {one.execution.task: one.execution for one in story.tries if stands(one)}
    commands = {line: None for task in plan.tasks if task.id in accepted for line in task.commands}
    whole = await merged(in_plan_order(plan, accepted), base, means.tools, [*commands])
    made = ending(story, stopped, held, whole.checks)
    worker = crews_of(means.tools)[plan.worker].variant
    marks = [
        (one.execution.task, one.execution.number, one.assessment and one.assessment.at)
        for one in story.tries
    ]
    attempt = Attempt(
        id=digest("plan", plan.id, marks, made.summary, whole.checks)[:12],
        origin="production",
        task=f"plan-{plan.id}",
        variant=worker.digest,
        started=plan.at,
        ended=made.at,
        exit="out_of_budget" if held else "finished",
        cause=held,
        usage=made.usage,
        summary=made.summary,
        sandbox=guarded(means.tools.workspaces),
        repo=plan.repo,
        links={"plan": plan.id},
    )
    trace, _ = redact(joined(story, store.plans.traces(plan.id), made))
    store.save_variant(worker)
    store.keep(Made(attempt=attempt, trace=trace, change=parse(whole.patch, base=plan.base)))
    store.plans.end(plan, replace(made, attempt=attempt.id))
    sum_up(store, called(plan.repo or ""), f"{plan.id}/", attempt.id)
    return store.plans.story(plan.id)
