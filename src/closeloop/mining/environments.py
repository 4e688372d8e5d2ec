"""Environments in which a commit's tests run: tried in turn, then shared by its neighbours."""

from __future__ import annotations

import re
import shlex
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

import anyio
from msgspec.structs import replace

from closeloop.mining.digging import manifests, runner_files
from closeloop.model.attempt import TestRun
from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.record import Record, digest
from closeloop.model.task import Acceptance, Runner, Task
from closeloop.runs.proof import prove_base
from closeloop.runs.protected import files_named
from closeloop.runs.testing.instrument import runner_of
from closeloop.runs.testing.shell import simple_commands
from closeloop.runs.workspaces import Base, Workspaces
from closeloop.tasks.mining.candidates import Candidate
from closeloop.tasks.mining.history import files_at, nearest_tag
from closeloop.tasks.mining.recipes import Configured, Recipe, recipes
from closeloop.tasks.mining.wanting import completed, packages_named

QUICK_SECONDS = 15.0
"""A suite that takes no longer runs whole; of a slower one, tests for about so long are chosen."""
TRIAL_SECONDS = 120.0
GLANCE_SECONDS = 3.0
"""Of tests beside the candidate's own, where the suite's length is known from a neighbour."""
FEWEST_PASSING = 0.5
MOST_TRIALS = 5
"""At several commits, as the tests of some may not pass anywhere: all recipes, then one a time."""
MOST_NAMED = 40
_OPTION = re.compile(
    r"-[rRtugfsSC]|--(?:require|reporter|timeout|ui|grep|file|config|slow|spec|import|loader"
    r"|experimental-loader|conditions|test-(?:reporter|timeout|concurrency|name-pattern)[\w-]*)"
)
_COMPILER = re.compile(
    r"(?:\[ERROR\] |e: (?:file://)?)?[\w./-]{1,200}\.(?:go|java|kt|tsx?)"
    r"(?::\[?|\()\d{1,9}[:,]\d{1,9}[\])]?:? "
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_REPORTS = {
    "mvn": "**/target/surefire-reports/TEST-*.xml",
    "gradle": "**/build/test-results/**/TEST-*.xml",
}


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
    made: tuple[Recipe, ...] = ()
    """What could be set up, though the tests of the commit do not pass in it."""


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
        self._trials = Counter[str]()

    async def of(self, candidate: Candidate) -> Environment | Broken:
        """The environment of a candidate's base; one at a time where it is not known yet."""
        with manifests(self.repo, candidate.base) as folder:
            tag = nearest_tag(self.repo, candidate.base)
            ways = recipes(folder, self.known, candidate.at, tag)
        key = digest(ways)
        async with self._turns.setdefault(key, anyio.Lock()):
            known = self._found.get(key)
            again = known.made if isinstance(known, Broken) else ()
            if known is not None and not (again and self._trials[key] < MOST_TRIALS):
                return known
            self._trials[key] += 1
            found = await self._first(again[:1] or ways, candidate)
            if isinstance(known, Broken) and isinstance(found, Broken):
                found = replace(known, made=(*again[1:], *again[:1]))
            self._found[key] = found
        return found

    async def base(self, environment: Environment, commit: str) -> Base:
        return await self.workspaces.base(str(self.repo), commit, environment.recipe.setup)

    async def completed(
        self, environment: Environment, candidate: Candidate, output: str
    ) -> tuple[Environment, Base] | None:
        """With what a candidate's tests lacked in it, from now on for its neighbours too."""
        recipe = completed(environment.recipe, output, self._packages(candidate))
        if recipe is None:
            return None
        better = replace(environment, recipe=recipe)
        self.made += 1
        try:
            base = await self.base(better, candidate.base)
        except (BadInput, MachineFailed):
            return None
        self._found |= {key: better for key, known in self._found.items() if known == environment}
        return better, base

    def _packages(self, candidate: Candidate) -> frozenset[str]:
        """What the project's own files name, before or after the work."""
        named = frozenset[str]()
        for commit in (candidate.base, candidate.commit):
            with manifests(self.repo, commit) as folder:
                named |= packages_named(folder)
        return named

    async def _first(self, ways: Sequence[Recipe], candidate: Candidate) -> Environment | Broken:
        """The first recipe with which all tests run, else the one with which most pass."""
        packages = self._packages(candidate)
        troubles: dict[str, str] = {}  # why not, and what was tried last that failed so
        best: tuple[int, Environment] | None = None
        left, made = deque(ways), list[Recipe]()
        while left:
            recipe = left.popleft()
            if recipe.last and best is not None:
                continue
            self.made += 1
            try:
                base = await self.workspaces.base(str(self.repo), candidate.base, recipe.setup)
            except (BadInput, MachineFailed) as fault:
                troubles[telling(str(fault))] = recipe.how
                continue
            made += [recipe] if recipe in ways else []
            known = self._neighbour(recipe)
            line = self._glance(known, candidate) if known else recipe.test
            task = plain_task(self.repo, candidate.base, recipe, line, TRIAL_SECONDS)
            run = await prove_base(self.workspaces, base, task)
            if (more := completed(recipe, first_output(run), packages)) is not None:
                left.appendleft(more)
            if (trouble := _trouble(run)) is not None:
                troubles[trouble] = recipe.how
                continue
            found = _environment(recipe, run)
            if known is not None and line != recipe.test:
                files = known.files | found.files
                found = replace(found, seconds=known.seconds, files=files)
            passed = sum(test.status == "passed" for test in run.tests)
            # Where time was too short, it is so for other recipes.
            if run.commands[0].stopped or all(test.status != "error" for test in run.tests):
                return found
            if best is None or passed > best[0]:
                best = passed, found
        told = [f"{how}: {why}" for why, how in troubles.items()]
        why = "; ".join(told) or "no command that runs its tests was found"
        return best[1] if best else Broken(why=why[:1000], made=tuple(made))

    def _neighbour(self, recipe: Recipe) -> Environment | None:
        """Another environment that runs its tests alike."""
        found = (one for one in self._found.values() if isinstance(one, Environment))
        return next((one for one in found if one.recipe.test == recipe.test), None)

    def _glance(self, known: Environment, candidate: Candidate) -> str:
        """Enough tests to see that an environment works."""
        chosen = selection(self.repo, known, candidate, candidate.base, GLANCE_SECONDS)
        return narrowed(known, chosen) if chosen else known.recipe.test


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
    line = environment.recipe.test
    if environment.runner == "go":
        return line.replace("./...", " ".join(words))
    if environment.runner == "unittest":
        # One pattern is all it takes; the names of tests stay those of the whole run.
        names = {Path(file).name for file in files}
        if len(names) == 1 and "discover" in line and not re.search(r"\.py\b| -p|--pattern", line):
            words = ("-p", *names)
    if environment.runner in ("mocha", "node") and words:
        line = _without_paths(line)
    return " ".join([line, *map(shlex.quote, words)])


def _without_paths(line: str) -> str:
    """Of a call of mocha or Node, what does not say where its tests are."""
    words = [word for command in simple_commands(line) for word in command]
    called = (at for at, word in enumerate(words) if re.fullmatch(r"(.*/)?mocha|--test", word.text))
    for at in reversed(range(next(called, len(words)) + 1, len(words))):
        word = words[at]
        if not word.text.startswith("-") and not _OPTION.fullmatch(words[at - 1].text):
            line = line[: words[at - 1].end] + line[word.end :]
    return line


def named(environment: Environment, files: Sequence[str], tests: Sequence[str]) -> str:
    """The test command for some tests only; for their files where that cannot be said."""
    names = dict.fromkeys(test.partition("[")[0] for test in tests)
    if environment.runner != "pytest" or len(names) > MOST_NAMED:
        return narrowed(environment, files)
    return " ".join([environment.recipe.test, *map(shlex.quote, names)])


def selection(
    repo: Path,
    environment: Environment,
    candidate: Candidate,
    commit: str,
    seconds: float = QUICK_SECONDS,
) -> tuple[str, ...]:
    """Test files for a run of bearable length: those of the change, their kin, then quick ones."""
    stems = {Path(path).stem.strip("_") for path in candidate.source_files}
    # The environment was tried at another commit, which may have had other files.
    there = files_at(repo, commit)
    chosen = dict.fromkeys(path for path in candidate.test_files if path in there)
    left = seconds - sum(environment.files.get(path, 0.0) for path in chosen)

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
    if ended.stopped:
        # What was under way then takes nobody knows how long.
        under_way = (test.id for test in run.tests if test.status == "error")
        for name in files_named(under_way, runner):
            files.pop(name, None)
    seconds = None if ended.stopped else ended.seconds
    return Environment(recipe=recipe, runner=runner, seconds=seconds, files=files)


def first_output(run: TestRun) -> str:
    """What the test command said."""
    return run.commands[0].output if run.commands else ""


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
    count = f"{failed} of {passed + failed} tests fail" if failed else "no test runs"
    return f"{count} ({telling(run.commands[0].output)})"


def telling(text: str) -> str:
    """The line that says why: resolvers give a reason first, most others last."""
    plain = (_COLOUR.sub("", line).strip(" ╰─▶│×\t") for line in text.splitlines())
    lines = [line for line in plain if line]
    for line in lines:
        if _COMPILER.match(line):
            return line[:200]
    for sign in ("Because ", "error: ", "ERROR: ", "[ERROR] "):
        for line in lines:
            if line.removeprefix("cause: ").startswith(sign):
                return line.removeprefix("cause: ")[:200]
    return lines[-1][:200] if lines else "it said nothing"
