"""The review queue: work that passed its checks, or has none, put before people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from msgspec.structs import replace

from closeloop.records.calibration import HumanLabel, JudgedAspect
from closeloop.records.errors import BadInput
from closeloop.records.pull_request import PullRow
from closeloop.records.record import Record, stable_fraction
from closeloop.records.session import LogEvent
from closeloop.records.settings import ReviewSettings
from closeloop.records.team_rules import (
    AnswerDegree,
    HumanReview,
    QueueStatus,
    ReviewAssignment,
    ReviewItem,
)
from closeloop.reviews.agent_context import hidden_attempts
from closeloop.reviews.review_corrections import corrections_from_review
from closeloop.reviews.review_items import ReviewQueue, load_review_item, sort_by_lot
from closeloop.reviews.review_questions import require_complete_review
from closeloop.store import Store
from closeloop.text.redaction import redact_record

# Whose turn is which item: one at a time, some twice, some of which the answer is known.

CLAIM_DURATION = timedelta(hours=24)
"""An item that somebody took and did not finish is free again after that."""
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


BLOCKING_RESULTS = ("failed", "running")
"""What checks say of a change that nobody is asked about."""


def next_item(
    queue: ReviewQueue, reviewer: str, now: datetime, *, take: bool = True
) -> ReviewItem | None:
    """What somebody should look at now; if they take it, it is theirs for a day."""
    if not reviewer.strip():
        raise BadInput("Say who reviews: --reviewer NAME.")
    desk = load_queue_state(queue, now)
    chosen = choose_next_item(desk, reviewer)
    if chosen is None:
        return None
    theirs = any(one.item == chosen and one.reviewer == reviewer for one in desk.assigned)
    if take and not theirs:
        queue.store.reviews.add_assignment(ReviewAssignment(item=chosen, reviewer=reviewer, at=now))
    return load_review_item(queue, chosen)


def load_draft(queue: ReviewQueue, chosen: str, reviewer: str) -> HumanReview | None:
    """What somebody has answered of an item so far."""
    return next(iter(queue.store.reviews.list_reviews(item=chosen, reviewer=reviewer)), None)


def save_draft(queue: ReviewQueue, review: HumanReview) -> None:
    """Keep answers that are not all there yet."""
    queue.store.reviews.save_review(replace(redact_record(review)[0], item=review.item))


def submit_review(queue: ReviewQueue, review: HumanReview) -> None:
    """Keep somebody's answers; they are labels for judges too, and corrections to learn from."""
    submit_reviews(queue, [review])


def submit_reviews(queue: ReviewQueue, reviews: Sequence[HumanReview]) -> None:
    """Keep answers for several items: nothing is kept where one of them is not right."""
    reviewed_items = [load_review_item(queue, review.item) for review in reviews]
    for review, reviewed in zip(reviews, reviewed_items, strict=True):
        require_complete_review(review, reviewed.questions)
    for review, reviewed in zip(reviews, reviewed_items, strict=True):
        _save_review(queue, review, reviewed)


def _save_review(queue: ReviewQueue, review: HumanReview, reviewed: ReviewItem) -> None:
    review = replace(redact_record(review)[0], item=reviewed.id)
    store = queue.store
    store.reviews.save_review(review)
    store.judged.save_labels(labels_from_review(review, queue.settings.judge.rubric))
    golden = review.item in list_golden_items(queue)
    store.memory.save_corrections([] if golden else corrections_from_review(review, reviewed))
    store.events.add(
        [
            LogEvent(
                kind="review.answered",
                at=review.at,
                repo=reviewed.repo,
                attempt=review.item if reviewed.kind == "attempt" else None,
                details={"item": review.item, "reviewer": review.reviewer, "merge": review.merge},
            )
        ]
    )


def assign_reviewer(queue: ReviewQueue, chosen: str, reviewer: str, now: datetime) -> None:
    """Ask somebody by name; others are not given the item then."""
    review_item = load_review_item(queue, chosen)
    queue.store.reviews.add_assignment(
        ReviewAssignment(item=review_item.id, reviewer=reviewer, at=now, asked=True)
    )


