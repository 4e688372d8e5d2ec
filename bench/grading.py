"""Grading one attempt of a small project, beside running its tests twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio

from closeloop.grading.grading import GradedSubmission, grade_attempt
from closeloop.grading.task_proof import run_base_tests
from closeloop.records.attempt import Attempt, Proof
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Acceptance, Task
from closeloop.sandbox.workspaces import WorkspaceBase, WorkspacePool, resolve_commit
from closeloop.text.patches import parse_patch
from harness import Bench, commit_all, run, time_wall
from sandbox import find_sandbox_kind
from table import Row, build_row

MODULES = 20
TEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -q -p no:cacheprovider"
RUNS = 2
"""Of the tests: that they failed before is known, so grading runs them once, and confirms them."""


def measure(bench: Bench) -> Iterator[Row]:
    kind = find_sandbox_kind(bench.folder / "cache")
    modules = bench.size(MODULES, 1)
    repo = bench.input("graded", lambda folder: _make_project(folder, modules))
    task = _make_task(repo)
    times: dict[str, list[float]] = {}

    async def measure_grading() -> None:
        async with WorkspacePool(bench.folder / "cache", SandboxSettings()) as workspaces:
            base = await workspaces.prepare_base(str(repo), task.base)
            before = await run_base_tests(workspaces, base, task)
            proof = Proof(task=task.id, grading="g", state="unchecked", before=before)
            times.update(await anyio.to_thread.run_sync(_repeat, workspaces, base, proof))

    def _repeat(
        workspaces: WorkspacePool, base: WorkspaceBase, proof: Proof
    ) -> dict[str, list[float]]:
        def grade_once() -> None:
            graded = anyio.from_thread.run(_grade, workspaces, base, task, proof)
            assert graded == "pass", graded

        return bench.repeat(
            lambda: {"ours": time_wall(grade_once), "bare": time_wall(lambda: _run_tests(repo))}
        )

    anyio.run(measure_grading)
    yield build_row(
        f"grading a change to {modules} modules ({kind}), seconds", times["ours"], "s",
        floor=times["bare"], against=f"its tests run bare, {RUNS} times",
    )  # fmt: skip


def _make_project(repo: Path, modules: int) -> None:
    """Modules that subtract where they should add, each with a test that says so."""
    repo.mkdir()
    for number in range(modules):
        code = f"def join_{number}(a, b):\n    return a - b\n"
        (repo / f"part_{number}.py").write_text(code)
        test = f"from part_{number} import join_{number}\n\n\n"
        test += f"def test_joins_{number}():\n    assert join_{number}(2, 3) == 5\n\n\n"
        test += f"def test_nothing_{number}():\n    assert join_{number}(2, 0) == 2\n"
        (repo / f"test_part_{number}.py").write_text(test)
    commit_all(repo)


def _make_task(repo: Path) -> Task:
    """The request to add, with the right answer as its reference."""
    modules = sorted(repo.glob("part_*.py"))
    for path in modules:
        path.write_text(path.read_text().replace("a - b", "a + b"))
    patch = run(["git", "diff"], repo)
    run(["git", "checkout", "-q", "."], repo)
    numbers = [path.stem.removeprefix("part_") for path in modules]
    failing = tuple(f"test_part_{number}.py::test_joins_{number}" for number in numbers)
    return Task(
        id="join",
        prompt="Join by adding.",
        repo=str(repo),
        base=resolve_commit(repo, "HEAD"),
        protected=("test_*.py",),
        reference=patch,
        grading="g",
        acceptance=Acceptance(run=TEST, fail_to_pass=failing),
    )


async def _grade(workspaces: WorkspacePool, base: WorkspaceBase, task: Task, proof: Proof) -> str:
    """What a submission of the reference is graded as."""
    submission = GradedSubmission(
        attempt=Attempt(id="a1", origin="experiment", exit="finished"),
        change=parse_patch(task.reference or ""),
        trace=None,
        proof=proof,
    )
    outcome = (await grade_attempt(workspaces, base, task, submission)).outcome
    return outcome.result if outcome.result == "pass" else f"{outcome.result}: {outcome.reasons}"


def _run_tests(repo: Path) -> None:
    for _ in range(RUNS):
        subprocess.run(TEST, shell=True, cwd=repo, check=False, capture_output=True)
