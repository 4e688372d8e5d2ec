"""The review queue: one change a screen, three questions, a verdict."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, get_args

from msgspec import Meta

from closeloop.model.change import Change
from closeloop.model.errors import BadInput
from closeloop.model.evaluation import CRITERIA
from closeloop.model.finding import Mode
from closeloop.model.patches import parse
from closeloop.model.queue import HumanReview, ReviewItem
from closeloop.model.record import Record, Time
from closeloop.reviewing.queue import Queue, draft_of, next_item, waiting
from closeloop.reviews.authorship import agents_of
from closeloop.reviews.queue import QUESTIONS
from closeloop.web.counting import Counted
from closeloop.web.desk import Desk
from closeloop.web.page import Page
from closeloop.web.views.diff import DiffFile, diff_files


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


def review(desk: Desk, asked: ReviewAsked) -> ReviewView:
    now = datetime.now(UTC)
    queue, fresh = queue_of(desk)
    known = queue.known is not None
    item = next_item(queue, asked.caller, now, take=False) if known else None
    draft = draft_of(queue, item.id, asked.caller) if item else None
    return ReviewView(
        item=item,
        draft=draft if draft and draft.state == "draft" else None,
        files=_files(item) if item else (),
        questions=QUESTIONS,
        criteria=CRITERIA,
        modes=get_args(Mode),
        items=len(queue.known or ()),
        reviewed=len(_done(desk).intersection(queue.known or ())),
        reviewer=asked.caller,
        shown=now,
        incomplete=asked.more,
        fresh=fresh,
    )


def queue_of(desk: Desk) -> tuple[Queue, bool]:
    """The queue, with all that waits, and whether that is so now."""
    counted = _waiting(desk)
    queue = Queue(
        store=desk.store,
        settings=desk.settings,
        agents=agents_of(desk.settings.pulls.agents),
        known=counted.value[0] if counted.value else None,
    )
    return queue, counted.fresh


def unreviewed(desk: Desk) -> int | None:
    """How many items nobody has looked at; None until they were counted the first time."""
    counted = _waiting(desk)
    return counted.value[1] if counted.value else None


def _waiting(desk: Desk) -> Counted[tuple[tuple[str, ...], int]]:
    """All that waits, which may be much, and how many of it nobody has looked at."""

    def made() -> tuple[tuple[str, ...], int]:
        names = tuple(waiting(desk.store))
        return names, len({*names} - _done(desk))

    return desk.counting.of_store("queue", desk.mark(), made)


def _done(desk: Desk) -> set[str]:
    return {one.item for one in desk.store.reviews.all() if one.state == "done"}


def _files(item: ReviewItem) -> tuple[DiffFile, ...]:
    try:
        change = parse(item.patch)
    except BadInput:
        change = Change(patch=item.patch)
    return diff_files(change, (), [(path, "outside the scope") for path in item.outside])


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
