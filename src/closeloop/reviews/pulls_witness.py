"""Who tells of a repository: the same thing becomes the same fact, whoever tells it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from closeloop.model.review import Fact, Source, What
from closeloop.reviews.lifecycle_pointers import pointers_of


class Witness:
    """Says facts about one repository."""

    source: Source

    def __init__(self, repo: str, heard: datetime) -> None:
        self.repo = repo
        self.heard = heard
        """When it was told, for what does not say when it happened."""

    def fact(
        self, what: What, at: datetime | None, *key: object, pull: int | None = None, sha: str = ""
    ) -> Fact:
        """One fact; its key is what makes it another one."""
        return Fact(
            source=self.source,
            repo=self.repo,
            pull=pull,
            sha=sha or None,
            at=at or self.heard,
            key=":".join(map(str, key)),
            what=what,
        )

    def pointers(self, message: str, by: str, at: datetime) -> Iterator[Fact]:
        """What a message of something that was merged takes back or repairs."""
        for number, pointer in pointers_of(message, self.repo, by, at):
            key = ("pointer", pointer.kind, number or pointer.sha, by)
            yield self.fact(pointer, at, *key, pull=number, sha=pointer.sha or "")
