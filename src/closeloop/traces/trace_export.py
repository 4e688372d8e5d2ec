"""What all exports share: lanes, calls and our extras; and events as JSON lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

import msgspec

from closeloop.records.attempt import Attempt, Exit, Usage, sum_usage
from closeloop.records.record import Record, Time
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Lane,
    Message,
    Read,
    Session,
    Thought,
    ToolUse,
    Trace,
    Turn,
)
from closeloop.traces.tool_calls import CallOrigin, event_from_call, result_fields

ExportSource = Attempt | Session

_MESSAGE_TOOLS = {"question": ("ask_user", "question"), "claim": ("finish", "summary")}
EXPORT_KEY = "closeloop"
"""The key of our extras in exports."""
_PLACE_FIELDS = frozenset({"number", "lane", "turn"})
MAX_INDENT = 8


class ExportedCall(Record):
    """A call as in formats with tools."""

    id: str
    name: str
    arguments: dict[str, Any]
    result: str | None
    ok: bool | None
    more: dict[str, Any]
    """What a reader of the rest would not know about the event."""


def is_call_event(event: AnyEvent) -> bool:
    """Whether an event is exported as a call: an action, or a message through a tool."""
    if isinstance(event, Message):
        return event.role == "agent" and event.call is not None
    return isinstance(event, Command | Edit | Read | ToolUse | Handoff)


def call_from_event(event: AnyEvent, at: datetime | None) -> ExportedCall:
    """Convert an event to a call, in a message of the time `at`."""
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


def source_agent(source: ExportSource, trace: Trace) -> str:
    """Return the agent's name."""
    if isinstance(source, Session):
        return source.agent
    return next((lane.agent for lane in trace.lanes if lane.agent), trace.reader)


def source_agent_version(source: ExportSource) -> str | None:
    return source.agent_version if isinstance(source, Session) else None


def source_model(source: ExportSource, trace: Trace) -> str | None:
    if isinstance(source, Session) and source.model:
        return source.model
    return next((turn.model for lane in trace.lanes for turn in lane.turns if turn.model), None)


def source_system_prompt(source: ExportSource) -> str | None:
    return source.system if isinstance(source, Session) else None


def lanes_in_order(trace: Trace) -> Iterator[tuple[Lane, str | None]]:
    """Yield each lane with its parent: parents first, the root first of all."""
    lanes_by_id = {lane.id: lane for lane in trace.lanes}
    children: dict[str | None, list[Lane]] = {}
    for lane in trace.lanes:
        parent = lane.parent if lane.parent in lanes_by_id and lane.parent != lane.id else None
        children.setdefault(parent, []).append(lane)
    tops = children.get(None, []) or list(trace.lanes[:1])
    root, *other_lanes = tops or [Lane(id="root")]
    # A trace has one root; other top-level items are placed below it.
    pending: list[tuple[Lane, str | None]] = [
        (root, None),
        *((lane, root.id) for lane in other_lanes),
    ]
    seen_ids: set[str] = set()
    while pending:
        lane, parent = pending.pop(0)
        if lane.id not in seen_ids:
            seen_ids.add(lane.id)
            yield lane, parent
            pending.extend((child, lane.id) for child in children.get(lane.id, []))


def events_by_lane(trace: Trace) -> dict[str, list[AnyEvent]]:
    """Return the events of each lane, in order."""
    by_lane: dict[str, list[AnyEvent]] = {}
    for event in trace.events:
        by_lane.setdefault(event.lane, []).append(event)
    return by_lane


def extra_fields(event: AnyEvent, plain: AnyEvent) -> dict[str, Any]:
    """Return the fields of an event that `plain`, as in another format, lacks."""
    is_same_type = type(event) is type(plain)
    plain_fields = msgspec.structs.asdict(plain) if is_same_type else {}
    extras = {
        name: msgspec.to_builtins(value)
        for name, value in msgspec.structs.asdict(event).items()
        if name not in _PLACE_FIELDS and (name not in plain_fields or plain_fields[name] != value)
    }
    return extras if is_same_type else {"kind": type(event).__struct_config__.tag, **extras}


