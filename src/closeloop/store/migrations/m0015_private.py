"""Exact patches apart from the form that is shown, and what was purged."""

from __future__ import annotations

from sqlalchemy import Connection

from closeloop.store.fact_protection import allow_changes
from closeloop.store.plan_section import split_stored_changes

STATEMENTS: tuple[str, ...] = (
    """CREATE TABLE private_bodies (
        owner {text} NOT NULL PRIMARY KEY,
        body {bytes} NOT NULL
    )""",
    """CREATE TABLE purges (
        number {number},
        at BIGINT NOT NULL,
        who {text} NOT NULL,
        kind {text} NOT NULL,
        records BIGINT NOT NULL,
        places {text} NOT NULL,
        digest {text} NOT NULL
    )""",
)
FACTS: tuple[str, ...] = ("private_bodies", "purges")


def rewrite(connection: Connection) -> None:
    """Redact the patches that older releases stored; the exact ones become private."""
    with allow_changes(connection, ("attempt_bodies", "subagent_executions")):
        split_stored_changes(connection)
