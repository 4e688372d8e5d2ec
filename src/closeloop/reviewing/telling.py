"""What happens to pull requests, as events."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from closeloop.model.event import Details, Event
from closeloop.model.review import Check, Comment, Fact, PullRequest, PullRow, Push, Review
from closeloop.reviews.lifecycle import held


def told_by(fact: Fact) -> list[Event]:
    """The events that a new fact is."""
    details: Details
    match fact.what:
        case Push(before=str()) as push:
            kind = "pull.pushed"
            details = {"sha": push.after, "by": push.by, "forced": push.forced}
        case Check(result="passed" | "failed") as check:
            kind = f"check.{check.result}"
            details = {"name": check.name, "sha": check.sha}
        case Review() as review:
            kind = f"review.{review.state}"
            details = {"by": review.by, "id": review.id}
        case Comment(deleted=False) as comment:
            kind = "review.comment"
            place = {"path": comment.path, "line": comment.line}
            details = {"by": comment.by, "id": comment.id, **place}
        case _:
            return []
    if fact.pull is None and isinstance(fact.what, Push):
        # The pull request itself tells of its pushes.
        return []
    return [Event(kind=kind, at=fact.at, repo=fact.repo, pull=fact.pull, details=details)]


def told_by_change(old: PullRow | None, row: PullRow, pull: PullRequest) -> Iterator[Event]:
    """The events between what was known of a pull request and what is known now."""
    if old is None:
        about: Details = {"agent": pull.agent, "author": pull.author, "title": pull.title}
        yield _event(pull, "pull.opened", pull.opened, about)
    known = (old.rounds, old.edits, old.pointers) if old else (0, 0, 0)
    yield from _happened(pull, *known)
    if row.risk is not None and (old is None or old.risk != row.risk):
        yield _event(pull, "risk.level", pull.told, {"level": row.risk})
    if (old.state if old else "open") != pull.state:
        yield _turned(pull)
    if pull.state == "open" and (old is None or old.last_push != row.last_push):
        why = held(pull)
        if why is not None or row.last_push == "passed":
            yield _event(pull, "pull.held" if why else "pull.ready", pull.told, {"why": why})


def _event(pull: PullRequest, kind: str, at: datetime, details: Details) -> Event:
    return Event(
        kind=kind,
        at=at,
        repo=pull.repo,
        pull=pull.number,
        task=pull.task,
        attempt=pull.attempt,
        details=details,
    )


def _happened(pull: PullRequest, rounds: int, edits: int, pointers: int) -> Iterator[Event]:
    """What is more than so many of each."""
    details: Details
    for one in pull.rounds[rounds:]:
        details = {"number": one.number, "by": ", ".join(one.by), "answer": one.answer}
        yield _event(pull, "review.round", one.ended or one.started, details)
    for edit in pull.edits[edits:]:
        count = len(edit.files or ())
        details = {"by": edit.by, "sha": edit.sha, "files": count, "last": edit.last}
        yield _event(pull, "pull.edited", edit.at, details)
    for pointer in pull.pointers[pointers:]:
        kind = "pull.reverted" if pointer.kind == "revert" else "pull.repaired"
        yield _event(pull, kind, pointer.at, {"by": pointer.by, "how": pointer.how})


def _turned(pull: PullRequest) -> Event:
    if pull.state == "open":
        return _event(pull, "pull.reopened", pull.told, {})
    ended = pull.merged or pull.closed or pull.told
    return _event(pull, f"pull.{pull.state}", ended, _ending(pull))


def _ending(pull: PullRequest) -> Details:
    """How it came to its end."""
    return {
        "agent": pull.agent,
        "rounds": len(pull.rounds),
        "edits": len(pull.edits),
        "reviewed": pull.reviewed,
        "first_push": pull.first_push,
    }
