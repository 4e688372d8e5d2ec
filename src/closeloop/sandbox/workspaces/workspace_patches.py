"""What changed in a workspace, told by a git folder of our own that no agent has touched.

The agent's `.git` may be deleted, configured to run programs or told to look away, so it is never
used. Git runs inside the cage: it reads files that the agent made.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record
from closeloop.records.task import Limits
from closeloop.sandbox.process_tree import DiskUsage, measure_disk
from closeloop.sandbox.program_execution import ProgramResult
from closeloop.sandbox.workspace_layout import (
    SharedFolder,
    WorkspaceLayout,
    real_paths,
    visible_share_path,
)
from closeloop.sandbox.workspace_sandbox import WorkspaceSandbox
from closeloop.text.wording import count_with_noun, matches_globs

MAX_PATCH_BYTES = 64 << 20
MAX_CHANGED_BYTES, MAX_CHANGED_FILES = 256 << 20, 100_000
"""Of all changed and new files together, as many as are read."""
COPY_OUT_SECONDS = 300.0
"""To read a change, whatever the workspace is like."""
GIT_LIMITS = Limits(command_seconds=600.0, idle_seconds=600.0, disk_bytes=64 << 30)
RAW_ATTRIBUTES = "* -text !eol !filter !ident !working-tree-encoding !diff !whitespace\n"
"""Attributes that leave every byte as it is."""
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
LIST_UNTRACKED_SCRIPT = "git add -u . && exec git ls-files -z --others --exclude-standard"
ADD_SCRIPT = "git update-index --add --replace -z --stdin"
DIFF_SCRIPT = (
    "exec git diff --cached --binary --full-index --no-renames --no-ext-diff --no-textconv "
    '--no-color --src-prefix=a/ --dst-prefix=b/ "$@"'
)
NAMES_SCRIPT = 'exec git diff --cached --raw -z --no-renames --no-ext-diff "$1"'
REOPEN_SCRIPT = 'chmod u+rwx "$GIT_WORK_TREE" && cd "$GIT_WORK_TREE" && '
REOPEN_SCRIPT += (
    "find . \\( -type d ! -perm -700 -o -type f ! -perm -600 \\) -exec chmod u+rwX {} \\;"
)
FILE_START = re.compile(rb"^(?=diff --git )", re.MULTILINE)
DIFF_HEADER = re.compile(r"^diff --git (a/.* b/.*)$", re.MULTILINE)


class UnreadableChange(Exception):
    """What the agent left cannot be told as a patch: its doing, not a fault of ours."""


class ChangeTooLarge(UnreadableChange):
    """The patch would be more than anybody reads."""


EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Which git knows without having it."""


class PrivateGit(Record):
    """A private git folder for one workspace."""

    cage: WorkspaceSandbox
    """Sees the workspace, and our folders beside it."""
    folder: str
    env: dict[str, str]
    tree: str
    exact: bool
    """Files that nobody touched look the same as in the base, to the last bit of their status."""


def open_private_git(
    cage: WorkspaceSandbox, base: str | None = None, tree: str = EMPTY_TREE
) -> PrivateGit:
    """Make it from the base's: its index and exclusions, with objects that are only read.

    Without a base everything that is there is new.
    """
    folder = Path(cage.place.folder, "git")
    exact = cage.place.lower is not None
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
    private, *stores = (visible_share_path(cage.sandbox, share) for share in shares)
    quoted = (store.replace("\\", "\\\\").replace('"', '\\"') for store in stores)
    env = {
        "GIT_DIR": private,
        "GIT_WORK_TREE": cage.root,
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(f'"{store}"' for store in quoted),
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }
    ours = PrivateGit(
        cage=cage.with_shares_only(tuple(shares), GIT_LIMITS),
        folder=str(folder),
        env=env,
        tree=tree,
        exact=exact,
    )
    _write_git_config(ours)
    return ours


async def index_workspace(ours: PrivateGit, exclude: bytes) -> str:
    """Fill the index with the files as they are: the tree that changes are told against."""
    await _run_private_git(ours, ["git", "read-tree", ours.tree])
    listed = await _run_private_git(ours, ["git", "ls-files", "-s", "-z"])
    links = [entry.partition(b"\t")[2] for entry in listed.split(b"\0") if entry[:6] == b"160000"]
    remove = ["git", "update-index", "--force-remove", "-z", "--stdin"]
    await _run_private_git(ours, remove, stdin=b"".join(name + b"\0" for name in links))
    await _run_private_git(ours, ["git", "add", "-u", "."])
    _write_git_file(ours, "info/exclude", exclude)
    return (await _run_private_git(ours, ["git", "write-tree"])).decode().strip()


