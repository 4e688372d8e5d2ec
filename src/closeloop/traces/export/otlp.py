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

from closeloop.model.attempt import Usage
from closeloop.model.record import digest
from closeloop.model.trace import AnyEvent, Lane, Message, Note, Thought, Trace, Turn
from closeloop.traces.export.told import (
    Call,
    Exported,
    agent_of,
    call_of,
    events_by_lane,
    is_call,
    lanes_in_order,
    model_of,
    system_of,
    version_of,
)
from closeloop.traces.otel.spans import Span
from closeloop.traces.results import OWN, facts, kept

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ROLES = {"agent": "assistant", "user": "user", "system": "system"}


def export(of: Exported, trace: Trace) -> bytes:
    """One ExportTraceServiceRequest in JSON."""
    found = [_json(span) for span in spans_of(of, trace)]
    scope = {"scope": {"name": OWN}, "spans": found}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": OWN}}]}
    return msgspec.json.encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})


def spans_of(of: Exported, trace: Trace) -> Iterator[Span]:
    """The spans, parents before children."""
    # Not of the id alone: a session that grew, or a task that was tried twice, is told under one.
    ids = _Ids(of.id, digest(of.id, of.started, trace)[:32])
    events = events_by_lane(trace)
    lanes = list(lanes_in_order(trace))
    calls = {getattr(event, "child", None): event for event in trace.events}
    for place, (lane, parent) in enumerate(lanes):
        opened = calls.get(lane.id) if parent is not None else None
        above = None
        if parent is not None:
            above = ids.span(parent, opened.number if opened is not None else 0)
        told = list(_Lane(ids, lane, len(lanes)).of(events.get(lane.id, [])))
        order = {f"{OWN}.order": place}
        bare = Span(trace=ids.trace, id=ids.span(lane.id, 0), parent=above, attributes=order)
        yield _agent(of, trace, lane, bare, told)
        yield from told


class _Ids(NamedTuple):
    """What all spans of a session are named after."""

    conversation: str
    trace: str

    def span(self, lane: str, at: int | str) -> str:
        """A span's id: the lane's own for 0, else that of the span at an event of the lane."""
        return hashlib.sha256(f"{self.trace}\0{lane}\0{at}".encode()).hexdigest()[:16]


def _agent(of: Exported, trace: Trace, lane: Lane, bare: Span, told: list[Span]) -> Span:
    root = bare.parent is None
    name = agent_of(of, trace) if root else lane.agent
    given = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": name,
        "gen_ai.conversation.id": of.id,
        f"{OWN}.lane": lane.id,
    }
    if root:
        given["gen_ai.agent.version"] = version_of(of)
        given["gen_ai.request.model"] = model_of(of, trace)
        given[f"{OWN}.session"] = _text(kept(of))
        if (system := system_of(of)) is not None:
            given["gen_ai.system_instructions"] = _text([{"type": "text", "content": system}])
    times = [time for span in told for time in (span.start, span.end) if time]
    return msgspec.structs.replace(
        bare,
        name=f"invoke_agent {name}" if name else "invoke_agent",
        start=min(times, default=None),
        end=max(times, default=None),
        attributes=bare.attributes | _filled(given),
        failed=True if root and of.exit == "crashed" else None,
        error=of.cause if root and of.exit == "crashed" else None,
    )


