"""How good is mining? Of commits known to have fail-to-pass tests, how many become tasks?

    python quality/mining.py [--commits N] [--python PYTHON] [REPOSITORY …]

Known are those of a sample that git and pytest show without a line of ours: some test of the
changed files passes at the commit, and not at its parent with the new tests. Each task that is
accepted is loaded from its files and proved once more, for the second number. PYTHON has pytest
and the project's packages. Without a repository, one is made up: its answers are known.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import anyio

from closeloop.grading import task_proof as controls
from closeloop.records.record import Record
from closeloop.records.settings import CommandSettings, SandboxSettings
from closeloop.sandbox.workspaces import WorkspacePool, resolve_commit
from closeloop.tasks.mining import candidate_builder
from closeloop.tasks.mining.candidate_proof import ProvedTask, prove_candidate
from closeloop.tasks.mining.change_parts import CollectionRules, find_collection_rules
from closeloop.tasks.mining.miner import write_task_files
from closeloop.tasks.mining.mining_environments import EnvironmentCache
from closeloop.tasks.mining.setup_recipes import detect_edited_commands
from closeloop.tasks.mining.work_history import PastWork
from closeloop.tasks.task_files import load_task

SECONDS = 60
AT_ONCE = 2
PARTS = 3
TEST = re.compile(r"(?:^|/)(?:test_[^/]*|[^/]*_test)\.py$")
WHO = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": "/dev/null"}
WHO |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


class Row(Record):
    """One commit that is known to have tests that fail without it."""

    commit: str
    proved: bool
    why: str = ""
    again: str | None = None
    """Why a second proof says otherwise, if it does."""


def known(repo: Path, commits: int, python: str, place: Path) -> list[str]:
    """A sample of the newest third of the work that changes tests and other code, as far as tests
    can be seen to turn: older work seldom runs anywhere."""
    log = ("log", "--first-parent", "--diff-merges=first-parent", "--no-renames", "--name-only")
    told = _run(repo, "git", *log, "--format=%x01%H %s", "HEAD").split("\x01")[1:]
    branch = re.compile(r"\w+ Merge (?:branch|remote|\S+ into)\b")
    own = (entry for entry in told if not branch.match(entry))
    changed = {entry.split()[0]: entry.split("\n")[1:] for entry in own}
    both = [commit for commit, names in changed.items() if _changes_both(names)]
    newest = both[: max(commits, len(both) // 3)]
    sample = random.Random(7).sample(newest, min(commits, len(newest)))  # noqa: S311
    tree = place / "tree"
    _run(place, "git", "clone", "-q", "--shared", str(repo), str(tree))
    return [commit for commit in sample if _turns(tree, commit, python)]


def _changes_both(names: Sequence[str]) -> bool:
    code = [name for name in names if name.endswith(".py")]
    return any(map(TEST.search, code)) and not all(map(TEST.search, code))


def _turns(tree: Path, commit: str, python: str) -> bool:
    """Whether some test fails at the parent and passes at the commit, seen as anybody would.

    The commit is run twice: a test that has the time of day in its name is another each time.
    """
    passed: list[set[str]] = []
    listed = _run(tree, "git", "diff", "--name-only", "--diff-filter=AM", f"{commit}^", commit)
    files = [name for name in listed.split("\n") if TEST.search(name)]
    beside = [name for name in listed.split("\n") if re.match(r"(?:tests?|testing)/", name)]
    for place in (commit, f"{commit}^", commit):
        _run(tree, "git", "checkout", "-q", "-f", place)
        _run(tree, "git", "clean", "-q", "-f", "-d")
        _run(tree, "git", "checkout", "-q", commit, "--", *files, *beside)
        argv = (python, "-m", "pytest", "-q", "-rA", "--color=no", "-p", "no:cacheprovider")
        told = _run(tree, *argv, *files, env={"PYTHONPATH": f"{tree}/src:{tree}"})
        passed.append({*re.findall(r"^PASSED (.+)$", told, re.MULTILINE)})
        if not passed[0] or not passed[0].difference(*passed[1:2]):
            return False
    return bool((passed[0] & passed[2]) - passed[1])


async def mined(
    repo: Path, commits: Sequence[str], commands: CommandSettings, place: Path
) -> list[Row]:
    """What mining makes of these commits."""
    with candidate_builder.open_manifests(repo, "HEAD") as folder:
        rules, settings = (
            find_collection_rules(folder, "pytest"),
            detect_edited_commands(commands, folder),
        )
    lode = candidate_builder.survey_work(repo, rules, None, datetime.now(UTC))
    works = {work.commit: work for work in lode.works}
    rows: list[Row] = []
    turn = anyio.Semaphore(AT_ONCE)
    async with WorkspacePool(place / "cache", SandboxSettings()) as workspaces:
        environments = EnvironmentCache(workspaces, repo, settings)

        async def one(commit: str) -> None:
            async with turn:
                if commit in works:
                    row = await _tried(works[commit], rules, environments, place)
                else:
                    why = lode.passed_over.get(commit, "it is not seen as work of its own")
                    row = Row(commit=commit, proved=False, why=why)
            rows.append(row)
            told = "proved" if row.proved else row.why[:140]
            sys.stdout.write(f"{commit[:12]} {told}{f', then {row.again}' if row.again else ''}\n")
            sys.stdout.flush()

        async with anyio.create_task_group() as group:
            for commit in commits:
                group.start_soon(one, commit)
    return rows


async def _tried(
    work: PastWork, rules: CollectionRules, environments: EnvironmentCache, place: Path
) -> Row:
    found = candidate_builder.build_candidate(environments.repo, work, rules)
    made = found if isinstance(found, str) else await prove_candidate(found, environments, 3)
    if not isinstance(made, ProvedTask):
        why = made if isinstance(made, str) else made.why
        return Row(commit=work.commit, proved=False, why=why)
    task = load_task(write_task_files(made.task, place / "tasks"), None, resolve_commit)
    base = await environments.workspaces.prepare_base(
        str(environments.repo), task.base or "", task.setup
    )
    proof = await controls.prove_task(environments.workspaces, base, task, 1)
    again = None if proof.state == "proved" else (*proof.reasons, proof.state)[0]
    return Row(commit=work.commit, proved=True, again=again)


def measured(repo: Path, commits: int, python: str, commands: CommandSettings | None = None) -> str:
    """The two numbers of a repository, as a line."""
    place = Path(tempfile.mkdtemp())
    try:
        turning = known(repo, commits, python, place)
        rows = anyio.run(mined, repo, turning, commands or CommandSettings(), place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    proved = [row for row in rows if row.proved]
    wrong = sum(row.again is not None for row in proved)
    told = f"{len(proved)} of {len(rows)} known commits became tasks"
    return f"Mining {repo.name}: {told}, {wrong} of them wrong on re-proof"


def made_up() -> str:
    """The two numbers of a small past: functions that are mended, one after the other."""
    place = Path(tempfile.mkdtemp())
    try:
        repo = place / "made-up"
        repo.mkdir()
        _run(repo, "git", "init", "-q")
        for mended in (False, True):
            for number in range(PARTS):
                message = f"Numbers of part {number} are added up" if mended else "wip"
                _commit(repo, number, mended=mended, message=message)
        test = f"{sys.executable} -m pytest -q -p no:cacheprovider"
        return measured(repo, PARTS, sys.executable, CommandSettings(test=test))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _commit(repo: Path, number: int, *, mended: bool, message: str) -> None:
    """A function with its test: at first it subtracts, and what is tested cannot tell."""
    sign, right = ("+", 5) if mended else ("-", 2)
    code = f"def join_{number}(a, b):\n    return a {sign} b\n"
    test = f"assert join_{number}(2, {3 if mended else 0}) == {right}"
    head = f"from part_{number} import join_{number}\n\n\ndef test_{number}():\n"
    (repo / f"part_{number}.py").write_text(code)
    (repo / f"test_part_{number}.py").write_text(f"{head}    {test}\n")
    _run(repo, "git", "add", "-A")
    _run(repo, "git", "commit", "-q", "-m", message)


def _run(folder: Path, *argv: str, env: dict[str, str] | None = None) -> str:
    try:
        ran = subprocess.run(
            argv,
            cwd=folder,
            env={**os.environ, **WHO, **(env or {})},
            stdin=subprocess.DEVNULL,
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
    options.add_argument("repositories", type=Path, nargs="*")
    options.add_argument("--commits", type=int, default=20)
    options.add_argument("--python", default=sys.executable, help="with pytest and the packages")
    given = options.parse_args()
    for repo in given.repositories:
        sys.stdout.write(f"{measured(repo.resolve(), given.commits, given.python)}\n")
    if not given.repositories:
        sys.stdout.write(f"{made_up()}\n")


if __name__ == "__main__":
    main()
