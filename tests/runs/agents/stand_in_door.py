"""A door to a scripted model, for the tests of programs in cages."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.abc

from closeloop.providers.script_server import serve_script
from closeloop.providers.scripted_model import parse_script
from closeloop.records.attempt import Usage
from closeloop.records.errors import Fault, OutOfBudget
from closeloop.records.trace import Exchange, ModelReply, ModelRequest


class StandIn:
    """Counts what goes through, and closes when it is told to."""

    name = "scripted"

    def __init__(self, path: str, address: str, closes_after: int | None) -> None:
        self.socket = path
        self.address = address
        self.exchanges: list[Exchange] = []
        self.usage = Usage(input_tokens=1)
        self.busy = False
        self._closes_after = closes_after
        self._reason: OutOfBudget | Fault = OutOfBudget("token limit")
        self._closed = anyio.Event()

    async def reply(self, request: ModelRequest) -> ModelReply:
        raise NotImplementedError

    async def closed(self) -> OutOfBudget | Fault:
        await self._closed.wait()
        return self._reason

    def close(self, reason: OutOfBudget | Fault) -> None:
        self._reason = reason
        self._closed.set()

    def count(self, data: bytes) -> None:
        if data.startswith(b"POST "):
            exchange = Exchange(
                number=len(self.exchanges) + 1,
                at=datetime.now(UTC),
                path=data.split(b" ", 2)[1].decode(),
                request=data,
                response=b"",
                status=200,
                seconds=0.0,
            )
            self.exchanges.append(exchange)
        if self._closes_after is not None and len(self.exchanges) >= self._closes_after:
            self._closed.set()


@asynccontextmanager
async def stand_in(script: bytes, closes_after: int | None = None) -> AsyncIterator[StandIn]:
    """The scripted model behind a Unix socket, and on loopback."""
    with tempfile.TemporaryDirectory(prefix="closeloop-door-") as folder:
        async with serve_script(parse_script(script, "script.yaml")) as address:
            door = StandIn(f"{folder}/socket", address, closes_after)
            listener = await anyio.create_unix_listener(door.socket)

            async def carry(source: Any, target: Any, seen: Any = None) -> None:
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError, OSError):
                    while True:
                        data = await source.receive()
                        if seen is not None:
                            seen(data)
                        await target.send(data)
                with suppress(Exception):
                    await target.send_eof()

            async def connect(client: anyio.abc.SocketStream) -> None:
                port = int(address.rpartition(":")[2])
                async with (
                    client,
                    await anyio.connect_tcp("127.0.0.1", port) as server,
                    anyio.create_task_group() as group,
                ):
                    group.start_soon(carry, server, client)
                    await carry(client, server, door.count)

            async with anyio.create_task_group() as group:
                group.start_soon(listener.serve, connect)
                yield door
                group.cancel_scope.cancel()
