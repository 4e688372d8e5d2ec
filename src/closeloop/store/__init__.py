"""One schema for SQLite and PostgreSQL: the shelf on which everything is kept."""

from closeloop.store.attempt_rows import make_attempt_row
from closeloop.store.store import Store
from closeloop.store.store_opening import open_store

__all__ = ["Store", "make_attempt_row", "open_store"]
