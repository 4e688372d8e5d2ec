"""`closeloop run`: tasks × variants × repeats, graded, resumable."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from closeloop.model.settings import SandboxKind, Settings

if TYPE_CHECKING:
    from closeloop.model.plan import Results
    from closeloop.runs.workspaces import Workspaces


def run(  # noqa: PLR0913 - one parameter for each flag
    *tasks: str,
    variant: Annotated[list[str] | None, Parameter(negative=())] = None,
    agent: str | None = None,
    model: Annotated[list[str] | None, Parameter(negative=())] = None,
    repeats: int = 1,
    jobs: int | None = None,
    sandbox: SandboxKind | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Run agents on tasks and grade what they change.

    Finished attempts are kept: stop it at any moment and run the same command again to go on.

    Parameters
    ----------
    tasks
        Ids or files of tasks; every task of the project when none is named.
    variant
        A variant of closeloop.toml; may be given again. All of them when none is named.
    agent
        Run this agent instead of the variants of closeloop.toml.
    model
        Run the agent with this model: a name of closeloop.toml, openai/NAME, anthropic/NAME or
        scripted:FILE. May be given again.
    repeats
        How often each variant tries each task.
    jobs
        How many attempts run at once; as many as there are processors when not given.
    sandbox
        How agents are caged: auto, bwrap, landlock, or none.
    json
        Print one JSON document instead of tables.
    """
    import anyio

    from closeloop.cli.config import load
    from closeloop.cli.console import say_json, show, warn
    from closeloop.cli.live import live
    from closeloop.cli.results import summary_tables
    from closeloop.model.errors import BadInput

    if repeats < 1 or (jobs is not None and jobs < 1):
        raise BadInput("--repeats and --jobs must be at least 1.")
    found = load(Path.cwd())
    if variant and (agent or model):
        raise BadInput("Give either --variant, or --agent and --model: a variant names both.")
    settings = with_flags(found.settings, agent=agent, models=model, sandbox=sandbox)
    names = variant or list(settings.variants)
    if not names:
        raise BadInput(
            "There is no variant to run: name one with --model openai/NAME, "
            "or add a [variants.NAME] section to closeloop.toml."
        )

    async def go() -> Results:
        from closeloop import flow

        chosen = flow.choose(settings, found.root, tasks)
        async with flow.open_workshop(settings, found.root, names, os.environ) as workshop:
            warn_of_gaps(workshop.workspaces)
            plan = flow.plan(workshop, chosen, repeats)
            with live(plan, quiet=json) as progress:
                await flow.run(plan, workshop, jobs=jobs or os.cpu_count() or 1, tell=progress.tell)
            results = flow.results(plan, workshop, skipped=progress.skipped)
            if (missing := progress.total - len(results.attempts)) > 0:
                are = "attempt is" if missing == 1 else "attempts are"
                warn(f"{missing} {are} being made by another process: run this again to see more.")
            return results

    results = anyio.run(go)
    if json:
        say_json(results)
    else:
        show(*summary_tables(results))
    unscored = any(row.outcome not in ("pass", "fail") for row in results.attempts)
    return 2 if results.skipped else 4 if unscored else 0


def warn_of_gaps(workspaces: Workspaces) -> None:
    """Say what the sandbox of this machine does not enforce."""
    from closeloop.cli.console import warn
    from closeloop.flow import guarded

    if workspaces.guards.note:
        warn(f"sandbox {guarded(workspaces)}")


def with_flags(
    settings: Settings,
    *,
    agent: str | None = None,
    models: Sequence[str | None] | None = None,
    sandbox: SandboxKind | None = None,
) -> Settings:
    """The settings as the flags change them: a flag wins over the file."""
    from msgspec.structs import replace

    from closeloop.model.settings import VariantSettings

    if agent or models:
        agent = agent or "builtin"
        made = {
            f"{agent}:{name}" if name else agent: VariantSettings(agent=agent, model=name)
            for name in (models or [None])
        }
        settings = replace(settings, variants=made)
    if sandbox:
        settings = replace(settings, sandbox=replace(settings.sandbox, kind=sandbox))
    return settings
