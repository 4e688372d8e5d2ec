"""Rewrite what is stored, wherever it stands: the one way to take a leaked secret out of facts.

Ids and digests stay as they are, so that everything that points at a record still finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, LargeBinary, Table, Text, insert, select, tuple_, update

from closeloop.records.session import Purge
from closeloop.store import schema
from closeloop.store.attempt_rows import column_text
from closeloop.store.engine import MEMORY
from closeloop.store.fact_rows import StoreSection, TransactionRunner
from closeloop.store.migrations import MIGRATIONS, allow_changes
from closeloop.store.record_bodies import compress_content, decompress_body
from closeloop.store.schema import purges
from closeloop.store.search_section import SEARCHED_TABLES, rebuild_search_index

BATCH_ROWS = 100
UNTOUCHED_TABLES = frozenset(
    {"closeloop_migrations", "jobs", "logins", "purges", "search_documents", "vectors"}
)
"""They hold numbers, names of processes and hashes only."""
IDENTITY_COLUMNS = """
    attempt before digest evaluation experiment grading hash id item judge key parent reference
    request response sha task task_digest token trace variant
"""
"""Columns by which records find each other: ids and digests."""
NON_IDENTITY_COLUMNS = {
    "attempt_bodies": {"trace"},
    "orchestrator_plans": {"request"},
    "subagent_executions": {"trace"},
}
"""Columns that are named like one and hold a text or a body."""
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

RewriteValue = Callable[[Any], Any]
"""Return a text, bytes or a decoded value without the secret, and itself where there is none."""


def rewrite_tables(
    connection: Connection, rewrite: RewriteValue, *, leave: Collection[str] = (), dry: bool
) -> dict[str, int]:
    """Rewrite every record of every table but some; how many records changed in which table."""
    tables = [
        table
        for name, table in schema.metadata.tables.items()
        if name not in UNTOUCHED_TABLES and name not in leave
    ]
    if dry:
        return _rewrite_rows(connection, tables, rewrite, dry=True)
    facts = {name for step in MIGRATIONS for name in step.facts}
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA secure_delete = ON")
    with allow_changes(connection, [table.name for table in tables if table.name in facts]):
        counts = _rewrite_rows(connection, tables, rewrite, dry=False)
    if not SEARCHED_TABLES.isdisjoint(counts):
        rebuild_search_index(connection)
    return counts


def erase_old_bytes(reader: Engine, engine: Engine, tables: Collection[str]) -> None:
    """Let the database forget what rows held before: its free pages, its log, its dead rows."""
    reader.dispose()  # SQLite shortens no log that a connection still reads
    if engine.dialect.name == "sqlite":
        if engine.url.database == MEMORY:
            return
        raw = engine.raw_connection()
        try:
            for statement in ("wal_checkpoint(TRUNCATE)", None, "wal_checkpoint(TRUNCATE)"):
                raw.cursor().execute(f"PRAGMA {statement}" if statement else "VACUUM").fetchall()
        finally:
            raw.close()
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        index = () if SEARCHED_TABLES.isdisjoint(tables) else ("search_documents", "search_words")
        for table in sorted({*tables, *index}):
            connection.exec_driver_sql(f"VACUUM FULL {table}")


def _rewrite_rows(
    connection: Connection, tables: list[Table], rewrite: RewriteValue, *, dry: bool
) -> dict[str, int]:
    counts: dict[str, int] = {}
    for table in tables:
        changed = 0
        for row in _iterate_rows(connection, table):
            new = {
                column.name: value
                for column in _secret_columns(table)
                if (value := _rewrite_value(row[column.name], rewrite)) is not row[column.name]
            }
            changed += bool(new)
            if new and not dry:
                same_key = [column == row[column.name] for column in table.primary_key]
                connection.execute(update(table).where(*same_key).values(**new))
        if changed:
            counts[table.name] = changed
    return counts


def _secret_columns(table: Table) -> list[Any]:
    """The columns that may hold a secret."""
    identities = {*IDENTITY_COLUMNS.split()} - NON_IDENTITY_COLUMNS.get(table.name, set())
    return [
        column
        for column in table.columns
        if isinstance(column.type, Text | LargeBinary)
        and not column.primary_key
        and column.name not in identities
    ]


def _iterate_rows(connection: Connection, table: Table) -> Iterator[Any]:
    """All rows, some at a time: their keys are read first, as rows change on the way."""
    columns = _secret_columns(table)
    if not columns:
        return
    keys = list(table.primary_key)
    row_keys = [tuple(row) for row in connection.execute(select(*keys).order_by(*keys))]
    for start in range(0, len(row_keys), BATCH_ROWS):
        batch_keys = row_keys[start : start + BATCH_ROWS]
        query = select(*keys, *columns).where(tuple_(*keys).in_(batch_keys))
        yield from connection.execute(query).mappings().all()


def _rewrite_value(value: Any, rewrite: RewriteValue) -> Any:
    """A column's value without the secret; itself where there is none."""
    if isinstance(value, str):
        return rewrite(value)
    if not isinstance(value, bytes):
        return value
    is_packed = value.startswith(_ZSTD_MAGIC)
    content = decompress_body(value) if is_packed else value
    new = _rewrite_content(content, rewrite)
    if new == content:
        return value
    return compress_content(new) if is_packed else new


