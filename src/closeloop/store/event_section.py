"""The event log; the results of steps; tokens and logins, by the hash of their secret."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from closeloop.records.errors import unknown_name_error
from closeloop.records.record import Record
from closeloop.records.settings import AccessToken
from closeloop.records.trace import LogEvent
from closeloop.store.attempt_rows import short_column_text
from closeloop.store.engine import Connection
from closeloop.store.fact_rows import StoreSection, insert_new_rows, insert_statement
from closeloop.store.record_bodies import pack_record, unpack_record
from closeloop.store.schema import events, logins, places, private_bodies, revocations, tokens
from closeloop.store.sql_expressions import SqlExpression, func
from closeloop.store.sql_statements import Select, insert, select

Kept = TypeVar("Kept", bound=Record)
MAX_EVENTS = 500
# PostgreSQL assigns numbers before commit: a reader must not skip one that commits late.
_EVENT_LOCK_KEY = 0x6576656E74


class EventSection(StoreSection):
    """The store's section for the event log."""

    def add(self, new_events: Sequence[LogEvent]) -> None:
        """Append events in this order."""
        self._write(lambda connection: add_events(connection, new_events))

    def list_after(self, number: int, limit: int = MAX_EVENTS) -> list[LogEvent]:
        """List the events after a position in the log, oldest first."""
        query = select(events).where(events.c.number > number)
        query = query.order_by(events.c.number).limit(limit)
        rows = self._read(lambda connection: connection.execute(query).mappings().all())
        return [_event_from_row(row) for row in rows]

    def last_number(self) -> int:
        """Return the number of the newest event; 0 if there is none."""
        return int(
            self._read(
                lambda connection: connection.execute(select(func.max(events.c.number))).scalar()
            )
            or 0
        )

    def load_position(self, name: str) -> str | None:
        """Return a reader's saved position; None if it has none."""
        query = select(places.c.place).where(places.c.name == name)
        position: str | None = self._read(lambda connection: connection.execute(query).scalar())
        return position

    def list_positions(self, start: str) -> dict[str, str]:
        """Return the positions of all readers whose name has this prefix."""
        has_prefix = places.c.name.startswith(start, autoescape=True)
        query = select(places.c.name, places.c.place).where(has_prefix)
        return dict(
            self._read(lambda connection: [tuple(row) for row in connection.execute(query)])
        )

    def save_position(self, name: str, position: str) -> None:
        """Save a reader's position."""

        def work(connection: Connection) -> None:
            statement = insert(places).values(name=name, place=position)
            connection.execute(
                statement.on_conflict_do_update(index_elements=["name"], set_={"place": position})
            )

        self._write(work)


class StepSection(StoreSection):
    """The store's section for work in steps: each result is saved once, with its events."""

    def save_step(self, key: str, body: Record, new_events: Sequence[LogEvent]) -> None:
        """Save a step's result with its events; an existing result stays unchanged."""
        row = {"owner": key, "body": pack_record(body)}

        def work(connection: Connection) -> None:
            if (
                connection.execute(select(private_bodies.c.owner).where(_is_step(key))).first()
                is None
            ):
                insert_new_rows(connection, private_bodies, [row])
                add_events(connection, new_events)

        self._write(work)

    def load_step(self, key: str, kind: type[Kept]) -> Kept | None:
        """Load a step's result; None if it is not done yet."""
        query = select(private_bodies.c.body).where(_is_step(key))
        body = self._read(lambda connection: connection.execute(query).scalar())
        return None if body is None else unpack_record(body, kind)

    def list_steps(self, start: str) -> list[str]:
        """List the step keys with this prefix."""
        is_named = private_bodies.c.owner.startswith(start, autoescape=True)
        query = select(private_bodies.c.owner).where(is_named).order_by(private_bodies.c.owner)
        return list(self._read(lambda connection: connection.execute(query).scalars().all()))


def delivery_step_key(delivery: str, name: str) -> str:
    """Return the key of a step of `closeloop deliver`."""
    return f"delivery/{delivery}/{name}"


