"""What every part of an open store begins with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Select

from closeloop.records.record import Record
from closeloop.store.record_bodies import unpack_record

Kept = TypeVar("Kept", bound=Record)
TransactionRunner = Callable[[Callable[[Connection], Any]], Any]


class StoreSection:
    """Reads and writes in transactions of the store that it is a part of."""

    def __init__(self, read: TransactionRunner, write: TransactionRunner) -> None:
        self._read = read
        self._write = write

    def _load_records(self, query: Select[Any], kind: type[Kept]) -> list[Kept]:
        """What the bodies that a query finds were made of."""
        bodies = self._read(lambda on: on.execute(query).scalars().all())
        return [unpack_record(body, kind) for body in bodies]

    def _load_record(self, query: Select[Any], kind: type[Kept]) -> Kept | None:
        """The same of the first one; None where there is none."""
        body = self._read(lambda on: on.execute(query).scalar())
        return None if body is None else unpack_record(body, kind)
