"""What commands that show numbers have in common: the store, and word of what takes long."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeloop.process.rulebook import Rulebook
    from closeloop.store import Store


@contextmanager
def opened(*, make: bool = False) -> Iterator[tuple[Store, Rulebook]]:
    """The project's store and its rules; a store is made for those who write to it."""
    from closeloop.cli.config import load
    from closeloop.measuring.attempts import book_of
    from closeloop.store.named import open_kept_store, open_named_store

    found = load(Path.cwd())
    # Many small things are made, and no cycles: looking for those would take a fifth of the time.
    gc.disable()
    try:
        opening = open_named_store if make else open_kept_store
        with opening(found.settings, found.root) as store:
            yield store, book_of(found.settings)
    finally:
        gc.enable()


def tell_measuring(done: int, of: int) -> None:
    """A line now and then while attempts are measured that never were."""
    from closeloop.cli.console import warn

    warn(f"{done:,} of {of:,} new attempts are measured.")
