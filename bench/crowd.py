"""A hundred attempts at once: prints our share of the CPU, and memory per waiting attempt.

python bench/crowd.py busy|waiting
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
import msgspec

CROWD, ROUNDS = 100, 2
WORK = "python3 -c 'x = sum(i * i for i in range(4_000_000))'"
WAIT = "sleep 8"


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


async def work(kind: str, root: Path) -> dict[str, float]:
    from closeloop import flow
    from closeloop.model.settings import ExperimentSettings, Settings, VariantSettings

    turns = [WAIT] if kind == "waiting" else [WORK] * ROUNDS
    calls = "\n".join(
        f"      - do: {{run: {msgspec.json.encode(turn).decode()}}}" for turn in turns
    )
    (root / "script.yaml").write_text(f"dialogues:\n  - turns:\n{calls}\n      - say: It is 42\n")
    (root / "tasks").mkdir()
    (root / "tasks" / "question.md").write_text(
        "---\nid: question\nrepo: none\nacceptance: {answer: '42'}\n---\nWhat is it?\n"
    )
    settings = Settings(variants={"scripted": VariantSettings(model="scripted:script.yaml")})
    tasks = flow.choose(settings, root, ())
    peak = 0

    async def watch() -> None:
        nonlocal peak
        while True:
            await anyio.sleep(1)
            running = sum(name == "sleep" for name in tree(os.getpid()).values())
            peak = max(peak, memory()) if running >= CROWD * 0.9 else peak

    async with flow.open_workshop(settings, root, ["scripted"], {}) as workshop:
        plan = flow.plan(workshop, tasks, ExperimentSettings(repeats=CROWD))
        before, own = memory(), cpu(resource.RUSAGE_SELF)
        async with anyio.create_task_group() as group:
            if kind == "waiting":
                group.start_soon(watch)
            await flow.run(plan, workshop, jobs=CROWD, tell=lambda told: None)
            group.cancel_scope.cancel()
        own = cpu(resource.RUSAGE_SELF) - own
        assert all(row.outcome == "pass" for row in workshop.store.attempts())
    if kind == "waiting":
        return {"memory": (peak - before) / CROWD}
    theirs = CROWD * ROUNDS * alone()
    return {"share": own / (own + theirs)}


def alone() -> float:
    """CPU of one piece of the agents' work. Not all of it is told to us where they are caged."""
    before = cpu(resource.RUSAGE_CHILDREN)
    for _ in range(5):
        subprocess.run(WORK, shell=True, check=True)
    return (cpu(resource.RUSAGE_CHILDREN) - before) / 5


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        result = anyio.run(work, sys.argv[1], Path(folder))
    print(msgspec.json.encode(result).decode())
