"""The tables that are about orchestrated plans: a part of the schema with a file of its own."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, LargeBinary, Table, Text

from closeloop.store.schema import Moment, metadata

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
    Column("duration", Float, nullable=False),
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("cost", Float),
    Column("body", LargeBinary, nullable=False),
    Column("trace", LargeBinary),
    Column("exchanges", LargeBinary),
)
