"""What the harness takes for an attempt whose model and tools cost nothing, beside Inspect."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import anyio

from harness import REFERENCE, Bench, NotMeasured, own_cpu_seconds, resident_bytes
from table import Row, build_row


class AttemptKind(NamedTuple):
    """What an attempt of the bench does, how many are made, and what one may take."""

    name: str
    turns: int
    attempts: int
    samples: int
    """Of the peer, which needs the same for each however many there are."""
    budget_ms: float


KINDS = (
    AttemptKind("a trivial attempt", 1, 400, 100, 1.2),
    AttemptKind("a ten-turn tool loop", 10, 200, 30, 4),
    AttemptKind("an attempt of 200 turns", 200, 10, 2, 80),
    AttemptKind("an attempt of 1,000 turns", 1000, 2, 0, 400),
)
WRITE = "{write: {path: notes.txt, text: a line}}"
READ = "{read: notes.txt}"
ANSWER = "      - say: The answer is 42\n"


def measure(bench: Bench) -> Iterator[Row]:
    for kind in KINDS:
        attempts = bench.size(kind.attempts, 4 if kind.turns <= 10 else 1)
        ours = bench.repeat(
            lambda: bench.call("attempts", "run_attempts", kind.turns, attempts),  # noqa: B023
            warm_up=lambda: bench.call("attempts", "run_attempts", kind.turns, 1),  # noqa: B023
        )
        yield build_row(
            f"{kind.name}, of {attempts}, CPU", ours["cpu"], "ms", floor=ours["reference"],
            against=REFERENCE, budget=kind.budget_ms,
        )  # fmt: skip
        if kind.turns <= 10:
            yield build_row(
                f"memory after {kind.name}", ours["late"], "MB", floor=ours["early"],
                against="memory at a quarter of the way", aim=1.1,
            )  # fmt: skip
        if kind.samples:
            yield _compare_with_inspect(bench, kind, ours["cpu"])


def _compare_with_inspect(bench: Bench, kind: AttemptKind, ours: list[float]) -> Row:
    title = f"{kind.name} beside Inspect, CPU"
    try:
        peer = bench.peer_python(".venv-peer", "inspect_ai")
    except NotMeasured as reason:
        return Row(title, note=f"not measured: {reason}")
    theirs = bench.repeat(
        lambda: {"cpu": bench.call("peer_inspect", "main", kind.turns, kind.samples, python=peer)},
        warm_up=lambda: bench.call("peer_inspect", "main", kind.turns, 1, python=peer),
    )
    return build_row(
        title, ours, "ms", floor=theirs["cpu"], against=f"Inspect, {kind.samples} samples", aim=0.1
    )


def write_script(turns: int) -> str:
    """A dialogue of so many turns: one writes a file, the others read it, the last answers."""
    calls = [WRITE, *[READ] * (turns - 2)] if turns > 1 else []
    lines = "".join(f"      - do: {call}\n" for call in calls)
    return f"dialogues:\n  - turns:\n{lines}{ANSWER}"


def run_attempts(turns: int, attempts: int) -> dict[str, float]:
    """CPU seconds of one attempt, and memory early and late."""
    with tempfile.TemporaryDirectory() as folder:
        return anyio.run(_run_attempts, turns, attempts, Path(folder))


async def _run_attempts(turns: int, attempts: int, root: Path) -> dict[str, float]:
    from closeloop.attempts.experiment_run import (
        open_run,
        open_run_context,
        plan_experiment,
        run_attempts,
    )
    from closeloop.records.experiment_plan import RunProgress
    from closeloop.records.settings import (
        ExperimentSettings,
        SandboxSettings,
        Settings,
        VariantSettings,
    )
    from closeloop.tasks.task_files import select_tasks

    (root / "script.yaml").write_text(write_script(turns))
    (root / "tasks").mkdir()
    (root / "tasks" / "question.md").write_text(
        "---\nid: question\nrepo: none\nacceptance: {answer: '42'}\n---\nWhat is it?\n"
    )
    settings = Settings(
        sandbox=SandboxSettings(kind="none"),
        variants={
            "scripted": VariantSettings(
                model="scripted:script.yaml", limits={"turns": turns, "seconds": 600.0}
            )
        },
    )
    tasks = select_tasks(settings, root, ())
    marks: list[int] = []
    settled = 0

    def watch_memory(progress: RunProgress) -> None:
        nonlocal settled
        settled += progress.stage == "settled"
        if settled in (max(attempts // 4, 1), attempts) and progress.stage == "settled":
            marks.append(resident_bytes())

    async with open_run_context(settings, root, ["scripted"], {}) as workshop:
        plan = plan_experiment(workshop, tasks, ExperimentSettings(repeats=attempts))
        before = own_cpu_seconds()
        async with open_run(plan, workshop, jobs=1, report_progress=watch_memory) as run:
            await run_attempts(run)
        used = own_cpu_seconds() - before
        rows = workshop.store.list_attempts()
    assert len(rows) == attempts
    assert all(row.outcome == "pass" for row in rows)
    assert all(row.turns == turns for row in rows), rows[0].turns
    return {"cpu": used / attempts, "early": marks[0], "late": marks[-1]}
