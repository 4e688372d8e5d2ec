"""Run a task's tests in a sandbox and read the result of each test.

Reports are files in the workspace under a name that nobody can guess. A workspace file outlives its
command, even a killed one, and is read whole; printed output is stored only in part, and every
command has its own temporary folder.
"""

from __future__ import annotations

import difflib
import json
import re
import secrets
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, get_args

import anyio.to_thread

from closeloop.grading.runner_reports import (
    REPORTER_URL,
    SuiteReport,
    count_printed_passes,
    merge_suite_reports,
    read_cargo,
    read_go,
    read_jest,
    read_junit,
    read_mocha,
    read_node,
    read_pytest_report,
    read_pytest_text,
    read_unittest,
    shorten_message,
)
from closeloop.records.attempt import CommandResult, TestResult, TestRun
from closeloop.records.protocols import ProcessResult
from closeloop.records.record import Record
from closeloop.records.task import Acceptance, TestRunner
from closeloop.sandbox.workspace_sandbox import WorkspaceSandbox
from closeloop.text.wording import compile_lazily, matches_globs

# Recognise a test runner in a command and make it write a report.
#
# Parse a shell line far enough to see which programs it starts.

_TOKEN = compile_lazily(
    r"""(?P<space>[ \t]+|\\\n)
    |(?P<comment>\#[^\n]*)
    |(?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\([^()]*\)|`[^`]*`|&>|[<>]&|[^\s;|&()'"\\`])+)
    |(?P<operator>&&|\|\||[;|&()\n])""",
    re.VERBOSE | re.DOTALL,
)
_QUOTED = compile_lazily(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)""", re.DOTALL)


class ShellWord(Record):
    """A word of a shell line and its position."""

    text: str
    start: int
    end: int


def simple_commands(line: str) -> list[list[ShellWord]]:
    """Return the words of each simple command; [] if the line cannot be parsed."""
    commands: list[list[ShellWord]] = [[]]
    position = 0
    while position < len(line):
        token = _TOKEN.match(line, position)
        if token is None:
            return []
        position = token.end()
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
_PYTHON = compile_lazily(r"(?:python|pypy)[\d.]*|coverage")
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
_NODE_OPTION = compile_lazily(r"-[rC]|--(?:require|import|loader|experimental-loader|conditions)")
_ASSIGNMENT = compile_lazily(r"\w+=.*", re.DOTALL)


class RunnerReport(Record):
    """The location of one runner's results."""

    runner: TestRunner
    path: str | None
    """None: in the command's output."""


class InstrumentedCommand(Record):
    """A test command that writes reports."""

    command: str
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    """Files that must exist before it runs: path → text."""
    reports: tuple[RunnerReport, ...] = ()
    """Empty for JUnit XML, whose files are searched after the run."""


class RunnerCall(Record):
    """A test runner that a shell line starts."""

    runner: TestRunner
    words: tuple[ShellWord, ...]
    at: int
    """Index of the word that names the runner, or its `test` command."""


def detect_runner(command: str) -> TestRunner | None:
    """Return the first test runner that a shell line visibly starts."""
    return next((call.runner for call in runner_calls(command)), None)


def instrument_command(command: str, runner: TestRunner | None, folder: str) -> InstrumentedCommand:
    """Rewrite the command so that each of its runners reports into the folder.

    `folder` is the path as the command sees it. Runners that report by printing do so directly into
    `folder/output`: a following pipe might pass on only the last lines.
    """
    if runner == "junit":
        return InstrumentedCommand(command=command)
    calls = [call for call in runner_calls(command) if runner in (None, call.runner)]
    if not calls:
        return _instrument_hidden_runner(command, runner, folder)
    reports, insertions = [], list[tuple[int, str]]()
    for number, runner_call in enumerate(calls, 1):
        path = f"{folder}/report-{number}"
        insertions += _build_insertions(runner_call, path, f"{folder}/output")
        in_output = runner_call.runner in ("unittest", "go", "cargo")
        reports.append(RunnerReport(runner=runner_call.runner, path=None if in_output else path))
    for position, text in reversed(insertions):
        command = command[:position] + text + command[position:]
    files = _runner_files(folder, {call.runner for call in calls})
    return InstrumentedCommand(command=command, files=files, reports=tuple(reports))