class _Lane:
    """The spans of one lane while they are made."""

    def __init__(self, ids: _Ids, lane: Lane, after: int) -> None:
        self.ids = ids
        self.lane = lane
        self.after = after
        """Orders up to here are those of the agents' own spans."""
        self.heard: list[AnyEvent] = []
        self.said: list[AnyEvent] = []
        self.told = 0
        self.asked = False
        self.now: datetime | None = None

    def of(self, events: list[AnyEvent]) -> Iterator[Span]:
        for event in events:
            mine = _by_agent(event)
            if self.said and (not mine or event.turn != self.said[0].turn):
                yield from self._reply()
            (self.said if mine else self.heard).append(event)
        if self.said or self.heard:
            yield from self._reply()
        last = events[-1].number if events else 0
        yield from self._silent(len(self.lane.turns) + 1, last)

    def _silent(self, before: int, number: int) -> Iterator[Span]:
        """Turns without events come before the one that has some: they too were paid for."""
        while self.told + 1 < before and self.told < len(self.lane.turns):
            self.told += 1
            turn = self.lane.turns[self.told - 1]
            start = self._clock(turn.at)
            named = f"silent {self.told}"
            yield self._chat(named, number, self.told, (start, _end(start, turn)), {})

    def _reply(self) -> Iterator[Span]:
        """One reply and what it answered; then a span for everything it did."""
        first = (self.heard or self.said)[0]
        wanted = self.said[0].turn if self.said else None
        number = wanted if wanted is not None and wanted <= len(self.lane.turns) else 0
        yield from self._silent(number, first.number - 1)
        turn = self.lane.turns[number - 1] if number > self.told else Turn()
        start = self._clock(turn.at or first.at)
        end = _end(start, turn)
        calls = [(event, call_of(event, end or start)) for event in self.said if is_call(event)]
        known = {event.number: call for event, call in calls}
        heard = [self._part(event, start) for event in self.heard]
        said = [self._spoken(event, known, end or start) for event in self.said]
        messages = {
            "gen_ai.input.messages": _text(heard) if heard else None,
            "gen_ai.output.messages": _text([{"role": "assistant", "parts": said}])
            if said
            else None,
        }
        yield self._chat(str(first.number), first.number, number, (start, end), messages)
        for event, call in calls:
            yield self._tool(event, call)
        self.heard, self.said = [], []

    def _clock(self, at: datetime | None) -> datetime | None:
        """Times only known now and then are carried on: spans must have some."""
        self.now = at or self.now
        return self.now

    def _chat(
        self, name: str, number: int, turn: int, times: tuple[Any, Any], messages: dict[str, Any]
    ) -> Span:
        given: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.conversation.id": self.ids.conversation,
            "gen_ai.response.id": f"{self.lane.id}/{turn}" if turn else None,
            f"{OWN}.order": self.after + 4 * number + (0 if name.isdigit() else 3),
            f"{OWN}.turn": turn,
            **messages,
        }
        model = None
        if turn and (turn > self.told or not name.isdigit()):
            self.told = max(self.told, turn)
            reply = self.lane.turns[turn - 1]
            model = reply.model
            given |= {"gen_ai.request.model": model, **_usage(reply.usage)}
            given[f"{OWN}.reply"] = _text(msgspec.to_builtins(reply))
        own = self.ids.span(self.lane.id, f"chat {name}")
        return self._span(own, f"chat {model}" if model else "chat", times, given)

    def _tool(self, event: AnyEvent, call: Call) -> Span:
        start = self._clock(event.at)
        given = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.call.arguments": _text(call.arguments),
            "gen_ai.tool.call.result": call.result,
            "gen_ai.conversation.id": self.ids.conversation,
            f"{OWN}.order": self.after + 4 * event.number + 1,
            f"{OWN}.event": _text(call.more) if call.more else None,
        }
        times = (start, _later(start, event.seconds))
        failed = None if call.ok is None else not call.ok
        own = self.ids.span(self.lane.id, event.number)
        return self._span(own, f"execute_tool {call.name}", times, given, failed)

    def _span(
        self,
        own: str,
        name: str,
        times: tuple[Any, Any],
        given: dict[str, Any],
        failed: bool | None = None,
    ) -> Span:
        return Span(
            trace=self.ids.trace,
            id=own,
            parent=self.ids.span(self.lane.id, 0),
            name=name,
            start=times[0],
            end=times[1],
            attributes=_filled(given),
            failed=failed,
        )

    def _part(self, event: AnyEvent, at: datetime | None) -> dict[str, Any]:
        """What the agent was told: by the user, the system, or as a note."""
        user = isinstance(event, Message) and event.role == "user"
        role: Any = "user" if user else "system"
        intent: Any = "request" if user and not self.asked else None
        self.asked = self.asked or user
        text = getattr(event, "text", "")
        plain = Message(
            number=event.number, lane=event.lane, at=at, role=role, text=text, intent=intent
        )
        part = {"type": "text", "content": text, OWN: facts(event, plain)}
        return {"role": _ROLES[role], "parts": [part]}

    def _spoken(
        self, event: AnyEvent, calls: dict[int, Call], at: datetime | None
    ) -> dict[str, Any]:
        if event.number in calls:
            call = calls[event.number]
            return {
                "type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments
            }  # fmt: skip
        place: dict[str, Any] = {
            "number": event.number,
            "lane": event.lane,
            "turn": event.turn,
            "at": at,
        }
        text = getattr(event, "text", "")
        if isinstance(event, Thought):
            more = facts(event, Thought(**place, text=text))
            return {"type": "reasoning", "content": text, OWN: more}
        more = facts(event, Message(**place, role="agent", text=text))
        return {"type": "text", "content": text, OWN: more}


def _by_agent(event: AnyEvent) -> bool:
    if isinstance(event, Message):
        return event.role == "agent"
    return not isinstance(event, Note)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _end(start: datetime | None, turn: Turn) -> datetime | None:
    return _later(start, turn.seconds)


def _later(start: datetime | None, seconds: float | None) -> datetime | None:
    try:
        return None if start is None else start + timedelta(seconds=seconds or 0)
    except OverflowError:
        return start


def _usage(usage: Usage) -> dict[str, Any]:
    """The conventions count as input what is cached, too."""
    cached = (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0)
    asked = None if usage.input_tokens is None else usage.input_tokens + cached
    return {
        "gen_ai.usage.input_tokens": asked,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        "gen_ai.usage.cost": usage.cost,
    }


def _json(span: Span) -> dict[str, Any]:
    """A span as OTLP's JSON has it: numbers of nanoseconds as text, ids in hex."""
    status: dict[str, Any] = {}
    if span.failed is not None:
        status = _filled({"code": 2 if span.failed else 1, "message": span.error})
    return _filled(
        {
            "traceId": span.trace,
            "spanId": span.id,
            "parentSpanId": span.parent,
            "name": span.name,
            "kind": 3 if span.name.startswith("chat") else 1,
            "startTimeUnixNano": _nanoseconds(span.start),
            "endTimeUnixNano": _nanoseconds(span.end or span.start),
            "attributes": [
                {"key": key, "value": _value(value)} for key, value in span.attributes.items()
            ],
            "status": status or None,
        }
    )


def _nanoseconds(at: datetime | None) -> str:
    return "0" if at is None else str((at - _EPOCH) // timedelta(microseconds=1) * 1000)


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
    return {"stringValue": str(value)}
