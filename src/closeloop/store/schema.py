"""The tables as queries see them; `migrations` creates them.

Every row is a fact, added and never changed, except work in progress (`jobs`, `inbox`, `places`),
and what is derived from facts (`column_segments`, `pulls`, `search_documents`). If content may be
saved again under the same name (a task with other tags, a grade by a better grader), rows have a
running number and the newest one counts. A body is the whole record; the other columns are for
searching.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from closeloop.store.record_bodies import nearest_utc
from closeloop.store.sql_expressions import BigInteger, Boolean, Float, LargeBinary, Text
from closeloop.store.sql_statements import Column, MetaData, Table

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _moment_to_number(value: datetime | None) -> int | None:
    return None if value is None else (nearest_utc(value) - _EPOCH) // _MICROSECOND


def _number_to_moment(value: int | None) -> datetime | None:
    return None if value is None else _EPOCH + value * _MICROSECOND


class Moment(BigInteger):
    """Microseconds since 1970: exact, sortable, the same on every engine."""

    to_database = staticmethod(_moment_to_number)
    from_database = staticmethod(_number_to_moment)


metadata = MetaData()

migrations = Table("closeloop_migrations", metadata, Column("number", BigInteger, primary_key=True))

blobs = Table(
    "blobs",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

tasks = Table(
    "tasks",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("grading", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("split", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

prompts = Table(
    "prompts",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("id", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

attempt_prompts = Table(
    "attempt_prompts",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("attempt", Text, nullable=False),
    Column("prompt", Text, nullable=False),
    Column("source", Text, nullable=False),
)

prompt_rollouts = Table(
    "prompt_rollouts",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("prompt", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("repo", Text),
    Column("since", Moment, nullable=False),
)

variants = Table(
    "variants",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("model", Text),
    Column("body", LargeBinary, nullable=False),
)

experiments = Table(
    "experiments",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("id", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

proofs = Table(
    "proofs",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("grading", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("before", Text),
    Column("reference", Text),
    Column("body", LargeBinary, nullable=False),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", Text, primary_key=True),
    Column("origin", Text, nullable=False),
    Column("title", Text),
    Column("detail", Text),
    Column("task", Text),
    Column("task_digest", Text),
    Column("variant", Text),
    Column("experiment", Text),
    Column("number", BigInteger, nullable=False),
    Column("retry", BigInteger, nullable=False),
    Column("parent", Text),
    Column("exit", Text, nullable=False),
    Column("cause", Text),
    Column("started", Moment),
    Column("ended", Moment),
    Column("seconds", Float),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cache_read_tokens", BigInteger),
    Column("cache_write_tokens", BigInteger),
    Column("cost", Float),
    Column("lanes", BigInteger),
    Column("turns", BigInteger),
    Column("events", BigInteger),
    Column("files_changed", BigInteger),
    Column("lines_added", BigInteger),
    Column("lines_removed", BigInteger),
    Column("user", Text),
)

attempt_bodies = Table(
    "attempt_bodies",
    metadata,
    Column("attempt", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("change", LargeBinary),
    Column("trace", LargeBinary),
)

grades = Table(
    "grades",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("attempt", Text, nullable=False),
    Column("grading", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("outcome_cause", Text),
    Column("reason", Text),
    Column("broken", BigInteger, nullable=False),
    Column("out_of_scope", BigInteger, nullable=False),
    Column("asked", Boolean),
    Column("fixed", Boolean),
    Column("files_precision", Float),
    Column("files_recall", Float),
    Column("similarity", Float),
    Column("before", Text),
    Column("body", LargeBinary, nullable=False),
    Column("evidence", Text),
)

jobs = Table(
    "jobs",
    metadata,
    Column("key", Text, primary_key=True),
    Column("owner", Text),
    Column("leased_until", Float),
    Column("state", Text, nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("attempt", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("model", Text),
    Column("repo", Text),
    Column("branch", Text),
    Column("body", LargeBinary, nullable=False),
)

imports = Table(
    "imports",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("path", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
    Column("parts", LargeBinary),
    Column("reader", Text),
    Column("version", BigInteger, nullable=False),
    Column("sessions", BigInteger, nullable=False),
)

spans = Table(
    "spans",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("trace", Text, nullable=False),
    Column("conversation", Text),
    Column("digest", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

measurements = Table(
    "measurements",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("attempt", Text, nullable=False),
    Column("basis", Text, nullable=False),
    Column("findings", BigInteger, nullable=False),
    Column("found", Text, nullable=False),
    Column("category", Text),
    Column("modes", Text, nullable=False),
    Column("examined", Text),
    Column("modules", BigInteger),
    Column("opened_precision", Float),
    Column("opened_recall", Float),
    Column("context_tokens", BigInteger),
    Column("drift_slope", Float),
    Column("iterations", BigInteger, nullable=False),
    Column("converged_after", BigInteger),
    Column("handoff_hits", Float),
    Column("handoff_of", BigInteger),
    Column("feedback_hits", Float),
    Column("feedback_of", BigInteger),
    Column("recovery_hits", Float),
    Column("recovery_of", BigInteger),
    Column("convergence_hits", Float),
    Column("convergence_of", BigInteger),
    Column("body", LargeBinary, nullable=False),
)

baselines = Table(
    "baselines",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("name", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

gate_reports = Table(
    "gate_reports",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("experiment", Text, nullable=False),
    Column("passed", Boolean, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

exchanges = Table(
    "exchanges",
    metadata,
    Column("attempt", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("path", Text, nullable=False),
    Column("status", BigInteger, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("first_byte_seconds", Float),
    Column("retries", BigInteger, nullable=False),
    Column("model", Text),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cache_read_tokens", BigInteger),
    Column("cache_write_tokens", BigInteger),
    Column("cost", Float),
    Column("cause", Text),
    Column("response", Text, nullable=False),
    Column("request", LargeBinary, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

insights = Table(
    "insights",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("attempt", Text, nullable=False),
    Column("repo", Text),
    Column("type", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("at", Moment, nullable=False),
)

pauses = Table(
    "pauses",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("experiment", Text, nullable=False),
    Column("paused", Boolean, nullable=False),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("attempt", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("passed", Boolean),
    Column("merged", Boolean),
    Column("corrected", Boolean),
    Column("reviewed", Boolean),
    Column("seconds_in_review", Float),
    Column("cycles", BigInteger),
    Column("regressed", Boolean),
    Column("files", BigInteger),
    Column("modules", BigInteger),
    Column("dependents", BigInteger),
    Column("risk", Text),
    Column("first_review", Boolean),
    Column("first_push", Boolean),
    Column("comments", BigInteger),
    Column("seconds_to_open", Float),
    Column("repeated", BigInteger),
    Column("repeated_unconfirmed", BigInteger),
)

looks = Table(
    "looks",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("tasks", Text, nullable=False),
    Column("change", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

trials = Table(
    "trials",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("name", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

assignments = Table(
    "assignments",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("trial", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("variant", Text, nullable=False),
    Column("at", Moment, nullable=False),
)

search_documents = Table(
    "search_documents",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("attempt", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("digest", Text, nullable=False),
)


# The tables of tokens and logins.

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


# The tables of private bodies and of purges.

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


# The table of check reports.

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
    Column("why", Text),
    Column("verdict", Text, nullable=False),
    Column("findings", BigInteger, nullable=False),
    Column("modes", Text),
    Column("examined", Text),
    Column("body", LargeBinary, nullable=False),
)


# The ledger of scores.

scores = Table(
    "scores",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("attempt", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("value", Float),
    Column("label", Text),
    Column("source", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("note", Text, nullable=False),
)


# The tables of evaluations, plans, pull requests, and team rules.


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


# The tables of reviews, rules and agents' context.

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

column_segments = Table(
    "column_segments",
    metadata,
    Column("layout", Text, primary_key=True),
    Column("place", BigInteger, primary_key=True),
    Column("source", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

vectors = Table(
    "vectors",
    metadata,
    Column("encoder", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

remark_answers = Table(
    "remark_answers",
    metadata,
    Column("model", Text, primary_key=True),
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


# The tables of orchestrated plans.

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

plan_tasks = Table(
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
    Column("pull", BigInteger, primary_key=True),
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