class SessionExtras(Record):
    """What our exports store about a session besides its trace."""

    exit: Exit = "finished"
    cause: str | None = None
    started: Time | None = None
    ended: Time | None = None
    summary: str | None = None
    directory: str | None = None
    branch: str | None = None
    commit: str | None = None
    user: str | None = None
    parent: str | None = None
    links: dict[str, str] = {}


def session_extras(source: Attempt | Session) -> dict[str, Any]:
    """Return what `parse_session_extras` reads."""
    names = (name for name in SessionExtras.__struct_fields__ if name in source.__struct_fields__)
    return cast(
        dict[str, Any],
        msgspec.to_builtins(SessionExtras(**{name: getattr(source, name) for name in names})),
    )


def parse_session_extras(value: Any) -> SessionExtras | None:
    """None if closeloop did not write it."""
    try:
        return msgspec.convert(value, SessionExtras) if isinstance(value, Mapping) else None
    except msgspec.ValidationError:
        return None


def restore_event(event: AnyEvent, extras: Any) -> AnyEvent:
    """Return the event with its stored extras; unchanged if they do not fit."""
    if not isinstance(extras, Mapping):
        return event
    place_fields = {name: getattr(event, name) for name in _PLACE_FIELDS}
    try:
        merged_fields = {**msgspec.to_builtins(event), **extras, **place_fields}
        return cast(AnyEvent, msgspec.convert(merged_fields, AnyEvent))
    except (msgspec.ValidationError, TypeError):
        return event


def lane_depths(lanes: Iterable[Lane]) -> dict[str, int]:
    """Return the indentation of each lane: one more than its parent's."""
    parents = {lane.id: lane.parent for lane in lanes}
    depth_by_lane: dict[str, int] = {}
    for name, parent in parents.items():
        ancestor, steps = parent, 0
        while ancestor is not None and steps < MAX_INDENT:
            ancestor, steps = parents.get(ancestor), steps + 1
        depth_by_lane[name] = steps
    return depth_by_lane


def export_jsonl(source: ExportSource, trace: Trace) -> Iterator[bytes]:
    """Yield lines, each with the id of its attempt or session."""
    for event in trace.events:
        yield msgspec.json.encode({"attempt": source.id, **msgspec.to_builtins(event)}) + b"\n"


# A trace as Harbor's ATIF 1.8: one document, sub-agents embedded.
#
# What ATIF has no field for is stored under `closeloop` in `extra`, so that reading it back gives
# the same trace.


SCHEMA = "ATIF-v1.8"


def export_atif(source: ExportSource, trace: Trace) -> bytes:
    """Return the trajectory as JSON."""
    return msgspec.json.format(msgspec.json.encode(build_trajectory(source, trace)), indent=1)


def build_trajectory(source: ExportSource, trace: Trace) -> dict[str, Any]:
    """Return the trajectory as JSON values."""
    events = events_by_lane(trace)
    trajectories: dict[str, dict[str, Any]] = {}
    for lane, parent in lanes_in_order(trace):
        root = parent is None
        steps = list(
            _AtifStepWriter(lane, source_system_prompt(source) if root else None).iter_steps(
                events.get(lane.id, [])
            )
        )
        name = source_agent(source, trace) if root else lane.agent or "unknown"
        usage = _root_usage(source, lane) if root else sum_usage(turn.usage for turn in lane.turns)
        trajectories[lane.id] = _drop_none(
            schema_version=SCHEMA,
            session_id=source.id,
            trajectory_id=lane.id,
            agent=_drop_none(
                name=name,
                version=(source_agent_version(source) if root else None) or "unknown",
                model_name=source_model(source, trace) if root else _lane_model(lane),
            ),
            steps=steps,
            final_metrics=_final_metrics(usage, len(steps)),
            extra={EXPORT_KEY: session_extras(source)} if root else None,
        )
        if parent is not None:
            trajectories[parent].setdefault("subagent_trajectories", []).append(
                trajectories[lane.id]
            )
    return next(iter(trajectories.values()))