def add_runner_arguments(command: str, runner: TestRunner, arguments: str) -> str | None:
    """Add arguments to each call of a runner in the command; None if there is none."""
    calls = [call for call in runner_calls(command) if call.runner == runner]
    for runner_call in reversed(calls):
        position = find_options_end(runner_call.words[runner_call.at :])
        command = f"{command[:position]} {arguments}{command[position:]}"
    return command if calls else None


def find_python_command(command: str) -> str | None:
    """Return how a command starts Python, up to `-m unittest`: variables, launchers,
    interpreter."""
    for call in runner_calls(command):
        if call.runner == "unittest" and call.words[call.at - 1].text == "-m":
            return command[call.words[0].start : call.words[call.at - 1].start].rstrip()
    return None


def find_python_script(command: str) -> str | None:
    """Return the script that a shell line runs with Python, if it does nothing else."""
    commands = simple_commands(command)
    is_plain = len(commands) == 1 and "PYTHONOPTIMIZE" not in command
    words = [word.text for word in commands[0]] if is_plain else []
    while words and _ASSIGNMENT.fullmatch(words[0]):
        del words[0]
    if len(words) < 2 or not re.fullmatch(r"python[\d.]*", words[0].rpartition("/")[2]):
        return None
    return words[1] if words[1].endswith(".py") and words[1][0] not in "-/" else None


def runner_calls(command: str) -> list[RunnerCall]:
    """Return every test runner that a shell line visibly starts, in order."""
    calls = (_find_runner_call(words) for words in simple_commands(command))
    return [call for call in calls if call is not None]


def _find_runner_call(words: list[ShellWord]) -> RunnerCall | None:
    """Return the runner of a simple command, after assignments and launchers."""
    is_launched = False
    for index, word in enumerate(words):
        name = word.text.rsplit("/", 1)[-1]
        runner = _RUNNER_BY_PROGRAM.get(name)
        if runner is not None and _is_runner(runner, words, index):
            runner_index = _subcommand_index(words, index) if runner in ("go", "cargo") else index
            return RunnerCall(runner=runner, words=tuple(words), at=runner_index)
        if not is_launched and not _ASSIGNMENT.fullmatch(word.text):
            if name not in _LAUNCHERS and not _PYTHON.fullmatch(name):
                return None
            is_launched = True
    return None


def _is_runner(runner: TestRunner, words: list[ShellWord], index: int) -> bool:
    """Return whether a word is really a runner: `go test`, `-m unittest`, `node --test`."""
    before = [word.text.rsplit("/", 1)[-1] for word in words[:index]]
    if runner == "node":
        return _is_node_option(before)
    if runner in ("go", "cargo"):
        following = _subcommand_index(words, index)
        return following < len(words) and words[following].text in ("test", "t")
    if runner == "unittest" or (before[-1:] == ["run"] and set(_SCRIPT_RUNNERS) & set(before)):
        return before[-1:] == ["-m"]
    python = any(_PYTHON.fullmatch(name) for name in before)
    return not python or before[-1] == "-m" or "/" in words[index].text


def _is_node_option(before: list[str]) -> bool:
    """Return whether the next word is an option of Node, not of a script that it runs."""
    start = next(
        (index for index, name in enumerate(before) if name in ("node", "tsx")), len(before)
    )
    return start < len(before) and all(
        name.startswith("-") or _NODE_OPTION.fullmatch(last)
        for last, name in pairwise(before[start:])
    )


def _subcommand_index(words: list[ShellWord], index: int) -> int:
    """Return the index of the subcommand, after a toolchain such as `+nightly`."""
    following = index + 1
    while following < len(words) and words[following].text.startswith("+"):
        following += 1
    return following


