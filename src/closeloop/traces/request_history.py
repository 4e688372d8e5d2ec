"""A dialogue that is told again with every request: each thing said or done is taken once."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from closeloop.records.trace import AnyEvent, Handoff, Message, Thought, ToolUse
from closeloop.traces.message_parts import MessagePart
from closeloop.traces.session_builder import ROOT_LANE, UNPAIRED_RESULT, SessionBuilder
from closeloop.traces.tool_calls import CallOrigin, event_from_call, result_fields
from closeloop.traces.trace_export import restore_event
from closeloop.traces.untrusted_json import storable_arguments, text_or_json


class RequestHistory:
    """Events of all lanes, and what was heard of them so far."""

    def __init__(self, builder: SessionBuilder) -> None:
        self.builder = builder
        self.system: str | None = None
        self._most: Counter[tuple[Any, ...]] = Counter()
        self._by_id: dict[tuple[str | None, str | None], deque[int]] = {}
        self._by_name: dict[tuple[str, str | None], deque[int]] = {}
        self._without_id: dict[tuple[str, str | None], deque[int]] = {}
        self._alike: dict[tuple[str, str | None, str], list[int]] = {}
        """Calls by what they say."""
        self._done: set[int] = set()
        self._stable = False
        """Calls keep their ids: then another one is another call, also in a shortened history."""

    def add_request(self, parts: Iterable[MessagePart], lane: str, at: datetime | None) -> None:
        """What a request repeats and adds: a part is new where it is there more often than ever."""
        here: dict[tuple[Any, ...], int] = {}
        calls: list[MessagePart] = []
        alike: Counter[tuple[Any, ...]] = Counter()
        for part in parts:
            if part.kind == "call":
                calls.append(part)
            key = _part_key(part, lane)
            times = here[key] = here.get(key, 0) + 1
            if times > self._most.get(key, 0):
                self._most[key] = times
                if part.kind == "call":
                    # Only now: most requests have no new one.
                    alike.update((one.name, text_or_json(one.arguments)) for one in calls)
                    calls.clear()
                if part.kind != "call" or not self._is_renamed_call(part, alike, lane):
                    self.add_part(part, lane, at)
            elif part.kind == "call" and part.id:
                self._stable = True

    def _is_renamed_call(
        self, part: MessagePart, alike: Counter[tuple[Any, ...]], lane: str
    ) -> bool:
        """Whether it is a call that was told before, with no id or another one."""
        written_arguments = text_or_json(part.arguments)
        known_numbers, place = (
            self._alike.get((lane, part.name, written_arguments), ()),
            alike[part.name, written_arguments],
        )
        if place > len(known_numbers):
            return False
        event = self.builder.events[known_numbers[place - 1] - 1]
        if event.call is not None and self._stable:
            return False
        if event.call is None:
            self.builder.replace_event(msgspec.structs.replace(event, call=part.id))
        for where in (lane, None) if part.id else ():
            _append_number(self._by_id, (where, part.id), event.number)
        return True

    def add_reply_part(
        self, part: MessagePart, lane: str, at: datetime | None, turn: int | None
    ) -> None:
        """What an agent says now: new, though it may have said the same before."""
        self.mark_known(part, lane)
        self.add_part(part, lane, at, turn)

    def is_known(self, part: MessagePart, lane: str) -> bool:
        """Whether it was told before."""
        return self._most[_part_key(part, lane)] > 0

    def mark_known(self, part: MessagePart, lane: str) -> None:
        """A part that a later request may repeat."""
        self._most[_part_key(part, lane)] += 1

    def add_part(
        self, part: MessagePart, lane: str, at: datetime | None, turn: int | None = None
    ) -> AnyEvent | None:
        """The event of a part; none where it is the system prompt or a result."""
        if part.kind == "result":
            event = self.find_open_call(lane, part)
            if event is not None:
                self.finish_call(event, part.text, part.ok)
            elif part.text and not self._is_repeated_result(lane, part):
                self.builder.add_note(part.text, UNPAIRED_RESULT, lane=lane)
            return None
        if part.kind == "call":
            return self._add_call(part, lane, at, turn)
        if part.kind == "unknown":
            self.builder.add_note(part.text, about=f"unknown: {part.name}"[:100], lane=lane, at=at)
            return None
        if part.role == "system" and part.own is None:
            self._add_system_prompt(part, lane, at)
            return None
        if not part.text and part.own is None:
            return None
        event = self._add_message(part, lane, at, turn)
        if part.own is not None:
            event = restore_event(event, part.own)
            self.builder.replace_event(event)
        return event

    def find_open_call(self, lane: str, call: MessagePart) -> AnyEvent | None:
        """The oldest call without a result that has this id, or this name where ids are missing."""
        if call.id:
            places = ((lane, call.id), (None, call.id))
            queues = [*map(self._by_id.get, places), self._without_id.get((lane, call.name))]
        else:
            queues = [self._by_name.get((lane, call.name))]
        for queue in queues:
            while queue and queue[0] in self._done:
                queue.popleft()
            if queue:
                return self.builder.events[queue[0] - 1]
        return None

    def complete_call(self, event: AnyEvent, call: MessagePart) -> AnyEvent:
        """A call whose arguments are known only where the tool was at work."""
        if (
            not isinstance(event, ToolUse)
            or event.arguments
            or not isinstance(call.arguments, dict)
        ):
            return event
        origin = CallOrigin(
            number=event.number, lane=event.lane, turn=event.turn, at=event.at, call=event.call
        )
        arguments = storable_arguments(call.arguments, self.builder.skipped)
        completed = event_from_call(event.name, arguments, origin)
        self.builder.replace_event(completed)
        return completed

    def finish_call(self, event: AnyEvent, output: str | None, ok: bool | None) -> AnyEvent:
        """A call's result; the answer to a question is what the user said."""
        self._done.add(event.number)
        output = None if output is None else self.builder.truncate_text(output)
        finished_event = self.builder.finish(event, **result_fields(event, output, ok))
        if isinstance(event, Message) and event.intent == "question" and output:
            self.builder.add_incoming_message(output, lane=event.lane, at=None, intent="answer")
        return finished_event

    def close_call(self, event: AnyEvent) -> None:
        """A call of which no result is still to come."""
        self._done.add(event.number)

    def _add_call(
        self, part: MessagePart, lane: str, at: datetime | None, turn: int | None
    ) -> AnyEvent:
        number = self.builder.next_number
        origin = CallOrigin(number=number, lane=lane, turn=turn, at=at, call=part.id)
        call_arguments = part.arguments
        if call_arguments is not None and not isinstance(call_arguments, dict):
            call_arguments = {"input": call_arguments} if call_arguments != "" else {}
        call_arguments = storable_arguments(call_arguments, self.builder.skipped)
        event = self.builder.add(event_from_call(part.name or "unknown", call_arguments, origin))
        self._alike.setdefault((lane, part.name, text_or_json(part.arguments)), []).append(number)
        if part.id:
            _append_number(self._by_id, (lane, part.id), number)
            _append_number(self._by_id, (None, part.id), number)
        else:
            _append_number(self._without_id, (lane, part.name), number)
        _append_number(self._by_name, (lane, part.name), number)
        _append_number(self._by_name, (lane, None), number)
        return event

    def _is_repeated_result(self, lane: str, part: MessagePart) -> bool:
        """Whether a result is one that is known, told again in other words."""
        return (None, part.id) in self._by_id or (lane, part.name) in self._by_name

    def _add_message(
        self, part: MessagePart, lane: str, at: datetime | None, turn: int | None
    ) -> AnyEvent:
        text = self.builder.truncate_text(part.text)
        number = self.builder.next_number
        place: dict[str, Any] = {"number": number, "lane": lane, "turn": turn, "at": at}
        if part.kind == "thought":
            return self.builder.add(Thought(**place, text=text))
        if part.role == "agent":
            return self.builder.add(Message(**place, role="agent", text=text))
        return self.builder.add_incoming_message(text, lane=lane, at=at, own=part.role == "system")

    def _add_system_prompt(self, part: MessagePart, lane: str, at: datetime | None) -> None:
        if lane == ROOT_LANE and self.system is None:
            self.system = self.builder.truncate_text(part.text)
        elif part.text != self.system:
            self.builder.add_note(part.text, "system prompt", lane=lane, at=at)


