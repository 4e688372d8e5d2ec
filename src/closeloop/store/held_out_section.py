"""What is held out, and the ledger of looks at it."""

from __future__ import annotations

from sqlalchemy import func, insert, select

from closeloop.records.experiment_plan import HeldOutRun
from closeloop.store.record_bodies import pack_record
from closeloop.store.schema import looks, tasks
from closeloop.store.store_section import StoreSection


class HeldOutSection(StoreSection):
    """The part of an open store that is about held-out tasks."""

    def list_sealed_digests(self) -> frozenset[str]:
        """Digests of the tasks that are held out, as they were last said to be."""
        newest = select(func.max(tasks.c.number)).group_by(tasks.c.digest)
        query = select(tasks.c.digest).where(
            tasks.c.number.in_(newest), tasks.c.split == "held-out"
        )
        return frozenset(self._read(lambda on: on.execute(query).scalars().all()))

    def add_unsealing(self, look: HeldOutRun) -> None:
        columns = {
            "at": look.at,
            "tasks": look.tasks,
            "change": look.change,
            "body": pack_record(look),
        }
        self._write(lambda on: on.execute(insert(looks), columns))

    def list_unsealings(self) -> list[HeldOutRun]:
        """All of them, the latest first."""
        query = select(looks.c.body).order_by(looks.c.number.desc())
        return self._load_records(query, HeldOutRun)
