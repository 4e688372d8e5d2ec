"""Who may do what over HTTP."""

from __future__ import annotations

from typing import Literal, get_args

from closeloop.records.record import Record, Time

AccessScope = Literal["read", "review", "ingest", "admin"]
ACCESS_SCOPES: tuple[AccessScope, ...] = get_args(AccessScope)


class AccessToken(Record):
    """A token as it is known here: the secret itself was shown once and is kept nowhere."""

    id: str
    name: str
    scopes: tuple[AccessScope, ...]
    at: Time
    revoked: Time | None = None
