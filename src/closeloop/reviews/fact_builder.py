"""Who tells of a repository: the same thing becomes the same fact, whoever tells it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from closeloop.records.pull_request import Fact, FactBody, FactSource, FileEdit, PullExtent, Push
from closeloop.records.record import content_digest
from closeloop.reviews.pull_pointers import parse_pointers

MAX_TEXT_CHARS = 20_000
"""Characters of a text that are kept."""
MAX_ITEMS = 2_000
"""Commits, files and labels of one pull request that are kept."""
NO_COMMIT = "0" * 40
"""The commit before a branch's first one, and after its last."""


class FactBuilder:
    """Says facts about one repository."""

    source: FactSource

    def __init__(self, repo: str, heard: datetime) -> None:
        self.repo = repo
        self.heard = heard
        """When it was told, for what does not say when it happened."""

    def make_fact(
        self,
        what: FactBody,
        at: datetime | None,
        *key: object,
        pull: int | None = None,
        sha: str = "",
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

    def push_fact(self, number: int, push: Push) -> Fact:
        key = ("push", number, push.before, push.after)
        return self.make_fact(push, push.at, *key, pull=number, sha=push.after)

    def extent_fact(self, number: int, extent: PullExtent, at: datetime | None) -> Fact:
        return self.make_fact(
            extent, at, "extent", number, content_digest(extent)[:16], pull=number
        )

    def pointer_facts(self, message: str, by: str, at: datetime) -> Iterator[Fact]:
        """What a message of something that was merged takes back or repairs."""
        for number, pointer in parse_pointers(message, self.repo, by, at):
            key = ("pointer", pointer.kind, number or pointer.sha, by)
            yield self.make_fact(pointer, at, *key, pull=number, sha=pointer.sha or "")


def pushed_file_edits(*paths: Sequence[str]) -> tuple[FileEdit, ...]:
    """The files that a push lists, by what was done to them; nobody says how many lines."""
    names = dict.fromkeys(path for some in paths for path in some)
    return tuple(FileEdit(path=name) for name in list(names)[:MAX_ITEMS])
