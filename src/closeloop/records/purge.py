"""What stands where a secret was removed."""

from __future__ import annotations

from closeloop.records.record import Record, Time


class Purge(Record):
    """A tombstone: who removed what kind of secret when, and from how many records."""

    at: Time
    who: str
    kind: str
    """`secret`: one that somebody gave; `known`: all forms that redaction knew then."""
    records: int = 0
    places: dict[str, int] = {}
    """Records by table."""
    digest: str = ""
    """Of the secret, salted; empty where many were removed at once."""
