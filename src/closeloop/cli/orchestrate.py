"""`closeloop orchestrate`: a request in tasks, done by sub-agents, judged, and tried again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from closeloop.model.record import Record
from closeloop.model.settings import OrchestrateSettings, SandboxKind, Settings

if TYPE_CHECKING:
    from closeloop.model.orchestration import Blueprint, Orchestration, PlanStory, Told

CONFIG = "agent_config.json"


class Asked(Record):
    """What somebody typed, settled."""

    settings: Settings
    """With the thresholds that hold here."""
    root: Path
    terms: OrchestrateSettings
    repo: Path | None
    what: str | Blueprint | Orchestration
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
    json: bool = False,
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
    json
        Print one JSON document instead.
    """
    from closeloop.cli.config import load, repository
    from closeloop.cli.run import with_flags
    from closeloop.model.errors import BadInput

    if sum(one is not None for one in (plan, request, resume)) != 1:
        raise BadInput("Give one of these: a PLAN file, --request, or --resume.")
    if resume is not None and (agent or model):
        raise BadInput("A plan goes on with those who began it: leave out --agent and --model.")
    found = load(Path.cwd())
    terms = terms_of(found.settings, found.root)
    settings, terms = with_workers(found.settings, terms, agent, model)
    kept = kept_plan(resume, found.settings, found.root) if resume is not None else None
    if kept is not None:
        settings, terms = as_begun(kept, settings, terms)
    terms = with_models(settings, terms, planner, judge)
    settings = with_flags(settings, sandbox=sandbox)
    asked = Asked(
        settings=with_thresholds(settings, terms),
        root=found.root,
        terms=terms,
        repo=repository(found.root),
        what=wanted(plan, request, settings) if kept is None else kept,
        json=json,
    )
    return carry_out(asked)


def carry_out(asked: Asked) -> int:
    """Do the work and say what came of it; the exit code."""
    import anyio

    from closeloop.cli.console import say_json, show, warn
    from closeloop.cli.plans import document, told

    begun: list[str] = []
    try:
        story = anyio.run(work, asked, begun.append)
    except KeyboardInterrupt:
        how = (
            f"`closeloop orchestrate --resume {begun[0]}` goes on" if begun else "nothing was begun"
        )
        warn(f"stopped: {how}.")
        return 130
    say_json(document(story)) if asked.json else show(*told(story))
    return 0 if story.ending is not None and story.ending.passed else 1


def wanted(plan: Path | None, request: str | None, settings: Settings) -> str | Blueprint:
    """What to plan, or the plan."""
    from closeloop.cli.files import content_of
    from closeloop.cli.typed import demand_utf8
    from closeloop.model.errors import BadInput
    from closeloop.runs.orchestrate.blueprint import LARGEST, read_blueprint

    if plan is None:
        if not (request or "").strip():
            raise BadInput("--request is empty: say what is wanted.")
        demand_utf8(request or "", "--request")
        return request or ""
    most = LARGEST + 1
    content = sys.stdin.buffer.read(most) if str(plan) == "-" else content_of(plan, most)
    return read_blueprint(content, str(plan), settings.variants)


def terms_of(settings: Settings, root: Path) -> OrchestrateSettings:
    """`[orchestrate]`, as `agent_config.json` beside it changes it."""
    from closeloop.cli.config import LARGEST_FILE
    from closeloop.cli.files import content_of
    from closeloop.model.errors import BadInput
    from closeloop.model.reading import read_change, read_json

    terms, file = settings.orchestrate, root / CONFIG
    if file.is_file():
        written = read_json(content_of(file, LARGEST_FILE), str(file))
        if not isinstance(written, dict):
            raise BadInput(f"{file} must be an object with the keys of [orchestrate].")
        terms = read_change(terms, written, str(file), "")
    demand_sense(terms)
    return terms


def demand_sense(terms: OrchestrateSettings) -> None:
    from closeloop.model.errors import BadInput

    if terms.max_retries < 0 or terms.concurrency < 1:
        raise BadInput("orchestrate: max_retries must not be negative, concurrency at least 1.")
    for name in ("seconds", "budget"):
        value = getattr(terms, name)
        if value is not None and not value > 0:
            raise BadInput(f"orchestrate: {name} must be more than 0.")


def with_workers(
    settings: Settings, terms: OrchestrateSettings, agent: str | None, model: str | None
) -> tuple[Settings, OrchestrateSettings]:
    """Who works: by flags, by the settings, else the first variant."""
    from msgspec.structs import replace

    from closeloop.cli.run import with_flags
    from closeloop.model.errors import unknown

    if agent or model:
        made = with_flags(
            settings, agents=[agent] if agent else None, models=[model] if model else None
        ).variants
        settings = replace(settings, variants=settings.variants | made)
        return settings, replace(terms, workers=tuple(made))
    workers = terms.workers or tuple(settings.variants)[:1]
    for name in workers:
        if name not in settings.variants:
            raise unknown("variant", name, settings.variants)
    return settings, replace(terms, workers=workers)


