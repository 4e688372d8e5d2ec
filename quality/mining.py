"""How good is mining? Of commits known to have fail-to-pass tests, how many become tasks?

    python quality/mining.py [--commits N] [--python PYTHON] [--known FILE] [REPOSITORY …]

Known are those of a sample that git and the project's own runner (pytest, `go test`, vitest, jest,
mocha or `node --test`) show without a line of ours: some test of the changed files passes at the
commit, and not at its parent with the new tests. Each task that is accepted is loaded from its
files and proved once more, for the second number; the third counts requests that nobody could
fulfil, by reading the tests' imports in another way than mining does. PYTHON has pytest and the
project's packages. FILE keeps the known commits, for another run. Without a repository, one is
made up: its answers are known.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import anyio

from closeloop.grading import task_proof as controls
from closeloop.records.record import Record
from closeloop.records.settings import CommandSettings, SandboxSettings
from closeloop.records.task import Task
from closeloop.sandbox.workspaces import WorkspacePool, resolve_commit
from closeloop.tasks import candidate_builder
from closeloop.tasks.miner import ProvedTask, prove_candidate, rules_for_recipes, write_task_files
from closeloop.tasks.mining_environments import EnvironmentCache
from closeloop.tasks.setup_recipes import detect_edited_commands, list_recipes
from closeloop.tasks.task_files import load_task
from closeloop.tasks.work_history import PastWork

SECONDS = 60
AT_ONCE = 1
PARTS = 3
TEST = re.compile(
    r"(?:^|/)(?:test_[^/]*|[^/]*_test)\.py$|_test\.go$|\.(?:test|spec)\.[cm]?[jt]s$"
    r"|(?:^|/)tests?/[^/]*\.[cm]?[jt]s$"
)
NEW_MODULE = r"^--- /dev/null\n\+\+\+ b(/\S+?)(?:/__init__)?\.py$"
CODE = re.compile(r"\.(?:py|go|[cm]?[jt]s)$")
NPM_OPTIONS = ("--no-audit", "--no-fund", "--no-package-lock", "--legacy-peer-deps")
SCRIPT_RUNNERS = {
    "vitest": ("npx", "vitest", "run", "--reporter=tap-flat"),
    "jest": ("npx", "jest", "--verbose"),
    "mocha": ("npx", "mocha", "--reporter", "tap"),
}
"""Each is told files by their names, and what else they are called by is left out."""
SCRIPT_PASS = {
    "vitest": r"^\s*ok \d+ - (.+?)(?: # time=.*)?$",
    "jest": r"^\s*✓ (.+?)(?: \(\d+ m?s\))?$",
    "mocha": r"^ok \d+ (.+)$",
}
WHO = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": "/dev/null"}
WHO |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


class Row(Record):
    """One commit that is known to have tests that fail without it."""

    commit: str
    proved: bool
    why: str = ""
    again: str | None = None
    """Why a second proof says otherwise, if it does."""
    unnamed: tuple[str, ...] = ()
    """What its tests import and nobody was told."""


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
    code = [name for name in names if CODE.search(name)]
    return any(map(TEST.search, code)) and not all(map(TEST.search, code))


def _turns(tree: Path, commit: str, python: str) -> bool:
    """Whether some test fails at the parent and passes at the commit, seen as anybody would.

    The commit is run twice: a test that has the time of day in its name is another each time.
    """
    passed: list[set[str]] = []
    listed = _run(tree, "git", "diff", "--name-only", "--diff-filter=AM", f"{commit}^", commit)
    files = [name for name in listed.split("\n") if TEST.search(name)]
    beside = [name for name in listed.split("\n") if re.match(r"(?:tests?|testing)/", name)]
    if not files:
        return False  # Tests were only removed or renamed.
    for place in (commit, f"{commit}^", commit):
        _run(tree, "git", "checkout", "-q", "-f", place)
        _run(tree, "git", "clean", "-q", "-f", "-d", "-e", "node_modules")
        _run(tree, "git", "checkout", "-q", commit, "--", *files, *beside)
        passed.append(_passing(tree, files, python))
        if not passed[0] or not passed[0].difference(*passed[1:2]):
            return False
    return bool((passed[0] & passed[2]) - passed[1])


def _passing(tree: Path, files: Sequence[str], python: str) -> set[str]:
    """The tests of some files that pass, by what the project's own runner prints."""
    if files[0].endswith(".py"):
        argv = (python, "-m", "pytest", "-q", "-rA", "--color=no", "-p", "no:cacheprovider")
        told = _run(tree, *argv, *files, env={"PYTHONPATH": f"{tree}/src:{tree}"})
        return {*re.findall(r"^PASSED (.+)$", told, re.MULTILINE)}
    if files[0].endswith(".go"):
        packages = sorted({f"./{Path(file).parent}" for file in files})
        told = _run(tree, "go", "test", "-v", *packages)
        return {*re.findall(r"^\s*--- PASS: (\S+)", told, re.MULTILINE)}
    manifest = (tree / "package.json").read_text()
    if not (tree / "node_modules").exists():
        _run(tree, "npm", "install", *NPM_OPTIONS, seconds=5 * SECONDS)
    runner = next((name for name in SCRIPT_RUNNERS if f'"{name}"' in manifest), "node")
    call = shlex.join([*SCRIPT_RUNNERS.get(runner, ("node", "--test")), *files])
    told = _run(tree, "sh", "-c", f"{call} 2>&1")
    return {*re.findall(SCRIPT_PASS.get(runner, r"^\s*ok \d+ - (.+)$"), told, re.MULTILINE)}


