"""A change as a branch of the user's repository, written beside whatever is going on there.

Only objects and the one ref are added: work tree, index and HEAD are never looked at, no hook runs.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from closeloop.git import GitFailed, run_git
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.sandbox.workspaces.source_repository import (
    START_ENVIRONMENT,
    git_folder,
    is_remote_address,
)

GIT_SECONDS = 120


def branch_name(task: str, attempt: str) -> str:
    """`closeloop/TASK/ATTEMPT`, with what git does not allow in a name replaced."""
    return f"closeloop/{re.sub(r'[.](?=[.]|lock$|$)', '_', task)}/{attempt}"


def has_branches(repo: str | None) -> bool:
    """Whether it is a repository on this machine."""
    return repo is not None and not is_remote_address(repo) and Path(repo).is_dir()


def make_branch(
    repo: str, base: str, patch: str, name: str, message: str, *, at: datetime | None = None
) -> None:
    """Point a branch at the base with the patch on top; BadInput when that cannot be done."""
    folder = git_folder(repo)
    date_variables = {} if at is None else {who: at.isoformat() for who in _DATE_VARIABLES}
    with tempfile.TemporaryDirectory(prefix="closeloop-") as private:
        env = {
            **START_ENVIRONMENT,
            **date_variables,
            "GIT_DIR": folder,
            "GIT_INDEX_FILE": f"{private}/index",
        }
        _run_branch_git(env, "read-tree", base)
        if patch.strip():
            content = patch.encode("utf-8", "surrogateescape")
            _run_branch_git(env, "apply", "--cached", "--whitespace=nowarn", "-", stdin=content)
        tree = _run_branch_git(env, "write-tree")
        commit = _run_branch_git(env, "commit-tree", tree, "-p", base, stdin=message.encode())
        _run_branch_git(env, "update-ref", f"refs/heads/{name}", commit)


_DATE_VARIABLES = ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE")


def _run_branch_git(env: Mapping[str, str], *arguments: str, stdin: bytes = b"") -> str:
    index_folder = Path(env["GIT_INDEX_FILE"]).parent
    git_arguments = ("-c", "core.autocrlf=false", *arguments)
    try:
        return (
            run_git(index_folder, *git_arguments, env=env, stdin=stdin, seconds=GIT_SECONDS)
            .decode()
            .strip()
        )
    except GitFailed as failed:
        reason = str(failed).removeprefix("Git says: ")
        raise BadInput(f"The branch cannot be made in {env['GIT_DIR']}: {reason}") from None
    except MachineFailed as late:
        raise BadInput(f"{late} Look at {env['GIT_DIR']}.") from None
