"""What people and programs say of attempts and findings, all of it or none, as scores."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, get_args
from urllib.parse import quote

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from closeloop.metrics.rule_precision import (
    FindingVerdict,
    FindingVote,
    VerdictsByEvent,
    finding_key,
    save_vote,
)
from closeloop.metrics.score_columns import project_scores
from closeloop.metrics.score_intake import GivenScore, ScoreIntake
from closeloop.records.errors import BadInput, Fault, unknown_name_error
from closeloop.records.record import Record
from closeloop.records.score import Score
from closeloop.reviews.review_items import load_open_task
from closeloop.web.access import caller_from_scope
from closeloop.web.page import (
    JSON_MEDIA_TYPE,
    ApiOperation,
    Problem,
    caller_or_local_user,
    fault_status,
    respond_with_json,
)
from closeloop.web.page_context import PageContext
from closeloop.web.render import render_template
from closeloop.web.request_bodies import parse_form_fields, request_media_type


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

    async def submit_score_form(request: Request) -> Response:
        """One score by whoever looks at the attempt's page."""
        attempt = request.path_params["attempt"]
        fields = await _read_form(request)
        row = GivenScore(
            attempt=attempt,
            name=fields.get("name", ""),
            value=fields.get("value") or None,
            note=fields.get("note", ""),
        )
        who = caller_or_local_user(request, desk)
        try:
            submission = ScoreSubmission(scores=(row,))
            await anyio.to_thread.run_sync(_keep_scores, desk, submission, who)
        except Fault as fault:
            return _refuse_form(fault)
        return RedirectResponse(f"/attempts/{quote(attempt, safe='')}/scores", 303)

    async def submit_finding_vote(request: Request) -> Response:
        attempt, fields = request.path_params["attempt"], await _read_form(request)
        who = caller_or_local_user(request, desk)
        try:
            vote, said = await anyio.to_thread.run_sync(_keep_vote, desk, attempt, fields, who)
        except Fault as fault:
            return _refuse_form(fault)
        if "hx-request" not in request.headers:
            return RedirectResponse(f"/attempts/{vote.attempt}", 303)
        html = render_template(
            "thumbs.html",
            attempt=vote.attempt,
            rule=vote.rule.name,
            event=vote.event,
            said=said.get(vote.event),
            csrf=caller_from_scope(request.scope).csrf,
        )
        return Response(html, media_type="text/html")

    return [
        Route("/api/scores", submit_scores, methods=["POST"]),
        Route("/attempts/{attempt}/scores", submit_score_form, methods=["POST"]),
        Route("/attempts/{attempt}/findings", submit_finding_vote, methods=["POST"]),
    ]


async def _read_form(request: Request) -> dict[str, str]:
    fields = parse_form_fields(await request.body())
    return {name: values[0] for name, values in fields.items()}


def _refuse_form(fault: Fault) -> Response:
    text = render_template("refused.html", why=str(fault))
    return Response(text, fault_status(fault), media_type="text/html")


def _keep_vote(
    desk: PageContext, name: str, fields: Mapping[str, str], who: str
) -> tuple[FindingVote, VerdictsByEvent]:
    """What somebody says of a finding, in the ledger; BadInput where there is none like it."""
    attempt = desk.store.load_attempt(name)
    load_open_task(desk.store, attempt)
    rules = {one.detector.rule.name: one.detector.rule for one in desk.rulebook.chosen}
    rule, verdict = fields.get("rule", ""), fields.get("verdict", "")
    if rule not in rules:
        raise unknown_name_error("rule", rule, rules)
    event = int(fields["event"]) if fields.get("event", "").isdecimal() else -1
    row = desk.store.listing.load_row(attempt.id)
    measurement = desk.load_measurement(row, make=False) if row else None
    known = {(one.rule, finding_key(one)) for one in measurement.findings} if measurement else set()
    if (rule, event) not in known:
        raise BadInput(f"{rule!r} found nothing at event {event} of this attempt.")
    for word in get_args(FindingVerdict):
        if word == verdict:
            vote = FindingVote(
                attempt=attempt.id,
                rule=rules[rule],
                event=event,
                verdict=word,
                person=who,
                at=datetime.now(UTC),
            )
            return vote, save_vote(desk.store, vote)
    raise unknown_name_error("verdict", verdict, get_args(FindingVerdict))


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
