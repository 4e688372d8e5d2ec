"""Whether a check passed, and what fails."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from ahocorasick_rs import AhoCorasick, Implementation

from closeloop.process.failures import javascript_output, python_output, runner_output, tool_output
from closeloop.process.failures.failure_collector import (
    FailureCollector,
    OutputParser,
    strip_terminal_codes,
)
from closeloop.process.shell.check_commands import shorten_target
from closeloop.records.inspection import (
    CheckFailures,
    CommandEffect,
    TraceCheck,
)
from closeloop.records.trace import (
    Command,
)

# Which module reads which tool's output.

PARSERS_BY_NAME: dict[str, OutputParser] = {
    "pytest": python_output.PYTEST_OUTPUT,
    "unittest": python_output.UNITTEST_OUTPUT,
    "jest": javascript_output.JEST_OUTPUT,
    "vitest": javascript_output.VITEST_OUTPUT,
    "playwright": javascript_output.PLAYWRIGHT_OUTPUT,
    "mocha": javascript_output.MOCHA_OUTPUT,
    "tap": javascript_output.TAP_OUTPUT,
    "go": runner_output.GO_OUTPUT,
    "cargo": runner_output.CARGO_OUTPUT,
    "java": runner_output.JAVA_OUTPUT,
    "ruby": runner_output.RUBY_OUTPUT,
    "php": runner_output.PHP_OUTPUT,
    "ctest": runner_output.CTEST_OUTPUT,
    "junit-xml": tool_output.JUNIT_XML_OUTPUT,
    "json": tool_output.LINTER_JSON_OUTPUT,
    "places": tool_output.SOURCE_PLACE_OUTPUT,
    "traceback": python_output.TRACEBACK_OUTPUT,
    "launch": tool_output.LAUNCH_OUTPUT,
}
"""In the order in which an unknown tool's output is tried: the more telling first."""

_TOOLS_BY_PARSER = {
    "unittest": "django nose nose2 nosetests runtests stestr trial",
    "pytest": "py.test",
    "mocha": "cypress",
    "tap": "ava node",
    "go": "gotestsum",
    "cargo": "clippy nextest",
    "java": "dotnet gradle gradlew maven mvn",
    "ruby": "minitest rails rake rspec",
    "php": "paratest pest phpunit",
    "ctest": "gtest",
    "traceback": "compileall py_compile",
    "places": (
        "basedpyright biome black c++ cc clang clang++ clang-tidy cppcheck dmypy eslint flake8 g++ "
        "gcc gfortran golangci-lint isort javac kotlinc mypy nvcc oxlint phpstan psalm pycodestyle "
        "pydocstyle pylint pyre pyrefly pyright revive rubocop ruff rustc scalac shellcheck "
        "standard staticcheck stylelint swiftc tsc tslint ty vue-tsc xo yamllint zig"
    ),
}
_PARSER_BY_TOOL = {tool: name for name, tools in _TOOLS_BY_PARSER.items() for tool in tools.split()}


def find_parser_name(tool: str) -> str | None:
    """The name of the parser for a tool such as `go test`; None for one that runs others."""
    first = tool.partition(" ")[0]
    return first if first in PARSERS_BY_NAME else _PARSER_BY_TOOL.get(first)


def recognise_parsers(text: str) -> list[str]:
    """The parsers whose marks the output bears."""
    search, owners = _build_mark_search()
    marks = set(search.find_matches_as_strings("\n" + text, overlapping=True))
    if not marks:
        return []
    parser_names = {name for mark in marks for name in owners[mark]}
    return [name for name in PARSERS_BY_NAME if name in parser_names]


@cache
def _build_mark_search() -> tuple[AhoCorasick, dict[str, list[str]]]:
    """What finds all marks at once, and whose each of them is."""
    owners: dict[str, list[str]] = {}
    for name, parser in PARSERS_BY_NAME.items():
        for mark in parser.marks:
            owners.setdefault(mark, []).append(name)
    return AhoCorasick(list(owners), implementation=Implementation.DFA), owners


def run_parsers(text: str, names: Sequence[str], *, warnings: bool) -> CheckFailures | None:
    """What those parsers find, together."""
    collector = FailureCollector()
    parser = ""
    for name in names:
        before = len(collector.errors)
        PARSERS_BY_NAME[name].collect_failures(text, collector)
        parser = parser or (name if len(collector.errors) > before else "")
    return collector.build_failures(parser or (names[0] if names else ""), warnings=warnings)