def _rewrite_content(content: bytes, rewrite: RewriteValue) -> bytes:
    """A record in msgpack, or else bytes as they came over the network."""
    try:
        record = msgspec.msgpack.decode(content)
    except (msgspec.DecodeError, ValueError, RecursionError):
        record = None
    if not isinstance(record, dict | list):
        rewritten: bytes = rewrite(content)
        return rewritten
    new = rewrite(_rewrite_packed_parts(record, rewrite))
    return content if new == record else msgspec.msgpack.encode(new)


def _rewrite_packed_parts(value: Any, rewrite: RewriteValue) -> Any:
    """A record whose packed parts are rewritten too, as those of sub-agents' exchanges."""
    match value:
        case bytes():
            return _rewrite_value(value, rewrite)
        case dict():
            return {key: _rewrite_packed_parts(each, rewrite) for key, each in value.items()}
        case list():
            return [_rewrite_packed_parts(each, rewrite) for each in value]
    return value


# Purges of secrets: the rewriting, and the tombstones that it leaves.


class PurgeSection(StoreSection):
    """The part of an open store that takes secrets out of it."""

    def __init__(
        self,
        read: TransactionRunner,
        write: TransactionRunner,
        erase: Callable[[Collection[str]], None],
    ) -> None:
        super().__init__(read, write)
        self._erase = erase

    def rewrite_records(
        self,
        rewrite: RewriteValue,
        tombstone: Callable[[dict[str, int]], Purge],
        leave: Collection[str] = (),
    ) -> Purge | None:
        """Rewrite all records and add a tombstone, in one transaction; None where none changed.

        The tombstone is made of the records by table. Old bytes are erased afterwards, also those
        of an earlier purge that was cut short there.
        """

        def work(on: Connection) -> Purge | None:
            places = rewrite_tables(on, rewrite, leave=leave, dry=False)
            if not places:
                return None
            purge = tombstone(places)
            on.execute(insert(purges), _purge_columns(purge))
            return purge

        purge: Purge | None = self._write(work)
        self._erase(purge.places if purge else ())
        return purge

    def count_records(self, rewrite: RewriteValue) -> dict[str, int]:
        """How many records of which table would change."""
        places: dict[str, int] = self._read(lambda on: rewrite_tables(on, rewrite, dry=True))
        return places

    def list_purges(self) -> list[Purge]:
        """All tombstones, the newest first."""
        query = select(purges).order_by(purges.c.number.desc())
        rows = self._read(lambda on: on.execute(query).all())
        return [
            Purge(
                at=row.at,
                who=row.who,
                kind=row.kind,
                records=row.records,
                places=msgspec.json.decode(row.places, type=dict[str, int]),
                digest=row.digest,
            )
            for row in rows
        ]


def _purge_columns(made: Purge) -> dict[str, object]:
    return {
        "at": made.at,
        "who": column_text(made.who),
        "kind": made.kind,
        "records": made.records,
        "places": msgspec.json.encode(made.places).decode(),
        "digest": made.digest,
    }
