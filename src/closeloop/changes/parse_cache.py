"""What was read of files, kept by content: one SQLite file that several processes may share.

The file is named by the code that reads: what other code has read is not used again.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import msgspec

from closeloop.changes import outline_worker
from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import classify_file, language_of
from closeloop.changes.outline_worker import OutlineJob, OutlineRow, SourceFile
from closeloop.code_digest import digest_code
from closeloop.records.settings import CheckSettings

_SCHEMA = """
CREATE TABLE IF NOT EXISTS outlines (
    key TEXT PRIMARY KEY, generated INTEGER NOT NULL, names BLOB NOT NULL, defined BLOB NOT NULL,
    defined_lines BLOB NOT NULL, prints BLOB NOT NULL, print_lines BLOB NOT NULL,
    imports BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS modules (key TEXT PRIMARY KEY, module BLOB NOT NULL);
"""
_READING_MODULES = (__name__, "closeloop.changes.syntax.*")
_MAX_STALE_FILES = 10_000
"""So many files that the repository has no more may stay."""


class ParseCache:
    """An open cache. It never fails: at worst it forgets, and says so in `notes`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"syntax-{digest_code(*_READING_MODULES)[:12]}.db"
        self.notes: list[str] = []
        self._lock = threading.Lock()
        self._connection = self._open_database()

    def read_columns(self, *names: str) -> Iterator[Sequence[Any]]:
        """Of every file, its key and these parts of its outline."""
        return iter(self._query_rows(f"SELECT key, {', '.join(names)} FROM outlines"))  # noqa: S608

    def read_module(self, key: str) -> bytes | None:
        rows = self._query_rows("SELECT module FROM modules WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def add_outlines(self, rows: Iterable[OutlineRow]) -> None:
        self._execute_write(
            "INSERT OR REPLACE INTO outlines VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (key, flag, o.names, o.defined, o.defined_lines, o.prints, o.print_lines, o.imports)
                for key, flag, o in rows
            ],
        )

    def add_modules(self, rows: Iterable[tuple[str, bytes]]) -> None:
        if encoded_modules := list(rows):
            self._execute_write("INSERT OR REPLACE INTO modules VALUES (?, ?)", encoded_modules)

    def drop_stale_rows(self, wanted: Iterable[str]) -> None:
        """Forget what the repository has no more, once that is the larger part."""
        wanted = list(wanted)
        row_count = self._query_rows("SELECT count(*) FROM outlines")
        if row_count and row_count[0][0] > 4 * len(wanted) + _MAX_STALE_FILES:
            self._execute_write("CREATE TEMP TABLE IF NOT EXISTS wanted (key TEXT PRIMARY KEY)")
            self._execute_write(
                "INSERT OR IGNORE INTO temp.wanted VALUES (?)", [(key,) for key in wanted]
            )
            for table in ("outlines", "modules"):
                deletion = f"DELETE FROM {table} WHERE key NOT IN (SELECT key FROM temp.wanted)"  # noqa: S608
                self._execute_write(deletion)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _open_database(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():
                for old in self.path.parent.glob("syntax-*.db*"):
                    old.unlink(missing_ok=True)
            return _connect_database(self.path)
        except (OSError, sqlite3.DatabaseError) as fault:
            return self._replace_database(fault)

    def _replace_database(self, fault: Exception) -> sqlite3.Connection:
        """A damaged file is made again; one that cannot be used now is done without."""
        if isinstance(fault, sqlite3.DatabaseError) and not isinstance(
            fault, sqlite3.OperationalError
        ):
            self.notes.append(f"{self.path} was damaged ({fault}) and is made again.")
            try:
                for ending in ("", "-wal", "-shm"):
                    Path(f"{self.path}{ending}").unlink(missing_ok=True)
                return _connect_database(self.path)
            except (OSError, sqlite3.DatabaseError) as another:
                fault = another
        self.notes.append(f"What is read of the repository cannot be kept: {fault}.")
        return _connect_database(None)

    def _query_rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.DatabaseError as fault:
                self._connection.close()
                self._connection = self._replace_database(fault)
        return []

    def _execute_write(self, query: str, rows: list[Any] | None = None) -> None:
        with self._lock:
            try:
                with self._connection:
                    if rows is None:
                        self._connection.execute(query)
                    else:
                        self._connection.executemany(query, rows)
            except sqlite3.DatabaseError as fault:
                self._connection.close()
                self._connection = self._replace_database(fault)


def _connect_database(path: Path | None) -> sqlite3.Connection:
    connection = sqlite3.connect(path or ":memory:", timeout=20, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection


# Read every source file of a repository a little, on all processors when there are many.

MIN_PARALLEL_FILES = 500
"""From so many files on, the processors share the work."""
MAX_PROCESSES = 4
BATCH_FILES = 100


def list_source_files(sides: ChangeSides, settings: CheckSettings) -> Iterator[SourceFile]:
    """Files of known languages after the change, generated and vendored ones too."""
    for path, blob in sides.tree("after").items():
        language = language_of(path)
        if language and blob.strip("0"):
            kind = classify_file(path, settings=settings)
            yield SourceFile(path=path, language=language, blob=blob, kind=kind)


def read_outlines(sides: ChangeSides, sources: Sequence[SourceFile]) -> Iterator[list[OutlineRow]]:
    """Their outlines, some at a time, without those that cannot be had."""
    contents = ((source, sides.read_blob(source.blob)) for source in sources)
    jobs = (
        OutlineJob(source=source, content=read) for source, read in contents if read is not None
    )
    batches = iter(lambda: list(islice(jobs, BATCH_FILES)), [])
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if len(sources) <= MIN_PARALLEL_FILES or processors < 2:
        yield from map(outline_worker.outline_batch, batches)
    else:
        yield from _read_in_parallel(batches, min(processors, MAX_PROCESSES) - 1)


def _read_in_parallel(
    batches: Iterable[list[OutlineJob]], helpers: int
) -> Iterator[list[OutlineRow]]:
    """Hand out a few batches, another for each that comes back, and read one where all are busy."""
    free: SimpleQueue[Popen[bytes]] = SimpleQueue()
    waiting: deque[Future[list[OutlineRow]]] = deque()
    with ExitStack() as stack:
        for _ in range(helpers):
            # Not from the current folder, which is anybody's: hence -P.
            command = [sys.executable, "-P", "-m", outline_worker.__name__]
            worker = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
            stack.callback(_stop_worker, worker)
            free.put(worker)
        threads = stack.enter_context(ThreadPoolExecutor(helpers))
        for batch in batches:
            while waiting and waiting[0].done():
                yield waiting.popleft().result()
            if len(waiting) < 2 * helpers:
                waiting.append(threads.submit(_outline_remotely, free, batch))
            else:
                yield outline_worker.outline_batch(batch)
        while waiting:
            yield waiting.popleft().result()


def _outline_remotely(free: SimpleQueue[Popen[bytes]], batch: list[OutlineJob]) -> list[OutlineRow]:
    """What another process makes of it; or this one, where the other is no use."""
    worker = free.get()
    try:
        assert worker.stdin
        assert worker.stdout
        outline_worker.send_frame(worker.stdin, msgspec.msgpack.encode(batch))
        return msgspec.msgpack.decode(
            outline_worker.receive_frame(worker.stdout), type=list[OutlineRow]
        )
    except (OSError, EOFError, msgspec.DecodeError):
        return outline_worker.outline_batch(batch)
    finally:
        free.put(worker)


def _stop_worker(worker: Popen[bytes]) -> None:
    worker.kill()
    worker.communicate()
