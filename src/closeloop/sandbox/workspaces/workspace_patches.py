"""What changed in a workspace, told by a git folder of our own that no agent has touched.

The agent's `.git` may be deleted, configured to run programs or told to look away, so it is never
used. Git runs inside the cage: it reads files that the agent made.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from closeloop.git import OWN_COMMAND, GitFailed, git_network_environment, run_git, try_git_text
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record, content_digest
from closeloop.records.task import Limits
from closeloop.sandbox.machine_view import (
    SharedFolder,
    WorkspaceLayout,
    real_paths,
    visible_share_path,
)
from closeloop.sandbox.program_execution import (
    DiskUsage,
    Program,
    ProgramLimits,
    ProgramResult,
    execute_program,
    measure_disk,
)
from closeloop.sandbox.workspace_sandbox import WorkspaceSandbox
from closeloop.text.wording import compile_lazily, count_with_noun, matches_globs

# The user's repositories: find a commit, copy from it, share setup results, write a branch.


ADDRESS_PATTERN = compile_lazily(r"[a-z][a-z0-9+.-]*://|[^/\s]+@[^/\s]+:|[A-Za-z0-9.-]{2,}:(?!/)")
COMMIT_PATTERN = compile_lazily(r"[0-9a-f]{40}([0-9a-f]{24})?")
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
"""Modification time of every file of a base: long ago, so that any change shows."""
FETCH_SECONDS = 3600.0


def resolve_commit(repo: Path | str, revision: str) -> str:
    """Resolve a branch, tag or other revision to a full commit id."""
    if is_remote_address(repo):
        return _resolve_remote(str(repo), revision)
    source = git_folder(repo)
    git_environment = {"GIT_DIR": source}
    commit = _try_git(
        "/", "rev-parse", "--verify", "-q", f"{revision}^{{commit}}", env=git_environment
    )
    if commit is None or revision.startswith("-"):
        is_empty = _try_git("/", "rev-parse", "--verify", "-q", "HEAD", env=git_environment) is None
        hint = "it has no commits yet" if is_empty else "fetch it, or choose another one"
        raise BadInput(f"There is no commit {revision!r} in {repo}: {hint}.")
    return commit


def count_uncommitted_files(repo: Path) -> int:
    """Count files that are changed or new since the last commit, without ours."""
    options = ("--porcelain", "-z", "--no-renames", "--untracked-files=normal")
    status_output = try_git_text(repo, "status", "--ignore-submodules=all", *options)
    paths = [entry[3:] for entry in status_output.split("\0") if entry]
    return sum(path.split("/")[0] != ".closeloop" for path in paths)


def is_remote_address(repo: Path | str) -> bool:
    return isinstance(repo, str) and bool(ADDRESS_PATTERN.match(repo)) and not Path(repo).exists()


async def start_repository(repo: str, commit: str, folder: str) -> str:
    """Create a repository in `folder` with one commit and no history; return its tree id."""
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
            f"Commit {commit} cannot be fetched from {repo}: fetch it yourself, or "
            f"remove the task ({error})"
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
    """Run git on one of our repositories, without anybody's configuration."""
    # Fetched objects stay in a pack, so that repacking drops all but our commit.
    options = ["-c", "core.logAllRefUpdates=false", "-c", "fetch.unpackLimit=1"]
    argv = [*OWN_COMMAND, *options, "-C", folder, *arguments]
    program = Program(
        argv=lambda _: argv, env={**git_network_environment(), **env}, directory=folder
    )
    bounds = ProgramLimits(
        seconds=FETCH_SECONDS,
        idle_seconds=FETCH_SECONDS,
        processes=1 << 20,
        memory_bytes=1 << 50,
        output_bytes=1 << 30,
    )
    result = await execute_program(program, bounds, separate_errors=True)
    if result.exit_code != 0:
        error_lines = result.errors.text.strip().splitlines() or [f"git {arguments[0]} failed"]
        # Text after the first of these is advice.
        fatal = (line for line in error_lines if line.startswith(("fatal:", "error:")))
        raise MachineFailed(next(fatal, error_lines[-1]))
    return result.output.content.decode("utf-8", "surrogateescape").removesuffix("\n")


