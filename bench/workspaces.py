"""A workspace of a 7,000-file repository, beside the ways this machine has to make one."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio

from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox.workspaces import WorkspacePool, resolve_commit
from harness import Bench, NotMeasured, commit_all
from sandbox import find_sandbox_kind
from table import Row, build_row

FILES, FOLDERS, ROUNDS = 7000, 70, 5


def make_repository(folder: Path, files: int) -> None:
    for number in range(files):
        file = folder / f"d{number % FOLDERS}" / f"f{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"VALUE = {number}\n" * 40)
    commit_all(folder)


def time_rounds(make: Callable[[int], None], rounds: int) -> float:
    """Seconds of the median round."""
    taken = []
    for number in range(rounds):
        began = time.perf_counter()
        make(number)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


def time_bare_ways(source: Path, scratch: Path, rounds: int) -> dict[str, float]:
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
        # What this machine cannot do is left out; a whole copy takes long enough to be made once.
        with suppress(OSError, subprocess.CalledProcessError):
            ways[name] = time_rounds(way, rounds if way is overlay else 1)
    return ways


CAGE = (
    "--unshare-all --die-with-parent --ro-bind /usr /usr --symlink usr/bin /bin "
    "--symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp "
    "--bind {place}/mounted /workspace --chdir /workspace true"
)


def time_ours(source: Path, cache: Path, rounds: int) -> float:
    """Open a workspace through closeloop and run one command in it: seconds of the median."""

    async def open_workspaces() -> float:
        taken = []
        async with WorkspacePool(cache, SandboxSettings()) as workspaces:
            base = await workspaces.prepare_base(str(source), resolve_commit(source, "HEAD"))
            for _ in range(rounds):
                began = time.perf_counter()
                async with workspaces.open(base, Limits()) as workspace:
                    assert (await workspace.sandbox.run(["true"])).exit_code == 0
                taken.append(time.perf_counter() - began)
        return statistics.median(taken)

    return anyio.run(open_workspaces)


def measure(bench: Bench) -> Iterator[Row]:
    kind = find_sandbox_kind(bench.folder / "cache")
    files, rounds = bench.size(FILES, 70), bench.size(ROUNDS, 1)
    source = bench.input("source", lambda folder: make_repository(folder, files))

    def time_all() -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=bench.folder) as scratch:
            ways = time_bare_ways(source, Path(scratch), rounds)
            run("git", "-C", str(source), "worktree", "prune")
        return {"ours": time_ours(source, bench.folder / "cache", rounds), **ways}

    times = bench.repeat(time_all)
    # A way that failed in one of the repeats is left out.
    by_hand = [
        name
        for name, taken in times.items()
        if name not in ("ours", "reference") and len(taken) == len(times["ours"])
    ]
    if not by_hand:
        raise NotMeasured("no way to make a workspace by hand works here")
    fastest = min(by_hand, key=lambda name: statistics.median(times[name]))
    for name in by_hand:
        yield build_row(
            f"a workspace of {files:,} files ({kind}) beside {name}", times["ours"], "ms",
            floor=times[name], against=f"by hand: {name}", aim=2 if name == fastest else 1,
        )  # fmt: skip
