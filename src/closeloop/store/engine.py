"""Open SQLite or PostgreSQL, run transactions, and report database errors in one sentence."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from closeloop.records.errors import BadInput, Fault, MachineFailed, ReadOnlyStore
from closeloop.sqlite_files import find_journal
from closeloop.store.sql_expressions import RenderedStatement, text
from closeloop.store.sql_statements import Statement

MEMORY = ":memory:"
BUSY_SECONDS = 60
CONNECT_SECONDS = 15
OWNER_ONLY_MODE = 0o600
POSTGRES_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
POSTGRES_CONNECTIONS = 26


# Returned rows.


class Rows:
    """The rows of one statement, fetched lazily."""

    def __init__(self, cursor: Any, statement: RenderedStatement) -> None:
        self.cursor = cursor
        self._statement = statement

    @property
    def rowcount(self) -> int:
        """Number of rows written."""
        return int(self.cursor.rowcount)

    @property
    def _names(self) -> tuple[str, ...]:
        return self._statement.names or tuple(column[0] for column in self.cursor.description)

    def __iter__(self) -> Iterator[Any]:
        return map(_row_class(self._names), self._fetch())

    def _fetch(self) -> Iterator[Sequence[Any]]:
        if not self._statement.converters:
            return iter(self.cursor)
        return map(self._convert_row, self.cursor)

    def _convert_row(self, row: Sequence[Any]) -> Sequence[Any]:
        values = list(row)
        for index, convert in self._statement.converters:
            values[index] = convert(values[index])
        return values

    def all(self) -> list[Any]:
        return list(self)

    def first(self) -> Any:
        """Return the first row; None if there is none."""
        return next(iter(self), None)

    def one(self) -> Any:
        """Return the only row."""
        (row,) = self
        return row

    def scalars(self) -> Values:
        """Return the first value of each row."""
        return Values(map(itemgetter(0), self._fetch()))

    def scalar(self) -> Any:
        """Return the first value of the first row; None if there is none."""
        return self.scalars().first()

    def scalar_one(self) -> Any:
        """Return the only value."""
        return self.scalars().one()

    def mappings(self) -> Values:
        """Return each row as a dictionary by column."""
        names = self._names
        return Values(dict(zip(names, row, strict=True)) for row in self._fetch())


class Values:
    """Values computed from rows, fetched lazily."""

    def __init__(self, values: Iterator[Any]) -> None:
        self._values = values

    def __iter__(self) -> Iterator[Any]:
        return self._values

    def all(self) -> list[Any]:
        return list(self._values)

    def first(self) -> Any:
        return next(self._values, None)

    def one(self) -> Any:
        (value,) = self._values
        return value


@lru_cache(maxsize=512)
def _row_class(names: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """Return a tuple class with a property for each column name."""
    values = {name: property(itemgetter(index)) for index, name in enumerate(names)}
    return type("Row", (tuple,), {"__slots__": (), **values})


# Connections and their transactions.


class DatabaseError(Exception):
    """An error that a driver raised, and whether the connection was lost with it."""

    def __init__(self, orig: Exception, *, is_lost: bool) -> None:
        super().__init__(str(orig))
        self.orig = orig
        self.is_lost = is_lost


class ConnectionTimeout(Exception):
    """All connections were in use for too long."""


class Connection:
    """A connection inside a transaction."""

    def __init__(self, raw: Any, database: Database) -> None:
        self._raw = raw
        self._database = database
        self.dialect = database.dialect

    def execute(
        self, statement: Statement, values: dict[str, Any] | Sequence[dict[str, Any]] | None = None
    ) -> Rows:
        """Run a statement, once or for each of several rows."""
        if values is None or isinstance(values, dict):
            keys = tuple(values) if values else ()
            rendered = statement.render_statement(self.dialect, keys)
            sql, parameters = rendered.bind_values(values)
            return Rows(self._run("execute", sql, parameters), rendered)
        rendered = statement.render_statement(self.dialect, tuple(values[0]))
        if len(values) > 1 and any(row.keys() != values[0].keys() for row in values):
            raise ValueError("All rows of one statement must have the same columns.")
        rows = [rendered.bind_values(row)[1] for row in values]
        return Rows(self._run("executemany", rendered.sql, rows), rendered)

    def fetch_parts(self, statement: Statement, rows: int) -> Iterator[list[tuple[Any, ...]]]:
        """Run a query and yield its rows in parts, as the driver returns them."""
        sql, parameters = statement.render_statement(self.dialect, ()).bind_values(None)
        with self._database.raise_database_errors(self._raw):
            # Without a name, psycopg would load all rows at once.
            named = {"name": "parts", "binary": True} if self.dialect == "postgresql" else {}
            cursor = self._raw.cursor(**named)
            cursor.execute(sql, parameters)
            while part := cursor.fetchmany(rows):
                yield part
            cursor.close()

    def execute_sql(self, sql: str) -> Any:
        """Run SQL as is, without parameters; return the driver's cursor."""
        return self._run("execute", sql)

    def _run(self, method: str, *arguments: Any) -> Any:
        # No context manager: it would take as long as a short statement.
        try:
            if method == "execute":
                return self._raw.execute(*arguments)
            cursor = self._raw.cursor()
            cursor.executemany(*arguments)
        except self._database.error_class as error:
            raise self._database.wrap_error(error, self._raw) from error
        return cursor


