"""HTTP for doors: which door a request is for, its body, and the connections of each door.

A door is known by the Unix socket that the request came through or, on loopback, by the secret
that its path begins with; never by anything that is said in the request.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import uvicorn
from uvicorn.server import ServerState

from closeloop.model.errors import BadInput
from closeloop.runs.gateway.asking import Asked, Crowd, Message, Out, Send
from closeloop.runs.gateway.routes import Route, route
from closeloop.runs.sandbox.sockets import bound

REQUEST_LIMIT = 32 << 20
"""Bytes of a request; agents send their whole conversation each time."""
HEAVY_BYTES = 1 << 20
MOST_AT_ONCE = 256
"""Requests of one attempt; agents with many helpers have a dozen."""
WAITING = 128
"""Connections that may wait to be let in."""

Receive = Callable[[], Awaitable[Message]]


class Answering(Protocol):
    """What stands behind a door."""

    @property
    def crowd(self) -> Crowd: ...

    async def answer(self, asked: Asked, out: Out) -> None: ...


class Listener:
    """A socket that is open: whoever connects waits until the server has begun."""

    def __init__(self, opened: socket.socket, make: Callable[..., Any], door: Any) -> None:
        opened.listen(WAITING)
        self._state = ServerState()
        made = partial(make, server_state=self._state, app_state={"door": door})
        loop = asyncio.get_running_loop()
        begin = loop.create_unix_server if opened.family == socket.AF_UNIX else loop.create_server
        self._begun = asyncio.ensure_future(begin(made, sock=opened))

    async def close(self) -> None:
        """Nobody comes in any more, and who is idle is shown out."""
        (await self._begun).close()
        for connection in list(self._state.connections):
            connection.shutdown()


class Listeners:
    """What turns sockets into doors."""

    def __init__(self) -> None:
        config = uvicorn.Config(
            self._application,
            access_log=False,
            log_config=None,
            log_level="critical",
            lifespan="off",
            interface="asgi3",
            proxy_headers=False,
            ws="none",
            server_header=False,
            date_header=False,
            timeout_keep_alive=600,
        )
        config.load()
        protocol: Any = config.http_protocol_class
        self._protocol = partial(protocol, config=config)
        self.doors: dict[str, Answering] = {}
        """By secret."""

    def unix(self, path: Path, door: Answering) -> Listener:
        """A door of its own at a path."""
        return Listener(bound(path), self._protocol, door)

    def loopback(self, port: int = 0) -> tuple[Listener, int]:
        """All doors, by their secrets, at a port of this machine."""
        # Named, or asyncio would let small writes wait for each other.
        opened = socket.socket(proto=socket.IPPROTO_TCP)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            opened.close()
            raise BadInput(f"Port {port} cannot be had: choose another, or 0 for any.") from None
        return Listener(opened, self._protocol, None), opened.getsockname()[1]

    async def _application(self, scope: Message, receive: Receive, send: Send) -> None:
        out = Out(send)
        if scope["type"] != "http":
            return
        path, door = scope["path"], scope["state"]["door"]
        if door is None:
            secret, _, path = path[1:].partition("/")
            door, path = self.doors.get(secret), f"/{path}"
        found = route(path) if door else None
        if found is None:
            await out.whole({"error": {"message": "There is nothing here.", "code": 404}}, 404)
            return
        if door.crowd.inside >= MOST_AT_ONCE:
            await out.whole(found.speech.fault("Too many requests at once."), 429)
            return
        door.crowd.inside += 1
        try:
            async with AsyncExitStack() as held:
                body = await _body(receive, door.crowd, held)
                if body is None:
                    said = f"A request may have {REQUEST_LIMIT >> 20} MB."
                    await out.whole(found.speech.fault(said), 413)
                    return
                asked = _asked(scope, path, body, found)
                await _unless_gone(door.answer(asked, out), receive)
        finally:
            door.crowd.inside -= 1


def _asked(scope: Message, path: str, body: bytes, found: Route) -> Asked:
    return Asked(
        method=scope["method"],
        path=path,
        query=scope["query_string"].decode("latin-1"),
        headers={
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        },
        body=body,
        route=found,
    )


async def _body(receive: Receive, crowd: Crowd, held: AsyncExitStack) -> bytes | None:
    """The request's body; None when it is too long, or broken off."""
    body, size, heavy = bytearray(), 0, False
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        size += len(message.get("body", b""))
        if size > HEAVY_BYTES and not heavy:
            heavy = True
            await held.enter_async_context(crowd.heavy)
        if size <= REQUEST_LIMIT:
            body += message.get("body", b"")
        # Read on for a while: who still sends does not hear what is wrong.
        if not message.get("more_body") or size > 4 * REQUEST_LIMIT:
            return bytes(body) if size <= REQUEST_LIMIT else None


async def _unless_gone(work: Any, receive: Receive) -> None:
    """Do the work while the agent is there to hear of it."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
        if not working.cancelled():
            working.result()
    finally:
        working.cancel()
        gone.cancel()
