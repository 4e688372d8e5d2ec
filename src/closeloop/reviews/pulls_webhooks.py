"""What GitHub's webhooks say: each event becomes facts, whatever order they come in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from closeloop.model.errors import BadInput
from closeloop.model.record import Record
from closeloop.model.review import Commit, Fact, Push, Thread
from closeloop.reviews.pulls import Pull, Remark, Repository, Reviewed, Run, Teller, User, login
from closeloop.reviews.pulls_witness import LONGEST, MOST, NOTHING, edited


class _Issue(Record):
    number: int
    pull_request: dict[str, Any] | None = None
    """An issue has none."""


class _Numbered(Record):
    id: int


class _Thread(Record):
    comments: tuple[_Numbered, ...] = ()


class _Author(Record):
    name: str = ""
    email: str | None = None
    username: str | None = None


class _Commit(Record):
    id: str
    message: str = ""
    timestamp: datetime | None = None
    author: _Author = _Author()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()


class _Payload(Record):
    """What is read of an event; each kind has some of it."""

    repository: Repository
    action: str = ""
    sender: User | None = None
    pull_request: Pull | None = None
    review: Reviewed | None = None
    comment: Remark | None = None
    issue: _Issue | None = None
    thread: _Thread | None = None
    check_run: Run | None = None
    check_suite: Run | None = None
    workflow_run: Run | None = None
    ref: str = ""
    before: str | None = None
    after: str | None = None
    forced: bool = False
    deleted: bool = False
    commits: tuple[_Commit, ...] = ()
    head_commit: _Commit | None = None


_decoder = msgspec.json.Decoder(_Payload)


def read_github(event: str, body: bytes, heard: datetime) -> list[Fact]:
    """The facts of one delivery; BadInput where it is not what its event promises."""
    try:
        payload = _decoder.decode(body)
        return list(EVENTS[event](payload, Teller(payload.repository.full_name, heard)))
    except (ValueError, OverflowError, RecursionError) as error:
        raise BadInput(f"A delivery of {event!r} is not as GitHub sends it: {error}.") from error


def _pull_request(payload: _Payload, tell: Teller) -> Iterator[Fact]:
    pull = payload.pull_request
    if pull is None:
        return
    yield from tell.pull(pull)
    if payload.action == "opened" and pull.head.sha:
        yield tell.push(pull.number, Push(after=pull.head.sha, at=pull.created_at))
    if payload.action == "synchronize" and payload.after:
        moved = Push(
            after=payload.after,
            before=payload.before,
            at=pull.updated_at or tell.heard,
            by=login(payload.sender),
        )
        yield tell.push(pull.number, moved)


def _review(payload: _Payload, tell: Teller) -> Iterator[Fact]:
    pull, review = payload.pull_request, payload.review
    if pull is not None and review is not None:
        yield from tell.pull(pull)
        # Only a dismissal is later than the review itself.
        late = payload.action in ("dismissed", "edited")
        yield tell.review(pull.number, review, pull.updated_at if late else None)


def _line_comment(payload: _Payload, tell: Teller) -> Iterator[Fact]:
    pull, comment = payload.pull_request, payload.comment
    if pull is not None and comment is not None:
        yield from tell.pull(pull)
        yield tell.comment(pull.number, comment, deleted=payload.action == "deleted")


def _comment(payload: _Payload, tell: Teller) -> Iterator[Fact]:
    issue, comment = payload.issue, payload.comment
    if issue is not None and issue.pull_request is not None and comment is not None:
        yield tell.comment(issue.number, comment, deleted=payload.action == "deleted")


def _thread(payload: _Payload, tell: Teller) -> Iterator[Fact]:
    pull, thread = payload.pull_request, payload.thread
    if pull is None or thread is None:
        return
    yield from tell.pull(pull)
    at = pull.updated_at or tell.heard
    names = tuple(f"line-{one.id}" for one in thread.comments[:MOST])
    told = Thread(comments=names, resolved=payload.action == "resolved")
    key = ("thread", *names[:1], told.resolved, at.isoformat())
    yield tell.fact(told, at, *key, pull=pull.number)


def _checks(kind: str) -> Callable[[_Payload, Teller], Iterator[Fact]]:
    def read(payload: _Payload, tell: Teller) -> Iterator[Fact]:
        run: Run | None = getattr(payload, kind)
        if run is not None:
            yield tell.check(kind, run)

    return read


def _push(payload: _Payload, tell: Teller) -> Iterator[Fact]:
    """Of a branch, what came; of the main line, what it takes back or repairs."""
    branch = payload.ref.removeprefix("refs/heads/")
    if branch == payload.ref or payload.deleted or not payload.after:
        return
    at = _moment(payload, tell)
    if branch == payload.repository.default_branch:
        for commit in payload.commits[:MOST]:
            yield from tell.pointers(commit.message, commit.id, commit.timestamp or at)
        return
    before = None if payload.before == NOTHING else payload.before
    moved = Push(
        after=payload.after,
        before=before,
        at=at,
        by=login(payload.sender),
        forced=payload.forced,
        commits=tuple(commit.id for commit in payload.commits[:MOST]),
    )
    key = ("push", branch, before, payload.after, int(at.timestamp()))
    yield _on_branch(tell.fact(moved, at, *key, sha=payload.after), branch)
    for commit in payload.commits[:MOST]:
        yield _on_branch(_committed(commit, at, tell), branch)


def _committed(commit: _Commit, at: datetime, tell: Teller) -> Fact:
    who = commit.author
    told = Commit(
        sha=commit.id,
        at=commit.timestamp or at,
        message=commit.message[:LONGEST],
        author=who.username or who.name or None,
        email=who.email,
        bot=(who.username or "").endswith("[bot]"),
        merge=commit.message.startswith(("Merge branch ", "Merge remote-tracking ")),
        files=edited(commit.added, commit.modified, commit.removed),
    )
    return tell.fact(told, told.at, "commit", commit.id, "pushed", sha=commit.id)


def _on_branch(fact: Fact, branch: str) -> Fact:
    return msgspec.structs.replace(fact, branch=branch)


def _moment(payload: _Payload, tell: Teller) -> datetime:
    """When a push came; commits may have been made long before."""
    pushed = payload.repository.pushed_at
    if isinstance(pushed, int) and 0 < pushed < 1 << 33:
        return datetime.fromtimestamp(pushed, UTC)
    last = payload.head_commit
    return last.timestamp if last and last.timestamp else tell.heard


EVENTS: dict[str, Callable[[_Payload, Teller], Iterator[Fact]]] = {
    "pull_request": _pull_request,
    "pull_request_review": _review,
    "pull_request_review_comment": _line_comment,
    "pull_request_review_thread": _thread,
    "issue_comment": _comment,
    "check_run": _checks("check_run"),
    "check_suite": _checks("check_suite"),
    "workflow_run": _checks("workflow_run"),
    "push": _push,
}
"""Events that are read; others are acknowledged and counted."""
