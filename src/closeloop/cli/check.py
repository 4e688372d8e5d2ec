"""`closeloop check`: is this change safe to merge?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from closeloop.changes.sources import Wanted
    from closeloop.checking.check import Order
    from closeloop.checking.fixing import Fixer
    from closeloop.checking.keeping import Subject
    from closeloop.checking.pullrequest import PullRequest
    from closeloop.cli.config import Configuration
    from closeloop.model.finding import Unmeasured
    from closeloop.model.protocols import Model
    from closeloop.model.report import Report
    from closeloop.model.settings import CheckSettings

TierName = Literal["tools", "quality", "risk"]


def check(  # noqa: PLR0913 - one parameter for each flag
    change: str | None = None,
    *,
    base: str | None = None,
    patch: Path | None = None,
    staged: bool = False,
    attempt: str | None = None,
    task: str | None = None,
    tier: list[TierName] | None = None,
    coverage: bool = False,
    fix: str | None = None,
    model: str | None = None,
    format: list[str] | None = None,  # noqa: A002
    github: bool = False,
    json: bool = False,
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
    staged
        What `git add` has taken in, instead: what a commit would hold.
    attempt
        What this attempt changed, by its id, instead; the report stands with it from then on.
    task
        The task it was made for, by id or file: then its scope counts.
    tier
        Only this tier: tools, quality or risk; may be given again.
    coverage
        Run the tests once more, to see which changed lines they reach.
    fix
        Let this variant of closeloop.toml mend what the tools find, in a workspace of its own.
    model
        Let this model review what tools cannot see, in tier quality; it only advises.
    format
        How the report is printed: terminal, markdown, sarif, junit, gitlab or json.
        As markdown=report.md it is written to that file. May be given again.
    github
        In a GitHub workflow: look at its pull request, and tell it.
    json
        Print one JSON document instead.
    """
    import anyio
    from msgspec.structs import replace

    from closeloop.changes.sources import NoChange, Wanted
    from closeloop.checking.check import TIERS
    from closeloop.checking.pullrequest import read_event
    from closeloop.cli.config import load
    from closeloop.cli.console import warn

    demand_one(change, patch, attempt, staged or None, github or None)
    outputs = outputs_of([*(format or ()), *(["json"] if json else ())])
    pull = read_event(event_file(os.environ)) if github else None
    wanted = Wanted(range=change, patch=patch, base=base, staged=staged)
    wanted = wanted_of(wanted, pull, os.environ)
    # An attempt's change comes from the store: nothing of it lies in this folder.
    found = load(Path.cwd()) if attempt else configuration_of(wanted, pull)
    try:
        with (
            telling(quiet=outputs[None] != "terminal") as tell,
            subject_of(found, wanted, attempt) as about,
        ):
            order = order_of(found, about.wanted, tuple(tier or TIERS), task, coverage=coverage)
            settings = replace(order.settings, model=model or order.settings.model)
            order = replace(
                order,
                task=order.task or about.task,
                request=pull.request if pull else None,
                tell=tell,
                settings=settings,
            )
            report = anyio.run(go, order, found, fix)
            keep_report(report, found, about.attempt)
    except NoChange as none:
        if not staged:
            raise
        warn(str(none))  # a commit may change no more than its message
        return 0
    for path, name in outputs.items():
        write_report(report, name, path)
    if pull is not None:
        anyio.run(told, pull, report, os.environ)
    return 1 if report.verdict == "block" else 0


def demand_one(*changes: str | Path | bool | None) -> None:
    from closeloop.model.errors import BadInput

    if sum(one is not None for one in changes) > 1:
        raise BadInput(
            "Give either a range, --patch, --staged, --attempt or --github: each names a change."
        )


