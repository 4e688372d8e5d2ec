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
NO_TESTS_EXIT_CODE = 5
"""The exit code of pytest and unittest when no test ran: neither a pass nor a failure."""

_PRINTED_EXIT_CODE = re.compile(
    r"(?:^|\n)(?:[^\n\d]{0,30}(?:exit|code|status|rc)[^\n\d]{0,12})?(\d{1,3})\s*\Z", re.IGNORECASE
)


def check_from_command(event: Command, doing: CommandEffect) -> TraceCheck | None:
    """None where the command checks nothing."""
    if not doing.checks:
        return None
    code = _known_exit_code(event, doing)
    if code == 0 and event.stopped is None:
        return TraceCheck(tool=doing.checks[0], target=doing.target, passed=True)
    text = _cut_output(event.output or "")
    parsers = [find_parser_name(tool) for tool in doing.checks]
    names = list(dict.fromkeys(filter(None, parsers)))
    failures: CheckFailures | None = None
    if event.stopped is not None:
        failures = find_failures(text, names, warnings=False)
        passed = False if failures else None
    elif code is None:
        passed, failures = _judge_output(
            text, names, recognise_parsers(text) if None in parsers else []
        )
    elif code == NO_TESTS_EXIT_CODE and ("pytest" in names or "unittest" in names):
        passed = None
    else:
        passed = False
        failures = find_failures(text, names) or tool_output.failures_from_tail(text)
    return TraceCheck(tool=doing.checks[0], target=doing.target, passed=passed, failures=failures)


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
