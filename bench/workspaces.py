"""A workspace of a 7,000-file repository, beside the ways this machine has to make one."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio

from closeloop.model.settings import SandboxSettings
from closeloop.model.variant import Limits
from closeloop.runs.workspaces import Workspaces, resolve_commit

FILES, FOLDERS = 7000, 70
ROUNDS = 15
GIT = {
    **os.environ,
    **{
        f"GIT_{who}_{what}": "bench@example.org"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    },
}


def repository(folder: Path) -> Path:
    for number in range(FILES):
        file = folder / f"d{number % FOLDERS}" / f"f{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"VALUE = {number}\n" * 40)
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run(["git", *arguments], cwd=folder, env=GIT, check=True)
    return folder


def median(make: Callable[[int], None]) -> float:
    taken = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        make(number)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


def bare_ways(source: Path, scratch: Path) -> dict[str, float]:
    """A tree ready for a command, and one command in it, made by hand in each way there is."""

    def overlay(number: int) -> None:
        place = scratch / f"overlay-{number}"
        for name in ("upper", "work", "mounted"):
            (place / name).mkdir(parents=True)
        options = f"lowerdir={source},upperdir={place}/upper,workdir={place}/work,userxattr"
        script = f"mount -t overlay overlay -o {options} {place}/mounted && exec bwrap {CAGE}"
        run("unshare", "-Urm", "sh", "-c", script.format(place=place))

    def copy(number: int) -> None:
        run("cp", "-a", "--reflink=auto", str(source), str(scratch / f"copy-{number}"))

    def worktree(number: int) -> None:
        target = str(scratch / f"worktree-{number}")
        run("git", "-C", str(source), "worktree", "add", "-q", "--detach", target)

    ways = {}
    for name, way in (("overlay and bwrap", overlay), ("cp -a", copy), ("git worktree", worktree)):
        try:
            way(-1)
        except (OSError, subprocess.CalledProcessError):
            continue
        ways[name] = median(way)
    return ways


CAGE = (
    "--unshare-all --die-with-parent --ro-bind /usr /usr --symlink usr/bin /bin "
    "--symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp "
    "--bind {place}/mounted /workspace --chdir /workspace true"
)


def ours(source: Path, cache: Path) -> float:
    """Open a workspace through closeloop and run one command in it."""

    async def go() -> float:
        taken = []
        async with Workspaces(cache, SandboxSettings()) as all_of_them:
            base = await all_of_them.base(str(source), resolve_commit(source, "HEAD"))
            for _ in range(ROUNDS):
                began = time.perf_counter()
                async with all_of_them.open(base, Limits()) as workspace:
                    assert (await workspace.cage.run(["true"])).exit_code == 0
                taken.append(time.perf_counter() - began)
        return statistics.median(taken)

    return anyio.run(go)


def measure(folder: Path) -> Iterator[tuple[str, str, float, float]]:
    source = repository(folder / "source")
    mine = ours(source, folder / "cache")
    ways = bare_ways(source, folder)
    fastest = min(ways, key=lambda name: ways[name])
    yield (
        f"a workspace of {FILES:,} files, and a command in it",
        f"by hand: {fastest}",
        mine / ways[fastest],
        2,
    )
    for name in ways.keys() - {fastest}:
        yield "  the same", f"by hand: {name}", mine / ways[name], 1
    shutil.rmtree(folder / "source", ignore_errors=True)
