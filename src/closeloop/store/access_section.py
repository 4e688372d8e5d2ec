"""Tokens and logins, by the hash of their secret."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, insert, select

from closeloop.records.errors import unknown_name_error
from closeloop.records.settings import AccessToken
from closeloop.store.access_tables import logins, revocations, tokens
from closeloop.store.fact_rows import insert_new_rows
from closeloop.store.store_section import StoreSection


class AccessSection(StoreSection):
    """The part of an open store that is about who may come in."""

    def save_token(self, token: AccessToken, secret: str) -> None:
        columns = {
            "id": token.id,
            "name": token.name,
            "scopes": " ".join(token.scopes),
            "hash": hash_secret(secret),
            "at": token.at,
        }
        self._write(lambda on: on.execute(insert(tokens), columns) and None)

    def list_tokens(self) -> list[AccessToken]:
        """All of them, also those that no longer hold, the newest first."""
        query = _select_tokens().order_by(tokens.c.number.desc())
        return [_token_from_row(row) for row in self._read(lambda on: on.execute(query).all())]

    def find_token(
        self, *, secret: str | None = None, name: str | None = None
    ) -> AccessToken | None:
        """The one with this secret, or this id, if it still holds."""
        query = _select_tokens().where(revocations.c.at.is_(None))
        if secret is not None:
            query = query.where(tokens.c.hash == hash_secret(secret))
        if name is not None:
            query = query.where(tokens.c.id == name)
        row = self._read(lambda on: on.execute(query).first())
        return None if row is None else _token_from_row(row)

    def revoke_token(self, name: str, at: datetime) -> None:
        """From now on neither the token nor a login by it opens anything."""

        def work(on: Connection) -> None:
            token_ids = list(on.execute(select(tokens.c.id)).scalars())
            if name not in token_ids:
                raise unknown_name_error("token", name, token_ids)
            _add_revocation(on, name, at)

        self._write(work)

    def save_login(self, secret: str, token: str, until: datetime) -> None:
        """Let the browser that has this secret in, as long as the token holds."""
        columns = {"hash": hash_secret(secret), "token": token, "until": until}
        self._write(lambda on: on.execute(insert(logins), columns) and None)

    def find_login_token(self, secret: str, now: datetime) -> str | None:
        """The id of the token that a browser came in by."""
        is_own_login = logins.c.hash == hash_secret(secret)
        ended = select(revocations.c.at).where(revocations.c.revoked == logins.c.hash)
        query = select(logins.c.token).where(is_own_login, logins.c.until >= now, ~ended.exists())
        token_id: str | None = self._read(lambda on: on.execute(query).scalar())
        return token_id

    def revoke_login(self, secret: str, at: datetime) -> None:
        self._write(lambda on: _add_revocation(on, hash_secret(secret), at))


def hash_secret(secret: str) -> str:
    """Secrets here are long and random: a plain hash cannot be guessed back."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _add_revocation(connection: Connection, name: str, at: datetime) -> None:
    insert_new_rows(connection, revocations, [{"revoked": name, "at": at}])


def _select_tokens() -> Select[Any]:
    fields = (tokens.c.id, tokens.c.name, tokens.c.scopes, tokens.c.at)
    query = select(*fields, revocations.c.at.label("revoked"))
    return query.outerjoin_from(tokens, revocations, revocations.c.revoked == tokens.c.id)


def _token_from_row(row: Any) -> AccessToken:
    return AccessToken(
        id=row.id,
        name=row.name,
        scopes=tuple(row.scopes.split()),
        at=row.at,
        revoked=row.revoked,
    )
