"""What commands about reviews and memory have in common: how they open what they need."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.config import Configuration, load

if TYPE_CHECKING:
    from closeloop.model.protocols import Encoder
    from closeloop.reviewing.shelf import Shelf
    from closeloop.reviews.authorship import Agents
    from closeloop.store import Store


class Opened:
    """The project's store, and what is opened only where it is used."""

    def __init__(self, found: Configuration, store: Store) -> None:
        self.settings = found.settings
        self.root = found.root
        self.store = store

    @cached_property
    def encoder(self) -> Encoder:
        from closeloop.reviewing.encoding import open_encoder

        return open_encoder(self.settings, self.root, os.environ)

    @cached_property
    def shelf(self) -> Shelf:
        from closeloop.reviewing.shelf import Shelf

        return Shelf(self.store, self.encoder)

    @cached_property
    def agents(self) -> Agents:
        from closeloop.reviews.authorship import agents_of

        return agents_of(self.settings.pulls.agents)

    @cached_property
    def repo(self) -> str:
        """`owner/name` of where this clone came from, else its path."""
        from closeloop.reviewing.briefing import called

        return called(str(self.root))


@contextmanager
def opened(*, make: bool = False, found: Configuration | None = None) -> Iterator[Opened]:
    """The project's store, opened and closed again; it is made for those who write to it."""
    from closeloop.store.named import open_kept_store, open_named_store

    # For products as small as an encoder's, more threads only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    found = found or load(Path.cwd())
    opening = open_named_store if make else open_kept_store
    with opening(found.settings, found.root) as store:
        yield Opened(found, store)


def me() -> str:
    """Whose word it is, where nobody says."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"
