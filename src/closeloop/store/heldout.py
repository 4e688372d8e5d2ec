"""What is held out, and the ledger of looks at it."""

from __future__ import annotations

from sqlalchemy import func, insert, select

from closeloop.model.look import Look
from closeloop.store.bodies import pack
from closeloop.store.part import Part
from closeloop.store.schema import looks, tasks


class HeldOut(Part):
    """The part of an open store that is about held-out tasks."""

    def sealed(self) -> frozenset[str]:
        """Digests of the tasks that are held out, as they were last said to be."""
        newest = select(func.max(tasks.c.number)).group_by(tasks.c.digest)
        query = select(tasks.c.digest).where(
            tasks.c.number.in_(newest), tasks.c.split == "held-out"
        )
        return frozenset(self._read(lambda on: on.execute(query).scalars().all()))

    def add_look(self, look: Look) -> None:
        columns = {
            "at": look.at,
            "tasks": look.tasks,
            "change": look.change,
            "body": pack(look),
        }
        self._write(lambda on: on.execute(insert(looks), columns))

    def looks(self) -> list[Look]:
        """All of them, the latest first."""
        query = select(looks.c.body).order_by(looks.c.number.desc())
        return self._records(query, Look)
