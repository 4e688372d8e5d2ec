"""What GitHub's webhooks say: each event becomes facts, whatever order they come in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from closeloop.records.errors import BadInput
from closeloop.records.pull_request import CommentThread, Fact, PullCommit, Push
from closeloop.records.record import Record
from closeloop.reviews.github_pulls import (
    GithubCheckRun,
    GithubComment,
    GithubFacts,
    GithubPull,
    GithubRepository,
    GithubReview,
    GithubUser,
    user_login,
)
from closeloop.reviews.pull_facts import MAX_ITEMS, MAX_TEXT_CHARS, NO_COMMIT, pushed_file_edits


class _WebhookIssue(Record):
    number: int
    pull_request: dict[str, Any] | None = None
    """An issue has none."""


class _WebhookCommentId(Record):
    id: int


class _WebhookThread(Record):
    comments: tuple[_WebhookCommentId, ...] = ()


class _WebhookAuthor(Record):
    name: str = ""
    email: str | None = None
    username: str | None = None


class _WebhookCommit(Record):
    id: str
    message: str = ""
    timestamp: datetime | None = None
    author: _WebhookAuthor = _WebhookAuthor()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()


class _WebhookPayload(Record):
    """What is read of an event; each kind has some of it."""

    repository: GithubRepository
    action: str = ""
    sender: GithubUser | None = None
    pull_request: GithubPull | None = None
    review: GithubReview | None = None
    comment: GithubComment | None = None
    issue: _WebhookIssue | None = None
    thread: _WebhookThread | None = None
    check_run: GithubCheckRun | None = None
    check_suite: GithubCheckRun | None = None
    workflow_run: GithubCheckRun | None = None
    ref: str = ""
    before: str | None = None
    after: str | None = None
    forced: bool = False
    deleted: bool = False
    commits: tuple[_WebhookCommit, ...] = ()
    head_commit: _WebhookCommit | None = None


_decoder = msgspec.json.Decoder(_WebhookPayload)


def read_github_event(event: str, body: bytes, heard: datetime) -> list[Fact]:
    """The facts of one delivery; BadInput where it is not what its event promises."""
    try:
        payload = _decoder.decode(body)
        return list(GITHUB_EVENTS[event](payload, GithubFacts(payload.repository.full_name, heard)))
    except (ValueError, OverflowError, RecursionError) as error:
        raise BadInput(f"A delivery of {event!r} is not as GitHub sends it: {error}.") from error


def _pull_request_facts(payload: _WebhookPayload, tell: GithubFacts) -> Iterator[Fact]:
    pull = payload.pull_request
    if pull is None:
        return
    yield from tell.pull_facts(pull)
    if payload.action == "opened" and pull.head.sha:
        yield tell.push_fact(pull.number, Push(after=pull.head.sha, at=pull.created_at))
    if payload.action == "synchronize" and payload.after:
        moved = Push(
            after=payload.after,
            before=payload.before,
            at=pull.updated_at or tell.heard,
            by=user_login(payload.sender),
        )
        yield tell.push_fact(pull.number, moved)


def _review_facts(payload: _WebhookPayload, tell: GithubFacts) -> Iterator[Fact]:
    pull, review = payload.pull_request, payload.review
    if pull is not None and review is not None:
        yield from tell.pull_facts(pull)
        # Only a dismissal is later than the review itself.
        late = payload.action in ("dismissed", "edited")
        yield tell.review_fact(pull.number, review, pull.updated_at if late else None)


def _line_comment_facts(payload: _WebhookPayload, tell: GithubFacts) -> Iterator[Fact]:
    pull, comment = payload.pull_request, payload.comment
    if pull is not None and comment is not None:
        yield from tell.pull_facts(pull)
        yield tell.comment_fact(pull.number, comment, deleted=payload.action == "deleted")


def _comment_facts(payload: _WebhookPayload, tell: GithubFacts) -> Iterator[Fact]:
    issue, comment = payload.issue, payload.comment
    if issue is not None and issue.pull_request is not None and comment is not None:
        yield tell.comment_fact(issue.number, comment, deleted=payload.action == "deleted")


def _thread_facts(payload: _WebhookPayload, tell: GithubFacts) -> Iterator[Fact]:
    pull, thread = payload.pull_request, payload.thread
    if pull is None or thread is None:
        return
    yield from tell.pull_facts(pull)
    at = pull.updated_at or tell.heard
    names = tuple(f"line-{one.id}" for one in thread.comments[:MAX_ITEMS])
    resolution = CommentThread(comments=names, resolved=payload.action == "resolved")
    key = ("thread", *names[:1], resolution.resolved, at.isoformat())
    yield tell.make_fact(resolution, at, *key, pull=pull.number)


def _check_reader(kind: str) -> Callable[[_WebhookPayload, GithubFacts], Iterator[Fact]]:
    def read_checks(payload: _WebhookPayload, tell: GithubFacts) -> Iterator[Fact]:
        run: GithubCheckRun | None = getattr(payload, kind)
        if run is not None:
            yield tell.check_fact(kind, run)

    return read_checks


def _push_facts(payload: _WebhookPayload, tell: GithubFacts) -> Iterator[Fact]:
    """Of a branch, what came; of the main line, what it takes back or repairs."""
    branch = payload.ref.removeprefix("refs/heads/")
    if branch == payload.ref or payload.deleted or not payload.after:
        return
    at = _push_time(payload, tell)
    if branch == payload.repository.default_branch:
        for commit in payload.commits[:MAX_ITEMS]:
            yield from tell.pointer_facts(commit.message, commit.id, commit.timestamp or at)
        return
    before = None if payload.before == NO_COMMIT else payload.before
    moved = Push(
        after=payload.after,
        before=before,
        at=at,
        by=user_login(payload.sender),
        forced=payload.forced,
        commits=tuple(commit.id for commit in payload.commits[:MAX_ITEMS]),
    )
    key = ("push", branch, before, payload.after, int(at.timestamp()))
    yield _set_branch(tell.make_fact(moved, at, *key, sha=payload.after), branch)
    for commit in payload.commits[:MAX_ITEMS]:
        yield _set_branch(_commit_fact(commit, at, tell), branch)


def _commit_fact(commit: _WebhookCommit, at: datetime, tell: GithubFacts) -> Fact:
    who = commit.author
    pushed_commit = PullCommit(
        sha=commit.id,
        at=commit.timestamp or at,
        message=commit.message[:MAX_TEXT_CHARS],
        author=who.username or who.name or None,
        email=who.email,
        bot=(who.username or "").endswith("[bot]"),
        merge=commit.message.startswith(("Merge branch ", "Merge remote-tracking ")),
        files=pushed_file_edits(commit.added, commit.modified, commit.removed),
    )
    return tell.make_fact(
        pushed_commit, pushed_commit.at, "commit", commit.id, "pushed", sha=commit.id
    )


def _set_branch(fact: Fact, branch: str) -> Fact:
    return msgspec.structs.replace(fact, branch=branch)


def _push_time(payload: _WebhookPayload, tell: GithubFacts) -> datetime:
    """When a push came; commits may have been made long before."""
    pushed = payload.repository.pushed_at
    if isinstance(pushed, int) and 0 < pushed < 1 << 33:
        return datetime.fromtimestamp(pushed, UTC)
    last = payload.head_commit
    return last.timestamp if last and last.timestamp else tell.heard


GITHUB_EVENTS: dict[str, Callable[[_WebhookPayload, GithubFacts], Iterator[Fact]]] = {
    "pull_request": _pull_request_facts,
    "pull_request_review": _review_facts,
    "pull_request_review_comment": _line_comment_facts,
    "pull_request_review_thread": _thread_facts,
    "issue_comment": _comment_facts,
    "check_run": _check_reader("check_run"),
    "check_suite": _check_reader("check_suite"),
    "workflow_run": _check_reader("workflow_run"),
    "push": _push_facts,
}
"""Events that are read; others are acknowledged and counted."""
