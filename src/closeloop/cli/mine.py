"""`closeloop mine`: create tasks from the repository's history."""

from __future__ import annotations

import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeloop.cli.console import JsonFlag
from closeloop.text.wording import count_with_noun, truncate_at_word

if TYPE_CHECKING:
    from rich.status import Status

    from closeloop.changes.code_host import CodeHostClient
    from closeloop.cli.config import ProjectConfiguration
    from closeloop.records.settings import Settings
    from closeloop.store import Store
    from closeloop.tasks.miner import MiningEvent, MiningOptions, MiningResult
    from closeloop.tasks.work_history import ExportedPull, GatheredWork, PullExport


def mine(  # noqa: PLR0913 - one parameter for each flag
    *,
    from_: str = "git",
    limit: int = 20,
    since: str | None = None,
    minutes: float | None = None,
    test_runs: int = 3,
    model: str | None = None,
    jobs: int | None = None,
    json: JsonFlag = False,
) -> int:
    """Create tasks from commits that changed source and tests together, and verify them.

    Parameters
    ----------
    from_
        Source: git, pulls (of GitHub), sessions (imported), a file of pull requests, or commits
        (`3f0c21d`, `v1.2..main`, several with commas between).
    limit
        Stop when this many mined tasks exist, or this many new ones from named commits; run again
        with a higher limit to continue.
    since
        Only commits since then: 24h, 7d, 104w, or a date such as 2024-01-01.
    minutes
        Stop after this many minutes.
    test_runs
        How often the tests run before and after the reference change, to find flaky tests.
    model
        A model that rewrites requests as a user would; they are marked as rewritten.
    jobs
        Number of candidates tested at once; by default the number of processors.
    """
    import anyio

    from closeloop.cli.console import print_json, require_positive_flags
    from closeloop.cli.import_ import parse_since
    from closeloop.tasks.miner import MiningOptions

    require_positive_flags(limit=limit, test_runs=test_runs, jobs=jobs, minutes=minutes)
    seconds = None if minutes is None else 60 * minutes
    start = parse_since(since)
    options = MiningOptions(
        limit=limit,
        since=start.isoformat() if start else None,
        seconds=seconds,
        repeats=test_runs,
        jobs=jobs,
        named=is_commit_source(from_),
    )
    titles: dict[str, str] = {}
    mined = anyio.run(_run_mining, from_, options, model, titles)
    if json:
        print_json(mined)
    else:
        _print_mining_report(mined, titles, limit, from_)
    return 0 if mined.tasks or mined.before else 1


async def _run_mining(
    source: str, options: MiningOptions, model: str | None, titles: dict[str, str]
) -> MiningResult:
    """Mine tasks; the titles of the commits that are tried are added to `titles`."""
    from contextlib import AsyncExitStack

    from closeloop.attempts.run_resources import open_workspaces
    from closeloop.cli.config import find_repository_root, load_project
    from closeloop.cli.console import WaitingLog, open_console, print_warning
    from closeloop.cli.run import warn_of_sandbox_gaps
    from closeloop.records.errors import BadInput
    from closeloop.sandbox.admission import report_waiting
    from closeloop.store.store import open_project_store
    from closeloop.tasks.miner import MiningContext, mine_tasks

    project = load_project(Path.cwd())
    settings = project.settings
    repo = find_repository_root(project.root)
    if repo is None:
        raise BadInput(f"{project.root} is not in a git repository: change to one, or clone it.")
    async with AsyncExitStack() as exit_stack:
        workspaces = await exit_stack.enter_async_context(open_workspaces(settings, project.root))
        warn_of_sandbox_gaps(workspaces)
        store = exit_stack.enter_context(open_project_store(settings, project.root))
        reword = None
        if model is not None:
            from closeloop.tasks.miner import open_rewording

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
        exit_stack.enter_context(report_waiting(WaitingLog(print_warning, time.monotonic).note))
        status = exit_stack.enter_context(open_console(stderr=True).status("reading the history …"))
        return await mine_tasks(mining_context, options, _make_progress_reporter(status, titles))


MAX_TITLE_CHARS = 50
MAX_REASON_CHARS = 160
MAX_REJECTION_LINES = 5
MAX_EXAMPLES = 2
_REASON_DETAIL = re.compile(r"`[^`]+`|'[^']+'|“[^”]+”|\S*[/_:=]\S+|\d+|: .*")
"""Parts of a reason that differ between commits rejected for the same reason."""
STAGE_LABELS = {"proved": "verified", "refused": "rejected"}


