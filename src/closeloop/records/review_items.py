"""What people are asked about a change, and what they answered."""

from __future__ import annotations

from typing import Literal

from closeloop.records.evaluation import CriterionName
from closeloop.records.finding import FailureMode
from closeloop.records.record import Record, Time

ScopeAnswer = Literal["yes", "no", "none"]
"""`none`: no file outside the scope was changed."""
AnswerDegree = Literal["yes", "partly", "no"]
REVIEW_QUESTIONS = {
    "contained": "Is the change contained in the intended scope?",
    "outside": "Were files outside the scope changed correctly?",
    "approach": "Is this the approach the team would take?",
}


class ReviewItem(Record):
    """A change that passed its checks and waits for a person. Who made it is not said."""

    id: str
    """An attempt's, or `owner/name#12`."""
    kind: Literal["attempt", "pull"]
    title: str
    request: str = ""
    """What was asked for."""
    repo: str | None = None
    url: str | None = None
    scope: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    """Files outside the declared scope."""
    patch: str = ""
    checks: str = ""
    """What stage 1 found, in words."""
    suggested: tuple[FailureMode, ...] = ()
    blind: bool = False
    """It is part of a comparison: nothing may tell which variant made it."""


class ReviewAnswers(Record):
    """What somebody says of one item."""

    item: str
    contained: bool | None = None
    """Is the change contained in the intended scope?"""
    outside: ScopeAnswer | None = None
    """Were files outside the scope changed correctly?"""
    approach: bool | None = None
    """Is this the approach the team would take?"""
    merge: bool | None = None
    dimensions: dict[CriterionName, AnswerDegree] = {}
    tags: tuple[FailureMode, ...] = ()
    notes: str = ""
    seconds: float | None = None


class HumanReview(ReviewAnswers):
    """One person's answers to one item."""

    reviewer: str
    at: Time
    state: Literal["draft", "done"] = "done"


class ReviewAssignment(Record):
    """Whose turn an item is."""

    item: str
    reviewer: str
    at: Time
    asked: bool = False
    """Somebody named the reviewer; otherwise it was taken from the queue."""


class QueueStatus(Record):
    """How the queue stands."""

    items: int
    reviewed: int
    doubled: int
    """Items that two people look at."""
    golden: int
    mine: int
    """Items that are left for whoever asks."""
