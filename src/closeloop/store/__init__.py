"""The store: everything that closeloop saves, in one schema for SQLite and PostgreSQL."""

from closeloop.store.attempt_rows import make_attempt_row
from closeloop.store.store import Store, make_store
from closeloop.store.store import make_store as open_store

# This `open_store` creates a missing store; `closeloop.open_store`, the public one, does not.
__all__ = ["Store", "make_attempt_row", "make_store", "open_store"]
