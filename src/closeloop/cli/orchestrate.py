"""`closeloop orchestrate`: a request in tasks, done by sub-agents, judged, and tried again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from closeloop.cli.console import JsonFlag
from closeloop.records.record import Record
from closeloop.records.settings import OrchestrateSettings, SandboxKind, Settings

if TYPE_CHECKING:
    from closeloop.records.orchestration import (
        Orchestration,
        OrchestrationHistory,
        OrchestrationPlan,
        OrchestrationProgress,
        PlanGrade,
    )

AGENT_CONFIG_NAME = "agent_config.json"


class OrchestrateOptions(Record):
    """What somebody typed, settled."""

    settings: Settings
    """With the thresholds that hold here."""
    root: Path
    terms: OrchestrateSettings
    repo: Path | None
    what: str | OrchestrationPlan | Orchestration
    json: bool


def orchestrate(  # noqa: PLR0913 - one parameter for each flag
    plan: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    request: str | None = None,
    agent: str | None = None,
    model: str | None = None,
    planner: str | None = None,
    judge: list[str] | None = None,
    resume: str | None = None,
    sandbox: SandboxKind | None = None,
    json: JsonFlag = False,
) -> int:
    """Have a plan carried out by sub-agents; every output is judged, and tried again if it fails.

    What is finished is kept: stop it at any moment, and go on with --resume.
    Exits with 0 when every task passed, else with 1.

    Parameters
    ----------
    plan
        A JSON file with `request` and `plan`, a list of tasks; `-` is standard input.
    request
        What is wanted, instead: a model makes the plan.
    agent
        Who works on tasks that name no variant: an agent, builtin when only --model is given.
    model
        The model of the workers.
        A name of closeloop.toml, openai/, anthropic/ or gemini/NAME, or scripted:FILE.
    planner
        The model that plans; the workers' own when not given.
    judge
        The model that judges; several are a panel. Those of closeloop.toml when not given.
    resume
        Go on with a plan, by its id or the beginning of it.
    sandbox
        How agents are caged: auto, bwrap, landlock, or none.
    """
    from closeloop.cli.config import find_repository_root, load_project
    from closeloop.cli.console import refuse_option
    from closeloop.cli.run import apply_run_flags
    from closeloop.records.errors import BadInput

    refuse_option(str(plan or "-"), "orchestrate")
    if sum(one is not None for one in (plan, request, resume)) != 1:
        raise BadInput("Give one of these: a PLAN file, --request, or --resume.")
    if resume is not None and (agent or model):
        raise BadInput("A plan goes on with those who began it: leave out --agent and --model.")
    project = load_project(Path.cwd())
    terms = load_orchestrate_settings(project.settings, project.root)
    settings, terms = choose_workers(project.settings, terms, agent, model)
    saved_plan = (
        load_saved_plan(resume, project.settings, project.root) if resume is not None else None
    )
    if saved_plan is not None:
        settings, terms = restore_workers_and_judges(saved_plan, settings, terms)
    terms = choose_planner_and_judges(settings, terms, planner, judge)
    settings = apply_run_flags(settings, sandbox=sandbox)
    options = OrchestrateOptions(
        settings=apply_thresholds(settings, terms),
        root=project.root,
        terms=terms,
        repo=find_repository_root(project.root),
        what=read_plan_or_request(plan, request, settings) if saved_plan is None else saved_plan,
        json=json,
    )
    return run_and_print_plan(options)


def run_and_print_plan(asked: OrchestrateOptions) -> int:
    """Do the work and say what came of it; the exit code."""
    import anyio

    from closeloop.cli.console import print_json, print_parts, print_warning
    from closeloop.cli.plans import plan_to_map, render_plan

    begun_plans: list[str] = []
    try:
        story, grade = anyio.run(run_orchestration, asked, begun_plans.append)
    except KeyboardInterrupt:
        resume_hint = (
            f"`closeloop orchestrate --resume {begun_plans[0]}` goes on"
            if begun_plans
            else "nothing was begun"
        )
        print_warning(f"stopped: {resume_hint}.")
        return 130
    print_json(plan_to_map(story, grade)) if asked.json else print_parts(*render_plan(story, grade))
    return 0 if story.ending is not None and story.ending.passed else 1


def read_plan_or_request(
    plan: Path | None, request: str | None, settings: Settings
) -> str | OrchestrationPlan:
    """What to plan, or the plan."""
    from closeloop.cli.console import read_file_content, require_utf8_text
    from closeloop.orchestration.plan_request import MAX_BLUEPRINT_BYTES, read_blueprint
    from closeloop.records.errors import BadInput

    if plan is None:
        if not (request or "").strip():
            raise BadInput("--request is empty: say what is wanted.")
        require_utf8_text(request or "", "--request")
        return request or ""
    max_bytes = MAX_BLUEPRINT_BYTES + 1
    content = (
        sys.stdin.buffer.read(max_bytes) if str(plan) == "-" else read_file_content(plan, max_bytes)
    )
    return read_blueprint(content, str(plan), settings.variants)


def load_orchestrate_settings(settings: Settings, root: Path) -> OrchestrateSettings:
    """`[orchestrate]`, as `agent_config.json` beside it changes it."""
    from closeloop.cli.config import MAX_CONFIG_BYTES
    from closeloop.cli.console import read_file_content
    from closeloop.records.errors import BadInput
    from closeloop.text.record_reading import parse_json, read_changed_record

    terms, file = settings.orchestrate, root / AGENT_CONFIG_NAME
    if file.is_file():
        overrides = parse_json(read_file_content(file, MAX_CONFIG_BYTES), str(file))
        if not isinstance(overrides, dict):
            raise BadInput(f"{file} must be an object with the keys of [orchestrate].")
        terms = read_changed_record(terms, overrides, str(file), "")
    require_sensible_settings(terms)
    return terms


def require_sensible_settings(terms: OrchestrateSettings) -> None:
    from closeloop.records.errors import BadInput

    if terms.max_retries < 0 or terms.concurrency < 1:
        raise BadInput("orchestrate: max_retries must not be negative, concurrency at least 1.")
    for name in ("seconds", "budget"):
        value = getattr(terms, name)
        if value is not None and not value > 0:
            raise BadInput(f"orchestrate: {name} must be more than 0.")


def choose_workers(
    settings: Settings, terms: OrchestrateSettings, agent: str | None, model: str | None
) -> tuple[Settings, OrchestrateSettings]:
    """Who works: by flags, by the settings, else the first variant."""
    from msgspec.structs import replace

    from closeloop.cli.run import apply_run_flags
    from closeloop.records.errors import unknown_name_error

    if agent or model:
        new_variants = apply_run_flags(
            settings, agents=[agent] if agent else None, models=[model] if model else None
        ).variants
        settings = replace(settings, variants=settings.variants | new_variants)
        return settings, replace(terms, workers=tuple(new_variants))
    workers = terms.workers or tuple(settings.variants)[:1]
    for name in workers:
        if name not in settings.variants:
            raise unknown_name_error("variant", name, settings.variants)
    return settings, replace(terms, workers=workers)


def load_saved_plan(name: str, settings: Settings, root: Path) -> Orchestration:
    from closeloop.records.errors import BadInput
    from closeloop.store.store_opening import open_project_store

    with open_project_store(settings, root) as store:
        plan = store.plans.load_story(name).plan
    if plan.handed_in:
        raise BadInput(
            f"Plan {plan.id} was handed in: whoever carries it out hands in the next results with"
            f' "continues": "{plan.id}".'
        )
    return plan


def restore_workers_and_judges(
    plan: Orchestration, settings: Settings, terms: OrchestrateSettings
) -> tuple[Settings, OrchestrateSettings]:
    """With who worked and judged when the plan was begun."""
    from msgspec.structs import replace

    if plan.written is not None and plan.worker not in settings.variants:
        settings = replace(settings, variants=settings.variants | {plan.worker: plan.written})
    return settings, replace(terms, workers=(plan.worker,), judges=plan.judges)


def choose_planner_and_judges(
    settings: Settings, terms: OrchestrateSettings, planner: str | None, judges: list[str] | None
) -> OrchestrateSettings:
    """Who plans and who judges, where that is said."""
    from msgspec.structs import replace

    from closeloop.records.errors import BadInput

    if not terms.workers:
        raise BadInput(
            "There is nobody to work: name a model with --model openai/NAME, "
            "or add a [variants.NAME] section to closeloop.toml."
        )
    worker_model = settings.variants[terms.workers[0]].model
    judge_variant = settings.variants.get(settings.judge.variant or "")
    fallback_judge = judge_variant.model if judge_variant and judge_variant.model else worker_model
    judge_models = tuple(judges or ()) or terms.judges or settings.judge.models
    return replace(
        terms,
        planner=planner or terms.planner or worker_model,
        judges=judge_models or ((fallback_judge,) if fallback_judge else ()),
    )


def apply_thresholds(settings: Settings, terms: OrchestrateSettings) -> Settings:
    """What it takes to pass, as it is set for plans."""
    from msgspec.structs import replace

    from closeloop.judges.judge_panel import merge_thresholds

    judge_settings = settings.judge
    return replace(
        settings, judge=replace(judge_settings, **merge_thresholds(judge_settings, terms))
    )


async def run_orchestration(
    asked: OrchestrateOptions, begun: Callable[[str], None]
) -> tuple[OrchestrationHistory, PlanGrade | None]:
    """Open what is needed, plan, and carry it out; whoever asks hears the plan's id early."""
    from closeloop.attempts.experiment_run import open_run_context
    from closeloop.attempts.experiment_status import require_prices
    from closeloop.cli.console import print_warning
    from closeloop.cli.run import warn_of_sandbox_gaps
    from closeloop.judges.agent_judge import JudgeResources, with_judge_agents
    from closeloop.judges.judge_panel import open_judge_panel
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.orchestration import orchestration_run
    from closeloop.records.orchestration import Orchestration
    from closeloop.reviews.agent_prompts import open_context_provider

    names = list_needed_variants(asked)
    async with open_run_context(asked.settings, asked.root, names, os.environ) as run_context:
        run_resources, store = run_context.tools, run_context.store
        rules = project_rulebook(asked.settings)
        briefing = open_context_provider(store, asked.settings, asked.root, os.environ)
        warn_of_sandbox_gaps(run_resources.workspaces)
        require_prices(asked.terms.budget, run_resources.crews)
        panel = open_judge_panel(
            asked.settings, run_resources.gateway, asked.root, models=asked.terms.judges
        )
        looking_resources = JudgeResources(
            gateway=run_resources.gateway, workspaces=run_resources.workspaces, root=asked.root
        )
        orchestration_context = orchestration_run.OrchestrationContext(
            store=store,
            tools=run_resources,
            bench=with_judge_agents(panel, asked.settings, looking_resources),
            rules=rules,
            terms=asked.terms,
            owner=run_context.owner,
            briefing=briefing,
            tell=(lambda told: None) if asked.json else print_plan_step,
        )
        plan = asked.what
        if not isinstance(plan, Orchestration):
            warn_of_uncommitted_files(asked.repo)
            plan = await orchestration_run.begin_plan(plan, orchestration_context, asked.repo)
        begun(plan.id)
        task_count = len(plan.tasks)
        print_warning(
            f"plan {plan.id}: {task_count} {'task' if task_count == 1 else 'tasks'}. "
            f"If it is stopped, `closeloop orchestrate --resume {plan.id}` goes on."
        )
        story = await orchestration_run.continue_plan(plan, orchestration_context)
        return story, store.plans.load_grade(plan.id)


