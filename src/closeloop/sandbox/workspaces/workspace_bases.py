"""Base trees: a repository at a commit, set up once and then only read."""

from __future__ import annotations

import fcntl
import itertools
import os
import queue
import re
import secrets
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from closeloop.records.errors import BadInput
from closeloop.records.record import Record, content_digest
from closeloop.records.task import Limits
from closeloop.sandbox.admission import admit_suite
from closeloop.sandbox.machine_view import package_environment
from closeloop.sandbox.process_tree import measure_disk
from closeloop.sandbox.workspace_layout import SandboxBackend, WorkspaceLayout, real_paths
from closeloop.sandbox.workspace_sandbox import UnconfinedSandbox, WorkspaceSandbox
from closeloop.sandbox.workspaces import workspace_patches
from closeloop.sandbox.workspaces.source_repository import (
    START_ENVIRONMENT,
    digest_environment,
    link_environment,
    start_repository,
)

# The cache's folders: who uses them, and how they go away without anybody waiting.
#
# Whatever a process makes lies in `runs/<owner>/`, locked for as long as it lives. What is done
# with moves to `trash/`, where anybody may delete it.

MAX_BATCH_FOLDERS, BATCH_SECONDS = 256, 0.2
"""How many folders one `rm` deletes at most, and for how many seconds they are gathered."""


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
            (cache / name).chmod(0o700)  # programs in there may have anything set
        owner = f"{os.getpid()}-{secrets.token_hex(4)}"
        temporary_folder = cache / f"owner-{owner}"
        temporary_folder.mkdir()
        # Locked before others can see it, or they would take it for a dead process's.
        self._lock = os.open(temporary_folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._own = cache / "runs" / owner
        temporary_folder.rename(self._own)
        self._discard_leftovers()

    def name_new_folder(self) -> str:
        """The name of a folder of our own that nobody has used; it is not made yet."""
        return f"{self._own}/{next(self._numbers)}"

    def discard_folder(self, folder: str) -> None:
        """Out of the way at once, deleted later."""
        trash_folder = f"{self._trash}/{secrets.token_hex(8)}"
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
        """Discard all that is left. Deleting may outlast us."""
        self.discard_folder(str(self._own))
        self._doomed.put(None)
        if self._deleter is not None:
            self._deleter.join(timeout=5)
        with suppress(OSError):
            os.close(self._lock)
        self._lock = -1

    def _discard_leftovers(self) -> None:
        """What killed processes left behind."""
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
            # A program, so that it neither holds our interpreter nor dies with us.
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


BASE_VERSION = 1
"""Of how bases are made: another one makes them anew."""
SETUP_LIMITS = Limits(
    command_seconds=3600.0,
    idle_seconds=1800.0,
    disk_bytes=64 << 30,
    files=10_000_000,
    memory_bytes=64 << 30,
)
NOISE_PATTERNS = "__pycache__/\n"
"""What merely running code leaves in a tree."""


class WorkspaceBase(Record):
    """A repository at a commit, ready to be worked on."""

    folder: str
    """Holds `root/workspace`, `root/home` and our `git`."""
    commit: str
    tree: str
    """The files as they were after setup, in our git folder."""
    bytes: int
    files: int = 0


class BaseOrder(Record):
    """Which base is to be made."""

    repo: str
    commit: str
    setup: tuple[str, ...] = ()
    lends: bool = True
    """What setup makes serves other commits too."""
    tell: Callable[[str], None] = lambda text: None


class SetupResult(Record):
    """What setup left."""

    exclude: str = ""
    """What git shall overlook of it, as an exclude file says it."""
    beside: bool = False
    """No file of the repository was changed."""


def build_base_key(repo: str, commit: str, setup: Sequence[str], root: str) -> str:
    """Setup may write down where it ran, so that is part of what was made."""
    return content_digest(BASE_VERSION, repo, commit, list(setup), root if setup else None)[:32]


def load_base(folder: Path) -> WorkspaceBase | None:
    try:
        base = msgspec.json.decode((folder / "base.json").read_bytes(), type=WorkspaceBase)
    except FileNotFoundError:
        return None
    with suppress(OSError):
        os.utime(folder / "base.json")  # by it, trim knows which are in use
    return msgspec.structs.replace(base, folder=str(folder))


def trim_bases(folders: CacheFolders, most: int, rested: float) -> None:
    """Discard the bases that nobody has used for longest, until the rest has at most that size.

    None that was used in the last `rested` seconds: somebody may still be working on it.
    """
    base_sizes = []
    for path in (folders.cache / "bases").glob("*/base.json"):
        with suppress(OSError, msgspec.MsgspecError):
            base = msgspec.json.decode(path.read_bytes(), type=WorkspaceBase)
            base_sizes.append((path.stat().st_mtime, base.bytes, path.parent))
    total, before = sum(bytes_ for _, bytes_, _ in base_sizes), time.time() - rested
    for used, bytes_, folder in sorted(base_sizes):
        if total <= most or used > before:
            return
        folders.discard_folder(str(folder))
        total -= bytes_


async def make_base(
    folders: CacheFolders, sandbox: SandboxBackend, order: BaseOrder
) -> WorkspaceBase:
    """Make a base in a folder of our own; it becomes visible whole or not at all."""
    folder = folders.name_new_folder()
    try:
        return await _make_base_in(folders, sandbox, folder, order)
    except BaseException:
        folders.discard_folder(folder)
        raise


async def _make_base_in(
    folders: CacheFolders,
    sandbox: SandboxBackend,
    folder: str,
    order: BaseOrder,
) -> WorkspaceBase:
    root = sandbox_root(sandbox)
    repo, commit, setup = order.repo, order.commit, order.setup
    order.tell(f"copying commit {commit[:12]}")
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
        if sharing_key and order.lends and lender is None and setup_result.beside:
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
    sandbox: SandboxBackend,
    folder: str,
    order: BaseOrder,
    lender: WorkspaceBase | None,
) -> SetupResult:
    """Run the setup commands with the network open, or link what they made at another commit."""
    if not order.setup:
        return SetupResult()
    if lender is None:
        cage = make_sandbox(sandbox, WorkspaceLayout(folder=folder, network=True), SETUP_LIMITS)
        await run_setup(cage, order.setup, order.repo, order.tell)
    else:
        untracked = await _list_untracked_names(
            make_sandbox(
                sandbox, WorkspaceLayout(folder=lender.folder), SETUP_LIMITS
            ).as_read_only(),
            "",
        )
        names = [name.rstrip("/") for name in untracked]
        await anyio.to_thread.run_sync(link_environment, Path(lender.folder), names, Path(folder))
    # From here on git meets what setup made of the repository: only ever inside the cage.
    cage = make_sandbox(sandbox, WorkspaceLayout(folder=folder), SETUP_LIMITS)
    untracked = await _list_untracked_names(cage, "--exclude-standard")
    is_beside = (await cage.run("git diff --quiet HEAD")).exit_code == 0
    if not is_beside:
        env = START_ENVIRONMENT | {"GIT_CONFIG_PARAMETERS": "'core.logAllRefUpdates=false'"}
        await cage.run("git -c core.hooksPath=/dev/null commit -q -a --amend -m Start", env=env)
    return SetupResult(
        exclude="".join(f"/{_exclude_pattern(name)}\n" for name in untracked), beside=is_beside
    )


