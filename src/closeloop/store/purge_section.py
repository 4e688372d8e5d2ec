"""Purges of secrets: the rewriting, and the tombstones that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
from sqlalchemy import Connection, insert, select

from closeloop.records.session import Purge
from closeloop.store.attempt_rows import column_text
from closeloop.store.private_tables import purges
from closeloop.store.record_rewriting import RewriteValue, rewrite_tables
from closeloop.store.store_section import StoreSection, TransactionRunner


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
