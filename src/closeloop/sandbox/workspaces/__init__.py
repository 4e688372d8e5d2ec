"""Workspaces: a fresh copy of a repository for every attempt, and its changes."""

from __future__ import annotations

import fcntl
import itertools
import os
import queue
import re
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread
import msgspec
from anyio import to_thread

from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record, content_digest
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox import machine_view
from closeloop.sandbox.admission import admit_suite
from closeloop.sandbox.machine_view import (
    SandboxBackend,
    SandboxLimits,
    SandboxPort,
    WorkspaceLayout,
    package_environment,
    real_paths,
)
from closeloop.sandbox.program_execution import (
    DiskLimit,
    DiskUsage,
    Program,
    ProgramLimits,
    execute_program,
    measure_disk,
)
from closeloop.sandbox.sandbox_ladder import find_sandbox
from closeloop.sandbox.workspace_sandbox import UnconfinedSandbox, WorkspaceSandbox
from closeloop.sandbox.workspaces import workspace_patches
from closeloop.sandbox.workspaces.workspace_patches import (
    START_ENVIRONMENT,
    UnreadableChange,
    digest_environment,
    link_environment,
    resolve_commit,
    start_repository,
)
from closeloop.text import code_patterns

# The cache's folders: who uses them, and how they are deleted in the background.
#
# What a process creates is in `runs/<owner>/`, locked for as long as it lives. What is no longer
# needed moves to `trash/`, where any process may delete it.

MAX_BATCH_FOLDERS, BATCH_SECONDS = 256, 0.2
"""Folders that one `rm` deletes at most, and seconds during which they are collected."""


