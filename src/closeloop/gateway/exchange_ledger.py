"""The exchanges of a proxy, redacted and stored compactly."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, overload

import msgspec

from closeloop.providers import anthropic, gemini, openai, responses
from closeloop.providers.provider_streams import (
    MIN_PIECE_BYTES,
    RequestSplitter,
    read_provider_reply,
    split_into_pieces,
)
from closeloop.providers.wire_format import ServedFormat, format_sse_event
from closeloop.records.attempt import Usage
from closeloop.records.record import Record
from closeloop.records.trace import ChatMessage, Exchange, ModelRequest
from closeloop.text.redaction import find_secrets, redact_secrets

# Remove secrets from bodies before they are stored, even if a stream splits them.

_BLANK_LINE = re.compile(rb"(\r?\n\r?\n)")
TextPath = tuple[Any, ...]


MAX_SHARED_BYTES = 16 << 10
"""Bytes of a piece that other attempts may send again, such as a system prompt or the tools."""


def redact_body(body: bytes) -> bytes:
    """Redact the secrets of a body."""
    return _redact_shared(body) if len(body) <= MAX_SHARED_BYTES else redact_secrets(body, {})


@lru_cache(maxsize=128)
def _redact_shared(body: bytes) -> bytes:
    return redact_secrets(body, {})


def redact_stream(body: bytes) -> bytes:
    """Redact the secrets of a stream; one that is split over parts is named in its first part."""
    body = redact_secrets(body, {})
    answer = read_provider_reply(body).answer
    if answer is None or next(find_secrets(msgspec.json.encode(answer)), None) is None:
        return body
    blocks = _BLANK_LINE.split(body)
    events = {
        index: data
        for index, block in enumerate(blocks)
        if (data := _parse_event_data(block)) is not None
    }
    parts: dict[TextPath, list[tuple[Any, Any]]] = {}
    for event in events.values():
        number = event.get("index", event.get("output_index"))
        for path, holder, key in _walk_texts(event):
            parts.setdefault((number, *path), []).append((holder, key))
    for text_parts in parts.values():
        _redact_split_secrets(text_parts)
    for block_index, event in events.items():
        head = blocks[block_index].partition(b"data:")[0]
        blocks[block_index] = head + b"data: " + msgspec.json.encode(event)
    return b"".join(blocks)


def _parse_event_data(block: bytes) -> dict[str, Any] | None:
    _, marker, data = block.partition(b"data:")
    try:
        event = msgspec.json.decode(data) if marker else None
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _walk_texts(value: Any, path: TextPath = ()) -> Iterator[tuple[TextPath, Any, Any]]:
    """Yield every text of a value: its path, its container and its key."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, str):
            yield (*path, key), value, key
        elif isinstance(item, dict | list):
            yield from _walk_texts(item, (*path, key))


def _redact_split_secrets(parts: list[tuple[Any, Any]]) -> None:
    """Redact secrets that are recognised only when the parts are joined."""
    texts = [holder[key].encode() for holder, key in parts]
    whole_text = b"".join(texts)
    leaks = sorted(find_secrets(whole_text), key=lambda leak: (leak[0], -leak[1]))
    if not leaks:
        return
    text_start = 0
    for (holder, key), text in zip(parts, texts, strict=True):
        text_end, pieces, position = text_start + len(text), [], text_start
        for start, end, rule in leaks:
            if start < text_end and end > position:
                pieces.append(whole_text[position : max(position, start)])
                if start >= text_start:
                    pieces.append(f"[redacted: {rule}]".encode())
                position = min(end, text_end)
        pieces.append(whole_text[position:text_end])
        holder[key] = b"".join(pieces).decode("utf-8", "replace")
        text_start = text_end


MAX_KEPT_BYTES = 64 << 20
"""Bytes of distinct content stored per attempt; of a body beyond that, only the beginning."""
HEAD_BYTES = 4096
LARGE_BODY_BYTES = 256 << 10
"""Bytes; searching a longer body for secrets takes a noticeable time."""
MAX_ENTRIES = 20_000
"""An agent that sends more requests is broken, and its first ones show enough."""


ExchangeListener = Callable[[Exchange], None]


