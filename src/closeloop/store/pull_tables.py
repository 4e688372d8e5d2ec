"""The tables of pull requests and of the log of events."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, LargeBinary, Table, Text

from closeloop.store.schema import Moment, metadata

arrivals = Table(
    "arrivals",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("source", Text, nullable=False),
    Column("delivery", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("at", Moment, nullable=False),
)

inbox = Table(
    "inbox",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("source", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

pull_facts = Table(
    "pull_facts",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("source", Text, nullable=False),
    Column("repo", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("pull", BigInteger),
    Column("sha", Text),
    Column("branch", Text),
    Column("at", Moment, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

pulls = Table(
    "pulls",
    metadata,
    Column("repo", Text, primary_key=True),
    Column("pull", BigInteger, primary_key=True, autoincrement=False),
    Column("source", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("url", Text),
    Column("author", Text),
    Column("agent", Text),
    Column("attempt", Text),
    Column("task", Text),
    Column("prompt", Text),
    Column("state", Text, nullable=False),
    Column("draft", Boolean, nullable=False),
    Column("branch", Text),
    Column("head", Text),
    Column("merge_commit", Text),
    Column("opened", Moment, nullable=False),
    Column("closed", Moment),
    Column("told", Moment, nullable=False),
    Column("rounds", BigInteger, nullable=False),
    Column("comments", BigInteger, nullable=False),
    Column("edits", BigInteger, nullable=False),
    Column("pointers", BigInteger, nullable=False),
    Column("first_push", Text),
    Column("last_push", Text),
    Column("risk", Text),
    Column("reviewed", Boolean, nullable=False),
    Column("version", BigInteger, nullable=False),
)

links = Table(
    "links",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("attempt", Text, nullable=False),
    Column("address", Text, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("kind", Text, nullable=False),
    Column("repo", Text),
    Column("pull", BigInteger),
    Column("task", Text),
    Column("attempt", Text),
    Column("details", Text, nullable=False),
)

places = Table(
    "places",
    metadata,
    Column("name", Text, primary_key=True),
    Column("place", Text, nullable=False),
)
