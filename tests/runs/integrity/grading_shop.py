"""A small project that changes are graded on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import anyio
import msgspec

from closeloop.grading.grading import GradedSubmission, grade_attempt
from closeloop.grading.integrity.confirm import evidence_of
from closeloop.grading.task_proof import check_gradable
from closeloop.records.attempt import Attempt, Grade, Proof
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Acceptance, Task
from closeloop.sandbox.workspaces import WorkspacePool
from closeloop.text.patches import parse_patch
from patience import PATIENCE


class Shop:
    """A repository with one commit, and a grader for changes to it."""

    prompt = "The total is off by one, and amounts are no numbers."

    def __init__(self, folder: Path, files: dict[str, str], **acceptance: object) -> None:
        self.folder = folder / "shop"
        self.cache = folder / "cache"
        self.folder.mkdir()
        self.git("init", "-q")
        self.write(files)
        self.git("add", "-A")
        self.git("commit", "-qm", "Start")
        self.base = self.git("rev-parse", "HEAD").strip()
        self.accept(**acceptance)

    def accept(self, **acceptance: object) -> None:
        """What a change must satisfy from now on."""
        self.acceptance = Acceptance(**{"timeout": PATIENCE, **acceptance})
        self.proofs: dict[str | None, Proof] = {}

    def git(self, *arguments: str) -> str:
        who = {
            f"GIT_{role}_{field}": "t@example.com"
            for role in ("AUTHOR", "COMMITTER")
            for field in ("NAME", "EMAIL")
        }
        command = ["git", *arguments]
        env = {**os.environ, **who}
        ran = subprocess.run(command, cwd=self.folder, env=env, check=True, capture_output=True)
        return ran.stdout.decode()

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            if text.startswith("#!"):
                path.chmod(0o755)

    def patch(self, files: dict[str, str]) -> str:
        self.write(files)
        self.git("add", "-A")
        patch = self.git("diff", "--cached", "--no-renames", "--binary")
        self.git("reset", "-q", "--hard")
        return patch

    def grade(self, files: dict[str, str], reference: dict[str, str] | None = None) -> Grade:
        return self.grade_patch(self.patch(files), reference)

    def grade_patch(self, patch: str, reference: dict[str, str] | None = None) -> Grade:
        task = Task(
            id="shop",
            prompt=self.prompt,
            repo=str(self.folder),
            base=self.base,
            reference=self.patch(reference) if reference else None,
            acceptance=self.acceptance,
            grading="g",
        )
        return anyio.run(self._grade, task, patch)

    async def _grade(self, task: Task, patch: str) -> Grade:
        async with WorkspacePool(self.cache, SandboxSettings(kind="none")) as workspaces:
            base = await workspaces.prepare_base(task.repo or "", task.base or "")
            if task.reference not in self.proofs:
                self.proofs[task.reference] = await check_gradable(workspaces, base, task)
            attempt = Attempt(id="a1", origin="experiment", exit="finished")
            submission = GradedSubmission(
                attempt=attempt,
                change=parse_patch(patch),
                trace=None,
                proof=self.proofs[task.reference],
            )
            return _grade_as_confined(await grade_attempt(workspaces, base, task, submission))


def _grade_as_confined(graded: Grade) -> Grade:
    """The grade as a sandbox would have made it: these tests do without one, as it takes time."""
    assert graded.evidence != "confirmed", "nothing is confirmed without a sandbox"
    if graded.after is None:
        return graded
    evidence = evidence_of(graded.outcome, graded.after, graded.integrity, is_confined=True)
    return msgspec.structs.replace(graded, evidence=evidence)