class ExchangeEntry:
    """An exchange in progress."""

    def __init__(self, number: int, path: str) -> None:
        self.number = number
        self.path = path
        self.request: tuple[bytes, ...] = ()
        self.at = datetime.now(UTC)
        self.began = time.monotonic()
        self.first_byte: float | None = None
        self.status = 0
        self.content_type = "application/json"
        self.response: list[bytes] = []
        self.retries = 0
        self.refusal: str | None = None
        """Why the provider last refused it."""
        self.model: str | None = None
        self.usage = Usage()
        self.cause: str | None = None
        self.note: str | None = None
        self.seconds = 0.0
        self.sending_seconds = 0.0
        """Seconds in which the answer was ready and the agent did not read it."""
        self.answered = False
        """Whether the provider answered or rejected the request as invalid."""
        self.broken: str | None = None
        """Why the answer broke off, if that is the provider's fault."""
        self.ended = self.began

    def add_response(self, chunk: bytes) -> None:
        """Record what was sent to the agent."""
        if self.first_byte is None:
            self.first_byte = time.monotonic() - self.began
        self.response.append(chunk)


class RequestEncoder:
    """Encodes the requests of a conversation, reusing what the last one had in common."""

    _HEAD = b'{"messages":['

    def __init__(self) -> None:
        self._messages: tuple[ChatMessage, ...] = ()
        self._pieces: list[bytes] = []
        """The messages without the last ones."""
        self._last_piece = self._HEAD
        self._settings: ModelRequest | None = None
        self._settings_pieces: list[bytes] = []

    def encode(self, request: ModelRequest) -> list[bytes]:
        """Encode a request as JSON, in pieces that the next one of the conversation shares."""
        known_count = len(self._messages)
        if request.messages[:known_count] != self._messages:
            known_count, self._messages, self._pieces, self._last_piece = 0, (), [], self._HEAD
        new_messages = [msgspec.json.encode(message) for message in request.messages[known_count:]]
        settings = msgspec.structs.replace(request, messages=())
        if settings != self._settings:
            first_piece, *later_pieces = _split_settings(msgspec.json.encode(settings))
            self._settings_pieces = [first_piece.removeprefix(self._HEAD), *later_pieces]
            self._settings = settings
        for number, message in enumerate(new_messages, known_count):
            self._last_piece += b"," + message if number else message
            if len(self._last_piece) >= MIN_PIECE_BYTES:
                self._pieces.append(self._last_piece)
                self._last_piece = b""
        self._messages = request.messages
        return [*self._pieces, self._last_piece, *self._settings_pieces]


# All attempts of a variant send the same settings.
_split_settings = lru_cache(maxsize=16)(split_into_pieces)


class Ledger(Sequence[Exchange]):
    """The finished exchanges in order of their requests; each is built when read."""

    def __init__(self, listener: ExchangeListener | None = None) -> None:
        self._listener = listener
        """Receives every exchange instead, so that none is stored here."""
        self._entries: list[ExchangeEntry] = []
        self._splitter = RequestSplitter()
        self._known: dict[bytes, bytes] = {}
        self._room = MAX_KEPT_BYTES
        self._begun = 0

    def begin_entry(self, path: str) -> ExchangeEntry:
        """Record that a request arrived."""
        self._begun += 1
        return ExchangeEntry(self._begun, path)

    async def record_request(self, entry: ExchangeEntry, body: bytes) -> None:
        """Record a request; a long body in a thread, so that no other attempt waits."""
        if len(body) > LARGE_BODY_BYTES:
            entry.request = await asyncio.to_thread(self._clean_request, body)
        else:
            entry.request = self._clean_request(body)

    async def record_pieces(self, entry: ExchangeEntry, pieces: Sequence[bytes]) -> None:
        """Record a request that is already split; in a thread if much of it is new."""
        new_bytes = sum(len(piece) for piece in pieces if piece not in self._known)
        if new_bytes > LARGE_BODY_BYTES:
            entry.request = await asyncio.to_thread(self._clean_pieces, pieces)
        else:
            entry.request = self._clean_pieces(pieces)

    def _clean_request(self, body: bytes) -> tuple[bytes, ...]:
        return self._clean_pieces(self._splitter.split(body))

    def _clean_pieces(self, pieces: Sequence[bytes]) -> tuple[bytes, ...]:
        return tuple(self._clean_piece(piece) for piece in pieces if piece)

    def end_entry(self, entry: ExchangeEntry) -> None:
        """Record that an exchange is finished."""
        if len(self._entries) >= MAX_ENTRIES:
            return
        entry.seconds = time.monotonic() - entry.began
        streams = entry.content_type.startswith("text/event-stream")
        redact = redact_stream if streams else redact_body
        entry.response = [self._clean_piece(b"".join(entry.response), redact)]
        if self._listener is not None:
            self._listener(_build_exchange(entry))
            return
        # Mostly in order already; concurrent requests may end in reverse order.
        index = len(self._entries)
        while index and self._entries[index - 1].number > entry.number:
            index -= 1
        self._entries.insert(index, entry)

    def _clean_piece(self, piece: bytes, redact: Callable[[bytes], bytes] = redact_body) -> bytes:
        """Redact a piece; returns the same object for the same piece."""
        redacted = self._known.get(piece)
        if redacted is None:
            if len(piece) > self._room and self._listener is not None:
                self._known.clear()
                self._room = MAX_KEPT_BYTES
            elif len(piece) > self._room:
                piece = piece[:HEAD_BYTES]
            self._room -= len(piece)
            redacted = self._known[piece] = redact(piece)
        return redacted

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Exchange: ...
    @overload
    def __getitem__(self, index: slice) -> list[Exchange]: ...
    def __getitem__(self, index: int | slice) -> Exchange | list[Exchange]:
        if isinstance(index, slice):
            return [_build_exchange(entry) for entry in self._entries[index]]
        return _build_exchange(self._entries[index])

    def __iter__(self) -> Iterator[Exchange]:
        return map(_build_exchange, self._entries)

    def iterate_split(self) -> Iterator[tuple[Exchange, tuple[bytes, ...]]]:
        """Yield each exchange without its request, and the pieces of the request."""
        return (
            (_build_exchange(entry, with_request=False), entry.request) for entry in self._entries
        )


