"""SQLite files that others wrote and may be writing: opened to look, never to change."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from closeloop.model.protocols import Source

Value = TypeVar("Value")

MAGIC = b"SQLite format 3\x00"
VALUE_BYTES = 64 << 20
COPY_BYTES = 4 << 30


class OnDemand(Mapping[str, Value]):
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


def is_database(source: Source) -> bool:
    """By its first bytes."""
    return source.head.startswith(MAGIC)


def journal(path: Path) -> Path | None:
    """The file with changes that are not in the database yet, where there is one."""
    beside = path.with_name(path.name + "-wal")
    try:
        return beside if beside.stat().st_size else None
    except OSError:
        return None


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The database as it stands, its journal included; sqlite3.Error or OSError when it cannot."""
    pending = journal(path)
    if pending is None:
        with closing(_connected(path, "mode=ro&immutable=1")) as base:
            yield base
        return
    if path.stat().st_size + pending.stat().st_size > COPY_BYTES:
        raise OSError("the database is too large to be copied")
    # Reading a journal writes beside it: that is done to a copy.
    with tempfile.TemporaryDirectory(prefix="closeloop-") as folder:
        copy = Path(folder) / "copy.db"
        shutil.copyfile(path, copy)
        shutil.copyfile(pending, copy.with_name("copy.db-wal"))
        with closing(_connected(copy, "mode=rw")) as base:
            yield base


def _connected(path: Path, how: str) -> sqlite3.Connection:
    base = sqlite3.connect(f"{path.resolve().as_uri()}?{how}", uri=True, timeout=1)
    try:
        base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
        # Nothing that the file's own schema says is run.
        base.execute("PRAGMA trusted_schema = OFF")
        base.execute("PRAGMA query_only = ON")
        base.execute("PRAGMA cell_size_check = ON")
        base.text_factory = lambda value: value.decode(errors="replace")
    except BaseException:
        base.close()
        raise
    return base


def has_tables(path: Path, tables: dict[str, Sequence[str]]) -> bool:
    """Whether these are there as plain tables with these columns."""
    try:
        with opened(path) as base:
            return all(set(names) <= columns(base, table) for table, names in tables.items())
    except (sqlite3.Error, OSError, ValueError):
        return False


def columns(base: sqlite3.Connection, table: str) -> set[str]:
    """The columns of a plain table: none of a view, of a virtual table, of a computed one."""
    found = base.execute(
        "SELECT type, sql FROM sqlite_master WHERE name = ? AND type IN ('table', 'view')", (table,)
    ).fetchall()
    if len(found) != 1 or found[0][0] != "table":
        return set()
    made = str(found[0][1]).upper()
    if not made.startswith("CREATE TABLE") or "GENERATED" in made:
        return set()
    rows = base.execute("SELECT name, hidden FROM pragma_table_xinfo(?)", (table,)).fetchall()
    return {name for name, _ in rows} if all(hidden == 0 for _, hidden in rows) else set()
