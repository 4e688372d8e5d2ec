"""Tokens and logins, by the hash of their secret."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, insert, select

from closeloop.model.access import Token
from closeloop.model.errors import unknown
from closeloop.store.access_tables import logins, revocations, tokens
from closeloop.store.facts import add_new
from closeloop.store.part import Part


class Access(Part):
    """The part of an open store that is about who may come in."""

    def add(self, token: Token, secret: str) -> None:
        columns = {
            "id": token.id,
            "name": token.name,
            "scopes": " ".join(token.scopes),
            "hash": hashed(secret),
            "at": token.at,
        }
        self._write(lambda on: on.execute(insert(tokens), columns) and None)

    def tokens(self) -> list[Token]:
        """All of them, also those that no longer hold, the newest first."""
        query = _tokens().order_by(tokens.c.number.desc())
        return [_token(row) for row in self._read(lambda on: on.execute(query).all())]

    def token(self, *, secret: str | None = None, name: str | None = None) -> Token | None:
        """The one with this secret, or this id, if it still holds."""
        query = _tokens().where(revocations.c.at.is_(None))
        if secret is not None:
            query = query.where(tokens.c.hash == hashed(secret))
        if name is not None:
            query = query.where(tokens.c.id == name)
        row = self._read(lambda on: on.execute(query).first())
        return None if row is None else _token(row)

    def revoke(self, name: str, at: datetime) -> None:
        """From now on neither the token nor a login by it opens anything."""

        def work(on: Connection) -> None:
            known = list(on.execute(select(tokens.c.id)).scalars())
            if name not in known:
                raise unknown("token", name, known)
            _revoke(on, name, at)

        self._write(work)

    def log_in(self, secret: str, token: str, until: datetime) -> None:
        """Let the browser that has this secret in, as long as the token holds."""
        columns = {"hash": hashed(secret), "token": token, "until": until}
        self._write(lambda on: on.execute(insert(logins), columns) and None)

    def login(self, secret: str, now: datetime) -> str | None:
        """The id of the token that a browser came in by."""
        own = logins.c.hash == hashed(secret)
        ended = select(revocations.c.at).where(revocations.c.revoked == logins.c.hash)
        query = select(logins.c.token).where(own, logins.c.until >= now, ~ended.exists())
        found: str | None = self._read(lambda on: on.execute(query).scalar())
        return found

    def log_out(self, secret: str, at: datetime) -> None:
        self._write(lambda on: _revoke(on, hashed(secret), at))


def hashed(secret: str) -> str:
    """Secrets here are long and random: a plain hash cannot be guessed back."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _revoke(connection: Connection, name: str, at: datetime) -> None:
    add_new(connection, revocations, [{"revoked": name, "at": at}])


def _tokens() -> Select[Any]:
    fields = (tokens.c.id, tokens.c.name, tokens.c.scopes, tokens.c.at)
    query = select(*fields, revocations.c.at.label("revoked"))
    return query.outerjoin_from(tokens, revocations, revocations.c.revoked == tokens.c.id)


def _token(row: Any) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        scopes=tuple(row.scopes.split()),
        at=row.at,
        revoked=row.revoked,
    )
