"""`closeloop mine`: make tasks of the repository's past work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.records.plural import count_with_noun
from closeloop.records.settings import SandboxKind

if TYPE_CHECKING:
    from rich.status import Status

    from closeloop.tasks.mining.miner import MiningEvent, MiningOptions, MiningResult


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

    from closeloop.cli.console import print_json
    from closeloop.cli.flag_checks import require_positive_flags
    from closeloop.tasks.mining.miner import MiningOptions

    require_positive_flags(limit=limit, repeats=repeats, jobs=jobs, budget=budget)
    seconds = None if budget is None else 60 * budget
    wish = MiningOptions(limit=limit, since=since, seconds=seconds, repeats=repeats, jobs=jobs)
    mined = anyio.run(_run_mining, from_, wish, model, sandbox)
    if json:
        print_json(mined)
    else:
        _print_mining_report(mined, limit, from_)
    return 0 if mined.tasks or mined.before else 1


async def _run_mining(
    source: str, wish: MiningOptions, model: str | None, sandbox: SandboxKind | None
) -> MiningResult:
    import os
    from contextlib import AsyncExitStack

    from closeloop import flow
    from closeloop.cli.config import find_repository_root, load_project
    from closeloop.cli.console import open_console
    from closeloop.cli.mining_sources import gather_mining_work, mining_ledger_file
    from closeloop.cli.run import apply_run_flags, warn_of_sandbox_gaps
    from closeloop.records.errors import BadInput
    from closeloop.tasks.mining.miner import MiningContext
    from closeloop.tasks.mining.miner import mine_tasks as dig

    project = load_project(Path.cwd())
    settings = apply_run_flags(project.settings, sandbox=sandbox)
    repo = find_repository_root(project.root)
    if repo is None:
        raise BadInput(f"{project.root} lies in no git repository: go to one, or clone it.")
    async with AsyncExitStack() as exit_stack:
        workspaces = await exit_stack.enter_async_context(
            flow.open_workspaces(settings, project.root)
        )
        warn_of_sandbox_gaps(workspaces)
        store = exit_stack.enter_context(flow.open_project_store(settings, project.root))
        reword = None
        if model is not None:
            from closeloop.tasks.mining.prompt_rewording import open_rewording

            reword = await exit_stack.enter_async_context(
                open_rewording(model, settings, project.root, os.environ)
            )
        mining_context = MiningContext(
            repo=repo,
            tasks=project.root / settings.tasks,
            ledger=mining_ledger_file(source, project.root),
            commands=settings.commands,
            workspaces=workspaces,
            store=store,
            reword=reword,
            gathered=await gather_mining_work(source, repo, store, project),
        )
        status = exit_stack.enter_context(
            open_console(stderr=True).status("looking at the history …")
        )
        return await dig(mining_context, wish, _make_progress_reporter(status))


def _make_progress_reporter(status: Status) -> Callable[[MiningEvent], None]:
    """Says how many are proved so far, and what is looked at."""
    from closeloop.cli.console import make_visible

    proved = refused = 0

    def report_event(told: MiningEvent) -> None:
        nonlocal proved, refused
        proved, refused = proved + (told.stage == "proved"), refused + (told.stage == "refused")
        if told.stage == "proved":
            status.console.print(make_visible(f"proved {told.task}"), markup=False, highlight=False)
        about = make_visible(told.about)[:60]
        status.update(f"{proved} proved, {refused} not; {about} …".replace("[", "\\["))

    return report_event


def _print_mining_report(mined: MiningResult, limit: int, source: str) -> None:
    from collections import Counter

    from closeloop.cli.console import make_visible, print_line
    from closeloop.cli.mining_sources import mining_ledger_file

    minutes = mined.seconds / 60
    print_line(
        f"{count_with_noun(len(mined.tasks), 'task')} from {mined.tried} of "
        f"{count_with_noun(mined.candidates, 'candidate')}, "
        f"{count_with_noun(mined.environments, 'environment')}, {minutes:.1f} minutes"
        + (
            f"; {count_with_noun(mined.before, 'was', 'were')} there already"
            if mined.before
            else ""
        )
    )
    reasons = Counter(make_visible(why.partition("\n")[0])[:160] for why in mined.refused.values())
    for why, count in reasons.most_common(6):
        print_line(f"  {count} not: {why}")
    if any(why.startswith("no environment") for why in mined.refused.values()):
        print_line(
            "Say as `setup` and `test` under [commands] in closeloop.toml what makes tests run."
        )
    if mined.lost:
        lost_tasks = count_with_noun(mined.lost, "earlier task starts", "earlier tasks start")
        print_line(
            f"{lost_tasks} from commits that this history no longer has: delete what is of no use."
        )
    if mined.shallow:
        print_line("This clone is shallow: `git fetch --unshallow` brings more work to look at.")
    if not mined.candidates:
        _print_no_work_found(mined, source)
    elif len(mined.tasks) + mined.before < limit:
        next_step = "Run it again to go on" if mined.left else "Nothing is left to try"
        print_line(
            f"{next_step}; the ledger in {mining_ledger_file(source, Path())} says what was tried."
        )
    if mined.tasks:
        print_line("Next: read them over, then `closeloop run` tries agents on them.")


def _print_no_work_found(mined: MiningResult, source: str) -> None:
    from closeloop.cli.console import print_line

    nothing, none = {
        "git": ("No commit here changes source and tests together.", "no commit has a parent"),
        "sessions": ("No session here became a commit.", "none is imported: `closeloop import`"),
    }.get(source, ("No pull request here was merged into this clone.", "there are none"))
    reason = max(mined.passed_over, key=lambda one: mined.passed_over[one], default=None)
    print_line(f"{nothing} {'Mostly' if reason else 'That is'}: {reason or none}.")
