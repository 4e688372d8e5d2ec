"""Judge a tool by how it ended before the change and after it.

One table for tests, linters, type checkers, builds and the project's own commands. A tool passes
only if it is shown to be no worse than before.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

import msgspec

from closeloop.grading.suite_run import (
    NO_TEST_RAN,
    RunnerCall,
    ShellWord,
    add_runner_arguments,
    add_script_arguments,
    detect_runner,
    find_options_end,
    runner_calls,
)
from closeloop.records.attempt import TestRun
from closeloop.records.change import Change, GatePolicy, ToolOutcome, ToolRun
from closeloop.records.errors import BadInput
from closeloop.records.task import Task, TestRunner
from closeloop.text.patches import parse_patch
from closeloop.text.wording import compile_lazily, escape_glob

# The paths that changes, patches and test ids name.


def changed_paths(change: Change) -> list[str]:
    """Return every path that a change touches, including the old path of a renamed file."""
    paths = (path for file in change.files for path in (file.path, file.old_path))
    return list(dict.fromkeys(path for path in paths if path is not None))


def parse_change(patch: str | None) -> Change | None:
    """Parse a patch; None if it is not one."""
    try:
        return parse_patch(patch or "")
    except BadInput:
        return None


def list_patch_paths(patch: str | None) -> list[str]:
    """Return every path that a patch touches; none if it is not a patch."""
    change = parse_change(patch)
    return changed_paths(change) if change else []


def with_failing_tests(task: Task, before: TestRun) -> Task:
    """Return the task with the files of failing tests protected, if it names no tests."""
    if task.acceptance.names_tests:
        return task
    failing_ids = (test.id for test in before.tests if test.status in ("failed", "error"))
    files = list_test_files(failing_ids, task.acceptance.runner)
    return msgspec.structs.replace(task, protected=tuple(dict.fromkeys((*task.protected, *files))))


def path_in_test_id(test: str) -> str:
    """Return the part of a test id before its name: a path, if the runner writes one there."""
    return re.split("::| > ", test, maxsplit=1)[0]


def list_test_files(tests: Iterable[str], runner: TestRunner | None) -> Iterator[str]:
    """Yield globs of the files that test ids name.

    Ids are `path.py::test`, `path.ts > suite > test` or `module.Class.test`. Ids of tests inside
    code are skipped, as that is not a test file: `billing::tests::rounds` of cargo, and
    `billing.py::billing.total`, a doctest.
    """
    for test in tests:
        file = path_in_test_id(test)
        if re.search(r"\.py::\w+(?:\.\w+)+$", test):
            continue
        if runner == "junit":
            yield f"**/{escape_glob(file.partition('$')[0]).replace('.', '/')}.*"
        elif re.search(r"\.\w+$" if file != test else r"\.(py|[cm]?[jt]sx?)$", file):
            yield escape_glob(file)
        elif dotted := re.fullmatch(r"(\w+(?:\.\w+)*)\.\w+\.\w+", test):
            yield f"**/{dotted[1].replace('.', '/')}.py"


ToolEnding = Literal[
    "passed", "failed", "no results", "inert", "timed out", "not set up", "machine trouble"
]
"""How a tool ended. `failed` means that it named failures or the tests that ran."""
EndingComparison = Literal["by name", "no worse", "same", "broken", "unknown"]
"""`by name`: failures and tests are compared one by one. `same`: as red as without the change."""

# fmt: off
_COMPARISONS: dict[ToolEnding, tuple[EndingComparison, ...]] = {
    # rows: the ending before the change; columns: the ending after it:
    #    passed      failed     no results  inert      timed out  not set up  machine
    "passed": (
        "by name",  "by name", "broken",   "broken",  "broken",  "broken",   "unknown"),
    "failed": (
        "by name",  "by name", "broken",   "broken",  "broken",  "broken",   "unknown"),
    "no results": (
        "no worse", "unknown", "same",     "unknown", "broken",  "broken",   "unknown"),
    "inert": (
        "no worse", "unknown", "unknown",  "same",    "broken",  "broken",   "unknown"),
    "timed out": (
        "no worse", "unknown", "unknown",  "unknown", "same",    "broken",   "unknown"),
    "not set up": (
        "no worse", "unknown", "unknown",  "unknown", "broken",  "same",     "unknown"),
    "machine trouble": (
        "no worse", "unknown", "unknown",  "unknown", "unknown", "unknown",  "unknown"),
}
# fmt: on


def compare_endings(before: ToolEnding, after: ToolEnding) -> EndingComparison:
    """Return the table's entry for how a tool ended before and after the change."""
    return _COMPARISONS[before][get_args(ToolEnding).index(after)]


