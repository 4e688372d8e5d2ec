"""The log of events: one after the other, read from any place on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, func, insert, select

from closeloop.model.event import Event
from closeloop.store.jobs import upsert
from closeloop.store.part import Part
from closeloop.store.pull_tables import events, places
from closeloop.store.rows import line

AT_ONCE = 500
# PostgreSQL gives numbers before others commit: who reads on must not step over one of those.
_ONE_AT_A_TIME = 0x6576656E74


class Events(Part):
    """The part of an open store that is the log."""

    def add(self, new: Sequence[Event]) -> None:
        """Say what happened, in this order."""
        self._write(lambda on: add_events(on, new))

    def after(self, number: int, limit: int = AT_ONCE) -> list[Event]:
        """What came after a place in the log, oldest first."""
        query = select(events).where(events.c.number > number)
        query = query.order_by(events.c.number).limit(limit)
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [_event(row) for row in rows]

    def last(self) -> int:
        """The place of the newest; 0 where there is none."""
        return int(
            self._read(lambda on: on.execute(select(func.max(events.c.number))).scalar()) or 0
        )

    def place(self, name: str) -> str | None:
        """How far somebody has come."""
        query = select(places.c.place).where(places.c.name == name)
        found: str | None = self._read(lambda on: on.execute(query).scalar())
        return found

    def places(self, start: str) -> dict[str, str]:
        """How far everybody has come whose name begins so."""
        named = places.c.name.startswith(start, autoescape=True)
        query = select(places.c.name, places.c.place).where(named)
        return dict(self._read(lambda on: [tuple(row) for row in on.execute(query)]))

    def move(self, name: str, place: str) -> None:
        """Remember how far somebody has come."""

        def work(on: Connection) -> None:
            new = upsert(on.dialect.name, places).values(name=name, place=place)
            on.execute(new.on_conflict_do_update(index_elements=["name"], set_={"place": place}))

        self._write(work)


def add_events(connection: Connection, new: Sequence[Event]) -> None:
    """As part of what made them true."""
    if new:
        one_at_a_time(connection)
        connection.execute(insert(events), [_columns(one) for one in new])


def one_at_a_time(connection: Connection) -> None:
    """Until the transaction ends; SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ONE_AT_A_TIME})")


def _columns(event: Event) -> dict[str, Any]:
    told = {
        name: line(value) if isinstance(value, str) else value
        for name, value in event.details.items()
    }
    return {
        "at": event.at,
        "kind": event.kind,
        "repo": line(event.repo),
        "pull": event.pull,
        "task": line(event.task),
        "attempt": event.attempt,
        "details": msgspec.json.encode(told).decode(),
    }


def _event(row: Any) -> Event:
    details = msgspec.json.decode(row["details"])
    return Event(**{**row, "details": details})