class Database:
    """A pool of connections to one database; each is used by one transaction at a time."""

    def __init__(  # noqa: PLR0913 - what one engine has and the other has not
        self,
        dialect: str,
        connect: Callable[[], Any],
        error_class: type[Exception],
        *,
        connections: int,
        begin: str = "BEGIN",
        keeps_idle: bool = True,
        path: str | None = None,
    ) -> None:
        self.dialect = dialect
        self.path = path
        """Path of a SQLite database."""
        self._connect = connect
        self.error_class = error_class
        self._begin = begin
        self._keeps_idle = keeps_idle
        self._free = threading.BoundedSemaphore(connections)
        self._idle: list[Any] = []

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open a transaction: commit it at the end, roll it back if the block fails."""
        with self.take_connection() as raw:
            connection = Connection(raw, self)
            try:
                connection.execute_sql(self._begin)
                yield connection
                connection.execute_sql("COMMIT")
            except self.error_class as error:  # for rows that are fetched in the block
                wrapped = self.wrap_error(error, raw)
                self._roll_back(raw)
                raise wrapped from error
            except BaseException:
                self._roll_back(raw)
                raise

    @contextmanager
    def take_connection(self) -> Iterator[Any]:
        """Borrow a driver connection, outside any transaction."""
        if not self._free.acquire(timeout=BUSY_SECONDS):
            raise ConnectionTimeout
        raw = None
        try:
            raw = self._idle.pop() if self._idle else self._open()
            yield raw
        except DatabaseError as error:
            if error.is_lost:  # the other connections are usually lost too
                self.dispose()
            raise
        finally:
            try:
                if raw is not None:
                    self._give_back(raw)
            finally:
                self._free.release()

    def _open(self) -> Any:
        with self.raise_database_errors(None):
            return self._connect()

    def _give_back(self, raw: Any) -> None:
        if self._keeps_idle and not self._is_broken(raw) and not self._is_in_transaction(raw):
            self._idle.append(raw)
        else:
            with suppress(self.error_class):
                raw.close()

    def _roll_back(self, raw: Any) -> None:
        with suppress(self.error_class):
            if raw.in_transaction if self.dialect == "sqlite" else not raw.closed:
                raw.execute("ROLLBACK")

    def _is_in_transaction(self, raw: Any) -> bool:
        """Whether the connection is still in a transaction that could not be rolled back."""
        if self.dialect == "sqlite":
            return bool(raw.in_transaction)
        return bool(raw.info.transaction_status)  # 0 means idle

    def _is_broken(self, raw: Any) -> bool:
        return self.dialect == "postgresql" and bool(raw.closed)

    @contextmanager
    def raise_database_errors(self, raw: Any) -> Iterator[None]:
        """Raise the driver's errors as `DatabaseError`."""
        try:
            yield
        except self.error_class as error:
            raise self.wrap_error(error, raw) from error

    def wrap_error(self, error: Exception, raw: Any) -> DatabaseError:
        """Wrap an error that the driver raised on a connection, or while connecting."""
        return DatabaseError(error, is_lost=raw is not None and self._is_broken(raw))

    def dispose(self) -> None:
        """Close the idle connections."""
        while self._idle:
            with suppress(self.error_class, IndexError):
                self._idle.pop().close()


