"""What the harness takes for an attempt whose model and tools cost nothing, beside Inspect."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio

from harness import REFERENCE, Bench, NotMeasured, own_cpu_seconds, resident_bytes
from table import Row, build_row

TRIVIAL_ATTEMPTS, LOOP_ATTEMPTS = 400, 200
TRIVIAL_SAMPLES, LOOP_SAMPLES = 100, 30
"""Fewer for the peer: what it needs per sample does not depend on how many there are."""
TURNS = 10
TRIVIAL = "dialogues: [{turns: [{say: The answer is 42}]}]\n"
WRITE = "{write: {path: notes.txt, text: a line}}"
READ = "{read: notes.txt}"
CALLS = "\n".join(f"      - do: {call}" for call in [WRITE] + [READ] * (TURNS - 2))
LOOP = f"dialogues:\n  - turns:\n{CALLS}\n      - say: The answer is 42\n"


def measure(bench: Bench) -> Iterator[Row]:
    for kind, what, budget_ms, attempts, samples in (
        ("trivial", "a trivial attempt", 2, bench.size(TRIVIAL_ATTEMPTS, 4), TRIVIAL_SAMPLES),
        ("loop", "a ten-turn tool loop", 8, bench.size(LOOP_ATTEMPTS, 4), LOOP_SAMPLES),
    ):
        ours = bench.repeat(
            lambda: bench.call("attempts", "run_attempts", kind, attempts),  # noqa: B023
            warm_up=lambda: bench.call("attempts", "run_attempts", kind, 4),  # noqa: B023
        )
        yield build_row(
            f"{what}, of {attempts}, CPU", ours["cpu"], "ms", floor=ours["reference"],
            against=REFERENCE, budget=budget_ms,
        )  # fmt: skip
        yield build_row(
            f"memory after {what}", ours["late"], "MB", floor=ours["early"],
            against="memory at a quarter of the way", aim=1.1,
        )  # fmt: skip
        try:
            peer = bench.peer_python(".venv-peer", "inspect_ai")
        except NotMeasured as reason:
            yield Row(f"{what} beside Inspect, CPU", note=f"not measured: {reason}")
            continue
        theirs = bench.repeat(
            lambda: {"cpu": bench.call("peer_inspect", "main", kind, samples, python=peer)},  # noqa: B023
            warm_up=lambda: bench.call("peer_inspect", "main", kind, 2, python=peer),  # noqa: B023
        )
        yield build_row(
            f"{what} beside Inspect, CPU", ours["cpu"], "ms", floor=theirs["cpu"],
            against=f"Inspect, {samples} samples", aim=0.1,
        )  # fmt: skip


def run_attempts(kind: str, attempts: int) -> dict[str, float]:
    """CPU seconds of one attempt, and memory early and late."""
    with tempfile.TemporaryDirectory() as folder:
        return anyio.run(_run_attempts, kind, attempts, Path(folder))


async def _run_attempts(kind: str, attempts: int, root: Path) -> dict[str, float]:
    from closeloop.attempts.experiment_run import (
        fill_slots,
        open_run,
        open_run_context,
        plan_experiment,
        prepare_tasks,
    )
    from closeloop.records.experiment_plan import RunProgress
    from closeloop.records.settings import (
        ExperimentSettings,
        SandboxSettings,
        Settings,
        VariantSettings,
    )
    from closeloop.tasks.task_files import select_tasks

    (root / "script.yaml").write_text(LOOP if kind == "loop" else TRIVIAL)
    (root / "tasks").mkdir()
    (root / "tasks" / "question.md").write_text(
        "---\nid: question\nrepo: none\nacceptance: {answer: '42'}\n---\nWhat is it?\n"
    )
    settings = Settings(
        sandbox=SandboxSettings(kind="none"),
        variants={"scripted": VariantSettings(model="scripted:script.yaml")},
    )
    tasks = select_tasks(settings, root, ())
    marks: list[int] = []
    settled = 0

    def watch_memory(progress: RunProgress) -> None:
        nonlocal settled
        settled += progress.stage == "settled"
        if settled in (attempts // 4, attempts) and progress.stage == "settled":
            marks.append(resident_bytes())

    async with open_run_context(settings, root, ["scripted"], {}) as workshop:
        plan = plan_experiment(workshop, tasks, ExperimentSettings(repeats=attempts))
        before = own_cpu_seconds()
        async with open_run(plan, workshop, jobs=1, tell=watch_memory) as run:
            await fill_slots(await prepare_tasks(run), run)
        used = own_cpu_seconds() - before
        rows = workshop.store.list_attempts()
    assert len(rows) == attempts
    assert all(row.outcome == "pass" for row in rows)
    assert all(row.turns == (TURNS if kind == "loop" else 1) for row in rows), rows[0].turns
    return {"cpu": used / attempts, "early": marks[0], "late": marks[-1]}
