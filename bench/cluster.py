"""What Ray adds to an attempt, after start-up, in an environment that has Ray."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import anyio

from harness import Bench
from table import Row, build_row

ATTEMPTS, WARM = 300, 40
SCRIPT = "dialogues: [{turns: [{say: The answer is 42}]}]\n"
TASK = "---\nid: question\nrepo: none\nacceptance: {answer: '42'}\n---\nWhat is it?\n"


def measure(bench: Bench) -> Iterator[Row]:
    python = bench.peer_python(".venv-ray", "ray")
    times = bench.repeat(
        lambda: bench.call("cluster", "time_attempts", python=python), warm_up=lambda: None
    )
    yield build_row(
        "an attempt on a Ray cluster, seconds", times["ray"], "ms", floor=times["local"],
        against="the same attempt without Ray",
    )  # fmt: skip
    added = [there - here for there, here in zip(times["ray"], times["local"], strict=True)]
    yield build_row("what Ray adds to an attempt, seconds", added, "ms", budget=20)


async def seconds(root: Path, kind: str, attempts: int) -> float:
    """Of one attempt at a time, without the first ones."""
    from closeloop.attempts.experiment_run import (
        open_run,
        open_run_context,
        plan_experiment,
        run_attempts,
    )
    from closeloop.records.experiment_plan import RunProgress
    from closeloop.records.settings import (
        ExecutorSettings,
        ExperimentSettings,
        SandboxSettings,
        Settings,
        VariantSettings,
    )
    from closeloop.tasks.task_files import select_tasks

    settings = Settings(
        store=f"{kind}.db",
        sandbox=SandboxSettings(kind="none"),
        executor=ExecutorSettings(kind=kind),
        variants={"scripted": VariantSettings(model="scripted:script.yaml")},
    )
    settled: list[float] = []

    def tell(progress: RunProgress) -> None:
        if progress.stage == "settled":
            settled.append(time.perf_counter())

    async with open_run_context(settings, root, ["scripted"], os.environ) as workshop:
        tasks = select_tasks(settings, root, ())
        plan = plan_experiment(workshop, tasks, ExperimentSettings(repeats=attempts))
        async with open_run(plan, workshop, jobs=1, report_progress=tell) as run:
            await run_attempts(run)
        assert all(row.outcome == "pass" for row in workshop.store.list_attempts())
    gaps = sorted(later - one for one, later in pairwise(settled[WARM:]))
    return gaps[len(gaps) // 2]


def time_attempts() -> dict[str, float]:
    """Seconds of one attempt, here and on a cluster of one node."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "script.yaml").write_text(SCRIPT)
        (root / "tasks").mkdir()
        (root / "tasks" / "question.md").write_text(TASK)
        here = anyio.run(seconds, root, "local", ATTEMPTS)
        there = anyio.run(seconds, root, "ray", ATTEMPTS)
    return {"local": here, "ray": there}
