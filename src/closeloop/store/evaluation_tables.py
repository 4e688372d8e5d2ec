"""The tables that are about judges: a part of the schema with a file of its own."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, LargeBinary, Table, Text

from closeloop.store.schema import Moment, metadata

judges = Table(
    "judges",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("id", Text, nullable=False),
    Column("rubric", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("id", Text, nullable=False),
    Column("at", Moment),
    Column("attempt", Text),
    Column("task", Text, nullable=False),
    Column("judge", Text, nullable=False),
    Column("passed", Boolean),
    Column("score", Float),
    Column("completeness", Float),
    Column("quality", Float),
    Column("relevance", Float),
    Column("same_family", Boolean),
    Column("issues", BigInteger, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cost", Float),
    Column("body", LargeBinary, nullable=False),
)

preferences = Table(
    "preferences",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("judge", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("winner", Text),
    Column("flipped", Boolean, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

labels = Table(
    "labels",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("item", Text, nullable=False),
    Column("rubric", Text, nullable=False),
    Column("asked", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("person", Text, nullable=False),
    Column("golden", Boolean, nullable=False),
    Column("at", Moment),
)

calibrations = Table(
    "calibrations",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("judge", Text, nullable=False),
    Column("rubric", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

analyses = Table(
    "analyses",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("name", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

answers = Table(
    "answers",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("judge", Text, nullable=False),
    Column("attempt", Text, nullable=False),
    Column("verdict", Text),
    Column("body", LargeBinary, nullable=False),
)
