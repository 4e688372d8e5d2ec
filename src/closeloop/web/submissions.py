"""Submissions by people and programs: evaluations, review answers, decisions about rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, get_args
from urllib.parse import quote

import anyio
import anyio.to_thread
import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from closeloop.flow import judge_submission
from closeloop.judges.judge_cases import read_submission
from closeloop.judges.judge_panel import JudgePanel
from closeloop.metrics.score_columns import (
    FindingVerdict,
    FindingVote,
    GivenScore,
    ScoreIntake,
    VerdictsByEvent,
    finding_key,
    project_scores,
    save_vote,
)
from closeloop.records.errors import BadInput, Fault, unknown_name_error
from closeloop.records.evaluation import CRITERIA, Evaluation, Evaluations, Submission
from closeloop.records.record import Record
from closeloop.records.score import Score
from closeloop.records.team_rules import HumanReview, RepeatState, ReviewAnswers, RuleState
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.review_queue import (
    MAX_REVIEW_SECONDS,
    load_open_task,
    load_review_item,
    next_item,
    read_answer_object,
    save_draft,
    submit_review,
)
from closeloop.reviews.rule_editing import (
    accept_repeated_rule,
    contrary_rules,
    decide_repeat,
    find_rule,
    set_rule_state,
)
from closeloop.reviews.rule_learning import recount_repeats
from closeloop.store import Store
from closeloop.store.metrics_section import AttemptSpan
from closeloop.text.untrusted import parse_json, unknown_field_error
from closeloop.web.auth_middleware import (
    BodyMemory,
    RequestRefused,
    caller_from_scope,
    parse_form_fields,
    request_media_type,
)
from closeloop.web.page import (
    JSON_MEDIA_TYPE,
    ApiOperation,
    PageContext,
    Problem,
    caller_or_local_user,
    fault_status,
    respond_with_json,
)
from closeloop.web.pages.review import open_review_queue
from closeloop.web.render import render_template

BODY_LIMIT = 16 << 20
UNSAVED_WARNING = {
    "warning": '199 closeloop "the store could not be reached, so this is not saved"'
}
MAX_SUBMISSIONS_AT_ONCE = 32
"""Submissions held in memory; further ones get 429."""

EVALUATION_OPERATIONS = (
    ApiOperation(
        method="post",
        path="/api/evaluations",
        name="evaluate",
        summary="Judge the outputs of a plan's subtasks one by one, with computed facts first.",
        body=Submission,
        answer=Evaluations,
        faults=(400, 401, 403, 413, 415, 429, 503),
    ),
    ApiOperation(
        method="get",
        path="/api/evaluations/{id}",
        name="evaluation",
        summary="Return the evaluation of one subtask, by its id.",
        answer=Evaluation,
        faults=(400, 401, 403, 404, 503),
    ),
)


class SubmissionEvaluator:
    """The judge panel of the server: opened at the first request, closed with the server."""

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[JudgePanel]]) -> None:
        self._opening = opening
        self._opened = AsyncExitStack()
        self._bench: JudgePanel | None = None
        self._turn = anyio.Lock()
        self.places = anyio.CapacityLimiter(MAX_SUBMISSIONS_AT_ONCE)
        self.memory = BodyMemory()

    async def open_panel(self) -> JudgePanel:
        """Open one panel for all callers, so that a provider's limits apply to all together."""
        async with self._turn:
            if self._bench is None:
                self._bench = await self._opened.enter_async_context(self._opening())
        return self._bench

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._opened.aclose()


