"""Open a change: what differs, and the content of any file before and after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from closeloop import git
from closeloop.changes import difference, patching, revisions, worktree
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
    staged: bool = False
    """What is in the index, and not what else lies in the working tree."""
    index: Path | None = None
    """The index that a commit under way is made from, where git names another one."""


class NoChange(BadInput):
    """Nothing differs."""


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

    def at(self, commit: str) -> Mapping[str, Entry]:
        """Everything in a commit; nothing where the repository does not have it."""
        if commit == self.base:
            return self.entries("before")
        try:
            return self._shadow.listed(commit)
        except git.Failed:
            return {}

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
    if bool(wanted.range) + bool(wanted.patch) + wanted.staged > 1:
        raise BadInput("A range, a patch and what is staged are several changes: name one of them.")
    worked = wanted.range is None and wanted.patch is None and not wanted.staged
    with opened(repository, worked) as shadow:
        if repository is None:
            assert wanted.patch
            told, title = patching.alone(shadow, wanted.patch), wanted.patch.name
        else:
            told, title = _told(repository, shadow, wanted)
        if not told.files:
            raise NoChange(f"There is no change in {title}: nothing differs from its base.")
        yield Sides(shadow, repository.root if repository else root, title, told)


def find_commit_before(root: Path, wanted: Wanted) -> str | None:
    """The commit before a change, whose configuration is believed; None where there is none."""
    repository = git.find(root)
    if repository is None:
        return None
    if wanted.range is not None:
        return revisions.of_range(repository, wanted.range, wanted.base).base
    if wanted.base and wanted.patch:
        return revisions.resolve(repository, wanted.base)[0]
    if wanted.base:
        return revisions.since(repository, wanted.base)
    return git.ask(repository, "rev-parse", "--verify", "-q", "HEAD^{commit}")


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
    if wanted.staged:
        worktree.stage(repository, shadow, wanted.index)
        since = revisions.since(repository, wanted.base) if wanted.base else None
        since = since or git.ask(repository, "rev-parse", "--verify", "-q", "HEAD^{commit}")
        return difference.tell(shadow, since, None), "what is staged"
    base = revisions.since(repository, wanted.base or "HEAD")
    more = worktree.take(repository, shadow)
    title = f"working tree against {wanted.base}" if wanted.base else "working tree"
    return difference.tell(shadow, base, None, more), title
