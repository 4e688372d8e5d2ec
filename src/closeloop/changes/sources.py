"""Open a change: what differs, and the content of any file before and after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from closeloop.changes import difference, git, patching, revisions, worktree
from closeloop.changes.difference import Difference
from closeloop.changes.shadow import Entry, Shadow, opened
from closeloop.model.change import Change
from closeloop.model.errors import BadInput
from closeloop.model.inspection import Side
from closeloop.model.record import Record


class Wanted(Record):
    """Which change is meant: the working tree's, unless a range or a patch is named."""

    range: str | None = None
    """`main..feature`; `HEAD~3`, all since then; a branch, all since it left; or one commit."""
    patch: Path | None = None
    base: str | None = None
    """What to compare with; the current commit when not given."""


class Sides:
    """Both ends of a change. Contents are read when they are asked for, by one process."""

    change: Change
    title: str
    base: str | None
    """The commit before the change; None before the first one, or without a repository."""
    head: str | None
    """The commit after it; None for a working tree or a patch."""
    root: Path
    """The repository; without one, the folder that was named."""

    def __init__(self, shadow: Shadow, root: Path, title: str, told: Difference) -> None:
        self.change = Change(base=told.base, head=told.head, files=told.files, patch=told.patch)
        self.base, self.head, self.title, self.root = told.base, told.head, title, root
        self._shadow, self._told = shadow, told
        self._entries: dict[Side, Mapping[str, Entry]] = {}
        self._trees: dict[Side, Mapping[str, str]] = {}

    def read(self, side: Side, path: str) -> bytes | None:
        """A file's content; None where there is none, for links and submodules, and over 5 MB."""
        changed = self._told.before if side == "before" else self._told.after
        entry = changed[path] if path in changed else self.entries(side).get(path)
        return self.read_blob(entry.id) if entry and entry.mode.startswith("100") else None

    def read_blob(self, blob: str) -> bytes | None:
        """Content by its id; of a link, where it leads. None where it cannot be had."""
        return self._shadow.blobs.read(blob)

    def tree(self, side: Side) -> Mapping[str, str]:
        """The blob of every plain file at that end; all zeros for one that was not read."""
        if side not in self._trees:
            entries = self.entries(side).items()
            plain = {path: entry.id for path, entry in entries if entry.mode.startswith("100")}
            self._trees[side] = plain
        return self._trees[side]

    def entries(self, side: Side) -> Mapping[str, Entry]:
        """Everything at that end with its mode, links and submodules included."""
        if side not in self._entries:
            told, listed = self._told, self._shadow.listed
            if side == "before":
                self._entries[side] = listed(told.base) if told.base else {}
            else:
                after = {**listed(told.head), **told.after}
                self._entries[side] = {path: entry for path, entry in after.items() if entry}
        return self._entries[side]


@contextmanager
def open_sides(root: Path, wanted: Wanted) -> Iterator[Sides]:
    """The change in the repository around `root`; BadInput says why there is none."""
    repository = git.find(root)
    if repository is None and (wanted.patch is None or wanted.base):
        raise BadInput(
            f"{root} is not a git repository: run it inside one, or name a patch with --patch."
        )
    if wanted.range and wanted.patch:
        raise BadInput("A range and a patch are two changes: name one of them.")
    worked = wanted.range is None and wanted.patch is None
    with opened(repository, worked) as shadow:
        if repository is None:
            assert wanted.patch
            told, title = patching.alone(shadow, wanted.patch), wanted.patch.name
        else:
            told, title = _told(repository, shadow, wanted)
        if not told.files:
            raise BadInput(f"There is no change in {title}: nothing differs from its base.")
        yield Sides(shadow, repository.root if repository else root, title, told)


def _told(repository: git.Repository, shadow: Shadow, wanted: Wanted) -> tuple[Difference, str]:
    if wanted.range is not None:
        ends = revisions.of_range(repository, wanted.range, wanted.base)
        return difference.tell(shadow, ends.base, ends.head), ends.title
    if wanted.patch:
        (base,) = revisions.resolve(repository, wanted.base or "HEAD")
        on = f" on {wanted.base}" if wanted.base else ""
        more = patching.take(shadow, wanted.patch, base)
        return difference.tell(shadow, base, None, more), f"{wanted.patch.name}{on}"
    if repository.bare:
        raise BadInput(f"{repository.root} is bare and has no working tree: name a range.")
    base = revisions.since(repository, wanted.base or "HEAD")
    more = worktree.take(repository, shadow)
    title = f"working tree against {wanted.base}" if wanted.base else "working tree"
    return difference.tell(shadow, base, None, more), title
