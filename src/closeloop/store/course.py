"""How experiments go: whether they are paused, what they cost, what is in hand, what was usual."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import Connection, Select, func, select

from closeloop.model.insight import Insight
from closeloop.model.record import Record
from closeloop.model.variant import Experiment, Variant
from closeloop.store import facts, jobs, schema
from closeloop.store.part import Part
from closeloop.store.rows import plain


class Usual(Record):
    """What attempts took on average; None where none is known."""

    seconds: float | None = None
    cost: float | None = None


class Course(Part):
    """The part of an open store that is about experiments."""

    def pause(self, experiment: str, *, paused: bool) -> None:
        """From now on no process begins an attempt of it, or may again."""
        columns = {"experiment": experiment, "paused": paused}
        self._write(lambda on: facts.append(on, schema.pauses, ("experiment",), columns))

    def is_paused(self, experiment: str) -> bool:
        table = schema.pauses
        query = select(table.c.paused).where(table.c.experiment == experiment)
        query = query.order_by(table.c.number.desc()).limit(1)
        return bool(self._read(lambda on: on.execute(query).scalar()))

    def spent(self, experiment: Experiment) -> float | None:
        """What all tries at its places cost, as far as that is known."""
        table = schema.attempts
        query = select(func.sum(table.c.cost)).where(
            table.c.task_digest.in_(experiment.tasks),
            table.c.variant.in_(experiment.variants),
            table.c.number <= experiment.repeats,
        )
        spent: float | None = self._read(lambda on: on.execute(query).scalar())
        return spent

    def begun(self, experiment: str) -> datetime | None:
        """When the first attempt that was made for it started."""
        table = schema.attempts
        query = select(func.min(table.c.started)).where(table.c.experiment == experiment)
        begun: datetime | None = self._read(lambda on: on.execute(query).scalar())
        return begun

    def in_hand(self) -> list[str]:
        """The keys of jobs that somebody works on now."""
        keys: list[str] = self._read(jobs.in_hand)
        return keys

    def usual(self, variant: Variant) -> Usual:
        """Of the same variant, or where it is new of the same agent and model."""
        table, other = schema.attempts, schema.variants
        means = select(func.avg(table.c.seconds), func.avg(table.c.cost))
        means = means.where(table.c.exit != "machine", table.c.origin == "experiment")
        alike = select(other.c.digest).where(
            other.c.agent == variant.agent, other.c.model == variant.model
        )
        for these in (table.c.variant == variant.digest, table.c.variant.in_(alike)):
            query = means.where(these)
            seconds, cost = self._read(partial(_one, query))
            if seconds is not None:
                return Usual(seconds=seconds, cost=cost)
        return Usual()

    def insights(self, *, attempt: str | None = None, repo: str | None = None) -> list[Insight]:
        """Of an attempt or a repository, or all; the latest first."""
        table, query = schema.insights, _insights()
        if attempt is not None:
            query = query.where(table.c.attempt == attempt)
        if repo is not None:
            query = query.where(table.c.repo == repo)
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [Insight(**row) for row in rows]

    def insights_of(self, ids: Sequence[str]) -> list[Insight]:
        """Of some attempts, one after the other; the latest of each first."""
        column, query = schema.insights.c.attempt, _insights()

        def work(on: Connection) -> list[Any]:
            parts = (query.where(column.in_(part)) for part in facts.pieces(ids))
            return [row for part in parts for row in on.execute(part).mappings()]

        said: dict[str, list[Insight]] = {}
        for row in self._read(work):
            said.setdefault(row["attempt"], []).append(Insight(**row))
        return [insight for name in ids for insight in said.get(name, ())]


def _insights() -> Select[Any]:
    table = schema.insights
    fields = [table.c[name] for name in Insight.__struct_fields__]
    return select(*fields).order_by(table.c.at.desc(), table.c.number)


def _one(query: Select[Any], connection: Connection) -> Any:
    return connection.execute(query).one()


def add_insights(connection: Connection, insights: Sequence[Insight]) -> None:
    """Those of one attempt; what is known already stays as it is."""
    rows = [{**asdict(insight), "text": plain(insight.text)} for insight in insights]
    facts.add_new(connection, schema.insights, rows)
