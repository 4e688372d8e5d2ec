"""How experiments go: whether they are paused, what they cost, what is in hand, what was usual."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import Connection, Select, func, select

from closeloop.records.attempt import Insight
from closeloop.records.record import Record
from closeloop.records.task import Experiment, Variant
from closeloop.store import fact_rows, job_leases, schema
from closeloop.store.attempt_rows import column_text
from closeloop.store.store_section import StoreSection


class AttemptAverages(Record):
    """What attempts took on average; None where none is known."""

    seconds: float | None = None
    cost: float | None = None


class ExperimentSection(StoreSection):
    """The part of an open store that is about experiments."""

    def set_paused(self, experiment: str, *, paused: bool) -> None:
        """From now on no process begins an attempt of it, or may again."""
        columns = {"experiment": experiment, "paused": paused}
        self._write(lambda on: fact_rows.append_fact(on, schema.pauses, ("experiment",), columns))

    def is_paused(self, experiment: str) -> bool:
        table = schema.pauses
        query = select(table.c.paused).where(table.c.experiment == experiment)
        query = query.order_by(table.c.number.desc()).limit(1)
        return bool(self._read(lambda on: on.execute(query).scalar()))

    def total_cost(self, experiment: Experiment) -> float | None:
        """What all tries at its places cost, as far as that is known."""
        table = schema.attempts
        query = select(func.sum(table.c.cost)).where(
            table.c.task_digest.in_(experiment.tasks),
            table.c.variant.in_(experiment.variants),
            table.c.number <= experiment.repeats,
        )
        cost_sum: float | None = self._read(lambda on: on.execute(query).scalar())
        return cost_sum

    def first_start_time(self, experiment: str) -> datetime | None:
        """When the first attempt that was made for it started."""
        table = schema.attempts
        query = select(func.min(table.c.started)).where(table.c.experiment == experiment)
        started: datetime | None = self._read(lambda on: on.execute(query).scalar())
        return started

    def list_claimed_jobs(self) -> list[str]:
        """The keys of jobs that somebody works on now."""
        keys: list[str] = self._read(job_leases.list_claimed_jobs)
        return keys

    def average_attempt(self, variant: Variant) -> AttemptAverages:
        """Of the same variant, or where it is new of the same agent and model."""
        table, other = schema.attempts, schema.variants
        means = select(func.avg(table.c.seconds), func.avg(table.c.cost))
        means = means.where(table.c.exit != "machine", table.c.origin == "experiment")
        similar_variants = select(other.c.digest).where(
            other.c.agent == variant.agent, other.c.model == variant.model
        )
        for condition in (table.c.variant == variant.digest, table.c.variant.in_(similar_variants)):
            query = means.where(condition)
            seconds, cost = self._read(partial(_fetch_one, query))
            if seconds is not None:
                return AttemptAverages(seconds=seconds, cost=cost)
        return AttemptAverages()

    def list_insights(
        self, *, attempt: str | None = None, repo: str | None = None
    ) -> list[Insight]:
        """Of an attempt or a repository, or all; the latest first."""
        table, query = schema.insights, _select_insights()
        if attempt is not None:
            query = query.where(table.c.attempt == attempt)
        if repo is not None:
            query = query.where(table.c.repo == repo)
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [Insight(**row) for row in rows]

    def list_attempt_insights(self, ids: Sequence[str]) -> list[Insight]:
        """Of some attempts, one after the other; the latest of each first."""
        column, query = schema.insights.c.attempt, _select_insights()

        def work(on: Connection) -> list[Any]:
            parts = (query.where(column.in_(part)) for part in fact_rows.split_values(ids))
            return [row for part in parts for row in on.execute(part).mappings()]

        insights_by_attempt: dict[str, list[Insight]] = {}
        for row in self._read(work):
            insights_by_attempt.setdefault(row["attempt"], []).append(Insight(**row))
        return [insight for name in ids for insight in insights_by_attempt.get(name, ())]


def _select_insights() -> Select[Any]:
    table = schema.insights
    fields = [table.c[name] for name in Insight.__struct_fields__]
    return select(*fields).order_by(table.c.at.desc(), table.c.number)


def _fetch_one(query: Select[Any], connection: Connection) -> Any:
    return connection.execute(query).one()


def add_insights(connection: Connection, insights: Sequence[Insight]) -> None:
    """Those of one attempt; what is known already stays as it is."""
    rows = [{**asdict(insight), "text": column_text(insight.text)} for insight in insights]
    fact_rows.insert_new_rows(connection, schema.insights, rows)
