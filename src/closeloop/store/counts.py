"""What lists and overviews count: findings by variant, changes by what became of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sqlalchemy import func, select

from closeloop.model.delivery import Delivery
from closeloop.model.record import Record
from closeloop.model.variant import Experiment
from closeloop.store.part import Part
from closeloop.store.rows import counting
from closeloop.store.schema import attempts, deliveries, grades, measurements

_SHOWN = ("task", "task_digest", "variant", "user")


class Delivered(Record):
    """A change that people had to decide about, and what they decided."""

    number: int
    """Its place in the store: the next page begins below it."""
    delivery: Delivery
    task: str | None = None
    task_digest: str | None = None
    variant: str | None = None
    """The variant's digest."""
    user: str | None = None


class Counts(Part):
    """The part of an open store that counts."""

    def findings(self) -> Counter[tuple[str | None, str]]:
        """Attempts by the digest of their variant, None for sessions, and by what was found."""
        told = measurements.c
        last = select(func.max(told.number)).group_by(told.attempt)
        query = (
            select(attempts.c.variant, told.found, func.count())
            .join(attempts, attempts.c.id == told.attempt)
            .where(told.number.in_(last), told.findings > 0)
            .group_by(attempts.c.variant, told.found)
        )
        found: Counter[tuple[str | None, str]] = Counter()
        for variant, rules, count in self._read(lambda on: on.execute(query).all()):
            for rule in rules.split():
                found[variant, rule] += count
        return found

    def delivered(self, limit: int, below: int | None = None) -> list[Delivered]:
        """Changes of which the newest thing was learned last, first."""
        told, other = deliveries.c, deliveries.alias().c
        newer = select(other.number).where(other.attempt == told.attempt)
        newer = newer.where(other.number > told.number)
        fields = [told[name] for name in Delivery.__struct_fields__]
        query = (
            select(told.number, *fields, *(attempts.c[name] for name in _SHOWN))
            .join(attempts, attempts.c.id == told.attempt)
            .where(~newer.exists())
            .order_by(told.number.desc())
            .limit(limit)
        )
        if below is not None:
            query = query.where(told.number < below)
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [_delivered(row) for row in rows]

    def passed(self) -> list[tuple[str, str | None]]:
        """Attempts of experiments that changed something and passed, oldest first; their tasks."""
        table = attempts.c
        query = counting().with_only_columns(
            table.id, table.task_digest, maintain_column_froms=True
        )
        query = query.where(table.origin == "experiment", table.files_changed > 0)
        query = query.where(grades.c.outcome == "pass")
        query = query.order_by(None).order_by(table.started, table.id)
        return [tuple(row) for row in self._read(lambda on: on.execute(query).all())]

    def filled(self, experiment: Experiment) -> int:
        """Places of an experiment that an attempt fills which the machine did not fail."""
        table = attempts.c
        places = (
            select(table.task_digest, table.variant, table.number)
            .where(table.task_digest.in_(experiment.tasks), table.variant.in_(experiment.variants))
            .where(table.number <= experiment.repeats, table.exit != "machine")
            .distinct()
            .subquery()
        )
        query = select(func.count()).select_from(places)
        return int(self._read(lambda on: on.execute(query).scalar()) or 0)


def _delivered(row: Any) -> Delivered:
    return Delivered(
        number=row["number"],
        delivery=Delivery(**{name: row[name] for name in Delivery.__struct_fields__}),
        **{name: row[name] for name in _SHOWN},
    )