def wanted_of(wanted: Wanted, pull: PullRequest | None, environ: Mapping[str, str]) -> Wanted:
    """What the flags name, or the workflow; a commit under way may have an index of its own."""
    from msgspec.structs import replace

    from closeloop.changes.sources import Wanted

    if pull is not None:
        return Wanted(range=f"{pull.base}...{pull.head}")
    if wanted.staged and "GIT_INDEX_FILE" in environ:
        return replace(wanted, index=Path(environ["GIT_INDEX_FILE"]).absolute())
    return wanted


def configuration_of(wanted: Wanted, pull: PullRequest | None = None) -> Configuration:
    """What holds for a change, which may have written the configuration that lies here."""
    from closeloop.changes.sources import find_commit_before
    from closeloop.cli.config import load_for_change

    before = find_commit_before(Path.cwd(), wanted)
    if pull is not None:
        return load_for_change(Path.cwd(), pull.base, only_commit=True)
    return load_for_change(Path.cwd(), before)


def order_of(
    found: Configuration,
    wanted: Wanted,
    tiers: tuple[TierName, ...],
    task: str | None,
    *,
    coverage: bool,
) -> Order:
    """What to do, by settings and flags; a project without commands is looked at for some."""
    from closeloop.checking.check import Order
    from closeloop.model.settings import Commands
    from closeloop.tasks.discover import discover

    settings, root = found.settings, Path.cwd()
    chosen = None
    if task:
        from closeloop import flow
        from closeloop.tasks.seal import demand_open

        chosen = flow.choose(settings, found.root, [task])[0]
        demand_open(chosen)
    commands = settings.commands
    if commands == Commands() and ("tools" in tiers or coverage):
        commands = discover(found.root).commands
    return Order(
        root=root,
        wanted=wanted,
        cache=cache_of(found, os.environ),
        settings=with_learned(found) if "quality" in tiers else settings.check,
        commands=commands,
        silences=settings.silence,
        tiers=tiers,
        task=chosen,
        coverage=coverage,
    )


@contextmanager
def subject_of(found: Configuration, wanted: Wanted, attempt: str | None) -> Iterator[Subject]:
    """What is wanted, or what an attempt changed."""
    from closeloop.checking.keeping import Subject, work_of
    from closeloop.cli.shelves import opened
    from closeloop.model.errors import BadInput
    from closeloop.model.settings import has_store

    if attempt is None:
        yield Subject(wanted=wanted)
        return
    if not has_store(found.settings, found.root):
        raise BadInput(f"There is no store at {found.settings.store}, so no attempt: run one.")
    with opened(found=found) as at, work_of(attempt, at.store, wanted.base) as subject:
        yield subject


def keep_report(report: Report, found: Configuration, attempt: str | None) -> None:
    """For the dashboard, where there is a store; a check that cannot be kept is still one."""
    from closeloop.model.settings import has_store

    if found.store_shipped or not has_store(found.settings, found.root):
        return
    from closeloop.checking.keeping import keep
    from closeloop.cli.console import warn
    from closeloop.cli.shelves import opened
    from closeloop.model.errors import Fault

    try:
        with opened(found=found) as at:
            keep(report, at.store, at.repo, attempt)
    except Fault as fault:
        warn(f"The report is not kept: {fault}")


def with_learned(found: Configuration) -> CheckSettings:
    """The settings, and the rules that reviewers taught, where there is a store to hold them."""
    from closeloop.model.settings import has_store

    settings = found.settings
    if found.store_shipped or not has_store(settings, found.root):
        return settings.check
    from closeloop.cli.console import warn
    from closeloop.cli.shelves import opened
    from closeloop.model.errors import Fault
    from closeloop.reviewing.memory import checked

    try:
        with opened(found=found) as at:
            return checked(settings.check, at.store, at.repo)
    except Fault as fault:
        warn(f"What reviewers taught is not checked: {fault}")
        return settings.check


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
        reviewer = None
        if order.settings.model and "quality" in order.tiers:
            reviewer = await open_reviewer(opened, found, order.settings.model)
        report = await check(order, workspaces, fixer, reviewer)
        workspaces.trim()
        return report