class _AtifStepWriter:
    """Builds the steps of one lane."""

    def __init__(self, lane: Lane, system: str | None) -> None:
        self.lane = lane
        self.system = system
        self.number = 0
        self.exported_turns = 0
        """Number of turns with a step that reports their usage."""
        self.step: dict[str, Any] | None = None
        self.turn: int | None = None
        self.at: datetime | None = None
        self.asked = False

    def iter_steps(self, events: list[AnyEvent]) -> Iterator[dict[str, Any]]:
        if self.system is not None:
            yield self._make_step(source="system", message=self.system)
        for event in events:
            if not _is_by_agent(event):
                yield from self._close_step()
                yield self._message_step(event)
                continue
            if not self._fits_open_step(event):
                yield from self._close_step()
                yield from self._silent_steps(event.turn or 0)
                self._open_step(event)
            self._add_event(event)
        yield from self._close_step()
        yield from self._silent_steps(len(self.lane.turns) + 1)
        if not self.number:
            # A trajectory must have a step, even if nothing was recorded.
            yield self._make_step(source="system", message="", extra={EXPORT_KEY: {"empty": True}})

    def _make_step(self, **fields: Any) -> dict[str, Any]:
        self.number += 1
        return {"step_id": self.number, **_drop_none(**fields)}

    def _close_step(self) -> Iterator[dict[str, Any]]:
        if self.step is not None:
            yield self.step
        self.step = None

    def _silent_steps(self, before: int) -> Iterator[dict[str, Any]]:
        """Yield turns without events before the next one, because they have usage too."""
        while self.exported_turns + 1 < before and self.exported_turns < len(self.lane.turns):
            self.exported_turns += 1
            export_fields = {"turn": self.exported_turns, **self._reply_fields(self.exported_turns)}
            yield self._make_step(
                source="agent", message="",
                **_turn_fields(self.lane.turns[self.exported_turns - 1]),
                extra={EXPORT_KEY: export_fields},
            )  # fmt: skip

    def _reply_fields(self, turn: int) -> dict[str, Any]:
        return {"reply": msgspec.to_builtins(self.lane.turns[turn - 1])}

    def _message_step(self, event: AnyEvent) -> dict[str, Any]:
        """Convert a message of the user or system, or a note, to its own step."""
        user = isinstance(event, Message) and event.role == "user"
        role: Any = "user" if user else "system"
        intent: Any = "request" if user and not self.asked else None
        self.asked = self.asked or user
        text = getattr(event, "text", "")
        bare_message = Message(
            number=event.number, lane=event.lane, at=event.at, role=role, text=text, intent=intent
        )
        own_fields = extra_fields(event, bare_message)
        # A bare system message would be taken for the system prompt.
        extra = None if user and not own_fields else {EXPORT_KEY: {"event": own_fields}}
        return self._make_step(
            source=role, message=text, timestamp=_format_time(event.at), extra=extra
        )

    def _fits_open_step(self, event: AnyEvent) -> bool:
        """Whether an event fits into the open step: reasoning, message, calls."""
        step = self.step
        if step is None or event.turn != self.turn:
            return False
        if is_call_event(event):
            # Reused ids would pair a result with the wrong call.
            return event.call not in [call["tool_call_id"] for call in step.get("tool_calls", [])]
        has_message_or_calls = "tool_calls" in step or "message" in step["extra"][EXPORT_KEY]
        return not has_message_or_calls and not (
            "reasoning_content" in step and isinstance(event, Thought)
        )

    def _open_step(self, event: AnyEvent) -> None:
        turns = self.lane.turns
        self.turn, self.at = event.turn, event.at
        number = event.turn if event.turn is not None and event.turn <= len(turns) else 0
        export_fields: dict[str, Any] = {"turn": number}
        turn_fields: dict[str, Any] = {}
        if number > self.exported_turns:
            self.exported_turns = number
            export_fields |= self._reply_fields(number)
            turn_fields = _turn_fields(turns[number - 1])
        self.step = self._make_step(
            source="agent",
            message="",
            timestamp=_format_time(event.at),
            **turn_fields,
            extra={EXPORT_KEY: export_fields},
        )

    def _add_event(self, event: AnyEvent) -> None:
        assert self.step is not None
        export_fields = self.step["extra"][EXPORT_KEY]
        event_fields: dict[str, Any] = {
            "number": event.number,
            "lane": event.lane,
            "turn": event.turn,
            "at": self.at,
        }
        if is_call_event(event):
            self._add_call(event)
        elif isinstance(event, Thought):
            self.step["reasoning_content"] = event.text
            export_fields["thought"] = extra_fields(event, Thought(**event_fields, text=event.text))
        elif isinstance(event, Message):
            self.step["message"] = event.text
            export_fields["message"] = extra_fields(
                event, Message(**event_fields, role="agent", text=event.text)
            )

    def _add_call(self, event: AnyEvent) -> None:
        assert self.step is not None
        call = call_from_event(event, self.at)
        own_fields = dict(call.more)
        if isinstance(event, Handoff):
            # If these are empty, a reader searches the child's trajectory for them.
            own_fields |= {"brief": event.brief, "report": event.report}
        tool_call = _drop_none(
            tool_call_id=call.id,
            function_name=call.name,
            arguments=call.arguments,
            extra={EXPORT_KEY: own_fields} if own_fields else None,
        )
        self.step.setdefault("tool_calls", []).append(tool_call)
        child = getattr(event, "child", None)
        if call.result is None and call.ok is None and child is None:
            return
        result = _drop_none(
            source_call_id=call.id,
            content=call.result,
            subagent_trajectory_ref=[{"trajectory_id": child}] if child else None,
            extra=None if call.ok is None else {"is_error": not call.ok},
        )
        self.step.setdefault("observation", {"results": []})["results"].append(result)


