"""A trace: what an agent did, event by event, whatever its own files look like."""

from __future__ import annotations

from typing import Any, Literal

from closeloop.records.attempt import Usage
from closeloop.records.record import Record, Time

Intent = Literal["request", "question", "answer", "claim", "correction", "interrupt"]


# `gc=False`: an event cannot be part of a circle, and there are very many.
class Event(Record, tag_field="kind", gc=False):
    """Something that happened. An action and its result are one event."""

    number: int
    """Position in the trace, from 1: what findings cite."""
    lane: str
    turn: int | None = None
    """Which provider message of the lane it belongs to, from 1."""
    at: Time | None = None
    seconds: float | None = None
    call: str | None = None
    """The agent's own id for the action."""


class Message(Event, tag="message"):
    role: Literal["user", "agent", "system"]
    text: str
    intent: Intent | None = None


class Thought(Event, tag="thought"):
    text: str


class Command(Event, tag="command"):
    command: str
    directory: str | None = None
    output: str | None = None
    exit_code: int | None = None
    """None is unknown, never 0."""
    exit_from: Literal["stated", "parsed"] | None = None
    stopped: str | None = None
    """Which limit stopped it, when one did."""


class Edit(Event, tag="edit"):
    path: str
    action: Literal["create", "change", "delete", "move"] = "change"
    before: str | None = None
    after: str | None = None
    """The replaced and the new text, or the whole file where it was created."""
    patch: str | None = None
    ok: bool | None = None
    error: str | None = None


class Read(Event, tag="read"):
    path: str
    text: str | None = None
    first_line: int | None = None
    last_line: int | None = None
    ok: bool | None = None
    error: str | None = None


class ToolUse(Event, tag="tool"):
    name: str
    arguments: dict[str, Any] | None = None
    output: str | None = None
    ok: bool | None = None


class Handoff(Event, tag="handoff"):
    brief: str
    child: str | None = None
    """The lane that took the work."""
    report: str | None = None
    """What came back."""
    ok: bool | None = None


class Note(Event, tag="note"):
    """Anything else worth keeping: compaction, a limit reached, a record nobody knows."""

    text: str
    about: str | None = None


AnyEvent = Message | Thought | Command | Edit | Read | ToolUse | Handoff | Note


class Turn(Record):
    """One message of the provider: tokens are counted here, once."""

    usage: Usage = Usage()
    model: str | None = None
    at: Time | None = None
    seconds: float | None = None


class Lane(Record):
    """One agent's line of events: the root, or a sub-agent."""

    id: str
    parent: str | None = None
    agent: str | None = None
    turns: tuple[Turn, ...] = ()


class Trace(Record):
    """Lanes of events, in the order they happened."""

    reader: str
    reader_version: int
    lanes: tuple[Lane, ...] = ()
    events: tuple[AnyEvent, ...] = ()
    skipped: dict[str, int] = {}
    """What could not be read: reason → how many records."""