async def diff_workspace(ours: PrivateGit) -> str:
    """Everything that differs from the base, as a patch in UTF-8."""
    try:
        with anyio.fail_after(COPY_OUT_SECONDS):
            return await _diff_after_reopening(ours)
    except TimeoutError as error:
        raise ChangeTooLarge(
            f"The change could not be read in {COPY_OUT_SECONDS:.0f} seconds."
        ) from error


async def _diff_after_reopening(ours: PrivateGit) -> str:
    try:
        return await _build_diff(ours)
    except ChangeTooLarge:
        raise
    except UnreadableChange:  # folders and files may be closed to their owner
        await ours.cage.execute_command(["/bin/sh", "-c", REOPEN_SCRIPT], env=ours.env)
        return await _build_diff(ours)


async def _require_readable_size(ours: PrivateGit) -> None:
    """TooLarge when more has changed than can be read in a moment."""
    root = real_paths(ours.cage.place)[0]
    if _is_readable(await anyio.to_thread.run_sync(measure_disk, root)):
        return
    # Most of it may be ignored, and is then not read.
    listed = await _run_private_git(ours, ["/bin/sh", "-c", LIST_CHANGED_SCRIPT])
    names = {os.fsdecode(name) for name in listed.split(b"\0") if name}
    usage = await anyio.to_thread.run_sync(_measure_files, root, names)
    if not _is_readable(usage):
        raise ChangeTooLarge(
            "The change is too large to be kept:"
            f" {count_with_noun(usage.files, 'changed or new file')} of"
            f" {usage.apparent_bytes >> 20:,} MiB, where {MAX_CHANGED_FILES:,} files and"
            f" {MAX_CHANGED_BYTES >> 20} MiB are the limit."
        )


def _is_readable(usage: DiskUsage) -> bool:
    return usage.apparent_bytes <= MAX_CHANGED_BYTES and usage.files <= MAX_CHANGED_FILES


def _measure_files(root: str, names: Iterable[str]) -> DiskUsage:
    """What these names stand for: files, or folders that are repositories of their own."""
    apparent, files = 0, 0
    for name in names:
        inside = measure_disk(f"{root}/{name}") if name.endswith("/") else DiskUsage(files=1)
        with suppress(OSError):
            status = os.lstat(f"{root}/{name}")
            apparent += status.st_size if stat.S_ISREG(status.st_mode) else 0
        apparent += inside.apparent_bytes
        files += inside.files
    return DiskUsage(apparent_bytes=apparent, files=files)


async def _build_diff(ours: PrivateGit) -> str:
    await _require_readable_size(ours)
    listed = await _run_private_git(ours, ["/bin/sh", "-c", LIST_UNTRACKED_SCRIPT])
    names = [name for name in listed.split(b"\0") if name]
    nested = [name for name in names if name.endswith(b"/")]
    names = [name for name in names if not name.endswith(b"/")]
    if nested:
        names += await _list_nested_files(ours, nested)
    script = f"{ADD_SCRIPT} && {DIFF_SCRIPT}" if names else DIFF_SCRIPT
    stdin = b"".join(name + b"\0" for name in names)
    patch = await _run_private_git(ours, ["/bin/sh", "-c", script, "sh", ours.tree], stdin=stdin)
    text = patch.decode() if _is_text(patch) else await _diff_in_ascii(ours, patch)
    return DIFF_HEADER.sub(_quote_header, text)


async def settle_workspace(ours: PrivateGit) -> PrivateGit:
    """The same, with what is there now as what changes are told against."""
    await diff_workspace(ours)
    tree = (await _run_private_git(ours, ["git", "write-tree"])).decode().strip()
    return msgspec.structs.replace(ours, tree=tree)


async def apply_workspace_patch(ours: PrivateGit, patch: str, exclude: Sequence[str]) -> None:
    """Change the files as a patch says, but for those the globs mean."""
    content = patch.encode("utf-8", "surrogateescape")
    argv = ["git", "apply", "--whitespace=nowarn"]
    if exclude:
        listed = await _run_git_apply(ours, [*argv, "--numstat", "-z"], content)
        lines = listed.decode("utf-8", "surrogateescape").split("\0")
        names = [line.split("\t", 2)[2] for line in lines if line]
        argv += [
            f"--exclude={_literal_glob(name)}" for name in names if matches_globs(name, exclude)
        ]
    await _run_git_apply(ours, argv, content)


