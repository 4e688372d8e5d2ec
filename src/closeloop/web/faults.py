"""What is answered where there is no page, or where one could not be made."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from closeloop.web.guard import HEADERS
from closeloop.web.render import render


async def not_there(request: Request, error: Exception) -> Response:
    return _told(request, 404, "There is nothing at this address.")


async def trouble(request: Request, error: Exception) -> Response:
    return _told(request, 500, "This could not be shown: the server's log says why.")


def _told(request: Request, status: int, why: str) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        return Response(render("refused.html", why=why), status, HEADERS, media_type="text/html")
    return JSONResponse({"message": why}, status, HEADERS)
