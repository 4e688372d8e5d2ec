"""A change as a branch of the user's repository, written beside whatever is going on there.

Only objects and the one ref are added: work tree, index and HEAD are never looked at, no hook runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from closeloop.model.errors import BadInput
from closeloop.runs.workspaces.repository import START, git_folder, is_address, trusted

SECONDS = 120
_PLAINLY = ("-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false")


def branch_name(task: str, attempt: str) -> str:
    """`closeloop/TASK/ATTEMPT`, with what git does not allow in a name replaced."""
    return f"closeloop/{re.sub(r'[.](?=[.]|lock$|$)', '_', task)}/{attempt}"


def has_branches(repo: str | None) -> bool:
    """Whether it is a repository on this machine."""
    return repo is not None and not is_address(repo) and Path(repo).is_dir()


def make_branch(
    repo: str, base: str, patch: str, name: str, message: str, *, at: datetime | None = None
) -> None:
    """Point a branch at the base with the patch on top; BadInput when that cannot be done."""
    folder = git_folder(repo)
    when = {} if at is None else {who: at.isoformat() for who in _DATES}
    with tempfile.TemporaryDirectory(prefix="closeloop-") as private:
        env = {**START, **when, "GIT_INDEX_FILE": f"{private}/index"}
        _git(folder, env, "read-tree", base)
        if patch.strip():
            content = patch.encode("utf-8", "surrogateescape")
            _git(folder, env, "apply", "--cached", "--whitespace=nowarn", "-", stdin=content)
        tree = _git(folder, env, "write-tree")
        commit = _git(folder, env, "commit-tree", tree, "-p", base, stdin=message.encode())
        _git(folder, env, "update-ref", f"refs/heads/{name}", commit)


_DATES = ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE")


def _git(folder: str, env: Mapping[str, str], *arguments: str, stdin: bytes = b"") -> str:
    try:
        ran = subprocess.run(
            ["git", *_PLAINLY, "--git-dir", folder, *arguments],
            env={**trusted(), **env},
            input=stdin,
            capture_output=True,
            check=False,
            timeout=SECONDS,
            cwd=os.path.dirname(env["GIT_INDEX_FILE"]),  # noqa: PTH120
        )
    except subprocess.TimeoutExpired as error:
        raise BadInput(f"`git {arguments[0]}` takes too long in {folder}: look at it.") from error
    if ran.returncode != 0:
        said = ran.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise BadInput(f"The branch cannot be made in {folder}: {said[-1]}")
    return ran.stdout.decode().strip()
