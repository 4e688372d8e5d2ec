"""`closeloop run`: tasks × variants × repeats, graded, resumable."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from closeloop.cli.console import JsonFlag
from closeloop.records.record import Record
from closeloop.records.settings import ExecutorKind, ExperimentSettings, SandboxKind, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from closeloop.attempts.task_preparation import ProgressCallback
    from closeloop.cli.run_output import RunProgressBar
    from closeloop.records.experiment_plan import (
        ExperimentForecast,
        ExperimentPlan,
        ExperimentResults,
        RunMode,
    )
    from closeloop.records.held_out import HeldOutRun
    from closeloop.sandbox.workspaces import WorkspacePool
    from closeloop.store import Store


class RunOptions(Record):
    """What the flags and the configuration come to."""

    settings: Settings
    root: Path
    wanted: ExperimentSettings
    name: str | None
    """The experiment's, in the configuration."""
    variants: tuple[str, ...]
    mode: RunMode
    held_out: bool
    reason: str | None
    yes: bool
    json: bool


def run(  # noqa: PLR0913 - one parameter for each flag
    *tasks: str,
    experiment: str | None = None,
    variant: list[str] | None = None,
    agent: list[str] | None = None,
    model: list[str] | None = None,
    prompt: list[str] | None = None,
    repeats: int | None = None,
    jobs: int | None = None,
    seed: int | None = None,
    budget: float | None = None,
    feedback: bool = False,
    rerun: Literal["unscored"] | None = None,
    regrade: bool = False,
    held_out: bool = False,
    reason: str | None = None,
    executor: ExecutorKind | None = None,
    address: str | None = None,
    sandbox: SandboxKind | None = None,
    yes: bool = False,
    json: JsonFlag = False,
) -> int:
    """Run agents on tasks and grade what they change.

    Finished attempts are kept: stop it at any moment and run the same command again to go on.

    Parameters
    ----------
    tasks
        Ids or files of tasks; every dev task of the project when none is named.
    experiment
        An experiment of closeloop.toml; flags win over what it says.
    variant
        A variant of closeloop.toml; may be given again. All of them when none is named.
    agent
        Run this agent instead of the variants of closeloop.toml. May be given again.
    model
        Run the agents with this model; may be given again.
        A name of closeloop.toml, openai/, anthropic/ or gemini/NAME, scripted:FILE or recorded:ID.
    prompt
        A file with a system prompt, for every variant. May be given again.
    repeats
        How often each variant tries each task; once when not given.
    jobs
        How many attempts run at once; as many as there are processors when not given.
    seed
        Gives the order in which attempts are begun; 0 when not given.
    budget
        US dollars for all attempts together: once they are spent, no attempt is begun.
    feedback
        Ask each agent at the end what it lacked.
    rerun
        Only make again what could not be scored: unscored.
    regrade
        Only grade again what is there.
    held_out
        Run the held-out tasks, which stay sealed; needs --reason.
    reason
        Why held-out tasks are looked at; the ledger keeps it.
    executor
        Where attempts are made: local, or ray.
    address
        Of the Ray cluster; one is started on this machine when none is given.
    sandbox
        How agents are caged: auto, bwrap, landlock, or none.
    yes
        Do not ask before money is spent.
    """
    from closeloop.cli.config import load_project
    from closeloop.records.errors import BadInput

    project = load_project(Path.cwd())
    experiment_settings = build_experiment_settings(
        project.settings,
        experiment,
        {"tasks": tasks, "repeats": repeats, "jobs": jobs, "seed": seed, "budget": budget},
        feedback=feedback,
    )
    if variant and (agent or model):
        raise BadInput("Give either --variant, or --agent and --model: a variant names both.")
    if rerun and regrade:
        raise BadInput("Give either --rerun or --regrade: what is made again is graded anyway.")
    settings = apply_run_flags(project.settings, agents=agent, models=model, sandbox=sandbox)
    settings = apply_executor_flags(settings, executor, address)
    chosen_variants = (
        variant or ([] if agent or model else experiment_settings.variants) or settings.variants
    )
    settings, names = apply_prompts(settings, list(chosen_variants), prompt)
    if not names:
        raise BadInput(
            "There is no variant to run: name one with --model openai/NAME, "
            "or add a [variants.NAME] section to closeloop.toml."
        )
    options = RunOptions(
        settings=settings,
        root=project.root,
        wanted=experiment_settings,
        name=experiment,
        variants=tuple(names),
        mode="regrade" if regrade else "unscored" if rerun else "fill",
        held_out=held_out,
        reason=reason,
        yes=yes,
        json=json,
    )
    return run_and_print_results(options)


def run_and_print_results(asked: RunOptions) -> int:
    """Run it, print what came of it, and say how it went by the exit code."""
    import anyio

    from closeloop.cli.console import print_json, print_parts, print_warning
    from closeloop.cli.run_output import run_summary_tables

    results, progress, look = anyio.run(run_planned_attempts, asked)
    if asked.json:
        print_json(results)
    else:
        print_parts(*run_summary_tables(results, look))
    if (elsewhere := progress.counts["elsewhere"]) > 0:
        attempts_are = "attempt is" if elsewhere == 1 else "attempts are"
        print_warning(
            f"{elsewhere} {attempts_are} being made by another process: run this again to see more."
        )
    if progress.held is not None:
        attempts_were = "attempt was" if progress.counts["held"] == 1 else "attempts were"
        print_warning(f"{progress.counts['held']} {attempts_were} not begun, as {progress.held}.")
    if results.skipped:
        return 2
    if progress.held is not None or (elsewhere and len(results.attempts) < progress.total):
        return 1
    return 4 if any(row.is_unscored for row in results.attempts) else 0