def _is_by_agent(event: AnyEvent) -> bool:
    if isinstance(event, Message):
        return event.role == "agent"
    return isinstance(event, Thought) or is_call_event(event)


def _drop_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _format_time(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _lane_model(lane: Lane) -> str | None:
    return next((turn.model for turn in lane.turns if turn.model), None)


def _turn_fields(turn: Turn) -> dict[str, Any]:
    return {"model_name": turn.model, "metrics": _usage_metrics(turn.usage), "llm_call_count": 1}


def _usage_metrics(usage: Usage) -> dict[str, Any] | None:
    """Prompt tokens include cached input."""
    has_input = usage.input_tokens is not None
    cached = (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0)
    extra = _drop_none(
        cache_creation_input_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )
    metrics = _drop_none(
        prompt_tokens=(usage.input_tokens or 0) + cached if has_input else None,
        completion_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        cost_usd=usage.cost,
        extra=extra or None,
    )
    return metrics or None


def _root_usage(source: ExportSource, lane: Lane) -> Usage:
    """Return the root's own sum with the total cost; the record's if turns have none."""
    summed = sum_usage(turn.usage for turn in lane.turns)
    if summed == Usage():
        return source.usage
    return msgspec.structs.replace(summed, cost=source.usage.cost, cost_from=source.usage.cost_from)


def _final_metrics(usage: Usage, steps: int) -> dict[str, Any]:
    metrics = _usage_metrics(usage) or {}
    extra = metrics.pop("extra", None)
    return _drop_none(
        **{f"total_{name}": value for name, value in metrics.items()},
        total_steps=steps,
        extra=extra,
    )