def _build_insertions(call: RunnerCall, path: str, output: str) -> list[tuple[int, str]]:
    """Return the texts to insert, with their positions, in order."""
    arguments, last = _report_arguments(call.runner, path), call.words[-1].end
    if call.runner in ("pytest", "jest", "vitest", "mocha"):
        return [(find_options_end(call.words[call.at :]), f" {arguments}")]
    if call.runner == "node":
        node_command = " ".join(word.text for word in call.words)
        return [(call.words[call.at].end, f" {arguments}{_node_reporter_options(node_command)}")]
    redirection = f" >>{shlex.quote(output)} 2>&1"
    if call.runner == "unittest":
        return [(last, f" {arguments}{redirection}")]
    if any(word.text == arguments for word in call.words):
        return [(last, redirection)]
    return [(call.words[call.at].end, f" {arguments}"), (last, redirection)]


def _node_reporter_options(command: str) -> str:
    """Return the reporter options that Node needs once there is a second reporter."""
    if "--test-reporter-destination" in command:
        return ""
    reporter = "" if "--test-reporter" in command else " --test-reporter=spec"
    return f"{reporter} --test-reporter-destination=stdout"


def find_options_end(words: tuple[ShellWord, ...]) -> int:
    """Return where options may be added: at the end, or before a lone `--`."""
    for before, word in pairwise(words):
        if word.text == "--":
            return before.end
    return words[-1].end


def _report_arguments(runner: TestRunner, path: str) -> str:
    quoted = shlex.quote(path)
    match runner:
        case "pytest":
            # Hidden tests may not load before the change; the others must run nevertheless.
            report = f"--junitxml={quoted} -o junit_family=xunit1 --verbosity=1"
            return f"{report} --continue-on-collection-errors"
        case "jest":
            # A list takes all following words, so another option must come next.
            hiding = shlex.quote(_hiding_option(path.rpartition("/")[0]))
            return f"--json --reporters=default {hiding} --outputFile={quoted}"
        case "vitest":
            return f"--reporter=default --reporter=json --outputFile.json={quoted}"
        case "mocha":
            # The last reporter counts. Before 9.2, it still prints its report.
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
    """Return JavaScript that removes our option, and those beside it, from the process's arguments.

    Jest loads its reporters before any test, and tests get a copy of `process` as it is then: tests
    that read the arguments see what the project gave, and not where we read the report.
    """
    option_index = f"process.argv.indexOf({json.dumps(option)})"
    return f"const at = {option_index}\nif (at > 0) process.argv.splice(at - {before}, {count})\n"


def _hiding_option(folder: str) -> str:
    return f"--reporters={folder}/reporter.cjs"


def _runner_files(folder: str, runners: set[TestRunner]) -> dict[str, str]:
    """Return a jest reporter that reports nothing and hides the four options that we add."""
    script = write_hiding_script(_hiding_option(folder), 2, 4)
    text = f"{script}module.exports = class {{}}\n"
    return {f"{folder}/reporter.cjs": text} if "jest" in runners else {}


def _instrument_hidden_runner(
    command: str, runner: TestRunner | None, folder: str
) -> InstrumentedCommand:
    """Instrument a command that hides its runner, such as `make test`, by environment variables."""
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
    """Pass arguments to the last package script that the line runs: `npm test -- --json`."""
    scripts = [words for words in simple_commands(command) if words[0].text in _SCRIPT_RUNNERS]
    if not scripts:
        return command
    words = scripts[-1]
    is_direct = words[0].text == "yarn" or any(word.text == "--" for word in words)
    end = words[-1].end
    return f"{command[:end]}{'' if is_direct else ' --'} {arguments}{command[end:]}"


# Run a task's tests in a sandbox and read the result of each test.
#
# Reports are files in the workspace under a name that nobody can guess. A workspace file outlives
# its command, even a killed one, and is read whole; printed output is stored only in part, and
# every command has its own temporary folder.


