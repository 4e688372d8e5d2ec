"""What lists and overviews count: findings by variant, changes by what became of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sqlalchemy import func, select

from closeloop.records.pull_request import Delivery
from closeloop.records.record import Record
from closeloop.records.task import Experiment
from closeloop.store.attempt_rows import select_counted_attempts
from closeloop.store.schema import attempts, deliveries, grades, measurements
from closeloop.store.store_section import StoreSection

_ATTEMPT_FIELDS = ("task", "task_digest", "variant", "user")


class DeliveredChange(Record):
    """A change that people had to decide about, and what they decided."""

    number: int
    """Its place in the store: the next page begins below it."""
    delivery: Delivery
    task: str | None = None
    task_digest: str | None = None
    variant: str | None = None
    """The variant's digest."""
    user: str | None = None


class CountsSection(StoreSection):
    """The part of an open store that counts."""

    def count_findings(self) -> Counter[tuple[str | None, str]]:
        """Attempts by the digest of their variant, None for sessions, and by what was found."""
        columns = measurements.c
        last = select(func.max(columns.number)).group_by(columns.attempt)
        query = (
            select(attempts.c.variant, columns.found, func.count())
            .join(attempts, attempts.c.id == columns.attempt)
            .where(columns.number.in_(last), columns.findings > 0)
            .group_by(attempts.c.variant, columns.found)
        )
        finding_counts: Counter[tuple[str | None, str]] = Counter()
        for variant, rules, count in self._read(lambda on: on.execute(query).all()):
            for rule in rules.split():
                finding_counts[variant, rule] += count
        return finding_counts

    def list_deliveries(self, limit: int, below: int | None = None) -> list[DeliveredChange]:
        """Changes of which the newest thing was learned last, first."""
        columns, other = deliveries.c, deliveries.alias().c
        newer = select(other.number).where(other.attempt == columns.attempt)
        newer = newer.where(other.number > columns.number)
        fields = [columns[name] for name in Delivery.__struct_fields__]
        query = (
            select(columns.number, *fields, *(attempts.c[name] for name in _ATTEMPT_FIELDS))
            .join(attempts, attempts.c.id == columns.attempt)
            .where(~newer.exists())
            .order_by(columns.number.desc())
            .limit(limit)
        )
        if below is not None:
            query = query.where(columns.number < below)
        rows = self._read(lambda on: on.execute(query).mappings().all())
        return [_delivery_from_row(row) for row in rows]

    def list_passed_attempts(self) -> list[tuple[str, str | None]]:
        """Attempts of experiments that changed something and passed, oldest first; their tasks."""
        table = attempts.c
        query = select_counted_attempts().with_only_columns(
            table.id, table.task_digest, maintain_column_froms=True
        )
        query = query.where(table.origin == "experiment", table.files_changed > 0)
        query = query.where(grades.c.outcome == "pass")
        query = query.order_by(None).order_by(table.started, table.id)
        return [tuple(row) for row in self._read(lambda on: on.execute(query).all())]

    def count_filled_slots(self, experiment: Experiment) -> int:
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


def _delivery_from_row(row: Any) -> DeliveredChange:
    return DeliveredChange(
        number=row["number"],
        delivery=Delivery(**{name: row[name] for name in Delivery.__struct_fields__}),
        **{name: row[name] for name in _ATTEMPT_FIELDS},
    )