class CacheFolders:
    """A process's own part of the cache."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self._numbers = itertools.count(1)
        self._trash = str(cache / "trash")
        self._doomed: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._deleter: threading.Thread | None = None
        for name in ("bases", "locks", "runs", "trash"):
            (cache / name).mkdir(parents=True, exist_ok=True)
            (cache / name).chmod(0o700)  # programs in there may have set any permissions
        owner = f"{os.getpid()}-{secrets.token_hex(4)}"
        temporary_folder = cache / f"owner-{owner}"
        temporary_folder.mkdir()
        # Locked before others can see it: otherwise they would take it for a dead process's.
        self._lock = os.open(temporary_folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._own = cache / "runs" / owner
        temporary_folder.rename(self._own)
        self._discard_leftovers()

    def name_new_folder(self) -> str:
        """Return the unused name of a new folder, which is not created yet."""
        return f"{self._own}/{next(self._numbers)}"

    def discard_folder(self, folder: str) -> None:
        """Move the folder out of the way, and delete it later."""
        trash_folder = f"{self._trash}/{self._own.name}-{next(self._numbers)}"
        try:
            os.rename(folder, trash_folder)  # noqa: PTH104
        except FileNotFoundError:
            return
        self._doomed.put(trash_folder)
        if self._deleter is None:
            self._deleter = threading.Thread(
                target=self._delete_discarded_folders, daemon=True, name="deletes"
            )
            self._deleter.start()

    def discard_all(self) -> None:
        """Discard everything left. Deleting may outlast this process."""
        self.discard_folder(str(self._own))
        self._doomed.put(None)
        if self._deleter is not None:
            self._deleter.join(timeout=5)
        with suppress(OSError):
            os.close(self._lock)
        self._lock = -1

    def _discard_leftovers(self) -> None:
        """Discard leftovers of killed processes."""
        for leftover in (self.cache / "trash").iterdir():
            self.discard_folder(str(leftover))
        for owner in (self.cache / "runs").iterdir():
            if owner != self._own and not _is_alive(owner):
                self.discard_folder(str(owner))

    def _delete_discarded_folders(self) -> None:
        batch: list[str | None] = []
        while None not in batch:
            batch = [self._doomed.get()]
            end = time.monotonic() + BATCH_SECONDS
            with suppress(queue.Empty):
                while None not in batch[-1:] and len(batch) < MAX_BATCH_FOLDERS:
                    batch.append(self._doomed.get(timeout=max(end - time.monotonic(), 0)))
            # A separate program, so that it neither blocks our interpreter nor dies with us.
            discarded = list(filter(None, batch))
            if _run_silently(["rm", "-rf", "--", *discarded]) != 0:
                _run_silently(["chmod", "-R", "u+rwx", "--", *discarded])
                _run_silently(["rm", "-rf", "--", *discarded])


def _run_silently(argv: list[str]) -> int:
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        ).returncode
    except OSError:
        return 0  # nothing more to try: the next start sweeps again


def _is_alive(owner: Path) -> bool:
    """Whether a process still holds its lock."""
    try:
        handle = os.open(owner / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


# Base trees: a repository at a commit, set up once and then read-only.


BASE_VERSION = 1
"""Version of how bases are made; a new one makes them again."""
SETUP_LIMITS = Limits(
    command_seconds=3600.0,
    idle_seconds=1800.0,
    disk_bytes=64 << 30,
    files=10_000_000,
    memory_bytes=64 << 30,
)
NOISE_PATTERNS = "__pycache__/\n"
"""Files that merely running code creates."""


class WorkspaceBase(Record):
    """A repository at a commit, ready to work on."""

    folder: str
    """Contains `root/workspace`, `root/home` and our `git`."""
    commit: str
    tree: str
    """The files after setup, in our git folder."""
    bytes: int
    files: int = 0


class BaseOrder(Record):
    """Which base to make."""

    repo: str
    commit: str
    setup: tuple[str, ...] = ()
    is_shareable: bool = True
    """Whether the results of setup may serve other commits too."""
    report_progress: Callable[[str], None] = lambda text: None


class SetupResult(Record):
    """The results of setup."""

    exclude: str = ""
    """What git ignores of it, as an exclude file."""
    beside: bool = False
    """Whether no file of the repository was changed."""


def build_base_key(repo: str, commit: str, setup: Sequence[str], root: str) -> str:
    """Return the key of a base. It includes the path, because setup may write it into files."""
    return content_digest(BASE_VERSION, repo, commit, list(setup), root if setup else None)[:32]


def load_base(folder: Path) -> WorkspaceBase | None:
    try:
        base = msgspec.json.decode((folder / "base.json").read_bytes(), type=WorkspaceBase)
    except FileNotFoundError:
        return None
    with suppress(OSError):
        os.utime(folder / "base.json")  # so that `trim_bases` knows that it is in use
    return msgspec.structs.replace(base, folder=str(folder))


def trim_bases(folders: CacheFolders, max_bytes: int, min_unused_seconds: float) -> None:
    """Discard the least recently used bases until the rest has at most that size.

    None that was used in the last `min_unused_seconds`, because somebody may be working on it.
    """
    base_sizes = []
    for path in (folders.cache / "bases").glob("*/base.json"):
        with suppress(OSError, msgspec.MsgspecError):
            base = msgspec.json.decode(path.read_bytes(), type=WorkspaceBase)
            base_sizes.append((path.stat().st_mtime, base.bytes, path.parent))
    total, used_before = (
        sum(bytes_ for _, bytes_, _ in base_sizes),
        time.time() - min_unused_seconds,
    )
    for last_used, bytes_, folder in sorted(base_sizes):
        if total <= max_bytes or last_used > used_before:
            return
        folders.discard_folder(str(folder))
        total -= bytes_


async def make_base(
    folders: CacheFolders, sandbox: SandboxBackend, order: BaseOrder
) -> WorkspaceBase:
    """Make a base in our own folder; it becomes visible atomically."""
    folder = folders.name_new_folder()
    try:
        return await _make_base_in(folders, sandbox, folder, order)
    except BaseException:
        folders.discard_folder(folder)
        raise


async def _make_base_in(
    folders: CacheFolders, sandbox: SandboxBackend, folder: str, order: BaseOrder
) -> WorkspaceBase:
    root = sandbox_root(sandbox)
    repo, commit, setup = order.repo, order.commit, order.setup
    order.report_progress(f"copying commit {commit[:12]}")
    tree = await start_repository(repo, commit, _make_base_folders(folder))
    sharing_key = (
        digest_environment(repo, commit, setup, root) if setup and sandbox.isolated else None
    )
    async with _lock_lender(folders.cache, sharing_key) as lender:
        setup_result = await _set_up_base(sandbox, folder, order, lender)
        tree = await _index_base_files(sandbox, folder, tree, NOISE_PATTERNS + setup_result.exclude)
        disk_usage = measure_disk(f"{folder}/root")
        base = WorkspaceBase(
            folder=folder, commit=commit, tree=tree, bytes=disk_usage.bytes, files=disk_usage.files
        )
        name = build_base_key(repo, commit, setup, root)
        base = _publish_base(base, folders.cache / "bases" / name)
        if sharing_key and order.is_shareable and lender is None and setup_result.beside:
            _sharing_file(folders.cache, sharing_key).write_text(name)
    return base


def _make_base_folders(folder: str) -> str:
    folders = real_paths(WorkspaceLayout(folder=folder))
    for path in (*folders, f"{folder}/git/objects", f"{folder}/git/info"):
        Path(path).mkdir(parents=True)
    return folders[0]


def _publish_base(base: WorkspaceBase, final: Path) -> WorkspaceBase:
    Path(base.folder, "base.json").write_bytes(msgspec.json.encode(base))
    Path(base.folder).rename(final)
    return msgspec.structs.replace(base, folder=str(final))


async def _set_up_base(
    sandbox: SandboxBackend, folder: str, order: BaseOrder, lender: WorkspaceBase | None
) -> SetupResult:
    """Run the setup commands with network access, or link their results at another commit."""
    if not order.setup:
        return SetupResult()
    if lender is None:
        workspace_sandbox = make_sandbox(
            sandbox, WorkspaceLayout(folder=folder, network=True), SETUP_LIMITS
        )
        await run_setup(workspace_sandbox, order.setup, order.repo, order.report_progress)
    else:
        untracked = await _list_untracked_names(
            make_sandbox(
                sandbox, WorkspaceLayout(folder=lender.folder), SETUP_LIMITS
            ).as_read_only(),
            "",
        )
        names = [name.rstrip("/") for name in untracked]
        await anyio.to_thread.run_sync(link_environment, Path(lender.folder), names, Path(folder))
    # From here on git reads what setup wrote into the repository: only inside the sandbox.
    workspace_sandbox = make_sandbox(sandbox, WorkspaceLayout(folder=folder), SETUP_LIMITS)
    untracked = await _list_untracked_names(workspace_sandbox, "--exclude-standard")
    is_beside = (await workspace_sandbox.run("git diff --quiet HEAD")).exit_code == 0
    if not is_beside:
        env = START_ENVIRONMENT | {"GIT_CONFIG_PARAMETERS": "'core.logAllRefUpdates=false'"}
        await workspace_sandbox.run(
            "git -c core.hooksPath=/dev/null commit -q -a --amend -m Start", env=env
        )
    return SetupResult(
        exclude="".join(f"/{_exclude_pattern(name)}\n" for name in untracked), beside=is_beside
    )


async def _list_untracked_names(sandbox: WorkspaceSandbox, options: str) -> list[str]:
    """List files and folders that git does not track."""
    command = f"git ls-files -z --others --directory {options}"
    content = (await sandbox.execute_command(command, keep=64 << 20)).output.content
    return [name for name in os.fsdecode(content).split("\0") if name]


@asynccontextmanager
async def _lock_lender(cache: Path, sharing_key: str | None) -> AsyncIterator[WorkspaceBase | None]:
    """Return a base whose environment serves others; while the first one is made, others wait."""
    if sharing_key is None:
        yield None
        return
    async with lock_path(cache / "locks" / sharing_key):
        try:
            lender = load_base(cache / "bases" / _sharing_file(cache, sharing_key).read_text())
        except OSError:
            lender = None
        yield lender


def _sharing_file(cache: Path, sharing_key: str) -> Path:
    (cache / "kin").mkdir(exist_ok=True)
    return cache / "kin" / sharing_key


async def run_setup(
    sandbox: WorkspaceSandbox,
    setup: Sequence[str],
    repo: str,
    report: Callable[[str], None] = lambda text: None,
) -> None:
    """Run the setup commands; BadInput with the output of one that fails."""
    async with admit_suite():
        for number, command in enumerate(setup, 1):
            report(f"setting up, {number} of {len(setup)}: {command}")
            result = await sandbox.run(command, env=package_environment())
            if result.exit_code != 0:
                end_cause = result.stopped or f"exit code {result.exit_code}"
                tail = result.output.strip()[-2000:]
                output_text = f":\n{tail}" if tail else " without output."
                raise BadInput(
                    f"The setup command `{command}` for {repo} failed ({end_cause}){output_text}"
                )


async def _index_base_files(sandbox: SandboxBackend, folder: str, tree: str, exclude: str) -> str:
    """Index the base's files in our git folder, inside the sandbox that will read them."""
    workspace_sandbox = make_sandbox(sandbox, WorkspaceLayout(folder=folder), SETUP_LIMITS)
    await workspace_sandbox.write(".git/info/exclude", os.fsencode(exclude))
    private_git = workspace_patches.open_private_git(workspace_sandbox, folder, tree)
    tree = await workspace_patches.index_workspace(private_git, os.fsencode(exclude))
    await workspace_sandbox.run("git update-index -q --refresh")
    return tree


