"""The trace of an attempt, written while the attempt happens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal

import msgspec

from closeloop.records.chat import ModelReply, ModelToolCall
from closeloop.records.errors import OutOfBudget
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Lane,
    Message,
    Note,
    Read,
    ToolUse,
    Trace,
    Turn,
)

# What a model sent is hostile: made valid and bounded here before anything is done with it.

MAX_RESULT_CHARS = 30_000
"""Characters of one tool result, as the model and the trace get it."""
MAX_MESSAGE_CHARS = 1_000_000
"""Characters of one message, and bytes of one call's arguments."""
INVALID_NAME_CHARS = re.compile(r"[^a-zA-Z0-9_-]")
"""Providers refuse to see a tool's name with such characters again."""
CUT_OFF_MESSAGE = "the reply was cut off at the length limit in this call; send it again, smaller"


def shorten_middle(text: str, limit: int = MAX_RESULT_CHARS) -> str:
    """The text, or its head and tail with a word on how much is missing between."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def replace_surrogates(text: str) -> str:
    """The text with lone surrogates replaced, so that it can be written as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def clean_for_storage(text: str) -> str:
    """The text, fit for a column of a database: valid, bounded and without NUL."""
    return shorten_middle(replace_surrogates(text).replace("\0", "\ufffd"))


def sanitise_reply(reply: ModelReply) -> ModelReply:
    """The reply, fit to be kept, sent back and acted on."""
    calls = [_sanitise_call(call) for call in reply.calls]
    if calls and reply.stop == "length":
        calls[-1] = msgspec.structs.replace(calls[-1], arguments={}, malformed=CUT_OFF_MESSAGE)
    text = shorten_middle(replace_surrogates(reply.text), MAX_MESSAGE_CHARS).strip()
    return msgspec.structs.replace(reply, text=text, calls=tuple(calls))


def _sanitise_call(call: ModelToolCall) -> ModelToolCall:
    """The call; as a malformed one when its arguments cannot be written down again."""
    malformed, arguments = call.malformed, call.arguments
    try:
        size = len(msgspec.json.encode(arguments))
        if size > MAX_MESSAGE_CHARS:
            malformed = f"{size} bytes of arguments, of {MAX_MESSAGE_CHARS} allowed"
    except (TypeError, ValueError, RecursionError) as error:
        malformed = f"arguments that cannot be written as JSON: {error}"
    if malformed is not None:
        arguments, malformed = {}, shorten_middle(replace_surrogates(malformed), 1_000)
    return ModelToolCall(
        id=replace_surrogates(call.id)[:200],
        name=INVALID_NAME_CHARS.sub("_", call.name)[:64] or "_",
        arguments=arguments,
        malformed=malformed,
    )


MAX_TRACE_CHARS = 64_000_000
"""Characters: a hundred times what honest work leaves behind."""

Clock = Callable[[], datetime]
RecordedAction = Command | Edit | Read | ToolUse | Handoff
MessageIntent = Literal["request", "question", "answer", "claim"]


class TraceRecorder:
    """All lanes of one attempt. Events are numbered by when they began."""

    def __init__(self, agent: str, clock: Clock) -> None:
        self.agent = agent
        self.clock = clock
        self.events: list[AnyEvent] = []
        self.lanes: list[LaneRecorder] = []
        self.size = 0

    def open_lane(self, parent: str | None = None) -> LaneRecorder:
        """A new lane: the root first, then sub-agents."""
        lane = LaneRecorder(self, f"sub-{len(self.lanes)}" if self.lanes else "root", parent)
        self.lanes.append(lane)
        return lane

    @property
    def turns(self) -> int:
        return sum(len(lane.turns) for lane in self.lanes)

    def build_trace(self) -> Trace:
        """What happened so far; an action still under way has no result yet."""
        lanes = tuple(
            Lane(id=lane.id, parent=lane.parent, agent=self.agent, turns=tuple(lane.turns))
            for lane in self.lanes
        )
        return Trace(reader=self.agent, reader_version=1, lanes=lanes, events=tuple(self.events))


class LaneRecorder:
    """One lane of a recorder."""

    def __init__(self, recorder: TraceRecorder, name: str, parent: str | None) -> None:
        self.recorder = recorder
        self.id = name
        self.parent = parent
        self.turns: list[Turn] = []

    def add_turn(self, reply: ModelReply, began: datetime) -> None:
        """One message of the provider; what follows belongs to it."""
        seconds = (self.recorder.clock() - began).total_seconds()
        self.turns.append(Turn(usage=reply.usage, model=reply.model, at=began, seconds=seconds))

    def add_message(
        self,
        role: Literal["user", "agent", "system"],
        text: str,
        intent: MessageIntent | None = None,
        call: str | None = None,
    ) -> None:
        self._add_event(Message, role=role, text=text, intent=intent, call=call)

    def add_note(self, text: str, about: str, call: str | None = None) -> None:
        self._add_event(Note, text=clean_for_storage(text), about=about, call=call)

    @contextmanager
    def record_action(self, kind: type[RecordedAction], **known: Any) -> Iterator[dict[str, Any]]:
        """Record an action from its start; the body fills in its result."""
        if self.recorder.size > MAX_TRACE_CHARS:
            raise OutOfBudget("trace limit")
        event, result = self._add_event(kind, **known), dict[str, Any]()
        try:
            yield result
        except Exception as error:
            result = _failure_fields(kind, clean_for_storage(str(error)))
            raise
        except BaseException:
            result = _failure_fields(kind, "interrupted")
            raise
        finally:
            self._end_event(event, result)

    def _add_event(self, kind: type[AnyEvent], **fields: Any) -> AnyEvent:
        recorder = self.recorder
        event = kind(
            number=len(recorder.events) + 1,
            lane=self.id,
            turn=len(self.turns) or None,
            at=recorder.clock(),
            **fields,
        )
        recorder.events.append(event)
        recorder.size += _count_text_chars(fields)
        return event

    def _end_event(self, event: AnyEvent, result: dict[str, Any]) -> None:
        recorder = self.recorder
        assert event.at is not None
        seconds = (recorder.clock() - event.at).total_seconds()
        recorder.events[event.number - 1] = msgspec.structs.replace(
            event, seconds=seconds, **result
        )
        recorder.size += _count_text_chars(result)


def _failure_fields(kind: type[RecordedAction], reason: str) -> dict[str, Any]:
    if kind is Command:
        return {"stopped": reason}
    if kind is ToolUse:
        return {"ok": False, "output": reason}
    return {"ok": False} if kind is Handoff else {"ok": False, "error": reason}


def _count_text_chars(fields: dict[str, Any]) -> int:
    return sum(len(value) for value in fields.values() if isinstance(value, str))
