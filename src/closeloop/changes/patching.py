"""A patch from a file, applied to our own index."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from closeloop import git
from closeloop.changes import difference
from closeloop.changes.difference import Difference
from closeloop.changes.shadow import Shadow
from closeloop.model.change import Change, FileChange
from closeloop.model.errors import BadInput
from closeloop.model.patches import parse

LARGEST_PATCH = 200_000_000


def take(shadow: Shadow, patch: Path, base: str) -> list[FileChange]:
    """Fill our index with the base and change it; files whose content is not told come back."""
    content, change = _read(patch)
    shadow.read("read-tree", base)
    entries = shadow.listed(None)
    touched = {path for file in change.files for path in (file.path, file.old_path) if path}
    shadow.lend(entry.id for path, entry in entries.items() if path in touched)
    told = b"GIT binary patch" in content
    bare = [file for file in change.files if file.binary and not told]
    _apply(shadow, patch, content, bare)
    return [replace(file, note="binary: the patch does not tell its content") for file in bare]


def alone(shadow: Shadow, patch: Path) -> Difference:
    """A patch without a repository: only of the files that it adds is the content known."""
    content, change = _read(patch)
    others = [file for file in change.files if file.status != "added" or file.binary]
    _apply(shadow, patch, content, others)
    told = difference.tell(shadow, None, None)
    unknown = {path: None for file in others for path in (file.path, file.old_path) if path}
    return replace(
        told,
        files=change.files,
        patch=change.patch,
        before=unknown,
        after={**told.after, **unknown},
    )


def _read(patch: Path) -> tuple[bytes, Change]:
    try:
        with patch.open("rb") as file:
            content = file.read(LARGEST_PATCH + 1)
    except OSError as error:
        raise BadInput(f"{patch} cannot be read: {error.strerror}.") from None
    if len(content) > LARGEST_PATCH:
        raise BadInput(f"{patch} is over {LARGEST_PATCH:,} bytes: check it in parts.")
    return content, parse(content.decode("utf-8", "replace"))


def _apply(shadow: Shadow, patch: Path, content: bytes, without: list[FileChange]) -> None:
    if not content.strip():
        return
    apply = ("apply", "--cached", "--whitespace=nowarn")
    excluded = [f"--exclude={_literal(file.path)}" for file in without]
    try:
        shadow.write(*apply, "-p1", *excluded, stdin=content)
    except git.Failed as failure:
        # Plain `diff -u` names files as they are, without `a/` and `b/` before them.
        try:
            shadow.write(*apply, "-p0", *excluded, stdin=content)
        except git.Failed:
            raise BadInput(
                f"{patch.name} does not apply ({failure}): name the commit it was made from."
            ) from None


def _literal(name: str) -> str:
    """A glob that means this name only."""
    return re.sub(r"([*?\[\\])", r"\\\1", name)
