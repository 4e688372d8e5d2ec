"""Which prompts there are, and which attempts ran under them."""

from __future__ import annotations

from sqlalchemy import func, select

from closeloop.model.record import Record, Time
from closeloop.model.variant import PromptVersion
from closeloop.store.part import Part
from closeloop.store.schema import Moment, attempts, prompts


class Worked(Record):
    """Attempts of one variant at one task."""

    variant: str
    task: str | None
    digest: str | None
    attempts: int
    first: Time | None
    last: Time | None


class Prompts(Part):
    """The part of an open store that is about prompts."""

    def all(self) -> list[PromptVersion]:
        """In the order they were first saved."""
        query = select(prompts.c.body).order_by(prompts.c.number)
        return list({one.id: one for one in self._records(query, PromptVersion)}.values())

    def work(self) -> list[Worked]:
        """By variant and task: how many attempts, and when the first and the last began."""
        began = attempts.c.started
        first = func.min(began, type_=Moment)
        last = func.max(began, type_=Moment)
        keys = (attempts.c.variant, attempts.c.task, attempts.c.task_digest)
        query = select(*keys, func.count(), first, last).where(attempts.c.variant.is_not(None))
        rows = self._read(lambda on: on.execute(query.group_by(*keys)).all())
        return [Worked(**dict(zip(Worked.__struct_fields__, row, strict=True))) for row in rows]