def _make_progress_reporter(
    status: Status, titles: dict[str, str]
) -> Callable[[MiningEvent], None]:
    """Return a callback that shows how many are verified and what runs; in a log, one line per
    event."""
    from closeloop.cli.console import make_visible

    proved = refused = 0
    console = status.console

    def report_event(event: MiningEvent) -> None:
        nonlocal proved, refused
        if event.stage == "trying" and event.commit is not None:
            titles[event.commit] = event.about
        proved, refused = proved + (event.stage == "proved"), refused + (event.stage == "refused")
        subject = " ".join(filter(None, ((event.commit or "")[:10], event.task, event.about)))
        stage = STAGE_LABELS.get(event.stage, event.stage)
        line = make_visible(f"{stage} {subject}".partition("\n")[0])
        if event.stage == "proved" or not console.is_terminal:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        subject_text = make_visible(event.about)[:60]
        status.update(
            f"{proved} verified, {refused} rejected; {subject_text} …".replace("[", "\\[")
        )

    return report_event


def _print_mining_report(
    mined: MiningResult, titles: Mapping[str, str], limit: int, source: str
) -> None:
    from closeloop.cli.console import print_line

    minutes = mined.seconds / 60
    print_line(
        f"{count_with_noun(len(mined.tasks), 'task')} from {mined.tried} of "
        f"{count_with_noun(mined.candidates, 'candidate')}, "
        f"{count_with_noun(mined.environments, 'environment')}, {minutes:.1f} minutes"
        + (f"; {count_with_noun(mined.before, 'task')} already existed" if mined.before else "")
    )
    for line in _list_rejections(mined.refused, titles):
        print_line(line)
    if any(reason.startswith("no environment") for reason in mined.refused.values()):
        print_line(
            "Set `setup` and `test` under [commands] in closeloop.toml so that the tests run."
        )
    if mined.lost:
        lost_tasks = count_with_noun(mined.lost, "earlier task starts", "earlier tasks start")
        print_line(
            f"{lost_tasks} from commits that are no longer in the history: delete the "
            "tasks that you do not need."
        )
    if mined.shallow:
        print_line("This clone is shallow: `git fetch --unshallow` makes more commits available.")
    if not mined.candidates:
        _print_no_work_found(mined, source)
    elif len(mined.tasks) + mined.before < limit:
        next_step = "Run the command again to continue" if mined.left else "No candidates are left"
        for line in _list_unfit(mined.passed_over):
            print_line(line)
        print_line(
            f"{next_step}; the ledger in {mining_ledger_file(source, Path())} lists "
            "every candidate and its result."
        )
    if mined.tasks:
        print_line("Next: read the tasks, then run an agent on them with `closeloop run`.")
        print_line("Without a key: `closeloop run --agent noop --agent reference`.")


def _list_rejections(refused: Mapping[str, str], titles: Mapping[str, str]) -> Iterator[str]:
    """Yield a line per rejected commit if there are few or under -v, else per reason."""
    from closeloop.cli import console

    def name_commit(commit: str) -> str:
        title = truncate_at_word(console.make_visible(titles.get(commit, "")), MAX_TITLE_CHARS)
        return f"{commit[:10]} {title}".strip()

    reasons = {
        commit: console.make_visible(reason.partition("\n")[0])[:MAX_REASON_CHARS]
        for commit, reason in refused.items()
    }
    if len(reasons) <= MAX_REJECTION_LINES or console.verbosity == console.VERBOSE:
        yield from (
            f"  rejected {name_commit(commit)}: {reason}" for commit, reason in reasons.items()
        )
        return
    groups: dict[str, list[str]] = {}
    for commit, reason_text in reasons.items():
        groups.setdefault(_REASON_DETAIL.sub("…", reason_text), []).append(commit)
    for commits in sorted(groups.values(), key=len, reverse=True):
        yield f"  rejected {len(commits):,}: {reasons[commits[0]]}"
        yield from (f"    {name_commit(commit)}" for commit in commits[:MAX_EXAMPLES])
        if len(commits) > MAX_EXAMPLES:
            yield f"    … and {len(commits) - MAX_EXAMPLES:,} more: -v or --json lists all"


