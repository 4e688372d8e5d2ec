"""The server: routes, access control and background tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from closeloop import __version__
from closeloop.records.record import resolve_record_types
from closeloop.store import Store
from closeloop.traces.session_import import list_unbuilt_traces
from closeloop.web import render, submissions
from closeloop.web.auth_middleware import (
    LOOPBACK,
    AccessPolicy,
    AuthMiddleware,
    answer_not_found,
    answer_server_error,
    login_routes,
)
from closeloop.web.otlp_receiver import (
    QUIET_SECONDS,
    PendingTraces,
    build_due_sessions,
    build_sessions,
    make_otlp_endpoint,
)
from closeloop.web.page import (
    PageContext,
    PageEndpoint,
    build_openapi_document,
    page_operations,
    page_routes,
)
from closeloop.web.pages import PAGES
from closeloop.web.static_export import download_routes
from closeloop.web.submissions import (
    EVALUATION_OPERATIONS,
    SCORE_OPERATIONS,
    SubmissionEvaluator,
    evaluation_routes,
    memory_decision_routes,
    review_routes,
    score_routes,
)

__all__ = ["LOOPBACK", "build_web_app"]


# Live updates by server-sent events: open pages reload when data was added.

STEP_SECONDS = 0.25
"""Seconds between two steps of an event stream; a stopping server ends its streams within one."""
STEPS_PER_LOOK = 8
"""Steps between two reads of the store's mark."""
STEPS_PER_KEEPALIVE = 80
"""Steps without a change after which a comment line keeps the connection open."""
MAX_STEPS = 14_400
"""Steps after which a stream ends; a browser that is still open reconnects."""


def live_updates_route(page_context: PageContext) -> Route:
    async def stream_live_updates(request: Request) -> Response:
        return StreamingResponse(
            _stream_news(page_context),
            headers={"cache-control": "no-store"},
            media_type="text/event-stream",
        )

    return Route("/live", stream_live_updates, methods=["GET"])


async def _stream_news(page_context: PageContext) -> AsyncIterator[str]:
    known_mark = await anyio.to_thread.run_sync(page_context.news_mark)
    yield f"retry: 5000\nevent: here\ndata: {known_mark}\n\n"
    for step in range(1, MAX_STEPS):
        await anyio.sleep(STEP_SECONDS)
        if page_context.stopping.is_set():
            return
        if step % STEPS_PER_LOOK:
            continue
        current_mark = await anyio.to_thread.run_sync(page_context.news_mark)
        if current_mark != known_mark:
            known_mark = current_mark
            yield f"event: changed\ndata: {current_mark}\n\n"
        elif step % STEPS_PER_KEEPALIVE == 0:
            yield ": still here\n\n"


def build_web_app(
    store: Store,
    *,
    token: str | None,
    quiet: float = QUIET_SECONDS,
    is_open: bool | None = None,
    page_context: PageContext | None = None,
    evaluator: SubmissionEvaluator | None = None,
) -> Starlette:
    """Build the server's app.

    Callers need a token unless it is open, which is the default without a token.
    """
    resolve_record_types()
    pending_traces = PendingTraces(quiet)
    page_context = page_context or PageContext(store)
    access_policy = AccessPolicy(
        store=store,
        token=token,
        # Where a proxy logs people in, a request without its user name is anonymous.
        is_open=(token is None if is_open is None else is_open)
        and page_context.settings.serve.user_header is None,
        settings=page_context.settings.serve,
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if not store.is_read_only:
            pending_traces.note_arrivals(
                set(await anyio.to_thread.run_sync(list_unbuilt_traces, store))
            )
        async with AsyncExitStack() as stack, anyio.create_task_group() as group:
            if evaluator is not None:
                await stack.enter_async_context(evaluator)
            group.start_soon(build_due_sessions, pending_traces, store)
            yield
            group.cancel_scope.cancel()
        await anyio.to_thread.run_sync(build_sessions, pending_traces.pop_all(), store)

    evaluation_endpoints = evaluation_routes(store, evaluator) if evaluator else []
    all_routes: list[BaseRoute] = [
        Route("/health", _health_endpoint, methods=["GET", "HEAD"]),
        Route("/static/{path:path}", render.serve_asset, methods=["GET"]),
        Route(
            "/v1/traces", make_otlp_endpoint(store, pending_traces.note_arrivals), methods=["POST"]
        ),
        Route("/api/openapi.json", _openapi_endpoint(evaluator is not None), methods=["GET"]),
        live_updates_route(page_context),
        *login_routes(access_policy),
        *evaluation_endpoints,
        *review_routes(page_context),
        *score_routes(page_context),
        *memory_decision_routes(page_context),
        *download_routes(page_context),
        *page_routes(PAGES, page_context),
    ]
    return Starlette(
        routes=all_routes,
        middleware=[
            Middleware(AuthMiddleware, access_policy=access_policy),
            Middleware(GZipMiddleware, minimum_size=1000),
        ],
        exception_handlers={404: answer_not_found, 500: answer_server_error},
        lifespan=lifespan,
    )


async def _health_endpoint(request: Request) -> Response:
    return JSONResponse({"status": "ok", "version": __version__})


def _openapi_endpoint(evaluates: bool) -> PageEndpoint:
    """Return the endpoint of the OpenAPI document, without operations that are not served here."""
    evaluation_operations = EVALUATION_OPERATIONS if evaluates else ()

    async def describe_api(request: Request) -> Response:
        return JSONResponse(
            build_openapi_document(
                [
                    *page_operations(PAGES),
                    *evaluation_operations,
                    *submissions.REVIEW_OPERATIONS,
                    *SCORE_OPERATIONS,
                ]
            )
        )

    return describe_api
