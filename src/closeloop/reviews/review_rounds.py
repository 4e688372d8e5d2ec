"""Rounds of review: people say something, then the branch moves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from closeloop.records.pull_request import (
    HumanEdit,
    PullCommit,
    Push,
    Review,
    ReviewComment,
    ReviewRound,
)
from closeloop.records.record import Record


class PullActivity(Record):
    """What happened between opening and end."""

    opened: datetime
    until: datetime | None
    reviews: tuple[Review, ...]
    comments: tuple[ReviewComment, ...]
    pushes: tuple[Push, ...]
    commits: tuple[PullCommit, ...]
    edits: tuple[HumanEdit, ...] = ()


def list_review_rounds(activity: PullActivity) -> tuple[ReviewRound, ...]:
    """One for every time the branch moved after people had asked for something.

    Approval alone asks for nothing. Who mends an agent's work without a word has asked, too. What
    was asked for in so many words, and never came, is a round that has not ended.
    """
    edits = {edit.sha: edit.by for edit in activity.edits}
    remarks = sorted(_reviewer_remarks(activity), key=lambda one: one.at)
    rounds: list[ReviewRound] = []
    going_on = False
    for at, sha, brought in _branch_moves(activity):
        before = [one for one in remarks if one.at <= at]
        remarks = remarks[len(before) :]
        mended_by = [edits[one] for one in brought if one in edits]
        if any(map(_asks_for_change, before)):
            rounds.append(_build_round(len(rounds) + 1, before, at, sha))
        elif mended_by and going_on:
            rounds[-1] = replace(rounds[-1], ended=at, answer=sha)
        elif mended_by:
            who = tuple(dict.fromkeys(name for name in mended_by if name))
            number = len(rounds) + 1
            rounds.append(ReviewRound(number=number, started=at, ended=at, by=who, answer=sha))
        # People who mend go on until the agent has its turn.
        going_on = bool(mended_by)
    if any(isinstance(one, Review) and one.state == "changes_requested" for one in remarks):
        rounds.append(_build_round(len(rounds) + 1, remarks, None, None))
    return tuple(rounds)


def _reviewer_remarks(activity: PullActivity) -> list[Review | ReviewComment]:
    both: list[Review | ReviewComment] = [*activity.reviews, *activity.comments]
    return [
        one for one in both if one.counts and (activity.until is None or one.at <= activity.until)
    ]


def _branch_moves(activity: PullActivity) -> list[tuple[datetime, str, tuple[str, ...]]]:
    """When the branch moved after the opening, to which commit, and what that brought."""
    brought_in = {commit.sha for commit in activity.commits if commit.merge}
    moves = [
        (push.at, push.after, push.commits or (push.after,))
        for push in activity.pushes
        if push.before is not None and not (push.commits and brought_in.issuperset(push.commits))
    ]
    if not moves:
        own_commits = [commit for commit in activity.commits if not commit.merge]
        moves = [(commit.at, commit.sha, (commit.sha,)) for commit in own_commits]
    return sorted(
        move
        for move in moves
        if move[0] > activity.opened and (activity.until is None or move[0] <= activity.until)
    )


def _asks_for_change(one: Review | ReviewComment) -> bool:
    return isinstance(one, ReviewComment) or one.state != "approved"


def _build_round(
    number: int, said: Sequence[Review | ReviewComment], ended: datetime | None, answer: str | None
) -> ReviewRound:
    return ReviewRound(
        number=number,
        started=said[0].at,
        ended=ended,
        by=tuple(dict.fromkeys(one.by for one in said if one.by)),
        reviews=tuple(one.id for one in said if isinstance(one, Review)),
        comments=tuple(one.id for one in said if isinstance(one, ReviewComment)),
        requested=any(isinstance(one, Review) and one.state == "changes_requested" for one in said),
        answer=answer,
    )
