"""Where `closeloop mine` takes its work from: pull requests, or sessions of agents."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closeloop.changes.code_host import CodeHostClient
    from closeloop.cli.config import ProjectConfiguration
    from closeloop.records.settings import Settings
    from closeloop.store import Store
    from closeloop.tasks.mining.gathered_work import GatheredWork
    from closeloop.tasks.mining.pull_export import ExportedPull, PullExport

MAX_PULLS = 200
MAX_PUSHES = 10
_OWNER_AND_NAME = re.compile(r"[/:]([\w.-]{1,100}/[\w.-]{1,100}?)(?:\.git)?/?$")


async def gather_mining_work(
    source: str, repo: Path, store: Store, found: ProjectConfiguration
) -> GatheredWork | None:
    """What a source other than the history holds; commits that are tasks already are left out."""
    from msgspec.structs import replace

    from closeloop.tasks.mining.mining_ledger import read_ledger
    from closeloop.tasks.mining.pull_export import gather_pull_work, read_pull_exports

    if source == "git":
        return None
    if source == "sessions":
        gathered = gather_from_sessions(store, repo, found.settings)
    elif source == "pulls":
        requests = await fetch_merged_pulls(repo, found.root / ".closeloop/pulls.jsonl")
        gathered = gather_pull_work(requests, repo)
    else:
        gathered = gather_pull_work(list(read_pull_exports(require_pull_export(source))), repo)
    entries = read_ledger(mining_ledger_file("git", found.root))
    proved_names = {name for name, entry in entries.items() if entry.state == "proved"}
    new_work = tuple(one for one in gathered.given if one.work.commit not in proved_names)
    already_tasks = {
        one.work.commit: "it is a task already" for one in gathered.given if one not in new_work
    }
    return replace(gathered, given=new_work, passed_over=gathered.passed_over | already_tasks)


def require_pull_export(source: str) -> Path:
    """The file of pull requests that is named."""
    from closeloop.records.errors import BadInput

    if not Path(source).is_file():
        raise BadInput(
            f"--from is git, pulls, sessions or a file of pull requests, and {source!r} is none."
        )
    return Path(source)


def mining_ledger_file(source: str, root: Path) -> Path:
    """What was tried of one source says nothing of another, whose words may be better."""
    name = {"git": "mined", "sessions": "mined-sessions"}.get(source, "mined-pulls")
    return root / ".closeloop" / f"{name}.jsonl"


def gather_from_sessions(store: Store, repo: Path, settings: Settings) -> GatheredWork:
    """The sessions that were imported, with the failure modes that the rules see in them."""
    from closeloop.metrics.attempt_measuring import measure_attempts, project_rulebook
    from closeloop.tasks.mining.session_work import MAX_SESSIONS, gather_session_work
    from closeloop.tasks.task_tags import tag_from_mode

    rows = store.list_attempts(origin="production", limit=MAX_SESSIONS)
    modes = {
        one.row.id: tuple(dict.fromkeys(tag_from_mode(tag.mode) for tag in one.measurement.modes))
        for one in measure_attempts(store, rows, project_rulebook(settings))
    }
    return gather_session_work(store, repo, modes)


async def fetch_merged_pulls(repo: Path, kept: Path) -> list[PullExport]:
    """What GitHub says of merged pull requests; each is kept, so that asking can go on."""
    from closeloop.tasks.mining.mining_ledger import append_entry
    from closeloop.tasks.mining.pull_export import read_saved_exports

    known_requests = read_saved_exports(kept)
    async with open_github_repo(origin_repo_name(repo), os.environ) as github:
        async for pull in list_merged_pulls(github):
            if pull.number not in known_requests:
                known_requests[pull.number] = await fetch_pull_export(github, pull)
                append_entry(kept, known_requests[pull.number])
    return list(known_requests.values())


def open_github_repo(
    repo: str, environ: Mapping[str, str]
) -> AbstractAsyncContextManager[CodeHostClient]:
    """A repository at GitHub, with the token that the environment holds."""
    from closeloop.changes.code_host import GITHUB_API, open_github

    return open_github(
        repo, environ.get("GITHUB_TOKEN", ""), environ.get("GITHUB_API_URL", GITHUB_API)
    )


async def list_merged_pulls(github: CodeHostClient) -> AsyncIterator[ExportedPull]:
    """Merged pull requests, the latest first."""
    from closeloop.tasks.mining.pull_export import ExportedPull, convert_github_answer

    merged_count = 0
    path = "pulls?state=closed&sort=updated&direction=desc"
    async for page in github.list_pages(path, list[dict[str, Any]]):
        for one in page:
            pull = convert_github_answer(one, ExportedPull)
            if pull.merged_at is not None:
                merged_count += 1
                yield pull
            if merged_count >= MAX_PULLS:
                return


async def fetch_pull_export(github: CodeHostClient, pull: ExportedPull) -> PullExport:
    """A pull request with its issue, its review and what CI said of each push."""
    from closeloop.changes.code_host import CodeHostRefused
    from closeloop.tasks.mining.pull_export import (
        ExportedCheckRun,
        ExportedComment,
        ExportedIssue,
        PullExport,
        convert_github_answer,
        find_linked_issue,
    )

    comments: list[Any] = []
    async for page in github.list_pages(f"pulls/{pull.number}/comments", list[dict[str, Any]]):
        comments += [convert_github_answer(one, ExportedComment) for one in page]
    pushes: list[str] = []
    async for page in github.list_pages(f"pulls/{pull.number}/commits", list[dict[str, Any]]):
        pushes += [str(one.get("sha", "")) for one in page]
    checks: list[Any] = []
    for sha in pushes[-MAX_PUSHES:]:
        if re.fullmatch(r"[0-9a-f]{40,64}", sha):
            check_runs_answer = await github.request_json(
                "GET", f"commits/{sha}/check-runs", dict[str, Any]
            )
            checks += [
                convert_github_answer(one, ExportedCheckRun)
                for one in check_runs_answer.get("check_runs", ())
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
    """`owner/name`, by the address that a clone was made from."""
    from closeloop.git import try_git_text
    from closeloop.records.errors import BadInput

    address = try_git_text(str(repo), "remote", "get-url", "origin").strip()
    owner_match = _OWNER_AND_NAME.search(address)
    if owner_match is None or not ("://" in address or "@" in address):
        raise BadInput(
            f"{repo} has no origin at a code host: name a file of its pull requests with --from."
        )
    return owner_match[1]
