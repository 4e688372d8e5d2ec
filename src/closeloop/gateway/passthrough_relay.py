"""Requests without translation: the same bytes, with the variant's model and our key."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

import msgspec

from closeloop.gateway.exchange_ledger import AgentRequest, ResponseWriter
from closeloop.gateway.live_source import AnswerBroken
from closeloop.providers.model_prices import add_cost
from closeloop.providers.provider_connection import IncomingAnswer, RemoteModel, join_format_url
from closeloop.providers.provider_streams import DECODERS, read_provider_reply
from closeloop.providers.wire_format import (
    MalformedRequest,
    RetryListener,
    ServedFormat,
    find_secret_key,
)
from closeloop.records.errors import MachineFailed
from closeloop.records.record import Record

_SPOKEN_FORMATS = {
    "openai": ("openai", "responses"),
    "anthropic": ("anthropic",),
    "gemini": ("gemini",),
}
_PROVIDER_PATHS = {
    ("openai", "chat"): "/chat/completions",
    ("responses", "chat"): "/responses",
    ("anthropic", "chat"): "/v1/messages",
    ("anthropic", "count"): "/v1/messages/count_tokens",
}
_FORWARDED_HEADERS = ("accept", "anthropic-beta", "anthropic-version", "openai-beta")
"""The agent's headers that belong to the request; the others identify the agent."""
_BLANK_LINE = re.compile(rb"(\r?\n\r?\n)")
_FIELDS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])


class OutgoingRequest(Record):
    """A request as sent to the provider."""

    url: str
    body: bytes
    headers: dict[str, str]
    hides_usage: bool = False
    """Whether to hide the usage at the end of the stream, because only we requested it."""


class PassthroughRelay:
    """One provider's relay, shared by all its proxies."""

    def __init__(self, model: RemoteModel) -> None:
        self._model = model
        self._lacks: set[str] = set()
        """Formats that its server turned out not to support."""

    def speaks_format(self, request: AgentRequest) -> bool:
        name = request.route.speech.name
        return name in _SPOKEN_FORMATS.get(self._model.provider, ()) and name not in self._lacks

    def drop_format(self, served_format: ServedFormat) -> bool:
        if served_format.name != "responses":
            return False
        self._lacks.add(served_format.name)
        return True

    async def pass_request(
        self, request: AgentRequest, writer: ResponseWriter, retried: RetryListener
    ) -> None:
        """Pass the answer on as it arrives, and read its usage on the way."""
        wire, outgoing_request = self._model.wire, build_outgoing_request(self._model, request)
        incoming = await wire.begin_answer(
            outgoing_request.url, outgoing_request.body, outgoing_request.headers, retried
        )
        received: list[bytes] = []
        try:
            await _relay_answer(
                incoming, received, _build_filters(outgoing_request, wire.key), writer
            )
        except MachineFailed as fault:
            raise AnswerBroken(str(fault)) from None
        finally:
            await incoming.close()
            self._read_usage(request.route.speech, b"".join(received), writer)

    def _read_usage(self, served_format: ServedFormat, body: bytes, writer: ResponseWriter) -> None:
        try:
            reply = DECODERS[served_format.name](read_provider_reply(body).answer)
        except MachineFailed:
            return
        if writer.entry is not None:
            writer.entry.model = reply.model
            writer.entry.usage = add_cost(reply.usage, self._model.prices)


def _build_filters(outgoing: OutgoingRequest, key: str | None) -> list[KeyFilter | UsageFilter]:
    return [KeyFilter(key), UsageFilter()] if outgoing.hides_usage else [KeyFilter(key)]


async def _relay_answer(
    incoming: IncomingAnswer,
    received: list[bytes],
    filters: list[KeyFilter | UsageFilter],
    writer: ResponseWriter,
) -> None:
    """Pass the answer on byte for byte, without the key and what the agent did not request."""
    await writer.start_response(incoming.status, incoming.content_type)
    async for chunk in incoming:
        received.append(chunk)
        filtered = chunk
        for chunk_filter in filters:
            filtered = chunk_filter.filter_chunk(filtered)
        await writer.write_chunk(filtered)
    tail = b""
    for chunk_filter in filters:
        tail = chunk_filter.filter_chunk(tail) + chunk_filter.flush_rest()
    await writer.write_chunk(tail)
    await writer.end_response()


def build_outgoing_request(model: RemoteModel, request: AgentRequest) -> OutgoingRequest:
    """Build the request with the variant's model and the provider's address."""
    served_format, kind = request.route.speech, request.route.kind
    headers = {
        name: request.headers[name] for name in _FORWARDED_HEADERS if name in request.headers
    }
    try:
        fields = _FIELDS_DECODER.decode(request.body)
    except (ValueError, RecursionError):
        raise MalformedRequest("The request is not a JSON object.") from None
    query_options = parse_qs(request.query)
    if served_format.name == "gemini":
        method = request.path.rpartition(":")[2]
        path = f"/v1beta/models/{model.name}:{method}"
        query = "?alt=sse" if query_options.get("alt") == ["sse"] else ""
        return OutgoingRequest(
            url=join_format_url(model.base, path) + query, body=request.body, headers=headers
        )
    query = "?beta=true" if query_options.get("beta") == ["true"] else ""
    fields["model"] = msgspec.Raw(msgspec.json.encode(model.name))
    streams = bytes(fields.get("stream", b"")) == b"true"
    hides_usage = served_format.name == "openai" and streams and not _wants_usage(fields)
    if hides_usage:
        fields["stream_options"] = msgspec.Raw(b'{"include_usage":true}')
    return OutgoingRequest(
        url=join_format_url(model.base, _PROVIDER_PATHS[served_format.name, kind]) + query,
        body=msgspec.json.encode(fields),
        headers=headers,
        hides_usage=hides_usage,
    )


def _wants_usage(fields: dict[str, msgspec.Raw]) -> bool:
    try:
        options = msgspec.json.decode(fields.get("stream_options", b"null"))
    except (ValueError, RecursionError):
        return False
    return isinstance(options, dict) and bool(options.get("include_usage"))


class KeyFilter:
    """Removes the key from what a provider sends, even if it spans two chunks."""

    def __init__(self, key: str | None) -> None:
        self._key = find_secret_key(key).encode()
        self._pending_bytes = b""

    def filter_chunk(self, chunk: bytes) -> bytes:
        if not self._key:
            return chunk
        data = (self._pending_bytes + chunk).replace(self._key, "…".encode())
        longest = min(len(self._key) - 1, len(data))
        ends = (size for size in range(longest, 0, -1) if data.endswith(self._key[:size]))
        size = next(ends, 0)
        self._pending_bytes = data[len(data) - size :]
        return data[: len(data) - size]

    def flush_rest(self) -> bytes:
        return self._pending_bytes


class UsageFilter:
    """Removes the chunk that only we requested from a stream of chat completions."""

    def __init__(self) -> None:
        self._pending_bytes = b""

    def filter_chunk(self, chunk: bytes) -> bytes:
        *events, self._pending_bytes = _BLANK_LINE.split(self._pending_bytes + chunk)
        passed = [
            event + gap
            for event, gap in zip(events[::2], events[1::2], strict=True)
            if not _is_usage_event(event)
        ]
        return b"".join(passed)

    def flush_rest(self) -> bytes:
        return self._pending_bytes


def _is_usage_event(event: bytes) -> bool:
    if b'"usage"' not in event or not event.startswith(b"data:"):
        return False
    try:
        data = msgspec.json.decode(event[5:])
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.get("choices") == [] and bool(data.get("usage"))
