"""A patch from a file, applied to our own index."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from closeloop import git
from closeloop.changes import tree_diff
from closeloop.changes.shadow_repository import ShadowRepository
from closeloop.changes.tree_diff import TreeDiff
from closeloop.records.change import Change, FileChange
from closeloop.records.errors import BadInput
from closeloop.records.patch_parsing import parse_patch

MAX_PATCH_BYTES = 200_000_000


def index_patch(shadow: ShadowRepository, patch: Path, base: str) -> list[FileChange]:
    """Fill our index with the base and change it; files whose content is not told come back."""
    content, change = _read_patch(patch)
    shadow.run_git_reading("read-tree", base)
    entries = shadow.list_entries(None)
    touched = {path for file in change.files for path in (file.path, file.old_path) if path}
    shadow.copy_blobs(entry.id for path, entry in entries.items() if path in touched)
    has_binary_content = b"GIT binary patch" in content
    bare = [file for file in change.files if file.binary and not has_binary_content]
    _apply_patch(shadow, patch, content, bare)
    return [replace(file, note="binary: the patch does not tell its content") for file in bare]


def diff_standalone_patch(shadow: ShadowRepository, patch: Path) -> TreeDiff:
    """A patch without a repository: only of the files that it adds is the content known."""
    content, change = _read_patch(patch)
    others = [file for file in change.files if file.status != "added" or file.binary]
    _apply_patch(shadow, patch, content, others)
    added_diff = tree_diff.diff_trees(shadow, None, None)
    unknown = {path: None for file in others for path in (file.path, file.old_path) if path}
    return replace(
        added_diff,
        files=change.files,
        patch=change.patch,
        before=unknown,
        after={**added_diff.after, **unknown},
    )


def _read_patch(patch: Path) -> tuple[bytes, Change]:
    try:
        with patch.open("rb") as file:
            content = file.read(MAX_PATCH_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{patch} cannot be read: {error.strerror}.") from None
    if len(content) > MAX_PATCH_BYTES:
        raise BadInput(f"{patch} is over {MAX_PATCH_BYTES:,} bytes: check it in parts.")
    return content, parse_patch(content.decode("utf-8", "replace"))


def _apply_patch(
    shadow: ShadowRepository, patch: Path, content: bytes, without: list[FileChange]
) -> None:
    if not content.strip():
        return
    apply = ("apply", "--cached", "--whitespace=nowarn")
    excluded = [f"--exclude={_escape_glob(file.path)}" for file in without]
    try:
        shadow.run_git_writing(*apply, "-p1", *excluded, stdin=content)
    except git.GitFailed as failure:
        # Plain `diff -u` names files as they are, without `a/` and `b/` before them.
        try:
            shadow.run_git_writing(*apply, "-p0", *excluded, stdin=content)
        except git.GitFailed:
            raise BadInput(
                f"{patch.name} does not apply ({failure}): name the commit it was made from."
            ) from None


def _escape_glob(name: str) -> str:
    """A glob that means this name only."""
    return re.sub(r"([*?\[\\])", r"\\\1", name)
