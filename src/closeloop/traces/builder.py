"""Put a trace together: lanes, turns and numbered events, calls paired with their results."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec.structs import replace

from closeloop.model.attempt import Usage
from closeloop.model.trace import AnyEvent, Intent, Lane, Message, Note, Trace, Turn
from closeloop.model.usage import total

ROOT = "root"


def since(before: Mapping[str, int], skipped: Mapping[str, int]) -> dict[str, int]:
    """What more was left out: one file may hold several traces."""
    return {why: many for why in skipped if (many := skipped[why] - before.get(why, 0)) > 0}


class Builder:
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
        self.lane()

    def lane(self, name: str = ROOT, parent: str | None = None, agent: str | None = None) -> str:
        """Open a lane, or say more of one that is open."""
        before = self._lanes.get(name, (None, None))
        self._lanes[name] = (parent or before[0], agent or before[1])
        self._turns.setdefault(name, [])
        return name

    def turn(self, lane: str, turn: Turn, message: str | None = None) -> int:
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

    def turns(self, lane: str = ROOT) -> int:
        """How many there are so far: the number of the last one."""
        return len(self._turns[lane])

    @property
    def number(self) -> int:
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

    def waiting(self, lane: str, call: str | None) -> AnyEvent | None:
        """The oldest action with this id that has no result yet: ids may be used again."""
        numbers = self._open.get((lane, call or ""))
        return self.events[numbers[0] - 1] if numbers else None

    def finish(self, event: AnyEvent, **result: object) -> AnyEvent:
        """The result of an action: the event with more said of it."""
        done = replace(event, **result)
        number = event.number
        self.events[number - 1] = done
        queue = self._open.get((event.lane, event.call or ""))
        if queue and number in queue:
            queue.remove(number)
        return done

    def hear(
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
        message = Message(number=self.number, lane=lane, at=at, role=role, text=text, intent=intent)
        return self.add(message)

    def note(self, text: str, *, about: str, lane: str = ROOT, at: datetime | None = None) -> None:
        """Keep what has no other place."""
        self.add(Note(number=self.number, lane=lane, at=at, text=text, about=about))

    def trace(self, skipped: dict[str, int] | None = None) -> Trace:
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

    def usage(self) -> Usage:
        """All turns of all lanes."""
        return total(turn.usage for turns in self._turns.values() for turn in turns)
