"""News by server-sent events: that something was added, so that open pages ask again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from closeloop.web.page_context import PageContext

STEP_SECONDS = 0.25
"""Seconds in which a server that stops lets go of its readers."""
STEPS_PER_LOOK = 8
"""So many steps between looks at the store."""
STEPS_PER_KEEPALIVE = 80
"""After so many steps without news a line keeps the connection open."""
MAX_STEPS = 14_400
"""Steps; a browser that still wants to know connects again."""


def live_updates_route(desk: PageContext) -> Route:
    async def stream_live_updates(request: Request) -> Response:
        return StreamingResponse(
            _stream_news(desk),
            headers={"cache-control": "no-store"},
            media_type="text/event-stream",
        )

    return Route("/live", stream_live_updates, methods=["GET"])


async def _stream_news(desk: PageContext) -> AsyncIterator[str]:
    known_mark = await anyio.to_thread.run_sync(desk.news_mark)
    yield f"retry: 5000\nevent: here\ndata: {known_mark}\n\n"
    for step in range(1, MAX_STEPS):
        await anyio.sleep(STEP_SECONDS)
        if desk.stopping.is_set():
            return
        if step % STEPS_PER_LOOK:
            continue
        current_mark = await anyio.to_thread.run_sync(desk.news_mark)
        if current_mark != known_mark:
            known_mark = current_mark
            yield f"event: changed\ndata: {current_mark}\n\n"
        elif step % STEPS_PER_KEEPALIVE == 0:
            yield ": still here\n\n"
