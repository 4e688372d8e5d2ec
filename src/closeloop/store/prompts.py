"""Which prompts there are, and which attempts ran under them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, func, select

from closeloop.model.record import Record, Time
from closeloop.model.variant import PromptVersion, Variant
from closeloop.store.bodies import unpack
from closeloop.store.schema import Moment, attempts, prompts, variants

Do = Callable[[Callable[[Connection], Any]], Any]


class Worked(Record):
    """Attempts of one variant at one task."""

    variant: str
    task: str | None
    digest: str | None
    attempts: int
    first: Time | None
    last: Time | None


class Prompts:
    """The part of an open store that is about prompts."""

    def __init__(self, read: Do) -> None:
        self._read = read

    def all(self) -> list[PromptVersion]:
        """In the order they were first saved."""
        query = select(prompts.c.body).order_by(prompts.c.number)
        bodies = self._read(lambda on: on.execute(query).scalars().all())
        found = [unpack(body, PromptVersion) for body in bodies]
        return list({one.id: one for one in found}.values())

    def variants(self) -> list[Variant]:
        query = select(variants.c.body).order_by(variants.c.number)
        bodies = self._read(lambda on: on.execute(query).scalars().all())
        found = [unpack(body, Variant) for body in bodies]
        return list({one.digest: one for one in found}.values())

    def work(self) -> list[Worked]:
        """By variant and task: how many attempts, and when the first and the last began."""
        began = attempts.c.started
        first = func.min(began, type_=Moment)
        last = func.max(began, type_=Moment)
        keys = (attempts.c.variant, attempts.c.task, attempts.c.task_digest)
        query = select(*keys, func.count(), first, last).where(attempts.c.variant.is_not(None))
        rows = self._read(lambda on: on.execute(query.group_by(*keys)).all())
        return [Worked(**dict(zip(Worked.__struct_fields__, row, strict=True))) for row in rows]
