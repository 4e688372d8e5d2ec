"""Requests that need no translation: the same bytes, with another model's name and our key."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

import msgspec

from closeloop.model.answers import heard
from closeloop.model.errors import MachineFailed
from closeloop.model.record import Record
from closeloop.runs.gateway.asking import Asked, Out
from closeloop.runs.gateway.live import Broken
from closeloop.runs.models.decoding import DECODERS
from closeloop.runs.models.dialect import Retried
from closeloop.runs.models.prices import priced
from closeloop.runs.models.refusals import secret_in
from closeloop.runs.models.remote import RemoteModel, url_of
from closeloop.runs.models.served.speech import Malformed, Speech
from closeloop.runs.models.wire import Incoming

_SPOKEN = {"openai": ("openai", "responses"), "anthropic": ("anthropic",), "gemini": ("gemini",)}
_PATHS = {
    ("openai", "chat"): "/chat/completions",
    ("responses", "chat"): "/responses",
    ("anthropic", "chat"): "/v1/messages",
    ("anthropic", "count"): "/v1/messages/count_tokens",
}
_HEADERS = ("accept", "anthropic-beta", "anthropic-version", "openai-beta")
"""What of the agent's headers is about the request; the rest is about the agent."""
_BLANK_LINE = re.compile(rb"(\r?\n\r?\n)")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Outgoing(Record):
    """A request as the provider gets it."""

    url: str
    body: bytes
    headers: dict[str, str]
    hides_usage: bool = False
    """The agent did not ask for the usage at the end of the stream: we did."""


class Passing:
    """One provider's relay, shared by all doors to it."""

    def __init__(self, model: RemoteModel) -> None:
        self._model = model
        self._lacks: set[str] = set()
        """Formats that its server was found not to speak."""

    def speaks(self, asked: Asked) -> bool:
        name = asked.route.speech.name
        return name in _SPOKEN.get(self._model.provider, ()) and name not in self._lacks

    def forgoes(self, speech: Speech) -> bool:
        if speech.name != "responses":
            return False
        self._lacks.add(speech.name)
        return True

    async def pass_on(self, asked: Asked, out: Out, retried: Retried) -> None:
        """The answer as it comes; what it used is read from it on its way."""
        wire, sent = self._model.wire, outgoing(self._model, asked)
        incoming = await wire.begin(sent.url, sent.body, sent.headers, retried)
        received: list[bytes] = []
        try:
            await _relayed(incoming, received, _filters(sent, wire.key), out)
        except MachineFailed as fault:
            raise Broken(str(fault)) from None
        finally:
            await incoming.close()
            self._read_usage(asked.route.speech, b"".join(received), out)

    def _read_usage(self, speech: Speech, body: bytes, out: Out) -> None:
        try:
            reply = DECODERS[speech.name](heard(body).answer)
        except MachineFailed:
            return
        if out.entry is not None:
            out.entry.model = reply.model
            out.entry.usage = priced(reply.usage, self._model.prices)


def _filters(sent: Outgoing, key: str | None) -> list[KeyGuard | UsageFilter]:
    return [KeyGuard(key), UsageFilter()] if sent.hides_usage else [KeyGuard(key)]


async def _relayed(
    incoming: Incoming, received: list[bytes], filters: list[KeyGuard | UsageFilter], out: Out
) -> None:
    """Byte for byte, but for the key and what the agent did not ask for."""
    await out.start(incoming.status, incoming.content_type)
    async for chunk in incoming:
        received.append(chunk)
        passed = chunk
        for each in filters:
            passed = each.feed(passed)
        await out.write(passed)
    rest = b""
    for each in filters:
        rest = each.feed(rest) + each.end()
    await out.write(rest)
    await out.end()


def outgoing(model: RemoteModel, asked: Asked) -> Outgoing:
    """The request with the variant's model, to the provider's own address."""
    speech, kind = asked.route.speech, asked.route.kind
    headers = {name: asked.headers[name] for name in _HEADERS if name in asked.headers}
    try:
        fields = _fields.decode(asked.body)
    except (ValueError, RecursionError):
        raise Malformed("The request is not a JSON object.") from None
    wishes = parse_qs(asked.query)
    if speech.name == "gemini":
        method = asked.path.rpartition(":")[2]
        path = f"/v1beta/models/{model.name}:{method}"
        query = "?alt=sse" if wishes.get("alt") == ["sse"] else ""
        return Outgoing(url=url_of(model.base, path) + query, body=asked.body, headers=headers)
    query = "?beta=true" if wishes.get("beta") == ["true"] else ""
    fields["model"] = msgspec.Raw(msgspec.json.encode(model.name))
    streams = bytes(fields.get("stream", b"")) == b"true"
    hides = speech.name == "openai" and streams and not _wants_usage(fields)
    if hides:
        fields["stream_options"] = msgspec.Raw(b'{"include_usage":true}')
    return Outgoing(
        url=url_of(model.base, _PATHS[speech.name, kind]) + query,
        body=msgspec.json.encode(fields),
        headers=headers,
        hides_usage=hides,
    )


def _wants_usage(fields: dict[str, msgspec.Raw]) -> bool:
    try:
        options = msgspec.json.decode(fields.get("stream_options", b"null"))
    except (ValueError, RecursionError):
        return False
    return isinstance(options, dict) and bool(options.get("include_usage"))


class KeyGuard:
    """Takes the key out of what a provider sends, even where it comes in two chunks."""

    def __init__(self, key: str | None) -> None:
        self._key = secret_in(key).encode()
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        if not self._key:
            return chunk
        data = (self._held + chunk).replace(self._key, "…".encode())
        longest = min(len(self._key) - 1, len(data))
        ends = (size for size in range(longest, 0, -1) if data.endswith(self._key[:size]))
        size = next(ends, 0)
        self._held = data[len(data) - size :]
        return data[: len(data) - size]

    def end(self) -> bytes:
        return self._held


class UsageFilter:
    """Takes out of a stream of chat completions the chunk that only we asked for."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        *events, self._held = _BLANK_LINE.split(self._held + chunk)
        passed = [
            event + gap
            for event, gap in zip(events[::2], events[1::2], strict=True)
            if not _is_usage(event)
        ]
        return b"".join(passed)

    def end(self) -> bytes:
        return self._held


def _is_usage(event: bytes) -> bool:
    if b'"usage"' not in event or not event.startswith(b"data:"):
        return False
    try:
        data = msgspec.json.decode(event[5:])
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.get("choices") == [] and bool(data.get("usage"))
