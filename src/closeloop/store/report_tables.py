"""The table of what checks said: a part of the schema with a file of its own."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, LargeBinary, Table, Text

from closeloop.store.schema import Moment, metadata

reports = Table(
    "reports",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("repo", Text),
    Column("title", Text, nullable=False),
    Column("base", Text),
    Column("head", Text),
    Column("attempt", Text),
    Column("level", Text),
    Column("verdict", Text, nullable=False),
    Column("findings", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