async def run_planned_attempts(
    asked: RunOptions,
) -> tuple[ExperimentResults, RunProgressBar, HeldOutRun | None]:
    """Plan, say what is ahead, run; a look at held-out tasks comes with the ledger's entry."""
    from closeloop import flow
    from closeloop.cli.run_output import confirm_cost, print_forecast, show_run_progress
    from closeloop.cli.sets import record_unsealing
    from closeloop.tasks.sealed_tasks import hide_results
    from closeloop.tasks.task_files import select_tasks
    from closeloop.tasks.task_sets import visible_tasks

    wanted = asked.wanted
    tasks = visible_tasks(
        select_tasks(asked.settings, asked.root, wanted.tasks),
        named=bool(wanted.tasks),
        held_out=asked.held_out,
        reason=asked.reason,
    )
    progress_bars: list[RunProgressBar] = []
    looks: list[HeldOutRun | None] = []

    @contextmanager
    def start_run(
        plan: ExperimentPlan, forecast: ExperimentForecast, store: Store
    ) -> Iterator[ProgressCallback]:
        if forecast.missing and not asked.json:
            print_forecast(forecast, several=len(plan.variants) > 1)
        confirm_cost(forecast, yes=asked.yes)
        looks.append(record_unsealing(plan, store, asked.root, asked.reason))
        jobs = wanted.jobs or os.cpu_count() or 1
        with show_run_progress(plan, forecast, jobs, quiet=asked.json) as progress:
            progress_bars.append(progress)
            yield progress.record_step

    request = flow.ExperimentRequest(
        settings=asked.settings,
        root=asked.root,
        environ=os.environ,
        tasks=tuple(tasks),
        variants=asked.variants,
        wanted=wanted,
        name=asked.name,
        mode=asked.mode,
    )
    results = await flow.run_experiment(request, start_run, warn_of_sandbox_gaps)
    return hide_results(results), progress_bars[0], looks[0]


def warn_of_sandbox_gaps(workspaces: WorkspacePool) -> None:
    """Say what the sandbox of this machine does not enforce."""
    from closeloop.attempts.run_resources import sandbox_description
    from closeloop.cli.console import print_warning

    if workspaces.guards.note:
        print_warning(f"sandbox {sandbox_description(workspaces)}")


def build_experiment_settings(
    settings: Settings, name: str | None, flags: dict[str, Any], *, feedback: bool
) -> ExperimentSettings:
    """The experiment of that name, or a plain one, as the flags change it."""
    from msgspec.structs import replace

    from closeloop.cli.console import require_positive_flags
    from closeloop.records.errors import unknown_name_error

    if name is not None and name not in settings.experiments:
        raise unknown_name_error("experiment", name, settings.experiments)
    experiment_settings = ExperimentSettings() if name is None else settings.experiments[name]
    given_flags = {flag: value for flag, value in flags.items() if value not in (None, ())}
    experiment_settings = replace(
        experiment_settings, **given_flags, feedback=feedback or experiment_settings.feedback
    )
    require_positive_flags(
        repeats=experiment_settings.repeats,
        jobs=experiment_settings.jobs,
        budget=experiment_settings.budget,
    )
    return experiment_settings


def apply_run_flags(
    settings: Settings,
    *,
    agents: Sequence[str] | None = None,
    models: Sequence[str | None] | None = None,
    sandbox: SandboxKind | None = None,
) -> Settings:
    """The settings as the flags change them: a flag wins over the file."""
    from msgspec.structs import replace

    from closeloop.records.settings import VariantSettings

    if agents or models:
        new_variants = {
            f"{agent}:{model}" if model else agent: VariantSettings(agent=agent, model=model)
            for agent in agents or ["builtin"]
            for model in models or [None]
        }
        settings = replace(settings, variants=new_variants)
    if sandbox:
        settings = replace(settings, sandbox=replace(settings.sandbox, kind=sandbox))
    return settings


def apply_executor_flags(
    settings: Settings, kind: ExecutorKind | None, address: str | None
) -> Settings:
    """The executor that the flags name."""
    from msgspec.structs import replace

    from closeloop.records.errors import BadInput

    executor = settings.executor
    known = address or executor.address or os.environ.get("RAY_ADDRESS")
    executor = replace(executor, kind=kind or executor.kind, address=known)
    if address is not None and executor.kind != "ray":
        raise BadInput("--address is that of a Ray cluster: add --executor ray.")
    return replace(settings, executor=executor)


def apply_prompts(
    settings: Settings, names: Sequence[str], prompts: Sequence[str] | None
) -> tuple[Settings, list[str]]:
    """The chosen variants, each with every prompt that is given."""
    from msgspec.structs import replace

    from closeloop.records.errors import unknown_name_error

    if not prompts:
        return settings, list(names)
    prompt_variants = {}
    for name in names:
        if name not in settings.variants:
            raise unknown_name_error("variant", name, settings.variants)
        for prompt in prompts:
            # What is typed in a shell is meant from where one stands.
            path = str(Path.cwd() / Path(prompt).expanduser())
            prompt_variants[f"{name} {Path(prompt).name}"] = replace(
                settings.variants[name], prompt=path
            )
    return replace(settings, variants=settings.variants | prompt_variants), list(prompt_variants)
