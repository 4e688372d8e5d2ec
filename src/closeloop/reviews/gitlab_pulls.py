"""Merge requests in GitLab's words, as its webhooks and its API say them, turned into facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec

from closeloop.records.errors import BadInput
from closeloop.records.pull_request import (
    CheckResult,
    CiCheck,
    Fact,
    PullCommit,
    PullDescription,
    PullRequestState,
    Push,
    Review,
    ReviewComment,
)
from closeloop.records.record import Record, content_digest
from closeloop.reviews.pull_facts import (
    MAX_ITEMS,
    MAX_TEXT_CHARS,
    NO_COMMIT,
    FactBuilder,
    pushed_file_edits,
)

GITLAB_STATES: dict[str, PullRequestState] = {
    "opened": "open",
    "locked": "open",
    "merged": "merged",
}
PIPELINE_RESULTS: dict[str, CheckResult] = {
    "success": "passed",
    "failed": "failed",
    "canceled": "skipped",
    "skipped": "skipped",
    "manual": "skipped",
}
_BOT_NAME = re.compile(r"(?:project|group)_\d{1,12}_bot")


class GitlabUser(Record):
    id: int | None = None
    username: str = ""
    name: str = ""


class GitlabProject(Record):
    path_with_namespace: str = ""
    default_branch: str | None = None


class GitlabLabel(Record):
    title: str = ""


class GitlabAuthor(Record):
    name: str = ""
    email: str = ""


class GitlabCommit(Record):
    """A commit, as a push tells it, or as the API lists it."""

    id: str
    message: str = ""
    timestamp: str | None = None
    committed_date: str | None = None
    author: GitlabAuthor | None = None
    author_name: str = ""
    author_email: str = ""
    parent_ids: tuple[str, ...] = ()
    added: tuple[str, ...] | None = None
    modified: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class GitlabPosition(Record):
    new_path: str | None = None
    old_path: str | None = None
    new_line: int | None = None
    old_line: int | None = None
    head_sha: str | None = None


class GitlabAttributes(Record):
    """What an event is about: a merge request, a note or a pipeline."""

    id: int | None = None
    iid: int | None = None
    title: str = ""
    description: str | None = None
    state: str = ""
    action: str = ""
    draft: bool | None = None
    source_branch: str | None = None
    target_branch: str | None = None
    source_project_id: int | None = None
    target_project_id: int | None = None
    last_commit: GitlabCommit | None = None
    oldrev: str | None = None
    merge_commit_sha: str | None = None
    squash_commit_sha: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    url: str | None = None
    author_id: int | None = None
    note: str = ""
    discussion_id: str | None = None
    system: bool = False
    position: GitlabPosition | None = None
    ref: str | None = None
    sha: str | None = None
    status: str = ""
    finished_at: str | None = None
    source: str = ""


class GitlabPayload(Record):
    project: GitlabProject = GitlabProject()
    user: GitlabUser | None = None
    user_username: str = ""
    object_attributes: GitlabAttributes = GitlabAttributes()
    merge_request: GitlabAttributes | None = None
    labels: tuple[GitlabLabel, ...] | None = None
    assignees: tuple[GitlabUser, ...] = ()
    ref: str = ""
    before: str = ""
    after: str = ""
    commits: tuple[GitlabCommit, ...] = ()


_decoder = msgspec.json.Decoder(GitlabPayload)


def read_gitlab_event(event: str, body: bytes, heard: datetime) -> list[Fact]:
    """The facts of one delivery; BadInput where it is not what its event promises."""
    try:
        payload = _decoder.decode(body)
        repo = payload.project.path_with_namespace
        return list(GITLAB_EVENTS[event](payload, GitlabFacts(repo, heard))) if repo else []
    except (ValueError, OverflowError, RecursionError) as error:
        raise BadInput(f"A delivery of {event!r} is not as GitLab sends it: {error}.") from error


def parse_gitlab_time(text: str | None) -> datetime | None:
    """GitLab writes `2026-01-05T09:00:00Z`, and in places `2026-01-05 09:00:00 UTC`."""
    try:
        parsed = datetime.fromisoformat((text or "").replace(" UTC", "+00:00"))
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


class GitlabFacts(FactBuilder):
    """Says what GitLab says."""

    source = "gitlab"

    def description_facts(self, number: int, told: PullDescription, at: datetime) -> Iterator[Fact]:
        name = ("description", number, at.isoformat(), content_digest(told)[:16])
        fact = self.make_fact(told, at, *name, pull=number, sha=told.head or "")
        yield fact if told.fork else msgspec.structs.replace(fact, branch=told.branch)
        if told.state == "merged":
            yield from self.pointer_facts(f"{told.title}\n\n{told.body}", f"#{number}", at)

    def commit_fact(self, one: GitlabCommit, at: datetime, pull: int | None = None) -> Fact:
        who = one.author or GitlabAuthor(name=one.author_name, email=one.author_email)
        files = None
        if one.added is not None:
            files = pushed_file_edits(one.added, one.modified, one.removed)
        commit = PullCommit(
            sha=one.id,
            at=parse_gitlab_time(one.timestamp) or parse_gitlab_time(one.committed_date) or at,
            message=one.message[:MAX_TEXT_CHARS],
            author=who.name or None,
            email=who.email or None,
            merge=len(one.parent_ids) > 1 or one.message.startswith("Merge branch "),
            files=files,
        )
        key = ("commit", one.id, "listed" if files is None else "pushed")
        return self.make_fact(commit, commit.at, *key, pull=pull, sha=one.id)

    def comment_fact(
        self, number: int, told: ReviewComment, place: GitlabPosition | None, late: datetime
    ) -> Fact:
        """A note on the whole, or on a place; `late` is when it was last changed."""
        place = place or GitlabPosition()
        told = msgspec.structs.replace(
            told,
            body=told.body[:MAX_TEXT_CHARS],
            path=place.new_path or place.old_path,
            line=place.new_line or place.old_line,
            sha=place.head_sha,
        )
        key = ("comment", told.id, late.isoformat(), content_digest(told.body)[:12])
        return self.make_fact(told, late, *key, pull=number)

    def pipeline_fact(
        self, name: int | None, sha: str, status: str, source: str | None, at: datetime
    ) -> Fact:
        check = CiCheck(
            sha=sha,
            name=f"pipeline: {source or 'push'}",
            at=at,
            result=PIPELINE_RESULTS.get(status, "running"),
            conclusion=status,
        )
        key = ("check", "pipeline", name, check.result, at.isoformat())
        return self.make_fact(check, at, *key, sha=sha)


def is_gitlab_bot(person: GitlabUser | None) -> bool:
    return person is not None and bool(_BOT_NAME.match(person.username))


def name_people(accounts: tuple[GitlabUser, ...]) -> tuple[str, ...]:
    """The accounts of those who are no bots."""
    people = (one for one in accounts[:MAX_ITEMS] if not is_gitlab_bot(one))
    return tuple(one.username for one in people if one.username)


def describe_merge_request(
    payload: GitlabPayload, told: GitlabAttributes, tell: GitlabFacts
) -> tuple[PullDescription, datetime]:
    """A merge request as an event has it; GitLab names the author by number alone."""
    opened = parse_gitlab_time(told.created_at) or tell.heard
    at = parse_gitlab_time(told.updated_at) or tell.heard
    state = GITLAB_STATES.get(told.state, "closed")
    head = told.last_commit.id if told.last_commit else None
    user = payload.user
    mine = user is not None and user.id is not None and user.id == told.author_id
    description = PullDescription(
        title=told.title[:MAX_TEXT_CHARS],
        body=(told.description or "")[:MAX_TEXT_CHARS],
        url=told.url,
        author=user.username or None if user and mine else None,
        bot=mine and is_gitlab_bot(user),
        state=state,
        draft=bool(told.draft),
        branch=told.source_branch,
        fork=told.source_project_id != told.target_project_id,
        base=told.target_branch,
        head=head,
        merge_commit=(told.squash_commit_sha or told.merge_commit_sha)
        if state == "merged"
        else None,
        labels=tuple(label.title for label in (payload.labels or ())[:MAX_ITEMS]),
        assignees=name_people(payload.assignees),
        opened=opened,
        closed=at if state != "open" else None,
        merged=at if state == "merged" else None,
        merged_by=user.username or None if user and told.action == "merge" else None,
    )
    return description, at


def _merge_request_facts(payload: GitlabPayload, tell: GitlabFacts) -> Iterator[Fact]:
    attributes = payload.object_attributes
    if attributes.iid is None:
        return
    description, at = describe_merge_request(payload, attributes, tell)
    yield from tell.description_facts(attributes.iid, description, at)
    head = description.head
    if attributes.action == "open" and head:
        yield tell.push_fact(attributes.iid, Push(after=head, at=description.opened))
    if attributes.action == "update" and attributes.oldrev and head:
        by = payload.user.username if payload.user else None
        yield tell.push_fact(
            attributes.iid, Push(after=head, before=attributes.oldrev, at=at, by=by or None)
        )
    if attributes.action in ("approved", "unapproved") and payload.user:
        who = payload.user
        review = Review(
            id=f"{attributes.iid}-{who.username}-{at.isoformat()}",
            by=who.username or None,
            bot=is_gitlab_bot(who),
            state="approved" if attributes.action == "approved" else "dismissed",
            sha=head,
            at=at,
        )
        yield tell.make_fact(review, at, "review", review.id, review.state, pull=attributes.iid)


def _note_facts(payload: GitlabPayload, tell: GitlabFacts) -> Iterator[Fact]:
    note, request = payload.object_attributes, payload.merge_request
    if request is None or request.iid is None or note.system:
        return
    at = parse_gitlab_time(note.created_at) or tell.heard
    comment = ReviewComment(
        id=f"note-{note.id}",
        by=payload.user.username or None if payload.user else None,
        bot=is_gitlab_bot(payload.user),
        body=note.note,
        at=at,
        answers=note.discussion_id,
    )
    yield tell.comment_fact(
        request.iid, comment, note.position, parse_gitlab_time(note.updated_at) or at
    )


def _pipeline_facts(payload: GitlabPayload, tell: GitlabFacts) -> Iterator[Fact]:
    attributes = payload.object_attributes
    if attributes.sha is None:
        return
    at = (
        parse_gitlab_time(attributes.finished_at)
        or parse_gitlab_time(attributes.created_at)
        or tell.heard
    )
    yield tell.pipeline_fact(
        attributes.id, attributes.sha, attributes.status, attributes.source, at
    )


def _push_facts(payload: GitlabPayload, tell: GitlabFacts) -> Iterator[Fact]:
    branch = payload.ref.removeprefix("refs/heads/")
    if branch == payload.ref or payload.after in ("", NO_COMMIT):
        return
    stamps = [parse_gitlab_time(one.timestamp) for one in payload.commits]
    at = max([stamp for stamp in stamps if stamp] or [tell.heard])
    if branch == payload.project.default_branch:
        for one in payload.commits[:MAX_ITEMS]:
            yield from tell.pointer_facts(
                one.message, one.id, parse_gitlab_time(one.timestamp) or at
            )
        return
    before = None if payload.before == NO_COMMIT else payload.before
    push = Push(
        after=payload.after,
        before=before,
        at=at,
        by=payload.user_username or None,
        commits=tuple(one.id for one in payload.commits[:MAX_ITEMS]),
    )
    facts = [tell.make_fact(push, at, "push", branch, before, payload.after, sha=payload.after)]
    facts += [tell.commit_fact(one, at) for one in payload.commits[:MAX_ITEMS]]
    for fact in facts:
        yield msgspec.structs.replace(fact, branch=branch)


GITLAB_EVENTS: dict[str, Callable[[GitlabPayload, GitlabFacts], Iterator[Fact]]] = {
    "Merge Request Hook": _merge_request_facts,
    "Note Hook": _note_facts,
    "Pipeline Hook": _pipeline_facts,
    "Push Hook": _push_facts,
}
"""Events that are read; others are acknowledged and counted."""