def tool_outcome(run: ToolRun) -> ToolOutcome:
    """Return a run's outcome; for a stored report without one, derive it from the states."""
    if run.outcome is not None:
        return run.outcome
    if run.broke:
        return "broken"
    if run.after in ("passed", run.before):
        return "no worse"
    return "unknown" if run.before is None else "broken"


def is_blocked_by(run: ToolRun, gate: GatePolicy) -> bool:
    """Return whether a tool closes the gate.

    It does if it is not shown to be no worse, with `strict` also if it did not pass, and with
    `informational` never.
    """
    if gate == "informational":
        return False
    return tool_outcome(run) != "no worse" or (gate == "strict" and run.after != "passed")


# Whether any test checked the change: without that, nothing is verified.

NO_COMMAND_REASON = (
    "no test command is known; set one under [commands] in closeloop.toml: `closeloop init` "
    "writes what it found there, and how the command failed"
)
MAX_CAUSE_CHARS = 160
_MISSING_PROGRAM = re.compile(
    r"(?m)(?:^|: )([\w./+-]{1,80}): (?:command )?not found$"
    r"|^g?make(?:\[\d+\])?: ([\w./+-]{1,80}): No such file or directory$"
)
_NO_NETWORK = re.compile(
    r"(?i)could not resolve host|no such host|name resolution|getaddrinfo|network is unreachable"
)
_STATED_CAUSE = re.compile(r"(?m)^E {3}(\w+(?:\.\w+)*: \S.*)")
"""The exception that pytest shows."""
_MISSING_MODULE = re.compile(r"No module named '?([\w.]{1,80})")


def explain_unverified(runs: Sequence[ToolRun], rewritten: Sequence[str] = ()) -> str | None:
    """Return why no test could have found a defect, and what to do, or None if one could.

    Tests that the change itself chose prove little; `rewritten` are the commands it changed.
    """
    tests = [run for run in runs if is_test_run(run)]
    if not tests:
        return NO_COMMAND_REASON
    silent = [run for run in tests if is_silent_test(run)]
    if len(silent) == len(tests):
        return _explain_silence(silent[0])
    if rewritten:
        return (
            f"the change itself rewrites {' and '.join(rewritten)} in closeloop.toml; "
            "review that, or merge it separately first"
        )
    return None


def is_test_run(run: ToolRun) -> bool:
    """Return whether a tool runs tests, under whatever name."""
    return run.name == "test" or detect_runner(run.command) is not None


def is_silent_test(run: ToolRun) -> bool:
    """Return whether a tool is meant to run tests but ran none."""
    if not is_test_run(run) or run.after == "passed":
        return False
    if run.note == NO_TEST_RAN and not run.broke:
        return True  # What failed before too is a test file that cannot be loaded.
    return run.after != "failed" or not (run.ran or run.broke or run.already)


def find_missing_program(output: str) -> str | None:
    """Return the program that a shell or make did not find."""
    match = _MISSING_PROGRAM.search(output)
    return match[1] or match[2] if match else None


def advise_on_setup(output: str) -> str:
    """Return advice about a setup that fails."""
    missing = find_missing_program(output)
    if missing is None and _NO_NETWORK.search(output):
        return "setup needs the network: check the connection, then run the check again"
    if missing is None:
        return "correct commands.setup"
    return f"install {missing} in commands.setup first, as `closeloop init` proposes it"


