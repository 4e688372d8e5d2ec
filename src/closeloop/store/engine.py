"""Open SQLite or PostgreSQL, and say in one sentence what went wrong with it."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    NullPool,
    QueuePool,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, InterfaceError, OperationalError
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


# Transactions that outlast a restart of PostgreSQL: each is done once, however it was broken off.
#
# A transaction whose connection was lost before it was committed is repeated. One that was lost
# while it was committed may or may not have been: PostgreSQL knows its state by its number, and
# it is repeated only where that says that it was not.

DATABASE_WAIT_SECONDS = 120.0
"""So long a database may be away before work ends for it."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_STARTING_MESSAGE = re.compile(
    "starting up|shutting down|in recovery mode|not yet accepting connections"
)
_RESTARTING_STATES = ("57P01", "57P02", "57P03")
_FUTURE_TRANSACTION = "22023"
_TRANSACTION_ID_QUERY = text("SELECT txid_current_if_assigned()")
"""None where nothing was written: then it does not matter whether it was committed."""
_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class Reconnection:
    """How long a store waits for its database, and whether it does so now."""

    def __init__(self, where: str, wait_seconds: float = DATABASE_WAIT_SECONDS) -> None:
        self.where = where
        self.wait_seconds = wait_seconds
        self._is_away = False
        self._turn = threading.Lock()

    def run_transaction(
        self, engine: Engine, work: Callable[[Connection], Answer], *, writes: bool
    ) -> Answer:
        """Do the work in one transaction; wait for a database that is away, within the limit."""
        has_number = writes and engine.dialect.name == "postgresql"
        pause = _RetryPause(self)
        while True:
            transaction: int | None = None
            try:
                with engine.begin() as connection:
                    answer = work(connection)
                    if has_number:
                        transaction = connection.execute(_TRANSACTION_ID_QUERY).scalar()
            except DBAPIError as error:
                pause.wait(error)
                lost = error
            else:
                self._is_away = False
                return answer
            if transaction is not None and self._was_committed(engine, transaction, lost, pause):
                self._is_away = False
                return answer

    def await_start(self, engine: Engine) -> None:
        """Wait for a server that says that it is only starting, or restarting."""
        pause = _RetryPause(self)
        while True:
            try:
                engine.connect().close()
            except DBAPIError as error:
                if not _STARTING_MESSAGE.search(str(error.orig)):
                    raise
                pause.wait(error)
            else:
                return

    @staticmethod
    def _was_committed(
        engine: Engine, transaction: int, lost: DBAPIError, pause: _RetryPause
    ) -> bool:
        query = text("SELECT txid_status(:number)").bindparams(number=transaction)
        while True:
            try:
                with engine.connect() as connection:
                    status = connection.execute(query).scalar()
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) == _FUTURE_TRANSACTION:
                    return False  # a crash lost even its number
                pause.wait(error)
                continue
            if status != "in progress":
                return bool(status == "committed")
            pause.wait(lost)

    def report_waiting(self) -> None:
        """Say once, however many threads wait, that work goes on when the database is back."""
        with self._turn:
            if self._is_away:
                return
            self._is_away = True
        _log.warning(
            "%s does not answer: waiting up to %.0f seconds for it to come back.",
            self.where,
            self.wait_seconds,
        )


class _RetryPause:
    """The waiting of one transaction."""

    def __init__(self, reconnection: Reconnection) -> None:
        self._reconnection = reconnection
        self._deadline: float | None = None
        self._seconds = _SHORTEST_PAUSE

    def wait(self, error: DBAPIError) -> None:
        """Return when the database may be asked again; the error itself when it should not."""
        if not is_server_away(error):
            raise error
        now = time.monotonic()
        if self._deadline is None:
            # The first time at once: often only this connection was lost.
            self._deadline = now + self._reconnection.wait_seconds
            return
        if now >= self._deadline:
            raise error
        self._reconnection.report_waiting()
        time.sleep(min(self._seconds, self._deadline - now))
        self._seconds = min(2 * self._seconds, _LONGEST_PAUSE)


def is_server_away(error: DBAPIError) -> bool:
    """Whether the server went away, perhaps only to come back."""
    if error.connection_invalidated:
        return True
    # While connecting there is no code, only what is said.
    if not isinstance(error, OperationalError) or isinstance(error.orig, sqlite3.Error):
        return False
    if (state := getattr(error.orig, "sqlstate", None)) is not None:
        return state in _RESTARTING_STATES
    message = str(error.orig)
    if "FATAL" in message:
        return _STARTING_MESSAGE.search(message) is not None
    return "password" not in message
