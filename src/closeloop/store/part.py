"""What every part of an open store begins with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Select

from closeloop.model.record import Record
from closeloop.store.bodies import unpack

Kept = TypeVar("Kept", bound=Record)
Do = Callable[[Callable[[Connection], Any]], Any]


class Part:
    """Reads and writes in transactions of the store that it is a part of."""

    def __init__(self, read: Do, write: Do) -> None:
        self._read = read
        self._write = write

    def _records(self, query: Select[Any], kind: type[Kept]) -> list[Kept]:
        """What the bodies that a query finds were made of."""
        bodies = self._read(lambda on: on.execute(query).scalars().all())
        return [unpack(body, kind) for body in bodies]

    def _record(self, query: Select[Any], kind: type[Kept]) -> Kept | None:
        """The same of the first one; None where there is none."""
        body = self._read(lambda on: on.execute(query).scalar())
        return None if body is None else unpack(body, kind)