MAX_REPORT_BYTES = 32 << 20
MAX_REPORT_FILES = 2_000
MAX_OUTPUT_CHARS = 20_000
MIN_FREE_BYTES = 1 << 20
KILLED_EXIT_CODES = (137, -9)
TIMEOUT_CAUSES = ("out of time", "idle")
NOT_FOUND_EXIT_CODE = 127
HIDDEN_FAILURES = "tests failed, yet the test command exited with 0"

_OUTPUT_READERS = {"unittest": read_unittest, "go": read_go, "cargo": read_cargo}

RunMoment = Literal["before", "after"]


async def run_tests(sandbox: WorkspaceSandbox, acceptance: Acceptance, when: RunMoment) -> TestRun:
    """Run the tests, then the commands; no command if the tests could not run at all."""
    run = TestRun(when=when)
    if acceptance.run is not None:
        run = await _run_test_command(sandbox, acceptance, acceptance.run, when)
    results = list(run.commands)
    trouble = run.trouble
    for command in acceptance.commands:
        if trouble is None:
            process = await sandbox.run(command, seconds=acceptance.timeout)
            results.append(_build_command_result(command, process, process.output))
            trouble = await _find_machine_trouble(sandbox, results[-1])
    return TestRun(
        when=when,
        tests=run.tests,
        commands=tuple(results),
        trouble=trouble,
        ran=run.ran,
        notes=run.notes,
        printed_passes=run.printed_passes,
    )


async def _run_test_command(
    sandbox: WorkspaceSandbox, acceptance: Acceptance, command: str, when: RunMoment
) -> TestRun:
    folder = f".closeloop-{secrets.token_hex(16)}"
    if acceptance.runner == "junit":
        stale = await _list_report_files(sandbox, acceptance, folder)
        names = "\0".join(stale).encode("utf-8", "surrogateescape")
        await sandbox.run("xargs -0 rm -f --", stdin=names)
    plan = instrument_command(command, acceptance.runner, f"{sandbox.root}/{folder}")
    for path, text in plan.files.items():
        await sandbox.write(path.removeprefix(f"{sandbox.root}/"), text.encode())
    line = _redirect_output(plan.command, f"{sandbox.root}/{folder}")
    process = await sandbox.run(line, seconds=acceptance.timeout, env=plan.env)
    paths = [runner_report.path for runner_report in plan.reports if runner_report.path is not None]
    relative_paths = [path.removeprefix(f"{sandbox.root}/") for path in paths]
    printed, *contents = await sandbox.read_all(
        [f"{folder}/output", *relative_paths], MAX_REPORT_BYTES
    )
    output = await _read_output_end(sandbox, folder) if printed is None else printed
    if acceptance.runner == "junit":
        suite_report = await _read_junit(sandbox, acceptance, folder)
    else:
        content_by_path = dict(zip(paths, contents, strict=True))
        suite_report = await _read_reports(sandbox, acceptance, plan, content_by_path, output)
    result = _build_command_result(
        command, process, output.decode("utf-8", "replace") + process.output
    )
    trouble = await _find_machine_trouble(sandbox, result)
    if trouble is None and when == "before":
        trouble = _find_base_trouble(result)
    return TestRun(
        when=when,
        tests=suite_report.tests,
        commands=(result,),
        ran=suite_report.ran,
        notes=_build_notes(suite_report, result),
        trouble=trouble,
        printed_passes=count_printed_passes(output),
    )


def _redirect_output(command: str, folder: str) -> str:
    """Redirect all output to one file; if the shell can, a pipe fails with any of its parts."""
    pipes = "(set -o pipefail) 2>/dev/null && set -o pipefail"
    output = shlex.quote(f"{folder}/output")
    return f"mkdir -p -- {shlex.quote(folder)}\n{pipes}\n(\n{command}\n) >>{output} 2>&1"