def _resolve_remote(repo: str, revision: str) -> str:
    if COMMIT_PATTERN.fullmatch(revision):
        return revision
    arguments = ("ls-remote", "--", repo, revision, f"{revision}^{{}}")
    # At the root of the file system no repository's configuration applies.
    completed = subprocess.run(
        [*OWN_COMMAND, "-C", "/", *arguments],
        env=git_network_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    refs_text = completed.stdout.decode(errors="replace").strip()
    if completed.returncode != 0:
        raise BadInput(f"{repo} cannot be reached with git: check the URL and your access.")
    pairs = (line.partition("\t") for line in refs_text.splitlines())
    commit_by_name = {name: commit for commit, _, name in pairs}
    for name in (f"refs/tags/{revision}^{{}}", f"refs/tags/{revision}", f"refs/heads/{revision}"):
        if name in commit_by_name:
            return commit_by_name[name]
    if revision in commit_by_name:
        return commit_by_name[revision]
    raise BadInput(f"{repo} has no branch or tag {revision!r}: give one, or a full commit id.")


def git_folder(repo: Path | str) -> str:
    """Return the folder with the objects and refs of a repository, worktree or bare one."""
    if not Path(repo).is_dir():
        raise BadInput(f"{repo} does not exist: give a folder with a git repository.")
    common_folder = _try_git(str(repo), "rev-parse", "--path-format=absolute", "--git-common-dir")
    if common_folder is None:
        raise BadInput(f"{repo} is not a git repository: choose one, or run `git init` there.")
    return common_folder


def _try_git(folder: str, *arguments: str, env: Mapping[str, str] | None = None) -> str | None:
    """Return git's output, or None if it fails."""
    try:
        return run_git(folder, *arguments, env=env).decode(errors="replace").strip()
    except GitFailed:
        return None


# A change as a branch of the user's repository, independent of whatever is going on there.
#
# Only objects and the one ref are added: work tree,
# index and HEAD are never read, no hook runs.

GIT_SECONDS = 120


def branch_name(task: str, attempt: str) -> str:
    """`closeloop/TASK/ATTEMPT`, with characters that git does not allow replaced."""
    return f"closeloop/{re.sub(r'[.](?=[.]|lock$|$)', '_', task)}/{attempt}"


def has_branches(repo: str | None) -> bool:
    """Whether it is a repository on this machine."""
    return repo is not None and not is_remote_address(repo) and Path(repo).is_dir()


def make_branch(
    repo: str,
    base: str,
    patch: str,
    name: str,
    message: str,
    *,
    committed_at: datetime | None = None,
) -> None:
    """Point a branch at the base with the patch applied; BadInput if that is impossible."""
    folder = git_folder(repo)
    date_variables = (
        {}
        if committed_at is None
        else {variable: committed_at.isoformat() for variable in _DATE_VARIABLES}
    )
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
    """Point a branch at an existing commit, unless the branch exists."""
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
        raise BadInput(f"The branch cannot be created in {env['GIT_DIR']}: {reason}") from None
    except MachineFailed as late:
        raise BadInput(f"{late} Check {env['GIT_DIR']}.") from None


# Share the setup of one commit with neighbouring commits: linked, not repeated.
#
# Only if every setup command merely installs what manifests name, and the manifests are the same.
# Whatever builds from source runs at each commit.

MAX_MANIFEST_BYTES = 1 << 20
_MANIFESTS = compile_lazily(
    r"(?:^|/)(?:pyproject\.toml|setup\.py|setup\.cfg|Pipfile(?:\.lock)?|package\.json"
    r"|(?:uv|poetry|pdm|yarn|Cargo)\.lock|package-lock\.json|npm-shrinkwrap\.json"
    r"|pnpm-lock\.yaml|pnpm-workspace\.yaml|\.npmrc|\.yarnrc(?:\.yml)?|go\.(?:mod|sum|work)"
    r"|Cargo\.toml|pom\.xml|MANIFEST\.in|\.python-version|[^/]*requirements[^/]*\.(?:txt|in)"
    r"|requirements/[^/]+\.(?:txt|in))$"
)
_COMPILED_SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".pyx", ".pxd", ".f90", ".rs")
_QUOTED_WORD = compile_lazily(r"'[^']*'")
_ASSIGNMENT = compile_lazily(r"[A-Z_]+=[\w.+-]*")
_INSTALL_COMMAND = compile_lazily(
    r"(?:\S*python[\d.]* -m venv .*|(?:\S*python[\d.]* -m |\S*uv )?\S*pip3? install .*"
    r"|\S*uv (?:sync|venv)\b.*|\S*(?:poetry|pdm|pipenv) install\b.*|\S*hatch env create"
    r"|(?:npm|pnpm|yarn) (?:ci|install)\b.*|yarn|npm pkg delete .*|cp (\S+) \1\.whole"
    r"|mv (\S+)\.whole \2|go mod download|cargo fetch"
    r"|go vet .*|go test -exec=true .*|\S*pre-commit install-hooks"
    r"|\S*mvnw? -B dependency:go-offline)"
)
_LOCKED_COMMAND = compile_lazily(r"\buv (?:sync|run|export)\b")
"""Commands of uv that read its lock; `uv pip` does not."""
_PROJECT_ITSELF = compile_lazily(r"\.{1,2}(?:/.*)?(?:\[.*\])?")
_INSTALLING_TOOLS = frozenset(
    {"setuptools", "hatch", "poetry", "pdm", "uv", "flit", "maturin", "scikit-build"}
)
_INSTALL_SCRIPTS = ("preinstall", "install", "postinstall", "prepare", "prepublish")