def _is_step(key: str) -> SqlExpression:
    return private_bodies.c.owner == key


def add_events(connection: Connection, new_events: Sequence[LogEvent]) -> None:
    """Append events within the transaction that made them true."""
    if new_events:
        lock_event_numbers(connection)
        connection.execute(
            insert_statement(events), [_event_columns(event) for event in new_events]
        )


def lock_event_numbers(connection: Connection) -> None:
    """Lock event numbers until the transaction ends; SQLite has one writer anyway."""
    if connection.dialect == "postgresql":
        connection.execute_sql(f"SELECT pg_advisory_xact_lock({_EVENT_LOCK_KEY})")


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


# Tokens and logins, by the hash of their secret.


class AccessSection(StoreSection):
    """The store's section for access tokens and logins."""

    def save_token(self, token: AccessToken, secret: str) -> None:
        columns = {
            "id": token.id,
            "name": token.name,
            "scopes": " ".join(token.scopes),
            "hash": hash_secret(secret),
            "at": token.at,
        }
        self._write(lambda connection: connection.execute(insert(tokens), columns) and None)

    def list_tokens(self) -> list[AccessToken]:
        """List all tokens, also revoked ones, newest first."""
        query = _select_tokens().order_by(tokens.c.number.desc())
        return [
            _token_from_row(row)
            for row in self._read(lambda connection: connection.execute(query).all())
        ]

    def find_token(
        self, *, secret: str | None = None, name: str | None = None
    ) -> AccessToken | None:
        """Find the token with this secret or id; None if there is none or it is revoked."""
        query = _select_tokens().where(revocations.c.at.is_(None))
        if secret is not None:
            query = query.where(tokens.c.hash == hash_secret(secret))
        if name is not None:
            query = query.where(tokens.c.id == name)
        row = self._read(lambda connection: connection.execute(query).first())
        return None if row is None else _token_from_row(row)

    def revoke_token(self, name: str, revoked_at: datetime) -> None:
        """Revoke a token: neither it nor a login made with it gives access any more."""

        def work(connection: Connection) -> None:
            token_ids = list(connection.execute(select(tokens.c.id)).scalars())
            if name not in token_ids:
                raise unknown_name_error("token", name, token_ids)
            _add_revocation(connection, name, revoked_at)

        self._write(work)

    def save_login(self, secret: str, token: str, valid_until: datetime) -> None:
        """Save a login: a browser with this secret has access while the token is valid."""
        columns = {"hash": hash_secret(secret), "token": token, "until": valid_until}
        self._write(lambda connection: connection.execute(insert(logins), columns) and None)

    def find_login_token(self, secret: str, now: datetime) -> str | None:
        """Return the id of the token that a browser logged in with; None if the login has ended."""
        is_own_login = logins.c.hash == hash_secret(secret)
        revocation = select(revocations.c.at).where(revocations.c.revoked == logins.c.hash)
        query = select(logins.c.token).where(
            is_own_login, logins.c.until >= now, ~revocation.exists()
        )
        token_id: str | None = self._read(lambda connection: connection.execute(query).scalar())
        return token_id

    def revoke_login(self, secret: str, revoked_at: datetime) -> None:
        self._write(lambda connection: _add_revocation(connection, hash_secret(secret), revoked_at))


def hash_secret(secret: str) -> str:
    """Hash a secret; secrets here are long and random, so a plain SHA-256 is safe."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _add_revocation(connection: Connection, name: str, revoked_at: datetime) -> None:
    insert_new_rows(connection, revocations, [{"revoked": name, "at": revoked_at}])


def _select_tokens() -> Select:
    fields = (tokens.c.id, tokens.c.name, tokens.c.scopes, tokens.c.at)
    query = select(*fields, revocations.c.at.label("revoked"))
    return query.outerjoin_from(tokens, revocations, revocations.c.revoked == tokens.c.id)


def _token_from_row(row: Any) -> AccessToken:
    return AccessToken(
        id=row.id, name=row.name, scopes=tuple(row.scopes.split()), at=row.at, revoked=row.revoked
    )
