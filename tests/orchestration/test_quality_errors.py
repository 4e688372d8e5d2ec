"""Errors that checks find in a try's code send it back, as a failing command does."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from closeloop.attempts.run_resources import open_run_resources
from closeloop.orchestration.plan_execution import with_quality_errors
from closeloop.orchestration.subtask_loop import SubtaskOrder
from closeloop.records.orchestration import (
    Orchestration,
    SubtaskExecution,
    SubtaskResult,
    SubtaskSpec,
)
from closeloop.records.settings import SandboxSettings, Settings

QUERY = 'def find(db, name):\n    return db.execute(f"SELECT 1 FROM c WHERE n = {name}")\n'
FINE = 'def find(db, name):\n    return db.execute("SELECT 1 FROM c WHERE n = ?", (name,))\n'


def run_git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    ran = subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return ran.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    run_git(folder, "init", "-q", "-b", "main")
    (folder / "shop.py").write_text("A = 1\n")
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-q", "-m", "Start")
    return folder


@pytest.mark.parametrize(("text", "facts"), [(QUERY, ["code-quality"]), (FINE, [])])
def test_an_error_in_the_code_of_a_try_is_a_fact_that_fails_it(
    repository: Path, text: str, facts: list[str]
) -> None:
    (repository / "query.py").write_text(text)
    run_git(repository, "add", ".")
    patch = run_git(repository, "diff", "--cached")
    base = run_git(repository, "rev-parse", "HEAD").strip()
    run_git(repository, "reset", "-q", "--hard")
    task = SubtaskSpec(id="query", prompt="Find by name")
    now = datetime.now(UTC)
    plan = Orchestration(
        id="p", request="r", tasks=(task,), worker="w", repo=str(repository), base=base, at=now
    )
    order = SubtaskOrder(plan=plan, task=task, number=1, brief="b", beneath=(), last=None)
    execution = SubtaskExecution(
        plan="p",
        task="query",
        number=1,
        variant="w",
        agent="builtin",
        brief="b",
        exit="finished",
        report="Done.",
        patch=patch,
        files=("query.py",),
        started=now,
        ended=now,
    )

    async def check() -> SubtaskResult:
        settings = Settings(sandbox=SandboxSettings(kind="none"))
        async with open_run_resources(settings, repository.parent, [], {}, lambda key: ()) as tools:
            return await with_quality_errors(SubtaskResult(execution=execution), order, tools)

    found = anyio.run(check).execution.facts
    assert [fact.name for fact in found] == facts
    assert all(fact.blocks and fact.verdict == "no" for fact in found)