def queue_status(queue: ReviewQueue, reviewer: str, now: datetime) -> QueueStatus:
    """How much there is to do, and for whom."""
    desk = load_queue_state(queue, now)
    done = {one.item for one in desk.reviews if one.state == "done"}
    return QueueStatus(
        items=len(desk.waiting),
        reviewed=len(done & {*desk.waiting}),
        doubled=sum(needs_two_reviews(one, desk.policy) for one in desk.waiting),
        golden=len(desk.golden),
        without_change=len(list_pulls_awaiting_change(queue.store)),
        mine=sum(1 for _ in list_free_items(desk, reviewer)),
    )


def load_queue_state(queue: ReviewQueue, now: datetime) -> QueueState:
    store = queue.store
    return QueueState(
        waiting=tuple(list_waiting_items(store)) if queue.known is None else queue.known,
        golden=frozenset(list_golden_items(queue)),
        reviews=tuple(store.reviews.list_reviews()),
        assigned=tuple(store.reviews.list_assignments()),
        policy=queue.settings.review,
        now=now,
    )


def list_waiting_items(store: Store) -> list[str]:
    """Stage 1 is behind them: graded and passed, not checked by any machine, or open with no check
    that fails or runs.

    What was made for a held-out task stays out of sight, and nobody is asked about a pull request
    whose diff is not stored.
    """
    names = [f"{row.repo}#{row.pull}" for row in _list_ready_pulls(store, has_change=True)]
    names += _list_unchecked_attempts(store)
    names += [name for name, _ in store.counts.list_passed_attempts()]
    hidden = hidden_items(store)
    return [name for name in names if name not in hidden]


def list_pulls_awaiting_change(store: Store) -> list[str]:
    """Pull requests that would wait for a person, if only their diff were known."""
    return [f"{row.repo}#{row.pull}" for row in _list_ready_pulls(store, has_change=False)]


def _list_ready_pulls(store: Store, *, has_change: bool) -> list[PullRow]:
    rows = store.pulls.list_pulls(state="open", agent=True, has_change=has_change)
    return [
        row for row in reversed(rows) if not row.draft and row.last_push not in BLOCKING_RESULTS
    ]


def _list_unchecked_attempts(store: Store) -> list[str]:
    """Attempts that only people and judges score; those that are shown together come together."""
    groups: dict[tuple[str | None, int], list[str]] = {}
    for row in store.counts.list_unchecked_attempts():
        groups.setdefault((row.task_digest, row.number), []).append(row.attempt)
    return [name for together in groups.values() for name in sort_by_lot(together)]


def hidden_items(store: Store) -> set[str]:
    """What was made for held-out tasks, and pull requests that came of it."""
    hidden = hidden_attempts(store)
    rows = store.pulls.list_pulls(agent=True) if hidden else ()
    return hidden | {f"{row.repo}#{row.pull}" for row in rows if row.attempt in hidden}


def list_golden_items(queue: ReviewQueue) -> set[str]:
    """Items of which it is known, by other means, what they are worth."""
    labels = queue.store.judged.list_labels(queue.settings.judge.rubric)
    golden = {one.item for one in labels if one.golden and one.asked == "overall"}
    return golden - hidden_items(queue.store) if golden else golden


def labels_from_review(review: HumanReview, rubric: str) -> list[HumanLabel]:
    """What a review says to calibration; `partly` says neither."""
    answers: dict[JudgedAspect, AnswerDegree] = {"overall": "yes" if review.merge else "no"}
    answers.update(review.dimensions.items())
    return [
        HumanLabel(
            item=review.item,
            rubric=rubric,
            asked=asked,
            label="pass" if degree == "yes" else "fail",
            person=review.reviewer,
            at=review.at,
        )
        for asked, degree in answers.items()
        if degree != "partly"
    ]