def find_failures(
    text: str, names: Sequence[str], *, warnings: bool = True
) -> CheckFailures | None:
    """What those parsers find; where that is nothing, the first other one that finds any."""
    if failures := run_parsers(text, names, warnings=warnings):
        return failures
    for name in recognise_parsers(text):
        if name not in names and (failures := run_parsers(text, [name], warnings=warnings)):
            return failures
    return None


MAX_OUTPUT_CHARS = 200_000
"""Characters of an output that are looked at: a quarter from its beginning, the rest its end."""
NOTHING_RAN_CODES = {4: "its settings or arguments are wrong", 5: "no test ran"}
"""Exit codes with which pytest says that it could not begin, unittest that nothing ran."""
_SHELL_CODES = {
    126: "its program cannot be executed",
    127: "its program is missing",
    130: "it was interrupted",
}

_PRINTED_EXIT_CODE = re.compile(
    r"(?:^|\n)(?:[^\n\d]{0,30}(?:exit|code|status|rc)[^\n\d]{0,12})?(\d{1,3})\s*\Z", re.IGNORECASE
)


def check_from_command(event: Command, doing: CommandEffect) -> TraceCheck | None:
    """None where the command checks nothing."""
    if not doing.checks:
        return _check_from_results(event, doing)
    code = _known_exit_code(event, doing)
    if code == 0 and event.stopped is None:
        blocked = find_nothing_ran((event.output or "")[-MAX_RESULT_CHARS:])
        return _build_check(doing, None if blocked else True, blocked=blocked)
    text = _cut_output(event.output or "")
    parsers = [find_parser_name(tool) for tool in doing.checks]
    names = list(dict.fromkeys(filter(None, parsers)))
    if blocked := _find_block(event, doing, code, names, text):
        return _build_check(doing, None, blocked=blocked)
    failures: CheckFailures | None = None
    if code is None:
        passed, failures = _judge_output(
            text, names, recognise_parsers(text) if None in parsers else []
        )
    else:
        passed = False
        failures = find_failures(text, names) or tool_output.failures_from_tail(text)
    if failures and failures.parser == "launch":
        missing = [key for key in failures.errors if key.endswith(": not found")]
        if len(missing) == len(failures.errors):
            return _build_check(doing, None, blocked=missing[0])
    return _build_check(doing, passed, failures)


def _build_check(
    doing: CommandEffect,
    passed: bool | None,
    failures: CheckFailures | None = None,
    blocked: str | None = None,
) -> TraceCheck:
    return TraceCheck(
        tool=doing.checks[0],
        target=doing.target,
        passed=passed,
        failures=failures,
        blocked=blocked,
        folder=doing.folder,
    )


# A check that could not run is neither pass nor fail.

_COMPILED_PARSERS = frozenset(("places", "java", "go", "cargo"))
"""What these say of modules is said of the code."""
MAX_RESULT_CHARS = 3000
"""So much of the end of an output is searched for results, and for why there are none."""
_TESTS_RAN = re.compile(
    r"\b[1-9]\d* (?:passed|failed|passing|failing)\b|^Ran [1-9]|^--- (?:FAIL|PASS)"
    r"|^test result:.* [1-9]\d* (?:passed|failed)|^(?:ok|FAIL)\s+\S+\s+[\d.(]|^[1-9]\d* examples?,"
    r"|^Tests run: [1-9]",
    re.MULTILINE,
)
_NOTHING_RAN = re.compile(
    r"\bno tests ran\b|^collected 0 items$|\bNo tests? (?:files? )?(?:were )?found\b|^Ran 0 tests"
    r"|\[no test files\]|\[no tests to run\]|\bNo tests (?:to run|executed)\b"
    r"|^Tests: +0 total|^running 0 tests$|^0 examples, 0 failures|^ +0 passing",
    re.MULTILINE | re.IGNORECASE,
)
_COLLECTION_ERROR = re.compile(
    r"Interrupted: \d+ errors? during collection|Error while loading conftest"
    r"|^E? *ImportError: Failed to import test module",
    re.MULTILINE,
)
_SETTINGS_ERROR = re.compile(
    r"^(?:pytest: |\S+ )?error: (?:unrecognized arguments|argument |the following arguments)"
    r"|^ERROR: (?:file or directory )?not found: |^ERROR: file or directory not found"
    r"|^INTERNALERROR>|ImproperlyConfigured: |AppRegistryNotReady: |\bMissing script: "
    r"|No rule to make target|: unrecognized option|: unknown option|unrecognized subcommand"
    r"|error: no such (?:command|subcommand)|ESLint couldn't find|could not find `Cargo.toml`"
    r"|go.mod file not found|go: cannot find main module|no Go files in"
    r"|Unsupported environment \(bad |Unsupported engine|Cannot find module 'node:"
    r"|^error: Could not resolve|Connection refused|: can't read file|^Usage: \w",
    re.MULTILINE,
)
_MISSING_MODULE = re.compile(
    r"^\S*(?:python\S*|pytest)\S*: No module named |^(?:E +)?ModuleNotFoundError: "
    r"|^Error: Cannot find module '|ERR_MODULE_NOT_FOUND|can't open file '",
    re.MULTILINE,
)


