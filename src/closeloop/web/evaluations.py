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

from closeloop.judging.bench import Bench
from closeloop.judging.cases import read_submission
from closeloop.judging.evaluate import cases_of_submission
from closeloop.judging.keeping import evaluate_and_keep
from closeloop.model.errors import BadInput, Fault
from closeloop.model.evaluation import Evaluation, Evaluations, Submission
from closeloop.reviewing.queue import task_of
from closeloop.store import Store
from closeloop.web.bodies import BodyMemory, Refused, media_type
from closeloop.web.openapi import JSON, Operation, Problem

BODY_LIMIT = 16 << 20
UNKEPT = {"warning": '199 closeloop "the store could not be reached, so this is not kept"'}
AT_ONCE = 32
"""Submissions that are held in memory; others are told to come again."""

OPERATIONS = (
    Operation(
        method="post",
        path="/api/evaluations",
        name="evaluate",
        summary="Judge the outputs of a plan's tasks, each by itself, with the facts first.",
        body=Submission,
        answer=Evaluations,
        faults=(400, 401, 403, 413, 415, 429, 503),
    ),
    Operation(
        method="get",
        path="/api/evaluations/{id}",
        name="evaluation",
        summary="One task's evaluation, by its id.",
        answer=Evaluation,
        faults=(400, 401, 403, 404, 503),
    ),
)


class Evaluator:
    """Who judges: opened when first asked, and closed with the server."""

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[Bench]]) -> None:
        self._opening = opening
        self._opened = AsyncExitStack()
        self._bench: Bench | None = None
        self._turn = anyio.Lock()
        self.places = anyio.CapacityLimiter(AT_ONCE)
        self.memory = BodyMemory()

    async def bench(self) -> Bench:
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


def evaluation_routes(store: Store, evaluator: Evaluator) -> list[Route]:
    """The two ways in; whoever comes this far may."""

    async def post(request: Request) -> Response:
        try:
            return await _evaluated(request, store, evaluator)
        except Refused as refused:
            return _answer(Problem(message=str(refused)), refused.status)
        except Fault as fault:
            return _answer(Problem(message=str(fault)), 503)

    async def one(request: Request) -> Response:
        name = request.path_params["id"]
        try:
            found = await anyio.to_thread.run_sync(_kept, store, name)
        except BadInput as fault:
            return _answer(Problem(message=str(fault)), 403)
        except Fault as fault:
            return _answer(Problem(message=str(fault)), 503)
        if found is None:
            return _answer(Problem(message="There is no evaluation of that id: check it."), 404)
        return _answer(found)

    return [
        Route("/api/evaluations", post, methods=["POST"]),
        Route("/api/evaluations/{id}", one, methods=["GET"]),
    ]


def _kept(store: Store, name: str) -> Evaluation | None:
    """One that is kept; BadInput where its task has been sealed since."""
    found = store.judged.evaluation(name)
    if found is not None and found.attempt is not None:
        task_of(store, store.attempt(found.attempt))
    return found


async def _evaluated(request: Request, store: Store, evaluator: Evaluator) -> Response:
    if (
        media_type(request) != JSON
        or request.headers.get("content-encoding", "identity") != "identity"
    ):
        # A page of somebody else's cannot send JSON without our leave.
        raise Refused(415, f"Send {JSON}, not packed.")
    try:
        evaluator.places.acquire_nowait()
    except anyio.WouldBlock:
        raise Refused(429, "Too much is being judged at the moment: try again soon.") from None
    try:
        why = f"A request may have {BODY_LIMIT >> 20} MiB: hand in less."
        content = await evaluator.memory.read_body(request.receive, BODY_LIMIT, why)
        bench = await evaluator.bench()
        try:
            handed = await anyio.to_thread.run_sync(read_submission, content, "The request")
            made, why_not = await evaluate_and_keep(bench, cases_of_submission(handed), store)
        except BadInput as fault:
            raise Refused(400, str(fault)) from fault
        # It is paid for: whoever asked has it, even where it could not be kept.
        return _answer(made, headers=UNKEPT if why_not else None)
    finally:
        evaluator.places.release()


def _answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    if status in (429, 503):
        headers = {"retry-after": "5"}
    return Response(msgspec.json.encode(content), status, headers, media_type=JSON)
