"""HTTP for proxies: routing, bodies and connections.

A proxy is identified by the Unix socket of the request or, on loopback, by the secret at the start
of its path; never by the content of the request.
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

from closeloop.gateway.exchange_ledger import (
    AgentRequest,
    AsgiMessage,
    AsgiSend,
    GatewayRoute,
    OpenRequests,
    ResponseWriter,
    find_route,
)
from closeloop.records.errors import BadInput
from closeloop.sandbox.machine_view import bind_unix_socket

MAX_REQUEST_BYTES = 32 << 20
"""Bytes of a request; agents send their whole conversation each time."""
HEAVY_REQUEST_BYTES = 1 << 20
MAX_REQUESTS_AT_ONCE = 256
"""Requests of one attempt at once; agents with many helpers have a dozen."""
MAX_WAITING_CONNECTIONS = 128
"""Connections that may wait to be accepted."""

AsgiReceive = Callable[[], Awaitable[AsgiMessage]]


class RequestHandler(Protocol):
    """Handles the requests of a proxy."""

    @property
    def crowd(self) -> OpenRequests: ...

    async def answer(self, request: AgentRequest, writer: ResponseWriter) -> None: ...


class HttpListener:
    """An open socket; connections wait until the server has started."""

    def __init__(
        self, bound_socket: socket.socket, protocol_factory: Callable[..., Any], proxy: Any
    ) -> None:
        bound_socket.listen(MAX_WAITING_CONNECTIONS)
        self._state = ServerState()
        make_protocol = partial(
            protocol_factory, server_state=self._state, app_state={"door": proxy}
        )
        loop = asyncio.get_running_loop()
        start_server = (
            loop.create_unix_server if bound_socket.family == socket.AF_UNIX else loop.create_server
        )
        self._begun = asyncio.ensure_future(start_server(make_protocol, sock=bound_socket))

    async def close(self) -> None:
        """Stop listening and close idle connections."""
        (await self._begun).close()
        for connection in list(self._state.connections):
            connection.shutdown()


class ProxyServer:
    """Serves proxies on sockets."""

    def __init__(self) -> None:
        config = uvicorn.Config(
            self._handle_request,
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
        self.doors: dict[str, RequestHandler] = {}
        """By secret."""

    def listen_unix(self, path: Path, proxy: RequestHandler) -> HttpListener:
        """Serve one proxy at a Unix socket."""
        return HttpListener(bind_unix_socket(path), self._protocol, proxy)

    def listen_loopback(self, port: int = 0) -> tuple[HttpListener, int]:
        """Serve all proxies on a loopback port, by their secrets."""
        # Named: otherwise asyncio would delay small writes.
        tcp_socket = socket.socket(proto=socket.IPPROTO_TCP)
        tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tcp_socket.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            tcp_socket.close()
            raise BadInput(
                f"Cannot listen on port {port}: choose another with --port, or 0 for a free one."
            ) from None
        return HttpListener(tcp_socket, self._protocol, None), tcp_socket.getsockname()[1]

    async def _handle_request(
        self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend
    ) -> None:
        writer = ResponseWriter(send)
        if scope["type"] != "http":
            return
        path, proxy = scope["path"], scope["state"]["door"]
        if proxy is None:
            secret, _, path = path[1:].partition("/")
            proxy, path = self.doors.get(secret), f"/{path}"
        matched_route = find_route(path) if proxy else None
        if matched_route is None:
            await writer.send_json({"error": {"message": "Not found.", "code": 404}}, 404)
            return
        if proxy.crowd.inside >= MAX_REQUESTS_AT_ONCE:
            await writer.send_json(matched_route.speech.fault("Too many requests at once."), 429)
            return
        proxy.crowd.inside += 1
        try:
            async with AsyncExitStack() as body_lock:
                body = await _read_body(receive, proxy.crowd, body_lock)
                if body is None:
                    message = f"A request may be at most {MAX_REQUEST_BYTES >> 20} MB."
                    await writer.send_json(matched_route.speech.fault(message), 413)
                    return
                agent_request = _build_agent_request(scope, path, body, matched_route)
                await _run_until_disconnect(proxy.answer(agent_request, writer), receive)
        finally:
            proxy.crowd.inside -= 1


def _build_agent_request(
    scope: AsgiMessage, path: str, body: bytes, route: GatewayRoute
) -> AgentRequest:
    return AgentRequest(
        method=scope["method"],
        path=path,
        query=scope["query_string"].decode("latin-1"),
        headers={
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        },
        body=body,
        route=route,
    )


async def _read_body(
    receive: AsgiReceive, open_requests: OpenRequests, open_slots: AsyncExitStack
) -> bytes | None:
    """Read the request's body; None if it is too long or aborted."""
    body, size, is_heavy = bytearray(), 0, False
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        size += len(message.get("body", b""))
        if size > HEAVY_REQUEST_BYTES and not is_heavy:
            is_heavy = True
            await open_slots.enter_async_context(open_requests.heavy)
        if size <= MAX_REQUEST_BYTES:
            body += message.get("body", b"")
        # Keep reading for a while: a client that still sends does not read the error.
        if not message.get("more_body") or size > 4 * MAX_REQUEST_BYTES:
            return bytes(body) if size <= MAX_REQUEST_BYTES else None


async def _run_until_disconnect(work: Any, receive: AsgiReceive) -> None:
    """Run the work until the agent disconnects."""
    work_task = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({work_task, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not work_task.done():
            work_task.cancel()
            await asyncio.wait({work_task})
        if not work_task.cancelled():
            work_task.result()
    finally:
        work_task.cancel()
        disconnected.cancel()