_TAIL_MARKS = {
    _NOTHING_RAN: (
        "no tests ran", "collected 0 items", "no tests found", "no test found", "no tests were",
        "no test files", "ran 0 tests", "no tests to run", "no tests executed", "tests:",
        "running 0 tests", "0 examples", "0 passing",
    ),
    _COLLECTION_ERROR: ("during collection", "loading conftest", "failed to import test module"),
    _SETTINGS_ERROR: (
        "error: unrecognized", "error: argument", "error: the following", "not found: ",
        "directory not found", "internalerror>", "improperlyconfigured", "appregistrynotready",
        "missing script", "no rule to make", "unrecognized option", "unknown option",
        "unrecognized subcommand", "no such command", "no such subcommand", "couldn't find",
        "cargo.toml`", "go.mod file", "cannot find main module", "no go files", "unsupported en",
        "module 'node:", "could not resolve", "connection refused", "can't read file", "usage: ",
    ),
    _MISSING_MODULE: (
        "no module named", "modulenotfounderror", "cannot find module", "err_module_not_found",
        "can't open file",
    ),
}  # fmt: skip
"""Words in small letters without which a pattern finds nothing: to look for them is quick."""


@cache
def _build_tail_search() -> tuple[AhoCorasick, list[re.Pattern[str]]]:
    """What finds all those words at once, and the pattern of each."""
    patterns = [pattern for pattern, marks in _TAIL_MARKS.items() for _ in marks]
    words = [mark for marks in _TAIL_MARKS.values() for mark in marks]
    return AhoCorasick(words, implementation=Implementation.DFA), patterns


def _search_tail(tail: str) -> set[re.Pattern[str]]:
    """Those of the patterns that the end of an output holds."""
    search, patterns = _build_tail_search()
    found = search.find_matches_as_indexes(tail.lower(), overlapping=True)
    return {one for one in {patterns[word] for word, _, _ in found} if one.search(tail)}


def find_nothing_ran(tail: str) -> str | None:
    """Why an output that is no failure is no success either: no test ran."""
    if _NOTHING_RAN in _search_tail(tail) and not _TESTS_RAN.search(tail):
        return "no test ran"
    return None


def _find_block(
    event: Command, doing: CommandEffect, code: int | None, parsers: Sequence[str], text: str
) -> str | None:
    """Why a check that did not pass could not run; None where it ran, as far as is known."""
    if event.stopped is not None:
        return f"it was stopped: {event.stopped}"
    if code in _SHELL_CODES:
        return _SHELL_CODES[code]
    if code == 124 and ("timeout" in event.command or "timed out" in text[-500:]):
        return "it was stopped by a time limit"
    if code in NOTHING_RAN_CODES and ("pytest" in parsers or "unittest" in parsers):
        return NOTHING_RAN_CODES[code]
    return _explain_no_result(parsers, text)


def _explain_no_result(parsers: Sequence[str], text: str) -> str | None:
    """What the output says of why there is no result."""
    tail = text[-MAX_RESULT_CHARS:]
    found = _search_tail(tail)
    if _COLLECTION_ERROR in found or "Error while loading conftest" in text[:500]:
        return "its tests could not be collected"
    if not found or _TESTS_RAN.search(tail):
        return None
    if _NOTHING_RAN in found:
        return "no test ran"
    if _SETTINGS_ERROR in found:
        return "its settings or arguments are wrong"
    if _MISSING_MODULE in found and _COMPILED_PARSERS.isdisjoint(parsers):
        return "a module is missing"
    return None