async def _read_output_end(sandbox: WorkspaceSandbox, folder: str) -> bytes:
    path = shlex.quote(f"{sandbox.root}/{folder}/output")
    return (await sandbox.run(f"tail -c 200000 {path}")).output.encode()


async def _read_reports(
    sandbox: WorkspaceSandbox,
    acceptance: Acceptance,
    plan: InstrumentedCommand,
    contents: Mapping[str, bytes | None],
    output: bytes,
) -> SuiteReport:
    readings = [
        await anyio.to_thread.run_sync(
            _read_report, report, contents.get(report.path or ""), output, sandbox.root
        )
        for report in plan.reports
    ]
    reading = merge_suite_reports(readings)
    if reading.ran or acceptance.runner is not None or not plan.env:
        return reading
    return await anyio.to_thread.run_sync(_guess_report, output)


async def _read_junit(
    sandbox: WorkspaceSandbox, acceptance: Acceptance, folder: str
) -> SuiteReport:
    paths = await _list_report_files(sandbox, acceptance, folder)
    reports = [content or b"" for content in await sandbox.read_all(paths, MAX_REPORT_BYTES)]
    return await anyio.to_thread.run_sync(read_junit, reports)


def _read_report(
    report: RunnerReport, content: bytes | None, output: bytes, root: str
) -> SuiteReport:
    if report.runner == "pytest" and content is not None:
        return read_pytest_report(content, output)
    if report.runner == "pytest":
        printed_report = read_pytest_text(output)
        return SuiteReport(
            tests=printed_report.tests, ran=printed_report.ran, unread=printed_report.unread
        )
    if report.runner in ("jest", "vitest"):
        return read_jest(content or b"", root)
    if report.runner == "mocha":
        return read_mocha(content or output, root)
    if report.runner == "node":
        return read_node(content or b"", root)
    return _OUTPUT_READERS[report.runner](output)


def _guess_report(output: bytes) -> SuiteReport:
    """Read the output of a command whose runner is unknown."""
    for read_output in (read_pytest_text, read_unittest, read_cargo, read_go):
        reading = read_output(output)
        if reading.ran or reading.tests:
            return reading
    return SuiteReport()


async def _list_report_files(
    sandbox: WorkspaceSandbox, acceptance: Acceptance, folder: str
) -> list[str]:
    """Return the JUnit reports that are in the workspace now."""
    list_path = f"{folder}/files"
    await sandbox.write(list_path, b"")
    find = "find . -name .git -prune -o -type f -print0"
    await sandbox.run(f"{find} >{shlex.quote(f'{sandbox.root}/{list_path}')}")
    content = (await sandbox.read_all([list_path], MAX_REPORT_BYTES))[0] or b""
    paths = (path.decode("utf-8", "surrogateescape") for path in content.split(b"\0"))
    matching_paths = [
        path for path in paths if path and matches_globs(path, (acceptance.report or "",))
    ]
    return sorted(matching_paths)[:MAX_REPORT_FILES]


def _build_command_result(command: str, process: ProcessResult, output: str) -> CommandResult:
    return CommandResult(
        command=command,
        exit_code=process.exit_code,
        seconds=process.seconds,
        output=shorten_message(output, MAX_OUTPUT_CHARS) or "",
        stopped=process.stopped,
    )


NO_TEST_RAN = "no test ran"
"""Broken test files may be named as failures nevertheless."""


def _build_notes(reading: SuiteReport, result: CommandResult) -> tuple[str, ...]:
    """Return why this run cannot be called a pass, whatever the single tests say."""
    notes = []
    failed = any(test.status in ("failed", "error") for test in reading.tests)
    if result.stopped is not None:
        notes.append(f"the tests were stopped: {result.stopped}")
    elif not reading.ran:
        notes.append(NO_TEST_RAN)
    elif failed and result.exit_code == 0:
        notes.append(HIDDEN_FAILURES)
    elif not failed and result.exit_code != 0:
        notes.append(f"every test passed, yet the test command exited with {result.exit_code}")
    if reading.ran and not reading.complete and result.stopped is None:
        notes.append("the report of the tests is truncated")
    if reading.unread:
        notes.append(f"results that could not be read: {reading.unread}")
    return tuple(notes)


