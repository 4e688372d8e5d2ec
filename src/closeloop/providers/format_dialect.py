"""A wire format from both sides: what one server understands of it, and how it is served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.trace import ModelReply, ModelRequest

SchemaRung = Literal["schema", "tool", "object", "prompt"]
"""Ways to get JSON, surest first: a strict schema, a forced tool, a JSON object, a plea."""

RetryListener = Callable[[float, int | None], None]
"""Told before a request is sent again: how long that is waited for, and the status that came."""

ANSWER_TOOL = "answer"
"""The name of the schema, and of the tool that is forced where schemas are not known."""


class Dialect(Record):
    """What a server has been found to accept."""

    rung: SchemaRung = "schema"
    reply_limit: Literal["max_completion_tokens", "max_tokens"] = "max_tokens"
    temperature: bool = True
    """Some models think at a temperature of their own and refuse another one."""


class ProviderFormat(Record):
    """A provider's way to put requests and replies: three pure functions and an address."""

    address: str
    """Where the provider itself is."""
    path: str
    key_env: str
    headers: Callable[[str | None], dict[str, str]]
    rungs: tuple[SchemaRung, ...]
    encode: Callable[[ModelRequest, str, Dialect], dict[str, Any]]
    decode: Callable[[Any], ModelReply]


def ignore_retry(seconds: float, status: int | None) -> None:
    """Nobody wants to know."""


def adapt_dialect(
    dialect: Dialect, request: ModelRequest, rungs: tuple[SchemaRung, ...], complaint: str
) -> Dialect | None:
    """What to try after a server refused a request; None when there is nothing left to change."""
    if request.max_tokens is not None and dialect.reply_limit in complaint:
        if dialect.reply_limit == "max_completion_tokens":
            return msgspec.structs.replace(dialect, reply_limit="max_tokens")
        if "max_completion_tokens" in complaint:
            return msgspec.structs.replace(dialect, reply_limit="max_completion_tokens")
    if request.temperature is not None and dialect.temperature and "temperature" in complaint:
        return msgspec.structs.replace(dialect, temperature=False)
    if request.schema is not None and dialect.rung != rungs[-1]:
        return msgspec.structs.replace(dialect, rung=rungs[rungs.index(dialect.rung) + 1])
    return None


def build_schema_prompt(request: ModelRequest) -> str:
    """The system prompt with the schema in words, for servers that know no other way."""
    schema = msgspec.json.encode(request.schema).decode()
    instruction = f"Reply with nothing but one JSON value of this JSON schema:\n{schema}"
    return f"{request.system}\n\n{instruction}" if request.system else instruction


def parse_call_arguments(arguments: Any) -> tuple[dict[str, Any], str | None]:
    """A call's arguments, and what came instead when that is no object that can be kept."""
    try:
        value = (
            msgspec.json.decode(arguments)
            if isinstance(arguments, str) and arguments
            else arguments or {}
        )
        # Numbers beyond 64 bits and bottomless nesting would be found by the store, too late.
        msgspec.msgpack.encode(value)
    except (ValueError, OverflowError, RecursionError):
        value = None
    return (value, None) if isinstance(value, dict) else ({}, str(arguments)[:10_000])


def read_token_count(value: Any) -> int | None:
    """A number of tokens, or None for anything that cannot be one."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None


# A format from the server's side: how requests are read and replies written.

Shape = TypeVar("Shape")


class MalformedRequest(BadInput):
    """What a client sent is no request of the format."""


class ServedFormat(Record):
    """What a server needs to speak one format."""

    name: Literal["openai", "responses", "anthropic", "gemini"]
    path: str
    read: Callable[[Any], ModelRequest]
    """BadInput when it is no request of this format."""
    answer: Callable[[ModelReply, Any], dict[str, Any]]
    events: Callable[[ModelReply, Any], Iterator[str]]
    """The same answer as server-sent events, for a payload that asks to `stream`."""
    fault: Callable[[str], dict[str, Any]]
    ping: bytes | None = None
    """What a stream may hold before its first event, as a sign of life."""
    streams: bool = False
    """Whether this path always streams, whatever the payload asks for."""


def convert_payload(payload: Any, shape: type[Shape]) -> Shape:
    """The payload as a typed record; BadInput when it does not fit."""
    try:
        return msgspec.convert(payload, shape)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MalformedRequest(f"The request is wrong: {error}.") from None


def find_reply_schema(value: Any, *path: str) -> dict[str, Any] | None:
    """The JSON schema that a wish for the reply's form holds, if it holds one."""
    for name in (*path, "schema"):
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else None


def sum_input_tokens(usage: Usage) -> int:
    """All that went in, cached or not, as most formats count it."""
    cached = (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0)
    return (usage.input_tokens or 0) + cached


def format_sse_event(data: Any, name: str | None = None) -> str:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {msgspec.json.encode(data).decode()}\n\n"


def join_content_text(content: Any) -> str:
    """The text of a content that is a text, nothing, or a list of parts."""
    if isinstance(content, list):
        return "\n".join(
            part["text"]
            for part in content
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return content if isinstance(content, str) else ""
