"""Merge requests of the past, asked of GitLab."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from urllib.parse import quote

from closeloop.model.record import Record
from closeloop.model.review import (
    Comment,
    Description,
    Extent,
    Fact,
    FileEdit,
    Push,
    Review,
    ReviewState,
)
from closeloop.reviewing.backfill import Backfill, Hub, each_since, listed
from closeloop.reviews.gitlab import STATES, Person, Position, Revision, Teller, is_bot, moment
from closeloop.reviews.lifecycle import life
from closeloop.reviews.pulls_witness import LONGEST, MOST

VERDICTS: dict[str, ReviewState] = {
    "approved this merge request": "approved",
    "requested changes": "changes_requested",
    "unapproved this merge request": "dismissed",
}
"""What GitLab notes of reviews, in its own words."""


class _Request(Record):
    iid: int
    title: str = ""
    description: str | None = None
    state: str = "opened"
    draft: bool = False
    author: Person | None = None
    merged_by: Person | None = None
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


class _Note(Record):
    id: int
    body: str = ""
    author: Person | None = None
    created_at: str | None = None
    updated_at: str | None = None
    system: bool = False
    position: Position | None = None


class _Version(Record):
    id: int
    head_commit_sha: str | None = None
    created_at: str | None = None


class _Pipeline(Record):
    id: int
    sha: str = ""
    status: str = ""
    source: str | None = None
    created_at: str | None = None
    updated_at: str | None = None


class _Diff(Record):
    new_path: str = ""


async def backfill_gitlab(hub: Hub, wanted: Backfill, since: datetime | None = None) -> int:
    """Ask GitLab for all merge requests that changed since the last time; how many those were."""
    done = 0
    order = "merge_requests?state=all&order_by=updated_at&sort=asc"

    def pages(start: str) -> AsyncIterator[list[_Request]]:
        return hub.pages(f"{order}&updated_after={quote(start)}", list[_Request])

    async for one in each_since(wanted.begin(since), pages):
        wanted.took(await gitlab_facts(hub, wanted, one), one.updated_at)
        done += 1
        wanted.tell(done)
    return done


async def gitlab_facts(hub: Hub, wanted: Backfill, one: _Request) -> list[Fact]:
    """All that GitLab still knows of a merge request."""
    tell = Teller(wanted.repo, datetime.now(UTC))
    at = moment(one.updated_at) or tell.heard
    root = f"merge_requests/{one.iid}"
    told = _described(one, tell)
    facts = [*tell.description(one.iid, told, at)]
    commits = [*reversed(await listed(hub, f"{root}/commits", Revision))]
    facts += [tell.revision(commit, at, pull=one.iid) for commit in commits]
    facts += _pushes(await listed(hub, f"{root}/versions", _Version), one.iid, tell)
    for note in await listed(hub, f"{root}/notes?sort=asc", _Note):
        facts += _noted(note, one.iid, tell)
    files: tuple[FileEdit, ...] | None = None
    whose = life(facts, one.iid, wanted.agents)
    if whose is not None and whose.signs:
        diffs = await listed(hub, f"{root}/diffs", _Diff)
        files = tuple(FileEdit(path=diff.new_path) for diff in diffs)
        for run in await listed(hub, f"{root}/pipelines", _Pipeline):
            ended = moment(run.updated_at) or moment(run.created_at) or tell.heard
            facts.append(tell.pipeline(run.id, run.sha, run.status, run.source, ended))
    extent = Extent(files=files, commits=tuple(commit.id for commit in commits[:MOST]))
    return [*facts, tell.extent(one.iid, extent, at)]


def _described(one: _Request, tell: Teller) -> Description:
    state = STATES.get(one.state, "closed")
    return Description(
        title=one.title[:LONGEST],
        body=(one.description or "")[:LONGEST],
        url=one.web_url,
        author=one.author.username or None if one.author else None,
        bot=is_bot(one.author),
        state=state,
        draft=one.draft,
        branch=one.source_branch,
        base=one.target_branch,
        head=one.sha,
        merge_commit=(one.squash_commit_sha or one.merge_commit_sha) if state == "merged" else None,
        labels=one.labels,
        opened=moment(one.created_at) or tell.heard,
        closed=moment(one.closed_at) or moment(one.merged_at),
        merged=moment(one.merged_at) if state == "merged" else None,
        merged_by=one.merged_by.username or None if one.merged_by else None,
    )


def _pushes(versions: list[_Version], number: int, tell: Teller) -> list[Fact]:
    """Every version of the diff is a push; GitLab lists the newest first."""
    facts = []
    before: str | None = None
    for version in reversed(versions):
        after = version.head_commit_sha
        if after is None or after == before:
            continue
        push = Push(after=after, before=before, at=moment(version.created_at) or tell.heard)
        facts.append(tell.push(number, push))
        before = after
    return facts


def _noted(note: _Note, number: int, tell: Teller) -> list[Fact]:
    """A comment; or what GitLab notes of a review."""
    at = moment(note.created_at) or tell.heard
    who = note.author.username or None if note.author else None
    if note.system:
        state = VERDICTS.get(note.body.strip())
        if state is None:
            return []
        name = f"{number}-{who}-{at.isoformat()}"
        review = Review(id=name, by=who, bot=is_bot(note.author), state=state, at=at)
        return [tell.fact(review, at, "review", name, state, pull=number)]
    comment = Comment(id=f"note-{note.id}", by=who, bot=is_bot(note.author), body=note.body, at=at)
    return [tell.comment(number, comment, note.position, moment(note.updated_at) or at)]
