"""Base trees: a repository at a commit, set up once and then only read."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from closeloop.model.errors import BadInput
from closeloop.model.record import Record, digest
from closeloop.model.variant import Limits
from closeloop.runs.admission import admit_suite
from closeloop.runs.sandbox.cage import Cage, OpenCage
from closeloop.runs.sandbox.disk import measure_disk
from closeloop.runs.sandbox.place import Place, Sandbox, real_paths
from closeloop.runs.sandbox.view import reach
from closeloop.runs.workspaces import patches
from closeloop.runs.workspaces.folders import Folders
from closeloop.runs.workspaces.lending import kinship, lend
from closeloop.runs.workspaces.repository import START, start_repository

VERSION = 1
"""Of how bases are made: another one makes them anew."""
SETUP = Limits(
    command_seconds=3600.0,
    idle_seconds=1800.0,
    disk_bytes=64 << 30,
    files=10_000_000,
    memory_bytes=64 << 30,
)
NOISE = "__pycache__/\n"
"""What merely running code leaves in a tree."""


class Base(Record):
    """A repository at a commit, ready to be worked on."""

    folder: str
    """Holds `root/workspace`, `root/home` and our `git`."""
    commit: str
    tree: str
    """The files as they were after setup, in our git folder."""
    bytes: int
    files: int = 0


class Made(Record):
    """What setup left."""

    exclude: str = ""
    """What git shall overlook of it, as an exclude file says it."""
    beside: bool = False
    """No file of the repository was changed."""


def key(repo: str, commit: str, setup: Sequence[str], root: str) -> str:
    """Setup may write down where it ran, so that is part of what was made."""
    return digest(VERSION, repo, commit, list(setup), root if setup else None)[:32]


def load(folder: Path) -> Base | None:
    try:
        base = msgspec.json.decode((folder / "base.json").read_bytes(), type=Base)
    except FileNotFoundError:
        return None
    with suppress(OSError):
        os.utime(folder / "base.json")  # by it, trim knows which are in use
    return msgspec.structs.replace(base, folder=str(folder))


def trim(folders: Folders, most: int, rested: float) -> None:
    """Discard the bases that nobody has used for longest, until the rest has at most that size.

    None that was used in the last `rested` seconds: somebody may still be working on it.
    """
    found = []
    for path in (folders.cache / "bases").glob("*/base.json"):
        with suppress(OSError, msgspec.MsgspecError):
            base = msgspec.json.decode(path.read_bytes(), type=Base)
            found.append((path.stat().st_mtime, base.bytes, path.parent))
    total, before = sum(bytes_ for _, bytes_, _ in found), time.time() - rested
    for used, bytes_, folder in sorted(found):
        if total <= most or used > before:
            return
        folders.discard(str(folder))
        total -= bytes_


async def make(
    folders: Folders, sandbox: Sandbox, repo: str, commit: str, setup: Sequence[str]
) -> Base:
    """Make a base in a folder of our own; it becomes visible whole or not at all."""
    folder = folders.new()
    try:
        return await _make(folders, sandbox, folder, repo, commit, setup)
    except BaseException:
        folders.discard(folder)
        raise


async def _make(
    folders: Folders, sandbox: Sandbox, folder: str, repo: str, commit: str, setup: Sequence[str]
) -> Base:
    root = sandbox_root(sandbox)
    tree = await start_repository(repo, commit, _lay_out(folder))
    kin = kinship(repo, commit, setup, root) if setup and sandbox.isolated else None
    async with _kinsfolk(folders.cache, kin) as lender:
        made = await _set_up(sandbox, folder, repo, setup, lender)
        tree = await _take_stock(sandbox, folder, tree, NOISE + made.exclude)
        used = measure_disk(f"{folder}/root")
        base = Base(folder=folder, commit=commit, tree=tree, bytes=used.bytes, files=used.files)
        name = key(repo, commit, setup, root)
        base = _publish(base, folders.cache / "bases" / name)
        if kin and lender is None and made.beside:
            _kin_file(folders.cache, kin).write_text(name)
    return base


def _lay_out(folder: str) -> str:
    places = real_paths(Place(folder=folder))
    for path in (*places, f"{folder}/git/objects", f"{folder}/git/info"):
        Path(path).mkdir(parents=True)
    return places[0]


def _publish(base: Base, final: Path) -> Base:
    Path(base.folder, "base.json").write_bytes(msgspec.json.encode(base))
    Path(base.folder).rename(final)
    return msgspec.structs.replace(base, folder=str(final))


async def _set_up(
    sandbox: Sandbox, folder: str, repo: str, setup: Sequence[str], lender: Base | None
) -> Made:
    """Run the setup commands with the network open, or link what they made at another commit."""
    if not setup:
        return Made()
    if lender is None:
        cage = make_cage(sandbox, Place(folder=folder, network=True), SETUP)
        await run_setup(cage, setup, repo)
    else:
        others = await _others(make_cage(sandbox, Place(folder=lender.folder), SETUP).frozen(), "")
        names = [name.rstrip("/") for name in others]
        await anyio.to_thread.run_sync(lend, Path(lender.folder), names, Path(folder))
    # From here on git meets what setup made of the repository: only ever inside the cage.
    cage = make_cage(sandbox, Place(folder=folder), SETUP)
    others = await _others(cage, "--exclude-standard")
    beside = (await cage.run("git diff --quiet HEAD")).exit_code == 0
    if not beside:
        env = START | {"GIT_CONFIG_PARAMETERS": "'core.logAllRefUpdates=false'"}
        await cage.run("git -c core.hooksPath=/dev/null commit -q -a --amend -m Start", env=env)
    return Made(exclude="".join(f"/{_ignored(name)}\n" for name in others), beside=beside)


async def _others(cage: Cage, options: str) -> list[str]:
    """Files and folders that are not git's."""
    listing = f"git ls-files -z --others --directory {options}"
    content = (await cage.execute(listing, keep=64 << 20)).output.content
    return [name for name in os.fsdecode(content).split("\0") if name]


