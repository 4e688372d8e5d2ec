"""A dialogue that is told again with every request: each thing said or done is taken once."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from closeloop.model.trace import AnyEvent, Handoff, Message, Thought
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.calls import Origin, event_of
from closeloop.traces.otel.said import Said
from closeloop.traces.results import restored, result_of
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import arguments
from closeloop.traces.values import written


class Dialogue:
    """Events of all lanes, and what was heard of them so far."""

    def __init__(self, builder: Builder, skipped: dict[str, int]) -> None:
        self.builder = builder
        self.skipped = skipped
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

    def hear(self, parts: Iterable[Said], lane: str, at: datetime | None) -> None:
        """What a request repeats and adds: a part is new where it is there more often than ever."""
        here: dict[tuple[Any, ...], int] = {}
        calls: list[Said] = []
        alike: Counter[tuple[Any, ...]] = Counter()
        for part in parts:
            if part.kind == "call":
                calls.append(part)
            key = _key(part)
            times = here[key] = here.get(key, 0) + 1
            if times > self._most.get(key, 0):
                self._most[key] = times
                if part.kind == "call":
                    # Only now: most requests have no new one.
                    alike.update((one.name, written(one.arguments)) for one in calls)
                    calls.clear()
                if part.kind != "call" or not self._renamed(part, alike, lane):
                    self.add(part, lane, at)
            elif part.kind == "call" and part.id:
                self._stable = True

    def _renamed(self, part: Said, alike: Counter[tuple[Any, ...]], lane: str) -> bool:
        """Whether it is a call that was told before, with no id or another one."""
        given = written(part.arguments)
        known, place = self._alike.get((lane, part.name, given), ()), alike[part.name, given]
        if place > len(known):
            return False
        event = self.builder.events[known[place - 1] - 1]
        if event.call is not None and self._stable:
            return False
        if event.call is None:
            self.replace(msgspec.structs.replace(event, call=part.id))
        for where in (lane, None) if part.id else ():
            _queue(self._by_id, (where, part.id), event.number)
        return True

    def speak(self, part: Said, lane: str, at: datetime | None, turn: int | None) -> None:
        """What an agent says now: new, though it may have said the same before."""
        self.knows(part)
        self.add(part, lane, at, turn)

    def heard(self, part: Said) -> bool:
        """Whether it was told before."""
        return self._most[_key(part)] > 0

    def knows(self, part: Said) -> None:
        """A part that a later request may repeat."""
        self._most[_key(part)] += 1

    def add(
        self, part: Said, lane: str, at: datetime | None, turn: int | None = None
    ) -> AnyEvent | None:
        """The event of a part; none where it is the system prompt or a result."""
        if part.kind == "result":
            event = self.called(lane, part)
            if event is not None:
                self.finish(event, part.text, part.ok)
            elif part.text and not self._repeats(lane, part):
                self.builder.note(self._short(part.text), about="result without a call", lane=lane)
            return None
        if part.kind == "call":
            return self._call(part, lane, at, turn)
        if part.kind == "unknown":
            self.builder.note(part.text, about=f"unknown: {part.name}"[:100], lane=lane, at=at)
            return None
        if part.role == "system" and part.own is None:
            self._instruct(part, lane, at)
            return None
        if not part.text and part.own is None:
            return None
        event = self._message(part, lane, at, turn)
        if part.own is not None:
            event = restored(event, part.own)
            self.replace(event)
        return event

    def called(self, lane: str, call: Said) -> AnyEvent | None:
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

    def finish(self, event: AnyEvent, output: str | None, ok: bool | None) -> AnyEvent:
        """A call's result; the answer to a question is what the user said."""
        self._done.add(event.number)
        output = None if output is None else self._short(output)
        done = self.builder.finish(event, **result_of(event, output, ok))
        if isinstance(event, Message) and event.intent == "question" and output:
            self.builder.hear(output, lane=event.lane, at=None, intent="answer")
        return done

    def settle(self, event: AnyEvent) -> None:
        """A call of which no result is still to come."""
        self._done.add(event.number)

    def replace(self, event: AnyEvent) -> None:
        """More is known of an event."""
        self.builder.events[event.number - 1] = event

    def _call(self, part: Said, lane: str, at: datetime | None, turn: int | None) -> AnyEvent:
        number = self.builder.number
        origin = Origin(number=number, lane=lane, turn=turn, at=at, call=part.id)
        given = part.arguments
        if given is not None and not isinstance(given, dict):
            given = {"input": given} if given != "" else {}
        given = arguments(given, self.skipped)
        event = self.builder.add(event_of(part.name or "unknown", given, origin))
        self._alike.setdefault((lane, part.name, written(part.arguments)), []).append(number)
        if part.id:
            _queue(self._by_id, (lane, part.id), number)
            _queue(self._by_id, (None, part.id), number)
        else:
            _queue(self._without_id, (lane, part.name), number)
        _queue(self._by_name, (lane, part.name), number)
        _queue(self._by_name, (lane, None), number)
        return event

    def _repeats(self, lane: str, part: Said) -> bool:
        """Whether a result is one that is known, told again in other words."""
        return (None, part.id) in self._by_id or (lane, part.name) in self._by_name

    def _message(self, part: Said, lane: str, at: datetime | None, turn: int | None) -> AnyEvent:
        text = self._short(part.text)
        number = self.builder.number
        place: dict[str, Any] = {"number": number, "lane": lane, "turn": turn, "at": at}
        if part.kind == "thought":
            return self.builder.add(Thought(**place, text=text))
        if part.role == "agent":
            return self.builder.add(Message(**place, role="agent", text=text))
        return self.builder.hear(text, lane=lane, at=at, own=part.role == "system")

    def _instruct(self, part: Said, lane: str, at: datetime | None) -> None:
        if lane == ROOT and self.system is None:
            self.system = self._short(part.text)
        elif part.text != self.system:
            self.builder.note(self._short(part.text), about="system prompt", lane=lane, at=at)

    def _short(self, text: str) -> str:
        return shortened(text, self.skipped)


def brief_of(event: AnyEvent) -> str:
    """What a call that handed work over asked for."""
    if isinstance(event, Handoff):
        return event.brief
    given = getattr(event, "arguments", None) or getattr(event, "command", None) or ""
    if isinstance(given, dict):
        given = next((one for one in given.values() if isinstance(one, str)), given)
    return written(given)


def handed(event: AnyEvent, child: str, brief: str = "") -> Handoff:
    """A call of which it turns out that another agent carried it out."""
    report = getattr(event, "report", getattr(event, "output", None))
    return Handoff(
        number=event.number, lane=event.lane, turn=event.turn, at=event.at, seconds=event.seconds,
        call=event.call, brief=brief or brief_of(event), child=child, report=report,
        ok=getattr(event, "ok", None),
    )  # fmt: skip


def _queue(table: dict[Any, deque[int]], key: tuple[str | None, ...], number: int) -> None:
    queue = table.get(key)
    if queue is None:
        table[key] = deque((number,))
    else:
        queue.append(number)


def _key(part: Said) -> tuple[Any, ...]:
    if part.kind == "call" and not part.id:
        return (part.kind, part.name, written(part.arguments))
    if part.id:
        return (part.kind, part.id)
    return (part.role, part.kind, part.name, part.text)
