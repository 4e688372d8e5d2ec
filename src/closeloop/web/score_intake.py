"""`POST /api/scores`: what people and programs say of attempts, all of it or none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from closeloop.metrics.score_columns import project_scores
from closeloop.metrics.score_intake import GivenScore, ScoreIntake
from closeloop.records.errors import BadInput, Fault
from closeloop.records.record import Record
from closeloop.records.score import Score
from closeloop.web.page import (
    JSON_MEDIA_TYPE,
    ApiOperation,
    Problem,
    caller_or_local_user,
    fault_status,
    respond_with_json,
)
from closeloop.web.page_context import PageContext
from closeloop.web.request_bodies import request_media_type


class ScoreSubmission(Record, forbid_unknown_fields=True):
    """Scores as they are sent; without `by` they are the caller's."""

    scores: tuple[GivenScore, ...]
    source: Literal["person", "judge", "code"] = "person"


class KeptScores(Record):
    """What was kept of them."""

    added: int
    """Those that say something new."""
    scores: tuple[Score, ...]


SCORE_OPERATIONS = (
    ApiOperation(
        method="post",
        path="/api/scores",
        name="score",
        summary="Score attempts; a later score by the same one replaces the earlier.",
        body=ScoreSubmission,
        answer=KeptScores,
        faults=(400, 401, 403, 413, 415, 429),
    ),
)


def score_routes(desk: PageContext) -> list[Route]:
    async def submit_scores(request: Request) -> Response:
        if request_media_type(request) != JSON_MEDIA_TYPE:
            return respond_with_json(Problem(message=f"Send {JSON_MEDIA_TYPE}."), 415)
        try:
            given = msgspec.json.decode(await request.body(), type=ScoreSubmission)
            who = caller_or_local_user(request, desk)
            kept = await anyio.to_thread.run_sync(_keep_scores, desk, given, who)
        except (ValueError, RecursionError) as error:
            return respond_with_json(Problem(message=f"These are no scores: {error}."), 400)
        except Fault as fault:
            return respond_with_json(Problem(message=str(fault)), fault_status(fault))
        return respond_with_json(kept, 200)

    return [Route("/api/scores", submit_scores, methods=["POST"])]


def _keep_scores(desk: PageContext, given: ScoreSubmission, who: str) -> KeptScores:
    if given.source == "person" and any(one.by not in (None, who) for one in given.scores):
        raise BadInput("A person's scores are the caller's own: leave `by` out.")
    intake = ScoreIntake(
        catalogue=project_scores(desk.settings),
        source=given.source,
        by=who,
        now=datetime.now(UTC),
    )
    scores = intake.read_rows(given.scores, desk.store)
    return KeptScores(added=desk.store.scores.add_scores(scores), scores=tuple(scores))