@asynccontextmanager
async def _kinsfolk(cache: Path, kin: str | None) -> AsyncIterator[Base | None]:
    """A base whose environment serves others; while the first one is made, the others wait."""
    if kin is None:
        yield None
        return
    async with locked(cache / "locks" / kin):
        try:
            lender = load(cache / "bases" / _kin_file(cache, kin).read_text())
        except OSError:
            lender = None
        yield lender


def _kin_file(cache: Path, kin: str) -> Path:
    (cache / "kin").mkdir(exist_ok=True)
    return cache / "kin" / kin


async def run_setup(cage: Cage, setup: Sequence[str], repo: str) -> None:
    """BadInput with what a command that fails has said."""
    async with admit_suite():
        for command in setup:
            ran = await cage.run(command, env=reach())
            if ran.exit_code != 0:
                how = ran.stopped or f"exit code {ran.exit_code}"
                tail = ran.output.strip()[-2000:]
                said = f":\n{tail}" if tail else " and said nothing."
                raise BadInput(f"The setup command `{command}` for {repo} failed ({how}){said}")


async def _take_stock(sandbox: Sandbox, folder: str, tree: str, exclude: str) -> str:
    """Our own account of the base's files, made inside the cage that will read them."""
    cage = make_cage(sandbox, Place(folder=folder), SETUP)
    await cage.write(".git/info/exclude", os.fsencode(exclude))
    ours = patches.open_ours(cage, folder, tree)
    tree = await patches.take_stock(ours, os.fsencode(exclude))
    await cage.run("git update-index -q --refresh")
    return tree


def make_cage(sandbox: Sandbox, place: Place, limits: Limits) -> Cage:
    kind = OpenCage if sandbox.wrap is None else Cage
    return kind(sandbox, place, limits, None)


def sandbox_root(sandbox: Sandbox) -> str:
    return "/workspace" if sandbox.isolated else sandbox.guards.kind


def _ignored(name: str) -> str:
    """A line of an exclude file that means this name only."""
    return re.sub(r"([*?\[\\ ])", r"\\\1", name)


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
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
