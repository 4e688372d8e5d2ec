"""What commands about reviews and memory have in common: how they open what they need."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.config import ProjectConfiguration, load_project

if TYPE_CHECKING:
    from closeloop.records.protocols import Encoder
    from closeloop.reviews.authorship import AgentSignsByName
    from closeloop.reviews.rule_index import RuleIndex
    from closeloop.store import Store


class ReviewContext:
    """The project's store, and what is opened only where it is used."""

    def __init__(self, found: ProjectConfiguration, store: Store) -> None:
        self.settings = found.settings
        self.root = found.root
        self.store = store

    @cached_property
    def encoder(self) -> Encoder:
        from closeloop.reviews.text_vectors import open_encoder

        return open_encoder(self.settings, self.root, os.environ)

    @cached_property
    def rule_index(self) -> RuleIndex:
        from closeloop.reviews.rule_index import RuleIndex

        return RuleIndex(self.store, self.encoder)

    @cached_property
    def agents(self) -> AgentSignsByName:
        from closeloop.reviews.authorship import merge_known_agents

        return merge_known_agents(self.settings.pulls.agents)

    @cached_property
    def repo(self) -> str:
        """`owner/name` of where this clone came from, else its path."""
        from closeloop.reviews.prompt_context import clone_repository_name

        return clone_repository_name(str(self.root))


@contextmanager
def open_review_context(
    *, make: bool = False, found: ProjectConfiguration | None = None
) -> Iterator[ReviewContext]:
    """The project's store, opened and closed again; it is made for those who write to it."""
    from closeloop.store.project_store import open_existing_store, open_project_store

    # For products as small as an encoder's, more threads only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    found = found or load_project(Path.cwd())
    opening = open_project_store if make else open_existing_store
    with opening(found.settings, found.root) as store:
        yield ReviewContext(found, store)


def current_user() -> str:
    """Whose word it is, where nobody says."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"
