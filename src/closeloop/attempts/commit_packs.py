"""Repositories that travel: some commits of one, without their history, as a pack of objects."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from closeloop.git import GitFailed, run_git
from closeloop.records.errors import BadInput
from closeloop.records.record import content_digest
from closeloop.sandbox.workspaces.source_repository import PLAIN_ENVIRONMENT, git_folder


def name_pack(commits: Sequence[str]) -> str:
    """Commits are named by their content, so a pack of them is too."""
    return content_digest(sorted(commits))[:32]


def pack_commits(repo: str, commits: Sequence[str]) -> bytes:
    """All files of these commits of a repository on this machine."""
    folder = git_folder(repo)
    object_list = _run_pack_git(folder, "rev-list", "--objects", "--no-walk", *sorted(commits))
    return _run_pack_git(
        folder, "pack-objects", "-q", "--stdout", "--delta-base-offset", stdin=object_list
    )


def unpack_commits(content: bytes, commits: Sequence[str], folder: Path) -> None:
    """A bare repository with just these commits; it becomes visible whole or not at all."""
    temporary_folder = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
    temporary_folder.mkdir(parents=True)
    try:
        kind = "sha256" if len(commits[0]) == 64 else "sha1"
        _run_pack_git(
            str(temporary_folder), "init", "-q", "--bare", "--template=", f"--object-format={kind}"
        )
        # Their parents are not there, and nobody shall look for them.
        (temporary_folder / "shallow").write_text(
            "".join(f"{commit}\n" for commit in sorted(commits))
        )
        _run_pack_git(str(temporary_folder), "index-pack", "--stdin", stdin=content)
        for commit in commits:
            _run_pack_git(str(temporary_folder), "update-ref", f"refs/heads/{commit}", commit)
        os.rename(temporary_folder, folder)  # noqa: PTH104
    except OSError:
        if not folder.is_dir():  # else somebody else was first, with the same
            raise
    finally:
        shutil.rmtree(temporary_folder, ignore_errors=True)


def _run_pack_git(folder: str, *arguments: str, stdin: bytes = b"") -> bytes:
    try:
        return run_git(
            folder, *arguments, env={**PLAIN_ENVIRONMENT, "GIT_DIR": folder}, stdin=stdin
        )
    except GitFailed as failed:
        reason = str(failed).removeprefix("Git says: ")
        raise BadInput(f"`git {arguments[0]}` failed in {folder}: {reason}") from None