def evaluation_routes(store: Store, evaluator: SubmissionEvaluator) -> list[Route]:
    """Return the two routes for evaluations; the middleware has authorised the caller."""

    async def submit_evaluation(request: Request) -> Response:
        try:
            return await _evaluate_request(request, store, evaluator)
        except RequestRefused as refused:
            return _evaluation_response(Problem(message=str(refused)), refused.status)
        except Fault as fault:
            return _evaluation_response(Problem(message=str(fault)), 503)

    async def get_evaluation(request: Request) -> Response:
        name = request.path_params["id"]
        try:
            saved_evaluation = await anyio.to_thread.run_sync(_load_saved_evaluation, store, name)
        except BadInput as fault:
            return _evaluation_response(Problem(message=str(fault)), 403)
        except Fault as fault:
            return _evaluation_response(Problem(message=str(fault)), 503)
        if saved_evaluation is None:
            return _evaluation_response(
                Problem(message="There is no evaluation with this id."), 404
            )
        return _evaluation_response(saved_evaluation)

    return [
        Route("/api/evaluations", submit_evaluation, methods=["POST"]),
        Route("/api/evaluations/{id}", get_evaluation, methods=["GET"]),
    ]


def _load_saved_evaluation(store: Store, name: str) -> Evaluation | None:
    """Load a stored evaluation; raise BadInput if its task has been sealed since."""
    saved_evaluation = store.judged.load_evaluation(name)
    if saved_evaluation is not None and saved_evaluation.attempt is not None:
        load_open_task(store, store.load_attempt(saved_evaluation.attempt))
    return saved_evaluation


async def _evaluate_request(
    request: Request, store: Store, evaluator: SubmissionEvaluator
) -> Response:
    if (
        request_media_type(request) != JSON_MEDIA_TYPE
        or request.headers.get("content-encoding", "identity") != "identity"
    ):
        # A page of another site cannot send JSON without our permission.
        raise RequestRefused(415, f"Send {JSON_MEDIA_TYPE}, uncompressed.")
    try:
        evaluator.places.acquire_nowait()
    except anyio.WouldBlock:
        raise RequestRefused(429, "The judge is busy: try again soon.") from None
    try:
        reason = f"A request may be at most {BODY_LIMIT >> 20} MiB: send less."
        content = await evaluator.memory.read_body(request.receive, BODY_LIMIT, reason)
        panel = await evaluator.open_panel()
        try:
            submission = await anyio.to_thread.run_sync(read_submission, content, "The request")
            evaluations, why_not = await judge_submission(panel, submission, store)
        except BadInput as fault:
            raise RequestRefused(400, str(fault)) from fault
        # It is paid for: return it even if it could not be saved.
        return _evaluation_response(evaluations, headers=UNSAVED_WARNING if why_not else None)
    finally:
        evaluator.places.release()


def _evaluation_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    if status in (429, 503):
        headers = {"retry-after": "5"}
    return respond_with_json(content, status, headers)


# Answers to the review queue, by form or as JSON.

MAX_NOTES_CHARS = 20_000
MAX_TEAM_ANSWERS = 100
FORM_FIELDS = ("csrf", "item", "shown", "tags", "notes")
YES_NO_VALUES = {"yes": True, "no": False}
REVIEW_OPERATIONS = (
    ApiOperation(
        method="post",
        path="/api/review",
        name="answer",
        summary="Submit the review of a change in the queue; the server records the reviewer "
        "and the time.",
        body=ReviewAnswers,
        answer=HumanReview,
        faults=(400, 401, 403, 413, 429),
    ),
)


def review_routes(page_context: PageContext) -> list[Route]:
    async def submit_form(request: Request) -> Response:
        review = _review_from_form(
            await request.body(), caller_or_local_user(request, page_context)
        )
        try:
            await anyio.to_thread.run_sync(_submit_review, page_context, review)
        except BadInput:
            # All answers are saved; the page asks for the missing ones.
            draft = replace(review, state="draft")
            await anyio.to_thread.run_sync(_save_draft_review, page_context, draft)
            return RedirectResponse("/review?more=true", 303)
        return RedirectResponse("/review", 303)

    async def save_form_draft(request: Request) -> Response:
        review = _review_from_form(
            await request.body(), caller_or_local_user(request, page_context), "draft"
        )
        await anyio.to_thread.run_sync(_save_draft_review, page_context, review)
        return Response(status_code=204)

    async def take_item(request: Request) -> Response:
        """Assign the displayed item to the caller, unless somebody else took it first."""
        form_review = _review_from_form(
            await request.body(), caller_or_local_user(request, page_context)
        )
        taken_item = await anyio.to_thread.run_sync(
            _take_next_item, page_context, form_review.reviewer
        )
        refresh_headers = {} if taken_item == form_review.item else {"hx-refresh": "true"}
        return Response(status_code=204, headers=refresh_headers)

    async def submit_json(request: Request) -> Response:
        try:
            review = _review_from_json(
                await request.body(), caller_or_local_user(request, page_context)
            )
            await anyio.to_thread.run_sync(_submit_review, page_context, review)
        except Fault as fault:
            return respond_with_json(Problem(message=str(fault)), fault_status(fault))
        return respond_with_json(review, 200)

    return [
        Route("/review", submit_form, methods=["POST"]),
        Route("/review/take", take_item, methods=["POST"]),
        Route("/review/draft", save_form_draft, methods=["POST"]),
        Route("/api/review", submit_json, methods=["POST"]),
    ]