def open_engines(url: str) -> tuple[Database, Database, str]:
    """Open a reader, a writer (the same database unless SQLite on disk) and the store's name."""
    if "://" in url:
        database, store_name = _open_postgres(url)
        return database, database, store_name
    if url == MEMORY:
        database = _open_sqlite(MEMORY, connections=1)
        return database, database, "The store in memory"
    path = Path(url).expanduser().absolute()
    _make_parent_folder(path)
    with suppress(OSError):  # SQLite reports what is wrong, and gives its other files the same mode
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, OWNER_ONLY_MODE))
    return (
        _open_sqlite(str(path), connections=16),
        _open_sqlite(str(path), connections=1),
        str(path),
    )


def open_reader(url: str) -> tuple[Database, str]:
    """Open a database for reading only; return it and the store's name."""
    if "://" in url:
        return _open_postgres(url)
    path = Path(url).expanduser().absolute()
    # Each transaction checks again whether another process has begun to write.
    database = Database(
        "sqlite", lambda: _connect_to_read(path), sqlite3.Error, connections=16, keeps_idle=False
    )
    return database, str(path)


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a file read-only, without writing anything beside it.

    Without a write-ahead log nobody writes to it now, and SQLite need not share memory with others.
    """
    mode = "mode=ro&immutable=1" if find_journal(path) is None else "mode=ro"
    return sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?{mode}",
        uri=True,
        timeout=BUSY_SECONDS,
        check_same_thread=False,
        isolation_level=None,
    )


def restrict_to_owner(database: Database) -> None:
    """Let only its owner read a SQLite store: its exact patches may contain secrets."""
    path = database.path
    if path and path != MEMORY:
        for ending in ("", "-wal", "-shm"):
            with suppress(OSError):  # not our file, or missing
                Path(path + ending).chmod(OWNER_ONLY_MODE)


def _make_parent_folder(path: Path) -> None:
    if path.is_dir():
        raise BadInput(f"The store {path} is a folder: give a file in it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"The folder {path.parent} cannot be created ({error.strerror}): choose "
            "another path in the setting `store`."
        ) from error


def _open_sqlite(path: str, *, connections: int) -> Database:
    """Open SQLite; with one connection, threads wait here, which is cheaper than in SQLite."""
    begin = "BEGIN IMMEDIATE" if connections == 1 else "BEGIN"
    return Database(
        "sqlite",
        lambda: _connect_to_write(path),
        sqlite3.Error,
        connections=connections,
        begin=begin,
        path=path,
    )


def _connect_to_write(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None
    )
    try:
        # For a new file only. Bodies are long: fewer and larger pages are written faster.
        connection.execute("PRAGMA page_size = 8192")
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Turn on the write-ahead log; retry if busy, because SQLite does not wait here."""
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


def _open_postgres(url: str) -> tuple[Database, str]:
    try:
        address = urlsplit(url)
        host = address.hostname
        _ = address.port
    except ValueError as error:
        raise BadInput(
            "The store's URL cannot be parsed: write postgresql://user@host:port/database."
        ) from error
    if address.scheme not in POSTGRES_SCHEMES:
        raise BadInput(
            f"A store of the kind {address.scheme!r} is not supported: give a file or "
            "a postgresql:// URL."
        )
    try:
        import psycopg
    except ImportError as error:
        raise BadInput("PostgreSQL needs its driver: pip install 'closeloop[postgres]'.") from error
    plain_url = "postgresql" + url[len(address.scheme) :]
    database = Database(
        "postgresql",
        lambda: psycopg.connect(plain_url, autocommit=True, connect_timeout=CONNECT_SECONDS),
        psycopg.Error,
        connections=POSTGRES_CONNECTIONS,
    )
    socket_folder = re.search(r"(?:^|&)host=([^&]+)", address.query)
    server = host or (unquote(socket_folder[1]) if socket_folder else "this machine")
    return database, f"The database {unquote(address.path[1:])!r} on {server}"


