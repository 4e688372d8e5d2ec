"""The server: what it answers, to whom, and what it does while it waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from closeloop import __version__
from closeloop.intake.spans import unbuilt
from closeloop.store import Store
from closeloop.web import answers, assets
from closeloop.web.access import LOOPBACK, Door
from closeloop.web.answers import answer_routes
from closeloop.web.arrivals import QUIET_SECONDS, Waiting, build_due, build_each
from closeloop.web.deciding import deciding_routes
from closeloop.web.desk import Desk
from closeloop.web.evaluations import OPERATIONS, Evaluator, evaluation_routes
from closeloop.web.faults import not_there, trouble
from closeloop.web.guard import Guard
from closeloop.web.live import live_route
from closeloop.web.login import login_routes
from closeloop.web.openapi import document
from closeloop.web.page import Endpoint, operations, routes
from closeloop.web.pages import PAGES
from closeloop.web.receiver import receiver

__all__ = ["LOOPBACK", "application"]


def application(
    store: Store,
    *,
    token: str | None,
    quiet: float = QUIET_SECONDS,
    is_open: bool | None = None,
    desk: Desk | None = None,
    evaluator: Evaluator | None = None,
) -> Starlette:
    """The server's routes. Unless it is open, which without a token it is, callers need one."""
    waiting = Waiting(quiet)
    desk = desk or Desk(store)
    door = Door(
        store=store,
        token=token,
        # Where a proxy logs people in, whoever it does not name is nobody.
        is_open=(token is None if is_open is None else is_open)
        and desk.settings.serve.user_header is None,
        settings=desk.settings.serve,
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if not store.is_read_only:
            waiting.arrived(set(await anyio.to_thread.run_sync(unbuilt, store)))
        async with AsyncExitStack() as stack, anyio.create_task_group() as group:
            if evaluator is not None:
                await stack.enter_async_context(evaluator)
            group.start_soon(build_due, waiting, store)
            yield
            group.cancel_scope.cancel()
        await anyio.to_thread.run_sync(build_each, waiting.rest(), store)

    handed = evaluation_routes(store, evaluator) if evaluator else []
    every: list[BaseRoute] = [
        Route("/health", _health, methods=["GET", "HEAD"]),
        Route("/static/{path:path}", assets.serve, methods=["GET"]),
        Route("/v1/traces", receiver(store, waiting.arrived), methods=["POST"]),
        Route("/api/openapi.json", _described(evaluator is not None), methods=["GET"]),
        live_route(desk),
        *login_routes(door),
        *handed,
        *answer_routes(desk),
        *deciding_routes(desk),
        *routes(PAGES, desk),
    ]
    return Starlette(
        routes=every,
        middleware=[Middleware(Guard, door=door), Middleware(GZipMiddleware, minimum_size=1000)],
        exception_handlers={404: not_there, 500: trouble},
        lifespan=lifespan,
    )


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok", "version": __version__})


def _described(evaluates: bool) -> Endpoint:
    """The API, without what is not served here."""
    handed = OPERATIONS if evaluates else ()

    async def answer(request: Request) -> Response:
        return JSONResponse(document([*operations(PAGES), *handed, *answers.OPERATIONS]))

    return answer
