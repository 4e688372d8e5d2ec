"""The server: what it answers, to whom, and what it does while it waits."""

from __future__ import annotations

import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from closeloop import __version__
from closeloop.intake.spans import build, unbuilt
from closeloop.model.errors import Fault
from closeloop.store import Store
from closeloop.web.receiver import receiver

QUIET_SECONDS = 5.0
"""So long after its last span a conversation is put together; more may still come."""
LONGEST_WAIT = 60.0
"""At the latest so long after its first new span, however busy it is."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Waiting:
    """Traces of which spans have arrived that no session has yet."""

    def __init__(self, quiet: float) -> None:
        self.quiet = quiet
        self._times: dict[str, tuple[float, float]] = {}

    def arrived(self, traces: set[str]) -> None:
        now = time.monotonic()
        for trace in traces:
            first, _ = self._times.get(trace, (now, now))
            self._times[trace] = (first, now)

    def due(self) -> list[str]:
        """Those that have been quiet, or have waited long enough; they no longer wait."""
        now = time.monotonic()
        due = [
            trace
            for trace, (first, last) in self._times.items()
            if now - last >= self.quiet or now - first >= LONGEST_WAIT
        ]
        for trace in due:
            del self._times[trace]
        return due

    def rest(self) -> list[str]:
        """All of them."""
        rest, self._times = list(self._times), {}
        return rest


def application(store: Store, *, token: str | None, quiet: float = QUIET_SECONDS) -> Starlette:
    """The server's routes. Without a token, only this machine may call it."""
    waiting = Waiting(quiet)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        waiting.arrived(set(await anyio.to_thread.run_sync(unbuilt, store)))
        async with anyio.create_task_group() as group:
            group.start_soon(_build_all, waiting, store)
            yield
            group.cancel_scope.cancel()
        await anyio.to_thread.run_sync(_build, waiting.rest(), store)

    if token is None:
        # A web page may try to reach us under a name of its own.
        guard = Middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, "[::1]"])
    else:
        guard = Middleware(BaseHTTPMiddleware, dispatch=_with_token(token))
    routes = [
        Route("/health", _health, methods=["GET", "HEAD"]),
        Route("/v1/traces", receiver(store, waiting.arrived), methods=["POST"]),
    ]
    return Starlette(routes=routes, middleware=[guard], lifespan=lifespan)


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok", "version": __version__})


def _with_token(
    token: str,
) -> Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]:
    expected = f"Bearer {token}".encode()

    async def check(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        given = request.headers.get("authorization", "").encode("utf-8", "replace")
        if request.url.path != "/health" and not hmac.compare_digest(given, expected):
            why = {"message": "Send the header `Authorization: Bearer TOKEN`."}
            return JSONResponse(why, 401, {"www-authenticate": "Bearer"})
        return await answer(request)

    return check


async def _build_all(waiting: Waiting, store: Store) -> None:
    while True:
        await anyio.sleep(min(waiting.quiet, 1.0))
        due = waiting.due()
        if due:
            await anyio.to_thread.run_sync(_build, due, store)


def _build(traces: list[str], store: Store) -> None:
    for trace in traces:
        try:
            build(trace, store)
        except Fault:
            # The spans are kept: the next start of the server, or the next span, tries again.
            continue
