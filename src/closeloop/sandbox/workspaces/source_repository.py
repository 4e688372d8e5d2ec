"""The user's repositories: find a commit, copy from it, share what setup made, write a branch."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from closeloop.git import OWN_COMMAND, GitFailed, git_network_environment, run_git, try_git_text
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import content_digest
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
        # What follows the first of these is advice.
        fatal = (line for line in error_lines if line.startswith(("fatal:", "error:")))
        raise MachineFailed(next(fatal, error_lines[-1]))
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


# A change as a branch of the user's repository, written beside whatever is going on there.
#
# Only objects and the one ref are added: work tree, index and HEAD are never looked at, no hook
# runs.

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


def restore_branch(repo: str, name: str, commit: str) -> None:
    """Point a branch at a commit that the repository has, unless the branch is there."""
    if try_git_text(repo, "show-ref", "--verify", f"refs/heads/{name}"):
        return
    try:
        run_git(git_folder(repo), "update-ref", f"refs/heads/{name}", commit)
    except GitFailed:
        raise BadInput(
            f"Commit {commit[:12]} of {name} is no longer in {repo}: fetch it from its host."
        ) from None


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


# What setup made at one commit serves the commits beside it: linked, not made again.
#
# Only where every setup command merely installs what manifests name, and the manifests say the
# same. Whatever builds from source runs at each commit.

MAX_MANIFEST_BYTES = 1 << 20
_MANIFESTS = re.compile(
    r"(?:^|/)(?:pyproject\.toml|setup\.py|setup\.cfg|Pipfile(?:\.lock)?|package\.json"
    r"|(?:uv|poetry|pdm|yarn|Cargo)\.lock|package-lock\.json|npm-shrinkwrap\.json"
    r"|pnpm-lock\.yaml|pnpm-workspace\.yaml|\.npmrc|\.yarnrc(?:\.yml)?|go\.(?:mod|sum|work)"
    r"|Cargo\.toml|pom\.xml|MANIFEST\.in|\.python-version|[^/]*requirements[^/]*\.(?:txt|in)"
    r"|requirements/[^/]+\.(?:txt|in))$"
)
_COMPILED_SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".pyx", ".pxd", ".f90", ".rs")
_QUOTED_WORD = re.compile(r"'[^']*'")
_ASSIGNMENT = re.compile(r"[A-Z_]+=[\w.+-]*")
_INSTALL_COMMAND = re.compile(
    r"(?:\S*python[\d.]* -m venv .*|(?:\S*python[\d.]* -m |\S*uv )?\S*pip3? install .*"
    r"|\S*uv (?:sync|venv)\b.*|\S*(?:poetry|pdm|pipenv) install\b.*|\S*hatch env create"
    r"|(?:npm|pnpm|yarn) (?:ci|install)\b.*|yarn|go mod download|cargo fetch"
    r"|go vet .*|go test -exec=true .*|\S*pre-commit install-hooks"
    r"|\S*mvnw? -B dependency:go-offline)"
)
_LOCKED_COMMAND = re.compile(r"\buv (?:sync|run|export)\b")
"""What of uv reads its lock; `uv pip` does not."""
_PROJECT_ITSELF = re.compile(r"\.{1,2}(?:/.*)?(?:\[.*\])?")
_INSTALLING_TOOLS = frozenset(
    {"setuptools", "hatch", "poetry", "pdm", "uv", "flit", "maturin", "scikit-build"}
)
_INSTALL_SCRIPTS = ("preinstall", "install", "postinstall", "prepare", "prepublish")


def digest_environment(repo: str, commit: str, setup: Sequence[str], root: str) -> str | None:
    """Commits with the same one need the same environment; None: setup must run at each."""
    if is_remote_address(repo) or not all(_only_installs(command) for command in setup):
        return None
    folder, facts = git_folder(repo), []
    uses_python = any("pip" in command or "venv" in command for command in setup)
    for mode, blob, path in _list_tree_files(folder, commit):
        if PurePosixPath(path).name == "uv.lock" and not _LOCKED_COMMAND.search("\n".join(setup)):
            continue
        if mode == "160000" or (uses_python and path.endswith(_COMPILED_SUFFIXES)):
            facts.append((path, blob))
        elif _MANIFESTS.search(path):
            manifest_facts = _read_manifest_facts(folder, blob, PurePosixPath(path).name)
            if manifest_facts is None:
                return None
            facts.append((path, manifest_facts))
    return content_digest("kin 1", repo, list(setup), root, facts)[:32]


def link_environment(lender: Path, names: Sequence[str], folder: Path) -> None:
    """Link what setup made in one base, and its home, into another: bases are only read."""
    workspace = (folder / "root/workspace").resolve()
    for name in names:
        source, target = lender / "root/workspace" / name, workspace / name
        # Python takes compiled files by time and size, which are alike at all commits.
        inside = target.parent.resolve().is_relative_to(workspace)
        if source.name != "__pycache__" and inside and not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _hard_link(source, target)
    for source in (lender / "root/home").iterdir():
        if not os.path.lexists(folder / "root/home" / source.name):
            _hard_link(source, folder / "root/home" / source.name)


def _hard_link(source: Path, target: Path) -> None:
    command = ["cp", "-al", "--", str(source), str(target)]
    subprocess.run(command, check=True, capture_output=True)


def _only_installs(line: str) -> bool:
    """Whether a command only gets packages, and the project itself only as a link to its source.

    Go's compiler may run besides: its cache goes by content, so that it serves every commit.
    """
    line = line.removesuffix(" || true")
    unquoted = _QUOTED_WORD.sub("", line)
    if re.search(r"[;|<>`$()\n]|&(?!&)", unquoted.replace("&&", "")):
        return False
    return all(map(_is_install, line.split("&&")))


def _is_install(line: str) -> bool:
    try:
        words = shlex.split(line)
    except ValueError:
        return False
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words.pop(0)
    if words[:1] == ["cd"]:
        return True
    editable_options = ("-e", "--editable")
    installs_copy = any(
        _PROJECT_ITSELF.fullmatch(word)
        and words[at - 1] not in (*editable_options, "-r", "-c", "--python")
        for at, word in enumerate(words)
        if at and "install" in words[:at]
    )
    return _INSTALL_COMMAND.fullmatch(" ".join(words)) is not None and not installs_copy


def _list_tree_files(folder: str, commit: str) -> Iterator[tuple[str, str, str]]:
    tree_listing = _read_git(folder, "ls-tree", "-r", "-z", commit)
    for entry in tree_listing.decode("utf-8", "surrogateescape").split("\0"):
        entry_fields, _, path = entry.partition("\t")
        if path:
            mode, _, blob = entry_fields.split()[:3]
            yield mode, blob, path


def _read_manifest_facts(folder: str, blob: str, name: str) -> Any:
    """What a manifest says of the environment; None where one must look at each commit."""
    if name not in ("pyproject.toml", "package.json") and "requirements" not in name:
        return blob
    content = _read_git(folder, "cat-file", "blob", blob)[:MAX_MANIFEST_BYTES]
    try:
        if name == "pyproject.toml":
            return _read_pyproject_facts(tomllib.loads(content.decode()))
        if name == "package.json":
            return _read_package_facts(msgspec.json.decode(content))
    except (ValueError, RecursionError, msgspec.MsgspecError, TypeError, AttributeError):
        return blob
    names_itself = re.search(rb"^\s*\.{1,2}(/|\[|\s|$)", content, re.MULTILINE)
    return None if names_itself else blob


def _read_pyproject_facts(said: dict[str, Any]) -> Any:
    """Without the version, and without the settings of tools that install nothing."""
    project = {key: value for key, value in said.get("project", {}).items() if key != "version"}
    tools = {key: value for key, value in said.get("tool", {}).items() if key in _INSTALLING_TOOLS}
    parts = (project, tools, said.get("build-system"), said.get("dependency-groups"))
    return msgspec.json.encode(parts, order="deterministic").decode()


def _read_package_facts(said: dict[str, Any]) -> Any:
    scripts = said.get("scripts") or {}
    if any("husky" not in scripts[name] for name in _INSTALL_SCRIPTS if name in scripts):
        return None
    environment_fields = {
        key: said.get(key) for key in said if "ependenc" in key or key in ("engines", "type")
    }
    environment_fields["workspaces"] = said.get("workspaces")
    return msgspec.json.encode(environment_fields, order="deterministic").decode()


def _read_git(folder: str, *arguments: str) -> bytes:
    try:
        return run_git("/", *arguments, env={"GIT_DIR": folder})
    except GitFailed:
        return b""
