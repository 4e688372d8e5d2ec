"""Environments in which a commit's tests run: tried in turn, then shared by neighbours."""

from __future__ import annotations

import re
import shlex
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

import anyio
from msgspec.structs import replace

from closeloop.grading.suite_run import detect_runner, simple_commands
from closeloop.grading.task_proof import run_base_tests
from closeloop.grading.tool_outcomes import list_test_files
from closeloop.records.attempt import TestRun
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record, content_digest
from closeloop.records.task import Acceptance, Task, TestRunner
from closeloop.sandbox.workspaces import WorkspaceBase, WorkspacePool
from closeloop.tasks.candidate_builder import TaskCandidate, open_manifests, select_runner_files
from closeloop.tasks.setup_recipes import (
    ConfiguredCommands,
    Recipe,
    add_missing_packages,
    find_extra_packages,
    find_lacking_extras,
    find_named_packages,
    leave_out_requirement,
    list_recipes,
)
from closeloop.tasks.work_history import find_nearest_tag, find_words_at, list_files_at

QUICK_SECONDS = 15.0
"""A suite up to this many seconds runs whole; from a slower one, tests for about as long."""
TRIAL_SECONDS = 120.0
GLANCE_SECONDS = 3.0
"""Seconds of other tests to run, if the suite's duration is known from a neighbour."""
MIN_PASSING_SHARE = 0.5
MAX_TRIALS = 5
"""Maximum commits tried, since some commits' tests never pass: all recipes, then one each."""
MAX_NAMED_TESTS = 40
_OPTION_WITH_VALUE = re.compile(
    r"-[rRtugfsSC]|--(?:require|reporter|timeout|ui|grep|file|config|slow|spec|import|loader"
    r"|experimental-loader|conditions|test-(?:reporter|timeout|concurrency|name-pattern)[\w-]*)"
)
_ERROR_SIGNS = (
    re.compile(
        r"(?:\[ERROR\] |e: (?:file://)?)?[\w./-]{1,200}\.(?:go|java|kt|tsx?)"
        r"(?::\[?|\()\d{1,9}[:,]\d{1,9}[\])]?:? "
    ),
    # Resolvers print the reason after the error, option parsers after the usage line.
    re.compile(r"Because |Failed to (?:build|download|fetch)|\w{1,40}: error: "),
    re.compile(
        r"error: (?!subprocess-exited-with-error)|ERROR: (?!usage)|\[ERROR\] "
        r"|npm (?:ERR!|error) (?!code|path|command|errno|syscall|A complete log)"
    ),
    re.compile(
        r"E {3}(?! )|(?:\w{1,80}\.){0,6}[A-Z]\w{0,80}(?:Error|Exception|NotFound): |panic: "
        r"|Error: (?!Jest: Failed to parse)"
    ),
)
"""Prefixes of lines that state a cause, most specific first."""
_COLOUR_CODE = re.compile(r"\x1b\[[0-9;]*m")
_JUNIT_REPORTS = {
    "mvn": "**/target/surefire-reports/TEST-*.xml",
    "gradle": "**/build/test-results/**/TEST-*.xml",
}


class MiningEnvironment(Record):
    """A recipe that works, with the results of its first run."""

    recipe: Recipe
    runner: TestRunner | None
    seconds: float | None
    """Duration of the whole suite; None if it took too long to know."""
    files: dict[str, float]
    """Duration of each file's tests, for those that ran."""


class BrokenEnvironment(Record):
    """The result if no recipe works."""

    why: str
    made: tuple[Recipe, ...] = ()
    """Recipes that could be set up, though the commit's tests do not pass in them."""


class EnvironmentCache:
    """All environments tried in one mining run, by recipe: one serves many commits."""

    def __init__(self, workspaces: WorkspacePool, repo: Path, commands: ConfiguredCommands) -> None:
        self.workspaces = workspaces
        self.repo = repo
        self.known = commands
        self.made = 0
        """Number of environments set up."""
        self._found: dict[str, MiningEnvironment | BrokenEnvironment] = {}
        self._turns: dict[str, anyio.Lock] = {}
        self._trials = Counter[str]()

    async def find_environment(
        self, candidate: TaskCandidate
    ) -> MiningEnvironment | BrokenEnvironment:
        """Return the environment of a candidate's base; unknown ones are tried one at a time."""
        with open_manifests(self.repo, candidate.base) as folder:
            tag = find_nearest_tag(self.repo, candidate.base)
            candidate_recipes = list_recipes(folder, self.known, candidate.at, tag)
        key = content_digest(candidate_recipes)
        async with self._turns.setdefault(key, anyio.Lock()):
            earlier = self._found.get(key)
            prepared = earlier.made if isinstance(earlier, BrokenEnvironment) else ()
            if earlier is not None and not (prepared and self._trials[key] < MAX_TRIALS):
                return earlier
            self._trials[key] += 1
            environment = await self._try_recipes(prepared[:1] or candidate_recipes, candidate)
            if isinstance(earlier, BrokenEnvironment) and isinstance(
                environment, BrokenEnvironment
            ):
                environment = replace(earlier, made=(*prepared[1:], *prepared[:1]))
            self._found[key] = environment
        return environment

    async def open_base(self, environment: MiningEnvironment, commit: str) -> WorkspaceBase:
        return await self.workspaces.prepare_base(str(self.repo), commit, environment.recipe.setup)

    async def install_missing(
        self,
        environment: MiningEnvironment,
        candidate: TaskCandidate,
        output: str,
        complaints: Sequence[str] = (),
    ) -> tuple[MiningEnvironment, WorkspaceBase] | None:
        """Add what a candidate's tests lacked, from now on for its neighbours too."""
        with open_manifests(self.repo, candidate.commit) as folder:
            lacking_extras = find_lacking_extras(complaints, find_extra_packages(folder))
        recipe = add_missing_packages(
            environment.recipe,
            "\n".join((output, *complaints)),
            self._named_packages(candidate),
            lacking_extras,
        )
        if recipe is None:
            return None
        completed_environment = replace(environment, recipe=recipe)
        self.made += 1
        try:
            base = await self.open_base(completed_environment, candidate.base)
        except (BadInput, MachineFailed):
            return None
        self._found |= {
            key: completed_environment for key, value in self._found.items() if value == environment
        }
        return completed_environment, base

    def _named_packages(self, candidate: TaskCandidate) -> frozenset[str]:
        """Return packages that the project's files name, before or after the work."""
        packages = frozenset[str]()
        for commit in (candidate.base, candidate.commit):
            with open_manifests(self.repo, commit) as folder:
                packages |= find_named_packages(folder)
        return packages

    async def _try_recipes(
        self, recipes: Sequence[Recipe], candidate: TaskCandidate
    ) -> MiningEnvironment | BrokenEnvironment:
        """Return the first recipe with which all tests run, else the one with most passes."""
        packages = self._named_packages(candidate)
        recipe_by_trouble: dict[str, str] = {}  # why not, and the last recipe that failed this way
        best: tuple[int, MiningEnvironment] | None = None
        remaining, prepared = deque(recipes), list[Recipe]()
        while remaining:
            recipe = remaining.popleft()
            if recipe.last and best is not None:
                continue
            self.made += 1
            try:
                base = await self.workspaces.prepare_base(
                    str(self.repo), candidate.base, recipe.setup
                )
            except (BadInput, MachineFailed) as fault:
                recipe_by_trouble.setdefault(extract_error_line(str(fault)), recipe.how)
                if (reduced_recipe := self._leave_out(recipe, candidate, str(fault))) is not None:
                    remaining.appendleft(reduced_recipe)
                continue
            prepared += [recipe] if recipe in recipes else []
            neighbour = self._find_neighbour(recipe)
            line = self._quick_command(neighbour, candidate) if neighbour else recipe.test
            task = make_plain_task(self.repo, candidate.base, recipe, line, TRIAL_SECONDS)
            run = await run_base_tests(self.workspaces, base, task)
            if (
                extended_recipe := add_missing_packages(recipe, first_command_output(run), packages)
            ) is not None:
                remaining.appendleft(extended_recipe)
            if (trouble := _find_run_trouble(run)) is not None:
                recipe_by_trouble[trouble] = recipe.how
                continue
            environment = _environment_from_run(recipe, run)
            if neighbour is not None and line != recipe.test:
                files = neighbour.files | environment.files
                environment = replace(environment, seconds=neighbour.seconds, files=files)
            passed = sum(test.status == "passed" for test in run.tests)
            # A time limit that was too short is too short for other recipes too.
            if run.commands[0].stopped or all(test.status != "error" for test in run.tests):
                return environment
            if best is None or passed > best[0]:
                best = passed, environment
        reasons = [
            f"{recipe_name}: {trouble}" for trouble, recipe_name in recipe_by_trouble.items()
        ]
        reason = "; ".join(reasons) or "no test command was found"
        return best[1] if best else BrokenEnvironment(why=reason[:1000], made=tuple(prepared))

    def _leave_out(self, recipe: Recipe, candidate: TaskCandidate, output: str) -> Recipe | None:
        """Return the recipe without a requirement that cannot be installed here."""
        with open_manifests(self.repo, candidate.base) as folder:
            return leave_out_requirement(
                recipe,
                output,
                folder,
                lambda words: find_words_at(self.repo, candidate.base, words, _is_script_file),
            )

    def _find_neighbour(self, recipe: Recipe) -> MiningEnvironment | None:
        """Return another environment that runs its tests in the same way."""
        environments = (
            cached for cached in self._found.values() if isinstance(cached, MiningEnvironment)
        )
        return next(
            (environment for environment in environments if environment.recipe.test == recipe.test),
            None,
        )

    def _quick_command(self, environment: MiningEnvironment, candidate: TaskCandidate) -> str:
        """Return a command with enough tests to see that an environment works."""
        test_files = choose_test_files(
            self.repo, environment, candidate, candidate.base, GLANCE_SECONDS
        )
        return narrow_to_files(environment, test_files) if test_files else environment.recipe.test


def make_plain_task(repo: Path, base: str, recipe: Recipe, run: str, timeout: float) -> Task:
    """Build a task that only runs tests."""
    return Task(
        id="mining",
        prompt="",
        repo=str(repo),
        base=base,
        setup=recipe.setup,
        acceptance=acceptance_for_command(run, timeout),
    )


def acceptance_for_command(run: str, timeout: float) -> Acceptance:
    """Return how a command's results are parsed."""
    words = {part for word in shlex.split(run) for part in word.split("/")}
    report = next(
        (glob for name, glob in _JUNIT_REPORTS.items() if words & {name, f"{name}w"}), None
    )
    return Acceptance(
        run=run, runner="junit" if report else detect_runner(run), report=report, timeout=timeout
    )


def narrow_to_files(environment: MiningEnvironment, files: Sequence[str]) -> str:
    """Return the test command for some files only; the whole one if the runner cannot."""
    arguments = select_runner_files(environment.runner, files)
    line = environment.recipe.test
    if environment.runner == "go":
        return line.replace("./...", " ".join(arguments))
    if environment.runner == "unittest":
        # One pattern is enough; test names stay those of the full run.
        names = {Path(file).name for file in files}
        if len(names) == 1 and "discover" in line and not re.search(r"\.py\b| -p|--pattern", line):
            arguments = ("-p", *names)
    if environment.runner in ("mocha", "node") and arguments:
        line = _remove_test_paths(line)
    return " ".join([line, *map(shlex.quote, arguments)])


def _remove_test_paths(line: str) -> str:
    """Return a call of mocha or Node without its test paths."""
    words = [word for command in simple_commands(line) for word in command]
    runner_indexes = (
        index for index, word in enumerate(words) if re.fullmatch(r"(.*/)?mocha|--test", word.text)
    )
    for word_index in reversed(range(next(runner_indexes, len(words)) + 1, len(words))):
        word = words[word_index]
        if not word.text.startswith("-") and not _OPTION_WITH_VALUE.fullmatch(
            words[word_index - 1].text
        ):
            line = line[: words[word_index - 1].end] + line[word.end :]
    return line


def narrow_to_tests(
    environment: MiningEnvironment, files: Sequence[str], tests: Sequence[str]
) -> str:
    """Return the test command for some tests only; for their files if that is not possible."""
    names = dict.fromkeys(test.partition("[")[0] for test in tests)
    if environment.runner != "pytest" or len(names) > MAX_NAMED_TESTS:
        return narrow_to_files(environment, files)
    return " ".join([environment.recipe.test, *map(shlex.quote, names)])


def choose_test_files(
    repo: Path,
    environment: MiningEnvironment,
    candidate: TaskCandidate,
    commit: str,
    seconds: float = QUICK_SECONDS,
) -> tuple[str, ...]:
    """Choose test files for a run of limited length: the change's, related ones, then quick
    ones."""
    stems = {Path(path).stem.strip("_") for path in candidate.source_files}
    # The environment was tried at another commit, which may have had other files.
    commit_files = list_files_at(repo, commit)
    chosen_files = dict.fromkeys(path for path in candidate.test_files if path in commit_files)
    seconds_left = seconds - sum(environment.files.get(path, 0.0) for path in chosen_files)

    def distance(path: str) -> tuple[bool, float, str]:
        is_related = any(stem and stem in Path(path).stem for stem in stems)
        return not is_related, environment.files[path], path

    for path in sorted(environment.files.keys() & {*commit_files}, key=distance):
        if path not in chosen_files and environment.files[path] <= seconds_left:
            chosen_files[path] = None
            seconds_left -= environment.files[path]
    return tuple(chosen_files)


def _environment_from_run(recipe: Recipe, run: TestRun) -> MiningEnvironment:
    runner = acceptance_for_command(recipe.test, 1.0).runner
    files: dict[str, float] = {}
    for test in run.tests:
        for name in list_test_files((test.id,), runner):
            files[name] = files.get(name, 0.0) + (test.seconds or 0.0)
    test_command = run.commands[0]
    if test_command.stopped:
        # The remaining time of a run in progress is unknown.
        under_way = (test.id for test in run.tests if test.status == "error")
        for name in list_test_files(under_way, runner):
            files.pop(name, None)
    seconds = None if test_command.stopped else test_command.seconds
    return MiningEnvironment(recipe=recipe, runner=runner, seconds=seconds, files=files)


def first_command_output(run: TestRun) -> str:
    """Return the output of the test command."""
    return run.commands[0].output if run.commands else ""


def _find_run_trouble(run: TestRun) -> str | None:
    """Return why a run at an unchanged commit shows that its environment is broken."""
    if run.trouble is not None:
        return run.trouble
    passed = sum(test.status == "passed" for test in run.tests)
    failed = sum(test.status in ("failed", "error") for test in run.tests)
    if passed and passed >= MIN_PASSING_SHARE * (passed + failed):
        return None
    if run.commands[0].stopped and not run.tests:
        return None
    count = f"{failed} of {passed + failed} tests fail" if failed else "no test runs"
    return f"{count} ({extract_error_line(run.commands[0].output)})"


def _is_script_file(path: str) -> bool:
    """Return whether a file is code of JavaScript or TypeScript, or configures its tests."""
    return (
        re.search(r"\.(?:[cm]?[jt]sx?|vue|svelte)$|(?:^|/)\.(?:mocha|babel|swc)rc", path)
        is not None
    )


def extract_error_line(text: str) -> str:
    """Return the first line that states a cause; the last line if none looks like an error."""
    stripped_lines = (_COLOUR_CODE.sub("", line).strip(" ╰─▶│×\t") for line in text.splitlines())
    lines = [line.removeprefix("cause: ") for line in stripped_lines if line]
    for sign in _ERROR_SIGNS:
        for line in lines:
            if sign.match(line):
                return line[:200]
    return lines[-1][:200] if lines else "no output"
