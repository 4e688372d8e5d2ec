"""The review queue: one item per screen, other outputs beside it, a few questions, a verdict."""

from __future__ import annotations

from datetime import UTC, datetime
from statistics import median
from typing import Annotated, get_args

from msgspec import Meta

from closeloop.records.change import Change
from closeloop.records.errors import BadInput
from closeloop.records.finding import FailureMode
from closeloop.records.record import Record, Time
from closeloop.records.team_rules import HumanReview, ReviewItem, ReviewOutput
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.review_queue import (
    ReviewQueue,
    get_answer,
    list_pulls_awaiting_change,
    list_waiting_items,
    load_blind_trace,
    load_draft,
    load_review_item,
    next_item,
)
from closeloop.text.patches import parse_patch
from closeloop.web.diff_view import DiffFile, build_diff_files
from closeloop.web.event_views import EventView, build_event_view
from closeloop.web.page import CachedValue, Page, PageContext, find_or_404

MAX_TRACE_EVENTS = 400
PACE_REVIEWS = 20
"""Number of latest reviews from which the remaining time is estimated."""
DOCUMENT_SUFFIXES = (".md", ".markdown", ".txt", ".rst")


class ReviewQuery(Record):
    item: str = ""
    """An attempt or a pull request to review again; by default the next one in the queue."""
    caller: Annotated[str, Meta(extra_json_schema={"readOnly": True})] = ""
    """The reviewer's name; set by the server, whatever the URL says."""
    more: bool = False
    """Whether an answer was given that leaves a question open."""


class OutputView(Record):
    """The output of one attempt, as the page shows it."""

    output: ReviewOutput
    asked: bool
    """Whether the questions are about this one."""
    files: tuple[DiffFile, ...]
    documents: dict[str, str]
    """Text by path of new files that are documents, not code."""


class ReviewView(Record):
    item: ReviewItem | None
    """None if nothing waits for this reviewer."""
    draft: HumanReview | None
    """The reviewer's answers to it so far."""
    words: dict[str, str]
    """The same, by question."""
    outputs: tuple[OutputView, ...]
    modes: tuple[str, ...]
    items: int
    reviewed: int
    """Number of items in the queue that somebody has reviewed."""
    seconds_left: float | None
    """Estimate for the other items at the reviewer's own pace, else at everybody's; None before any
    review."""
    reviewer: str
    named: bool
    """Whether the item was requested by name, outside the queue's order."""
    shown: Time
    incomplete: bool
    without_change: int
    """Open pull requests of agents that are not queued because their diff is not stored; counted
    only if the queue is empty."""
    fresh: bool


def review(page_context: PageContext, query: ReviewQuery) -> ReviewView:
    now = datetime.now(UTC)
    queue, fresh = open_review_queue(page_context)
    item = None
    if query.item:
        item = find_or_404(load_review_item, queue, query.item)
    elif queue.known is not None:
        item = next_item(queue, query.caller, now, take=False)
    draft = load_draft(queue, item.id, query.caller) if item else None
    is_shown = draft is not None and (draft.state == "draft" or bool(query.item))
    draft = draft if is_shown else None
    done_reviews = [
        review for review in page_context.store.reviews.list_reviews() if review.state == "done"
    ]
    reviewed = len({review.item for review in done_reviews}.intersection(queue.known or ()))
    questions = item.questions if item else ()
    answers = (
        {question.name: get_answer(draft, question.name) for question in questions} if draft else {}
    )
    return ReviewView(
        item=item,
        draft=draft,
        words={name: answer for name, answer in answers.items() if answer is not None},
        outputs=_output_views(item) if item else (),
        modes=get_args(FailureMode),
        items=len(queue.known or ()),
        reviewed=reviewed,
        seconds_left=_estimate_seconds_left(
            done_reviews, query.caller, len(queue.known or ()) - reviewed
        ),
        reviewer=query.caller,
        named=bool(query.item),
        shown=now,
        incomplete=query.more,
        without_change=0 if item else len(list_pulls_awaiting_change(page_context.store)),
        fresh=fresh or item is not None,
    )


def _estimate_seconds_left(
    done_reviews: list[HumanReview], reviewer: str, items: int
) -> float | None:
    timed = [review for review in done_reviews if review.seconds is not None]
    own_reviews = [review for review in timed if review.reviewer == reviewer]
    paces = [review.seconds for review in own_reviews or timed if review.seconds is not None]
    return median(paces[-PACE_REVIEWS:]) * items if paces else None


def open_review_queue(page_context: PageContext) -> tuple[ReviewQueue, bool]:
    """Return the queue with all waiting items, and whether it is current."""
    cached_items = _load_waiting_items(page_context)
    queue = ReviewQueue(
        store=page_context.store,
        settings=page_context.settings,
        agents=merge_known_agents(page_context.settings.pulls.agents),
        known=cached_items.value[0] if cached_items.value else None,
    )
    return queue, cached_items.fresh


def count_unreviewed_items(page_context: PageContext) -> int | None:
    """Return the number of items without a review; None until counted for the first time."""
    cached_items = _load_waiting_items(page_context)
    return cached_items.value[1] if cached_items.value else None


def _load_waiting_items(page_context: PageContext) -> CachedValue[tuple[tuple[str, ...], int]]:
    """Return all waiting items, which may be many, and the number without a review."""

    def made() -> tuple[tuple[str, ...], int]:
        names = tuple(list_waiting_items(page_context.store))
        reviews = page_context.store.reviews.list_reviews()
        return names, len({*names} - {review.item for review in reviews if review.state == "done"})

    return page_context.metric_cache.compute_from_store("queue", page_context.store_mark(), made)


def _output_views(item: ReviewItem) -> tuple[OutputView, ...]:
    outputs = sorted((item.output, *item.others), key=lambda output: output.label)
    return tuple(_output_view(output, item, output is item.output) for output in outputs)


def _output_view(output: ReviewOutput, item: ReviewItem, is_reviewed: bool) -> OutputView:
    try:
        change = parse_patch(output.patch)
    except BadInput:
        change = Change(patch=output.patch)
    marks = [(path, "outside the scope") for path in item.outside] if is_reviewed else []
    files = build_diff_files(change, (), marks)
    documents = {
        file.path: "\n".join(line.text for line in file.lines if line.kind == "plus")
        for file in files
        if file.status == "added" and file.path.lower().endswith(DOCUMENT_SUFFIXES)
    }
    return OutputView(output=output, asked=is_reviewed, files=files, documents=documents)


class TraceQuery(Record):
    item: str
    label: str = ""
    """Label of one of the other attempts beside it; by default the item's own."""


class TraceView(Record):
    """The trace of an attempt, without the names of its agent and model."""

    events: tuple[EventView, ...]
    left_out: int


def review_trace(page_context: PageContext, query: TraceQuery) -> TraceView:
    queue, _ = open_review_queue(page_context)
    trace = find_or_404(load_blind_trace, queue, query.item, query.label)
    events = trace.events if trace else ()
    return TraceView(
        events=tuple(build_event_view(event, 0, ()) for event in events[:MAX_TRACE_EVENTS]),
        left_out=max(0, len(events) - MAX_TRACE_EVENTS),
    )


PAGES = (
    Page(
        path="/review",
        show=review,
        template="review.html",
        about="The next item of the review queue.",
        section="Review",
        key="r",
    ),
    Page(
        path="/review/trace",
        show=review_trace,
        template="review_trace.html",
        about="The trace of an item in the review queue, without the agent's name.",
        section="Review",
        part=True,
    ),
)
