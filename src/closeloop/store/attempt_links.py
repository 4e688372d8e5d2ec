"""Which recorded work names which address."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, insert

from closeloop.records.attempt import Attempt
from closeloop.store.attempt_rows import short_column_text
from closeloop.store.pull_tables import links


def add_links(connection: Connection, attempts: Iterable[Attempt]) -> None:
    """Of attempts that were just stored."""
    rows = [
        {"attempt": attempt.id, "address": short_column_text(address)}
        for attempt in attempts
        for address in dict.fromkeys(attempt.links.values())
        if "://" in address
    ]
    if rows:
        connection.execute(insert(links), rows)