def make_sandbox(
    sandbox: SandboxBackend, layout: WorkspaceLayout, limits: Limits
) -> WorkspaceSandbox:
    kind = UnconfinedSandbox if sandbox.wrap is None else WorkspaceSandbox
    return kind(sandbox, layout, limits, None)


def sandbox_root(sandbox: SandboxBackend) -> str:
    return "/workspace" if sandbox.isolated else sandbox.sandbox_limits.kind


def _exclude_pattern(name: str) -> str:
    """Return a line of an exclude file that matches this name only."""
    return re.sub(r"([*?\[\\ ])", r"\\\1", name)


@asynccontextmanager
async def lock_path(path: Path) -> AsyncIterator[None]:
    """Lock a path among all processes. A killed process releases it."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    try:
        pause = 0.01
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await anyio.sleep(pause)
                pause = min(pause * 2, 0.2)
        yield
    finally:
        os.close(handle)


# A workspace for every attempt: opened in milliseconds, closed without waiting.


COPY_LIMITS = ProgramLimits(
    seconds=3600.0,
    idle_seconds=3600.0,
    processes=1 << 20,
    memory_bytes=1 << 50,
    output_bytes=1 << 16,
)
MAX_BASES_BYTES = 20 << 30
MIN_UNUSED_SECONDS = 86_400.0
NO_PROXY_HOSTS = "localhost,127.0.0.1,::1"
"""Hosts that bypass the proxy."""


class Workspace:
    """The files of one attempt."""

    def __init__(self, sandbox: WorkspaceSandbox, base: WorkspaceBase | None, method: str) -> None:
        self.sandbox = sandbox
        self.method = method
        """`overlay`, `copy`, or `new` for an empty one."""
        self._base = base
        self._ours: workspace_patches.PrivateGit | None = None

    async def set_up(self, commands: Sequence[str]) -> None:
        """Run setup commands again with network access; BadInput if one fails."""
        await run_setup(self.sandbox.with_network(SETUP_LIMITS), commands, "the changed project")

    async def settle_changes(self) -> None:
        """Compare later changes with the current state."""
        if self._base is not None:
            self._ours = await workspace_patches.settle_workspace(self._open_private_git())

    async def read_diff(self) -> str:
        """Return all changes from the base as a patch; UnreadableChange if that is impossible."""
        if self._base is None and self._ours is None:
            root = real_paths(self.sandbox.place)[0]
            if not _has_files(root):
                return ""
            plain_patch = await to_thread.run_sync(workspace_patches.diff_plain_files, root)
            if plain_patch is not None:
                return plain_patch
        return await workspace_patches.diff_workspace(self._open_private_git())

    async def apply_patch(self, patch: str, *, exclude: Sequence[str] = ()) -> None:
        """Apply a patch without files that match the globs; BadInput if it does not apply."""
        if not patch.strip():
            return
        await workspace_patches.apply_workspace_patch(self._open_private_git(), patch, exclude)

    def _open_private_git(self) -> workspace_patches.PrivateGit:
        if self._ours is None:
            base = self._base
            self._ours = (
                workspace_patches.open_private_git(self.sandbox, base.folder, base.tree)
                if base
                else workspace_patches.open_private_git(self.sandbox)
            )
        return self._ours


class WorkspacePool:
    """All workspaces of a process, in one cache folder and one kind of sandbox."""

    def __init__(self, cache: Path, sandbox: SandboxSettings) -> None:
        self._hosts = sandbox.hosts
        try:
            self._folders = CacheFolders(cache.absolute())
            self.sandbox = find_sandbox(sandbox, cache.absolute())
        except OSError as error:
            raise MachineFailed(f"The cache folder {cache} cannot be used: {error}.") from error

    @property
    def sandbox_limits(self) -> SandboxLimits:
        """What is enforced here."""
        return self.sandbox.sandbox_limits

    def name_new_folder(self) -> Path:
        """Return a folder that is not created yet and is removed with this process."""
        return Path(self._folders.name_new_folder())

    async def prepare_base(
        self,
        repo: str,
        commit: str,
        setup: Sequence[str] = (),
        *,
        is_shareable: bool = True,
        report: Callable[[str], None] = lambda text: None,
    ) -> WorkspaceBase:
        """Return the tree at a commit after setup; the first caller makes it, others reuse it.

        With `is_shareable`, the results of setup may serve other commits too. Otherwise not,
        as when the commit's code is not trusted.
        """
        cache = self._folders.cache
        name = build_base_key(repo, commit, setup, sandbox_root(self.sandbox))
        order = BaseOrder(
            repo=repo,
            commit=commit,
            setup=tuple(setup),
            is_shareable=is_shareable,
            report_progress=report,
        )
        prepared = load_base(cache / "bases" / name)
        if prepared is None:
            async with lock_path(cache / "locks" / name):
                prepared = load_base(cache / "bases" / name) or await make_base(
                    self._folders, self.sandbox, order
                )
        return prepared

    def trim_unused_bases(
        self, max_bytes: int = MAX_BASES_BYTES, min_unused_seconds: float = MIN_UNUSED_SECONDS
    ) -> None:
        """Discard the least recently used bases if they exceed that size."""
        trim_bases(self._folders, max_bytes, min_unused_seconds)

    @asynccontextmanager
    async def open(
        self, base: WorkspaceBase | None, limits: Limits, *, standing: bool = False
    ) -> AsyncIterator[Workspace]:
        """Open a fresh workspace; without a base it is empty.

        With `standing`, its commands run in one sandbox, if the kind of sandbox allows it.
        """
        folder = self._folders.name_new_folder()
        try:
            layout, method, usage_before = await self._make_workspace_folders(folder, base)
            if base is not None:
                _lay_bait(real_paths(layout)[1])
            changed_folder = "upper" if method == "overlay" else "root"
            max_usage = DiskUsage(
                bytes=usage_before.bytes + limits.disk_bytes,
                files=usage_before.files + limits.files,
            )
            disk = DiskLimit([f"{folder}/{changed_folder}", f"{folder}/temporary"], max_usage)
            sandbox_class = WorkspaceSandbox if self.sandbox.wrap else UnconfinedSandbox
            async with self._reach_hosts(layout) as (layout, refused):
                sandbox = sandbox_class(self.sandbox, layout, limits, disk, refused)
                if standing:
                    sandbox.open_standing()
                try:
                    yield Workspace(sandbox, base, method)
                finally:
                    if sandbox.has_standing:
                        with anyio.CancelScope(shield=True):
                            await sandbox.close_standing()
        finally:
            self._folders.discard_folder(folder)

    @asynccontextmanager
    async def _reach_hosts(
        self, layout: WorkspaceLayout
    ) -> AsyncIterator[tuple[WorkspaceLayout, dict[str, int]]]:
        """Return the layout with access to the named hosts, and the refused ones."""
        if not self._hosts or self.sandbox.wrap is None:
            yield layout, {}
            return
        async with machine_view.open_allowlist(self._hosts, Path(layout.folder, "hosts")) as gate:
            number = machine_view.PROXY_PORT if self.sandbox.isolated else gate.port
            proxy = f"http://127.0.0.1:{number}"
            names = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")
            env = dict.fromkeys(names, proxy) | dict.fromkeys(
                ("NO_PROXY", "no_proxy"), NO_PROXY_HOSTS
            )
            ports = (SandboxPort(number=number, socket=gate.socket),)
            yield msgspec.structs.replace(layout, ports=ports, env=env), gate.refused

    async def _make_workspace_folders(
        self, folder: str, base: WorkspaceBase | None
    ) -> tuple[WorkspaceLayout, str, DiskUsage]:
        """Make the folders; return how they were made and their initial usage."""
        if base is None and self.sandbox.wrap is None:
            return (WorkspaceLayout(folder=folder), "new", DiskUsage())  # created on first use
        os.mkdir(folder)  # noqa: PTH102 (a third of the time)
        if base is None:
            _make_subfolders(folder, "root", "root/workspace", "root/home", "temporary")
            return WorkspaceLayout(folder=folder), "new", DiskUsage()
        if self.sandbox.overlay:
            _make_subfolders(folder, "upper", "work", "temporary")
            return (
                WorkspaceLayout(folder=folder, lower=f"{base.folder}/root"),
                "overlay",
                DiskUsage(),
            )
        _make_subfolders(folder, "temporary")
        await _copy_tree(f"{base.folder}/root", f"{folder}/root")
        return WorkspaceLayout(folder=folder), "copy", DiskUsage(bytes=base.bytes, files=base.files)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all workspaces; bases remain."""
        self._folders.discard_all()


