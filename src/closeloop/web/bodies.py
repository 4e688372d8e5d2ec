"""Bodies of requests, never more of them than a limit; and how a request is refused."""

from __future__ import annotations

from starlette.requests import Request


class Refused(Exception):
    """A request that cannot be taken, and the status that says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


async def read_body(request: Request, most: int) -> bytes | None:
    """All of it; None where it is longer than so many bytes."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            return None
    return bytes(body)


def media_type(request: Request) -> str:
    """What a body is said to be."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
