"""Open SQLite or PostgreSQL, and say in one sentence what went wrong with it."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    InterfaceError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from closeloop.records.errors import BadInput, Fault, MachineFailed, ReadOnlyStore
from closeloop.sqlite_files import find_journal

MEMORY = ":memory:"
BUSY_SECONDS = 60
OWNER_ONLY_MODE = 0o600
COUNT_INSERTS = {"preserve_rowcount": True}
"""Without it the number of inserted rows, which says who was first, is lost on PostgreSQL."""


def open_engines(url: str) -> tuple[Engine, Engine, str]:
    """A reader, a writer (the same one where that is no matter) and the place's name."""
    if "://" in url:
        engine, where = _open_postgres(url)
        return engine, engine, where
    if url == MEMORY:
        engine = _open_sqlite(MEMORY, connections=1)
        return engine, engine, "The store in memory"
    path = Path(url).expanduser().absolute()
    _make_parent_folder(path)
    with suppress(OSError):  # SQLite says what is wrong, and gives its other files the same mode
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, OWNER_ONLY_MODE))
    return (
        _open_sqlite(str(path), connections=16),
        _open_sqlite(str(path), connections=1),
        str(path),
    )


def open_reader(url: str) -> tuple[Engine, str]:
    """An engine that only reads, and the place's name."""
    if "://" in url:
        return _open_postgres(url)
    path = Path(url).expanduser().absolute()
    engine = create_engine(
        "sqlite://",
        creator=lambda: _connect_to_read(path),
        # Each transaction looks anew whether somebody else has begun to write.
        poolclass=NullPool,
        execution_options=COUNT_INSERTS,
    )

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine, str(path)


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a file where nothing may be written, not even beside it.

    Without a write-ahead log nobody writes to it now, and SQLite need not share memory with others.
    """
    mode = "mode=ro&immutable=1" if find_journal(path) is None else "mode=ro"
    return sqlite3.connect(
        f"file:{quote(str(path))}?{mode}",
        uri=True,
        timeout=BUSY_SECONDS,
        check_same_thread=False,
        isolation_level=None,
    )


def restrict_to_owner(engine: Engine) -> None:
    """Let only its owner read a SQLite store: it keeps exact patches, which may hold secrets."""
    path = engine.url.database
    if engine.dialect.name == "sqlite" and path and path != MEMORY:
        for ending in ("", "-wal", "-shm"):
            with suppress(OSError):  # not ours, or not there
                Path(path + ending).chmod(OWNER_ONLY_MODE)


def _make_parent_folder(path: Path) -> None:
    if path.is_dir():
        raise BadInput(f"The store {path} is a folder: name a file in it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"The folder {path.parent} cannot be made ({error.strerror}): "
            "choose another place in the setting `store`."
        ) from error


def _open_sqlite(path: str, *, connections: int) -> Engine:
    """One connection makes threads queue up here, where waiting is cheap, and not in SQLite."""
    engine = create_engine(
        URL.create("sqlite", database=path),
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=BUSY_SECONDS,
        execution_options=COUNT_INSERTS,
        connect_args={"check_same_thread": False, "timeout": BUSY_SECONDS},
    )
    begin = "BEGIN IMMEDIATE" if connections == 1 else "BEGIN"

    @event.listens_for(engine, "connect")
    def _(connection: sqlite3.Connection, record: Any) -> None:
        connection.isolation_level = None
        # For a new file only. Bodies are long: fewer and larger pages are written faster.
        connection.execute("PRAGMA page_size = 8192")
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _use_wal(connection: sqlite3.Connection) -> None:
    """Turn on the write-ahead log; SQLite does not wait for others here, so we do."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _open_postgres(url: str) -> tuple[Engine, str]:
    try:
        address = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise BadInput(
            "The store's address cannot be read: write postgresql://user@host:port/database."
        ) from error
    if address.get_backend_name() not in ("postgresql", "postgres"):
        raise BadInput(
            f"No store speaks {address.drivername!r}: give a file or a postgresql:// address."
        )
    try:
        engine = create_engine(
            address.set(drivername="postgresql+psycopg"),
            pool_size=16,
            pool_timeout=BUSY_SECONDS,
            execution_options=COUNT_INSERTS,
            connect_args={"connect_timeout": 15},
        )
    except ImportError as error:
        raise BadInput("PostgreSQL needs its driver: pip install 'closeloop[postgres]'.") from error
    host = address.host or address.query.get("host") or "this machine"
    return engine, f"The database {address.database!r} on {host}"


@contextmanager
def translate_database_errors(where: str) -> Iterator[None]:
    """Turn what a database says into a Fault; mistakes of ours stay what they are."""
    try:
        yield
    except PoolTimeout as error:
        raise MachineFailed(f"{where} is busy: too many threads wait for it.") from error
    except DBAPIError as error:
        translate_error = (
            _sqlite_fault if isinstance(error.orig, sqlite3.Error) else _postgres_fault
        )
        fault = translate_error(error, where)
        if fault is None:
            raise
        raise fault from error
    except (UnicodeEncodeError, OverflowError) as error:
        raise BadInput(f"{where} cannot hold that: {error}.") from error


def _sqlite_fault(error: DBAPIError, where: str) -> Fault | None:
    # Extended codes keep the family in the low byte.
    match getattr(error.orig, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_NOTADB:
            return BadInput(f"{where} is not a database: choose another file for `store`.")
        case sqlite3.SQLITE_READONLY:
            return ReadOnlyStore(
                f"{where} is read-only: make it, its -wal and -shm files and its folder writable."
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return ReadOnlyStore(f"{where} cannot be opened: make it and its folder accessible.")
        case sqlite3.SQLITE_FULL:
            return MachineFailed(f"The disk of {where} is full: free some space and go on.")
        case sqlite3.SQLITE_IOERR:
            return MachineFailed(
                f"The disk of {where} fails or is full: check it, free some space and go on."
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return MachineFailed(f"Another process keeps {where} locked: end it and try again.")
        case sqlite3.SQLITE_CORRUPT:
            return MachineFailed(f"{where} is damaged: restore it from a backup.")
        case sqlite3.SQLITE_TOOBIG:
            return BadInput(f"{where} cannot hold that: it is over a gigabyte.")
    return None


def _postgres_fault(error: DBAPIError, where: str) -> Fault | None:
    lines = str(error.orig).strip().splitlines()
    server_message = lines[0].rpartition("failed: ")[2].rstrip(".") if lines else "no reason given"
    match str(getattr(error.orig, "sqlstate", None) or ""):
        case "53100":
            return MachineFailed(f"The disk of {where} is full: free some space and go on.")
        case "25006" | "42501":
            return ReadOnlyStore(
                f"{where} does not let us write ({server_message}): use a role that may."
            )
        case state if state[:2] in ("08", "53", "57", "58", "XX"):
            return MachineFailed(f"{where} fails: {server_message}. Check the server and go on.")
    # While connecting there is no code, only what the server says.
    if re.search("FATAL: .*(does not exist|authentication|pg_hba|permission)", server_message):
        return BadInput(
            f"{where} does not let us in ({server_message}): correct the setting `store`."
        )
    if isinstance(error, OperationalError | InterfaceError):
        return MachineFailed(
            f"{where} cannot be reached: {server_message}. Check the server and go on."
        )
    if isinstance(error, DataError):
        return BadInput(f"{where} cannot hold that: {server_message}.")
    return None
