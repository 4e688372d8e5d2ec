"""Merge requests of the past, asked of GitLab."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from urllib.parse import quote

from closeloop.records.pull_request import (
    Fact,
    FileEdit,
    PullDescription,
    PullExtent,
    Push,
    Review,
    ReviewComment,
    ReviewState,
)
from closeloop.records.record import Record
from closeloop.reviews.fact_builder import MAX_ITEMS, MAX_TEXT_CHARS
from closeloop.reviews.github_backfill import (
    BackfillRequest,
    CodeHost,
    fetch_list,
    list_updated_since,
)
from closeloop.reviews.gitlab_pulls import (
    GITLAB_STATES,
    GitlabCommit,
    GitlabFacts,
    GitlabPosition,
    GitlabUser,
    is_gitlab_bot,
    parse_gitlab_time,
)
from closeloop.reviews.pull_lifecycle import build_pull_request

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
    source_branch: str | None = None
    target_branch: str | None = None
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


class _GitlabDiff(Record):
    new_path: str = ""


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
        diffs = await fetch_list(hub, f"{root}/diffs", _GitlabDiff)
        files = tuple(FileEdit(path=diff.new_path) for diff in diffs)
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
        base=one.target_branch,
        head=one.sha,
        merge_commit=(one.squash_commit_sha or one.merge_commit_sha) if state == "merged" else None,
        labels=one.labels,
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
