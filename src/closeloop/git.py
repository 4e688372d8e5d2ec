"""The one way to run git on a repository that somebody else may have written.

A repository's own configuration can name programs: hooks, a file system monitor, filters, diff and
text conversion drivers, pagers, signature checkers, credential helpers, commands for SSH. None of
them runs here, nothing is fetched, and submodules are left alone.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record

GIT_SECONDS = 600.0
SAFE_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "gc.auto": "0",
    "log.showSignature": "false",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
}
"""Settings for every repository, overriding its own configuration."""
FOREIGN_SETTINGS = {
    "core.alternateRefsCommand": "true",
    "core.askPass": "false",
    "core.sshCommand": "false",
    "credential.helper": "",
    "diff.submodule": "short",
    "gpg.openpgp.program": "false",
    "gpg.program": "false",
    "gpg.ssh.program": "false",
    "gpg.x509.program": "false",
    # The repository's owner does not matter: its configuration is never used.
    "safe.bareRepository": "all",
    "safe.directory": "*",
}
"""Additional settings for a repository that somebody else may have written."""


def _git_command(settings: Mapping[str, str]) -> tuple[str, ...]:
    options = ("--no-pager", "--no-optional-locks", "--no-replace-objects", "--literal-pathspecs")
    setting_options = (part for key, value in settings.items() for part in ("-c", f"{key}={value}"))
    return ("git", *options, *setting_options)


FOREIGN_COMMAND = _git_command(SAFE_SETTINGS | FOREIGN_SETTINGS)
"""The git command for a repository that somebody else may have written."""
OWN_COMMAND = _git_command(SAFE_SETTINGS)
"""The git command for a repository that we made, also to fetch into it."""
SAFE_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LFS_SKIP_SMUDGE": "1",
    # Missing objects of a partial clone would be fetched by commands of its configuration.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "LC_ALL": "C",
}
NETWORK_PROTOCOLS = "file:git:http:https:ssh"
REPOSITORY_VARIABLES = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"),
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_CONFIG_PARAMETERS"),
    *("GIT_CONFIG_COUNT", "GIT_CONFIG", "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE"),
)
"""Variables that git sets for hooks; they point to another repository."""
FILTERING_COMMANDS = frozenset(
    {"add", "archive", "checkout", "checkout-index", "diff", "diff-files", "hash-object", "status"}
)
"""Commands that pass files through the repository's filters."""
FILTER_KEYS = r"^filter\..*\.(clean|smudge|process|required)$"
DIFFING_COMMANDS = frozenset({"diff", "diff-files", "diff-index", "diff-tree", "log", "show"})

REFETCH_HINT = "`git fetch --refetch --no-filter` fetches it"
"""How to fetch what a partial clone left out."""
_MISSING_OBJECT = re.compile(
    r"from promisor remote|\bbad object |\b(?:unable to (?:read|find)|not read|bad|missing)"
    r"(?: [a-z]+){0,3} [('\"]?[0-9a-f]{40}"
)
"""Requires an object id, as the same words may occur in a path."""
_SHA256_FORMAT = re.compile(rb"^\s*objectformat\s*=\s*\"?sha256", re.IGNORECASE | re.MULTILINE)


class GitFailed(MachineFailed):
    """Git ended with an error."""


class GitRepository(Record):
    """The location of a repository."""

    root: Path
    """The work tree; of a bare repository, the repository itself."""
    folder: Path
    """The git folder of this work tree; `shared` is common to all linked work trees."""
    shared: Path
    bare: bool
    object_format: str

    @property
    def shallow_commits(self) -> frozenset[str]:
        """Return the commits whose parents are missing from the clone."""
        try:
            return frozenset((self.shared / "shallow").read_text("ascii", "replace").split())
        except FileNotFoundError:
            return frozenset()


def find_repository(start: Path) -> GitRepository | None:
    """Return the repository that a folder belongs to; None if there is none.

    Ignores a configured `core.worktree`, which git would follow anywhere.
    """
    if not start.is_dir():
        raise BadInput(f"{start} is not a folder: give one with a git repository.")
    start = start.resolve()
    for root in (start, *start.parents):
        for folder, bare in ((_follow_git_file(root / ".git"), False), (root, True)):
            if os.path.lexists(folder / "HEAD") and (shared := _shared_folder(folder)):
                config = (shared / "config").read_bytes() if (shared / "config").is_file() else b""
                return GitRepository(
                    root=root,
                    folder=folder,
                    shared=shared,
                    bare=bare,
                    object_format="sha256" if _SHA256_FORMAT.search(config) else "sha1",
                )
    return None


def _follow_git_file(git_path: Path) -> Path:
    """Return the folder that a `.git` file, as in submodules and linked work trees, points to."""
    if not git_path.is_file():
        return git_path
    target = os.fsdecode(git_path.read_bytes()[:10_000]).removeprefix("gitdir:").strip()
    return Path(os.path.normpath(git_path.parent / target))


def _shared_folder(folder: Path) -> Path | None:
    common_file = folder / "commondir"
    common_path = (
        os.fsdecode(common_file.read_bytes()[:10_000]).strip() if common_file.is_file() else "."
    )
    shared = Path(os.path.normpath(folder / common_path))
    return shared if (shared / "objects").is_dir() else None


