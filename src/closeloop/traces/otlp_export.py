"""A trace as OpenTelemetry spans after the GenAI conventions, in OTLP's JSON or protobuf.

An agent's work is an `invoke_agent` span, each reply of the model a `chat` span, each action an
`execute_tool` span. A chat span's input holds only what came since the last one. What the
conventions have no name for stands in attributes that begin with `closeloop.`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.record import content_digest
from closeloop.records.trace import AnyEvent, Lane, Message, Note, Thought, Trace, Turn
from closeloop.traces.readers.otel_sessions import OtelSpan
from closeloop.traces.trace_export import (
    EXPORT_KEY,
    ExportedCall,
    ExportSource,
    call_from_event,
    events_by_lane,
    extra_fields,
    is_call_event,
    lanes_in_order,
    session_extras,
    source_agent,
    source_agent_version,
    source_model,
    source_system_prompt,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ROLES = {"agent": "assistant", "user": "user", "system": "system"}


def export_otlp(source: ExportSource, trace: Trace) -> bytes:
    """Return one ExportTraceServiceRequest in JSON."""
    spans = [_span_to_json(span) for span in spans_from_trace(source, trace)]
    scope = {"scope": {"name": EXPORT_KEY}, "spans": spans}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": EXPORT_KEY}}]}
    return msgspec.json.encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})


def spans_from_trace(source: ExportSource, trace: Trace) -> Iterator[OtelSpan]:
    """Yield the spans, parents before children."""
    # Not from the id alone: a session that grew, or a task tried twice, shares its id.
    ids = _SpanIds(source.id, content_digest(source.id, source.started, trace)[:32])
    events = events_by_lane(trace)
    lanes = list(lanes_in_order(trace))
    calls = {getattr(event, "child", None): event for event in trace.events}
    for index, (lane, parent) in enumerate(lanes):
        handoff = calls.get(lane.id) if parent is not None else None
        parent_span = None
        if parent is not None:
            parent_span = ids.span_id(parent, handoff.number if handoff is not None else 0)
        lane_spans = list(_SpanWriter(ids, lane, len(lanes)).iter_spans(events.get(lane.id, [])))
        order = {f"{EXPORT_KEY}.order": index}
        bare = OtelSpan(
            trace=ids.trace, id=ids.span_id(lane.id, 0), parent=parent_span, attributes=order
        )
        yield _agent_span(source, trace, lane, bare, lane_spans)
        yield from lane_spans


class _SpanIds(NamedTuple):
    """The ids shared by all spans of a session."""

    conversation: str
    trace: str

    def span_id(self, lane: str, key: int | str) -> str:
        """Return a span's id: the lane's own for 0, else that of the span at an event."""
        return hashlib.sha256(f"{self.trace}\0{lane}\0{key}".encode()).hexdigest()[:16]


def _agent_span(
    source: ExportSource, trace: Trace, lane: Lane, bare: OtelSpan, children: list[OtelSpan]
) -> OtelSpan:
    root = bare.parent is None
    name = source_agent(source, trace) if root else lane.agent
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": name,
        "gen_ai.conversation.id": source.id,
        f"{EXPORT_KEY}.lane": lane.id,
    }
    if root:
        attributes["gen_ai.agent.version"] = source_agent_version(source)
        attributes["gen_ai.request.model"] = source_model(source, trace)
        attributes[f"{EXPORT_KEY}.session"] = _to_json_text(session_extras(source))
        if (system := source_system_prompt(source)) is not None:
            attributes["gen_ai.system_instructions"] = _to_json_text(
                [{"type": "text", "content": system}]
            )
    times = [time for span in children for time in (span.start, span.end) if time]
    return msgspec.structs.replace(
        bare,
        name=f"invoke_agent {name}" if name else "invoke_agent",
        start=min(times, default=None),
        end=max(times, default=None),
        attributes=bare.attributes | _drop_none(attributes),
        failed=True if root and source.exit == "crashed" else None,
        error=source.cause if root and source.exit == "crashed" else None,
    )


class _SpanWriter:
    """Builds the spans of one lane."""

    def __init__(self, ids: _SpanIds, lane: Lane, after: int) -> None:
        self.ids = ids
        self.lane = lane
        self.after = after
        """Orders up to here belong to the agents' own spans."""
        self.input_events: list[AnyEvent] = []
        self.agent_events: list[AnyEvent] = []
        self.exported_turns = 0
        self.asked = False
        self.now: datetime | None = None

    def iter_spans(self, events: list[AnyEvent]) -> Iterator[OtelSpan]:
        for event in events:
            is_by_agent = _is_by_agent(event)
            if self.agent_events and (not is_by_agent or event.turn != self.agent_events[0].turn):
                yield from self._reply_spans()
            (self.agent_events if is_by_agent else self.input_events).append(event)
        if self.agent_events or self.input_events:
            yield from self._reply_spans()
        last = events[-1].number if events else 0
        yield from self._silent_spans(len(self.lane.turns) + 1, last)

    def _silent_spans(self, before: int, number: int) -> Iterator[OtelSpan]:
        """Yield turns without events before the next one, because they have usage too."""
        while self.exported_turns + 1 < before and self.exported_turns < len(self.lane.turns):
            self.exported_turns += 1
            turn = self.lane.turns[self.exported_turns - 1]
            start = self._carry_time(turn.at)
            span_name = f"silent {self.exported_turns}"
            yield self._chat_span(
                span_name, number, self.exported_turns, (start, _turn_end(start, turn)), {}
            )

    def _reply_spans(self) -> Iterator[OtelSpan]:
        """Yield the span of one reply with its input, then a span for each of its actions."""
        first = (self.input_events or self.agent_events)[0]
        reply_turn = self.agent_events[0].turn if self.agent_events else None
        number = reply_turn if reply_turn is not None and reply_turn <= len(self.lane.turns) else 0
        yield from self._silent_spans(number, first.number - 1)
        turn = self.lane.turns[number - 1] if number > self.exported_turns else Turn()
        start = self._carry_time(turn.at or first.at)
        end = _turn_end(start, turn)
        calls = [
            (event, call_from_event(event, end or start))
            for event in self.agent_events
            if is_call_event(event)
        ]
        calls_by_number = {event.number: call for event, call in calls}
        input_messages = [self._input_message(event, start) for event in self.input_events]
        output_parts = [
            self._output_part(event, calls_by_number, end or start) for event in self.agent_events
        ]
        messages = {
            "gen_ai.input.messages": _to_json_text(input_messages) if input_messages else None,
            "gen_ai.output.messages": _to_json_text([{"role": "assistant", "parts": output_parts}])
            if output_parts
            else None,
        }
        yield self._chat_span(str(first.number), first.number, number, (start, end), messages)
        for event, call in calls:
            yield self._tool_span(event, call)
        self.input_events, self.agent_events = [], []

    def _carry_time(self, time: datetime | None) -> datetime | None:
        """Carry the last known time forward: spans need one."""
        self.now = time or self.now
        return self.now

    def _chat_span(
        self, name: str, number: int, turn: int, times: tuple[Any, Any], messages: dict[str, Any]
    ) -> OtelSpan:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.conversation.id": self.ids.conversation,
            "gen_ai.response.id": f"{self.lane.id}/{turn}" if turn else None,
            f"{EXPORT_KEY}.order": self.after + 4 * number + (0 if name.isdigit() else 3),
            f"{EXPORT_KEY}.turn": turn,
            **messages,
        }
        model = None
        if turn and (turn > self.exported_turns or not name.isdigit()):
            self.exported_turns = max(self.exported_turns, turn)
            reply = self.lane.turns[turn - 1]
            model = reply.model
            attributes |= {"gen_ai.request.model": model, **_usage_attributes(reply.usage)}
            attributes[f"{EXPORT_KEY}.reply"] = _to_json_text(msgspec.to_builtins(reply))
        span_id = self.ids.span_id(self.lane.id, f"chat {name}")
        return self._make_span(span_id, f"chat {model}" if model else "chat", times, attributes)

    def _tool_span(self, event: AnyEvent, call: ExportedCall) -> OtelSpan:
        start = self._carry_time(event.at)
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.call.arguments": _to_json_text(call.arguments),
            "gen_ai.tool.call.result": call.result,
            "gen_ai.conversation.id": self.ids.conversation,
            f"{EXPORT_KEY}.order": self.after + 4 * event.number + 1,
            f"{EXPORT_KEY}.event": _to_json_text(call.more) if call.more else None,
        }
        times = (start, _add_seconds(start, event.seconds))
        failed = None if call.ok is None else not call.ok
        span_id = self.ids.span_id(self.lane.id, event.number)
        return self._make_span(span_id, f"execute_tool {call.name}", times, attributes, failed)

    def _make_span(
        self,
        span_id: str,
        name: str,
        times: tuple[Any, Any],
        attributes: dict[str, Any],
        failed: bool | None = None,
    ) -> OtelSpan:
        return OtelSpan(
            trace=self.ids.trace,
            id=span_id,
            parent=self.ids.span_id(self.lane.id, 0),
            name=name,
            start=times[0],
            end=times[1],
            attributes=_drop_none(attributes),
            failed=failed,
        )

    def _input_message(self, event: AnyEvent, time: datetime | None) -> dict[str, Any]:
        """Build an input message from the user, the system or a note."""
        user = isinstance(event, Message) and event.role == "user"
        role: Any = "user" if user else "system"
        intent: Any = "request" if user and not self.asked else None
        self.asked = self.asked or user
        text = getattr(event, "text", "")
        bare_message = Message(
            number=event.number, lane=event.lane, at=time, role=role, text=text, intent=intent
        )
        part = {"type": "text", "content": text, EXPORT_KEY: extra_fields(event, bare_message)}
        return {"role": _ROLES[role], "parts": [part]}

    def _output_part(
        self, event: AnyEvent, calls: dict[int, ExportedCall], time: datetime | None
    ) -> dict[str, Any]:
        if event.number in calls:
            call = calls[event.number]
            return {
                "type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments
            }  # fmt: skip
        event_fields: dict[str, Any] = {
            "number": event.number,
            "lane": event.lane,
            "turn": event.turn,
            "at": time,
        }
        text = getattr(event, "text", "")
        if isinstance(event, Thought):
            extras = extra_fields(event, Thought(**event_fields, text=text))
            return {"type": "reasoning", "content": text, EXPORT_KEY: extras}
        extras = extra_fields(event, Message(**event_fields, role="agent", text=text))
        return {"type": "text", "content": text, EXPORT_KEY: extras}


