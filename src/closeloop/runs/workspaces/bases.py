"""Base trees: a repository at a commit, set up once and then only read."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from closeloop.model.errors import BadInput
from closeloop.model.record import Record, digest
from closeloop.model.variant import Limits
from closeloop.runs.sandbox.cage import Cage, OpenCage
from closeloop.runs.sandbox.disk import size
from closeloop.runs.sandbox.place import Place, Sandbox, real_paths
from closeloop.runs.sandbox.view import reach
from closeloop.runs.workspaces import patches
from closeloop.runs.workspaces.folders import Folders
from closeloop.runs.workspaces.repository import START, start_repository

VERSION = 1
"""Of how bases are made: another one makes them anew."""
SETUP = Limits(
    command_seconds=3600.0, idle_seconds=1800.0, disk_bytes=64 << 30, memory_bytes=64 << 30
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


def key(repo: str, commit: str, setup: Sequence[str], root: str) -> str:
    """Setup may write down where it ran, so that is part of what was made."""
    return digest(VERSION, repo, commit, list(setup), root if setup else None)[:32]


def load(folder: Path) -> Base | None:
    try:
        base = msgspec.json.decode((folder / "base.json").read_bytes(), type=Base)
    except FileNotFoundError:
        return None
    return msgspec.structs.replace(base, folder=str(folder))


async def make(
    folders: Folders, sandbox: Sandbox, repo: str, commit: str, setup: Sequence[str]
) -> Base:
    """Make a base in a folder of our own; it becomes visible whole or not at all."""
    folder = folders.new()
    try:
        workspace = _lay_out(folder)
        tree = await start_repository(repo, commit, workspace)
        exclude = NOISE + await _set_up(sandbox, folder, repo, setup)
        tree = await _take_stock(sandbox, folder, tree, exclude)
        base = Base(folder=folder, commit=commit, tree=tree, bytes=size(f"{folder}/root"))
        return _publish(
            base, folders.cache / "bases" / key(repo, commit, setup, sandbox_root(sandbox))
        )
    except BaseException:
        folders.discard(folder)
        raise


def _lay_out(folder: str) -> str:
    places = real_paths(Place(folder=folder))
    for path in (*places, f"{folder}/git/objects", f"{folder}/git/info"):
        Path(path).mkdir(parents=True)
    return places[0]


def _publish(base: Base, final: Path) -> Base:
    Path(base.folder, "base.json").write_bytes(msgspec.json.encode(base))
    Path(base.folder).rename(final)
    return msgspec.structs.replace(base, folder=str(final))


async def _set_up(sandbox: Sandbox, folder: str, repo: str, setup: Sequence[str]) -> str:
    """Run the setup commands with the network open: what git shall overlook of what they made."""
    if not setup:
        return ""
    place = Place(folder=folder, network=True)
    cage = make_cage(sandbox, place, SETUP)
    for command in setup:
        ran = await cage.run(command, env=reach())
        if ran.exit_code != 0:
            how = ran.stopped or f"exit code {ran.exit_code}"
            tail = ran.output.strip()[-2000:]
            raise BadInput(f"The setup command `{command}` for {repo} failed ({how}):\n{tail}")
    # From here on git meets what setup made of the repository: only ever inside the cage.
    cage = make_cage(sandbox, Place(folder=folder), SETUP)
    listing = "git ls-files -z --others --exclude-standard --directory"
    others = (await cage.execute(listing, keep=64 << 20)).output.content
    amend = "git diff --quiet HEAD || git -c core.hooksPath=/dev/null commit -q -a --amend -m Start"
    await cage.run(amend, env=START | {"GIT_CONFIG_PARAMETERS": "'core.logAllRefUpdates=false'"})
    return "".join(f"/{_ignored(name)}\n" for name in os.fsdecode(others).split("\0") if name)


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
