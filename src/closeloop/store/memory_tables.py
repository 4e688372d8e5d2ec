"""The tables of reviews, rules and what agents were told."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, LargeBinary, Table, Text

from closeloop.store.schema import Moment, metadata

learned_rules = Table(
    "learned_rules",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("id", Text, nullable=False),
    Column("repo", Text),
    Column("state", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

rule_examples = Table(
    "rule_examples",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("rule", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

vectors = Table(
    "vectors",
    metadata,
    Column("encoder", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

repeats = Table(
    "repeats",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("key", Text, nullable=False),
    Column("rule", Text, nullable=False),
    Column("repo", Text, nullable=False),
    Column("pull", BigInteger),
    Column("attempt", Text),
    Column("state", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

offers = Table(
    "offers",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("key", Text, nullable=False),
    Column("repo", Text, nullable=False),
    Column("arm", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

corrections = Table(
    "corrections",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("id", Text, nullable=False),
    Column("repo", Text, nullable=False),
    Column("pull", BigInteger),
    Column("attempt", Text),
    Column("kind", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

human_reviews = Table(
    "human_reviews",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("item", Text, nullable=False),
    Column("reviewer", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("merge", Boolean),
    Column("at", Moment, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

review_assignments = Table(
    "review_assignments",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("item", Text, nullable=False),
    Column("reviewer", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("asked", Boolean, nullable=False),
)