def _is_by_agent(event: AnyEvent) -> bool:
    if isinstance(event, Message):
        return event.role == "agent"
    return not isinstance(event, Note)


def _to_json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _drop_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _turn_end(start: datetime | None, turn: Turn) -> datetime | None:
    return _add_seconds(start, turn.seconds)


def _add_seconds(start: datetime | None, seconds: float | None) -> datetime | None:
    try:
        return None if start is None else start + timedelta(seconds=seconds or 0)
    except OverflowError:
        return start


def _usage_attributes(usage: Usage) -> dict[str, Any]:
    """The conventions include cached input."""
    cached = (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0)
    input_tokens = None if usage.input_tokens is None else usage.input_tokens + cached
    return {
        "gen_ai.usage.input_tokens": input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        "gen_ai.usage.cost": usage.cost,
    }


def _span_to_json(span: OtelSpan) -> dict[str, Any]:
    """Convert a span to OTLP's JSON: nanoseconds as text, ids in hex."""
    status: dict[str, Any] = {}
    if span.failed is not None:
        status = _drop_none({"code": 2 if span.failed else 1, "message": span.error})
    return _drop_none(
        {
            "traceId": span.trace,
            "spanId": span.id,
            "parentSpanId": span.parent,
            "name": span.name,
            "kind": 3 if span.name.startswith("chat") else 1,
            "startTimeUnixNano": _to_nanoseconds(span.start),
            "endTimeUnixNano": _to_nanoseconds(span.end or span.start),
            "attributes": [
                {"key": key, "value": _to_otlp_value(value)}
                for key, value in span.attributes.items()
            ],
            "status": status or None,
        }
    )


def _to_nanoseconds(time: datetime | None) -> str:
    return "0" if time is None else str((time - _EPOCH) // timedelta(microseconds=1) * 1000)


def _to_otlp_value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
    return {"stringValue": str(value)}
