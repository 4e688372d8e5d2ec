"""What is answered where there is no page, or where one could not be made."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from closeloop.web.guard import HEADERS, refusal


async def not_there(request: Request, error: Exception) -> Response:
    return _told(request, 404, "There is nothing at this address.")


async def trouble(request: Request, error: Exception) -> Response:
    return _told(request, 500, "This could not be shown: the server's log says why.")


def _told(request: Request, status: int, why: str) -> Response:
    # What goes wrong may go past the guard, who would have set these.
    told = refusal(request, status, why)
    told.headers.update(HEADERS)
    return told
