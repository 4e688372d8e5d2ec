"""The book of a recording: what all its lanes write into, from whatever thread."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from closeloop.records import trace as events
from closeloop.records.session import Session
from closeloop.records.trace import Turn
from closeloop.text.untrusted import clean_unicode, truncate_middle
from closeloop.traces.trace_builder import TraceBuilder

READER, VERSION = "recording", 1
MAX_VALUE_DEPTH = 12
"""Deeper values of callers, which may hold themselves, are told as Python prints them."""


class LiveSessionBuilder:
    """A trace in the making, under a lock."""

    def __init__(self) -> None:
        self.builder = TraceBuilder(READER, VERSION)
        self.lock = threading.Lock()
        self.started = utc_now()

    def add_event(self, kind: Any, fields: dict[str, Any]) -> int:
        safe = {name: _normalise_field(value) for name, value in fields.items()}
        with self.lock:
            number = self.builder.next_number
            self.builder.events.append(kind(number=number, **safe))
            return number

    def add_turn(self, lane: str, turn: Turn) -> int:
        with self.lock:
            return self.builder.add_turn(lane, turn)

    def open_handoff(self, place: dict[str, Any], agent: str, brief: str) -> tuple[int, str]:
        """Open a lane for another agent; the number of the handoff, and the lane."""
        number = self.add_event(events.Handoff, {**place, "brief": brief})
        lane = f"{agent} {number}"
        with self.lock:
            self.builder.open_lane(lane, place["lane"], agent)
            self.builder.finish(self.builder.events[number - 1], child=lane)
        return number, lane

    def close_handoff(self, number: int, report: str | None, ok: bool) -> None:
        with self.lock:
            event = self.builder.events[number - 1]
            seconds = (utc_now() - event.at).total_seconds() if event.at else None
            self.builder.finish(event, report=report, ok=ok, seconds=seconds)

    def build_session(
        self, agent: str, system: str | None, summary: str | None, cause: str | None
    ) -> Session:
        """All of it; `cause` is what broke it off."""
        with self.lock:
            trace, usage = self.builder.build_trace(), self.builder.total_usage()
        models = [turn.model for lane in trace.lanes for turn in lane.turns if turn.model]
        return Session(
            id=uuid.uuid4().hex,
            agent=agent,
            trace=trace,
            model=max(models, key=models.count, default=None),
            system=system,
            started=self.started,
            ended=utc_now(),
            exit="finished" if cause is None else "crashed",
            cause=cause,
            usage=usage,
            summary=summary,
        )


def write_session_file(session: Session, folder: Path) -> Path:
    """The session as a file that `closeloop import` reads: whole, or not there."""
    from closeloop.text.redaction import redact_record
    from closeloop.traces.export import atif_export

    session, _ = redact_record(session)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{session.id}.json"
    draft = path.with_suffix(".part")
    draft.write_bytes(atif_export.export_atif(session, session.trace))
    return draft.replace(path)


def _normalise_field(value: Any) -> Any:
    """A field of an event: what callers give is kept, whatever it is, and never breaks them."""
    if isinstance(value, list | tuple):
        return truncate_middle(" ".join(str(_to_json_value(word)) for word in value))
    return value if isinstance(value, datetime) else _to_json_value(value)


def _to_json_value(value: Any, depth: int = 0) -> Any:
    """A value that JSON has, for any that Python has."""
    match value:
        case None | bool() | float():
            return value
        case int() if abs(value) < 1 << 63:
            return value
        case bytes():
            return truncate_middle(value.decode(errors="replace"))
        case Mapping() if depth < MAX_VALUE_DEPTH:
            return {
                clean_unicode(str(name)): _to_json_value(one, depth + 1)
                for name, one in value.items()
            }
        case list() | tuple() | set() if depth < MAX_VALUE_DEPTH:
            return [_to_json_value(one, depth + 1) for one in value]
    return truncate_middle(str(value))


def utc_now() -> datetime:
    return datetime.now(UTC)
