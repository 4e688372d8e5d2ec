"""Whose turn is which item: one at a time, some twice, some of which the answer is known."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache

from closeloop.records.errors import BadInput
from closeloop.records.record import Record, stable_fraction
from closeloop.records.review_items import HumanReview, ReviewAssignment
from closeloop.records.settings import ReviewSettings

CLAIM_DURATION = timedelta(hours=24)
"""An item that somebody took and did not finish is free again after that."""
REVIEW_QUESTIONS = {
    "contained": "Is the change contained in the intended scope?",
    "outside": "Were files outside the scope changed correctly?",
    "approach": "Is this the approach the team would take?",
}
_cached_fraction = lru_cache(1 << 17)(stable_fraction)


class QueueState(Record):
    """What is known of the queue when somebody asks for an item."""

    waiting: tuple[str, ...]
    """Items in the order they came."""
    golden: frozenset[str] = frozenset()
    reviews: tuple[HumanReview, ...] = ()
    assigned: tuple[ReviewAssignment, ...] = ()
    policy: ReviewSettings = ReviewSettings()
    now: datetime


class QueueClaims(Record):
    """Who is at which item, or was asked for by name."""

    at: dict[str, set[str]]
    named: dict[str, set[str]]


def collect_claims(desk: QueueState) -> QueueClaims:
    """One look at everything, however many items are asked about afterwards."""
    at: dict[str, set[str]] = {}
    named: dict[str, set[str]] = {}
    for review in desk.reviews:
        at.setdefault(review.item, set()).add(review.reviewer)
    for one in desk.assigned:
        if desk.now - one.at < CLAIM_DURATION:
            at.setdefault(one.item, set()).add(one.reviewer)
        if one.asked:
            named.setdefault(one.item, set()).add(one.reviewer)
    return QueueClaims(at=at, named=named)


def needs_two_reviews(item: str, policy: ReviewSettings) -> bool:
    """Whether two people look at an item: by lot, known to nobody who looks."""
    return _cached_fraction("double", policy.seed, item) < policy.double


def choose_next_item(desk: QueueState, reviewer: str) -> str | None:
    """What somebody should look at now: what was begun, what was asked for, then what is free."""
    mine = {one.item: one.state for one in desk.reviews if one.reviewer == reviewer}
    drafts = [item for item, state in mine.items() if state == "draft"]
    if drafts:
        return drafts[-1]
    known = {*desk.waiting, *desk.golden}
    own = [one for one in desk.assigned if one.reviewer == reviewer]
    begun = [one for one in own if not one.asked and desk.now - one.at < CLAIM_DURATION]
    for one in (*(one for one in own if one.asked), *begun):
        if one.item not in mine and one.item in known:
            return one.item
    done = sum(state == "done" for state in mine.values())
    seed = desk.policy.seed
    golden = sorted(
        desk.golden - mine.keys(), key=lambda item: _cached_fraction(seed, reviewer, item)
    )
    if golden and _cached_fraction("golden", seed, reviewer, done) < desk.policy.golden:
        return golden[0]
    return next(list_free_items(desk, reviewer), None)


def list_free_items(desk: QueueState, reviewer: str) -> Iterator[str]:
    """The items that still want somebody, and may have this one, in the order they came."""
    known = collect_claims(desk)
    mine = {one.item for one in desk.reviews if one.reviewer == reviewer}
    for item in desk.waiting:
        if item in desk.golden or item in mine:
            continue
        if item in known.named and reviewer not in known.named[item]:
            continue
        others = known.at.get(item, set()) - {reviewer}
        if not others or (len(others) == 1 and needs_two_reviews(item, desk.policy)):
            yield item


def require_complete_review(review: HumanReview) -> None:
    """BadInput for answers that leave one of the questions open."""
    for name, question in REVIEW_QUESTIONS.items():
        if getattr(review, name) is None:
            raise BadInput(f"Answer this too: {question}")
    if review.merge is None:
        raise BadInput("Say whether it should be merged.")
    if not review.reviewer.strip():
        raise BadInput("Say who reviews: --reviewer NAME.")
