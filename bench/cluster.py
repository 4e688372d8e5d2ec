"""What Ray adds to an attempt, and what a lost node costs, in an environment that has Ray."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import anyio

from harness import ROOT, Bench
from table import Row, build_row

ATTEMPTS, WARM = 300, 40
SCRIPT = "dialogues: [{turns: [{say: The answer is 42}]}]\n"
MANY_ATTEMPTS, SECONDS, SLOTS = 500, 5.0, 6
"""Of the cluster that loses a node: sleeping attempts, and places on each of its two nodes."""
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
    lost = bench.call("cluster", "lose_node", MANY_ATTEMPTS, SECONDS, SLOTS, python=python)
    yield build_row(
        f"{MANY_ATTEMPTS} sleeping attempts on two nodes, one killed: seconds of places alive",
        [lost["alive"]], "s", floor=[lost["needed"]], against="seconds of the attempts", aim=1.2,
    )  # fmt: skip


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


def lose_node(attempts: int, seconds: float, slots: int) -> dict[str, float]:
    """Seconds of all places while their node lived, of an experiment during which one is killed.

    From the start of the command to its end. Nothing may be lost, or be done twice.
    """
    sys.path.insert(0, str(ROOT / "tests" / "ray_real"))
    from two_nodes import two_nodes

    # A socket's path must be short, and Ray puts its own below this folder.
    folder = Path(f"/tmp/closeloop-ray-{os.getpid()}")
    project = folder / "project"
    (project / "tasks").mkdir(parents=True)
    (project / "tasks" / "question.md").write_text(TASK)
    (project / "closeloop.toml").write_text('[sandbox]\nkind = "none"\n')
    (project / "slow.yaml").write_text(
        f"dialogues: [{{turns: [{{say: The answer is 42, delay: {seconds}}}]}}]\n"
    )
    try:
        with two_nodes(folder, processors=slots) as cluster:
            started = time.monotonic()
            driver = cluster.closeloop(
                project, "question", "--model", "scripted:slow.yaml", "--repeats", str(attempts)
            )
            while driver.poll() is None and len(_stored(project)) < attempts // 2:
                time.sleep(0.2)
            assert driver.poll() is None, driver.communicate()
            killed = time.monotonic()
            cluster.kill("other")
            printed, messages = driver.communicate(timeout=10 * attempts * seconds / slots)
            ended = time.monotonic()
        assert driver.returncode == 0, messages
        rows = json.loads(printed)["attempts"]
        assert len(rows) == attempts == len({row["number"] for row in rows})
        assert {row["outcome"] for row in rows} == {"pass"}
        exits = [row[0] for row in _stored(project)]
        lost = exits.count("machine")
        assert len(exits) == attempts + lost
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "alive": slots * (2 * (killed - started) + ended - killed),
        "needed": attempts * seconds,
        "lost": lost,
        "before": killed - started,
        "after": ended - killed,
    }


def _stored(project: Path) -> list[tuple[str]]:
    """How every attempt so far ended."""
    path = project / ".closeloop" / "closeloop.db"
    if not path.exists():
        return []
    database = sqlite3.connect(path)
    try:
        return database.execute("SELECT exit FROM attempts").fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        database.close()
