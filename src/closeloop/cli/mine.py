"""`closeloop mine`: make tasks of the repository's past work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.model.plural import plural
from closeloop.model.settings import SandboxKind

if TYPE_CHECKING:
    from rich.status import Status

    from closeloop.mining.mine import Mined, Told, Wish


def mine(  # noqa: PLR0913 - one parameter for each flag
    *,
    from_: str = "git",
    limit: int = 20,
    since: str | None = None,
    budget: float | None = None,
    repeats: int = 3,
    model: str | None = None,
    jobs: int | None = None,
    sandbox: SandboxKind | None = None,
    json: bool = False,
) -> int:
    """Turn past work into proved tasks: commits that changed source and tests together.

    Parameters
    ----------
    from_
        Where the work is: git, pulls (of GitHub), sessions (imported), or a file of pull requests.
    limit
        How many mined tasks there shall be in all; run again with more to go on.
    since
        Only work since then, in git's words: 2024-01-01, "2 years ago".
    budget
        Minutes to spend at the most.
    repeats
        How often the tests run before and after the reference, to find flaky ones.
    model
        A model that puts requests into a user's words; they are marked as its own.
    jobs
        How many candidates are tried at once; as many as there are processors when not given.
    sandbox
        How tests are caged: auto, bwrap, landlock, or none.
    json
        Print one JSON document instead of text.
    """
    import anyio

    from closeloop.cli.console import say_json
    from closeloop.cli.typed import demand_positive
    from closeloop.mining.mine import Wish

    demand_positive(limit=limit, repeats=repeats, jobs=jobs, budget=budget)
    seconds = None if budget is None else 60 * budget
    wish = Wish(limit=limit, since=since, seconds=seconds, repeats=repeats, jobs=jobs)
    mined = anyio.run(_mine, from_, wish, model, sandbox)
    if json:
        say_json(mined)
    else:
        _report(mined, limit, from_)
    return 0 if mined.tasks or mined.before else 1


async def _mine(source: str, wish: Wish, model: str | None, sandbox: SandboxKind | None) -> Mined:
    import os
    from contextlib import AsyncExitStack

    from closeloop import flow
    from closeloop.cli.config import load, repository
    from closeloop.cli.console import console
    from closeloop.cli.run import warn_of_gaps, with_flags
    from closeloop.cli.sources import gather, ledger_of
    from closeloop.mining.mine import Ground
    from closeloop.mining.mine import mine as dig
    from closeloop.model.errors import BadInput

    found = load(Path.cwd())
    settings = with_flags(found.settings, sandbox=sandbox)
    repo = repository(found.root)
    if repo is None:
        raise BadInput(f"{found.root} lies in no git repository: go to one, or clone it.")
    async with AsyncExitStack() as opened:
        workspaces = await opened.enter_async_context(flow.open_workspaces(settings, found.root))
        warn_of_gaps(workspaces)
        store = opened.enter_context(flow.open_named_store(settings, found.root))
        reword = None
        if model is not None:
            from closeloop.mining.rewording import open_rewording

            reword = await opened.enter_async_context(
                open_rewording(model, settings, found.root, os.environ)
            )
        ground = Ground(
            repo=repo,
            tasks=found.root / settings.tasks,
            ledger=ledger_of(source, found.root),
            commands=settings.commands,
            workspaces=workspaces,
            store=store,
            reword=reword,
            gathered=await gather(source, repo, store, found),
        )
        status = opened.enter_context(console(stderr=True).status("looking at the history …"))
        return await dig(ground, wish, _teller(status))


def _teller(status: Status) -> Callable[[Told], None]:
    """Says how many are proved so far, and what is looked at."""
    from closeloop.cli.console import visible

    proved = refused = 0

    def tell(told: Told) -> None:
        nonlocal proved, refused
        proved, refused = proved + (told.stage == "proved"), refused + (told.stage == "refused")
        if told.stage == "proved":
            status.console.print(visible(f"proved {told.task}"), markup=False, highlight=False)
        about = visible(told.about)[:60]
        status.update(f"{proved} proved, {refused} not; {about} …".replace("[", "\\["))

    return tell


def _report(mined: Mined, limit: int, source: str) -> None:
    from collections import Counter

    from closeloop.cli.console import say, visible
    from closeloop.cli.sources import ledger_of

    minutes = mined.seconds / 60
    say(
        f"{plural(len(mined.tasks), 'task')} from {mined.tried} of "
        f"{plural(mined.candidates, 'candidate')}, "
        f"{plural(mined.environments, 'environment')}, {minutes:.1f} minutes"
        + (f"; {plural(mined.before, 'was', 'were')} there already" if mined.before else "")
    )
    reasons = Counter(visible(why.partition("\n")[0])[:160] for why in mined.refused.values())
    for why, count in reasons.most_common(6):
        say(f"  {count} not: {why}")
    if any(why.startswith("no environment") for why in mined.refused.values()):
        say("Say as `setup` and `test` under [commands] in closeloop.toml what makes tests run.")
    if mined.lost:
        gone = plural(mined.lost, "earlier task starts", "earlier tasks start")
        say(f"{gone} from commits that this history no longer has: delete what is of no use.")
    if mined.shallow:
        say("This clone is shallow: `git fetch --unshallow` brings more work to look at.")
    if not mined.candidates:
        _say_nothing_found(mined, source)
    elif len(mined.tasks) + mined.before < limit:
        next_ = "Run it again to go on" if mined.left else "Nothing is left to try"
        say(f"{next_}; the ledger in {ledger_of(source, Path())} says what was tried.")
    if mined.tasks:
        say("Next: read them over, then `closeloop run` tries agents on them.")


def _say_nothing_found(mined: Mined, source: str) -> None:
    from closeloop.cli.console import say

    nothing, none = {
        "git": ("No commit here changes source and tests together.", "no commit has a parent"),
        "sessions": ("No session here became a commit.", "none is imported: `closeloop import`"),
    }.get(source, ("No pull request here was merged into this clone.", "there are none"))
    reason = max(mined.passed_over, key=lambda one: mined.passed_over[one], default=None)
    say(f"{nothing} {'Mostly' if reason else 'That is'}: {reason or none}.")