def _explain_silence(run: ToolRun) -> str:
    missing = find_missing_program(run.output)
    module = _MISSING_MODULE.search(run.output)
    # Without the rules that pytest draws around its last line.
    lines = [text for line in run.output.splitlines() if (text := line.strip(" =\t"))]
    stated = _STATED_CAUSE.search(run.output)
    line = stated[1] if stated else lines[-1] if lines else ""
    cause = f" ({line[:MAX_CAUSE_CHARS]})" if line else ""
    if run.after == "timed out":
        return f"{run.name} timed out; raise check.timeout, or select fewer tests"
    if run.after == "machine trouble":
        return f"{run.name} had a machine failure ({run.note or 'unknown'}); run the check again"
    if run.after == "not set up":
        return f"the project cannot be set up{cause}; {advise_on_setup(run.output)}"
    if missing:
        return (
            f"`{missing}` is not installed where the tools run; install it in "
            f"commands.setup, or use another command than `{run.command}`"
        )
    if module and run.after == "failed":
        return (
            f"`{run.command}` found no module {module[1]}; install it in "
            "commands.setup, or use the project's own Python"
        )
    if run.after == "failed":
        return (
            f"{run.name} failed before any test ran{cause}; correct commands.test or commands.setup"
        )
    return f"`{run.command}` ran no test{cause}; set the command that does as commands.test"


# A test command that runs only some of its tests.


MAX_SELECTED = 50
_PYTEST_FLAG = compile_lazily(
    r"-[vqxsl]+|-r\w*|-[ckmnopW].+|--[\w-]+=.*|--(?:exitfirst|verbose|quiet|lf|ff|nf|showlocals"
    r"|disable-warnings|no-(?:header|summary)|strict(?:-markers|-config)?)",
    re.DOTALL,
)
"""An option without a separate value."""
_PYTEST_OPTION = compile_lazily(
    r"-[ckmnopW]|--(?:tb|maxfail|numprocesses|dist|durations|override-ini|import-mode|rootdir|color)"
)
"""An option whose value is the next word."""
_GO_FLAG = compile_lazily(r"--?(?:v|x|a|race|msan|asan|short|json|cover|failfast|fullpath|\w+=.*)")
_GO_TEST_NAME = compile_lazily(r"(?:Test|Example|Fuzz)(?![a-z])\w*")
_REGEX_SIGN = compile_lazily(r"[\\^$.*+?()\[\]{}|/]")
_SCRIPT_TITLE = " > "
"""Separator of the file, the describes and the name in the id of a JavaScript test."""


def select_tests(command: str, runner: TestRunner | None, tests: Sequence[str]) -> str | None:
    """Return a command that runs these tests, and as few others as its runner allows.

    None if it is not a single call of a known runner, or its options cannot be parsed. A runner
    that interprets the selection differently runs other tests, so the caller must check the ids.
    """
    calls, unique_tests = runner_calls(command), list(dict.fromkeys(tests))
    if not unique_tests or len(calls) > 1 or (calls and runner not in (None, calls[0].runner)):
        return None
    if calls and calls[0].runner == "pytest":
        return _select_pytest_tests(command, calls[0], unique_tests)
    if len(unique_tests) > MAX_SELECTED:
        return None
    if not calls:
        arguments = _script_selection(runner, unique_tests) if runner else None
        selected = add_script_arguments(command, arguments) if arguments else command
        return selected if selected != command else None
    call = calls[0]
    match call.runner:
        case "unittest":
            return _add_words(
                command, call, [part for test in unique_tests for part in ("-k", test)]
            )
        case "go":
            return _select_go_tests(command, call, unique_tests)
        case "cargo":
            return _select_cargo_tests(command, call, unique_tests)
        case "node":
            return _select_node_tests(command, call, unique_tests)
        case _:
            arguments = _script_selection(call.runner, unique_tests)
            is_filtered = any(re.match("-[tgf]|--(?:f?grep|testName)", w.text) for w in call.words)
            return (
                add_runner_arguments(command, call.runner, arguments)
                if arguments and not is_filtered
                else None
            )


def _select_pytest_tests(command: str, call: RunnerCall, tests: list[str]) -> str | None:
    """Select tests by id, or by file if there are many."""
    if not all("::" in test for test in tests):
        return None
    if len(tests) > MAX_SELECTED:
        tests = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    if len(tests) > MAX_SELECTED:
        return None
    place_words: list[ShellWord] = []
    words = iter(call.words[call.at + 1 :])
    for word in words:
        if not word.text.startswith("-"):
            place_words.append(word)
        elif _PYTEST_OPTION.fullmatch(word.text):
            next(words, None)  # its value
        elif not _PYTEST_FLAG.fullmatch(word.text):
            return None
    command = _cut_words(command, place_words)
    position = call.words[call.at].end
    return f"{command[:position]} {shlex.join(tests)}{command[position:]}"