def digest_environment(repo: str, commit: str, setup: Sequence[str], root: str) -> str | None:
    """Commits with equal digests need the same environment; None: setup must run at each."""
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
    """Link the setup results of one base, and its home, into another: bases are read-only."""
    workspace = (folder / "root/workspace").resolve()
    for name in names:
        source, target = lender / "root/workspace" / name, workspace / name
        # Python accepts compiled files by time and size, which are equal at all commits.
        is_inside = target.parent.resolve().is_relative_to(workspace)
        if source.name != "__pycache__" and is_inside and not os.path.lexists(target):
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
        and words[index - 1] not in (*editable_options, "-r", "-c", "--python")
        for index, word in enumerate(words)
        if index and "install" in words[:index]
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
    """Return what a manifest says about the environment; None if each commit must be examined."""
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


def _read_pyproject_facts(data: dict[str, Any]) -> Any:
    """Leave out the version and the settings of tools that install nothing."""
    project = {key: value for key, value in data.get("project", {}).items() if key != "version"}
    tools = {key: value for key, value in data.get("tool", {}).items() if key in _INSTALLING_TOOLS}
    parts = (project, tools, data.get("build-system"), data.get("dependency-groups"))
    return msgspec.json.encode(parts, order="deterministic").decode()


def _read_package_facts(data: dict[str, Any]) -> Any:
    scripts = data.get("scripts") or {}
    if any("husky" not in scripts[name] for name in _INSTALL_SCRIPTS if name in scripts):
        return None
    environment_fields = {
        key: data.get(key) for key in data if "ependenc" in key or key in ("engines", "type")
    }
    environment_fields["workspaces"] = data.get("workspaces")
    return msgspec.json.encode(environment_fields, order="deterministic").decode()


def _read_git(folder: str, *arguments: str) -> bytes:
    try:
        return run_git("/", *arguments, env={"GIT_DIR": folder})
    except GitFailed:
        return b""


