"""What people said of an attempt, and all of its record as it is kept."""

from __future__ import annotations

import msgspec

from closeloop.records.record import Record
from closeloop.records.review_items import HumanReview
from closeloop.records.variant import Variant
from closeloop.web.page import Page
from closeloop.web.page_context import PageContext
from closeloop.web.pages.heads import AttemptAsked, AttemptHead, load_attempt_head


class ReviewsView(Record):
    """What people answered when they looked at this attempt."""

    head: AttemptHead
    reviews: tuple[HumanReview, ...]


class RawView(Record):
    """The record of an attempt, as it is kept, and how its trace was read."""

    head: AttemptHead
    record: str
    """The attempt as JSON."""
    variant: Variant | None
    reader: str
    reader_version: int
    skipped: dict[str, int]
    events: int


def attempt_reviews(desk: PageContext, asked: AttemptAsked) -> ReviewsView:
    head, _ = load_attempt_head(desk, asked.attempt)
    all_reviews = desk.store.reviews.list_reviews(item=head.row.id)
    return ReviewsView(head=head, reviews=tuple(one for one in all_reviews if one.state == "done"))


def raw(desk: PageContext, asked: AttemptAsked) -> RawView:
    head, _ = load_attempt_head(desk, asked.attempt)
    trace = desk.load_trace(head.row.id)
    record = msgspec.json.format(msgspec.json.encode(head.attempt), indent=2).decode()
    return RawView(
        head=head,
        record=record,
        variant=desk.store.load_variant(head.row.variant) if head.row.variant else None,
        reader=trace.reader,
        reader_version=trace.reader_version,
        skipped=trace.skipped,
        events=len(trace.events),
    )


PAGES = (
    Page(
        path="/attempts/{attempt}/reviews",
        show=attempt_reviews,
        template="attempt_reviews.html",
        about="What people said of an attempt.",
        section="Attempts",
    ),
    Page(
        path="/attempts/{attempt}/raw",
        show=raw,
        template="raw.html",
        about="The record of an attempt as it is kept.",
        section="Attempts",
    ),
)
