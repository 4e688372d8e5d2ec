"""What people answer in the review queue, by form or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import anyio.to_thread
import msgspec
from msgspec.structs import asdict, replace
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from closeloop.records.errors import BadInput, Fault
from closeloop.records.evaluation import CRITERIA
from closeloop.records.review_items import HumanReview, ReviewAnswers
from closeloop.reviews.review_queue import load_review_item, next_item, save_draft, submit_review
from closeloop.web.form_fields import parse_form_fields
from closeloop.web.openapi import ApiOperation, Problem
from closeloop.web.page import caller_or_local_user, fault_status
from closeloop.web.page_context import PageContext
from closeloop.web.pages.review import open_review_queue

MAX_NOTES_CHARS = 20_000
MAX_REVIEW_SECONDS = 86400.0
YES_NO_VALUES = {"yes": True, "no": False}
REVIEW_OPERATIONS = (
    ApiOperation(
        method="post",
        path="/api/review",
        name="answer",
        summary="Answer for a change in the review queue; the server says who answers, and when.",
        body=ReviewAnswers,
        answer=HumanReview,
        faults=(400, 401, 403, 413, 429),
    ),
)


def review_routes(desk: PageContext) -> list[Route]:
    async def submit_form(request: Request) -> Response:
        review = _review_from_form(await request.body(), caller_or_local_user(request, desk))
        try:
            await anyio.to_thread.run_sync(_submit_review, desk, review)
        except BadInput:
            # All that was answered is kept; the page asks for the rest.
            draft = replace(review, state="draft")
            await anyio.to_thread.run_sync(_save_draft_review, desk, draft)
            return RedirectResponse("/review?more=true", 303)
        return RedirectResponse("/review", 303)

    async def save_form_draft(request: Request) -> Response:
        review = _review_from_form(
            await request.body(), caller_or_local_user(request, desk), "draft"
        )
        await anyio.to_thread.run_sync(_save_draft_review, desk, review)
        return Response(status_code=204)

    async def take_item(request: Request) -> Response:
        """What is looked at is the caller's, unless somebody else was quicker."""
        form_review = _review_from_form(await request.body(), caller_or_local_user(request, desk))
        taken_item = await anyio.to_thread.run_sync(_take_next_item, desk, form_review.reviewer)
        refresh_headers = {} if taken_item == form_review.item else {"hx-refresh": "true"}
        return Response(status_code=204, headers=refresh_headers)

    async def submit_json(request: Request) -> Response:
        try:
            answers_given = msgspec.json.decode(await request.body(), type=ReviewAnswers)
            reviewer_name = caller_or_local_user(request, desk)
            review = HumanReview(
                **asdict(answers_given), reviewer=reviewer_name, at=datetime.now(UTC)
            )
            await anyio.to_thread.run_sync(_submit_review, desk, review)
        except (ValueError, RecursionError) as error:
            return _json_response(Problem(message=f"These are no answers: {error}."), 400)
        except Fault as fault:
            return _json_response(Problem(message=str(fault)), fault_status(fault))
        return _json_response(review, 200)

    return [
        Route("/review", submit_form, methods=["POST"]),
        Route("/review/take", take_item, methods=["POST"]),
        Route("/review/draft", save_form_draft, methods=["POST"]),
        Route("/api/review", submit_json, methods=["POST"]),
    ]


def _submit_review(desk: PageContext, review: HumanReview) -> None:
    submit_review(open_review_queue(desk)[0], review)


def _take_next_item(desk: PageContext, reviewer: str) -> str | None:
    next_review_item = next_item(open_review_queue(desk)[0], reviewer, datetime.now(UTC))
    return next_review_item.id if next_review_item else None


def _save_draft_review(desk: PageContext, review: HumanReview) -> None:
    """A draft of nothing is none."""
    queue, _ = open_review_queue(desk)
    with suppress(BadInput):
        save_draft(queue, replace(review, item=load_review_item(queue, review.item).id))


def _review_from_form(body: bytes, reviewer: str, state: str = "done") -> HumanReview:
    """What a form says; what it does not say, or says in other words, is open."""
    form_fields = parse_form_fields(body)
    first_values = {name: values[0] for name, values in form_fields.items()}
    now = datetime.now(UTC)
    review_fields = {
        "item": first_values.get("item", "")[:500],
        "reviewer": reviewer,
        "at": now,
        "state": state,
        **{
            name: YES_NO_VALUES.get(first_values.get(name, ""))
            for name in ("contained", "approach", "merge")
        },
        "outside": _word_among(first_values, "outside", ("yes", "no", "none")),
        "dimensions": {
            name: word
            for name in CRITERIA
            if (word := _word_among(first_values, name, ("yes", "partly", "no"))) is not None
        },
        "tags": form_fields.get("tags", []),
        "notes": first_values.get("notes", "")[:MAX_NOTES_CHARS].strip(),
        "seconds": _seconds_since_shown(first_values.get("shown", ""), now),
    }
    try:
        return msgspec.convert(review_fields, HumanReview)
    except msgspec.ValidationError:
        return msgspec.convert({**review_fields, "tags": []}, HumanReview)


def _word_among(said: Mapping[str, str], name: str, words: tuple[str, ...]) -> str | None:
    return said[name] if said.get(name) in words else None


def _seconds_since_shown(shown: str, now: datetime) -> float | None:
    try:
        elapsed = (now - datetime.fromisoformat(shown)).total_seconds()
    except (TypeError, ValueError):
        return None
    return round(elapsed, 1) if 0 <= elapsed < MAX_REVIEW_SECONDS else None


def _json_response(record: Any, status: int) -> Response:
    return Response(msgspec.json.encode(record), status, media_type="application/json")
