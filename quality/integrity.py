"""Is an honest change ever refused? Grade the reference of each task as if an agent had made it.

    python quality/integrity.py [--no-reference] PROJECT …

A project is a folder with a closeloop.toml and proved tasks, as `closeloop mine` leaves it. Every
reference passes its tests, so each must be graded as a pass; how many were confirmed in a second
process says how far the conditions of a grade reach on real code. With --no-reference the graders
do not know the reference: then nothing excuses a violation that it shares.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import anyio
import msgspec

from closeloop.attempts.run_resources import open_workspaces, prepare_task_base
from closeloop.cli.config import load_project
from closeloop.grading.grading import GradedSubmission, grade_attempt
from closeloop.grading.task_proof import check_gradable
from closeloop.records.attempt import Attempt, Grade
from closeloop.records.task import Task
from closeloop.sandbox.workspaces import WorkspacePool, resolve_commit
from closeloop.tasks.task_files import load_tasks
from closeloop.text.patches import parse_patch


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def grade_reference(task: Task, workspaces: WorkspacePool, *, known: bool) -> Grade:
    base = await prepare_task_base(task, workspaces)
    change = parse_patch(task.reference or "")
    if not known:
        task = msgspec.structs.replace(task, reference=None)
    submission = GradedSubmission(
        attempt=Attempt(id=task.id, origin="experiment", exit="finished"),
        change=change,
        trace=None,
        proof=await check_gradable(workspaces, base, task),
    )
    return await grade_attempt(workspaces, base, task, submission)


async def main(words: list[str]) -> int:
    projects = [word for word in words if word != "--no-reference"]
    outcomes: Counter[str] = Counter()
    conditions: Counter[str] = Counter()
    for project in map(Path, projects):
        found = load_project(project)
        tasks = load_tasks(found.root / found.settings.tasks, found.root, resolve_commit)
        async with open_workspaces(found.settings, found.root) as workspaces:
            for task in tasks:
                graded = await grade_reference(task, workspaces, known=projects == words)
                known = graded.evidence or graded.outcome.cause or graded.outcome.reasons
                tell(f"{project.name} {task.id}: {graded.outcome.result} ({known})")
                outcomes[f"{graded.outcome.result} {graded.evidence or ''}".strip()] += 1
                for check in graded.integrity:
                    conditions[f"{check.name} {check.state}"] += 1
                    if check.state != "held":
                        tell(f"    {check.name} {check.state}: {check.detail}")
    tell(f"{dict(outcomes)}\n{dict(sorted(conditions.items()))}")
    return any(name.startswith("fail") for name in outcomes)


if __name__ == "__main__":
    sys.exit(anyio.run(main, sys.argv[1:]))
