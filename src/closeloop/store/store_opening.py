"""Open a store: to write, or where nothing can be written, to read."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import delete, false

from closeloop.records.errors import BadInput, ReadOnlyStore
from closeloop.records.settings import Settings, has_store
from closeloop.store import schema
from closeloop.store.engine import (
    DATABASE_WAIT_SECONDS,
    MEMORY,
    Reconnection,
    open_engines,
    open_reader,
    restrict_to_owner,
    translate_database_errors,
)
from closeloop.store.migrations import migrate_schema, require_current_schema
from closeloop.store.store import Store


def open_store(
    url: str, wait_seconds: float = DATABASE_WAIT_SECONDS, *, may_be_read_only: bool = False
) -> Store:
    """Open a store that is there, at a path or at `postgresql://…`; BadInput where no file is."""
    if "://" not in url and url != MEMORY and not Path(url).expanduser().exists():
        raise BadInput(
            f"There is no store at {url}: `closeloop import` or `closeloop run` makes one."
        )
    return make_store(url, wait_seconds, may_be_read_only=may_be_read_only)


def make_store(
    url: str, wait_seconds: float = DATABASE_WAIT_SECONDS, *, may_be_read_only: bool = False
) -> Store:
    """Open the store at a path, at `postgresql://…` or in `:memory:`; make or migrate it first.

    A PostgreSQL that goes away later is waited for, so many seconds. ReadOnlyStore where nothing
    can be written, unless that may be.
    """
    try:
        return _open_to_write(url, wait_seconds)
    except ReadOnlyStore:
        if not may_be_read_only:
            raise
    reader, where = open_reader(url)
    store = Store(reader, None, where, Reconnection(where, wait_seconds))
    with store.close_on_failure(), translate_database_errors(where):
        require_current_schema(reader, where)
    return store


def _open_to_write(url: str, wait_seconds: float) -> Store:
    reader, writer, where = open_engines(url)
    reconnection = Reconnection(where, wait_seconds)
    store = Store(reader, writer, where, reconnection)
    with store.close_on_failure(), translate_database_errors(where):
        reconnection.await_start(writer)
        if migrate_schema(writer, where):
            restrict_to_owner(writer)
        with writer.begin() as connection:
            # SQLite lets a read-only file begin; only a write, even of nothing, tells.
            connection.execute(delete(schema.jobs).where(false()))
    return store


# The store that a project's settings name.


def open_project_store(settings: Settings, root: Path, *, may_be_read_only: bool = False) -> Store:
    """An address, or a path below the project's root."""
    url = settings.store if "://" in settings.store else str(root / settings.store)
    store = make_store(url, settings.store_wait_seconds, may_be_read_only=may_be_read_only)
    closeloop_folder = root / ".closeloop"
    if (
        not store.is_read_only
        and closeloop_folder.is_dir()
        and not (closeloop_folder / ".gitignore").exists()
    ):
        # Nobody's source: git need not be told in the project's own file.
        (closeloop_folder / ".gitignore").write_text("*\n", encoding="utf-8")
    return store


def open_existing_store(settings: Settings, root: Path) -> Store:
    """For those who only look: where nothing is kept yet it is empty, and nothing is made."""
    if not has_store(settings, root):
        return make_store(MEMORY)
    return open_project_store(settings, root, may_be_read_only=True)
