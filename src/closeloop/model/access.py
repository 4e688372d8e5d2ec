"""Who may do what over HTTP."""

from __future__ import annotations

from typing import Literal, get_args

from closeloop.model.record import Record, Time

Scope = Literal["read", "review", "ingest", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)


class Token(Record):
    """A token as it is known here: the secret itself was shown once and is kept nowhere."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    at: Time
    revoked: Time | None = None