def _list_unfit(passed_over: Mapping[str, int]) -> Iterator[str]:
    """Yield a line on the work that cannot be a task, by reason."""
    counts: dict[str, int] = {}
    for reason, count in passed_over.items():
        general_reason = re.sub(r"\d[\d,]* (?=\w+ of (?:code|source))", "many ", reason)
        counts[general_reason] = counts.get(general_reason, 0) + count
    reasons = sorted(counts, key=lambda reason: counts[reason], reverse=True)
    if reasons:
        listing = "; ".join(f"{reason} ({counts[reason]:,})" for reason in reasons)
        yield f"Other commits are no candidates: {listing}."


def _print_no_work_found(mined: MiningResult, source: str) -> None:
    from closeloop.cli.console import print_line

    nothing, none = {
        "git": ("No commit here changes source and tests together.", "no commit has a parent"),
        "sessions": (
            "No session here became a commit.",
            "no session is imported: `closeloop import`",
        ),
    }.get(
        source,
        ("No work in these commits is a piece of its own.", "they are merges, or the first commit")
        if is_commit_source(source)
        else ("No pull request here was merged into this clone.", "there are no pull requests"),
    )
    reason = max(mined.passed_over, key=lambda reason: mined.passed_over[reason], default=None)
    print_line(f"{nothing} {'Mostly' if reason else 'That is'}: {reason or none}.")


# Sources of `closeloop mine`: pull requests, or sessions of agents.

MAX_PULLS = 200
MAX_PUSHES = 10
_OWNER_AND_NAME = re.compile(r"[/:]([\w.-]{1,100}/[\w.-]{1,100}?)(?:\.git)?/?$")


async def gather_mining_work(
    source: str, repo: Path, store: Store, project: ProjectConfiguration
) -> GatheredWork | None:
    """Gather work from a source other than git history, without commits that already are tasks."""
    from msgspec.structs import replace

    from closeloop.tasks.work_history import gather_pull_work, read_ledger, read_pull_exports

    if source == "git":
        return None
    if source == "sessions":
        gathered = gather_from_sessions(store, repo, project.settings)
    elif source == "pulls":
        requests = await fetch_merged_pulls(repo, project.root / ".closeloop/pulls.jsonl")
        gathered = gather_pull_work(requests, repo, tag_merged_pulls(store, project.settings))
    elif is_commit_source(source):
        return require_named_work(repo, source)
    else:
        requests = list(read_pull_exports(Path(source)))
        gathered = gather_pull_work(requests, repo, tag_merged_pulls(store, project.settings))
    entries = read_ledger(mining_ledger_file("git", project.root))
    proved_names = {name for name, entry in entries.items() if entry.state == "proved"}
    new_work = tuple(
        given_work for given_work in gathered.works if given_work.work.commit not in proved_names
    )
    already_tasks = {
        given_work.work.commit: "it is a task already"
        for given_work in gathered.works
        if given_work not in new_work
    }
    return replace(gathered, works=new_work, passed_over=gathered.passed_over | already_tasks)


def is_commit_source(source: str) -> bool:
    """Return whether a source names commits, as what is neither a kind of source nor a file."""
    is_file = source.endswith((".json", ".jsonl")) or Path(source).is_file()
    return source not in ("git", "pulls", "sessions") and not is_file


def require_named_work(repo: Path, source: str) -> GatheredWork:
    """Return the work of the named commits; raise BadInput if there is no such commit."""
    from closeloop.records.errors import BadInput
    from closeloop.tasks.work_history import gather_named_work

    gathered = gather_named_work(repo, source)
    if gathered is None:
        raise BadInput(
            "--from must be git, pulls, sessions, a file of pull requests, or commits of "
            f"{repo}, not {source!r}."
        )
    return gathered


def mining_ledger_file(source: str, root: Path) -> Path:
    """Return the ledger of one source: another source may have better descriptions of the same
    commits."""
    has_own_words = source not in ("git", "sessions") and not is_commit_source(source)
    name = "mined-pulls" if has_own_words else {"sessions": "mined-sessions"}.get(source, "mined")
    return root / ".closeloop" / f"{name}.jsonl"


def gather_from_sessions(store: Store, repo: Path, settings: Settings) -> GatheredWork:
    """Gather imported sessions, with the failure modes that rules and people found in them."""
    from closeloop.metrics.attempt_measuring import collect_modes, project_rulebook
    from closeloop.tasks.task_files import tag_from_mode
    from closeloop.tasks.work_history import MAX_SESSIONS, gather_session_work

    rows = store.list_attempts(origin="production", limit=MAX_SESSIONS)
    modes = collect_modes(store, rows, project_rulebook(settings))
    tags = {name: [*map(tag_from_mode, attempt_modes)] for name, attempt_modes in modes.items()}
    return gather_session_work(store, repo, tags)


