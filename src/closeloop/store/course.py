"""How experiments go: whether they are paused, what they cost, what is in hand, what was usual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, func, literal_column, select

from closeloop.model.insight import Insight
from closeloop.model.record import Record
from closeloop.model.variant import Experiment, Variant
from closeloop.store import facts, schema
from closeloop.store.jobs import INSERT, NOW

Do = Callable[[Callable[[Connection], Any]], Any]


class Usual(Record):
    """What attempts took on average; None where none is known."""

    seconds: float | None = None
    cost: float | None = None


class Course:
    """The part of an open store that is about experiments."""

    def __init__(self, read: Do, write: Do) -> None:
        self._read = read
        self._write = write

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

    def in_hand(self) -> list[str]:
        """The keys of jobs that somebody works on now."""
        table = schema.jobs
        claimed = table.c.state == literal_column("'claimed'")

        def work(on: Connection) -> list[str]:
            alive = table.c.leased_until > NOW[on.dialect.name]
            return list(on.execute(select(table.c.key).where(claimed, alive)).scalars())

        keys: list[str] = self._read(work)
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
        table = schema.insights
        fields = [table.c[name] for name in Insight.__struct_fields__]
        query = select(*fields).order_by(table.c.at.desc(), table.c.number)
        if attempt is not None:
            query = query.where(table.c.attempt == attempt)
        if repo is not None:
            query = query.where(table.c.repo == repo)
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [Insight(**row) for row in rows]


def _one(query: Select[Any], connection: Connection) -> Any:
    return connection.execute(query).one()


def add_insights(connection: Connection, insights: Sequence[Insight]) -> None:
    """Those of one attempt; what is known already stays as it is."""
    for insight in insights:
        columns = {name: getattr(insight, name) for name in Insight.__struct_fields__}
        # A column holds no NUL and no half of a character.
        text = insight.text.replace("\0", "�").encode("utf-8", "replace").decode()
        statement = INSERT[connection.dialect.name](schema.insights).on_conflict_do_nothing()
        connection.execute(statement, columns | {"text": text})
