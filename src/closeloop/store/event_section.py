"""The log of events: one after the other, read from any place on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, func, insert, select

from closeloop.records.session import LogEvent
from closeloop.store.attempt_rows import short_column_text
from closeloop.store.job_leases import build_insert
from closeloop.store.pull_tables import events, places
from closeloop.store.store_section import StoreSection

MAX_EVENTS = 500
# PostgreSQL gives numbers before others commit: who reads on must not step over one of those.
_EVENT_LOCK_KEY = 0x6576656E74


class EventSection(StoreSection):
    """The part of an open store that is the log."""

    def add(self, new: Sequence[LogEvent]) -> None:
        """Say what happened, in this order."""
        self._write(lambda on: add_events(on, new))

    def list_after(self, number: int, limit: int = MAX_EVENTS) -> list[LogEvent]:
        """What came after a place in the log, oldest first."""
        query = select(events).where(events.c.number > number)
        query = query.order_by(events.c.number).limit(limit)
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [_event_from_row(row) for row in rows]

    def last_number(self) -> int:
        """The place of the newest; 0 where there is none."""
        return int(
            self._read(lambda on: on.execute(select(func.max(events.c.number))).scalar()) or 0
        )

    def load_position(self, name: str) -> str | None:
        """How far somebody has come."""
        query = select(places.c.place).where(places.c.name == name)
        position: str | None = self._read(lambda on: on.execute(query).scalar())
        return position

    def list_positions(self, start: str) -> dict[str, str]:
        """How far everybody has come whose name begins so."""
        has_prefix = places.c.name.startswith(start, autoescape=True)
        query = select(places.c.name, places.c.place).where(has_prefix)
        return dict(self._read(lambda on: [tuple(row) for row in on.execute(query)]))

    def save_position(self, name: str, place: str) -> None:
        """Remember how far somebody has come."""

        def work(on: Connection) -> None:
            new = build_insert(on.dialect.name, places).values(name=name, place=place)
            on.execute(new.on_conflict_do_update(index_elements=["name"], set_={"place": place}))

        self._write(work)


def add_events(connection: Connection, new: Sequence[LogEvent]) -> None:
    """As part of what made them true."""
    if new:
        lock_event_numbers(connection)
        connection.execute(insert(events), [_event_columns(one) for one in new])


def lock_event_numbers(connection: Connection) -> None:
    """Until the transaction ends; SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_EVENT_LOCK_KEY})")


def _event_columns(event: LogEvent) -> dict[str, Any]:
    details = {
        name: short_column_text(value) if isinstance(value, str) else value
        for name, value in event.details.items()
    }
    return {
        "at": event.at,
        "kind": event.kind,
        "repo": short_column_text(event.repo),
        "pull": event.pull,
        "task": short_column_text(event.task),
        "attempt": event.attempt,
        "details": msgspec.json.encode(details).decode(),
    }


def _event_from_row(row: Any) -> LogEvent:
    details = msgspec.json.decode(row["details"])
    return LogEvent(**{**row, "details": details})
