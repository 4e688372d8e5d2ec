"""Where `closeloop mine` takes its work from: pull requests, or sessions of agents."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closeloop.checking.github import GitHub
    from closeloop.cli.config import Configuration
    from closeloop.mining.given import Gathered
    from closeloop.mining.pulls import Pull, Request
    from closeloop.model.settings import Settings
    from closeloop.store import Store

MOST_PULLS = 200
MOST_PUSHES = 10
_OWNED = re.compile(r"[/:]([\w.-]{1,100}/[\w.-]{1,100}?)(?:\.git)?/?$")


async def gather(source: str, repo: Path, store: Store, found: Configuration) -> Gathered | None:
    """What a source other than the history holds; commits that are tasks already are left out."""
    from msgspec.structs import replace

    from closeloop.mining.ledger import read_ledger
    from closeloop.mining.pulls import from_pulls, read_requests

    if source == "git":
        return None
    if source == "sessions":
        gathered = from_store(store, repo, found.settings)
    elif source == "pulls":
        requests = await ask_for_pulls(repo, found.root / ".closeloop/pulls.jsonl")
        gathered = from_pulls(requests, repo)
    else:
        gathered = from_pulls(list(read_requests(export_of(source))), repo)
    entries = read_ledger(ledger_of("git", found.root))
    done = {name for name, entry in entries.items() if entry.state == "proved"}
    new = tuple(one for one in gathered.given if one.work.commit not in done)
    there = {one.work.commit: "it is a task already" for one in gathered.given if one not in new}
    return replace(gathered, given=new, passed_over=gathered.passed_over | there)


def export_of(source: str) -> Path:
    """The file of pull requests that is named."""
    from closeloop.model.errors import BadInput

    if not Path(source).is_file():
        raise BadInput(
            f"--from is git, pulls, sessions or a file of pull requests, and {source!r} is none."
        )
    return Path(source)


def ledger_of(source: str, root: Path) -> Path:
    """What was tried of one source says nothing of another, whose words may be better."""
    name = {"git": "mined", "sessions": "mined-sessions"}.get(source, "mined-pulls")
    return root / ".closeloop" / f"{name}.jsonl"


def from_store(store: Store, repo: Path, settings: Settings) -> Gathered:
    """The sessions that were imported, with the failure modes that the rules see in them."""
    from closeloop.measuring.attempts import book_of, measured
    from closeloop.mining.sessions import MOST_SESSIONS, from_sessions
    from closeloop.tasks.tags import tag_of

    rows = store.attempts(origin="production", limit=MOST_SESSIONS)
    modes = {
        one.row.id: tuple(dict.fromkeys(tag_of(tag.mode) for tag in one.measurement.modes))
        for one in measured(store, rows, book_of(settings))
    }
    return from_sessions(store, repo, modes)


async def ask_for_pulls(repo: Path, kept: Path) -> list[Request]:
    """What GitHub says of merged pull requests; each is kept, so that asking can go on."""
    from closeloop.mining.ledger import note
    from closeloop.mining.pulls import kept_requests

    known = kept_requests(kept)
    async with github_of(name_of(repo), os.environ) as github:
        async for pull in merged(github):
            if pull.number not in known:
                known[pull.number] = await whole(github, pull)
                note(kept, known[pull.number])
    return list(known.values())


def github_of(repo: str, environ: Mapping[str, str]) -> AbstractAsyncContextManager[GitHub]:
    """A repository at GitHub, with the token that the environment holds."""
    from closeloop.checking.github import API, open_github

    return open_github(repo, environ.get("GITHUB_TOKEN", ""), environ.get("GITHUB_API_URL", API))


async def merged(github: GitHub) -> AsyncIterator[Pull]:
    """Merged pull requests, the latest first."""
    from closeloop.mining.pulls import Pull, converted

    found = 0
    path = "pulls?state=closed&sort=updated&direction=desc"
    async for page in github.pages(path, list[dict[str, Any]]):
        for one in page:
            pull = converted(one, Pull)
            if pull.merged_at is not None:
                found += 1
                yield pull
            if found >= MOST_PULLS:
                return


async def whole(github: GitHub, pull: Pull) -> Request:
    """A pull request with its issue, its review and what CI said of each push."""
    from closeloop.checking.github import Refused
    from closeloop.mining.pulls import Comment, Issue, Request, Run, converted, linked

    comments: list[Any] = []
    async for page in github.pages(f"pulls/{pull.number}/comments", list[dict[str, Any]]):
        comments += [converted(one, Comment) for one in page]
    pushes: list[str] = []
    async for page in github.pages(f"pulls/{pull.number}/commits", list[dict[str, Any]]):
        pushes += [str(one.get("sha", "")) for one in page]
    checks: list[Any] = []
    for sha in pushes[-MOST_PUSHES:]:
        if re.fullmatch(r"[0-9a-f]{40,64}", sha):
            told = await github.ask("GET", f"commits/{sha}/check-runs", dict[str, Any])
            checks += [converted(one, Run) for one in told.get("check_runs", ())]
    issue = None
    if (number := linked(pull)) is not None:
        try:
            issue = converted(await github.ask("GET", f"issues/{number}", dict[str, Any]), Issue)
        except Refused as refusal:
            if refusal.status not in (404, 410):
                raise
    return Request(pull=pull, issue=issue, comments=tuple(comments), checks=tuple(checks))


def name_of(repo: Path) -> str:
    """`owner/name`, by the address that a clone was made from."""
    from closeloop.git import try_text
    from closeloop.model.errors import BadInput

    address = try_text(str(repo), "remote", "get-url", "origin").strip()
    found = _OWNED.search(address)
    if found is None or not ("://" in address or "@" in address):
        raise BadInput(
            f"{repo} has no origin at a code host: name a file of its pull requests with --from."
        )
    return found[1]
