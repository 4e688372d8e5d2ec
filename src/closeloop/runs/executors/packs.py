"""Repositories that travel: some commits of one, without their history, as a pack of objects."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from closeloop.git import Failed, run
from closeloop.model.errors import BadInput
from closeloop.model.record import digest
from closeloop.runs.workspaces.repository import PLAIN, git_folder


def pack_name(commits: Sequence[str]) -> str:
    """Commits are named by their content, so a pack of them is too."""
    return digest(sorted(commits))[:32]


def pack(repo: str, commits: Sequence[str]) -> bytes:
    """All files of these commits of a repository on this machine."""
    folder = git_folder(repo)
    listed = _git(folder, "rev-list", "--objects", "--no-walk", *sorted(commits))
    return _git(folder, "pack-objects", "-q", "--stdout", "--delta-base-offset", stdin=listed)


def unpack(content: bytes, commits: Sequence[str], folder: Path) -> None:
    """A bare repository with just these commits; it becomes visible whole or not at all."""
    making = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
    making.mkdir(parents=True)
    try:
        kind = "sha256" if len(commits[0]) == 64 else "sha1"
        _git(str(making), "init", "-q", "--bare", "--template=", f"--object-format={kind}")
        # Their parents are not there, and nobody shall look for them.
        (making / "shallow").write_text("".join(f"{commit}\n" for commit in sorted(commits)))
        _git(str(making), "index-pack", "--stdin", stdin=content)
        for commit in commits:
            _git(str(making), "update-ref", f"refs/heads/{commit}", commit)
        os.rename(making, folder)  # noqa: PTH104
    except OSError:
        if not folder.is_dir():  # else somebody else was first, with the same
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _git(folder: str, *arguments: str, stdin: bytes = b"") -> bytes:
    try:
        return run(folder, *arguments, env={**PLAIN, "GIT_DIR": folder}, stdin=stdin)
    except Failed as failed:
        reason = str(failed).removeprefix("Git says: ")
        raise BadInput(f"`git {arguments[0]}` failed in {folder}: {reason}") from None
