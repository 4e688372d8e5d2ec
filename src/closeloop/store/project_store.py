"""The store that a project's settings name."""

from __future__ import annotations

from pathlib import Path

from closeloop.records.settings import Settings, has_store
from closeloop.store.engine import MEMORY
from closeloop.store.store import Store
from closeloop.store.store_opening import open_store


def open_project_store(settings: Settings, root: Path, *, may_be_read_only: bool = False) -> Store:
    """An address, or a path below the project's root."""
    url = settings.store if "://" in settings.store else str(root / settings.store)
    store = open_store(url, settings.store_wait_seconds, may_be_read_only=may_be_read_only)
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
        return open_store(MEMORY)
    return open_project_store(settings, root, may_be_read_only=True)