MAX_PATCH_BYTES = 64 << 20
MAX_CHANGED_BYTES, MAX_CHANGED_FILES = 256 << 20, 100_000
"""Limits for all changed and new files together."""
COPY_OUT_SECONDS = 300.0
"""Seconds to read a change, whatever the workspace contains."""
GIT_LIMITS = Limits(command_seconds=600.0, idle_seconds=600.0, disk_bytes=64 << 30)
RAW_ATTRIBUTES = "* -text !eol !filter !ident !working-tree-encoding !diff !whitespace\n"
"""Attributes that leave every byte unchanged."""
GIT_CONFIG = """[core]
    repositoryFormatVersion = {version}
    bare = false
    checkStat = {check}
    trustCtime = {ctime}
    fileMode = true
    symlinks = true
    autocrlf = false
    fsmonitor = false
    untrackedCache = false
    quotePath = {quote}
    protectHFS = false
    protectNTFS = false
    excludesFile = /dev/null
    attributesFile = /dev/null
    hooksPath = /dev/null
[extensions]
{extensions}
"""
LIST_CHANGED_SCRIPT = "exec git ls-files -z --modified --others --exclude-standard"
ADD_SCRIPT = "git update-index --add --replace -z --stdin"
NESTED_EXIT = 71
LIST_NEW_SCRIPT = f"""
git add -u . && git ls-files -z --others --exclude-standard > "$GIT_DIR/new" || exit
if [ -s "$GIT_DIR/new" ]; then
    ! tr '\\0' '\\n' < "$GIT_DIR/new" | grep -q '/$' || exit {NESTED_EXIT}
    {ADD_SCRIPT} < "$GIT_DIR/new" || exit
fi
"""
"""Adds new files to the index; if there are nested repositories, only lists them."""
DIFF_SCRIPT = (
    "exec git diff --cached --binary --full-index --no-renames --no-ext-diff --no-textconv "
    '--no-color --src-prefix=a/ --dst-prefix=b/ "$@"'
)
NAMES_SCRIPT = 'exec git diff --cached --raw -z --no-renames --no-ext-diff "$1"'
REOPEN_SCRIPT = 'chmod u+rwx "$GIT_WORK_TREE" && cd "$GIT_WORK_TREE" && '
REOPEN_SCRIPT += (
    "find . \\( -type d ! -perm -700 -o -type f ! -perm -600 \\) -exec chmod u+rwX {} \\;"
)
FILE_START = compile_lazily(rb"^(?=diff --git )", re.MULTILINE)
DIFF_HEADER = compile_lazily(r"^diff --git (a/.* b/.*)$", re.MULTILINE)


class UnreadableChange(Exception):
    """The agent's change cannot be expressed as a patch: its fault, not ours."""


class ChangeTooLarge(UnreadableChange):
    """The patch would be too large."""


EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Known to git without an object."""


class PrivateGit(Record):
    """A private git folder for one workspace."""

    sandbox: WorkspaceSandbox
    """Sees the workspace and our folders."""
    folder: str
    env: dict[str, str]
    tree: str
    exact: bool
    """Whether untouched files look the same as in the base, including their status."""


def open_private_git(
    sandbox: WorkspaceSandbox, base: str | None = None, tree: str = EMPTY_TREE
) -> PrivateGit:
    """Create it from the base's index and exclusions, with read-only objects.

    Without a base, every file is new.
    """
    folder = Path(sandbox.place.folder, "git")
    exact = sandbox.place.lower is not None
    for name in ("info", "objects", "refs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    shares = [SharedFolder(source=str(folder), target="/closeloop/git", write=True)]
    if base is not None:
        for name in ("index", "info/exclude"):
            if (Path(base, "git", name)).exists():
                (folder / name).write_bytes(Path(base, "git", name).read_bytes())
        workspace, _, _ = real_paths(WorkspaceLayout(folder=base))
        shares += [
            SharedFolder(source=f"{base}/git/objects", target="/closeloop/base"),
            SharedFolder(source=f"{workspace}/.git/objects", target="/closeloop/objects"),
        ]
    private, *stores = (visible_share_path(sandbox.sandbox, share) for share in shares)
    quoted = (store.replace("\\", "\\\\").replace('"', '\\"') for store in stores)
    env = {
        "GIT_DIR": private,
        "GIT_WORK_TREE": sandbox.root,
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(f'"{store}"' for store in quoted),
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }
    private_git = PrivateGit(
        sandbox=sandbox.with_shares_only(tuple(shares), GIT_LIMITS),
        folder=str(folder),
        env=env,
        tree=tree,
        exact=exact,
    )
    _write_git_config(private_git)
    return private_git


async def index_workspace(private_git: PrivateGit, exclude: bytes) -> str:
    """Fill the index with the current files; return the tree that changes are compared with."""
    await _run_private_git(private_git, ["git", "read-tree", private_git.tree])
    index_entries = await _run_private_git(private_git, ["git", "ls-files", "-s", "-z"])
    links = [
        entry.partition(b"\t")[2] for entry in index_entries.split(b"\0") if entry[:6] == b"160000"
    ]
    remove = ["git", "update-index", "--force-remove", "-z", "--stdin"]
    await _run_private_git(private_git, remove, stdin=b"".join(name + b"\0" for name in links))
    await _run_private_git(private_git, ["git", "add", "-u", "."])
    _write_git_file(private_git, "info/exclude", exclude)
    return (await _run_private_git(private_git, ["git", "write-tree"])).decode().strip()


async def diff_workspace(private_git: PrivateGit) -> str:
    """Return everything that differs from the base, as a patch in UTF-8."""
    try:
        with anyio.fail_after(COPY_OUT_SECONDS):
            return await _diff_after_reopening(private_git)
    except TimeoutError as error:
        raise ChangeTooLarge(
            f"The change could not be read within {COPY_OUT_SECONDS:.0f} seconds."
        ) from error


async def _diff_after_reopening(private_git: PrivateGit) -> str:
    try:
        return await _build_diff(private_git)
    except ChangeTooLarge:
        raise
    except UnreadableChange:  # folders and files may be unreadable even for their owner
        await private_git.sandbox.execute_command(
            ["/bin/sh", "-c", REOPEN_SCRIPT], env=private_git.env
        )
        return await _build_diff(private_git)


async def _require_readable_size(private_git: PrivateGit) -> None:
    """ChangeTooLarge if more has changed than can be read quickly."""
    root = real_paths(private_git.sandbox.place)[0]
    if _is_readable(await anyio.to_thread.run_sync(measure_disk, root)):
        return
    # Most of it may be ignored, and is then not read.
    changed_names = await _run_private_git(private_git, ["/bin/sh", "-c", LIST_CHANGED_SCRIPT])
    names = {os.fsdecode(name) for name in changed_names.split(b"\0") if name}
    usage = await anyio.to_thread.run_sync(_measure_files, root, names)
    if not _is_readable(usage):
        raise ChangeTooLarge(
            "The change is too large to be saved: "
            f"{count_with_noun(usage.files, 'changed or new file')} of "
            f"{usage.apparent_bytes >> 20:,} MiB; the limit is {MAX_CHANGED_FILES:,} "
            f"files and {MAX_CHANGED_BYTES >> 20} MiB."
        )


def _is_readable(usage: DiskUsage) -> bool:
    return usage.apparent_bytes <= MAX_CHANGED_BYTES and usage.files <= MAX_CHANGED_FILES


def _measure_files(root: str, names: Iterable[str]) -> DiskUsage:
    """Measure these names: files, or folders that are nested repositories."""
    apparent, files = 0, 0
    for name in names:
        nested_usage = measure_disk(f"{root}/{name}") if name.endswith("/") else DiskUsage(files=1)
        with suppress(OSError):
            status = os.lstat(f"{root}/{name}")
            apparent += status.st_size if stat.S_ISREG(status.st_mode) else 0
        apparent += nested_usage.apparent_bytes
        files += nested_usage.files
    return DiskUsage(apparent_bytes=apparent, files=files)


async def _build_diff(private_git: PrivateGit) -> str:
    await _require_readable_size(private_git)
    argv = ["/bin/sh", "-c", LIST_NEW_SCRIPT + DIFF_SCRIPT, "sh", private_git.tree]
    result = await private_git.sandbox.execute_command(
        argv, env=private_git.env, keep=MAX_PATCH_BYTES
    )
    if result.exit_code == NESTED_EXIT and not result.stopped:
        patch = await _diff_with_nested_files(private_git)
    else:
        patch = _require_output(result)
    text = patch.decode() if _is_text(patch) else await _diff_in_ascii(private_git, patch)
    return DIFF_HEADER.sub(_quote_header, text)


async def _diff_with_nested_files(private_git: PrivateGit) -> bytes:
    """Return the patch with nested repositories' files included as files."""
    new_names = await anyio.Path(private_git.folder, "new").read_bytes()
    names = [name for name in new_names.split(b"\0") if name]
    nested = [name for name in names if name.endswith(b"/")]
    names = [name for name in names if not name.endswith(b"/")]
    names += await _list_nested_files(private_git, nested)
    argv = ["/bin/sh", "-c", f"{ADD_SCRIPT} && {DIFF_SCRIPT}", "sh", private_git.tree]
    return await _run_private_git(private_git, argv, stdin=b"".join(name + b"\0" for name in names))


async def settle_workspace(private_git: PrivateGit) -> PrivateGit:
    """Return the same with the current state as the base of later changes."""
    await diff_workspace(private_git)
    tree = (await _run_private_git(private_git, ["git", "write-tree"])).decode().strip()
    return msgspec.structs.replace(private_git, tree=tree)


