"""Transactions that outlast a restart of PostgreSQL: each is done once, however it was broken off.

A transaction whose connection was lost before it was committed is repeated. One that was lost
while it was committed may or may not have been: PostgreSQL knows its state by its number, and it
is repeated only where that says that it was not.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError

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
