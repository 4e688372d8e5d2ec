"""`closeloop check`: is this change safe to merge?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from closeloop.changes.sources import Wanted
    from closeloop.checking.check import Order
    from closeloop.checking.fixing import Fixer
    from closeloop.checking.pullrequest import PullRequest
    from closeloop.cli.config import Configuration
    from closeloop.model.report import Report

Format = Literal["terminal", "markdown", "sarif", "junit", "gitlab"]
TierName = Literal["tools", "quality", "risk"]


def check(  # noqa: PLR0913 - one parameter for each flag
    change: str | None = None,
    *,
    base: str | None = None,
    patch: Path | None = None,
    task: str | None = None,
    tier: Annotated[list[TierName] | None, Parameter(negative=())] = None,
    fix: str | None = None,
    format: Format = "terminal",  # noqa: A002
    github: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Validate a change: the repository's own tools, code quality, risk. Nothing in it is touched.

    Parameters
    ----------
    change
        A range such as main..feature, a branch or a commit; the working tree when not given.
    base
        What to compare with.
    patch
        A file with the change, instead.
    task
        The task it was made for, by id or file: then its scope counts.
    tier
        Only this tier: tools, quality or risk; may be given again.
    fix
        Let this variant of closeloop.toml mend what the tools find, in a workspace of its own.
    format
        How the report is written: terminal, markdown, sarif, junit or gitlab.
    github
        In a GitHub workflow: look at its pull request, and tell it.
    json
        Print one JSON document instead.
    """
    import anyio

    from closeloop.changes.sources import Wanted
    from closeloop.checking.check import TIERS
    from closeloop.checking.pullrequest import read_event
    from closeloop.cli.config import load
    from closeloop.cli.console import say_json
    from closeloop.model.errors import BadInput

    if (change is not None) + (patch is not None) + github > 1:
        raise BadInput("Give either a range, --patch or --github: each names a change.")
    found = load(Path.cwd())
    pull = read_event(event_file(os.environ)) if github else None
    wanted = Wanted(range=change, patch=patch, base=base)
    if pull is not None:
        wanted = Wanted(range=f"{pull.base}...{pull.head}")
    with telling(quiet=json or format != "terminal") as tell:
        order = order_of(found, wanted, tuple(tier or TIERS), task, pull, tell)
        report = anyio.run(go, order, found, fix)
    if json:
        say_json(report)
    else:
        print_report(report, format)
    if pull is not None:
        anyio.run(told, pull, report, os.environ)
    return 1 if report.verdict == "block" else 0


def order_of(
    found: Configuration,
    wanted: Wanted,
    tiers: tuple[TierName, ...],
    task: str | None,
    pull: PullRequest | None,
    tell: Callable[[str], None],
) -> Order:
    """What to do, by settings and flags; a project without commands is looked at for some."""
    from closeloop import flow
    from closeloop.checking.check import Order
    from closeloop.model.settings import Commands
    from closeloop.tasks.discover import discover

    settings, root = found.settings, Path.cwd()
    chosen = flow.choose(settings, found.root, [task])[0] if task else None
    commands = settings.commands
    if commands == Commands() and "tools" in tiers:
        commands = discover(found.root).commands
    return Order(
        root=root,
        wanted=wanted,
        cache=cache_of(found, os.environ),
        settings=settings.check,
        commands=commands,
        silences=settings.silence,
        tiers=tiers,
        task=chosen,
        request=pull.request if pull else None,
        tell=tell,
    )


def cache_of(found: Configuration, environ: Mapping[str, str]) -> Path:
    """Outside the repository, which a check leaves exactly as it was, unless one is set."""
    if found.settings.cache:
        return found.root / found.settings.cache
    home = environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "closeloop"


async def go(order: Order, found: Configuration, fix: str | None) -> Report:
    from closeloop.checking.check import check
    from closeloop.runs.workspaces import Workspaces

    async with AsyncExitStack() as opened:
        workspaces = await opened.enter_async_context(
            Workspaces(order.cache / "workspaces", found.settings.sandbox)
        )
        fixer = await open_fixer(opened, found, fix) if fix else None
        return await check(order, workspaces, fixer)


async def open_fixer(opened: AsyncExitStack, found: Configuration, name: str) -> Fixer:
    """The variant that mends, with its model open."""
    from closeloop.checking.fixing import Fixer
    from closeloop.runs.models.budget import budgeted
    from closeloop.runs.models.opening import open_model
    from closeloop.runs.variants import assemble

    crew = assemble(name, found.settings, found.root)
    model = None
    if crew.model is not None:
        limits = crew.variant.limits
        model = open_model(
            crew.variant.model or "", crew.model, limits, environ=os.environ, folder=found.root
        )
        opened.push_async_callback(model.close)
    return Fixer(
        agent=crew.agent,
        model=model and budgeted(model, crew.variant.limits),
        variant=crew.variant,
        system=crew.system,
    )


@contextmanager
def telling(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """What is going on, on a terminal."""
    from closeloop.cli.console import console, visible

    output = console(stderr=True)
    if quiet or not output.is_terminal:
        yield lambda text: None
        return
    with output.status("looking at the change") as status:
        yield lambda text: status.update(visible(text))


def print_report(report: Report, format: Format) -> None:  # noqa: A002
    from closeloop import plugins
    from closeloop.changes.reports import render, terminal
    from closeloop.cli.console import show

    if format == "terminal":
        show(*terminal.told(report))
        return
    rules = [rule for check in plugins.every("checks") for rule in check.rules]
    print(render(format, report, rules), end="")  # noqa: T201


def event_file(environ: Mapping[str, str]) -> Path:
    from closeloop.model.errors import BadInput

    if "GITHUB_EVENT_PATH" not in environ:
        raise BadInput("--github works in a GitHub workflow: GITHUB_EVENT_PATH is not set.")
    return Path(environ["GITHUB_EVENT_PATH"])


async def told(pull: PullRequest, report: Report, environ: Mapping[str, str]) -> None:
    """Comment, check run and labels; what could not be written is said."""
    from closeloop.checking.github import API, open_github
    from closeloop.checking.publishing import publish
    from closeloop.cli.console import warn

    summary = environ.get("GITHUB_STEP_SUMMARY")
    held = any(reason.startswith("the risk is") for reason in report.reasons)
    async with open_github(
        pull.repo, environ.get("GITHUB_TOKEN", ""), environ.get("GITHUB_API_URL", API)
    ) as hub:
        published = await publish(
            hub,
            pull,
            report,
            held=report.verdict == "block" and held,
            summary=Path(summary) if summary else None,
        )
    for note in published.notes:
        warn(note)
