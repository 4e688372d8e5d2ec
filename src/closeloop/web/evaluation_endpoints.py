"""Evaluations over HTTP: others hand in what came of their plan, and are told how good it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from closeloop.judges.evaluation_saving import evaluate_and_save
from closeloop.judges.evaluator import cases_from_submission
from closeloop.judges.judge_cases import read_submission
from closeloop.judges.judge_panel import JudgePanel
from closeloop.records.errors import BadInput, Fault
from closeloop.records.evaluation import Evaluation, Evaluations, Submission
from closeloop.reviews.review_queue import load_open_task
from closeloop.store import Store
from closeloop.web.openapi import JSON_MEDIA_TYPE, ApiOperation, Problem
from closeloop.web.request_bodies import BodyMemory, RequestRefused, request_media_type

BODY_LIMIT = 16 << 20
UNSAVED_WARNING = {"warning": '199 closeloop "the store could not be reached, so this is not kept"'}
MAX_SUBMISSIONS_AT_ONCE = 32
"""Submissions that are held in memory; others are told to come again."""

EVALUATION_OPERATIONS = (
    ApiOperation(
        method="post",
        path="/api/evaluations",
        name="evaluate",
        summary="Judge the outputs of a plan's tasks, each by itself, with the facts first.",
        body=Submission,
        answer=Evaluations,
        faults=(400, 401, 403, 413, 415, 429, 503),
    ),
    ApiOperation(
        method="get",
        path="/api/evaluations/{id}",
        name="evaluation",
        summary="One task's evaluation, by its id.",
        answer=Evaluation,
        faults=(400, 401, 403, 404, 503),
    ),
)


class SubmissionEvaluator:
    """Who judges: opened when first asked, and closed with the server."""

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[JudgePanel]]) -> None:
        self._opening = opening
        self._opened = AsyncExitStack()
        self._bench: JudgePanel | None = None
        self._turn = anyio.Lock()
        self.places = anyio.CapacityLimiter(MAX_SUBMISSIONS_AT_ONCE)
        self.memory = BodyMemory()

    async def open_panel(self) -> JudgePanel:
        """One for all callers, so that a provider's limits hold for all together."""
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
    """The two ways in; whoever comes this far may."""

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
                Problem(message="There is no evaluation of that id: check it."), 404
            )
        return _evaluation_response(saved_evaluation)

    return [
        Route("/api/evaluations", submit_evaluation, methods=["POST"]),
        Route("/api/evaluations/{id}", get_evaluation, methods=["GET"]),
    ]


def _load_saved_evaluation(store: Store, name: str) -> Evaluation | None:
    """One that is kept; BadInput where its task has been sealed since."""
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
        # A page of somebody else's cannot send JSON without our leave.
        raise RequestRefused(415, f"Send {JSON_MEDIA_TYPE}, not packed.")
    try:
        evaluator.places.acquire_nowait()
    except anyio.WouldBlock:
        raise RequestRefused(
            429, "Too much is being judged at the moment: try again soon."
        ) from None
    try:
        why = f"A request may have {BODY_LIMIT >> 20} MiB: hand in less."
        content = await evaluator.memory.read_body(request.receive, BODY_LIMIT, why)
        panel = await evaluator.open_panel()
        try:
            submission = await anyio.to_thread.run_sync(read_submission, content, "The request")
            evaluations, why_not = await evaluate_and_save(
                panel, cases_from_submission(submission), store
            )
        except BadInput as fault:
            raise RequestRefused(400, str(fault)) from fault
        # It is paid for: whoever asked has it, even where it could not be kept.
        return _evaluation_response(evaluations, headers=UNSAVED_WARNING if why_not else None)
    finally:
        evaluator.places.release()


def _evaluation_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    if status in (429, 503):
        headers = {"retry-after": "5"}
    return Response(msgspec.json.encode(content), status, headers, media_type=JSON_MEDIA_TYPE)
