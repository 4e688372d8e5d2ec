"""What happens to pull requests, as events."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from closeloop.records.event_log import EventDetails, LogEvent
from closeloop.records.pull_request import (
    CiCheck,
    Fact,
    PullRequest,
    PullRow,
    Push,
    Review,
    ReviewComment,
)
from closeloop.reviews.pull_lifecycle import block_reason


def events_from_fact(fact: Fact) -> list[LogEvent]:
    """The events that a new fact is."""
    details: EventDetails
    match fact.what:
        case Push(before=str()) as push:
            kind = "pull.pushed"
            details = {"sha": push.after, "by": push.by, "forced": push.forced}
        case CiCheck(result="passed" | "failed") as check:
            kind = f"check.{check.result}"
            details = {"name": check.name, "sha": check.sha}
        case Review() as review:
            kind = f"review.{review.state}"
            details = {"by": review.by, "id": review.id}
        case ReviewComment(deleted=False) as comment:
            kind = "review.comment"
            place = {"path": comment.path, "line": comment.line}
            details = {"by": comment.by, "id": comment.id, **place}
        case _:
            return []
    if fact.pull is None and isinstance(fact.what, Push):
        # The pull request itself tells of its pushes.
        return []
    return [LogEvent(kind=kind, at=fact.at, repo=fact.repo, pull=fact.pull, details=details)]


def events_from_change(old: PullRow | None, row: PullRow, pull: PullRequest) -> Iterator[LogEvent]:
    """The events between what was known of a pull request and what is known now."""
    if old is None:
        about: EventDetails = {"agent": pull.agent, "author": pull.author, "title": pull.title}
        yield _make_event(pull, "pull.opened", pull.opened, about)
    known_counts = (old.rounds, old.edits, old.pointers) if old else (0, 0, 0)
    yield from _new_activity_events(pull, *known_counts)
    if row.risk is not None and (old is None or old.risk != row.risk):
        yield _make_event(pull, "risk.level", pull.told, {"level": row.risk})
    if (old.state if old else "open") != pull.state:
        yield _state_event(pull)
    if pull.state == "open" and (old is None or old.last_push != row.last_push):
        why = block_reason(pull)
        if why is not None or row.last_push == "passed":
            yield _make_event(pull, "pull.held" if why else "pull.ready", pull.told, {"why": why})


def _make_event(pull: PullRequest, kind: str, at: datetime, details: EventDetails) -> LogEvent:
    return LogEvent(
        kind=kind,
        at=at,
        repo=pull.repo,
        pull=pull.number,
        task=pull.task,
        attempt=pull.attempt,
        details=details,
    )


def _new_activity_events(
    pull: PullRequest, rounds: int, edits: int, pointers: int
) -> Iterator[LogEvent]:
    """What is more than so many of each."""
    details: EventDetails
    for one in pull.rounds[rounds:]:
        details = {"number": one.number, "by": ", ".join(one.by), "answer": one.answer}
        yield _make_event(pull, "review.round", one.ended or one.started, details)
    for edit in pull.edits[edits:]:
        count = len(edit.files or ())
        details = {"by": edit.by, "sha": edit.sha, "files": count, "last": edit.last}
        yield _make_event(pull, "pull.edited", edit.at, details)
    for pointer in pull.pointers[pointers:]:
        kind = "pull.reverted" if pointer.kind == "revert" else "pull.repaired"
        yield _make_event(pull, kind, pointer.at, {"by": pointer.by, "how": pointer.how})


def _state_event(pull: PullRequest) -> LogEvent:
    if pull.state == "open":
        return _make_event(pull, "pull.reopened", pull.told, {})
    ended = pull.merged or pull.closed or pull.told
    return _make_event(pull, f"pull.{pull.state}", ended, _ending_details(pull))


def _ending_details(pull: PullRequest) -> EventDetails:
    """How it came to its end."""
    return {
        "agent": pull.agent,
        "rounds": len(pull.rounds),
        "edits": len(pull.edits),
        "reviewed": pull.reviewed,
        "first_push": pull.first_push,
    }