def tag_merged_pulls(store: Store, settings: Settings) -> dict[str, list[str]]:
    """Return by merge commit the failure modes that rules, checks and people found in pull
    requests."""
    from closeloop.metrics.attempt_measuring import collect_modes, project_rulebook
    from closeloop.tasks.task_files import tag_from_mode

    attempts = {
        row.attempt: row.merge_commit
        for row in store.pulls.list_pulls(state="merged", agent=True)
        if row.attempt and row.merge_commit
    }
    rows = [row for row in store.list_attempts(origin="production") if row.id in attempts]
    modes = collect_modes(store, rows, project_rulebook(settings))
    return {
        attempts[name]: [*map(tag_from_mode, attempt_modes)]
        for name, attempt_modes in modes.items()
    }


async def fetch_merged_pulls(repo: Path, export_file: Path) -> list[PullExport]:
    """Fetch merged pull requests from GitHub; each is saved, so that fetching can resume."""
    from closeloop.tasks.work_history import append_entry, read_saved_exports

    known_requests = read_saved_exports(export_file)
    async with open_github_repo(origin_repo_name(repo), os.environ) as github:
        async for pull in list_merged_pulls(github):
            if pull.number not in known_requests:
                known_requests[pull.number] = await fetch_pull_export(github, pull)
                append_entry(export_file, known_requests[pull.number])
    return list(known_requests.values())


def open_github_repo(
    repo: str, environ: Mapping[str, str]
) -> AbstractAsyncContextManager[CodeHostClient]:
    """Open a repository at GitHub, with the token or app from the environment."""
    from closeloop.changes.code_host import open_code_host, open_github

    # Without any, the message says which variable to set.
    return open_code_host("github", repo, environ) or open_github(repo, "")


async def list_merged_pulls(github: CodeHostClient) -> AsyncIterator[ExportedPull]:
    """List merged pull requests, latest first."""
    from closeloop.tasks.work_history import ExportedPull, convert_github_answer

    merged_count = 0
    path = "pulls?state=closed&sort=updated&direction=desc"
    async for page in github.list_pages(path, list[dict[str, Any]]):
        for answer in page:
            pull = convert_github_answer(answer, ExportedPull)
            if pull.merged_at is not None:
                merged_count += 1
                yield pull
            if merged_count >= MAX_PULLS:
                return


async def fetch_pull_export(github: CodeHostClient, pull: ExportedPull) -> PullExport:
    """Fetch a pull request with its issue, its review and the CI results of each push."""
    from closeloop.changes.code_host import CodeHostRefused
    from closeloop.tasks.work_history import (
        ExportedCheckRun,
        ExportedComment,
        ExportedIssue,
        PullExport,
        convert_github_answer,
        find_linked_issue,
    )

    comments: list[Any] = []
    async for page in github.list_pages(f"pulls/{pull.number}/comments", list[dict[str, Any]]):
        comments += [convert_github_answer(answer, ExportedComment) for answer in page]
    pushes: list[str] = []
    async for page in github.list_pages(f"pulls/{pull.number}/commits", list[dict[str, Any]]):
        pushes += [str(answer.get("sha", "")) for answer in page]
    checks: list[Any] = []
    for sha in pushes[-MAX_PUSHES:]:
        if re.fullmatch(r"[0-9a-f]{40,64}", sha):
            check_runs_answer = await github.request_json(
                "GET", f"commits/{sha}/check-runs", dict[str, Any]
            )
            checks += [
                convert_github_answer(answer, ExportedCheckRun)
                for answer in check_runs_answer.get("check_runs", ())
            ]
    issue = None
    if (number := find_linked_issue(pull)) is not None:
        try:
            issue = convert_github_answer(
                await github.request_json("GET", f"issues/{number}", dict[str, Any]), ExportedIssue
            )
        except CodeHostRefused as refusal:
            if refusal.status not in (404, 410):
                raise
    return PullExport(pull=pull, issue=issue, comments=tuple(comments), checks=tuple(checks))


def origin_repo_name(repo: Path) -> str:
    """Return `owner/name` from the URL of the clone's origin."""
    from closeloop.git import try_git_text
    from closeloop.records.errors import BadInput

    address = try_git_text(str(repo), "remote", "get-url", "origin").strip()
    owner_match = _OWNER_AND_NAME.search(address)
    if owner_match is None or not ("://" in address or "@" in address):
        raise BadInput(
            f"{repo} has no origin at a code host: give a file of its pull requests with --from."
        )
    return owner_match[1]
