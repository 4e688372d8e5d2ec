"""`closeloop judge`: score outputs by a rubric, with the facts first."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from closeloop.cli.console import visible
from closeloop.model.plural import plural

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.cli.config import Configuration
    from closeloop.judging.bench import Bench
    from closeloop.model.errors import Fault
    from closeloop.model.evaluation import Case, Evaluation, Evaluations, Preference, Site
    from closeloop.store import Store

COLOURS = {True: "green", False: "red", None: "yellow"}
WORDS = {True: "pass", False: "fail", None: "no verdict"}

app = App(name="judge", help_format="plaintext")
app.command(
    "closeloop.cli.calibrate:calibrate",
    help="Hold a judge against people's labels, against its earlier versions, and against attacks.",
)


@app.default
def judge(  # noqa: PLR0913 - one parameter for each flag
    attempts: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)] = None,
    *,
    patch: Path | None = None,
    request: str | None = None,
    check: bool = False,
    model: list[str] | None = None,
    rubric: str | None = None,
    samples: int | None = None,
    against: list[str] | None = None,
    json: bool = False,
) -> int:
    """Evaluate outputs: completeness, quality and relevance, check by check, with quotes.

    Exit code 1 when a fact fails one, or a judge that is calibrated well enough to block.

    Parameters
    ----------
    attempts
        Ids of attempts, or their beginnings; `-` reads JSON of request, plan and results.
    patch
        A file with a change to judge, instead.
    request
        What was asked for, with --patch.
    check
        Validate the patch first, as `closeloop check` does: what that says are facts.
    model
        Who judges; several are a panel. Those of closeloop.toml when not given.
    rubric
        code-change, analysis, documentation, or a file.
    samples
        How often each model is asked about each output.
    against
        An attempt at the same task for each of those named: say which of the two is better.
    json
        Print one JSON document instead.
    """
    from closeloop import flow
    from closeloop.cli.config import load

    names = attempts or []
    demand_one(names, patch, request, check=check)
    found = load(Path.cwd())
    given = patch is not None or "-" in names
    opening_store = flow.open_named_store if given else flow.open_kept_store
    with opening_store(found.settings, found.root) as store:
        if patch is not None:
            cases = [patch_case(patch, request or "", found, check=check)]
        else:
            cases = cases_of(names, found, store)
        opening = partial(opened_bench, found, model or [], rubric, samples)
        if against:
            return versus(cases, cases_of(against, found, store), opening, store, json)
        ours = [] if "-" in names else [store.attempt(name).id for name in names]
        return judged(cases, ours, opening, store, json)


def demand_one(
    names: Sequence[str], patch: Path | None, request: str | None, *, check: bool
) -> None:
    """Either attempts are judged, or a patch with its request."""
    from closeloop.model.errors import BadInput

    if bool(names) == (patch is not None):
        raise BadInput("Name attempts to judge, or `-` for JSON on standard input, or --patch.")
    if check and patch is None:
        raise BadInput("--check goes with --patch: attempts are graded already.")
    if (patch is None) != (request is None):
        raise BadInput("--patch and --request go together: what was changed, and what was asked.")


def judged(
    cases: Sequence[Case],
    attempts: Sequence[str],
    opening: Callable[[], AbstractAsyncContextManager[Bench]],
    store: Store,
    json: bool,
) -> int:
    """Each case by itself, kept as it comes and told in the end, even where the store is gone."""
    import anyio

    from closeloop.cli.console import say_json, show
    from closeloop.judging.keeping import evaluate_and_keep
    from closeloop.judging.trust import blocking

    async def go() -> tuple[Evaluations, Fault | None]:
        async with opening() as bench:
            return await evaluate_and_keep(bench, cases, store, attempts)

    made, fault = anyio.run(go)
    stops = [] if fault else blocking(made, store)
    say_json(made) if json else show(*told(made, stops))
    if fault is not None:
        raise fault
    return 1 if stops else 0


def patch_case(patch: Path, request: str, found: Configuration, *, check: bool) -> Case:
    """A change in a file, with what is known of it."""
    import anyio

    from closeloop.cli.files import content_of
    from closeloop.judging.cases import case_of_patch

    text = content_of(patch).decode("utf-8", "replace")
    report = None
    if check:
        from msgspec.structs import replace

        from closeloop.changes.sources import Wanted
        from closeloop.checking.check import TIERS
        from closeloop.cli.check import configuration_of, go, order_of

        wanted = Wanted(patch=patch)
        checking = configuration_of(wanted)
        order = order_of(checking, wanted, TIERS, None, coverage=False)
        report = anyio.run(go, replace(order, request=request), checking, None)
    return case_of_patch(text, request, site_here(found), report)


def cases_of(names: Sequence[str], found: Configuration, store: Store) -> list[Case]:
    """What is to be judged."""
    from closeloop.judging.cases import case_of, read_submission
    from closeloop.judging.evaluate import cases_of_submission
    from closeloop.measuring.attempts import book_of, story
    from closeloop.model.errors import BadInput
    from closeloop.tasks.seal import demand_open

    if "-" in names:
        if len(names) > 1:
            raise BadInput("Give either attempts, or `-` for JSON on standard input.")
        from closeloop.judging.cases import LARGEST

        content = sys.stdin.buffer.read(LARGEST + 1)
        return cases_of_submission(read_submission(content, "standard input"))
    book = book_of(found.settings)
    stories = [story(store, name, book) for name in names]
    for one in stories:
        demand_open(one.task)
    return [case_of(one, store.exact_change(one.attempt.id)) for one in stories]


def site_here(found: Configuration) -> Site | None:
    """The commit that is checked out, which a patch is taken to be for."""
    from closeloop.model.errors import BadInput
    from closeloop.model.evaluation import Site
    from closeloop.runs.workspaces import resolve_commit

    if found.settings.judge.variant is None:
        return None
    repo = Path.cwd()
    try:
        commit = resolve_commit(repo, "HEAD")
    except BadInput:
        return None
    return Site(repo=str(repo), commit=commit, setup=found.settings.commands.setup)


@asynccontextmanager
async def opened_bench(
    found: Configuration, models: Sequence[str], rubric: str | None, samples: int | None
) -> AsyncIterator[Bench]:
    from closeloop.judging.bench import open_bench
    from closeloop.judging.looking import Means, with_eyes
    from closeloop.runs.gateway import Gateway

    settings, root = found.settings, found.root
    async with AsyncExitStack() as opened:
        gateway = await opened.enter_async_context(Gateway(os.environ, root))
        bench = open_bench(settings, gateway, root, models=models, rubric=rubric, samples=samples)
        if settings.judge.variant is not None:
            from closeloop import flow

            workspaces = await opened.enter_async_context(flow.open_workspaces(settings, root))
            means = Means(gateway=gateway, workspaces=workspaces, root=root)
            bench = with_eyes(bench, settings, means)
        yield bench


def versus(
    cases: Sequence[Case],
    others: Sequence[Case],
    opening: Callable[[], AbstractAsyncContextManager[Bench]],
    store: Store,
    json: bool,
) -> int:
    """Pairs, each asked in both orders."""
    import anyio
    from rich.text import Text

    from closeloop.cli.console import say_json, show
    from closeloop.judging.comparing import flip_rate, prefer
    from closeloop.model.errors import BadInput

    if len(cases) != len(others):
        raise BadInput("Give --against once for each attempt: pairs are compared.")

    async def go() -> list[Preference]:
        async with opening() as bench:
            return await prefer(bench, list(zip(cases, others, strict=True)))

    made = anyio.run(go)
    store.judged.save_preferences(made)
    if json:
        say_json({"preferences": made, "flips": flip_rate(made)})
        return 0
    for one in made:
        why = one.abstained or ("by position alone" if one.flipped else one.reasons[0])
        show(Text(f"{visible(one.task)}  {one.winner or 'no verdict'}: {visible(why)}"))
    flips = flip_rate(made)
    if flips is not None:
        show(Text(f"The order decided {flips.hits:g} of {flips.of}.", style="dim"))
    return 0


def told(made: Evaluations, stops: Sequence[str]) -> Iterator[RenderableType]:
    """Each output with what is wrong, then the whole."""
    from rich.text import Text

    for one in made.evaluations:
        yield from told_one(one)
    judges = "; ".join(f"{one.judge} by {one.model}, {one.rubric}" for one in made.judges)
    yield Text(visible(f"judged by {judges}"), style="dim")
    if stops:
        yield Text(f"blocks: {visible('; '.join(stops))}", style="bold red")
    elif made.passed is False:
        yield Text("advises only: `closeloop judge calibrate` says how far to trust it.")


def told_one(one: Evaluation) -> Iterator[RenderableType]:
    from rich.text import Text

    title = Text(f"{visible(one.task)}  ", style="bold")
    title.append(WORDS[one.passed], style=COLOURS[one.passed])
    if one.score is not None:
        spread = "" if one.spread is None else f" ± {one.spread:.2f}"
        title.append(f"  {one.score:.2f}{spread}")
    for part in one.criteria:
        title.append(f"  {part.name} {'–' if part.score is None else f'{part.score:.2f}'}", "dim")
    yield title
    if one.samples:
        votes = ", ".join(WORDS[vote.passed] for vote in one.samples)
        yield Text(f"  asked {plural(len(one.samples), 'time')}: {votes}", style="dim")
    if one.abstained:
        yield Text(f"  abstains: {visible(one.abstained)}", style="yellow")
    if one.same_family:
        yield Text("  the judge is of the family that made this", style="yellow")
    if one.cut:
        yield Text(f"  {plural(one.cut, 'character')} too many to show", style="yellow")
    for issue in one.issues:
        yield Text(f"  {issue.check} ({issue.source}): {visible(issue.text)}")
        for quote in issue.evidence[:1] if issue.source == "judge" else ():
            yield Text(f"    “{visible(quote[:200])}”", style="dim")
