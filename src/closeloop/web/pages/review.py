"""The review queue: one change a screen, three questions, a verdict."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, get_args

from msgspec import Meta

from closeloop.records.change import Change
from closeloop.records.errors import BadInput
from closeloop.records.evaluation import CRITERIA
from closeloop.records.finding import FailureMode
from closeloop.records.patch_parsing import parse_patch
from closeloop.records.record import Record, Time
from closeloop.records.review_items import HumanReview, ReviewItem
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.queue_policy import REVIEW_QUESTIONS
from closeloop.reviews.review_queue import ReviewQueue, list_waiting_items, load_draft, next_item
from closeloop.web.metric_cache import CachedValue
from closeloop.web.page import Page
from closeloop.web.page_context import PageContext
from closeloop.web.views.diff_view import DiffFile, build_diff_files


class ReviewAsked(Record):
    caller: Annotated[str, Meta(extra_json_schema={"readOnly": True})] = ""
    """Who reviews; the server says so, whatever the address does."""
    more: bool = False
    """Whether an answer was given that leaves a question open."""


class ReviewView(Record):
    item: ReviewItem | None
    """None where nothing waits for whoever asks."""
    draft: HumanReview | None
    """What they have answered of it already."""
    files: tuple[DiffFile, ...]
    questions: dict[str, str]
    criteria: tuple[str, ...]
    modes: tuple[str, ...]
    items: int
    reviewed: int
    """Of the items that wait."""
    reviewer: str
    shown: Time
    incomplete: bool
    fresh: bool


def review(desk: PageContext, asked: ReviewAsked) -> ReviewView:
    now = datetime.now(UTC)
    queue, fresh = open_review_queue(desk)
    is_queue_known = queue.known is not None
    item = next_item(queue, asked.caller, now, take=False) if is_queue_known else None
    draft = load_draft(queue, item.id, asked.caller) if item else None
    return ReviewView(
        item=item,
        draft=draft if draft and draft.state == "draft" else None,
        files=_item_diff_files(item) if item else (),
        questions=REVIEW_QUESTIONS,
        criteria=CRITERIA,
        modes=get_args(FailureMode),
        items=len(queue.known or ()),
        reviewed=len(_reviewed_items(desk).intersection(queue.known or ())),
        reviewer=asked.caller,
        shown=now,
        incomplete=asked.more,
        fresh=fresh,
    )


def open_review_queue(desk: PageContext) -> tuple[ReviewQueue, bool]:
    """The queue, with all that waits, and whether that is so now."""
    cached_items = _load_waiting_items(desk)
    queue = ReviewQueue(
        store=desk.store,
        settings=desk.settings,
        agents=merge_known_agents(desk.settings.pulls.agents),
        known=cached_items.value[0] if cached_items.value else None,
    )
    return queue, cached_items.fresh


def count_unreviewed_items(desk: PageContext) -> int | None:
    """How many items nobody has looked at; None until they were counted the first time."""
    cached_items = _load_waiting_items(desk)
    return cached_items.value[1] if cached_items.value else None


def _load_waiting_items(desk: PageContext) -> CachedValue[tuple[tuple[str, ...], int]]:
    """All that waits, which may be much, and how many of it nobody has looked at."""

    def made() -> tuple[tuple[str, ...], int]:
        names = tuple(list_waiting_items(desk.store))
        return names, len({*names} - _reviewed_items(desk))

    return desk.metric_cache.compute_from_store("queue", desk.store_mark(), made)


def _reviewed_items(desk: PageContext) -> set[str]:
    return {one.item for one in desk.store.reviews.list_reviews() if one.state == "done"}


def _item_diff_files(item: ReviewItem) -> tuple[DiffFile, ...]:
    try:
        change = parse_patch(item.patch)
    except BadInput:
        change = Change(patch=item.patch)
    return build_diff_files(change, (), [(path, "outside the scope") for path in item.outside])


PAGES = (
    Page(
        path="/review",
        show=review,
        template="review.html",
        about="The next change that waits for a person.",
        section="Review",
        key="r",
    ),
)
