"""Many attempts at once: our CPU beside that of their commands, and memory of one that waits."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec

from harness import Bench, NotMeasured
from sandbox import find_sandbox_kind
from table import Row, build_row

BUSY, WAITING, ROUNDS = 30, 100, 2
WORK = "python3 -c 'x = sum(i * i for i in range({turns}))'"
TURNS = 2_000_000


def measure(bench: Bench) -> Iterator[Row]:
    kind = find_sandbox_kind(bench.folder / "cache")
    busy, work = bench.size(BUSY, 2), WORK.format(turns=bench.size(TURNS, 1000))
    used = bench.repeat(
        lambda: bench.call("crowd", "run_crowd", "busy", busy, work),
        warm_up=lambda: bench.call("crowd", "run_crowd", "busy", 2, work),
    )
    yield build_row(
        f"{busy} busy attempts at once ({kind}), our CPU for one", used["own"], "ms",
        floor=used["agent"], against=f"{ROUNDS} commands of its agent", aim=0.2,
    )  # fmt: skip
    if not Path("/proc/self/smaps_rollup").exists():
        raise NotMeasured("memory of other processes is read from /proc")
    waiting, wait = bench.size(WAITING, 4), f"sleep {bench.size(8, 2)}"
    kept = bench.repeat(
        lambda: bench.call("crowd", "run_crowd", "waiting", waiting, wait), warm_up=lambda: None
    )
    yield build_row(
        f"memory of one of {waiting} attempts that wait ({kind})", kept["memory"], "MB", budget=2
    )


def cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def tree(root: int) -> dict[int, str]:
    """Every process below one, with its command."""
    parents: dict[int, list[int]] = {}
    names = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                parents.setdefault(int(rest.split()[1]), []).append(int(entry.name))
                names[int(entry.name)] = name
            except OSError:
                continue
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return {pid: names.get(pid, "") for pid in found}


def memory(skip: str = "sleep") -> int:
    """Bytes of ours and of what we started, shared pages by their share; not of the agents."""
    total = 0
    for pid, name in tree(os.getpid()).items():
        if name != skip:
            try:
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
            except OSError:
                continue
    return total


def run_crowd(kind: str, crowd: int, command: str) -> dict[str, float]:
    """Of one attempt: our CPU and that of its commands, or our memory while it waits."""
    with tempfile.TemporaryDirectory() as folder:
        return anyio.run(_run_crowd, kind, crowd, command, Path(folder))


async def _run_crowd(kind: str, crowd: int, command: str, root: Path) -> dict[str, float]:
    from closeloop.attempts.experiment_run import (
        open_run,
        open_run_context,
        plan_experiment,
        run_attempts,
    )
    from closeloop.records.settings import ExperimentSettings, Settings, VariantSettings
    from closeloop.tasks.task_files import select_tasks

    turns = [command] * (1 if kind == "waiting" else ROUNDS)
    calls = "\n".join(
        f"      - do: {{run: {msgspec.json.encode(turn).decode()}}}" for turn in turns
    )
    (root / "script.yaml").write_text(f"dialogues:\n  - turns:\n{calls}\n      - say: It is 42\n")
    (root / "tasks").mkdir()
    (root / "tasks" / "question.md").write_text(
        "---\nid: question\nrepo: none\nacceptance: {answer: '42'}\n---\nWhat is it?\n"
    )
    settings = Settings(variants={"scripted": VariantSettings(model="scripted:script.yaml")})
    tasks = select_tasks(settings, root, ())
    peak = 0

    async def watch() -> None:
        nonlocal peak
        while True:
            await anyio.sleep(0.2)
            running = sum(name == "sleep" for name in tree(os.getpid()).values())
            peak = max(peak, memory()) if running >= crowd * 0.9 else peak

    async with open_run_context(settings, root, ["scripted"], {}) as workshop:
        plan = plan_experiment(workshop, tasks, ExperimentSettings(repeats=crowd))
        before, own = memory(), cpu(resource.RUSAGE_SELF)
        async with anyio.create_task_group() as group:
            if kind == "waiting":
                group.start_soon(watch)
            async with open_run(
                plan, workshop, jobs=crowd, report_progress=lambda told: None
            ) as run:
                await run_attempts(run)
            group.cancel_scope.cancel()
        own = cpu(resource.RUSAGE_SELF) - own
        assert all(row.outcome == "pass" for row in workshop.store.list_attempts())
    if kind == "waiting":
        return {"memory": (peak - before) / crowd}
    return {"own": own / crowd, "agent": ROUNDS * time_alone(command)}


def time_alone(command: str) -> float:
    """CPU of one piece of the agents' work. Not all of it is told to us where they are caged."""
    before = cpu(resource.RUSAGE_CHILDREN)
    for _ in range(5):
        subprocess.run(command, shell=True, check=True)
    return (cpu(resource.RUSAGE_CHILDREN) - before) / 5