def _lay_bait(home: str) -> None:
    """Create the bait only in a new folder: an existing one may lead anywhere."""
    path = Path(home, code_patterns.BAIT_PATH)
    with suppress(OSError):
        path.parent.parent.mkdir(exist_ok=True)
        path.parent.mkdir()
        path.write_text(code_patterns.bait_content(secrets.token_hex(8)), encoding="utf-8")


def _has_files(folder: str) -> bool:
    """Whether anything is there; an empty workspace is created on first use."""
    with suppress(OSError), os.scandir(folder) as entries:
        return next(entries, None) is not None
    return False


def _make_subfolders(folder: str, *names: str) -> None:
    for name in names:
        os.mkdir(f"{folder}/{name}")  # noqa: PTH102 (a third of the time)


async def _copy_tree(source: str, target: str) -> None:
    """Copy the fastest way: by reference where possible, preserving times."""
    argv = [shutil.which("cp") or "cp", "-a", "--reflink=auto", "--", source, target]
    program = Program(argv=lambda _: argv, env={}, directory="/")
    result = await execute_program(program, COPY_LIMITS)
    if result.exit_code != 0:
        raise MachineFailed(f"A workspace could not be copied: {result.output.text.strip()[-300:]}")


__all__ = [
    "SandboxLimits",
    "UnreadableChange",
    "Workspace",
    "WorkspaceBase",
    "WorkspacePool",
    "resolve_commit",
]