def _submit_review(page_context: PageContext, review: HumanReview) -> None:
    submit_review(open_review_queue(page_context)[0], review)


def _take_next_item(page_context: PageContext, reviewer: str) -> str | None:
    next_review_item = next_item(open_review_queue(page_context)[0], reviewer, datetime.now(UTC))
    return next_review_item.id if next_review_item else None


def _save_draft_review(page_context: PageContext, review: HumanReview) -> None:
    """Save a draft; ignore it if its item does not exist."""
    queue, _ = open_review_queue(page_context)
    with suppress(BadInput):
        save_draft(queue, replace(review, item=load_review_item(queue, review.item).id))


def _review_from_json(body: bytes, reviewer: str) -> HumanReview:
    """Parse a program's answers; the server sets the reviewer and the time."""
    answers = parse_json(body, "The request")
    if not isinstance(answers, dict):
        raise BadInput("The request must be one JSON object with answers.")
    for key in answers:
        if key not in ReviewAnswers.__struct_fields__:
            raise unknown_field_error("The request", key, ReviewAnswers.__struct_fields__)
    now = datetime.now(UTC).isoformat()
    return read_answer_object({**answers, "reviewer": reviewer, "at": now}, "The request")


def _review_from_form(body: bytes, reviewer: str, state: str = "done") -> HumanReview:
    """Parse a form's answers; missing or invalid ones stay open."""
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
            name: answer
            for name in CRITERIA
            if (answer := _word_among(first_values, name, ("yes", "partly", "no"))) is not None
        },
        "answers": dict(_team_answers(first_values)),
        "tags": form_fields.get("tags", []),
        "notes": first_values.get("notes", "")[:MAX_NOTES_CHARS].strip(),
        "seconds": _seconds_since_shown(first_values.get("shown", ""), now),
    }
    try:
        return msgspec.convert(review_fields, HumanReview)
    except msgspec.ValidationError:
        return msgspec.convert({**review_fields, "tags": []}, HumanReview)


