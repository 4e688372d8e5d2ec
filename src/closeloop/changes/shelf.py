"""What was read of files, kept by content: one SQLite file that several processes may share.

The file is named by the code that reads: what other code has read is not used again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from closeloop.changes.apart import Row
from closeloop.code_digest import digest_code

_SCHEMA = """
CREATE TABLE IF NOT EXISTS outlines (
    key TEXT PRIMARY KEY, generated INTEGER NOT NULL, names BLOB NOT NULL, defined BLOB NOT NULL,
    defined_lines BLOB NOT NULL, prints BLOB NOT NULL, print_lines BLOB NOT NULL,
    imports BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS modules (key TEXT PRIMARY KEY, module BLOB NOT NULL);
"""
_READING_MODULES = (__name__, "closeloop.changes.syntax.*")
_SPARE = 10_000
"""So many files that the repository has no more may stay."""


class Shelf:
    """An open cache. It never fails: at worst it forgets, and says so in `notes`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"syntax-{digest_code(*_READING_MODULES)[:12]}.db"
        self.notes: list[str] = []
        self._lock = threading.Lock()
        self._connection = self._opened()

    def columns(self, *names: str) -> Iterator[Sequence[Any]]:
        """Of every file, its key and these parts of its outline."""
        return iter(self._rows(f"SELECT key, {', '.join(names)} FROM outlines"))  # noqa: S608

    def module(self, key: str) -> bytes | None:
        rows = self._rows("SELECT module FROM modules WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def add(self, rows: Iterable[Row]) -> None:
        self._write(
            "INSERT OR REPLACE INTO outlines VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (key, flag, o.names, o.defined, o.defined_lines, o.prints, o.print_lines, o.imports)
                for key, flag, o in rows
            ],
        )

    def add_modules(self, rows: Iterable[tuple[str, bytes]]) -> None:
        if kept := list(rows):
            self._write("INSERT OR REPLACE INTO modules VALUES (?, ?)", kept)

    def tidy(self, wanted: Iterable[str]) -> None:
        """Forget what the repository has no more, once that is the larger part."""
        wanted = list(wanted)
        kept = self._rows("SELECT count(*) FROM outlines")
        if kept and kept[0][0] > 4 * len(wanted) + _SPARE:
            self._write("CREATE TEMP TABLE IF NOT EXISTS wanted (key TEXT PRIMARY KEY)")
            self._write("INSERT OR IGNORE INTO temp.wanted VALUES (?)", [(key,) for key in wanted])
            for table in ("outlines", "modules"):
                gone = f"DELETE FROM {table} WHERE key NOT IN (SELECT key FROM temp.wanted)"  # noqa: S608
                self._write(gone)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _opened(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():
                for old in self.path.parent.glob("syntax-*.db*"):
                    old.unlink(missing_ok=True)
            return _connected(self.path)
        except (OSError, sqlite3.DatabaseError) as fault:
            return self._instead(fault)

    def _instead(self, fault: Exception) -> sqlite3.Connection:
        """A damaged file is made again; one that cannot be used now is done without."""
        if isinstance(fault, sqlite3.DatabaseError) and not isinstance(
            fault, sqlite3.OperationalError
        ):
            self.notes.append(f"{self.path} was damaged ({fault}) and is made again.")
            try:
                for ending in ("", "-wal", "-shm"):
                    Path(f"{self.path}{ending}").unlink(missing_ok=True)
                return _connected(self.path)
            except (OSError, sqlite3.DatabaseError) as another:
                fault = another
        self.notes.append(f"What is read of the repository cannot be kept: {fault}.")
        return _connected(None)

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.DatabaseError as fault:
                self._connection.close()
                self._connection = self._instead(fault)
        return []

    def _write(self, query: str, rows: list[Any] | None = None) -> None:
        with self._lock:
            try:
                with self._connection:
                    if rows is None:
                        self._connection.execute(query)
                    else:
                        self._connection.executemany(query, rows)
            except sqlite3.DatabaseError as fault:
                self._connection.close()
                self._connection = self._instead(fault)


def _connected(path: Path | None) -> sqlite3.Connection:
    connection = sqlite3.connect(path or ":memory:", timeout=20, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection
