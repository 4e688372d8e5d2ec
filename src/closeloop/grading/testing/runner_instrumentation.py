"""Recognise a test runner in a command and make it leave a report."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from typing import get_args

from closeloop.grading.testing.runner_reports import REPORTER_URL
from closeloop.records.record import Record
from closeloop.records.task import TestRunner

# Look into a shell line far enough to see which programs it starts.

_TOKEN = re.compile(
    r"""(?P<space>[ \t]+|\\\n)
    |(?P<comment>\#[^\n]*)
    |(?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\([^()]*\)|`[^`]*`|&>|[<>]&|[^\s;|&()'"\\`])+)
    |(?P<operator>&&|\|\||[;|&()\n])""",
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)""", re.DOTALL)


class ShellWord(Record):
    """A word of a shell line and where it stands in it."""

    text: str
    start: int
    end: int


def simple_commands(line: str) -> list[list[ShellWord]]:
    """The words of each simple command; [] when the line cannot be understood."""
    commands: list[list[ShellWord]] = [[]]
    place = 0
    while place < len(line):
        token = _TOKEN.match(line, place)
        if token is None:
            return []
        place = token.end()
        if token["word"] is not None:
            text = _QUOTED.sub(lambda quoted: next(filter(None, quoted.groups()), ""), token[0])
            commands[-1].append(ShellWord(text=text, start=token.start(), end=token.end()))
        elif token["operator"] is not None:
            commands.append([])
    return [words for words in commands if words]


_RUNNER_BY_PROGRAM: dict[str, TestRunner] = {
    "pytest": "pytest",
    "py.test": "pytest",
    "unittest": "unittest",
    "jest": "jest",
    "vitest": "vitest",
    "mocha": "mocha",
    "--test": "node",
    "go": "go",
    "cargo": "cargo",
}
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*|coverage")
_SHELL_LAUNCHERS = (
    "env",
    "time",
    "timeout",
    "nice",
    "exec",
    "command",
    "nohup",
    "stdbuf",
    "xvfb-run",
)
_SCRIPT_RUNNERS = ("npm", "pnpm", "yarn", "bun")
_ENVIRONMENT_LAUNCHERS = (
    "uv",
    "uvx",
    "poetry",
    "pdm",
    "pipenv",
    "hatch",
    "rye",
    "conda",
    "mamba",
    "pixi",
)
_LAUNCHERS = frozenset(
    {
        *_SHELL_LAUNCHERS,
        *_SCRIPT_RUNNERS,
        *_ENVIRONMENT_LAUNCHERS,
        "node",
        "npx",
        "bunx",
        "micromamba",
    }
)
_NODE_OPTION = re.compile(r"-[rC]|--(?:require|import|loader|experimental-loader|conditions)")
_ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)


class RunnerReport(Record):
    """Where one runner of a command leaves its results."""

    runner: TestRunner
    path: str | None
    """None: in the command's output."""


class InstrumentedCommand(Record):
    """A test command that leaves reports."""

    command: str
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    """What must be there before it runs: path → text."""
    reports: tuple[RunnerReport, ...] = ()
    """None for JUnit XML, which is looked for after the run."""


class RunnerCall(Record):
    """A test runner that a shell line starts."""

    runner: TestRunner
    words: tuple[ShellWord, ...]
    at: int
    """Which word names the runner, or its `test` command."""


def detect_runner(command: str) -> TestRunner | None:
    """The first test runner that a shell line is seen to start."""
    return next((hit.runner for hit in runner_calls(command)), None)


def instrument_command(command: str, runner: TestRunner | None, folder: str) -> InstrumentedCommand:
    """The command changed so that each of its runners reports into the folder, as it sees it.

    Runners that report by what they print do so straight into `folder/output`: a pipe behind
    them might keep only the last lines.
    """
    if runner == "junit":
        return InstrumentedCommand(command=command)
    hits = [hit for hit in runner_calls(command) if runner in (None, hit.runner)]
    if not hits:
        return _instrument_hidden_runner(command, runner, folder)
    reports, insertions = [], list[tuple[int, str]]()
    for number, hit in enumerate(hits, 1):
        path = f"{folder}/report-{number}"
        insertions += _build_insertions(hit, path, f"{folder}/output")
        in_output = hit.runner in ("unittest", "go", "cargo")
        reports.append(RunnerReport(runner=hit.runner, path=None if in_output else path))
    for place, text in reversed(insertions):
        command = command[:place] + text + command[place:]
    files = _runner_files(folder, {hit.runner for hit in hits})
    return InstrumentedCommand(command=command, files=files, reports=tuple(reports))


def add_runner_arguments(command: str, runner: TestRunner, arguments: str) -> str | None:
    """The command with arguments for each of its calls of a runner; None where none is seen."""
    hits = [hit for hit in runner_calls(command) if hit.runner == runner]
    for hit in reversed(hits):
        place = _options_end(hit.words[hit.at :])
        command = f"{command[:place]} {arguments}{command[place:]}"
    return command if hits else None


def find_python_command(command: str) -> str | None:
    """How a command starts Python, up to `-m unittest`: variables, launchers, interpreter."""
    for hit in runner_calls(command):
        if hit.runner == "unittest" and hit.words[hit.at - 1].text == "-m":
            return command[hit.words[0].start : hit.words[hit.at - 1].start].rstrip()
    return None


def runner_calls(command: str) -> list[RunnerCall]:
    """Every test runner that a shell line is seen to start, in order."""
    calls = (_find_runner_call(words) for words in simple_commands(command))
    return [hit for hit in calls if hit is not None]


def _find_runner_call(words: list[ShellWord]) -> RunnerCall | None:
    """The runner of a simple command, behind assignments and launchers."""
    is_launched = False
    for at, word in enumerate(words):
        name = word.text.rsplit("/", 1)[-1]
        runner = _RUNNER_BY_PROGRAM.get(name)
        if runner is not None and _is_runner(runner, words, at):
            place = _subcommand_index(words, at) if runner in ("go", "cargo") else at
            return RunnerCall(runner=runner, words=tuple(words), at=place)
        if not is_launched and not _ASSIGNMENT.fullmatch(word.text):
            if name not in _LAUNCHERS and not _PYTHON.fullmatch(name):
                return None
            is_launched = True
    return None


def _is_runner(runner: TestRunner, words: list[ShellWord], at: int) -> bool:
    """Whether a word that looks like a runner is one: `go test`, `-m unittest`, `node --test`."""
    before = [word.text.rsplit("/", 1)[-1] for word in words[:at]]
    if runner == "node":
        return _is_node_option(before)
    if runner in ("go", "cargo"):
        following = _subcommand_index(words, at)
        return following < len(words) and words[following].text in ("test", "t")
    if runner == "unittest" or (before[-1:] == ["run"] and set(_SCRIPT_RUNNERS) & set(before)):
        return before[-1:] == ["-m"]
    python = any(_PYTHON.fullmatch(name) for name in before)
    return not python or before[-1] == "-m" or "/" in words[at].text


def _is_node_option(before: list[str]) -> bool:
    """Whether what follows these words goes to Node, not to a script that it runs."""
    start = next((at for at, name in enumerate(before) if name in ("node", "tsx")), len(before))
    return start < len(before) and all(
        name.startswith("-") or _NODE_OPTION.fullmatch(last)
        for last, name in pairwise(before[start:])
    )


def _subcommand_index(words: list[ShellWord], at: int) -> int:
    """Where the subcommand stands: behind a toolchain such as `+nightly`."""
    following = at + 1
    while following < len(words) and words[following].text.startswith("+"):
        following += 1
    return following


def _build_insertions(hit: RunnerCall, path: str, output: str) -> list[tuple[int, str]]:
    """What to add, and where, in the order of the places."""
    arguments, last = _report_arguments(hit.runner, path), hit.words[-1].end
    if hit.runner in ("pytest", "jest", "vitest", "mocha"):
        return [(_options_end(hit.words[hit.at :]), f" {arguments}")]
    if hit.runner == "node":
        node_command = " ".join(word.text for word in hit.words)
        return [(hit.words[hit.at].end, f" {arguments}{_node_reporter_options(node_command)}")]
    redirection = f" >>{shlex.quote(output)} 2>&1"
    if hit.runner == "unittest":
        return [(last, f" {arguments}{redirection}")]
    if any(word.text == arguments for word in hit.words):
        return [(last, redirection)]
    return [(hit.words[hit.at].end, f" {arguments}"), (last, redirection)]