def _build_exchange(entry: ExchangeEntry, *, with_request: bool = True) -> Exchange:
    return Exchange(
        number=entry.number,
        at=entry.at,
        path=entry.path,
        request=b"".join(entry.request) if with_request else b"",
        response=b"".join(entry.response),
        content_type=entry.content_type,
        status=entry.status,
        seconds=entry.seconds,
        first_byte_seconds=entry.first_byte,
        retries=entry.retries,
        model=entry.model,
        usage=entry.usage,
        cause=entry.cause,
        note=entry.note,
    )


# An agent's request, and the reply to it.

# The kind of a request, by its path: one of the formats, or an auxiliary endpoint.

RouteKind = Literal["chat", "count", "models", "alive"]
"""`count` asks for the number of tokens of a request, `alive` whether the server runs."""


class GatewayRoute(Record):
    """The meaning of a path."""

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
    """Find the route of a path; clients put the version before it, twice, or not at all."""
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
    """A received request."""

    method: str
    path: str
    """Without the secret and the query."""
    query: str
    headers: Mapping[str, str]
    body: bytes
    route: GatewayRoute


class OpenRequests:
    """Counts the requests of one proxy; only one large request is read at a time."""

    def __init__(self) -> None:
        self.inside = 0
        self.heavy = asyncio.Lock()


class ResponseWriter:
    """Sends the answer to the agent, and records it in an entry if one is given."""

    def __init__(self, send: AsgiSend) -> None:
        self._send = send
        self.entry: ExchangeEntry | None = None
        self.started = False
        self.streams = False

    def note_cause(self, cause: str) -> None:
        """Record why there is no valid answer."""
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
            # The gateway has retried already, or a retry is useless.
            headers.append((b"x-should-retry", b"false"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write_chunk(self, chunk: bytes) -> None:
        if chunk:
            if self.entry is not None:
                self.entry.add_response(chunk)
            started = time.monotonic()
            try:
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            finally:
                if self.entry is not None:
                    self.entry.sending_seconds += time.monotonic() - started

    async def end_response(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send_json(self, content: Any, status: int = 200) -> None:
        """Send a JSON answer at once."""
        await self.send_body(msgspec.json.encode(content), status)

    async def send_body(
        self, body: bytes, status: int = 200, content_type: str = "application/json"
    ) -> None:
        """Send any answer at once."""
        await self.start_response(status, content_type, len(body))
        if self.entry is not None:
            self.entry.add_response(body)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def send_fault(self, served_format: ServedFormat, message: str) -> None:
        """Report a fault in the agent's format, as far as that is still possible."""
        fault = served_format.fault(message)
        if not self.started:
            await self.send_json(fault, 400)
            return
        if self.streams:
            event_name = "error" if served_format.name in ("anthropic", "responses") else None
            await self.write_chunk(format_sse_event(fault, event_name).encode())
        await self.end_response()