def kept_plan(name: str, settings: Settings, root: Path) -> Orchestration:
    from closeloop import flow

    with flow.open_named_store(settings, root) as store:
        return store.plans.story(name).plan


def as_begun(
    plan: Orchestration, settings: Settings, terms: OrchestrateSettings
) -> tuple[Settings, OrchestrateSettings]:
    """With who worked and judged when the plan was begun."""
    from msgspec.structs import replace

    if plan.written is not None and plan.worker not in settings.variants:
        settings = replace(settings, variants=settings.variants | {plan.worker: plan.written})
    return settings, replace(terms, workers=(plan.worker,), judges=plan.judges)


def with_models(
    settings: Settings, terms: OrchestrateSettings, planner: str | None, judges: list[str] | None
) -> OrchestrateSettings:
    """Who plans and who judges, where that is said."""
    from msgspec.structs import replace

    from closeloop.model.errors import BadInput

    if not terms.workers:
        raise BadInput(
            "There is nobody to work: name a model with --model openai/NAME, "
            "or add a [variants.NAME] section to closeloop.toml."
        )
    own = settings.variants[terms.workers[0]].model
    looks = settings.variants.get(settings.judge.variant or "")
    last = looks.model if looks and looks.model else own
    said = tuple(judges or ()) or terms.judges or settings.judge.models
    return replace(
        terms,
        planner=planner or terms.planner or own,
        judges=said or ((last,) if last else ()),
    )


def with_thresholds(settings: Settings, terms: OrchestrateSettings) -> Settings:
    """What it takes to pass, as it is set for plans."""
    from msgspec.structs import replace

    from closeloop.judging.bench import thresholds

    own = settings.judge
    return replace(settings, judge=replace(own, **thresholds(own, terms)))


async def work(asked: Asked, begun: Callable[[str], None]) -> PlanStory:
    """Open what is needed, plan, and carry it out; whoever asks hears the plan's id early."""
    from closeloop import flow, orchestrating
    from closeloop.cli.console import warn
    from closeloop.cli.run import warn_of_gaps
    from closeloop.judging.bench import open_bench
    from closeloop.judging.looking import Means, with_eyes
    from closeloop.model.orchestration import Orchestration
    from closeloop.running.forecasting import demand_prices

    names = variants_of(asked)
    async with flow.open_workshop(asked.settings, asked.root, names, os.environ) as workshop:
        tools = workshop.tools
        warn_of_gaps(tools.workspaces)
        demand_prices(asked.terms.budget, tools.crews)
        bench = open_bench(asked.settings, tools.gateway, asked.root, models=asked.terms.judges)
        eyes = Means(gateway=tools.gateway, workspaces=tools.workspaces, root=asked.root)
        means = orchestrating.Means(
            store=workshop.store,
            tools=tools,
            bench=with_eyes(bench, asked.settings, eyes),
            rules=workshop.rules,
            terms=asked.terms,
            owner=workshop.owner,
            briefing=workshop.briefing,
            tell=(lambda told: None) if asked.json else say,
        )
        plan = asked.what
        if not isinstance(plan, Orchestration):
            warn_of_uncommitted(asked.repo)
            plan = await orchestrating.begin(plan, means, asked.repo)
        begun(plan.id)
        many = len(plan.tasks)
        warn(
            f"plan {plan.id}: {many} {'task' if many == 1 else 'tasks'}. "
            f"If it is stopped, `closeloop orchestrate --resume {plan.id}` goes on."
        )
        return await orchestrating.go_on(plan, means)


def warn_of_uncommitted(repo: Path | None) -> None:
    """Agents begin from the last commit, which may not be what is in front of the user."""
    from closeloop.cli.console import warn
    from closeloop.runs.workspaces.repository import uncommitted

    many = uncommitted(repo) if repo else 0
    if many:
        told = "1 file is" if many == 1 else f"{many} files are"
        warn(f"{told} changed or new and not committed: the agents do not see that.")


def variants_of(asked: Asked) -> Sequence[str]:
    """Who must be ready: whoever may be chosen, and those that tasks name."""
    from closeloop.model.orchestration import Blueprint, Orchestration

    what = asked.what
    tasks = (
        what.tasks
        if isinstance(what, Orchestration)
        else what.plan
        if isinstance(what, Blueprint)
        else ()
    )
    named = [task.variant for task in tasks if task.variant is not None]
    return list(dict.fromkeys([*asked.terms.workers, *named]))


def say(told: Told) -> None:
    """One line for each step."""
    from closeloop.cli.console import warn
    from closeloop.cli.plans import WORDS

    where = f"{told.task}, try {told.number}" if told.number else told.task
    assessment = told.assessment
    if told.stage == "judged" and assessment is not None:
        score = "" if assessment.score is None else f" {assessment.score:.2f}"
        why = assessment.issues[0].text if assessment.issues else assessment.why
        line = f"{WORDS[assessment.passed]}{score}" + (f": {why}" if why else "")
        if assessment.ignored:
            line += " (feedback ignored)"
    else:
        line = told.stage + (f": {told.why}" if told.why else "")
    warn(f"{where}  {line.splitlines()[0][:200]}")