@contextmanager
def translate_database_errors(store_name: str) -> Iterator[None]:
    """Translate database errors into a Fault; errors in our own SQL are raised as they are."""
    try:
        yield
    except ConnectionTimeout as error:
        raise MachineFailed(f"{store_name} is busy: too many threads wait for it.") from error
    except DatabaseError as error:
        translate_error = (
            _sqlite_fault if isinstance(error.orig, sqlite3.Error) else _postgres_fault
        )
        fault = translate_error(error, store_name)
        if fault is None:
            raise
        raise fault from error
    except (UnicodeEncodeError, OverflowError) as error:
        raise BadInput(f"{store_name} cannot store this: {error}.") from error


def _sqlite_fault(error: DatabaseError, store_name: str) -> Fault | None:
    # Extended codes keep the family in the low byte.
    match getattr(error.orig, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_NOTADB:
            return BadInput(f"{store_name} is not a database: choose another file for `store`.")
        case sqlite3.SQLITE_READONLY:
            return ReadOnlyStore(
                f"{store_name} is read-only: make it, its -wal and -shm files and its folder "
                "writable."
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return ReadOnlyStore(
                f"{store_name} cannot be opened: make it and its folder accessible."
            )
        case sqlite3.SQLITE_FULL:
            return MachineFailed(
                f"The disk of {store_name} is full: free some space and try again."
            )
        case sqlite3.SQLITE_IOERR:
            return MachineFailed(
                f"The disk of {store_name} fails or is full: check it, free some space and "
                "try again."
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return MachineFailed(f"Another process locks {store_name}: stop it and try again.")
        case sqlite3.SQLITE_CORRUPT:
            return MachineFailed(f"{store_name} is damaged: restore it from a backup.")
        case sqlite3.SQLITE_TOOBIG:
            return BadInput(f"{store_name} cannot store this: it is larger than a gigabyte.")
    return None


def _postgres_fault(error: DatabaseError, store_name: str) -> Fault | None:
    lines = str(error.orig).strip().splitlines()
    server_message = lines[0].rpartition("failed: ")[2].rstrip(".") if lines else "no reason given"
    match str(getattr(error.orig, "sqlstate", None) or ""):
        case "53100":
            return MachineFailed(
                f"The disk of {store_name} is full: free some space and try again."
            )
        case "25006" | "42501":
            return ReadOnlyStore(
                f"{store_name} denies write access ({server_message}): "
                "use a role with write access."
            )
        case state if state[:2] in ("08", "53", "57", "58", "XX"):
            return MachineFailed(
                f"{store_name} fails: {server_message}. Check the server and try again."
            )
    # While connecting there is no error code, only the server's message.
    if re.search("FATAL: .*(does not exist|authentication|pg_hba|permission)", server_message):
        return BadInput(
            f"{store_name} denies access ({server_message}): correct the setting `store`."
        )
    import psycopg

    if isinstance(error.orig, psycopg.OperationalError | psycopg.InterfaceError):
        return MachineFailed(
            f"{store_name} cannot be reached: {server_message}. Check the server and try again."
        )
    if isinstance(error.orig, psycopg.DataError):
        return BadInput(f"{store_name} cannot store this: {server_message}.")
    return None


# Transactions that survive a restart of PostgreSQL: each is committed exactly once.
#
# A transaction whose connection was lost before the commit is repeated. One that was lost during
# the commit may or may not be committed: PostgreSQL knows its state by its number, and it is
# repeated only if it was not committed.

DATABASE_WAIT_SECONDS = 120.0
"""Seconds to wait for an unavailable database before work fails."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_STARTING_MESSAGE = re.compile(
    "starting up|shutting down|in recovery mode|not yet accepting connections"
)
_RESTARTING_STATES = ("57P01", "57P02", "57P03")
_FUTURE_TRANSACTION = "22023"
_TRANSACTION_ID_QUERY = text("SELECT txid_current_if_assigned()")
"""Returns None if nothing was written: then it does not matter whether it was committed."""

Answer = TypeVar("Answer")


class Reconnection:
    """How long a store waits for its database, and whether it is waiting now."""

    def __init__(self, store_name: str, wait_seconds: float = DATABASE_WAIT_SECONDS) -> None:
        self.where = store_name
        self.wait_seconds = wait_seconds
        self._is_away = False
        self._turn = threading.Lock()

    def run_transaction(
        self, database: Database, work: Callable[[Connection], Answer], *, writes: bool
    ) -> Answer:
        """Run the work in one transaction; wait for an unavailable database, within the limit."""
        has_number = writes and database.dialect == "postgresql"
        pause = _RetryPause(self)
        while True:
            transaction: int | None = None
            try:
                with database.begin() as connection:
                    answer = work(connection)
                    if has_number:
                        transaction = connection.execute(_TRANSACTION_ID_QUERY).scalar()
            except DatabaseError as error:
                pause.wait(error)
                connection_error = error
            else:
                self._is_away = False
                return answer
            if transaction is not None and self._was_committed(
                database, transaction, connection_error, pause
            ):
                self._is_away = False
                return answer

    def await_start(self, database: Database) -> None:
        """Wait for a server that reports that it is starting or restarting."""
        pause = _RetryPause(self)
        while True:
            try:
                with database.take_connection():
                    return
            except DatabaseError as error:
                if not _STARTING_MESSAGE.search(str(error.orig)):
                    raise
                pause.wait(error)

    @staticmethod
    def _was_committed(
        database: Database, transaction: int, connection_error: DatabaseError, pause: _RetryPause
    ) -> bool:
        query = text("SELECT txid_status(:number)").bindparams(number=transaction)
        while True:
            try:
                with database.begin() as connection:
                    status = connection.execute(query).scalar()
            except DatabaseError as error:
                if getattr(error.orig, "sqlstate", None) == _FUTURE_TRANSACTION:
                    return False  # a crash lost even the transaction's number
                pause.wait(error)
                continue
            if status != "in progress":
                return bool(status == "committed")
            pause.wait(connection_error)

    def report_waiting(self) -> None:
        """Log once, however many threads wait, that the store waits for the database."""
        import logging

        with self._turn:
            if self._is_away:
                return
            self._is_away = True
        logging.getLogger(__name__).warning(
            "%s does not respond: waiting up to %.0f seconds.", self.where, self.wait_seconds
        )


class _RetryPause:
    """The pauses between retries of one transaction."""

    def __init__(self, reconnection: Reconnection) -> None:
        self._reconnection = reconnection
        self._deadline: float | None = None
        self._seconds = _SHORTEST_PAUSE

    def wait(self, error: DatabaseError) -> None:
        """Pause until the next retry; raise the error if retrying cannot help or time is up."""
        if not is_server_away(error):
            raise error
        now = time.monotonic()
        if self._deadline is None:
            # The first retry is immediate: often only this connection was lost.
            self._deadline = now + self._reconnection.wait_seconds
            return
        if now >= self._deadline:
            raise error
        self._reconnection.report_waiting()
        time.sleep(min(self._seconds, self._deadline - now))
        self._seconds = min(2 * self._seconds, _LONGEST_PAUSE)


def is_server_away(error: DatabaseError) -> bool:
    """Whether the server is unavailable, perhaps only temporarily."""
    if error.is_lost:
        return True
    # While connecting there is no error code, only a message.
    if isinstance(error.orig, sqlite3.Error):
        return False
    import psycopg

    if not isinstance(error.orig, psycopg.OperationalError):
        return False
    if (state := getattr(error.orig, "sqlstate", None)) is not None:
        return state in _RESTARTING_STATES
    message = str(error.orig)
    if "FATAL" in message:
        return _STARTING_MESSAGE.search(message) is not None
    return "password" not in message