async def _run_git_apply(ours: PrivateGit, argv: Sequence[str], patch: bytes) -> bytes:
    ended = await ours.cage.execute_command(argv, stdin=patch, env=ours.env, keep=MAX_PATCH_BYTES)
    if ended.stopped:
        raise MachineFailed(f"Applying a patch was stopped: {ended.stopped}.")
    if ended.exit_code != 0:
        raise BadInput(f"The patch does not apply: {_git_failure_reason(ended)}")
    return ended.output.content


async def _list_nested_files(ours: PrivateGit, nested: Sequence[bytes]) -> list[bytes]:
    """Files in repositories that the agent made: ours sees only their outside."""
    nested_files: list[bytes] = []
    for folder in nested:
        # The name comes on standard input: it need not be text.
        search = 'IFS= read -r d || :; exec find "./$d" -name .git -prune -o '
        search += "\\( -type f -o -type l \\) -print0"
        if b"\n" in folder:
            raise UnreadableChange(
                "A repository was made in a folder with a line break in its name."
            )
        listed = await _run_private_git(ours, ["/bin/sh", "-c", search], stdin=folder)
        nested_files += [name.removeprefix(b"./") for name in listed.split(b"\0") if name]
    check = ["/bin/sh", "-c", "git check-ignore -z --stdin || [ $? = 1 ]"]
    ignored = await _run_private_git(
        ours, check, stdin=b"".join(name + b"\0" for name in nested_files)
    )
    return sorted(set(nested_files) - set(ignored.split(b"\0")))


async def _diff_in_ascii(ours: PrivateGit, patch: bytes) -> str:
    """Again, with every file that is not UTF-8 told as a binary one, and odd names quoted."""
    listed = await _run_private_git(ours, ["/bin/sh", "-c", NAMES_SCRIPT, "sh", ours.tree])
    fields = listed.split(b"\0")
    names = []
    for about, name in zip(fields[::2], fields[1::2], strict=False):
        # A file that becomes a link is told in two parts.
        names += [name] * (2 if about.endswith(b"T") else 1)
    odd_names = [
        name
        for name, part in zip(names, FILE_START.split(patch)[1:], strict=True)
        if not _is_text(part)
    ]
    attributes = "".join(f'"/{_attribute_pattern(name)}" -diff\n' for name in odd_names)
    _write_git_config(ours, attributes=attributes, quote=True)
    ascii_patch = await _run_private_git(ours, ["/bin/sh", "-c", DIFF_SCRIPT, "sh", ours.tree])
    _write_git_config(ours)
    if not _is_text(ascii_patch):
        raise UnreadableChange(
            "The change cannot be told: a link leads to a name that is not UTF-8."
        )
    return ascii_patch.decode()


async def _run_private_git(
    ours: PrivateGit, argv: Sequence[str], stdin: bytes | None = None
) -> bytes:
    ended = await ours.cage.execute_command(argv, stdin=stdin, env=ours.env, keep=MAX_PATCH_BYTES)
    if len(ended.output.content) > MAX_PATCH_BYTES:
        raise ChangeTooLarge(f"The change is larger than {MAX_PATCH_BYTES >> 20} MiB.")
    # Of a folder that it cannot open, git only warns.
    if ended.stopped or ended.exit_code != 0 or b"Permission denied" in ended.errors.content:
        raise UnreadableChange(
            f"The change cannot be read: {ended.stopped or _git_failure_reason(ended)}"
        )
    return ended.output.content


def _write_git_config(ours: PrivateGit, attributes: str = "", quote: bool = False) -> None:
    sha256 = len(ours.tree) == 64
    config = GIT_CONFIG.format(
        version=1 if sha256 else 0,
        check="default" if ours.exact else "minimal",
        ctime=str(ours.exact).lower(),
        quote=str(quote).lower(),
        extensions="    objectFormat = sha256" if sha256 else "",
    )
    _write_git_file(ours, "config", config.encode())
    _write_git_file(ours, "info/attributes", (RAW_ATTRIBUTES + attributes).encode())


def _write_git_file(ours: PrivateGit, name: str, content: bytes) -> None:
    Path(ours.folder, name).write_bytes(content)


def _git_failure_reason(ended: ProgramResult) -> str:
    lines = [line for line in ended.errors.text.splitlines() if line.strip()]
    reason = lines[0] if lines else f"git ended with {ended.exit_code}"
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
    """A glob that means this name only."""
    return re.sub(r"([*?\[\\])", r"\\\1", name)


def _attribute_pattern(name: bytes) -> str:
    """The same inside quotes, as attribute files write it."""
    literal = re.sub(rb"([*?\[\\])", rb"\\\1", name)
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in literal
    )