def warn_of_uncommitted_files(repo: Path | None) -> None:
    """Agents begin from the last commit, which may not be what is in front of the user."""
    from closeloop.cli.console import print_warning
    from closeloop.sandbox.workspaces.source_repository import count_uncommitted_files

    file_count = count_uncommitted_files(repo) if repo else 0
    if file_count:
        files_text = "1 file is" if file_count == 1 else f"{file_count} files are"
        print_warning(f"{files_text} changed or new and not committed: the agents do not see that.")


def list_needed_variants(asked: OrchestrateOptions) -> Sequence[str]:
    """Who must be ready: whoever may be chosen, and those that tasks name."""
    from closeloop.records.orchestration import Orchestration, OrchestrationPlan

    plan_or_request = asked.what
    tasks = (
        plan_or_request.tasks
        if isinstance(plan_or_request, Orchestration)
        else plan_or_request.plan
        if isinstance(plan_or_request, OrchestrationPlan)
        else ()
    )
    task_variants = [task.variant for task in tasks if task.variant is not None]
    return list(dict.fromkeys([*asked.terms.workers, *task_variants]))


def print_plan_step(told: OrchestrationProgress) -> None:
    """One line for each step."""
    from closeloop.cli.console import print_warning
    from closeloop.cli.plans import PASSED_WORDS

    where = f"{told.task}, try {told.number}" if told.number else told.task
    assessment = told.assessment
    if told.stage == "judged" and assessment is not None:
        score = "" if assessment.score is None else f" {assessment.score:.2f}"
        why = assessment.issues[0].text if assessment.issues else assessment.why
        line = f"{PASSED_WORDS[assessment.passed]}{score}" + (f": {why}" if why else "")
        if assessment.ignored:
            line += " (feedback ignored)"
    else:
        line = told.stage + (f": {told.why}" if told.why else "")
    print_warning(f"{where}  {line.splitlines()[0][:200]}")