def _node_reporter_options(command: str) -> str:
    """What Node wants to be told of where it prints, once there is a second reporter."""
    if "--test-reporter-destination" in command:
        return ""
    reporter = "" if "--test-reporter" in command else " --test-reporter=spec"
    return f"{reporter} --test-reporter-destination=stdout"


def _options_end(words: tuple[ShellWord, ...]) -> int:
    """Where options may be added: at the end, or before a lone `--`."""
    for before, word in pairwise(words):
        if word.text == "--":
            return before.end
    return words[-1].end


def _report_arguments(runner: TestRunner, path: str) -> str:
    quoted = shlex.quote(path)
    match runner:
        case "pytest":
            # Hidden tests may not load before the change; the others are to run all the same.
            report = f"--junitxml={quoted} -o junit_family=xunit1 --verbosity=1"
            return f"{report} --continue-on-collection-errors"
        case "jest":
            # A list takes all words behind it, so that another option must follow.
            hiding = shlex.quote(_hiding_option(path.rpartition("/")[0]))
            return f"--json --reporters=default {hiding} --outputFile={quoted}"
        case "vitest":
            return f"--reporter=default --reporter=json --outputFile.json={quoted}"
        case "mocha":
            # The last reporter counts. Before 9.2, it prints its report all the same.
            return f"--reporter json --reporter-option output={quoted}"
        case "node":
            return f"--test-reporter={REPORTER_URL} --test-reporter-destination={quoted}"
        case "go":
            return "-json"
        case "cargo":
            return "--no-fail-fast"
        case _:
            return "-v"


def write_hiding_script(option: str, before: int, count: int) -> str:
    """JavaScript that takes an option of ours, and those beside it, from the process's arguments.

    Jest loads its reporters before any test, and tests get a copy of `process` as it is then: those
    that read the arguments find what the project gave, and not where we look.
    """
    place = f"process.argv.indexOf({json.dumps(option)})"
    return f"const at = {place}\nif (at > 0) process.argv.splice(at - {before}, {count})\n"


def _hiding_option(folder: str) -> str:
    return f"--reporters={folder}/reporter.cjs"


def _runner_files(folder: str, runners: set[TestRunner]) -> dict[str, str]:
    """A reporter of jest that reports nothing, and hides the four options that we add."""
    script = write_hiding_script(_hiding_option(folder), 2, 4)
    text = f"{script}module.exports = class {{}}\n"
    return {f"{folder}/reporter.cjs": text} if "jest" in runners else {}


def _instrument_hidden_runner(
    command: str, runner: TestRunner | None, folder: str
) -> InstrumentedCommand:
    """A command that hides its runner, such as `make test`: what the environment can ask for."""
    path = f"{folder}/report-1"
    if runner in ("jest", "vitest", "mocha"):
        instrumented = add_script_arguments(command, _report_arguments(runner, path))
        return InstrumentedCommand(
            command=instrumented,
            files=_runner_files(folder, {runner}),
            reports=(RunnerReport(runner=runner, path=path),),
        )
    if runner == "node":
        options = {"NODE_OPTIONS": f"{_report_arguments(runner, path)}{_node_reporter_options('')}"}
        return InstrumentedCommand(
            command=command, env=options, reports=(RunnerReport(runner=runner, path=path),)
        )
    reports = tuple(
        RunnerReport(runner=name, path=None) for name in get_args(TestRunner) if name == runner
    )
    if runner in (None, "pytest"):
        reports = (RunnerReport(runner="pytest", path=path),)
    return InstrumentedCommand(
        command=command, env={"PYTEST_ADDOPTS": _report_arguments("pytest", path)}, reports=reports
    )


def add_script_arguments(command: str, arguments: str) -> str:
    """The last script that the line runs, given arguments: `npm test -- --json`."""
    scripts = [words for words in simple_commands(command) if words[0].text in _SCRIPT_RUNNERS]
    if not scripts:
        return command
    words = scripts[-1]
    is_direct = words[0].text == "yarn" or any(word.text == "--" for word in words)
    end = words[-1].end
    return f"{command[:end]}{'' if is_direct else ' --'} {arguments}{command[end:]}"
