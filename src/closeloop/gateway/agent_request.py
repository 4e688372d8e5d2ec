"""A request of an agent, and the way back to it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Literal

import msgspec

from closeloop.gateway.exchange_ledger import ExchangeEntry
from closeloop.providers import anthropic, gemini, openai, responses
from closeloop.providers.format_dialect import ServedFormat, format_sse_event
from closeloop.records.record import Record

# What an agent asks for, by its path: one of the formats, or what surrounds them.

RouteKind = Literal["chat", "count", "models", "alive"]
"""`count` asks how many tokens a request has, `alive` whether somebody is there."""


class GatewayRoute(Record):
    """What a path means."""

    kind: RouteKind
    speech: ServedFormat = openai.OPENAI_SERVED_FORMAT


_FIXED_ROUTES = {
    "": GatewayRoute(kind="alive"),
    "/chat/completions": GatewayRoute(kind="chat"),
    "/responses": GatewayRoute(kind="chat", speech=responses.RESPONSES_SERVED_FORMAT),
    "/messages": GatewayRoute(kind="chat", speech=anthropic.ANTHROPIC_SERVED_FORMAT),
    "/messages/count_tokens": GatewayRoute(kind="count", speech=anthropic.ANTHROPIC_SERVED_FORMAT),
    "/models": GatewayRoute(kind="models"),
}
_GEMINI_ROUTES = {
    "generateContent": GatewayRoute(kind="chat", speech=gemini.GEMINI_SERVED_FORMAT),
    "streamGenerateContent": GatewayRoute(kind="chat", speech=gemini.GEMINI_STREAM_FORMAT),
    "countTokens": GatewayRoute(kind="count", speech=gemini.GEMINI_SERVED_FORMAT),
}
_VERSION = re.compile(r"/v1(?:beta|alpha)?(?=/|$)")
MODEL_METHOD = re.compile(r"/models/([^/:]{1,200}):(\w{1,40})$")
"""A model and a method in a path."""
_MODEL_PATH = re.compile(r"/models/[^:]{1,200}")


def find_route(path: str) -> GatewayRoute | None:
    """What a path asks for; clients put the version before it, or twice, or not at all."""
    for _ in range(2):
        path = _VERSION.sub("", path, count=1) if _VERSION.match(path) else path
    path = path.rstrip("/")
    if fixed_route := _FIXED_ROUTES.get(path):
        return fixed_route
    if method := MODEL_METHOD.fullmatch(path):
        return _GEMINI_ROUTES.get(method[2])
    return GatewayRoute(kind="models") if _MODEL_PATH.fullmatch(path) else None


EVENT_STREAM = "text/event-stream"

AsgiMessage = MutableMapping[str, Any]
AsgiSend = Callable[[AsgiMessage], Awaitable[None]]


class AgentRequest(Record):
    """A request as it came."""

    method: str
    path: str
    """Without the secret and without what follows a `?`."""
    query: str
    headers: Mapping[str, str]
    body: bytes
    route: GatewayRoute


class OpenRequests:
    """How many requests are at one door; of long ones, only one may be held at a time."""

    def __init__(self) -> None:
        self.inside = 0
        self.heavy = asyncio.Lock()


class ResponseWriter:
    """The way back to the agent. What is sent is also written into an entry, if one is given."""

    def __init__(self, send: AsgiSend) -> None:
        self._send = send
        self.entry: ExchangeEntry | None = None
        self.started = False
        self.streams = False

    def note_cause(self, cause: str) -> None:
        """Why there is no good answer."""
        if self.entry is not None:
            self.entry.cause = cause

    async def start_response(
        self, status: int, content_type: str, length: int | None = None
    ) -> None:
        self.started = True
        self.streams = content_type.startswith(EVENT_STREAM)
        if self.entry is not None:
            self.entry.status, self.entry.content_type = status, content_type
        headers = [(b"content-type", content_type.encode("latin-1", "replace"))]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        if status >= 400:
            # The gateway has tried again already, or trying again is no use.
            headers.append((b"x-should-retry", b"false"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write_chunk(self, chunk: bytes) -> None:
        if chunk:
            if self.entry is not None:
                self.entry.add_response(chunk)
            began = time.monotonic()
            try:
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            finally:
                if self.entry is not None:
                    self.entry.sending_seconds += time.monotonic() - began

    async def end_response(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send_json(self, content: Any, status: int = 200) -> None:
        """A JSON answer, all at once."""
        await self.send_body(msgspec.json.encode(content), status)

    async def send_body(
        self, body: bytes, status: int = 200, content_type: str = "application/json"
    ) -> None:
        """Any answer, all at once."""
        await self.start_response(status, content_type, len(body))
        if self.entry is not None:
            self.entry.add_response(body)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def send_fault(self, speech: ServedFormat, message: str) -> None:
        """Say what went wrong in the agent's format, as far as that can still be said."""
        fault = speech.fault(message)
        if not self.started:
            await self.send_json(fault, 400)
            return
        if self.streams:
            event_name = "error" if speech.name in ("anthropic", "responses") else None
            await self.write_chunk(format_sse_event(fault, event_name).encode())
        await self.end_response()
