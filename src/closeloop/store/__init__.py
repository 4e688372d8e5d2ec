"""One schema for SQLite and PostgreSQL: the shelf on which everything is kept."""

from closeloop.store.opening import open_store
from closeloop.store.rows import row_of
from closeloop.store.store import Store

__all__ = ["Store", "open_store", "row_of"]
