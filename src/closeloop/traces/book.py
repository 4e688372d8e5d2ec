"""The book of a recording: what all its lanes write into, from whatever thread."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from closeloop.model import trace as events
from closeloop.model.session import Session
from closeloop.model.trace import Turn
from closeloop.traces.builder import Builder
from closeloop.traces.texts import clean, shortened

READER, VERSION = "recording", 1
DEPTH = 12
"""Deeper values of callers, which may hold themselves, are told as Python prints them."""


class Book:
    """A trace in the making, under a lock."""

    def __init__(self) -> None:
        self.builder = Builder(READER, VERSION)
        self.lock = threading.Lock()
        self.started = now()

    def add(self, kind: Any, fields: dict[str, Any]) -> int:
        safe = {name: _field(value) for name, value in fields.items()}
        with self.lock:
            number = self.builder.number
            self.builder.events.append(kind(number=number, **safe))
            return number

    def turn(self, lane: str, turn: Turn) -> int:
        with self.lock:
            return self.builder.turn(lane, turn)

    def hand_over(self, place: dict[str, Any], agent: str, brief: str) -> tuple[int, str]:
        """Open a lane for another agent; the number of the handoff, and the lane."""
        number = self.add(events.Handoff, {**place, "brief": brief})
        lane = f"{agent} {number}"
        with self.lock:
            self.builder.lane(lane, place["lane"], agent)
            self.builder.finish(self.builder.events[number - 1], child=lane)
        return number, lane

    def take_back(self, number: int, report: str | None, ok: bool) -> None:
        with self.lock:
            event = self.builder.events[number - 1]
            seconds = (now() - event.at).total_seconds() if event.at else None
            self.builder.finish(event, report=report, ok=ok, seconds=seconds)

    def session(
        self, agent: str, system: str | None, summary: str | None, cause: str | None
    ) -> Session:
        """All of it; `cause` is what broke it off."""
        with self.lock:
            trace, usage = self.builder.trace(), self.builder.usage()
        models = [turn.model for lane in trace.lanes for turn in lane.turns if turn.model]
        return Session(
            id=uuid.uuid4().hex,
            agent=agent,
            trace=trace,
            model=max(models, key=models.count, default=None),
            system=system,
            started=self.started,
            ended=now(),
            exit="finished" if cause is None else "crashed",
            cause=cause,
            usage=usage,
            summary=summary,
        )


def write(session: Session, folder: Path) -> Path:
    """The session as a file that `closeloop import` reads: whole, or not there."""
    from closeloop.traces.export import atif
    from closeloop.traces.redact import redact

    session, _ = redact(session)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{session.id}.json"
    draft = path.with_suffix(".part")
    draft.write_bytes(atif.export(session, session.trace))
    return draft.replace(path)


def _field(value: Any) -> Any:
    """A field of an event: what callers give is kept, whatever it is, and never breaks them."""
    if isinstance(value, list | tuple):
        return shortened(" ".join(str(_plain(word)) for word in value))
    return value if isinstance(value, datetime) else _plain(value)


def _plain(value: Any, depth: int = 0) -> Any:
    """A value that JSON has, for any that Python has."""
    match value:
        case None | bool() | float():
            return value
        case int() if abs(value) < 1 << 63:
            return value
        case bytes():
            return shortened(value.decode(errors="replace"))
        case Mapping() if depth < DEPTH:
            return {clean(str(name)): _plain(one, depth + 1) for name, one in value.items()}
        case list() | tuple() | set() if depth < DEPTH:
            return [_plain(one, depth + 1) for one in value]
    return shortened(str(value))


def now() -> datetime:
    return datetime.now(UTC)
