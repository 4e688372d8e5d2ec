"""`closeloop run`: tasks × variants × repeats, graded, resumable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from closeloop.model.record import Record
from closeloop.model.settings import ExecutorKind, ExperimentSettings, SandboxKind, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from closeloop.cli.live import Live
    from closeloop.model.plan import Mode, Results
    from closeloop.runs.workspaces import Workspaces


class Asked(Record):
    """What the flags and the configuration come to."""

    settings: Settings
    root: Path
    wanted: ExperimentSettings
    name: str | None
    """The experiment's, in the configuration."""
    variants: tuple[str, ...]
    mode: Mode
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
    json: bool = False,
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
    json
        Print one JSON document instead of tables.
    """
    from closeloop.cli.config import load
    from closeloop.model.errors import BadInput

    found = load(Path.cwd())
    wanted = with_choice(
        found.settings,
        experiment,
        {"tasks": tasks, "repeats": repeats, "jobs": jobs, "seed": seed, "budget": budget},
        feedback=feedback,
    )
    if variant and (agent or model):
        raise BadInput("Give either --variant, or --agent and --model: a variant names both.")
    if rerun and regrade:
        raise BadInput("Give either --rerun or --regrade: what is made again is graded anyway.")
    settings = with_flags(found.settings, agents=agent, models=model, sandbox=sandbox)
    settings = with_executor(settings, executor, address)
    chosen = variant or ([] if agent or model else wanted.variants) or settings.variants
    settings, names = with_prompts(settings, list(chosen), prompt)
    if not names:
        raise BadInput(
            "There is no variant to run: name one with --model openai/NAME, "
            "or add a [variants.NAME] section to closeloop.toml."
        )
    asked = Asked(
        settings=settings,
        root=found.root,
        wanted=wanted,
        name=experiment,
        variants=tuple(names),
        mode="regrade" if regrade else "unscored" if rerun else "fill",
        held_out=held_out,
        reason=reason,
        yes=yes,
        json=json,
    )
    return carry_out(asked)


def carry_out(asked: Asked) -> int:
    """Run it, print what came of it, and say how it went by the exit code."""
    import anyio

    from closeloop.cli.console import say_json, show, warn
    from closeloop.cli.results import summary_tables

    results, progress = anyio.run(work, asked)
    if asked.json:
        say_json(results)
    else:
        show(*summary_tables(results))
    if (elsewhere := progress.counts["elsewhere"]) > 0:
        are = "attempt is" if elsewhere == 1 else "attempts are"
        warn(f"{elsewhere} {are} being made by another process: run this again to see more.")
    if progress.held is not None:
        were = "attempt was" if progress.counts["held"] == 1 else "attempts were"
        warn(f"{progress.counts['held']} {were} not begun, as {progress.held}.")
    if results.skipped:
        return 2
    if progress.held is not None or (elsewhere and len(results.attempts) < progress.total):
        return 1
    return 4 if any(row.outcome not in ("pass", "fail") for row in results.attempts) else 0


async def work(asked: Asked) -> tuple[Results, Live]:
    """Plan, say what is ahead, run."""
    from closeloop import flow
    from closeloop.cli.ahead import announce, confirm
    from closeloop.cli.live import live
    from closeloop.cli.sets import write_down
    from closeloop.tasks.seal import hide_results
    from closeloop.tasks.sets import admitted

    settings, wanted, processors = asked.settings, asked.wanted, os.cpu_count() or 1
    tasks = admitted(
        flow.choose(settings, asked.root, wanted.tasks),
        named=bool(wanted.tasks),
        held_out=asked.held_out,
        reason=asked.reason,
    )
    async with flow.open_workshop(settings, asked.root, asked.variants, os.environ) as workshop:
        warn_of_gaps(workshop.tools.workspaces)
        plan = flow.plan(workshop, tasks, wanted, asked.name)
        ahead = flow.expect(plan, workshop, asked.mode, wanted.jobs or processors)
        if ahead.missing and not asked.json:
            announce(ahead, several=len(plan.variants) > 1)
        confirm(ahead, yes=asked.yes)
        write_down(plan, workshop.store, asked.root, asked.reason)
        with live(plan, ahead, wanted.jobs or processors, quiet=asked.json) as progress:
            await flow.run(plan, workshop, jobs=wanted.jobs, mode=asked.mode, tell=progress.tell)
        return hide_results(flow.results(plan, workshop, skipped=progress.skipped)), progress


def warn_of_gaps(workspaces: Workspaces) -> None:
    """Say what the sandbox of this machine does not enforce."""
    from closeloop.cli.console import warn
    from closeloop.flow import guarded

    if workspaces.guards.note:
        warn(f"sandbox {guarded(workspaces)}")


def with_choice(
    settings: Settings, name: str | None, flags: dict[str, Any], *, feedback: bool
) -> ExperimentSettings:
    """The experiment of that name, or a plain one, as the flags change it."""
    from msgspec.structs import replace

    from closeloop.cli.typed import demand_positive
    from closeloop.model.errors import unknown

    if name is not None and name not in settings.experiments:
        raise unknown("experiment", name, settings.experiments)
    wanted = ExperimentSettings() if name is None else settings.experiments[name]
    given = {flag: value for flag, value in flags.items() if value not in (None, ())}
    wanted = replace(wanted, **given, feedback=feedback or wanted.feedback)
    demand_positive(repeats=wanted.repeats, jobs=wanted.jobs, budget=wanted.budget)
    return wanted


def with_flags(
    settings: Settings,
    *,
    agents: Sequence[str] | None = None,
    models: Sequence[str | None] | None = None,
    sandbox: SandboxKind | None = None,
) -> Settings:
    """The settings as the flags change them: a flag wins over the file."""
    from msgspec.structs import replace

    from closeloop.model.settings import VariantSettings

    if agents or models:
        made = {
            f"{agent}:{model}" if model else agent: VariantSettings(agent=agent, model=model)
            for agent in agents or ["builtin"]
            for model in models or [None]
        }
        settings = replace(settings, variants=made)
    if sandbox:
        settings = replace(settings, sandbox=replace(settings.sandbox, kind=sandbox))
    return settings


def with_executor(settings: Settings, kind: ExecutorKind | None, address: str | None) -> Settings:
    """The executor that the flags name."""
    from msgspec.structs import replace

    from closeloop.model.errors import BadInput

    executor = settings.executor
    known = address or executor.address or os.environ.get("RAY_ADDRESS")
    executor = replace(executor, kind=kind or executor.kind, address=known)
    if address is not None and executor.kind != "ray":
        raise BadInput("--address is that of a Ray cluster: add --executor ray.")
    return replace(settings, executor=executor)


def with_prompts(
    settings: Settings, names: Sequence[str], prompts: Sequence[str] | None
) -> tuple[Settings, list[str]]:
    """The chosen variants, each with every prompt that is given."""
    from msgspec.structs import replace

    from closeloop.model.errors import unknown

    if not prompts:
        return settings, list(names)
    made = {}
    for name in names:
        if name not in settings.variants:
            raise unknown("variant", name, settings.variants)
        for prompt in prompts:
            # What is typed in a shell is meant from where one stands.
            path = str(Path.cwd() / Path(prompt).expanduser())
            made[f"{name} {Path(prompt).name}"] = replace(settings.variants[name], prompt=path)
    return replace(settings, variants=settings.variants | made), list(made)
