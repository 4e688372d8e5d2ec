"""A format from the server's side: how requests are read and replies written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.chat import ModelReply, ModelRequest
from closeloop.records.errors import BadInput
from closeloop.records.record import Record

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


def find_reply_schema(wish: Any, *path: str) -> dict[str, Any] | None:
    """The JSON schema that a wish for the reply's form holds, if it holds one."""
    for name in (*path, "schema"):
        wish = wish.get(name) if isinstance(wish, dict) else None
    return wish if isinstance(wish, dict) else None


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
