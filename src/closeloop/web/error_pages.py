"""What is answered where there is no page, or where one could not be made."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from closeloop.web.auth_middleware import SECURITY_HEADERS, refusal_response


async def answer_not_found(request: Request, error: Exception) -> Response:
    return _error_response(request, 404, "There is nothing at this address.")


async def answer_server_error(request: Request, error: Exception) -> Response:
    return _error_response(request, 500, "This could not be shown: the server's log says why.")


def _error_response(request: Request, status: int, why: str) -> Response:
    # What goes wrong may go past the guard, who would have set these.
    response = refusal_response(request, status, why)
    response.headers.update(SECURITY_HEADERS)
    return response
