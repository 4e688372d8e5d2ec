"""Bodies of requests, within limits of size, memory and time; and how a request is refused."""

from __future__ import annotations

import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

BODY_SECONDS = 120.0
"""So long a client may take to send a body."""
MAX_HELD_BYTES = 256 << 20
"""Bytes of all bodies that one endpoint holds at once."""
MAX_GZIP_MEMBERS = 1000
"""A gzip stream may consist of several members, each of which costs time to begin."""
DECOMPRESS_SECONDS = 20.0
_PIECE_BYTES = 16 << 10
"""Bytes that are decompressed at a time: what follows a member is copied, so keep it small."""


class RequestRefused(Exception):
    """A request that cannot be taken, and the status that says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class BodyMemory:
    """Bytes of bodies that are held at once, by all requests to an endpoint together."""

    def __init__(self, limit: int = MAX_HELD_BYTES) -> None:
        self.limit = limit
        self.held = 0

    async def read_body(self, receive: Receive, most: int, why: str) -> bytes:
        """Receive a body, which counts only until all of it has come."""
        async with self.hold_body(receive, most, why) as body:
            return body

    @asynccontextmanager
    async def hold_body(self, receive: Receive, most: int, why: str) -> AsyncIterator[bytes]:
        """Receive a body, which counts while the block runs.

        Refused with 413 and `why` above `most` bytes, with 408 when it does not come in time, and
        with 503 when the bodies of all requests take too much memory. ClientDisconnect when the
        client leaves.
        """
        chunks: list[bytes] = []
        size = 0
        try:
            with anyio.move_on_after(BODY_SECONDS) as timer:
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise ClientDisconnect
                    chunk = message.get("body", b"")
                    chunks.append(chunk)
                    size += len(chunk)
                    self.held += len(chunk)
                    if size > most:
                        raise RequestRefused(413, why)
                    if self.held > self.limit:
                        raise RequestRefused(503, "Too much comes at once: send it again.")
                    if not message.get("more_body"):
                        break
            if timer.cancelled_caught:
                raise RequestRefused(
                    408, f"The body did not come within {BODY_SECONDS:.0f} seconds."
                )
            yield chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            self.held -= size


def decompress_gzip(body: bytes, most: int) -> bytes:
    """Decompress gzip of one or several members, in time linear to its size.

    Refused with 413 when it has too many members, becomes more than `most` bytes or takes too
    long; with 400 when it is damaged.
    """
    content, place, members = bytearray(), 0, 0
    deadline = time.monotonic() + DECOMPRESS_SECONDS
    while place < len(body):
        members += 1
        if members > MAX_GZIP_MEMBERS:
            raise RequestRefused(
                413, f"A body may have {MAX_GZIP_MEMBERS} gzip members: send it in one."
            )
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            piece = body[place : place + _PIECE_BYTES]
            if not piece:
                raise RequestRefused(400, "The body ends in the middle.")
            try:
                content += member.decompress(piece, most + 1 - len(content))
            except zlib.error as error:
                raise RequestRefused(400, "The body is not gzip.") from error
            if len(content) > most:
                raise RequestRefused(413, f"A request may unpack to {most >> 20} MiB.")
            if time.monotonic() > deadline:
                raise RequestRefused(413, "The body takes too long to unpack: send less at once.")
            place += len(piece) - len(member.unused_data)
    return bytes(content)


def request_media_type(request: Request) -> str:
    """What a body is said to be."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


# What a form says, whoever sent it.

MAX_FIELDS = 1000


def parse_form_fields(body: bytes) -> dict[str, list[str]]:
    """Each field with its values; none of what cannot be a form of ours."""
    try:
        return parse_qs(body.decode("utf-8", "replace"), max_num_fields=MAX_FIELDS)
    except ValueError:
        return {}
