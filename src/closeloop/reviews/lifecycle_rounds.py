"""Rounds of review: people say something, then the branch moves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from closeloop.model.record import Record
from closeloop.model.review import Comment, Commit, Edit, Push, Review, Round


class Activity(Record):
    """What happened between opening and end."""

    opened: datetime
    until: datetime | None
    reviews: tuple[Review, ...]
    comments: tuple[Comment, ...]
    pushes: tuple[Push, ...]
    commits: tuple[Commit, ...]
    edits: tuple[Edit, ...] = ()


def rounds_of(activity: Activity) -> tuple[Round, ...]:
    """One for every time the branch moved after people had asked for something.

    Approval alone asks for nothing. Who mends an agent's work without a word has asked, too. What
    was asked for in so many words, and never came, is a round that has not ended.
    """
    edits = {edit.sha: edit.by for edit in activity.edits}
    said = sorted(_said(activity), key=lambda one: one.at)
    rounds: list[Round] = []
    going_on = False
    for at, sha, brought in _moves(activity):
        before = [one for one in said if one.at <= at]
        said = said[len(before) :]
        mended = [edits[one] for one in brought if one in edits]
        if any(map(_asks, before)):
            rounds.append(_round(len(rounds) + 1, before, at, sha))
        elif mended and going_on:
            rounds[-1] = replace(rounds[-1], ended=at, answer=sha)
        elif mended:
            who = tuple(dict.fromkeys(name for name in mended if name))
            number = len(rounds) + 1
            rounds.append(Round(number=number, started=at, ended=at, by=who, answer=sha))
        # People who mend go on until the agent has its turn.
        going_on = bool(mended)
    if any(isinstance(one, Review) and one.state == "changes_requested" for one in said):
        rounds.append(_round(len(rounds) + 1, said, None, None))
    return tuple(rounds)


def _said(activity: Activity) -> list[Review | Comment]:
    both: list[Review | Comment] = [*activity.reviews, *activity.comments]
    return [
        one for one in both if one.counts and (activity.until is None or one.at <= activity.until)
    ]


def _moves(activity: Activity) -> list[tuple[datetime, str, tuple[str, ...]]]:
    """When the branch moved after the opening, to which commit, and what that brought."""
    brought_in = {commit.sha for commit in activity.commits if commit.merge}
    moves = [
        (push.at, push.after, push.commits or (push.after,))
        for push in activity.pushes
        if push.before is not None and not (push.commits and brought_in.issuperset(push.commits))
    ]
    if not moves:
        made = [commit for commit in activity.commits if not commit.merge]
        moves = [(commit.at, commit.sha, (commit.sha,)) for commit in made]
    return sorted(
        move
        for move in moves
        if move[0] > activity.opened and (activity.until is None or move[0] <= activity.until)
    )


def _asks(one: Review | Comment) -> bool:
    return isinstance(one, Comment) or one.state != "approved"


def _round(
    number: int, said: Sequence[Review | Comment], ended: datetime | None, answer: str | None
) -> Round:
    return Round(
        number=number,
        started=said[0].at,
        ended=ended,
        by=tuple(dict.fromkeys(one.by for one in said if one.by)),
        reviews=tuple(one.id for one in said if isinstance(one, Review)),
        comments=tuple(one.id for one in said if isinstance(one, Comment)),
        requested=any(isinstance(one, Review) and one.state == "changes_requested" for one in said),
        answer=answer,
    )