def run_git(
    folder: Path | str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    seconds: float = GIT_SECONDS,
) -> bytes:
    """Return git's output; raise GitFailed if it fails."""
    name, git_arguments = _restrict_arguments(folder, arguments)
    filters = _disable_filters(folder, env) if name in FILTERING_COMMANDS else {}
    process = _execute_git(git_arguments, {**(env or {}), **filters}, stdin, seconds)
    if process.returncode != 0:
        raise GitFailed(f"Git says: {summarise_git_error(process.stderr) or f'{name} failed'}")
    return process.stdout


def _restrict_arguments(folder: Path | str, arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command's name, and git's arguments, such that diffs start no programs."""
    command_index = next(
        (index for index in range(len(arguments)) if _is_command(arguments, index)), 0
    )
    name = arguments[command_index]
    flags = ("--no-ext-diff", "--no-textconv") if name in DIFFING_COMMANDS else ()
    first, rest = arguments[: command_index + 1], arguments[command_index + 1 :]
    return name, ["-C", str(folder), *first, *flags, *rest]


def read_git_start(folder: Path | str, max_bytes: int, *arguments: str) -> tuple[bytes, bool]:
    """Return the first bytes of git's output, and whether that is all; raise GitFailed if it
    fails."""
    name, git_arguments = _restrict_arguments(folder, arguments)
    with subprocess.Popen(
        [*FOREIGN_COMMAND, *git_arguments],
        env=git_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        output = process.stdout.read(max_bytes + 1)
        is_complete = len(output) <= max_bytes
        if not is_complete:
            process.kill()
    if is_complete and process.returncode != 0:
        raise GitFailed(f"Git says: {name} failed")
    return output[:max_bytes], is_complete


def read_git_text(
    folder: Path | str, *arguments: str, env: Mapping[str, str] | None = None, stdin: bytes = b""
) -> str:
    """Return git's output, with paths unquoted; raise BadInput if it fails."""
    try:
        output = run_git(folder, "-c", "core.quotePath=false", *arguments, env=env, stdin=stdin)
    except GitFailed as failed:
        reason = str(failed).removeprefix("Git says: ")
        raise BadInput(f"git {arguments[0]} in {folder}: {reason}.") from None
    return output.decode("utf-8", "surrogateescape")


def try_git_text(folder: Path | str, *arguments: str, stdin: str = "") -> str:
    """Return git's output, or an empty text if it fails."""
    try:
        return run_git(folder, *arguments, stdin=stdin.encode()).decode("utf-8", "replace")
    except GitFailed:
        return ""


def _is_command(arguments: Sequence[str], index: int) -> bool:
    return not arguments[index].startswith("-") and (index == 0 or arguments[index - 1] != "-c")


def _disable_filters(folder: Path | str, env: Mapping[str, str] | None) -> dict[str, str]:
    """Return variables that disable every filter that the repository defines."""
    config_arguments = [
        "-C",
        str(folder),
        "config",
        "-z",
        "--name-only",
        "--get-regexp",
        FILTER_KEYS,
    ]
    filter_keys = _execute_git(config_arguments, env, b"", GIT_SECONDS).stdout.split(b"\0")
    keys = sorted({os.fsdecode(key) for key in filter_keys if key})
    settings = {f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(keys)}
    settings |= {f"GIT_CONFIG_VALUE_{number}": "" for number in range(len(keys))}
    return {"GIT_CONFIG_COUNT": str(len(keys)), **settings}


def _execute_git(
    arguments: Sequence[str], env: Mapping[str, str] | None, stdin: bytes, seconds: float
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            [*FOREIGN_COMMAND, *arguments],
            env=git_environment(env),
            input=stdin,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        command_line = " ".join(arguments)[:200]
        raise MachineFailed(f"`git {command_line}` took more than {seconds:.0f} seconds.") from None
    except FileNotFoundError:
        raise MachineFailed("Git is not installed: install it, then try again.") from None


def run_git_in(repository: GitRepository, *arguments: str) -> bytes:
    """Return git's output for a repository at its known location, without discovery."""
    return run_git(repository.root, *arguments, env={"GIT_DIR": str(repository.folder)})


def query_git(repository: GitRepository, *arguments: str) -> str | None:
    """Return git's output for a repository; None if it is empty or git fails."""
    try:
        return decode_git_path(run_git_in(repository, *arguments)).removesuffix("\n") or None
    except GitFailed:
        return None


def git_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the user's environment without variables that point to another repository."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**environment, **SAFE_ENVIRONMENT, **(extra or {})}


def git_network_environment() -> dict[str, str]:
    """Return the user's environment, with keys and proxies, for git in a repository of our own."""
    environment = {
        name: value for name, value in os.environ.items() if name not in REPOSITORY_VARIABLES
    }
    environment.setdefault("GIT_ALLOW_PROTOCOL", NETWORK_PROTOCOLS)
    return {**environment, "GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}


def summarise_git_error(errors: bytes) -> str:
    """Return the most informative line of git's error output."""
    lines = errors.decode("utf-8", "replace").splitlines()
    error_lines = (
        [line for line in lines if line.startswith(("error: ", "fatal: "))] or lines or [""]
    )
    return re.sub(r"^(error|fatal): ", "", error_lines[0])[:300].rstrip(".")


def is_missing_object(complaint: str) -> bool:
    """Return whether git reports missing content, as in a partial clone."""
    return _MISSING_OBJECT.search(complaint) is not None


def decode_git_path(name: bytes) -> str:
    """Decode a path; bytes that are not UTF-8 are escaped, as in a parsed patch."""
    return name.decode("utf-8", "backslashreplace")
