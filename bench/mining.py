"""What mining costs beside the test runs that it cannot do without. No network is used."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio

from closeloop.records.settings import CommandSettings, SandboxSettings
from closeloop.sandbox.workspaces import WorkspacePool
from closeloop.store import open_store
from closeloop.tasks.miner import MiningContext, MiningOptions, MiningResult, mine_tasks
from harness import GIT_IDENTITY, Bench, time_wall
from sandbox import find_sandbox_kind
from table import Row, build_row

FIXES = 2
RUNS = 7
"""Of the tests for one task: once each way, twice each way again, and once with a wrong fix."""
SETUP = "python3 -m venv --without-pip .venv"
TEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -q -p no:cacheprovider"


def measure(bench: Bench) -> Iterator[Row]:
    kind = find_sandbox_kind(bench.folder / "cache")
    fixes = bench.size(FIXES, 1)
    repo = bench.input("mined", lambda folder: _make(folder, fixes))
    times = bench.repeat(
        lambda: _time_mining(repo, fixes, bench.size(RUNS, 1)), warm_up=lambda: None
    )
    yield build_row(
        f"mining a task, of {fixes} ({kind}), seconds", times["ours"], "s", floor=times["bare"],
        against=f"{RUNS} bare runs of its tests", aim=3,
    )  # fmt: skip
    yield build_row(f"environments made for {fixes} commits", times["environments"], "", budget=1)


def _time_mining(repo: Path, fixes: int, runs: int) -> dict[str, float]:
    """Seconds of one task, and of its test runs by hand."""
    bare = RUNS / runs * time_wall(lambda: [_run(repo, "sh", "-c", TEST) for _ in range(runs)])
    mined: list[MiningResult] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "mining")
        seconds = time_wall(lambda: mined.append(_mine(repo, place, (SETUP,), fixes)))
        bases = place / "cache/bases"
        made = {path.stat().st_ino for path in bases.rglob("pyvenv.cfg")}
    assert len(mined[0].tasks) == fixes, mined
    return {"ours": seconds / fixes, "bare": bare, "environments": len(made)}


def _make(repo: Path, fixes: int) -> None:
    """Work that fixes one function after the other, each with its test."""
    repo.mkdir()
    _run(repo, "git", "init", "-q")
    for fixed in range(fixes + 1):
        for number in range(fixes):
            right = "+" if number < fixed else "-"
            code = f"def join_{number}(a, b):\n    return a {right} b\n"
            (repo / f"part_{number}.py").write_text(code)
            known = f"    assert join_{number}(2, 0) == 2\n"
            known += f"    assert join_{number}(2, 3) == 5\n" if number < fixed else ""
            head = f"from part_{number} import join_{number}\n\n\ndef test_{number}():\n"
            (repo / f"test_part_{number}.py").write_text(head + known)
        _run(repo, "git", "add", "-A")
        _run(repo, "git", "commit", "-q", "-m", f"Mend how numbers are joined in part {fixed}")


def _mine(repo: Path, place: Path, setup: tuple[str, ...], fixes: int) -> MiningResult:
    async def go() -> MiningResult:
        with open_store(str(place / "closeloop.db")) as store:
            async with WorkspacePool(place / "cache", SandboxSettings()) as workspaces:
                ground = MiningContext(
                    repo=repo,
                    tasks=place / "tasks",
                    ledger=place / "mined.jsonl",
                    commands=CommandSettings(setup=setup, test=TEST),
                    workspaces=workspaces,
                    store=store,
                )
                return await mine_tasks(
                    ground, MiningOptions(limit=fixes, jobs=1), lambda told: None
                )

    place.mkdir()
    return anyio.run(go)


def _run(folder: Path, *argv: str) -> None:
    env = {**os.environ, **GIT_IDENTITY}
    subprocess.run(argv, cwd=folder, env=env, check=False, capture_output=True)