# A command that prints test results is a check, whatever it is called.

_RESULT_WORDS = (
    "passed",
    "failed",
    "Ran ",
    "passing",
    "test result: ",
    "ok\t",
    "FAIL",
    "examples,",
)
_PRINTED_RESULTS = re.compile(
    r"^Ran \d+ tests? in |^=+ [^\n]*\b\d+ (?:passed|failed|errors?)\b[^\n]*=$"
    r"|^(?:\d+ (?:failed|passed|skipped|errors?|warnings?)(?:, |))+(?: in [\d.]+ ?s.*)?$"
    r"|^Tests: +[^\n]*\b\d+ total|^test result: (?:ok|FAILED)|^(?:ok|FAIL)\t\S+\t[\d.]+s"
    r"|^ +\d+ passing \(|^ *Test Files +[^\n]*\d+ (?:passed|failed)|^\d+ examples?, \d+ failures?"
    r"|^--- FAIL: |^All (?:\d+ |the )?(?:\w+ )?tests? (?:have )?passed\b",
    re.MULTILINE | re.IGNORECASE,
)


def _check_from_results(event: Command, doing: CommandEffect) -> TraceCheck | None:
    """A run of something else, such as a script or a heredoc, whose output is that of tests."""
    if not event.output or not runs_program(doing):
        return None
    tail = event.output[-MAX_RESULT_CHARS:]
    if not any(word in tail for word in _RESULT_WORDS):
        return None
    tail = strip_terminal_codes(tail)
    if not _PRINTED_RESULTS.search(tail):
        return None
    text = _cut_output(event.output or "")
    passed, failures = _judge_output(text, [], recognise_parsers(text))
    if passed is None and event.exit_code is not None and event.stopped is None:
        passed = event.exit_code == 0
        failures = None if passed else tool_output.failures_from_tail(text)
    blocked = find_nothing_ran(tail)
    return TraceCheck(
        tool="printed results",
        target=shorten_target(" ".join(event.command.split())),
        passed=None if blocked else passed,
        failures=None if blocked else failures,
        blocked=blocked,
        folder=doing.folder,
    )


LOOK_PROGRAMS = frozenset((
    "cd", "ls", "cat", "head", "tail", "sed", "nl", "grep", "rg", "ag", "find", "fd", "git",
    "echo", "pwd", "wc", "diff", "tree", "awk", "sort", "uniq", "rm", "mv", "cp", "mkdir",
    "touch", "which", "env", "export", "true", "false", "pip", "chmod", "stat", "file", "less",
    "more", "printf", "test", "xargs", "tee", "gh", "submit", "source", "set", "sleep", "date",
    "tar", "unzip", "apt", "apt-get", "brew", "cut", "tr", "kill", "ps",
))  # fmt: skip


def runs_program(doing: CommandEffect) -> bool:
    """It runs something that is not only there to look at files."""
    return any(name.partition(" ")[0] not in LOOK_PROGRAMS for name in doing.programs)


def _judge_output(
    text: str, names: list[str], others: list[str]
) -> tuple[bool | None, CheckFailures | None]:
    """Where no exit code tells, a tool's own last words do, then what its output lists."""
    verdicts = {name: PARSERS_BY_NAME[name].read_verdict(text) for name in (*names, *others)}
    if False in verdicts.values():
        return False, find_failures(text, names) or tool_output.failures_from_tail(text)
    if True in verdicts.values():
        # One tool passed; of the others that the command runs, none may list a failure.
        silent = [name for name in names if verdicts[name] is None]
        failures = run_parsers(text, silent, warnings=False)
        return failures is None, failures
    failures = find_failures(text, names, warnings=False)
    return (False if failures else None), failures


def _known_exit_code(event: Command, doing: CommandEffect) -> int | None:
    if not doing.masked:
        return event.exit_code
    if "PIPESTATUS" in event.command or ("$?" in event.command and "|" not in event.command):
        # `pytest; echo "exit: $?"` prints what the mask hides.
        match = _PRINTED_EXIT_CODE.search((event.output or "")[-200:])
        return int(match[1]) if match else None
    return None


def _cut_output(output: str) -> str:
    if len(output) > MAX_OUTPUT_CHARS:
        output = f"{output[: MAX_OUTPUT_CHARS // 4]}\n{output[-MAX_OUTPUT_CHARS * 3 // 4 :]}"
    return strip_terminal_codes(output)
