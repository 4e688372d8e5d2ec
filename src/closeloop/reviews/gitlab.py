"""Merge requests in GitLab's words, as its webhooks and its API say them, turned into facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec

from closeloop.model.errors import BadInput
from closeloop.model.record import Record, digest
from closeloop.model.review import (
    Check,
    CheckResult,
    Comment,
    Commit,
    Description,
    Fact,
    Push,
    Review,
    State,
)
from closeloop.reviews.pulls_witness import LONGEST, MOST, NOTHING, Witness, edited

STATES: dict[str, State] = {"opened": "open", "locked": "open", "merged": "merged"}
RESULTS: dict[str, CheckResult] = {
    "success": "passed",
    "failed": "failed",
    "canceled": "skipped",
    "skipped": "skipped",
    "manual": "skipped",
}
_BOT = re.compile(r"(?:project|group)_\d{1,12}_bot")


class Person(Record):
    id: int | None = None
    username: str = ""
    name: str = ""


class Project(Record):
    path_with_namespace: str = ""
    default_branch: str | None = None


class Label(Record):
    title: str = ""


class Author(Record):
    name: str = ""
    email: str = ""


class Revision(Record):
    """A commit, as a push tells it, or as the API lists it."""

    id: str
    message: str = ""
    timestamp: str | None = None
    committed_date: str | None = None
    author: Author | None = None
    author_name: str = ""
    author_email: str = ""
    parent_ids: tuple[str, ...] = ()
    added: tuple[str, ...] | None = None
    modified: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class Position(Record):
    new_path: str | None = None
    old_path: str | None = None
    new_line: int | None = None
    old_line: int | None = None
    head_sha: str | None = None


class Attributes(Record):
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
    last_commit: Revision | None = None
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
    position: Position | None = None
    ref: str | None = None
    sha: str | None = None
    status: str = ""
    finished_at: str | None = None
    source: str = ""


class Payload(Record):
    project: Project = Project()
    user: Person | None = None
    user_username: str = ""
    object_attributes: Attributes = Attributes()
    merge_request: Attributes | None = None
    labels: tuple[Label, ...] | None = None
    ref: str = ""
    before: str = ""
    after: str = ""
    commits: tuple[Revision, ...] = ()


_decoder = msgspec.json.Decoder(Payload)


def read_gitlab(event: str, body: bytes, heard: datetime) -> list[Fact]:
    """The facts of one delivery; BadInput where it is not what its event promises."""
    try:
        payload = _decoder.decode(body)
        repo = payload.project.path_with_namespace
        return list(EVENTS[event](payload, Teller(repo, heard))) if repo else []
    except (ValueError, OverflowError, RecursionError) as error:
        raise BadInput(f"A delivery of {event!r} is not as GitLab sends it: {error}.") from error


def moment(text: str | None) -> datetime | None:
    """GitLab writes `2026-01-05T09:00:00Z`, and in places `2026-01-05 09:00:00 UTC`."""
    try:
        read = datetime.fromisoformat((text or "").replace(" UTC", "+00:00"))
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


class Teller(Witness):
    """Says what GitLab says."""

    source = "gitlab"

    def description(self, number: int, told: Description, at: datetime) -> Iterator[Fact]:
        name = ("description", number, at.isoformat(), digest(told)[:16])
        fact = self.fact(told, at, *name, pull=number, sha=told.head or "")
        yield msgspec.structs.replace(fact, branch=told.branch)
        if told.state == "merged":
            yield from self.pointers(f"{told.title}\n\n{told.body}", f"#{number}", at)

    def revision(self, one: Revision, at: datetime, pull: int | None = None) -> Fact:
        who = one.author or Author(name=one.author_name, email=one.author_email)
        files = None
        if one.added is not None:
            files = edited(one.added, one.modified, one.removed)
        told = Commit(
            sha=one.id,
            at=moment(one.timestamp) or moment(one.committed_date) or at,
            message=one.message[:LONGEST],
            author=who.name or None,
            email=who.email or None,
            merge=len(one.parent_ids) > 1 or one.message.startswith("Merge branch "),
            files=files,
        )
        key = ("commit", one.id, "listed" if files is None else "pushed")
        return self.fact(told, told.at, *key, pull=pull, sha=one.id)

    def comment(self, number: int, told: Comment, place: Position | None, late: datetime) -> Fact:
        """A note on the whole, or on a place; `late` is when it was last changed."""
        place = place or Position()
        told = msgspec.structs.replace(
            told,
            body=told.body[:LONGEST],
            path=place.new_path or place.old_path,
            line=place.new_line or place.old_line,
            sha=place.head_sha,
        )
        key = ("comment", told.id, late.isoformat(), digest(told.body)[:12])
        return self.fact(told, late, *key, pull=number)

    def pipeline(
        self, name: int | None, sha: str, status: str, source: str | None, at: datetime
    ) -> Fact:
        told = Check(
            sha=sha,
            name=f"pipeline: {source or 'push'}",
            at=at,
            result=RESULTS.get(status, "running"),
            conclusion=status,
        )
        key = ("check", "pipeline", name, told.result, at.isoformat())
        return self.fact(told, at, *key, sha=sha)


def is_bot(person: Person | None) -> bool:
    return person is not None and bool(_BOT.match(person.username))


def described(payload: Payload, told: Attributes, tell: Teller) -> tuple[Description, datetime]:
    """A merge request as an event has it; GitLab names the author by number alone."""
    opened = moment(told.created_at) or tell.heard
    at = moment(told.updated_at) or tell.heard
    state = STATES.get(told.state, "closed")
    head = told.last_commit.id if told.last_commit else None
    user = payload.user
    mine = user is not None and user.id is not None and user.id == told.author_id
    description = Description(
        title=told.title[:LONGEST],
        body=(told.description or "")[:LONGEST],
        url=told.url,
        author=user.username or None if user and mine else None,
        bot=mine and is_bot(user),
        state=state,
        draft=bool(told.draft),
        branch=told.source_branch,
        base=told.target_branch,
        head=head,
        merge_commit=(told.squash_commit_sha or told.merge_commit_sha)
        if state == "merged"
        else None,
        labels=tuple(label.title for label in (payload.labels or ())[:MOST]),
        opened=opened,
        closed=at if state != "open" else None,
        merged=at if state == "merged" else None,
        merged_by=user.username or None if user and told.action == "merge" else None,
    )
    return description, at


def _merge_request(payload: Payload, tell: Teller) -> Iterator[Fact]:
    told = payload.object_attributes
    if told.iid is None:
        return
    description, at = described(payload, told, tell)
    yield from tell.description(told.iid, description, at)
    head = description.head
    if told.action == "open" and head:
        yield tell.push(told.iid, Push(after=head, at=description.opened))
    if told.action == "update" and told.oldrev and head:
        by = payload.user.username if payload.user else None
        yield tell.push(told.iid, Push(after=head, before=told.oldrev, at=at, by=by or None))
    if told.action in ("approved", "unapproved") and payload.user:
        who = payload.user
        review = Review(
            id=f"{told.iid}-{who.username}-{at.isoformat()}",
            by=who.username or None,
            bot=is_bot(who),
            state="approved" if told.action == "approved" else "dismissed",
            sha=head,
            at=at,
        )
        yield tell.fact(review, at, "review", review.id, review.state, pull=told.iid)


def _note(payload: Payload, tell: Teller) -> Iterator[Fact]:
    note, request = payload.object_attributes, payload.merge_request
    if request is None or request.iid is None or note.system:
        return
    at = moment(note.created_at) or tell.heard
    comment = Comment(
        id=f"note-{note.id}",
        by=payload.user.username or None if payload.user else None,
        bot=is_bot(payload.user),
        body=note.note,
        at=at,
        answers=note.discussion_id,
    )
    yield tell.comment(request.iid, comment, note.position, moment(note.updated_at) or at)


def _pipeline(payload: Payload, tell: Teller) -> Iterator[Fact]:
    told = payload.object_attributes
    if told.sha is None:
        return
    at = moment(told.finished_at) or moment(told.created_at) or tell.heard
    yield tell.pipeline(told.id, told.sha, told.status, told.source, at)


def _push(payload: Payload, tell: Teller) -> Iterator[Fact]:
    branch = payload.ref.removeprefix("refs/heads/")
    if branch == payload.ref or payload.after in ("", NOTHING):
        return
    stamps = [moment(one.timestamp) for one in payload.commits]
    at = max([stamp for stamp in stamps if stamp] or [tell.heard])
    if branch == payload.project.default_branch:
        for one in payload.commits[:MOST]:
            yield from tell.pointers(one.message, one.id, moment(one.timestamp) or at)
        return
    before = None if payload.before == NOTHING else payload.before
    push = Push(
        after=payload.after,
        before=before,
        at=at,
        by=payload.user_username or None,
        commits=tuple(one.id for one in payload.commits[:MOST]),
    )
    facts = [tell.fact(push, at, "push", branch, before, payload.after, sha=payload.after)]
    facts += [tell.revision(one, at) for one in payload.commits[:MOST]]
    for fact in facts:
        yield msgspec.structs.replace(fact, branch=branch)


EVENTS: dict[str, Callable[[Payload, Teller], Iterator[Fact]]] = {
    "Merge Request Hook": _merge_request,
    "Note Hook": _note,
    "Pipeline Hook": _pipeline,
    "Push Hook": _push,
}
"""Events that are read; others are acknowledged and counted."""
