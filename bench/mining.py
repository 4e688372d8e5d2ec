"""What mining costs beside the test runs that it cannot do without. No network is used."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio

from closeloop.mining.mine import Ground, Mined, Wish, mine
from closeloop.model.settings import Commands, SandboxSettings
from closeloop.runs.workspaces import Workspaces
from closeloop.store import open_store

FIXES = 3
RUNS = 7
"""Of the tests for one task: once each way, twice each way again, and once with a wrong fix."""
SETUP = "python3 -m venv --without-pip .venv"
TEST = f"{sys.executable} -m pytest -q -p no:cacheprovider"
WHO = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": "/dev/null"}
WHO |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


def measure(folder: Path) -> Iterator[tuple[str, str, float, float]]:
    """What, against what, the ratio, the aim."""
    repo = folder / "mined"
    _make(repo)
    bare = _seconds(lambda: [_run(repo, *TEST.split()) for _ in range(RUNS)])
    mined: list[Mined] = []
    seconds = _seconds(lambda: mined.append(_mine(repo, folder / "mining", (SETUP,))))
    assert len(mined[0].tasks) == FIXES, mined
    yield "mining a task, seconds", f"{RUNS} bare runs of its tests", seconds / FIXES / bare, 3
    made = {path.stat().st_ino for path in (folder / "mining/cache/bases").rglob("pyvenv.cfg")}
    yield f"environments for {FIXES} commits alike", "one", len(made), 1


def _make(repo: Path) -> None:
    """Work that fixes one function after the other, each with its test."""
    repo.mkdir()
    _run(repo, "git", "init", "-q")
    for fixed in range(FIXES + 1):
        for number in range(FIXES):
            right = "+" if number < fixed else "-"
            code = f"def join_{number}(a, b):\n    return a {right} b\n"
            (repo / f"part_{number}.py").write_text(code)
            known = f"    assert join_{number}(2, 0) == 2\n"
            known += f"    assert join_{number}(2, 3) == 5\n" if number < fixed else ""
            head = f"from part_{number} import join_{number}\n\n\ndef test_{number}():\n"
            (repo / f"test_part_{number}.py").write_text(head + known)
        _run(repo, "git", "add", "-A")
        _run(repo, "git", "commit", "-q", "-m", f"Mend how numbers are joined in part {fixed}")


def _mine(repo: Path, place: Path, setup: tuple[str, ...]) -> Mined:
    async def go() -> Mined:
        with open_store(str(place / "closeloop.db")) as store:
            async with Workspaces(place / "cache", SandboxSettings()) as workspaces:
                ground = Ground(
                    repo=repo,
                    tasks=place / "tasks",
                    ledger=place / "mined.jsonl",
                    commands=Commands(setup=setup, test=TEST),
                    workspaces=workspaces,
                    store=store,
                )
                return await mine(ground, Wish(limit=FIXES, jobs=1), lambda told: None)

    place.mkdir()
    return anyio.run(go)


def _run(folder: Path, *argv: str) -> None:
    env = {**os.environ, **WHO}
    subprocess.run(argv, cwd=folder, env=env, check=False, capture_output=True)


def _seconds(work: Callable[[], object]) -> float:
    """By the clock: not all that ran in cages is counted as our CPU."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        for told in measure(Path(made)):
            print(told)
