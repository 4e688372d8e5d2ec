"""Pull requests of the past, asked of GitHub and GitLab: what was done stays done."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from msgspec.structs import replace

from closeloop.records.change import Change
from closeloop.records.errors import MachineFailed
from closeloop.records.pull_request import (
    Fact,
    FileEdit,
    PullDescription,
    PullExtent,
    PullRequest,
    Push,
    Review,
    ReviewComment,
    ReviewState,
)
from closeloop.records.record import Record
from closeloop.reviews.authorship import AgentSignsByName
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
from closeloop.reviews.gitlab_pulls import (
    GITLAB_STATES,
    GitlabCommit,
    GitlabFacts,
    GitlabPosition,
    GitlabUser,
    is_gitlab_bot,
    name_people,
    parse_gitlab_time,
)
from closeloop.reviews.pull_changes import GitlabFileDiff, change_from_github, change_from_gitlab
from closeloop.reviews.pull_facts import MAX_ITEMS, MAX_TEXT_CHARS
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

    def save_change(self, pull: PullRequest, change: Change) -> None:
        """Keep the diff of its newest commit."""
        if pull.head and change.files:
            at = datetime.now(UTC)
            self.store.pulls.save_change(self.repo, pull.number, pull.head, change, at)

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
        facts += await _fetch_agent_details(hub, tell, pull_request, wanted)
    return facts


async def _fetch_agent_details(
    hub: CodeHost, tell: GithubFacts, pull: PullRequest, wanted: BackfillRequest
) -> list[Fact]:
    """What an agent's pull request changed, what CI said of it, and what people mended."""
    number = pull.number
    files = tuple(await fetch_list(hub, f"pulls/{number}/files", GithubFile))
    wanted.save_change(pull, change_from_github(files))
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


# Merge requests of the past, asked of GitLab.

REVIEW_VERDICTS: dict[str, ReviewState] = {
    "approved this merge request": "approved",
    "requested changes": "changes_requested",
    "unapproved this merge request": "dismissed",
}
"""What GitLab notes of reviews, in its own words."""


class _GitlabMergeRequest(Record):
    iid: int
    title: str = ""
    description: str | None = None
    state: str = "opened"
    draft: bool = False
    author: GitlabUser | None = None
    merged_by: GitlabUser | None = None
    labels: tuple[str, ...] = ()
    assignees: tuple[GitlabUser, ...] = ()
    source_branch: str | None = None
    target_branch: str | None = None
    source_project_id: int | None = None
    target_project_id: int | None = None
    sha: str | None = None
    merge_commit_sha: str | None = None
    squash_commit_sha: str | None = None
    web_url: str | None = None
    created_at: str | None = None
    updated_at: str = ""
    merged_at: str | None = None
    closed_at: str | None = None

    @property
    def number(self) -> int:
        return self.iid


class _GitlabNote(Record):
    id: int
    body: str = ""
    author: GitlabUser | None = None
    created_at: str | None = None
    updated_at: str | None = None
    system: bool = False
    position: GitlabPosition | None = None


class _GitlabDiffVersion(Record):
    id: int
    head_commit_sha: str | None = None
    created_at: str | None = None


class _GitlabPipeline(Record):
    id: int
    sha: str = ""
    status: str = ""
    source: str | None = None
    created_at: str | None = None
    updated_at: str | None = None


async def backfill_gitlab(
    hub: CodeHost, wanted: BackfillRequest, since: datetime | None = None
) -> int:
    """Ask GitLab for all merge requests that changed since the last time; how many those were."""
    done = 0
    order = "merge_requests?state=all&order_by=updated_at&sort=asc"

    def pages(start: str) -> AsyncIterator[list[_GitlabMergeRequest]]:
        return hub.list_pages(f"{order}&updated_after={quote(start)}", list[_GitlabMergeRequest])

    async for one in list_updated_since(wanted.start_time(since), pages):
        wanted.save_pull(await fetch_gitlab_facts(hub, wanted, one), one.updated_at)
        done += 1
        wanted.tell(done)
    return done


