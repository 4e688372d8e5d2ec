"""The store that a project's settings name."""

from __future__ import annotations

from pathlib import Path

from closeloop.model.settings import Settings, has_store
from closeloop.store.engine import MEMORY
from closeloop.store.store import Store, open_store


def open_named_store(settings: Settings, root: Path) -> Store:
    """An address, or a path below the project's root."""
    if "://" in settings.store:
        return open_store(settings.store)
    store = open_store(str(root / settings.store))
    ours = root / ".closeloop"
    if ours.is_dir() and not (ours / ".gitignore").exists():
        # Nobody's source: git need not be told in the project's own file.
        (ours / ".gitignore").write_text("*\n", encoding="utf-8")
    return store


def open_kept_store(settings: Settings, root: Path) -> Store:
    """For those who only look: where nothing is kept yet it is empty, and nothing is made."""
    return open_named_store(settings, root) if has_store(settings, root) else open_store(MEMORY)
