"""The user's repositories: find a commit, and make a new repository that starts there."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from closeloop.git import OWN_COMMAND, GitFailed, git_network_environment, run_git, try_git_text
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.sandbox.program_execution import Program, ProgramLimits, execute_program

ADDRESS_PATTERN = re.compile(r"[a-z][a-z0-9+.-]*://|[^/\s]+@[^/\s]+:|[A-Za-z0-9.-]{2,}:(?!/)")
COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
PLAIN_ENVIRONMENT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
START_ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "closeloop",
    "GIT_AUTHOR_EMAIL": "closeloop@localhost",
    "GIT_AUTHOR_DATE": "2001-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "closeloop",
    "GIT_COMMITTER_EMAIL": "closeloop@localhost",
    "GIT_COMMITTER_DATE": "2001-01-01T00:00:00Z",
}
BASE_TIMESTAMP = 978_307_200
"""When every file of a base was last changed: long ago, so that any change shows."""
FETCH_SECONDS = 3600.0


def resolve_commit(repo: Path | str, revision: str) -> str:
    """The full id of a commit, from a branch, a tag, or any way to name it."""
    if is_remote_address(repo):
        return _resolve_remote(str(repo), revision)
    source = git_folder(repo)
    git_environment = {"GIT_DIR": source}
    commit = _try_git(
        "/", "rev-parse", "--verify", "-q", f"{revision}^{{commit}}", env=git_environment
    )
    if commit is None or revision.startswith("-"):
        is_empty = _try_git("/", "rev-parse", "--verify", "-q", "HEAD", env=git_environment) is None
        hint = "it has no commits yet" if is_empty else "fetch it, or name another one"
        raise BadInput(f"There is no commit {revision!r} in {repo}: {hint}.")
    return commit


def count_uncommitted_files(repo: Path) -> int:
    """How many files are changed or new since the last commit; ours are none."""
    options = ("--porcelain", "-z", "--no-renames", "--untracked-files=normal")
    listed = try_git_text(repo, "status", "--ignore-submodules=all", *options)
    paths = [entry[3:] for entry in listed.split("\0") if entry]
    return sum(path.split("/")[0] != ".closeloop" for path in paths)


def is_remote_address(repo: Path | str) -> bool:
    return isinstance(repo, str) and bool(ADDRESS_PATTERN.match(repo)) and not Path(repo).exists()


async def start_repository(repo: str, commit: str, folder: str) -> str:
    """A new repository in `folder` with one commit and no history: the id of its tree."""
    source = repo if is_remote_address(repo) else git_folder(repo)
    kind = "sha256" if len(commit) == 64 else "sha1"
    await run_own_git(folder, "init", "-q", "--template=", "-b", "main", f"--object-format={kind}")
    fetch = ["fetch", "-q", "--depth=1", "--no-tags", "--no-write-fetch-head"]
    fetch += ["--no-recurse-submodules", "--no-auto-maintenance", "--", source, commit]
    try:
        await run_own_git(folder, *fetch, env={})
        tree = await run_own_git(folder, "rev-parse", "--verify", f"{commit}^{{tree}}")
    except MachineFailed as error:
        raise BadInput(
            f"Commit {commit} cannot be had from {repo}: fetch it, or take the task out ({error})"
        ) from error
    start = await run_own_git(
        folder, "commit-tree", tree, "-m", "Start", env=PLAIN_ENVIRONMENT | START_ENVIRONMENT
    )
    await run_own_git(folder, "update-ref", "HEAD", start)
    await run_own_git(folder, "read-tree", "-u", "--reset", "HEAD")
    _forget_origin(folder)
    await run_own_git(folder, "repack", "-a", "-d", "-q")
    for name in (await run_own_git(folder, "ls-files", "-z")).split("\0")[:-1]:
        os.utime(f"{folder}/{name}", (BASE_TIMESTAMP, BASE_TIMESTAMP), follow_symlinks=False)
    return tree


def _forget_origin(folder: str) -> None:
    Path(folder, ".git", "shallow").unlink(missing_ok=True)
    Path(folder, ".git", "info").mkdir(exist_ok=True)


async def run_own_git(
    folder: str, *arguments: str, env: Mapping[str, str] = PLAIN_ENVIRONMENT
) -> str:
    """Run git on a repository of our own, without anybody's configuration."""
    # What is fetched stays in a pack, so that repacking leaves all but our commit behind.
    options = ["-c", "core.logAllRefUpdates=false", "-c", "fetch.unpackLimit=1"]
    argv = [*OWN_COMMAND, *options, "-C", folder, *arguments]
    program = Program(
        argv=lambda _: argv,
        env={**git_network_environment(), **env},
        directory=folder,
    )
    bounds = ProgramLimits(
        seconds=FETCH_SECONDS,
        idle_seconds=FETCH_SECONDS,
        processes=1 << 20,
        memory_bytes=1 << 50,
        output_bytes=1 << 30,
    )
    ended = await execute_program(program, bounds, apart=True)
    if ended.exit_code != 0:
        error_lines = ended.errors.text.strip().splitlines() or [f"git {arguments[0]} failed"]
        raise MachineFailed(error_lines[-1])
    return ended.output.content.decode("utf-8", "surrogateescape").removesuffix("\n")


def _resolve_remote(repo: str, revision: str) -> str:
    if COMMIT_PATTERN.fullmatch(revision):
        return revision
    listing = ("ls-remote", "--", repo, revision, f"{revision}^{{}}")
    # At the root of the file system no repository's configuration says how to get there.
    completed = subprocess.run(
        [*OWN_COMMAND, "-C", "/", *listing],
        env=git_network_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    listed = completed.stdout.decode(errors="replace").strip()
    if completed.returncode != 0:
        raise BadInput(f"{repo} cannot be reached with git: check the address and your access.")
    pairs = (line.partition("\t") for line in listed.splitlines())
    commit_by_name = {name: commit for commit, _, name in pairs}
    for name in (f"refs/tags/{revision}^{{}}", f"refs/tags/{revision}", f"refs/heads/{revision}"):
        if name in commit_by_name:
            return commit_by_name[name]
    if revision in commit_by_name:
        return commit_by_name[revision]
    raise BadInput(f"{repo} has no branch or tag {revision!r}: name one, or a full commit id.")


def git_folder(repo: Path | str) -> str:
    """The folder with the objects and refs of a repository, a worktree or a bare one."""
    if not Path(repo).is_dir():
        raise BadInput(f"{repo} does not exist: name a folder with a git repository.")
    common_folder = _try_git(str(repo), "rev-parse", "--path-format=absolute", "--git-common-dir")
    if common_folder is None:
        raise BadInput(f"{repo} is not a git repository: name one, or run `git init` there.")
    return common_folder


def _try_git(folder: str, *arguments: str, env: Mapping[str, str] | None = None) -> str | None:
    """What git answers, or None when it fails."""
    try:
        return run_git(folder, *arguments, env=env).decode(errors="replace").strip()
    except GitFailed:
        return None