def _script_selection(runner: TestRunner, tests: Sequence[str]) -> str | None:
    """Return arguments of jest, vitest or mocha: the names as a pattern, then the files.

    Files that the command itself names are run too, without their tests of other names.
    """
    parts = [test.partition(_SCRIPT_TITLE) for test in tests]
    if runner not in ("jest", "vitest", "mocha") or not all(title for _, _, title in parts):
        return None
    names = "|".join(
        # A title may contain the separator of titles.
        _escape_pattern(title).replace(_SCRIPT_TITLE, "(?: > | )")
        for _, _, title in parts
    )
    paths = list(dict.fromkeys(path for path, _, _ in parts))
    match runner:
        case "jest":
            return shlex.join(["-t", f"^(?:{names})$", *map(_escape_pattern, paths)])
        case "vitest":
            return shlex.join(["-t", rf"^\s*(?:{names})$", *paths])
        case _:
            return shlex.join(["--grep", f"^(?:{names})$"])


def _escape_pattern(text: str) -> str:
    """Escape a text for a regular expression of JavaScript."""
    return _REGEX_SIGN.sub(r"\\\g<0>", text)


def _select_node_tests(command: str, call: RunnerCall, tests: Sequence[str]) -> str | None:
    """Select tests for Node.

    Versions match the name, or all titles up to it, so describes must match too.
    """
    titles = [test.split(_SCRIPT_TITLE)[1:] for test in tests]
    if not all(titles) or any(word.text.startswith("--test-name") for word in call.words):
        return None
    names = dict.fromkeys(
        name
        for test_titles in titles
        for depth in range(1, len(test_titles) + 1)
        for name in (test_titles[depth - 1], " ".join(test_titles[:depth]))
    )
    pattern = f"--test-name-pattern=^(?:{'|'.join(map(_escape_pattern, names))})$"
    position = call.words[call.at].end
    return f"{command[:position]} {shlex.quote(pattern)}{command[position:]}"


def _select_go_tests(command: str, call: RunnerCall, tests: Sequence[str]) -> str | None:
    """Select packages by import path, and functions by name."""
    packages: dict[str, None] = {}
    names: dict[str, None] = {}
    for test in tests:
        parts = test.split("/")
        index = next(
            (index for index, part in enumerate(parts) if _GO_TEST_NAME.fullmatch(part)), 0
        )
        if not index:
            return None
        packages["/".join(parts[:index])] = names[parts[index]] = None
    package_words: list[ShellWord] = []
    words = iter(call.words[call.at + 1 :])
    for word in words:
        if word.text.lstrip("-").partition("=")[0] in ("args", "run", "skip"):
            return None
        if not word.text.startswith("-"):
            package_words.append(word)
        elif not _GO_FLAG.fullmatch(word.text):
            next(words, None)  # its value
    if any(re.search("[<>]", word.text) for word in package_words):
        return None
    selection = shlex.join(["-run", f"^(?:{'|'.join(names)})$", *packages])
    position = call.words[-1].end
    return _cut_words(f"{command[:position]} {selection}{command[position:]}", package_words)


def _select_cargo_tests(command: str, call: RunnerCall, tests: Sequence[str]) -> str | None:
    """Select tests by name without the target, which a name alone does not identify."""
    names = [test.partition("::")[2] for test in tests]
    if not all(re.fullmatch(r"[\w:]+", name) for name in names):
        return None  # a test in documentation
    dashes = "" if any(word.text == "--" for word in call.words) else "-- "
    position = call.words[-1].end
    return (
        f"{command[:position]} {dashes}--exact {' '.join(dict.fromkeys(names))}{command[position:]}"
    )


def _add_words(command: str, call: RunnerCall, words: Sequence[str]) -> str:
    position = find_options_end(call.words[call.at :])
    return f"{command[:position]} {shlex.join(words)}{command[position:]}"


def _cut_words(command: str, words: Sequence[ShellWord]) -> str:
    for word in reversed(words):
        command = command[: word.start] + command[word.end :]
    return command
