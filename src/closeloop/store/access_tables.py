"""The tables of tokens and logins: a part of the schema with a file of its own."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Table, Text

from closeloop.store.schema import Moment, metadata

tokens = Table(
    "tokens",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("at", Moment, nullable=False),
)

logins = Table(
    "logins",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("hash", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("until", Moment, nullable=False),
)

revocations = Table(
    "revocations",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("revoked", Text, nullable=False),
    Column("at", Moment, nullable=False),
)
