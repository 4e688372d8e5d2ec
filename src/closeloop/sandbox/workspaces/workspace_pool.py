"""A workspace for every attempt: opened in milliseconds, closed without waiting."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from closeloop.records.errors import MachineFailed
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox import sandbox_network
from closeloop.sandbox.process_tree import DiskLimit, DiskUsage
from closeloop.sandbox.program_execution import Program, ProgramLimits, execute_program
from closeloop.sandbox.sandbox_ladder import find_sandbox
from closeloop.sandbox.workspace_layout import (
    SandboxLimits,
    SandboxPort,
    WorkspaceLayout,
    real_paths,
)
from closeloop.sandbox.workspace_sandbox import UnconfinedSandbox, WorkspaceSandbox
from closeloop.sandbox.workspaces import workspace_bases, workspace_patches
from closeloop.sandbox.workspaces.workspace_bases import BaseOrder, CacheFolders, WorkspaceBase
from closeloop.text import code_patterns

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
"""Never by way of the proxy."""


class Workspace:
    """One attempt's files."""

    def __init__(self, cage: WorkspaceSandbox, base: WorkspaceBase | None, method: str) -> None:
        self.cage = cage
        self.method = method
        """`overlay`, `copy`, or `new` for an empty one."""
        self._base = base
        self._ours: workspace_patches.PrivateGit | None = None

    async def set_up(self, commands: Sequence[str]) -> None:
        """Run setup commands again, the network open as at first; BadInput when one fails."""
        await workspace_bases.run_setup(
            self.cage.with_network(workspace_bases.SETUP_LIMITS), commands, "the changed project"
        )

    async def settle_changes(self) -> None:
        """From here on, changes are told against what is there now."""
        if self._base is not None:
            self._ours = await workspace_patches.settle_workspace(self._open_private_git())

    async def read_diff(self) -> str:
        """Everything changed against the base, as a patch; Unreadable when that cannot be told."""
        if self._base is None and not _has_files(real_paths(self.cage.place)[0]):
            return ""
        return await workspace_patches.diff_workspace(self._open_private_git())

    async def apply_patch(self, patch: str, *, exclude: Sequence[str] = ()) -> None:
        """Apply a patch, but for files that the globs mean; BadInput when it does not apply."""
        if not patch.strip():
            return
        await workspace_patches.apply_workspace_patch(self._open_private_git(), patch, exclude)

    def _open_private_git(self) -> workspace_patches.PrivateGit:
        if self._ours is None:
            base = self._base
            self._ours = (
                workspace_patches.open_private_git(self.cage, base.folder, base.tree)
                if base
                else workspace_patches.open_private_git(self.cage)
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
    def guards(self) -> SandboxLimits:
        """What is really enforced here."""
        return self.sandbox.guards

    def name_new_folder(self) -> Path:
        """One of our own, not made yet, which goes away with us, however we end."""
        return Path(self._folders.name_new_folder())

    async def prepare_base(
        self,
        repo: str,
        commit: str,
        setup: Sequence[str] = (),
        *,
        lends: bool = True,
        tell: Callable[[str], None] = lambda text: None,
    ) -> WorkspaceBase:
        """The tree at a commit, set up: made once, whoever asks for it first.

        What setup made serves other commits too, but not from one that does not lend, as nobody
        vouches for its code.
        """
        cache = self._folders.cache
        name = workspace_bases.build_base_key(
            repo, commit, setup, workspace_bases.sandbox_root(self.sandbox)
        )
        order = BaseOrder(repo=repo, commit=commit, setup=tuple(setup), lends=lends, tell=tell)
        prepared = workspace_bases.load_base(cache / "bases" / name)
        if prepared is None:
            async with workspace_bases.lock_path(cache / "locks" / name):
                prepared = workspace_bases.load_base(
                    cache / "bases" / name
                ) or await workspace_bases.make_base(self._folders, self.sandbox, order)
        return prepared

    def trim_unused_bases(
        self, most: int = MAX_BASES_BYTES, rested: float = MIN_UNUSED_SECONDS
    ) -> None:
        """Let go of bases, the longest unused first, where they take more room than that."""
        workspace_bases.trim_bases(self._folders, most, rested)

    @asynccontextmanager
    async def open(self, base: WorkspaceBase | None, limits: Limits) -> AsyncIterator[Workspace]:
        """A fresh workspace; without a base it is empty."""
        folder = self._folders.name_new_folder()
        try:
            place, method, before = await self._make_workspace_folders(folder, base)
            if base is not None:
                _lay_bait(real_paths(place)[1])
            changed_folder = "upper" if method == "overlay" else "root"
            max_usage = DiskUsage(
                bytes=before.bytes + limits.disk_bytes, files=before.files + limits.files
            )
            disk = DiskLimit([f"{folder}/{changed_folder}", f"{folder}/temporary"], max_usage)
            sandbox_class = WorkspaceSandbox if self.sandbox.wrap else UnconfinedSandbox
            async with self._reach_hosts(place) as (place, refused):
                yield Workspace(
                    sandbox_class(self.sandbox, place, limits, disk, refused), base, method
                )
        finally:
            self._folders.discard_folder(folder)

    @asynccontextmanager
    async def _reach_hosts(
        self, place: WorkspaceLayout
    ) -> AsyncIterator[tuple[WorkspaceLayout, dict[str, int]]]:
        """The place, with a way to the hosts that were named, and what was refused there."""
        if not self._hosts or self.sandbox.wrap is None:
            yield place, {}
            return
        async with sandbox_network.open_allowlist(self._hosts, Path(place.folder, "hosts")) as gate:
            number = sandbox_network.PROXY_PORT if self.sandbox.isolated else gate.port
            proxy = f"http://127.0.0.1:{number}"
            names = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")
            env = dict.fromkeys(names, proxy) | dict.fromkeys(
                ("NO_PROXY", "no_proxy"), NO_PROXY_HOSTS
            )
            ports = (SandboxPort(number=number, socket=gate.socket),)
            yield msgspec.structs.replace(place, ports=ports, env=env), gate.refused

    async def _make_workspace_folders(
        self, folder: str, base: WorkspaceBase | None
    ) -> tuple[WorkspaceLayout, str, DiskUsage]:
        """The folders, how they came about, and what they hold from the start."""
        if base is None and self.sandbox.wrap is None:
            return (
                WorkspaceLayout(folder=folder),
                "new",
                DiskUsage(),
            )  # made when it is first used, if at all
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
        """Give up all workspaces; bases stay for the next time."""
        self._folders.discard_all()


def _lay_bait(home: str) -> None:
    """A new folder or none: one that is there may lead anywhere."""
    path = Path(home, code_patterns.BAIT_PATH)
    with suppress(OSError):
        path.parent.parent.mkdir(exist_ok=True)
        path.parent.mkdir()
        path.write_text(code_patterns.bait_content(secrets.token_hex(8)), encoding="utf-8")


def _has_files(folder: str) -> bool:
    """Whether anything is there; an empty workspace is made when it is first used, if at all."""
    with suppress(OSError), os.scandir(folder) as entries:
        return next(entries, None) is not None
    return False


def _make_subfolders(folder: str, *names: str) -> None:
    for name in names:
        os.mkdir(f"{folder}/{name}")  # noqa: PTH102 (a third of the time)


async def _copy_tree(source: str, target: str) -> None:
    """As the file system is fastest: by reference where it can, with times kept."""
    argv = [shutil.which("cp") or "cp", "-a", "--reflink=auto", "--", source, target]
    program = Program(argv=lambda _: argv, env={}, directory="/")
    ended = await execute_program(program, COPY_LIMITS)
    if ended.exit_code != 0:
        raise MachineFailed(f"A workspace could not be copied: {ended.output.text.strip()[-300:]}")