async def _find_machine_trouble(sandbox: WorkspaceSandbox, result: CommandResult) -> str | None:
    """Return what the machine did to a command; checked directly, as output may say anything."""
    if result.exit_code == 0 or result.stopped is not None:
        return None
    if not sandbox.has_free_disk(MIN_FREE_BYTES):
        return f"The disk was full while `{result.command}` ran; free some space and run again."
    if result.exit_code in KILLED_EXIT_CODES or result.exit_code is None:
        return f"The machine killed `{result.command}`; it may need more memory."
    return None


def _find_base_trouble(result: CommandResult) -> str | None:
    """Return what is wrong with the task rather than with a change.

    A timeout does not count, as the task may be about tests that hang.
    """
    if result.exit_code == NOT_FOUND_EXIT_CODE:
        last = result.output.strip().rpartition("\n")[2][:200]
        return f"`{result.command}` was not found ({last}); add what it needs to the task's setup."
    if result.stopped not in (None, *TIMEOUT_CAUSES):
        return f"`{result.command}` was stopped before any change: {result.stopped}."
    return None


# Judge the test runs before and after a change; nothing is run here.

MAX_NAMED = 3
"""Maximum number of items of a kind that are named; the rest is counted."""
MAX_ANSWER_CHARS = 100_000
FAILING_STATUSES = ("failed", "error")


class SuiteVerdict(Record):
    """The requirements, and the reasons why some are not met."""

    reasons: tuple[str, ...] = ()
    """Most informative first; empty if all requirements are met."""
    fail_to_pass: tuple[int, int] | None = None
    pass_to_pass: tuple[int, int] | None = None
    broken: tuple[str, ...] = ()


def judge_suite(
    acceptance: Acceptance,
    before: TestRun,
    after: TestRun,
    *,
    answer: str | None = None,
    flaky: Collection[str] = (),
) -> SuiteVerdict:
    """Judge whether a change meets the acceptance; without an answer, answers are not checked."""
    results = {test.id: test for test in after.tests}
    to_fix = [name for name in tests_to_fix(acceptance, before) if name not in flaky]
    to_keep = list_tests_to_keep(acceptance, before, flaky)
    unfixed = [name for name in to_fix if not _is_pass(results.get(name))]
    unloaded = (
        [] if acceptance.names_tests else _find_unloaded_tests(acceptance, before, after, flaky)
    )
    broken = [name for name in to_keep if not _is_pass(results.get(name))]
    known_tests = {*to_fix, *to_keep, *flaky}
    other_tests = (
        [] if acceptance.names_tests else [name for name in results if name not in known_tests]
    )
    failing = [name for name in other_tests if results[name].status in FAILING_STATUSES]
    reasons = [
        *(_explain_note(note, after) for note in after.notes if not after.ran),
        *_list_some(unfixed, lambda name: f"{name} {_describe_result(results.get(name))}"),
        *_list_some(
            unloaded, lambda name: f"{name} was an error before, and none of it passes now"
        ),
        *_list_some(
            broken, lambda name: f"{name} passed before and {_describe_result(results.get(name))}"
        ),
        *_list_some(failing, lambda name: f"{name} {_describe_result(results[name])}"),
        *_failed_commands(acceptance, after, flaky),
        *(note for note in after.notes if after.ran),
    ]
    if answer is not None and not matches_answer(acceptance, answer):
        reasons.append(f"the last message does not match `{acceptance.answer}`")
    return SuiteVerdict(
        reasons=tuple(reasons),
        fail_to_pass=(len(to_fix) - len(unfixed), len(to_fix)) if to_fix else None,
        pass_to_pass=(len(to_keep) - len(broken), len(to_keep)) if to_keep else None,
        broken=tuple(broken),
    )


