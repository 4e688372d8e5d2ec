"""Pull requests of the past, asked for: what was done stays done, and asking again goes on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from msgspec.structs import replace

from closeloop.records.errors import MachineFailed
from closeloop.records.pull_request import Fact, PullExtent, PullRequest
from closeloop.records.record import Record
from closeloop.reviews.authorship import AgentSignsByName
from closeloop.reviews.fact_builder import MAX_ITEMS
from closeloop.reviews.github_pulls import (
    GithubCheckRun,
    GithubComment,
    GithubCommit,
    GithubFacts,
    GithubFile,
    GithubPull,
    GithubReview,
    to_file_edits,
)
from closeloop.reviews.pull_lifecycle import build_pull_request
from closeloop.reviews.pull_updates import find_recorded_attempt, save_facts
from closeloop.store import Store

MAX_CHECKED_COMMITS = 10
"""Commits of a pull request whose checks are asked for: the first and the last."""
MAX_SIZED_COMMITS = 20
"""Commits of people whose files are asked for."""
BEGINNING_TIME = "1970-01-01T00:00:00Z"
_COMMIT_SHA = re.compile(r"[0-9a-f]{40,64}")

Kind = TypeVar("Kind")
CountCallback = Callable[[int], None]
"""How many are done."""


class CodeHost(Protocol):
    """One repository at its host, asked page by page."""

    async def request_json(
        self,
        method: str,
        path: str,
        kind: type[Kind],
        payload: dict[str, Any] | None = None,
        *,
        again: bool = True,
    ) -> Kind: ...

    def list_pages(self, path: str, kind: type[Kind]) -> AsyncIterator[Kind]: ...


class UpdatedItem(Protocol):
    """What a host lists in the order of its changes."""

    @property
    def number(self) -> int: ...

    @property
    def updated_at(self) -> str: ...


Dated = TypeVar("Dated", bound=UpdatedItem)


class BackfillRequest(Record):
    """What is asked for, and where it is kept."""

    repo: str
    store: Store
    agents: AgentSignsByName
    tell: CountCallback

    @property
    def place(self) -> str:
        return f"backfill:{self.repo}"

    def start_time(self, since: datetime | None) -> str:
        """From when on to ask: as told, else where the last one stopped."""
        if since is not None:
            return since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self.store.events.load_position(self.place) or BEGINNING_TIME

    def save_pull(self, facts: list[Fact], updated: str) -> None:
        """Keep what was told of one; the next time begins here."""
        save_facts(facts, self.store, self.agents)
        self.store.events.save_position(self.place, updated)


class _UpdatedIssue(Record):
    """An issue or a pull request, in the order they were last touched."""

    number: int
    updated_at: str
    pull_request: dict[str, Any] | None = None


class _CommitCheckRuns(Record):
    check_runs: tuple[GithubCheckRun, ...] = ()


async def backfill_github(
    hub: CodeHost, wanted: BackfillRequest, since: datetime | None = None
) -> int:
    """Ask GitHub for all pull requests that changed since the last time; how many those were."""
    done = 0
    async for one in list_updated_since(
        wanted.start_time(since), lambda start: _list_updated_issues(hub, start)
    ):
        if one.pull_request is not None:
            wanted.save_pull(await fetch_github_facts(hub, wanted, one.number), one.updated_at)
            done += 1
            wanted.tell(done)
    return done


async def list_updated_since(
    start: str, pages: Callable[[str], AsyncIterator[list[Dated]]]
) -> AsyncIterator[Dated]:
    """What changed since a time, the oldest first; what changes meanwhile comes again."""
    seen: set[tuple[int, str]] = set()
    while True:
        before = start
        async for page in pages(start):
            for one in page:
                if (one.number, one.updated_at) not in seen:
                    seen.add((one.number, one.updated_at))
                    yield one
                start = max(start, one.updated_at)
            # What is touched meanwhile moves to the end, and what follows it to another page:
            # rather than turn pages, ask again from here.
            if start > before:
                break
        if start == before:
            return


async def _list_updated_issues(hub: CodeHost, start: str) -> AsyncIterator[list[_UpdatedIssue]]:
    """What changed since a time, the oldest first."""
    order = "state=all&sort=updated&direction=asc"
    try:
        # Only issues can be asked for since a time; pull requests are among them.
        async for page in hub.list_pages(
            f"issues?{order}&since={quote(start)}", list[_UpdatedIssue]
        ):
            yield page
    except MachineFailed as refused:
        if getattr(refused, "status", None) != 410:
            raise
        # There are no issues in this repository.
        every = [
            one
            async for page in hub.list_pages(f"pulls?{order}", list[_UpdatedIssue])
            for one in page
        ]
        yield [replace(one, pull_request={}) for one in every if one.updated_at >= start]


async def fetch_github_facts(hub: CodeHost, wanted: BackfillRequest, number: int) -> list[Fact]:
    """All that GitHub still knows of a pull request; of an agent's, more is asked for."""
    tell = GithubFacts(wanted.repo, datetime.now(UTC))
    try:
        pull = await hub.request_json("GET", f"pulls/{number}", GithubPull)
    except MachineFailed as refused:
        if getattr(refused, "status", None) in (404, 410):
            return []
        raise
    commits = await fetch_list(hub, f"pulls/{number}/commits", GithubCommit)
    names = tuple(commit.sha for commit in commits if _COMMIT_SHA.fullmatch(commit.sha))
    facts = [*tell.pull_facts(pull), *(tell.commit_fact(number, commit) for commit in commits)]
    facts.append(tell.extent_fact(number, PullExtent(commits=names), pull.updated_at))
    reviews = await fetch_list(hub, f"pulls/{number}/reviews", GithubReview)
    facts += [
        tell.review_fact(number, one, None) for one in reviews if one.state.upper() != "PENDING"
    ]
    for path in (f"pulls/{number}/comments", f"issues/{number}/comments"):
        facts += [
            tell.comment_fact(number, one) for one in await fetch_list(hub, path, GithubComment)
        ]
    pull_request = build_pull_request(facts, number, wanted.agents)
    if pull_request is not None and (
        pull_request.signs or find_recorded_attempt(pull_request, wanted.store)
    ):
        facts += await _fetch_agent_details(hub, tell, pull_request)
    return facts


async def _fetch_agent_details(hub: CodeHost, tell: GithubFacts, pull: PullRequest) -> list[Fact]:
    """What an agent's pull request changed, what CI said of it, and what people mended."""
    number = pull.number
    files = tuple(await fetch_list(hub, f"pulls/{number}/files", GithubFile))
    facts = [tell.extent_fact(number, PullExtent(files=to_file_edits(files)), pull.told)]
    shas = [commit.sha for commit in pull.commits]
    half = MAX_CHECKED_COMMITS // 2
    for sha in dict.fromkeys([*shas[:half], *shas[-half:]]):
        runs = await hub.request_json(
            "GET", f"commits/{sha}/check-runs?per_page=100", _CommitCheckRuns
        )
        facts += [tell.check_fact("check_run", run) for run in runs.check_runs]
    for edit in pull.edits[:MAX_SIZED_COMMITS]:
        facts.append(
            tell.commit_fact(
                number, await hub.request_json("GET", f"commits/{edit.sha}", GithubCommit)
            )
        )
    return facts


async def fetch_list(hub: CodeHost, path: str, kind: type[Kind]) -> list[Kind]:
    """A whole list."""
    items: list[Kind] = []
    async for page in hub.list_pages(path, list[kind]):  # type: ignore[valid-type]
        items += page
    return items[:MAX_ITEMS]
