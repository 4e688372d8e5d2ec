"""Environments in which a commit's tests run: tried in turn, then shared by its neighbours."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import anyio

from closeloop.mining.digging import manifests, runner_files
from closeloop.model.attempt import TestRun
from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.record import Record, digest
from closeloop.model.task import Acceptance, Runner, Task
from closeloop.runs.grade import prove_base
from closeloop.runs.protected import files_named
from closeloop.runs.testing.instrument import runner_of
from closeloop.runs.workspaces import Base, Workspaces
from closeloop.tasks.mining.candidates import Candidate
from closeloop.tasks.mining.history import git, nearest_tag
from closeloop.tasks.mining.recipes import Configured, Recipe, recipes

QUICK_SECONDS = 15.0
"""A suite that takes no longer runs whole; of a slower one, tests for about so long are chosen."""
TRIAL_SECONDS = 120.0
FEWEST_PASSING = 0.5
_REPORTS = {"mvn": "**/target/surefire-reports/TEST-*.xml"}


class Environment(Record):
    """A recipe that works, and what its first run showed."""

    recipe: Recipe
    runner: Runner | None
    seconds: float | None
    """Of the whole suite; None where it took too long to know."""
    files: dict[str, float]
    """How long the tests of each file took, as far as they ran."""


class Broken(Record):
    """No recipe works."""

    why: str


class Environments:
    """All that were tried in one mining, by what their recipes say: one for many commits."""

    def __init__(self, workspaces: Workspaces, repo: Path, known: Configured) -> None:
        self.workspaces = workspaces
        self.repo = repo
        self.known = known
        self.made = 0
        """How many were set up, for those who count."""
        self._found: dict[str, Environment | Broken] = {}
        self._turns: dict[str, anyio.Lock] = {}

    async def of(self, candidate: Candidate) -> Environment | Broken:
        """The environment of a candidate's base; one at a time where it is not known yet."""
        with manifests(self.repo, candidate.base) as folder:
            tag = nearest_tag(self.repo, candidate.base)
            ways = recipes(folder, self.known, candidate.at, tag)
        key = digest(ways)
        async with self._turns.setdefault(key, anyio.Lock()):
            if key not in self._found:
                self._found[key] = await self._first(ways, candidate)
        return self._found[key]

    async def base(self, environment: Environment, commit: str) -> Base:
        return await self.workspaces.base(str(self.repo), commit, environment.recipe.setup)

    async def _first(self, ways: Sequence[Recipe], candidate: Candidate) -> Environment | Broken:
        """The first recipe with which all tests run, else the one with which most pass."""
        troubles = ["no command that runs its tests was found"] if not ways else []
        best: tuple[int, Environment] | None = None
        for recipe in ways:
            self.made += 1
            try:
                base = await self.workspaces.base(str(self.repo), candidate.base, recipe.setup)
            except (BadInput, MachineFailed) as fault:
                troubles.append(f"{recipe.how}: {_last_line(str(fault))}")
                continue
            task = plain_task(self.repo, candidate.base, recipe, recipe.test, TRIAL_SECONDS)
            run = await prove_base(self.workspaces, base, task)
            if (trouble := _trouble(run)) is not None:
                troubles.append(f"{recipe.how}: {trouble}")
                continue
            found = _environment(recipe, run)
            passed = sum(test.status == "passed" for test in run.tests)
            if not any(test.status == "error" for test in run.tests):
                return found
            if best is None or passed > best[0]:
                best = passed, found
        return best[1] if best else Broken(why="; ".join(troubles)[:1000])


def plain_task(repo: Path, base: str, recipe: Recipe, run: str, timeout: float) -> Task:
    """A task that only runs tests."""
    return Task(
        id="mining",
        prompt="",
        repo=str(repo),
        base=base,
        setup=recipe.setup,
        acceptance=acceptance(run, timeout),
    )


def acceptance(run: str, timeout: float) -> Acceptance:
    """How a command's results are read."""
    words = {part for word in shlex.split(run) for part in word.split("/")}
    report = next((glob for name, glob in _REPORTS.items() if words & {name, f"{name}w"}), None)
    return Acceptance(
        run=run, runner="junit" if report else runner_of(run), report=report, timeout=timeout
    )


def narrowed(environment: Environment, files: Sequence[str]) -> str:
    """The test command for some test files only; the whole one where the runner cannot."""
    words = runner_files(environment.runner, files)
    if environment.runner == "go":
        return environment.recipe.test.replace("./...", " ".join(words))
    return " ".join([environment.recipe.test, *map(shlex.quote, words)])


def selection(repo: Path, environment: Environment, candidate: Candidate) -> tuple[str, ...]:
    """Test files for a run of bearable length: those of the change, their kin, then quick ones."""
    stems = {Path(path).stem.strip("_") for path in candidate.source_files}
    chosen = dict.fromkeys(candidate.test_files)
    left = QUICK_SECONDS - sum(environment.files.get(path, 0.0) for path in chosen)
    # The environment was tried at another commit, which may have had other files.
    there = git(repo, "ls-tree", "-r", "-z", "--name-only", candidate.commit).split("\0")

    def distance(path: str) -> tuple[bool, float, str]:
        akin = any(stem and stem in Path(path).stem for stem in stems)
        return not akin, environment.files[path], path

    for path in sorted(environment.files.keys() & {*there}, key=distance):
        if path not in chosen and environment.files[path] <= left:
            chosen[path] = None
            left -= environment.files[path]
    return tuple(chosen)


def _environment(recipe: Recipe, run: TestRun) -> Environment:
    runner = acceptance(recipe.test, 1.0).runner
    files: dict[str, float] = {}
    for test in run.tests:
        for name in files_named((test.id,), runner):
            files[name] = files.get(name, 0.0) + (test.seconds or 0.0)
    ended = run.commands[0]
    seconds = None if ended.stopped else ended.seconds
    return Environment(recipe=recipe, runner=runner, seconds=seconds, files=files)


def _trouble(run: TestRun) -> str | None:
    """Why a run at an untouched commit shows that its environment is not right."""
    if run.trouble is not None:
        return run.trouble
    passed = sum(test.status == "passed" for test in run.tests)
    failed = sum(test.status in ("failed", "error") for test in run.tests)
    if passed and passed >= FEWEST_PASSING * (passed + failed):
        return None
    if run.commands[0].stopped and not run.tests:
        return None
    return f"{failed} of {passed + failed} tests fail ({_last_line(run.commands[0].output)})"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"
