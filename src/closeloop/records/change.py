"""A change: what differs between two states of a repository."""

from __future__ import annotations

from typing import Literal

from closeloop.records.record import Record


class Hunk(Record):
    """Lines replaced at one place."""

    old_start: int
    old_lines: int
    new_start: int
    new_lines: int


class FileChange(Record):
    """One file of a change."""

    path: str
    status: Literal["added", "changed", "deleted", "renamed"]
    old_path: str | None = None
    """Where it was, when it was renamed."""
    added: int = 0
    removed: int = 0
    binary: bool = False
    hunks: tuple[Hunk, ...] = ()
    old_mode: str | None = None
    mode: str | None = None
    """As git writes them: 100644, 100755 for a program, 120000 a link, 160000 a submodule."""
    note: str | None = None
    """Why its content is not all told: too large, a pointer of Git LFS, …"""


class Change(Record):
    """A patch and what it touches."""

    base: str | None = None
    head: str | None = None
    files: tuple[FileChange, ...] = ()
    patch: str = ""