async def fetch_gitlab_facts(
    hub: CodeHost, wanted: BackfillRequest, one: _GitlabMergeRequest
) -> list[Fact]:
    """All that GitLab still knows of a merge request."""
    tell = GitlabFacts(wanted.repo, datetime.now(UTC))
    at = parse_gitlab_time(one.updated_at) or tell.heard
    root = f"merge_requests/{one.iid}"
    description = _describe_listed_request(one, tell)
    facts = [*tell.description_facts(one.iid, description, at)]
    commits = [*reversed(await fetch_list(hub, f"{root}/commits", GitlabCommit))]
    facts += [tell.commit_fact(commit, at, pull=one.iid) for commit in commits]
    facts += _facts_from_versions(
        await fetch_list(hub, f"{root}/versions", _GitlabDiffVersion), one.iid, tell
    )
    for note in await fetch_list(hub, f"{root}/notes?sort=asc", _GitlabNote):
        facts += _facts_from_note(note, one.iid, tell)
    files: tuple[FileEdit, ...] | None = None
    pull_request = build_pull_request(facts, one.iid, wanted.agents)
    if pull_request is not None and pull_request.signs:
        change = change_from_gitlab(await fetch_list(hub, f"{root}/diffs", GitlabFileDiff))
        wanted.save_change(pull_request, change)
        files = tuple(FileEdit(path=file.path) for file in change.files)
        for run in await fetch_list(hub, f"{root}/pipelines", _GitlabPipeline):
            ended = (
                parse_gitlab_time(run.updated_at) or parse_gitlab_time(run.created_at) or tell.heard
            )
            facts.append(tell.pipeline_fact(run.id, run.sha, run.status, run.source, ended))
    extent = PullExtent(files=files, commits=tuple(commit.id for commit in commits[:MAX_ITEMS]))
    return [*facts, tell.extent_fact(one.iid, extent, at)]


def _describe_listed_request(one: _GitlabMergeRequest, tell: GitlabFacts) -> PullDescription:
    state = GITLAB_STATES.get(one.state, "closed")
    return PullDescription(
        title=one.title[:MAX_TEXT_CHARS],
        body=(one.description or "")[:MAX_TEXT_CHARS],
        url=one.web_url,
        author=one.author.username or None if one.author else None,
        bot=is_gitlab_bot(one.author),
        state=state,
        draft=one.draft,
        branch=one.source_branch,
        fork=one.source_project_id != one.target_project_id,
        base=one.target_branch,
        head=one.sha,
        merge_commit=(one.squash_commit_sha or one.merge_commit_sha) if state == "merged" else None,
        labels=one.labels,
        assignees=name_people(one.assignees),
        opened=parse_gitlab_time(one.created_at) or tell.heard,
        closed=parse_gitlab_time(one.closed_at) or parse_gitlab_time(one.merged_at),
        merged=parse_gitlab_time(one.merged_at) if state == "merged" else None,
        merged_by=one.merged_by.username or None if one.merged_by else None,
    )


def _facts_from_versions(
    versions: list[_GitlabDiffVersion], number: int, tell: GitlabFacts
) -> list[Fact]:
    """Every version of the diff is a push; GitLab lists the newest first."""
    facts = []
    before: str | None = None
    for version in reversed(versions):
        after = version.head_commit_sha
        if after is None or after == before:
            continue
        push = Push(
            after=after, before=before, at=parse_gitlab_time(version.created_at) or tell.heard
        )
        facts.append(tell.push_fact(number, push))
        before = after
    return facts


def _facts_from_note(note: _GitlabNote, number: int, tell: GitlabFacts) -> list[Fact]:
    """A comment; or what GitLab notes of a review."""
    at = parse_gitlab_time(note.created_at) or tell.heard
    who = note.author.username or None if note.author else None
    if note.system:
        state = REVIEW_VERDICTS.get(note.body.strip())
        if state is None:
            return []
        name = f"{number}-{who}-{at.isoformat()}"
        review = Review(id=name, by=who, bot=is_gitlab_bot(note.author), state=state, at=at)
        return [tell.make_fact(review, at, "review", name, state, pull=number)]
    comment = ReviewComment(
        id=f"note-{note.id}", by=who, bot=is_gitlab_bot(note.author), body=note.body, at=at
    )
    return [
        tell.comment_fact(number, comment, note.position, parse_gitlab_time(note.updated_at) or at)
    ]