def handoff_brief(event: AnyEvent) -> str:
    """What a call that handed work over asked for."""
    if isinstance(event, Handoff):
        return event.brief
    call_input = getattr(event, "arguments", None) or getattr(event, "command", None) or ""
    if isinstance(call_input, dict):
        call_input = next((one for one in call_input.values() if isinstance(one, str)), call_input)
    return text_or_json(call_input)


def handoff_from_call(event: AnyEvent, child: str, brief: str = "") -> Handoff:
    """A call of which it turns out that another agent carried it out."""
    report = getattr(event, "report", getattr(event, "output", None))
    return Handoff(
        number=event.number, lane=event.lane, turn=event.turn, at=event.at, seconds=event.seconds,
        call=event.call, brief=brief or handoff_brief(event), child=child, report=report,
        ok=getattr(event, "ok", None),
    )  # fmt: skip


def _append_number(table: dict[Any, deque[int]], key: tuple[str | None, ...], number: int) -> None:
    queue = table.get(key)
    if queue is None:
        table[key] = deque((number,))
    else:
        queue.append(number)


def _part_key(part: MessagePart, lane: str) -> tuple[Any, ...]:
    """What tells a part from others; without an id, other agents may do and hear the same."""
    if part.id:
        return (part.kind, part.id)
    if part.kind == "call":
        return (lane, part.kind, part.name, text_or_json(part.arguments))
    where = lane if part.kind == "result" else None
    return (where, part.role, part.kind, part.name, part.text)