async def open_fixer(opened: AsyncExitStack, found: Configuration, name: str) -> Fixer:
    """The variant that mends, with its model open."""
    from closeloop.checking.fixing import Fixer
    from closeloop.runs.gateway import Gateway
    from closeloop.runs.variants import assemble

    crew = assemble(name, found.settings, found.root)
    door = None
    if crew.model is not None:
        gateway = await opened.enter_async_context(Gateway(os.environ, found.root))
        way = gateway.open(crew.variant.model or "", crew.model, crew.variant.limits)
        door = await opened.enter_async_context(way)
    return Fixer(
        agent=crew.agent,
        door=door,
        variant=crew.variant,
        system=crew.system,
    )


async def open_reviewer(
    opened: AsyncExitStack, found: Configuration, name: str
) -> Model | Unmeasured:
    """The model that reviews; one that cannot be used, as without its key, stops nothing else."""
    from closeloop.judges.review import RULE
    from closeloop.model.errors import Fault
    from closeloop.model.finding import Unmeasured
    from closeloop.runs.gateway import Gateway
    from closeloop.runs.models.opening import settings_of

    model = settings_of(name, found.settings.models)
    gateway = await opened.enter_async_context(Gateway(os.environ, found.root))
    way = gateway.open(name, model, found.settings.limits, first=True)
    try:
        return await opened.enter_async_context(way)
    except Fault as fault:
        return Unmeasured(rule=RULE.name, reason=str(fault))


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


def outputs_of(formats: Sequence[str]) -> dict[Path | None, str]:
    """Which format goes into which file, and under None which one is printed."""
    from closeloop.changes.reports import FORMATS
    from closeloop.model.errors import BadInput, unknown

    outputs: dict[Path | None, str] = {}
    for given in formats:
        name, named, file = given.partition("=")
        if name not in (known := ("terminal", "json", *FORMATS)):
            raise unknown("report format", name, known)
        path = Path(file) if named else None
        if path and name == "terminal":
            raise BadInput("The terminal's report is only printed: write --format markdown=FILE.")
        if path is not None and (not file or path.is_dir() or not path.absolute().parent.is_dir()):
            raise BadInput(f"--format {given} names no file that can be written: name one.")
        if path in outputs:
            place = file or "standard output"
            raise BadInput(f"Two reports cannot go to {place}: write --format {name}=FILE.")
        outputs[path] = name
    return outputs if None in outputs else {None: "terminal", **outputs}


def write_report(report: Report, name: str, path: Path | None) -> None:
    """In one format, into a file or to standard output."""
    from closeloop import plugins
    from closeloop.changes.reports import render, terminal
    from closeloop.cli.console import json_of, show
    from closeloop.judges.review import RULE
    from closeloop.model.errors import MachineFailed

    if name == "terminal":
        show(*terminal.told(report))
        return
    if name == "json":
        text = json_of(report)
    else:
        rules = [rule for check in plugins.every("checks") for rule in check.rules]
        rules += [RULE] if any(one.rule == RULE.name for one in report.findings) else []
        text = render(name, report, rules)
    if path is None:
        print(text, end="")  # noqa: T201
        return
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise MachineFailed(f"{path} cannot be written: {error.strerror}.") from None


def event_file(environ: Mapping[str, str]) -> Path:
    from closeloop.model.errors import BadInput

    if "GITHUB_EVENT_PATH" not in environ:
        raise BadInput("--github works in a GitHub workflow: GITHUB_EVENT_PATH is not set.")
    return Path(environ["GITHUB_EVENT_PATH"])


async def told(pull: PullRequest, report: Report, environ: Mapping[str, str]) -> None:
    """Comment, check run and labels; what could not be written is said."""
    from closeloop.checking.publishing import publish
    from closeloop.cli.console import warn
    from closeloop.cli.sources import github_of

    summary = environ.get("GITHUB_STEP_SUMMARY")
    async with github_of(pull.repo, environ) as hub:
        published = await publish(hub, pull, report, Path(summary) if summary else None)
    for note in published.notes:
        warn(note)
