"""What goes to a model and what comes back, whichever provider it is."""

from __future__ import annotations

from typing import Any, Literal

from closeloop.records.attempt import Usage
from closeloop.records.record import Record


class ToolSpec(Record):
    """A tool offered to the model."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of an object."""


class ModelToolCall(Record):
    """A tool the model wants used."""

    id: str
    name: str
    arguments: dict[str, Any]
    malformed: str | None = None
    """What the model sent instead of a JSON object."""


class ChatMessage(Record):
    """One message of a conversation."""

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    calls: tuple[ModelToolCall, ...] = ()
    """For the assistant."""
    call: str | None = None
    """For a tool's result: the id of its call."""
    failed: bool = False
    """For a tool's result."""
    echo: Any = None
    """For the assistant: the reply's own `echo`."""


class ModelRequest(Record):
    """Everything a model is told in one turn."""

    messages: tuple[ChatMessage, ...]
    system: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    schema: dict[str, Any] | None = None
    """The reply must be JSON of this schema."""
    temperature: float | None = None
    max_tokens: int | None = None


class ModelReply(Record):
    """One turn of a model."""

    text: str = ""
    calls: tuple[ModelToolCall, ...] = ()
    stop: Literal["end", "tools", "length", "refused"] = "end"
    usage: Usage = Usage()
    model: str | None = None
    """The model that answered, as the provider names it."""
    value: Any = None
    """The decoded reply when a schema was asked for."""
    echo: Any = None
    """What the provider wants back unchanged with this turn, such as its signed reasoning."""