async def mined(
    repo: Path, commits: Sequence[str], commands: CommandSettings, place: Path
) -> list[Row]:
    """What mining makes of these commits."""
    with candidate_builder.open_manifests(repo, "HEAD") as folder:
        settings = detect_edited_commands(commands, folder)
        rules = rules_for_recipes(folder, list_recipes(folder, settings, datetime.now(UTC)))
    lode = candidate_builder.survey_work(repo, rules, None, datetime.now(UTC))
    works = {work.commit: work for work in lode.works}
    rows: list[Row] = []
    turn = anyio.Semaphore(AT_ONCE)
    async with WorkspacePool(place / "cache", SandboxSettings()) as workspaces:
        environments = EnvironmentCache(workspaces, repo, settings)

        async def one(commit: str) -> None:
            async with turn:
                if commit in works:
                    row = await _tried(works[commit], environments, place)
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


async def _tried(work: PastWork, environments: EnvironmentCache, place: Path) -> Row:
    with candidate_builder.open_manifests(environments.repo, work.commit) as folder:
        rules = rules_for_recipes(folder, list_recipes(folder, environments.known, work.at))
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
    unnamed = _unnamed(environments.repo, made.task)
    return Row(commit=work.commit, proved=True, again=again, unnamed=unnamed)


def _unnamed(repo: Path, task: Task) -> tuple[str, ...]:
    """What tests import and neither the base nor the request has, read line by line.

    It knows nothing of syntax: so it cannot be wrong in the same way as what mining does.
    """
    added = "\n".join(re.findall(r"^\+(?!\+)(.*)", task.acceptance.patch or "", re.MULTILINE))
    listed = re.findall(r"^\s*from [\w.]+ import \(?([\w, ]+)", added, re.MULTILINE)
    listed += re.findall(r"import \{([\w, ]+)\} from ['\"]\.", added)
    names = {word.split(" as ")[0].strip() for line in listed for word in line.split(",")} - {""}
    made = {*re.findall(r"\b(?:def|class|const|function) (\w+)", task.reference or "")}
    new = {one for one in names & made if not _run(repo, "git", "grep", "-w", one, task.base or "")}
    modules = {*re.findall(r"^\s*(?:from|import) ([\w.]+)", added, re.MULTILINE)}
    files = re.findall(NEW_MODULE, task.reference or "", re.MULTILINE)
    for module in modules:
        if any(path.endswith(f"/{module.replace('.', '/')}") for path in files):
            new.add(module)
    return tuple(sorted(name for name in new if name not in task.prompt))


def measured(
    repo: Path,
    commits: int,
    python: str,
    commands: CommandSettings | None = None,
    kept: Path | None = None,
) -> str:
    """The three numbers of a repository, as a line, and why the others were refused."""
    place = Path(tempfile.mkdtemp())
    try:
        turning = kept.read_text().split() if kept and kept.exists() else None
        if turning is None:
            turning = known(repo, commits, python, place)
        if kept:
            kept.write_text("\n".join(turning))
        rows = anyio.run(mined, repo, turning, commands or CommandSettings(), place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    proved = [row for row in rows if row.proved]
    wrong = sum(row.again is not None for row in proved)
    vague = sum(bool(row.unnamed) for row in proved)
    told = f"{len(proved)} of {len(rows)} known commits became tasks"
    told += f", {wrong} of them wrong on re-proof, {vague} with a request that lacks a name"
    reasons = Counter(row.why[:100] for row in rows if not row.proved)
    lines = [f"  {count} not: {why}" for why, count in reasons.most_common()]
    return "\n".join([f"Mining {repo.name}: {told}", *lines])


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


def _run(
    folder: Path, *argv: str, env: dict[str, str] | None = None, seconds: float = SECONDS
) -> str:
    try:
        ran = subprocess.run(
            argv,
            cwd=folder,
            env={**os.environ, **WHO, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
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
    options.add_argument("--known", type=Path, help="a file that keeps the known commits")
    options.add_argument("--python", default=sys.executable, help="with pytest and the packages")
    given = options.parse_args()
    for repo in given.repositories:
        line = measured(repo.resolve(), given.commits, given.python, kept=given.known)
        sys.stdout.write(f"{line}\n")
    if not given.repositories:
        sys.stdout.write(f"{made_up()}\n")


if __name__ == "__main__":
    main()
