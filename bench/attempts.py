"""Our harness at work, in its own process: prints CPU seconds per attempt and memory on the way.

python bench/attempts.py trivial|loop ATTEMPTS
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from pathlib import Path

import anyio
import msgspec

TURNS = 10
TRIVIAL = "dialogues: [{turns: [{say: The answer is 42}]}]\n"
WRITE = "{write: {path: notes.txt, text: a line}}"
READ = "{read: notes.txt}"
CALLS = "\n".join(f"      - do: {call}" for call in [WRITE] + [READ] * (TURNS - 2))
LOOP = f"dialogues:\n  - turns:\n{CALLS}\n      - say: The answer is 42\n"


def cpu() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def memory() -> int:
    """Resident bytes now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def work(kind: str, attempts: int, root: Path) -> dict[str, float]:
    from closeloop import flow
    from closeloop.model.settings import (
        ExperimentSettings,
        SandboxSettings,
        Settings,
        VariantSettings,
    )

    (root / "script.yaml").write_text(LOOP if kind == "loop" else TRIVIAL)
    (root / "tasks").mkdir()
    (root / "tasks" / "question.md").write_text(
        "---\nid: question\nrepo: none\nacceptance: {answer: '42'}\n---\nWhat is it?\n"
    )
    settings = Settings(
        sandbox=SandboxSettings(kind="none"),
        variants={"scripted": VariantSettings(model="scripted:script.yaml")},
    )
    tasks = flow.choose(settings, root, ())
    marks: list[int] = []
    settled = 0

    def tell(progress: flow.Progress) -> None:
        nonlocal settled
        settled += progress.stage == "settled"
        if settled in (attempts // 4, attempts) and progress.stage == "settled":
            marks.append(memory())

    async with flow.open_workshop(settings, root, ["scripted"], {}) as workshop:
        plan = flow.plan(workshop, tasks, ExperimentSettings(repeats=attempts))
        before = cpu()
        await flow.run(plan, workshop, jobs=1, tell=tell)
        used = cpu() - before
        rows = workshop.store.attempts()
    assert len(rows) == attempts
    assert all(row.outcome == "pass" for row in rows)
    assert all(row.turns == (TURNS if kind == "loop" else 1) for row in rows), rows[0].turns
    return {"cpu": used / attempts, "early": marks[0], "late": marks[-1]}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        result = anyio.run(work, sys.argv[1], int(sys.argv[2]), Path(folder))
    print(msgspec.json.encode(result).decode())
