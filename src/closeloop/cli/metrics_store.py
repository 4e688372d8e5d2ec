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
def open_metrics_store(*, make: bool = False) -> Iterator[tuple[Store, Rulebook]]:
    """The project's store and its rules; a store is made for those who write to it."""
    from closeloop.cli.config import load_project
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.store.project_store import open_existing_store, open_project_store

    project = load_project(Path.cwd())
    # Many small things are made, and no cycles: looking for those would take a fifth of the time.
    gc.disable()
    try:
        store_opener = open_project_store if make else open_existing_store
        with store_opener(project.settings, project.root) as store:
            yield store, project_rulebook(project.settings)
    finally:
        gc.enable()


def print_measuring_progress(done: int, of: int) -> None:
    """A line now and then while attempts are measured that never were."""
    from closeloop.cli.console import print_warning

    print_warning(f"{done:,} of {of:,} new attempts are measured.")
