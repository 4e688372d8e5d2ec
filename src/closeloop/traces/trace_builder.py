"""Put a trace together: lanes, turns and numbered events, calls paired with their results."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec.structs import replace

from closeloop.records.attempt import Usage, sum_usage
from closeloop.records.trace import AnyEvent, Intent, Lane, Message, Note, Trace, Turn

ROOT_LANE = "root"


def skipped_since(before: Mapping[str, int], skipped: Mapping[str, int]) -> dict[str, int]:
    """What more was left out: one file may hold several traces."""
    return {why: many for why in skipped if (many := skipped[why] - before.get(why, 0)) > 0}


class TraceBuilder:
    """A trace in the making. Events are numbered in the order they are added."""

    def __init__(self, reader: str, version: int) -> None:
        self.reader = reader
        self.version = version
        self.events: list[AnyEvent] = []
        self._lanes: dict[str, tuple[str | None, str | None]] = {}
        self._turns: dict[str, list[Turn]] = {}
        self._messages: dict[tuple[str, str], int] = {}
        self._open: dict[tuple[str, str], list[int]] = {}
        """Numbers of the actions without a result, by lane and id."""
        self._asked: set[str] = set()
        self.open_lane()

    def open_lane(
        self, name: str = ROOT_LANE, parent: str | None = None, agent: str | None = None
    ) -> str:
        """Open a lane, or say more of one that is open."""
        before = self._lanes.get(name, (None, None))
        self._lanes[name] = (parent or before[0], agent or before[1])
        self._turns.setdefault(name, [])
        return name

    def add_turn(self, lane: str, turn: Turn, message: str | None = None) -> int:
        """Count a provider message; one with an id that was seen replaces what was known of it."""
        turns = self._turns[lane]
        if message is not None and (lane, message) in self._messages:
            place = self._messages[lane, message]
            turns[place - 1] = turn
            return place
        turns.append(turn)
        if message is not None:
            self._messages[lane, message] = len(turns)
        return len(turns)

    def count_turns(self, lane: str = ROOT_LANE) -> int:
        """How many there are so far: the number of the last one."""
        return len(self._turns[lane])

    @property
    def next_number(self) -> int:
        """The number of the next event."""
        return len(self.events) + 1

    def add(self, event: AnyEvent) -> AnyEvent:
        """Add an event made with this builder's `number`; one with a `call` awaits its result."""
        self.events.append(event)
        if (call := event.call) is not None:
            if waiting := self._open.get((event.lane, call)):
                waiting.append(event.number)
            else:
                self._open[event.lane, call] = [event.number]
        return event

    def find_open_call(self, lane: str, call: str | None) -> AnyEvent | None:
        """The oldest action with this id that has no result yet: ids may be used again."""
        numbers = self._open.get((lane, call or ""))
        return self.events[numbers[0] - 1] if numbers else None

    def finish(self, event: AnyEvent, **result: object) -> AnyEvent:
        """The result of an action: the event with more said of it."""
        finished_event = replace(event, **result)
        number = event.number
        self.events[number - 1] = finished_event
        queue = self._open.get((event.lane, event.call or ""))
        if queue and number in queue:
            queue.remove(number)
        return finished_event

    def add_incoming_message(
        self,
        text: str,
        *,
        lane: str,
        at: datetime | None,
        intent: Intent | None = None,
        own: bool = False,
        asks: bool = True,
    ) -> AnyEvent:
        """What a lane is told, by a user or its own program; the first that asks is its request."""
        if intent is None and asks and not own and lane not in self._asked:
            self._asked.add(lane)
            intent = "request"
        role: Literal["system", "user"] = "system" if own else "user"
        message = Message(
            number=self.next_number, lane=lane, at=at, role=role, text=text, intent=intent
        )
        return self.add(message)

    def add_note(
        self, text: str, *, about: str, lane: str = ROOT_LANE, at: datetime | None = None
    ) -> None:
        """Keep what has no other place."""
        self.add(Note(number=self.next_number, lane=lane, at=at, text=text, about=about))

    def build_trace(self, skipped: dict[str, int] | None = None) -> Trace:
        """What there is, in order."""
        return Trace(
            reader=self.reader,
            reader_version=self.version,
            lanes=tuple(
                Lane(id=name, parent=parent, agent=agent, turns=tuple(self._turns[name]))
                for name, (parent, agent) in self._lanes.items()
            ),
            events=tuple(self.events),
            skipped=dict(skipped or {}),
        )

    def total_usage(self) -> Usage:
        """All turns of all lanes."""
        return sum_usage(turn.usage for turns in self._turns.values() for turn in turns)
