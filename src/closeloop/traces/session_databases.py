"""Sessions that lie in a database: which sources are one, and what a table has by id."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

from closeloop.records.protocols import RecordingSource
from closeloop.sqlite_files import SQLITE_MAGIC

Value = TypeVar("Value")


class LazyMapping(Mapping[str, Value]):
    """What a table has by id, read when it is asked for."""

    def __init__(self, ids: Collection[str], read: Callable[[str], Value]) -> None:
        self._ids = ids
        self._read = read

    def __getitem__(self, one: str) -> Value:
        if one not in self._ids:
            raise KeyError(one)
        return self._read(one)

    def __contains__(self, one: object) -> bool:
        return one in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


def is_database(source: RecordingSource) -> bool:
    """By its first bytes."""
    return source.head.startswith(SQLITE_MAGIC)
