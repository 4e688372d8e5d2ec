"""A workspace for every attempt: opened in milliseconds, closed without waiting."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from closeloop.model import bait
from closeloop.model.errors import MachineFailed
from closeloop.model.settings import SandboxSettings
from closeloop.model.variant import Limits
from closeloop.runs.sandbox import hosts
from closeloop.runs.sandbox.cage import Cage, OpenCage
from closeloop.runs.sandbox.disk import Disk, DiskUsage
from closeloop.runs.sandbox.ladder import find_sandbox
from closeloop.runs.sandbox.place import Guards, Place, Port, real_paths
from closeloop.runs.sandbox.process import Bounds, Program, execute
from closeloop.runs.workspaces import bases, patches
from closeloop.runs.workspaces.bases import Base
from closeloop.runs.workspaces.folders import Folders

COPY = Bounds(
    seconds=3600.0,
    idle_seconds=3600.0,
    processes=1 << 20,
    memory_bytes=1 << 50,
    output_bytes=1 << 16,
)
MOST_BYTES = 20 << 30
RESTED = 86_400.0
NEAR = "localhost,127.0.0.1,::1"
"""Never by way of the proxy."""


class Workspace:
    """One attempt's files."""

    def __init__(self, cage: Cage, base: Base | None, method: str) -> None:
        self.cage = cage
        self.method = method
        """`overlay`, `copy`, or `new` for an empty one."""
        self._base = base
        self._ours: patches.Ours | None = None

    async def set_up(self, commands: Sequence[str]) -> None:
        """Run setup commands again, the network open as at first; BadInput when one fails."""
        await bases.run_setup(self.cage.connected(bases.SETUP), commands, "the changed project")

    async def settle(self) -> None:
        """From here on, changes are told against what is there now."""
        if self._base is not None:
            self._ours = await patches.settle(self._open(self._base))

    async def diff(self) -> str:
        """Everything changed against the base, as a patch; Unreadable when that cannot be told."""
        return await patches.diff(self._open(self._base)) if self._base else ""

    async def apply(self, patch: str, *, exclude: Sequence[str] = ()) -> None:
        """Apply a patch, but for files that the globs mean; BadInput when it does not apply."""
        if not patch.strip():
            return
        if self._base is None:
            raise MachineFailed("A patch was given to an empty workspace: there is no repository.")
        await patches.apply(self._open(self._base), patch, exclude)

    def _open(self, base: Base) -> patches.Ours:
        if self._ours is None:
            self._ours = patches.open_ours(self.cage, base.folder, base.tree)
        return self._ours


class Workspaces:
    """All workspaces of a process, in one cache folder and one kind of sandbox."""

    def __init__(self, cache: Path, sandbox: SandboxSettings) -> None:
        self._hosts = sandbox.hosts
        try:
            self._folders = Folders(cache.absolute())
            self.sandbox = find_sandbox(sandbox, cache.absolute())
        except OSError as error:
            raise MachineFailed(f"The cache folder {cache} cannot be used: {error}.") from error

    @property
    def guards(self) -> Guards:
        """What is really enforced here."""
        return self.sandbox.guards

    def folder(self) -> Path:
        """One of our own, not made yet, which goes away with us, however we end."""
        return Path(self._folders.new())

    async def base(self, repo: str, commit: str, setup: Sequence[str] = ()) -> Base:
        """The tree at a commit, set up: made once, whoever asks for it first."""
        cache = self._folders.cache
        name = bases.key(repo, commit, setup, bases.sandbox_root(self.sandbox))
        found = bases.load(cache / "bases" / name)
        if found is None:
            async with bases.locked(cache / "locks" / name):
                found = bases.load(cache / "bases" / name) or await bases.make(
                    self._folders, self.sandbox, repo, commit, setup
                )
        return found

    def trim(self, most: int = MOST_BYTES, rested: float = RESTED) -> None:
        """Let go of bases, the longest unused first, where they take more room than that."""
        bases.trim(self._folders, most, rested)

    @asynccontextmanager
    async def open(self, base: Base | None, limits: Limits) -> AsyncIterator[Workspace]:
        """A fresh workspace; without a base it is empty."""
        folder = self._folders.new()
        try:
            place, method, before = await self._lay_out(folder, base)
            if base is not None:
                _lay_bait(real_paths(place)[1])
            inside = "upper" if method == "overlay" else "root"
            most = DiskUsage(
                bytes=before.bytes + limits.disk_bytes, files=before.files + limits.files
            )
            disk = Disk([f"{folder}/{inside}", f"{folder}/temporary"], most)
            kind = Cage if self.sandbox.wrap else OpenCage
            async with self._reaching(place) as (place, refused):
                yield Workspace(kind(self.sandbox, place, limits, disk, refused), base, method)
        finally:
            self._folders.discard(folder)

    @asynccontextmanager
    async def _reaching(self, place: Place) -> AsyncIterator[tuple[Place, dict[str, int]]]:
        """The place, with a way to the hosts that were named, and what was refused there."""
        if not self._hosts or self.sandbox.wrap is None:
            yield place, {}
            return
        async with hosts.gate(self._hosts, Path(place.folder, "hosts")) as gate:
            number = hosts.PORT if self.sandbox.isolated else gate.port
            proxy = f"http://127.0.0.1:{number}"
            names = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")
            env = dict.fromkeys(names, proxy) | dict.fromkeys(("NO_PROXY", "no_proxy"), NEAR)
            ports = (Port(number=number, socket=gate.socket),)
            yield msgspec.structs.replace(place, ports=ports, env=env), gate.refused

    async def _lay_out(self, folder: str, base: Base | None) -> tuple[Place, str, DiskUsage]:
        """The folders, how they came about, and what they hold from the start."""
        if base is None and self.sandbox.wrap is None:
            return Place(folder=folder), "new", DiskUsage()  # made when it is first used, if at all
        os.mkdir(folder)  # noqa: PTH102 (a third of the time)
        if base is None:
            _make(folder, "root", "root/workspace", "root/home", "temporary")
            return Place(folder=folder), "new", DiskUsage()
        if self.sandbox.overlay:
            _make(folder, "upper", "work", "temporary")
            return Place(folder=folder, lower=f"{base.folder}/root"), "overlay", DiskUsage()
        _make(folder, "temporary")
        await _copy(f"{base.folder}/root", f"{folder}/root")
        return Place(folder=folder), "copy", DiskUsage(bytes=base.bytes, files=base.files)

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
        self._folders.close()


def _lay_bait(home: str) -> None:
    """A new folder or none: one that is there may lead anywhere."""
    path = Path(home, bait.PATH)
    with suppress(OSError):
        path.parent.parent.mkdir(exist_ok=True)
        path.parent.mkdir()
        path.write_text(bait.bait(secrets.token_hex(8)), encoding="utf-8")


def _make(folder: str, *names: str) -> None:
    for name in names:
        os.mkdir(f"{folder}/{name}")  # noqa: PTH102 (a third of the time)


async def _copy(source: str, target: str) -> None:
    """As the file system is fastest: by reference where it can, with times kept."""
    argv = [shutil.which("cp") or "cp", "-a", "--reflink=auto", "--", source, target]
    program = Program(argv=lambda _: argv, env={}, directory="/")
    ended = await execute(program, COPY)
    if ended.exit_code != 0:
        raise MachineFailed(f"A workspace could not be copied: {ended.output.text.strip()[-300:]}")
