"""Open a change: what differs, and the content of any file before and after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from closeloop import git
from closeloop.changes import patch_file, revisions, tree_diff, worktree
from closeloop.changes.shadow_repository import ShadowRepository, TreeEntry, open_shadow
from closeloop.changes.tree_diff import TreeDiff
from closeloop.records.change import Change
from closeloop.records.errors import BadInput
from closeloop.records.inspection import ChangeSide
from closeloop.records.record import Record


class ChangeQuery(Record):
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


class ChangeSides:
    """Both ends of a change. Contents are read when they are asked for, by one process."""

    change: Change
    title: str
    base: str | None
    """The commit before the change; None before the first one, or without a repository."""
    head: str | None
    """The commit after it; None for a working tree or a patch."""
    root: Path
    """The repository; without one, the folder that was named."""

    def __init__(self, shadow: ShadowRepository, root: Path, title: str, told: TreeDiff) -> None:
        self.change = Change(base=told.base, head=told.head, files=told.files, patch=told.patch)
        self.base, self.head, self.title, self.root = told.base, told.head, title, root
        self._shadow, self._told = shadow, told
        self._entries: dict[ChangeSide, Mapping[str, TreeEntry]] = {}
        self._trees: dict[ChangeSide, Mapping[str, str]] = {}

    def read(self, side: ChangeSide, path: str) -> bytes | None:
        """A file's content; None where there is none, for links and submodules, and over 5 MB."""
        changed = self._told.before if side == "before" else self._told.after
        entry = changed[path] if path in changed else self.list_entries(side).get(path)
        return self.read_blob(entry.id) if entry and entry.mode.startswith("100") else None

    def read_blob(self, blob: str) -> bytes | None:
        """Content by its id; of a link, where it leads. None where it cannot be had."""
        return self._shadow.blobs.read(blob)

    def tree(self, side: ChangeSide) -> Mapping[str, str]:
        """The blob of every plain file at that end; all zeros for one that was not read."""
        if side not in self._trees:
            entries = self.list_entries(side).items()
            plain = {path: entry.id for path, entry in entries if entry.mode.startswith("100")}
            self._trees[side] = plain
        return self._trees[side]

    def entries_at_commit(self, commit: str) -> Mapping[str, TreeEntry]:
        """Everything in a commit; nothing where the repository does not have it."""
        if commit == self.base:
            return self.list_entries("before")
        try:
            return self._shadow.list_entries(commit)
        except git.GitFailed:
            return {}

    def list_entries(self, side: ChangeSide) -> Mapping[str, TreeEntry]:
        """Everything at that end with its mode, links and submodules included."""
        if side not in self._entries:
            change_diff, listed = self._told, self._shadow.list_entries
            if side == "before":
                self._entries[side] = listed(change_diff.base) if change_diff.base else {}
            else:
                after = {**listed(change_diff.head), **change_diff.after}
                self._entries[side] = {path: entry for path, entry in after.items() if entry}
        return self._entries[side]


@contextmanager
def open_sides(root: Path, wanted: ChangeQuery) -> Iterator[ChangeSides]:
    """The change in the repository around `root`; BadInput says why there is none."""
    repository = git.find_repository(root)
    if repository is None and (wanted.patch is None or wanted.base):
        raise BadInput(
            f"{root} is not a git repository: run it inside one, or name a patch with --patch."
        )
    if bool(wanted.range) + bool(wanted.patch) + wanted.staged > 1:
        raise BadInput("A range, a patch and what is staged are several changes: name one of them.")
    worked = wanted.range is None and wanted.patch is None and not wanted.staged
    with open_shadow(repository, worked) as shadow:
        if repository is None:
            assert wanted.patch
            change_diff, title = (
                patch_file.diff_standalone_patch(shadow, wanted.patch),
                wanted.patch.name,
            )
        else:
            change_diff, title = _diff_for_query(repository, shadow, wanted)
        if not change_diff.files:
            raise NoChange(f"There is no change in {title}: nothing differs from its base.")
        yield ChangeSides(shadow, repository.root if repository else root, title, change_diff)


def find_commit_before(root: Path, wanted: ChangeQuery) -> str | None:
    """The commit before a change, whose configuration is believed; None where there is none."""
    repository = git.find_repository(root)
    if repository is None:
        return None
    if wanted.range is not None:
        return revisions.resolve_range(repository, wanted.range, wanted.base).base
    if wanted.base and wanted.patch:
        return revisions.resolve_commits(repository, wanted.base)[0]
    if wanted.base:
        return revisions.find_merge_base(repository, wanted.base)
    return git.query_git(repository, "rev-parse", "--verify", "-q", "HEAD^{commit}")


def _diff_for_query(
    repository: git.GitRepository, shadow: ShadowRepository, wanted: ChangeQuery
) -> tuple[TreeDiff, str]:
    if wanted.range is not None:
        ends = revisions.resolve_range(repository, wanted.range, wanted.base)
        return tree_diff.diff_trees(shadow, ends.base, ends.head), ends.title
    if wanted.patch:
        (base,) = revisions.resolve_commits(repository, wanted.base or "HEAD")
        on = f" on {wanted.base}" if wanted.base else ""
        more = patch_file.index_patch(shadow, wanted.patch, base)
        return tree_diff.diff_trees(shadow, base, None, more), f"{wanted.patch.name}{on}"
    if repository.bare:
        raise BadInput(f"{repository.root} is bare and has no working tree: name a range.")
    if wanted.staged:
        worktree.index_staged_files(repository, shadow, wanted.index)
        since = revisions.find_merge_base(repository, wanted.base) if wanted.base else None
        since = since or git.query_git(repository, "rev-parse", "--verify", "-q", "HEAD^{commit}")
        return tree_diff.diff_trees(shadow, since, None), "what is staged"
    base = revisions.find_merge_base(repository, wanted.base or "HEAD")
    more = worktree.index_worktree(repository, shadow)
    title = f"working tree against {wanted.base}" if wanted.base else "working tree"
    return tree_diff.diff_trees(shadow, base, None, more), title
