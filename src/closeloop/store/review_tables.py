"""The tables of evaluations, plans, pull requests, and what reviewers taught."""

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


# The tables of reviews, rules and what agents were told.

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


# The tables that are about orchestrated plans: a part of the schema with a file of its own.

plans = Table(
    "orchestrator_plans",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("id", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("state", Text, nullable=False),
    Column("request", Text, nullable=False),
    Column("tasks", BigInteger, nullable=False),
    Column("overall_pass", Boolean),
    Column("summary", Text),
    Column("attempt", Text),
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("cost", Float),
    Column("duration", Float),
    Column("body", LargeBinary, nullable=False),
)

tasks = Table(
    "plan_tasks",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("plan", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("try", BigInteger, nullable=False),
    Column("at", Moment, nullable=False),
    Column("pass", Boolean),
    Column("score", Float),
    Column("completeness", Float),
    Column("quality", Float),
    Column("relevance", Float),
    Column("issues", Text, nullable=False),
    Column("ignored_feedback", Boolean, nullable=False),
    Column("evaluation", Text),
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("cost", Float),
    Column("duration", Float),
    Column("body", LargeBinary, nullable=False),
)

executions = Table(
    "subagent_executions",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("plan", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("try", BigInteger, nullable=False),
    Column("agent", Text, nullable=False),
    Column("model", Text),
    Column("exit", Text, nullable=False),
    Column("started", Moment, nullable=False),
    Column("duration", Float),
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("cost", Float),
    Column("body", LargeBinary, nullable=False),
    Column("trace", LargeBinary),
    Column("exchanges", LargeBinary),
)


# The tables of pull requests and of the log of events.

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
    Column("asked_by", Text),
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
    Column("files", BigInteger),
    Column("added", BigInteger),
    Column("removed", BigInteger),
    Column("has_change", Boolean, nullable=False),
    Column("version", BigInteger, nullable=False),
)

pull_changes = Table(
    "pull_changes",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("repo", Text, nullable=False),
    Column("pull", BigInteger, nullable=False),
    Column("head", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("files", BigInteger, nullable=False),
    Column("added", BigInteger),
    Column("removed", BigInteger),
    Column("body", LargeBinary, nullable=False),
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