async def apply_workspace_patch(
    private_git: PrivateGit, patch: str, exclude: Sequence[str]
) -> None:
    """Apply a patch without files that match the globs."""
    content = patch.encode("utf-8", "surrogateescape")
    argv = ["git", "apply", "--whitespace=nowarn"]
    if exclude:
        numstat = await _run_git_apply(private_git, [*argv, "--numstat", "-z"], content)
        lines = numstat.decode("utf-8", "surrogateescape").split("\0")
        names = [line.split("\t", 2)[2] for line in lines if line]
        argv += [
            f"--exclude={_literal_glob(name)}" for name in names if matches_globs(name, exclude)
        ]
    await _run_git_apply(private_git, argv, content)


async def _run_git_apply(private_git: PrivateGit, argv: Sequence[str], patch: bytes) -> bytes:
    result = await private_git.sandbox.execute_command(
        argv, stdin=patch, env=private_git.env, keep=MAX_PATCH_BYTES
    )
    if result.stopped:
        raise MachineFailed(f"Applying a patch was stopped: {result.stopped}.")
    if result.exit_code != 0:
        raise BadInput(f"The patch does not apply: {_git_failure_reason(result)}")
    return result.output.content


async def _list_nested_files(private_git: PrivateGit, nested: Sequence[bytes]) -> list[bytes]:
    """List files in nested repositories that the agent made."""
    nested_files: list[bytes] = []
    for folder in nested:
        # The name comes on standard input: it need not be text.
        search = 'IFS= read -r d || :; exec find "./$d" -name .git -prune -o '
        search += "\\( -type f -o -type l \\) -print0"
        if b"\n" in folder:
            raise UnreadableChange(
                "A repository was made in a folder with a line break in its name."
            )
        folder_files = await _run_private_git(private_git, ["/bin/sh", "-c", search], stdin=folder)
        nested_files += [name.removeprefix(b"./") for name in folder_files.split(b"\0") if name]
    check = ["/bin/sh", "-c", "git check-ignore -z --stdin || [ $? = 1 ]"]
    ignored = await _run_private_git(
        private_git, check, stdin=b"".join(name + b"\0" for name in nested_files)
    )
    return sorted(set(nested_files) - set(ignored.split(b"\0")))


async def _diff_in_ascii(private_git: PrivateGit, patch: bytes) -> str:
    """Diff again, with every file that is not UTF-8 as binary, and odd names quoted."""
    status_output = await _run_private_git(
        private_git, ["/bin/sh", "-c", NAMES_SCRIPT, "sh", private_git.tree]
    )
    fields = status_output.split(b"\0")
    names = []
    for status, name in zip(fields[::2], fields[1::2], strict=False):
        # A file that becomes a link is reported in two parts.
        names += [name] * (2 if status.endswith(b"T") else 1)
    odd_names = [
        name
        for name, part in zip(names, FILE_START.split(patch)[1:], strict=True)
        if not _is_text(part)
    ]
    attributes = "".join(f'"/{_attribute_pattern(name)}" -diff\n' for name in odd_names)
    _write_git_config(private_git, attributes=attributes, quote=True)
    ascii_patch = await _run_private_git(
        private_git, ["/bin/sh", "-c", DIFF_SCRIPT, "sh", private_git.tree]
    )
    _write_git_config(private_git)
    if not _is_text(ascii_patch):
        raise UnreadableChange(
            "The change cannot be read: a link points to a name that is not UTF-8."
        )
    return ascii_patch.decode()


async def _run_private_git(
    private_git: PrivateGit, argv: Sequence[str], stdin: bytes | None = None
) -> bytes:
    result = await private_git.sandbox.execute_command(
        argv, stdin=stdin, env=private_git.env, keep=MAX_PATCH_BYTES
    )
    return _require_output(result)


def _require_output(result: ProgramResult) -> bytes:
    if len(result.output.content) > MAX_PATCH_BYTES:
        raise ChangeTooLarge(f"The change is larger than {MAX_PATCH_BYTES >> 20} MiB.")
    # Git only warns about a folder that it cannot open.
    if result.stopped or result.exit_code != 0 or b"Permission denied" in result.errors.content:
        raise UnreadableChange(
            f"The change cannot be read: {result.stopped or _git_failure_reason(result)}"
        )
    return result.output.content