def _explain_note(note: str, after: TestRun) -> str:
    """Return `no test ran: test.py: ModuleNotFoundError: No module named 'shop'`, if known."""
    error = next((test for test in after.tests if test.status == "error" and test.message), None)
    lines = ((error.message if error else None) or "").strip().splitlines()
    if note != NO_TEST_RAN or error is None or not lines:
        return note
    causes = [line[1:].strip() for line in lines if line.startswith("E ")]
    return f"{note}: {error.id}: {(causes or lines)[-1].strip()[:200]}"


def tests_to_fix(acceptance: Acceptance, before: TestRun) -> Sequence[str]:
    """Return the tests that the change must make pass."""
    if acceptance.names_tests:
        return acceptance.fail_to_pass
    # A test file that cannot be loaded is an error too, which disappears once it can.
    return [test.id for test in before.tests if test.status == "failed"]


def _find_unloaded_tests(
    acceptance: Acceptance, before: TestRun, after: TestRun, flaky: Collection[str]
) -> list[str]:
    """Return Python tests and test files that were errors before the change and do not pass now."""
    passed = [test.id for test in after.tests if test.status == "passed"]
    failing_or_flaky = {test.id for test in after.tests if test.status in FAILING_STATUSES} | {
        *flaky
    }
    errors = [test.id for test in before.tests if test.status == "error"]
    python = "unittest" in (acceptance.runner, *(acceptance.run or "").split())
    return [
        name
        for name in errors
        if name not in failing_or_flaky
        and (python or name.partition("::")[0].endswith(".py"))
        and not any(
            passed_name == name or passed_name.startswith((f"{name}::", f"{name}."))
            for passed_name in passed
        )
    ]


def list_tests_to_keep(
    acceptance: Acceptance, before: TestRun, flaky: Collection[str] = ()
) -> list[str]:
    """Return the tests that must keep passing: they always pass before the change."""
    unsteady_tests = {*flaky, *before.flaky, *acceptance.fail_to_pass}
    passed = [test.id for test in before.tests if test.status == "passed"]
    listed_tests = acceptance.pass_to_pass
    required_tests = set(passed if listed_tests is None else listed_tests)
    return [name for name in passed if name in required_tests and name not in unsteady_tests]


def matches_answer(acceptance: Acceptance, text: str) -> bool:
    """Return whether a last message matches the expected answer, if there is one."""
    return acceptance.answer is None or bool(re.search(acceptance.answer, text[:MAX_ANSWER_CHARS]))


def suggest_nearest(name: str, known_names: Iterable[str]) -> str:
    """Return ` Nearest: …`, or an empty text."""
    matches = difflib.get_close_matches(name, list(known_names)[:5_000], n=2, cutoff=0.5)
    return f" Nearest: {', '.join(matches)}." if matches else ""


def _is_pass(result: TestResult | None) -> bool:
    return result is not None and result.status == "passed"


def _describe_result(result: TestResult | None) -> str:
    if result is None:
        return "did not run"
    if result.status == "skipped":
        return "was skipped"
    message = (result.message or "").strip().partition("\n")[0][:200]
    return f"fails: {message}" if message else "fails"


def _list_some(names: Sequence[str], describe: Callable[[str], str]) -> list[str]:
    hidden_count = len(names) - MAX_NAMED
    lines = [describe(name) for name in names[:MAX_NAMED]]
    if hidden_count > 0:
        lines[-1] += f" (and {hidden_count} similar one{'s' if hidden_count > 1 else ''})"
    return lines


def _failed_commands(acceptance: Acceptance, after: TestRun, flaky: Collection[str]) -> list[str]:
    return [
        f"`{result.command}` {_describe_end(result.exit_code, result.stopped)}"
        for result in after.commands[acceptance.run is not None :]
        if (result.exit_code != 0 or result.stopped) and result.command not in flaky
    ]


def _describe_end(exit_code: int | None, stopped: str | None) -> str:
    return f"was stopped: {stopped}" if stopped else f"exited with {exit_code}"
