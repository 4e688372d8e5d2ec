"""What is held out, and the ledger of looks at it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, func, insert, select

from closeloop.model.look import Look
from closeloop.store.bodies import pack, unpack
from closeloop.store.schema import looks, tasks

Do = Callable[[Callable[[Connection], Any]], Any]


class HeldOut:
    """The part of an open store that is about held-out tasks."""

    def __init__(self, read: Do, write: Do) -> None:
        self._read = read
        self._write = write

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
        bodies = self._read(lambda on: on.execute(query).scalars().all())
        return [unpack(body, Look) for body in bodies]
