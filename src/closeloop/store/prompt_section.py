"""Which prompts there are, and which attempts ran under them."""

from __future__ import annotations

from sqlalchemy import func, select

from closeloop.records.record import Record, Time
from closeloop.records.task import PromptVersion
from closeloop.store.schema import Moment, attempts, prompts
from closeloop.store.store_section import StoreSection


class VariantTaskAttempts(Record):
    """Attempts of one variant at one task."""

    variant: str
    task: str | None
    digest: str | None
    attempts: int
    first: Time | None
    last: Time | None


class PromptSection(StoreSection):
    """The part of an open store that is about prompts."""

    def list_prompts(self) -> list[PromptVersion]:
        """In the order they were first saved."""
        query = select(prompts.c.body).order_by(prompts.c.number)
        return list({one.id: one for one in self._load_records(query, PromptVersion)}.values())

    def list_variant_attempts(self) -> list[VariantTaskAttempts]:
        """By variant and task: how many attempts, and when the first and the last began."""
        began = attempts.c.started
        first = func.min(began, type_=Moment)
        last = func.max(began, type_=Moment)
        keys = (attempts.c.variant, attempts.c.task, attempts.c.task_digest)
        query = select(*keys, func.count(), first, last).where(attempts.c.variant.is_not(None))
        rows = self._read(lambda on: on.execute(query.group_by(*keys)).all())
        return [
            VariantTaskAttempts(
                **dict(zip(VariantTaskAttempts.__struct_fields__, row, strict=True))
            )
            for row in rows
        ]
