"""How an event is told to other tools: as a call of a tool everybody knows, with its result."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from closeloop.records.attempt import Attempt
from closeloop.records.record import Record
from closeloop.records.session import Session
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Lane,
    Message,
    Read,
    ToolUse,
    Trace,
)
from closeloop.traces.export_extras import extra_fields
from closeloop.traces.tool_calls import CallOrigin, event_from_call, result_fields

ExportSource = Attempt | Session

_MESSAGE_TOOLS = {"question": ("ask_user", "question"), "claim": ("finish", "summary")}


class ExportedCall(Record):
    """A call as formats with tools have it."""

    id: str
    name: str
    arguments: dict[str, Any]
    result: str | None
    ok: bool | None
    more: dict[str, Any]
    """What a reader of the rest would not know of the event."""


def is_call_event(event: AnyEvent) -> bool:
    """Whether an event is told as a call: something done, or said by way of a tool."""
    if isinstance(event, Message):
        return event.role == "agent" and event.call is not None
    return isinstance(event, Command | Edit | Read | ToolUse | Handoff)


def call_from_event(event: AnyEvent, at: datetime | None) -> ExportedCall:
    """The call that an event is, in a message of the time `at`."""
    name, arguments = _tool_and_arguments(event)
    call_arguments = {key: value for key, value in arguments.items() if value is not None}
    call_id = event.call or f"closeloop-{event.number}"
    result = _result_text(event)
    ok = getattr(event, "ok", None)
    origin = CallOrigin(number=event.number, lane=event.lane, turn=event.turn, at=at, call=call_id)
    bare_event = event_from_call(name, call_arguments, origin)
    if result is not None or ok is not None:
        bare_event = msgspec.structs.replace(bare_event, **result_fields(bare_event, result, ok))
    return ExportedCall(
        id=call_id,
        name=name,
        arguments=call_arguments,
        result=result,
        ok=ok,
        more=extra_fields(event, bare_event),
    )


def _tool_and_arguments(event: AnyEvent) -> tuple[str, dict[str, Any]]:
    match event:
        case Command():
            return "bash", {"command": event.command, "workdir": event.directory}
        case Edit(action="create"):
            return "write", {"path": event.path, "content": event.after}
        case Edit():
            texts = {"old_string": event.before, "new_string": event.after, "patch": event.patch}
            return "edit", {"path": event.path, **texts}
        case Read():
            lines = {"first_line": event.first_line, "last_line": event.last_line}
            return "read", {"path": event.path, **lines}
        case Handoff():
            return "task", {"prompt": event.brief}
        case ToolUse():
            return event.name, event.arguments or {}
        case Message():
            name, argument = _MESSAGE_TOOLS.get(event.intent or "", ("say", "text"))
            return name, {argument: event.text}
    raise TypeError(type(event).__name__)


def _result_text(event: AnyEvent) -> str | None:
    match event:
        case Command() | ToolUse():
            return event.output
        case Edit():
            return event.error
        case Read():
            return event.text if event.error is None else event.error
        case Handoff():
            return event.report
    return None


def source_agent(of: ExportSource, trace: Trace) -> str:
    """The agent's name."""
    if isinstance(of, Session):
        return of.agent
    return next((lane.agent for lane in trace.lanes if lane.agent), trace.reader)


def source_agent_version(of: ExportSource) -> str | None:
    return of.agent_version if isinstance(of, Session) else None


def source_model(of: ExportSource, trace: Trace) -> str | None:
    if isinstance(of, Session) and of.model:
        return of.model
    return next((turn.model for lane in trace.lanes for turn in lane.turns if turn.model), None)


def source_system_prompt(of: ExportSource) -> str | None:
    return of.system if isinstance(of, Session) else None


def lanes_in_order(trace: Trace) -> Iterator[tuple[Lane, str | None]]:
    """Each lane with its parent: parents first, the root first of all."""
    lanes_by_id = {lane.id: lane for lane in trace.lanes}
    children: dict[str | None, list[Lane]] = {}
    for lane in trace.lanes:
        parent = lane.parent if lane.parent in lanes_by_id and lane.parent != lane.id else None
        children.setdefault(parent, []).append(lane)
    tops = children.get(None, []) or list(trace.lanes[:1])
    root, *others = tops or [Lane(id="root")]
    # A trace has one root; what else stands at the top is put below it.
    waiting: list[tuple[Lane, str | None]] = [(root, None), *((one, root.id) for one in others)]
    seen: set[str] = set()
    while waiting:
        lane, parent = waiting.pop(0)
        if lane.id not in seen:
            seen.add(lane.id)
            yield lane, parent
            waiting.extend((child, lane.id) for child in children.get(lane.id, []))


def events_by_lane(trace: Trace) -> dict[str, list[AnyEvent]]:
    """The events of each lane, in order."""
    by_lane: dict[str, list[AnyEvent]] = {}
    for event in trace.events:
        by_lane.setdefault(event.lane, []).append(event)
    return by_lane
