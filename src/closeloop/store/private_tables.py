"""The tables of what is kept but never shown, and of what was purged."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, LargeBinary, Table, Text

from closeloop.store.schema import Moment, metadata

private_bodies = Table(
    "private_bodies",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

purges = Table(
    "purges",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("who", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("places", Text, nullable=False),
    Column("digest", Text, nullable=False),
)
