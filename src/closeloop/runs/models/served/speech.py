"""A format from the server's side: how requests are read and replies written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from closeloop.model.chat import ModelReply, ModelRequest
from closeloop.model.errors import BadInput
from closeloop.model.record import Record

Shape = TypeVar("Shape")


class Speech(Record):
    """What a server needs to speak one format."""

    path: str
    read: Callable[[Any], ModelRequest]
    """BadInput when it is no request of this format."""
    answer: Callable[[ModelReply, Any], dict[str, Any]]
    events: Callable[[ModelReply, Any], Iterator[str]]
    """The same answer as server-sent events, for a payload that asks to `stream`."""
    fault: Callable[[str], dict[str, Any]]
    streams: bool = False
    """Whether this path always streams, whatever the payload asks for."""


def shaped(payload: Any, shape: type[Shape]) -> Shape:
    """The payload as a typed record; BadInput when it does not fit."""
    try:
        return msgspec.convert(payload, shape)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadInput(f"The request is wrong: {error}.") from None


def event(data: Any, name: str | None = None) -> str:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {msgspec.json.encode(data).decode()}\n\n"


def plain(content: Any) -> str:
    """The text of a content that is a text, nothing, or a list of parts."""
    if isinstance(content, list):
        return "\n".join(
            part["text"]
            for part in content
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return content if isinstance(content, str) else ""
