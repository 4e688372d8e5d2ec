"""How good is mining? Of commits known to have fail-to-pass tests, how many become tasks?

    python quality/mining.py [--commits N] [--python PYTHON] REPOSITORY …

Known are those of a sample that a plain checkout and a plain virtual environment show, without a
line of ours: tests of changed files that fail at the parent with the new tests, and pass at the
commit. Each task that was accepted is proved once more, from its files, for the second number.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import anyio

from closeloop.mining import digging
from closeloop.mining.environments import Environments
from closeloop.mining.mine import write_whole
from closeloop.mining.proving import Proved, prove
from closeloop.model.record import Record
from closeloop.model.settings import Commands, SandboxSettings
from closeloop.runs import grade
from closeloop.runs.workspaces import Workspaces, resolve_commit
from closeloop.tasks.files import load_task
from closeloop.tasks.mining.history import Work
from closeloop.tasks.mining.parts import collects
from closeloop.tasks.mining.recipes import configured

SECONDS = 300


class Row(Record):
    """One commit that is known to have tests that fail without it."""

    commit: str
    proved: bool
    why: str = ""
    again: bool | None = None
    """Whether a second proof said the same."""


def measured(repo: Path, commits: int, python: str) -> Iterator[Row]:
    """A sample of a repository's work, the newest third of it: older work seldom runs anywhere."""
    with digging.manifests(repo, "HEAD") as folder:
        rules = collects(folder, "pytest")
        known = configured(Commands(), folder)
    lode = sorted(
        digging.survey(repo, rules, None, datetime.now(UTC)).works, key=lambda work: work.at
    )
    sample = random.Random(7).sample(lode[-len(lode) // 3 :], min(commits, len(lode) // 3))  # noqa: S311
    place = Path(tempfile.mkdtemp())
    try:
        for work in sample:
            found = digging.candidate(repo, work, rules)
            files = () if isinstance(found, str) else found.test_files
            if not _fails_first(repo, work, files or _tests(repo, work), place, python):
                continue
            if isinstance(found, str):
                yield Row(commit=work.commit, proved=False, why=found)
                continue

            async def go(candidate=found) -> Row:  # type: ignore[no-untyped-def]
                async with Workspaces(place / "cache", SandboxSettings()) as workspaces:
                    environments = Environments(workspaces, repo, known)
                    return await _mined(candidate, environments, place)

            yield anyio.run(go)
    finally:
        shutil.rmtree(place, ignore_errors=True)


async def _mined(candidate: digging.Candidate, environments: Environments, place: Path) -> Row:
    made = await prove(candidate, environments, 3)
    if not isinstance(made, Proved):
        return Row(commit=candidate.commit, proved=False, why=made.why)
    task = load_task(write_whole(made.task, place / "tasks"), None, resolve_commit)
    base = await environments.workspaces.base(str(environments.repo), task.base or "", task.setup)
    proof = await grade.prove(environments.workspaces, base, task, 3)
    return Row(commit=candidate.commit, proved=True, again=proof.state == "proved")


def _tests(repo: Path, work: Work) -> tuple[str, ...]:
    listed = digging.git(repo, "diff", "--name-only", "--diff-filter=AM", work.base, work.commit)
    return tuple(name for name in listed.split("\n") if re.search(r"(^|/)test_[^/]*\.py$", name))


def _fails_first(repo: Path, work: Work, files: tuple[str, ...], place: Path, python: str) -> bool:
    """Whether some test fails at the parent and passes at the commit, seen as anybody would."""
    tree = place / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    _run(place, "git", "clone", "-q", "--shared", str(repo), str(tree))
    passed = []
    for commit in (work.base, work.commit):
        _run(tree, "git", "checkout", "-q", "-f", commit)
        _run(tree, "git", "checkout", "-q", work.commit, "--", *files)
        argv = (python, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *files)
        env = {"PYTHONPATH": f"{tree}/src:{tree}"}
        told = _run(tree, *argv, env=env)
        passed.append(set(re.findall(r"^PASSED (\S+)", told, re.MULTILINE)))
    return bool(passed[1] - passed[0])


def _run(folder: Path, *argv: str, env: dict[str, str] | None = None) -> str:
    import os

    try:
        ran = subprocess.run(
            argv,
            cwd=folder,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    return ran.stdout


def main() -> None:
    """A line for every commit, then the two numbers."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("repositories", type=Path, nargs="+")
    options.add_argument("--commits", type=int, default=20)
    options.add_argument("--python", default=sys.executable, help="with pytest and the packages")
    given = options.parse_args()
    for repo in given.repositories:
        rows = []
        for row in measured(repo.resolve(), given.commits, given.python):
            rows.append(row)
            sys.stdout.write(f"{row.commit[:12]} {'proved' if row.proved else row.why[:140]}\n")
            sys.stdout.flush()
        proved = [row for row in rows if row.proved]
        wrong = sum(row.again is False for row in proved)
        sys.stdout.write(
            f"{repo.name}: {len(proved)} of {len(rows)} known proved, {wrong} wrong on re-proof\n"
        )


if __name__ == "__main__":
    main()