def _team_answers(form_values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield a form's answers to the team's own questions; unknown ones are refused later."""
    known_names = {*HumanReview.__struct_fields__, *CRITERIA, *FORM_FIELDS}
    for name in [name for name in form_values if name not in known_names][:MAX_TEAM_ANSWERS]:
        if (answer := _word_among(form_values, name, ("yes", "partly", "no"))) is not None:
            yield name, answer


def _word_among(form_values: Mapping[str, str], name: str, words: tuple[str, ...]) -> str | None:
    return form_values[name] if form_values.get(name) in words else None


def _seconds_since_shown(shown: str, now: datetime) -> float | None:
    try:
        elapsed = (now - datetime.fromisoformat(shown)).total_seconds()
    except (TypeError, ValueError):
        return None
    return round(elapsed, 1) if 0 <= elapsed < MAX_REVIEW_SECONDS else None


# People's decisions about rules and repeated mistakes.


def memory_decision_routes(page_context: PageContext) -> list[Route]:
    async def decide_by_form(request: Request) -> Response:
        form_fields = {
            name: values[0] for name, values in parse_form_fields(await request.body()).items()
        }
        decided_by = caller_or_local_user(request, page_context)
        try:
            await anyio.to_thread.run_sync(
                partial(_apply_decision, page_context, form_fields, decided_by)
            )
        except Fault as fault:
            text = render_template("refused.html", why=str(fault))
            return Response(text, fault_status(fault), media_type="text/html")
        return RedirectResponse("/memory", 303)

    return [Route("/memory", decide_by_form, methods=["POST"])]


def _apply_decision(
    page_context: PageContext, form_values: dict[str, str], decided_by: str
) -> None:
    """Set the new state of a `rule` or `remark`."""
    store, state = page_context.store, form_values.get("state", "")
    if "remark" in form_values:
        accepts = state == "accepted"
        for repeat_state in get_args(RepeatState):
            if repeat_state == ("confirmed" if accepts else state):
                repeats = decide_repeat(
                    store, form_values["remark"], repeat_state, decided_by, form_values.get("of")
                )
                recount_repeats(
                    store, repeats[0], merge_known_agents(page_context.settings.pulls.agents)
                )
                if accepts:
                    accept_repeated_rule(store, repeats[0].rule, decided_by, datetime.now(UTC))
                return
        raise unknown_name_error("state", state, (*get_args(RepeatState), "accepted"))
    rule = find_rule(store, form_values.get("rule", ""))
    if state == "active" and (contrary := contrary_rules(store, rule)):
        raise BadInput(
            f"The active rule {contrary[0].text!r} contradicts it: retire that rule first."
        )
    for rule_state in get_args(RuleState):
        if rule_state == state:
            set_rule_state(store, rule, rule_state, decided_by, datetime.now(UTC))
            return
    raise unknown_name_error("state", state, get_args(RuleState))


# Scores and votes by people and programs, saved all together or not at all.


class ScoreSubmission(Record, forbid_unknown_fields=True):
    """Submitted scores; without `by` they are the caller's."""

    scores: tuple[GivenScore, ...]
    source: Literal["person", "judge", "code"] = "person"


class KeptScores(Record):
    """The result of saving them."""

    added: int
    """Number of scores that are new."""
    scores: tuple[Score, ...]


SCORE_OPERATIONS = (
    ApiOperation(
        method="post",
        path="/api/scores",
        name="score",
        summary="Score attempts; a later score from the same source replaces the earlier one.",
        body=ScoreSubmission,
        answer=KeptScores,
        faults=(400, 401, 403, 413, 415, 429),
    ),
)


RETRACTED_VERDICT = "none"
"""Value that the form sends to retract a vote."""


def score_routes(page_context: PageContext) -> list[Route]:
    async def submit_scores(request: Request) -> Response:
        if request_media_type(request) != JSON_MEDIA_TYPE:
            return respond_with_json(Problem(message=f"Send {JSON_MEDIA_TYPE}."), 415)
        try:
            submission = msgspec.json.decode(await request.body(), type=ScoreSubmission)
            caller = caller_or_local_user(request, page_context)
            saved = await anyio.to_thread.run_sync(_keep_scores, page_context, submission, caller)
        except (ValueError, RecursionError) as error:
            return respond_with_json(Problem(message=f"These are not valid scores: {error}."), 400)
        except Fault as fault:
            return respond_with_json(Problem(message=str(fault)), fault_status(fault))
        return respond_with_json(saved, 200)

    async def submit_score_form(request: Request) -> Response:
        """Save one score from the form on an attempt's page."""
        attempt = request.path_params["attempt"]
        fields = await _read_form(request)
        row = GivenScore(
            attempt=attempt,
            name=fields.get("name", ""),
            value=fields.get("value") or None,
            note=fields.get("note", ""),
        )
        caller = caller_or_local_user(request, page_context)
        try:
            submission = ScoreSubmission(scores=(row,))
            await anyio.to_thread.run_sync(_keep_scores, page_context, submission, caller)
        except Fault as fault:
            return _refuse_form(fault)
        csrf = caller_from_scope(request.scope).csrf
        is_part = "hx-request" in request.headers
        return await anyio.to_thread.run_sync(
            _answer_score_form, page_context, attempt, csrf, is_part
        )

    async def submit_finding_vote(request: Request) -> Response:
        attempt, fields = request.path_params["attempt"], await _read_form(request)
        caller = caller_or_local_user(request, page_context)
        try:
            vote, verdicts = await anyio.to_thread.run_sync(
                _keep_vote, page_context, attempt, fields, caller
            )
        except Fault as fault:
            return _refuse_form(fault)
        if "hx-request" not in request.headers:
            return RedirectResponse(f"/attempts/{vote.attempt}", 303)
        html = render_template(
            "thumbs.html",
            attempt=vote.attempt,
            rule=vote.rule.name,
            event=vote.event,
            said=verdicts.get(vote.event),
            csrf=caller_from_scope(request.scope).csrf,
        )
        return Response(html, media_type="text/html")

    return [
        Route("/api/scores", submit_scores, methods=["POST"]),
        Route("/attempts/{attempt}/scores", submit_score_form, methods=["POST"]),
        Route("/attempts/{attempt}/findings", submit_finding_vote, methods=["POST"]),
    ]


def _answer_score_form(
    page_context: PageContext, attempt: str, csrf: str | None, is_part: bool
) -> Response:
    """Redirect to the scores; for a page fragment, return the question with the new answer."""
    if not is_part:
        return RedirectResponse(f"/attempts/{quote(attempt, safe='')}/scores", 303)
    shares = page_context.store.scores.load_merging_shares(AttemptSpan(attempts=(attempt,)))
    html = render_template(
        "merge_question.html", attempt=attempt, share=shares.get(attempt), csrf=csrf
    )
    return Response(html, media_type="text/html")


async def _read_form(request: Request) -> dict[str, str]:
    fields = parse_form_fields(await request.body())
    return {name: values[0] for name, values in fields.items()}


def _refuse_form(fault: Fault) -> Response:
    text = render_template("refused.html", why=str(fault))
    return Response(text, fault_status(fault), media_type="text/html")


def _keep_vote(
    page_context: PageContext, name: str, fields: Mapping[str, str], caller: str
) -> tuple[FindingVote, VerdictsByEvent]:
    """Save a verdict on a finding in the ledger; raise BadInput if there is no such finding."""
    attempt = page_context.store.load_attempt(name)
    load_open_task(page_context.store, attempt)
    rules = {
        entry.detector.rule.name: entry.detector.rule for entry in page_context.rulebook.chosen
    }
    rule, verdict = fields.get("rule", ""), fields.get("verdict", "")
    if rule not in rules:
        raise unknown_name_error("rule", rule, rules)
    event = int(fields["event"]) if fields.get("event", "").isdecimal() else -1
    row = page_context.store.listing.load_row(attempt.id)
    measurement = page_context.load_measurement(row, make=False) if row else None
    finding_keys = (
        {(finding.rule, finding_key(finding)) for finding in measurement.findings}
        if measurement
        else set()
    )
    if (rule, event) not in finding_keys:
        raise BadInput(f"The rule {rule!r} has no finding at event {event} of this attempt.")
    for known_verdict in (*get_args(FindingVerdict), None):
        if (known_verdict or RETRACTED_VERDICT) == verdict:
            vote = FindingVote(
                attempt=attempt.id,
                rule=rules[rule],
                event=event,
                verdict=known_verdict,
                person=caller,
                at=datetime.now(UTC),
            )
            return vote, save_vote(page_context.store, vote)
    verdicts = (*get_args(FindingVerdict), RETRACTED_VERDICT)
    raise unknown_name_error("verdict", verdict, verdicts)


def _keep_scores(page_context: PageContext, submission: ScoreSubmission, caller: str) -> KeptScores:
    if submission.source == "person" and any(
        score.by not in (None, caller) for score in submission.scores
    ):
        raise BadInput("A person can only submit their own scores: leave out `by`.")
    intake = ScoreIntake(
        catalogue=project_scores(page_context.settings),
        source=submission.source,
        by=caller,
        now=datetime.now(UTC),
    )
    scores = intake.read_rows(submission.scores, page_context.store)
    return KeptScores(added=page_context.store.scores.add_scores(scores), scores=tuple(scores))