async def _list_untracked_names(cage: WorkspaceSandbox, options: str) -> list[str]:
    """Files and folders that are not git's."""
    listing = f"git ls-files -z --others --directory {options}"
    content = (await cage.execute_command(listing, keep=64 << 20)).output.content
    return [name for name in os.fsdecode(content).split("\0") if name]


@asynccontextmanager
async def _lock_lender(cache: Path, kin: str | None) -> AsyncIterator[WorkspaceBase | None]:
    """A base whose environment serves others; while the first one is made, the others wait."""
    if kin is None:
        yield None
        return
    async with lock_path(cache / "locks" / kin):
        try:
            lender = load_base(cache / "bases" / _sharing_file(cache, kin).read_text())
        except OSError:
            lender = None
        yield lender


def _sharing_file(cache: Path, kin: str) -> Path:
    (cache / "kin").mkdir(exist_ok=True)
    return cache / "kin" / kin


async def run_setup(
    cage: WorkspaceSandbox,
    setup: Sequence[str],
    repo: str,
    tell: Callable[[str], None] = lambda text: None,
) -> None:
    """BadInput with what a command that fails has said."""
    async with admit_suite():
        for number, command in enumerate(setup, 1):
            tell(f"setting up, {number} of {len(setup)}: {command}")
            ran = await cage.run(command, env=package_environment())
            if ran.exit_code != 0:
                end_cause = ran.stopped or f"exit code {ran.exit_code}"
                tail = ran.output.strip()[-2000:]
                output_text = f":\n{tail}" if tail else " and said nothing."
                raise BadInput(
                    f"The setup command `{command}` for {repo} failed ({end_cause}){output_text}"
                )


async def _index_base_files(sandbox: SandboxBackend, folder: str, tree: str, exclude: str) -> str:
    """Our own account of the base's files, made inside the cage that will read them."""
    cage = make_sandbox(sandbox, WorkspaceLayout(folder=folder), SETUP_LIMITS)
    await cage.write(".git/info/exclude", os.fsencode(exclude))
    ours = workspace_patches.open_private_git(cage, folder, tree)
    tree = await workspace_patches.index_workspace(ours, os.fsencode(exclude))
    await cage.run("git update-index -q --refresh")
    return tree


def make_sandbox(
    sandbox: SandboxBackend, place: WorkspaceLayout, limits: Limits
) -> WorkspaceSandbox:
    kind = UnconfinedSandbox if sandbox.wrap is None else WorkspaceSandbox
    return kind(sandbox, place, limits, None)


def sandbox_root(sandbox: SandboxBackend) -> str:
    return "/workspace" if sandbox.isolated else sandbox.guards.kind


def _exclude_pattern(name: str) -> str:
    """A line of an exclude file that means this name only."""
    return re.sub(r"([*?\[\\ ])", r"\\\1", name)


@asynccontextmanager
async def lock_path(path: Path) -> AsyncIterator[None]:
    """Alone among all processes. A killed one lets go."""
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
