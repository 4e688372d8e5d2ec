"""News by server-sent events: that something was added, so that open pages ask again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from closeloop.web.desk import Desk

STEP = 0.25
"""Seconds in which a server that stops lets go of its readers."""
LOOK = 8
"""So many steps between looks at the store."""
QUIET = 80
"""After so many steps without news a line keeps the connection open."""
LONGEST = 14_400
"""Steps; a browser that still wants to know connects again."""


def live_route(desk: Desk) -> Route:
    async def live(request: Request) -> Response:
        return StreamingResponse(
            _news(desk), headers={"cache-control": "no-store"}, media_type="text/event-stream"
        )

    return Route("/live", live, methods=["GET"])


async def _news(desk: Desk) -> AsyncIterator[str]:
    known = await anyio.to_thread.run_sync(desk.news)
    yield f"retry: 5000\nevent: here\ndata: {known}\n\n"
    for step in range(1, LONGEST):
        await anyio.sleep(STEP)
        if desk.stopping.is_set():
            return
        if step % LOOK:
            continue
        news = await anyio.to_thread.run_sync(desk.news)
        if news != known:
            known = news
            yield f"event: changed\ndata: {news}\n\n"
        elif step % QUIET == 0:
            yield ": still here\n\n"
