"""Read-only access to SQLite files from others, in a repository or a recording.

Such a file can hold a view that never ends, computed tables, or pages that form a cycle. So only
plain tables are read, nothing in its schema is run, and reading has a time limit.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

SQLITE_MAGIC = b"SQLite format 3\x00"
MAX_VALUE_BYTES = 64 << 20
MAX_COPY_BYTES = 4 << 30
READ_SECONDS = 600.0
STEPS_BETWEEN_CHECKS = 100_000
"""Steps of SQLite's virtual machine between two checks of the clock: about a millisecond."""


def find_journal(path: Path) -> Path | None:
    """Return the file with changes that are not in the database yet; None if there is none."""
    journal = path.with_name(path.name + "-wal")
    try:
        return journal if journal.stat().st_size else None
    except OSError:
        return None


@contextmanager
def open_database(path: Path, seconds: float = READ_SECONDS) -> Iterator[sqlite3.Connection]:
    """Open a database with its journal; raise sqlite3.Error or OSError if it cannot be read.

    Reading is interrupted after `seconds` in all, and by Ctrl-C.
    """
    deadline = time.monotonic() + seconds
    try:
        with _open_with_journal(path) as connection:
            connection.set_progress_handler(
                lambda: time.monotonic() > deadline, STEPS_BETWEEN_CHECKS
            )
            yield connection
    except sqlite3.OperationalError as error:
        # SQLite drops the exception that Ctrl-C raises in the handler, and only stops.
        if "interrupted" in str(error) and time.monotonic() < deadline:
            raise KeyboardInterrupt from error
        raise


@contextmanager
def _open_with_journal(path: Path) -> Iterator[sqlite3.Connection]:
    pending = find_journal(path)
    if pending is None:
        with closing(_connect_untrusted(path, "mode=ro&immutable=1")) as connection:
            yield connection
        return
    if path.stat().st_size + pending.stat().st_size > MAX_COPY_BYTES:
        raise OSError("the database is too large to be copied")
    # Reading a journal writes files next to it: a copy is used.
    with tempfile.TemporaryDirectory(prefix="closeloop-") as folder:
        copy = Path(folder) / "copy.db"
        shutil.copyfile(path, copy)
        shutil.copyfile(pending, copy.with_name("copy.db-wal"))
        with closing(_connect_untrusted(copy, "mode=rw")) as connection:
            yield connection


def _connect_untrusted(path: Path, uri_options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?{uri_options}", uri=True, timeout=1)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        # No expression of the file's own schema is evaluated.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.text_factory = lambda value: value.decode(errors="replace")
    except BaseException:
        connection.close()
        raise
    return connection


def has_tables(path: Path, tables: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the file has these plain tables with these columns."""
    try:
        with open_database(path) as connection:
            return has_columns(connection, tables)
    except (sqlite3.Error, OSError, ValueError):
        return False


def has_columns(connection: sqlite3.Connection, tables: Mapping[str, Sequence[str]]) -> bool:
    """Return whether an open database has these plain tables with these columns."""
    return all(set(names) <= table_columns(connection, table) for table, names in tables.items())


def table_columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the columns of a plain table; none for a view, a virtual or a computed table."""
    entries = connection.execute(
        "SELECT type, sql FROM sqlite_master WHERE name = ? AND type IN ('table', 'view')", (table,)
    ).fetchall()
    if len(entries) != 1 or entries[0][0] != "table":
        return set()
    definition = str(entries[0][1]).upper()
    if not definition.startswith("CREATE TABLE") or "GENERATED" in definition:
        return set()
    rows = connection.execute("SELECT name, hidden FROM pragma_table_xinfo(?)", (table,)).fetchall()
    return {name for name, _ in rows} if all(hidden == 0 for _, hidden in rows) else set()