def _write_git_config(private_git: PrivateGit, attributes: str = "", quote: bool = False) -> None:
    sha256 = len(private_git.tree) == 64
    config = GIT_CONFIG.format(
        version=1 if sha256 else 0,
        check="default" if private_git.exact else "minimal",
        ctime=str(private_git.exact).lower(),
        quote=str(quote).lower(),
        extensions="    objectFormat = sha256" if sha256 else "",
    )
    _write_git_file(private_git, "config", config.encode())
    _write_git_file(private_git, "info/attributes", (RAW_ATTRIBUTES + attributes).encode())


def _write_git_file(private_git: PrivateGit, name: str, content: bytes) -> None:
    Path(private_git.folder, name).write_bytes(content)


def _git_failure_reason(result: ProgramResult) -> str:
    lines = [line for line in result.errors.text.splitlines() if line.strip()]
    reason = lines[0] if lines else f"git ended with {result.exit_code}"
    return reason.removeprefix("error: ").removeprefix("fatal: ")[:300]


def _quote_header(header: re.Match[str]) -> str:
    """Quote a name that git writes but cannot read: with spaces at the ends of its parts."""
    both_names = header[1]
    name = both_names[2 : len(both_names) // 2]
    if both_names != f"a/{name} b/{name}" or not re.search(r"(^|/) | (/|$)", name):
        return header[0]
    return f'diff --git "a/{name}" "b/{name}"'


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _literal_glob(name: str) -> str:
    """Return a glob that matches this name only."""
    return re.sub(r"([*?\[\\])", r"\\\1", name)


def _attribute_pattern(name: bytes) -> str:
    """Return the same in quotes, for attribute files."""
    literal = re.sub(rb"([*?\[\\])", rb"\\\1", name)
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in literal
    )


# The patch of a workspace that began empty and contains a few plain texts: without git.

MAX_PLAIN_FILES, MAX_PLAIN_BYTES = 100, 1 << 20
PLAIN_NAME = compile_lazily(r"[A-Za-z0-9_+@%=-][A-Za-z0-9_.+@%=-]{0,200}")
"""A name that needs no quotes in a patch, and that git does not read itself."""


def diff_plain_files(root: str) -> str | None:
    """Return git's patch of a folder where everything is new; None if git must be asked."""
    files = _read_plain_files(root)
    if files is None:
        return None
    parts = []
    for path, (mode, content) in sorted(files.items()):
        digest = hashlib.sha1(b"blob %d\0%s" % (len(content), content), usedforsecurity=False)
        parts.append(f"diff --git a/{path} b/{path}\nnew file mode {mode}\n")
        parts.append(f"index {'0' * 40}..{digest.hexdigest()}\n")
        if not content:
            continue
        *lines, last = content.decode().split("\n")
        count = len(lines) + bool(last)
        parts.append(f"--- /dev/null\n+++ b/{path}\n")
        parts.append("@@ -0,0 +1 @@\n" if count == 1 else f"@@ -0,0 +1,{count} @@\n")
        parts += [f"+{line}\n" for line in lines]
        parts.append(f"+{last}\n\\ No newline at end of file\n" if last else "")
    return "".join(parts)


def _read_plain_files(root: str) -> dict[str, tuple[str, bytes]] | None:
    """Return mode and content by path; None if anything is not a plain, short text."""
    files: dict[str, tuple[str, bytes]] = {}
    waiting, bytes_left = [""], MAX_PLAIN_BYTES
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(f"{root}/{folder}") as entries:
                for entry in entries:
                    path = folder + entry.name
                    if not PLAIN_NAME.fullmatch(entry.name) or len(files) == MAX_PLAIN_FILES:
                        return None
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{path}/")
                        continue
                    files[path] = _read_plain_file(f"{root}/{path}", bytes_left)
                    bytes_left -= len(files[path][1])
        except (OSError, ValueError):
            return None
    return files


def _read_plain_file(path: str, limit: int) -> tuple[str, bytes]:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb", buffering=0) as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not an ordinary file")
        content = file.read(limit + 1)
    if len(content) > limit or b"\0" in content or not _is_text(content):
        raise ValueError("not a short text")
    return "100755" if status.st_mode & stat.S_IXUSR else "100644", content
