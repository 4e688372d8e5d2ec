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

from closeloop.model.errors import BadInput, Fault
from closeloop.model.evaluation import CRITERIA
from closeloop.model.queue import Answers, HumanReview
from closeloop.reviewing.queue import item, next_item, save_draft, submit
from closeloop.web.desk import Desk
from closeloop.web.forms import fields
from closeloop.web.openapi import Operation, Problem
from closeloop.web.page import caller_name, status_of
from closeloop.web.pages.review import queue_of

MOST_NOTES = 20_000
LONGEST_SECONDS = 86400.0
YES = {"yes": True, "no": False}
OPERATIONS = (
    Operation(
        method="post",
        path="/api/review",
        name="answer",
        summary="Answer for a change in the review queue; the server says who answers, and when.",
        body=Answers,
        answer=HumanReview,
        faults=(400, 401, 403, 413, 429),
    ),
)


def answer_routes(desk: Desk) -> list[Route]:
    async def answered(request: Request) -> Response:
        review = _of_form(await request.body(), caller_name(request, desk))
        try:
            await anyio.to_thread.run_sync(_settle, desk, review)
        except BadInput:
            # All that was answered is kept; the page asks for the rest.
            draft = replace(review, state="draft")
            await anyio.to_thread.run_sync(_keep, desk, draft)
            return RedirectResponse("/review?more=true", 303)
        return RedirectResponse("/review", 303)

    async def drafted(request: Request) -> Response:
        review = _of_form(await request.body(), caller_name(request, desk), "draft")
        await anyio.to_thread.run_sync(_keep, desk, review)
        return Response(status_code=204)

    async def taken(request: Request) -> Response:
        """What is looked at is the caller's, unless somebody else was quicker."""
        shown = _of_form(await request.body(), caller_name(request, desk))
        theirs = await anyio.to_thread.run_sync(_take, desk, shown.reviewer)
        again = {} if theirs == shown.item else {"hx-refresh": "true"}
        return Response(status_code=204, headers=again)

    async def handed_in(request: Request) -> Response:
        try:
            given = msgspec.json.decode(await request.body(), type=Answers)
            who = caller_name(request, desk)
            review = HumanReview(**asdict(given), reviewer=who, at=datetime.now(UTC))
            await anyio.to_thread.run_sync(_settle, desk, review)
        except (ValueError, RecursionError) as error:
            return _json(Problem(message=f"These are no answers: {error}."), 400)
        except Fault as fault:
            return _json(Problem(message=str(fault)), status_of(fault))
        return _json(review, 200)

    return [
        Route("/review", answered, methods=["POST"]),
        Route("/review/take", taken, methods=["POST"]),
        Route("/review/draft", drafted, methods=["POST"]),
        Route("/api/review", handed_in, methods=["POST"]),
    ]


def _settle(desk: Desk, review: HumanReview) -> None:
    submit(queue_of(desk)[0], review)


def _take(desk: Desk, reviewer: str) -> str | None:
    found = next_item(queue_of(desk)[0], reviewer, datetime.now(UTC))
    return found.id if found else None


def _keep(desk: Desk, review: HumanReview) -> None:
    """A draft of nothing is none."""
    queue, _ = queue_of(desk)
    with suppress(BadInput):
        save_draft(queue, replace(review, item=item(queue, review.item).id))


def _of_form(body: bytes, reviewer: str, state: str = "done") -> HumanReview:
    """What a form says; what it does not say, or says in other words, is open."""
    given = fields(body)
    said = {name: values[0] for name, values in given.items()}
    now = datetime.now(UTC)
    found = {
        "item": said.get("item", "")[:500],
        "reviewer": reviewer,
        "at": now,
        "state": state,
        **{name: YES.get(said.get(name, "")) for name in ("contained", "approach", "merge")},
        "outside": _one_of(said, "outside", ("yes", "no", "none")),
        "dimensions": {
            name: word
            for name in CRITERIA
            if (word := _one_of(said, name, ("yes", "partly", "no"))) is not None
        },
        "tags": given.get("tags", []),
        "notes": said.get("notes", "")[:MOST_NOTES].strip(),
        "seconds": _seconds(said.get("shown", ""), now),
    }
    try:
        return msgspec.convert(found, HumanReview)
    except msgspec.ValidationError:
        return msgspec.convert({**found, "tags": []}, HumanReview)


def _one_of(said: Mapping[str, str], name: str, words: tuple[str, ...]) -> str | None:
    return said[name] if said.get(name) in words else None


def _seconds(shown: str, now: datetime) -> float | None:
    try:
        taken = (now - datetime.fromisoformat(shown)).total_seconds()
    except (TypeError, ValueError):
        return None
    return round(taken, 1) if 0 <= taken < LONGEST_SECONDS else None


def _json(record: Any, status: int) -> Response:
    return Response(msgspec.json.encode(record), status, media_type="application/json")
