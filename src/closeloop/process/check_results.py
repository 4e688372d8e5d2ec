"""Whether a check passed, and what fails."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Literal

import msgspec
from ahocorasick_rs import AhoCorasick, Implementation

from closeloop.process import failure_collector, test_output
from closeloop.process.check_commands import shorten_target
from closeloop.process.failure_collector import (
    FailureCollector,
    OutputParser,
    is_same_message,
    normalise_output,
    strip_terminal_codes,
)
from closeloop.records.change import CheckFailures, CommandEffect, TraceCheck, TraceStep
from closeloop.records.record import Record
from closeloop.records.trace import Command
from closeloop.text.wording import compile_lazily

# A run's output: whether it is the same as before, and whether it reports success.


_OUTPUT_TAIL_CHARS = 2000
"""Characters at the end of an output that are compared."""
_MAX_OUTPUT_CHARS = 50_000
"""Longer outputs are not compared as a whole."""
_SUCCESS = compile_lazily(
    r"\b(?:all (?:\w+ )?(?:tests?|checks?|assertions?) pass|tests? pass(?:ed|es)?\b|passed\b"
    r"|success(?:ful(?:ly)?)?\b|succeeded\b|(?:is|was|has been|been) fixed\b|not reproduced\b"
    r"|works? (?:as expected|correctly|now|fine)|no (?:errors?|issues?|problems?)\b)"
    r"|^(?:ok|pass|correct|fixed|true|done)[.!]?$|[✓✔✅]",
    re.IGNORECASE | re.MULTILINE,
)
_COMPLAINT = compile_lazily(
    r"(?:[A-Z]\w*)?(?:Error|Exception|FAIL(?:ED|URE)?)\b *[:!]", re.IGNORECASE
)
"""A last line that begins like this contradicts the lines before it."""
_CLIENT_LINE = compile_lazily(
    r"^\[(?:Python [Ii]nterpreter|Command finished|The command|Current working directory).*\]?$"
    r"|^\[\d+\][+-]? +(?:Exit|Done|Terminated).*$|^[\w.-]+@[\w.-]+:\S* [#$] ?$",
    re.MULTILINE,
)
"""Lines that a client adds to a program's output."""
_PASSING = compile_lazily(
    r"\b0x[0-9a-f]{6,}|(?<=/tmp/)\w+|\b\d\d:\d\d:\d\d\b|\b\d+(?:\.\d+)? ?(?:ms|s|secs?|seconds?)\b"
)
"""Memory addresses, temporary paths, times of day and durations."""


def prints_same(first: TraceStep, second: TraceStep) -> bool:
    """Whether their outputs are equal except for times, addresses and the like."""
    before, after = _output_tail(first), _output_tail(second)
    return before == after or _normalise_tail(before) == _normalise_tail(after)


def prints_all_the_same(first: TraceStep, second: TraceStep) -> bool:
    """Whether their outputs are equal except for addresses and the clock: a date or a blank may be
    what the change is about.
    """
    before, after = _whole_output(first), _whole_output(second)
    if before is None or after is None:
        return False
    return before == after or _PASSING.sub("", before) == _PASSING.sub("", after)


def _whole_output(step: TraceStep) -> str | None:
    output = step.event.output if isinstance(step.event, Command) else None
    return output if output is not None and len(output) <= _MAX_OUTPUT_CHARS else None


def states_success(step: TraceStep) -> bool:
    """Whether the output reports success; no output does too, unless it failed."""
    text = _normalise_tail(_output_tail(step))
    if not text.strip():
        return step.failed is not True
    if step.failed is True or _COMPLAINT.match(text.rstrip().rpartition("\n")[2]):
        return False
    return _SUCCESS.search(text) is not None


def prints_nothing(step: TraceStep) -> bool:
    """Whether it ran, and neither it nor its children printed anything."""
    if not isinstance(step.event, Command) or step.event.output is None:
        return False
    text = _CLIENT_LINE.sub("", step.event.output[-_OUTPUT_TAIL_CHARS:])
    return not text.replace(step.event.command, "").strip()


def last_line(step: TraceStep) -> str:
    """Return its last line without volatile parts."""
    return _normalise_tail(_output_tail(step)).rstrip().rpartition("\n")[2]


def _output_tail(step: TraceStep) -> str:
    output = step.event.output if isinstance(step.event, Command) else None
    return (output or "")[-_OUTPUT_TAIL_CHARS:]


@lru_cache(maxsize=256)
def _normalise_tail(tail: str) -> str:
    return normalise_output(_CLIENT_LINE.sub("", tail))


# Which module reads which tool's output.

PARSERS_BY_NAME: dict[str, OutputParser] = {
    "pytest": test_output.PYTEST_OUTPUT,
    "unittest": test_output.UNITTEST_OUTPUT,
    "sympy": test_output.SYMPY_OUTPUT,
    "jest": test_output.JEST_OUTPUT,
    "vitest": test_output.VITEST_OUTPUT,
    "playwright": test_output.PLAYWRIGHT_OUTPUT,
    "mocha": test_output.MOCHA_OUTPUT,
    "tap": test_output.TAP_OUTPUT,
    "go": test_output.GO_OUTPUT,
    "cargo": test_output.CARGO_OUTPUT,
    "java": test_output.JAVA_OUTPUT,
    "ruby": test_output.RUBY_OUTPUT,
    "php": test_output.PHP_OUTPUT,
    "ctest": test_output.CTEST_OUTPUT,
    "junit-xml": failure_collector.JUNIT_XML_OUTPUT,
    "json": failure_collector.LINTER_JSON_OUTPUT,
    "places": failure_collector.SOURCE_PLACE_OUTPUT,
    "traceback": test_output.TRACEBACK_OUTPUT,
    "launch": failure_collector.LAUNCH_OUTPUT,
}
"""In the order in which they are tried on an unknown tool's output: more specific first."""

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
    """Return the parser's name for a tool such as `go test`; None for one that runs others."""
    first = tool.partition(" ")[0]
    return first if first in PARSERS_BY_NAME else _PARSER_BY_TOOL.get(first)


def recognise_parsers(text: str) -> list[str]:
    """Return the parsers whose marks occur in the output."""
    search, owners = _build_mark_search()
    marks = set(search.find_matches_as_strings("\n" + text, overlapping=True))
    if not marks:
        return []
    parser_names = {name for mark in marks for name in owners[mark]}
    return [name for name in PARSERS_BY_NAME if name in parser_names]


@cache
def _build_mark_search() -> tuple[AhoCorasick, dict[str, list[str]]]:
    """Build the search for all marks, and the parsers of each mark."""
    owners: dict[str, list[str]] = {}
    for name, parser in PARSERS_BY_NAME.items():
        for mark in parser.marks:
            owners.setdefault(mark, []).append(name)
    return AhoCorasick(list(owners), implementation=Implementation.DFA), owners


def run_parsers(text: str, names: Sequence[str], *, warnings: bool) -> CheckFailures | None:
    """Return what those parsers find together."""
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
    """Return what those parsers find, else the first other one that finds anything."""
    if failures := run_parsers(text, names, warnings=warnings):
        return failures
    for name in recognise_parsers(text):
        if name not in names and (failures := run_parsers(text, [name], warnings=warnings)):
            return failures
    return None


MAX_OUTPUT_CHARS = 200_000
"""Characters of an output that are examined: a quarter from its start, the rest from its end."""
NOTHING_RAN_CODES = {4: "its settings or arguments are wrong", 5: "no test ran"}
"""Exit codes of pytest for a failed start, and of unittest for no tests."""
_SHELL_CODES = {
    126: "its program cannot be executed",
    127: "its program is missing",
    130: "it was interrupted",
    137: "it was killed",
    143: "it was killed",
}

_PRINTED_EXIT_CODE = compile_lazily(
    r"(?:^|\n)(?:[^\n\d]{0,30}(?:exit|code|status|rc)[^\n\d]{0,12})?(\d{1,3})\s*\Z", re.IGNORECASE
)


def check_from_command(event: Command, effect: CommandEffect) -> TraceCheck | None:
    """Return the check of a command; None if it checks nothing."""
    if not effect.checks:
        return _check_from_results(event, effect)
    code = _known_exit_code(event, effect)
    if code == 0 and event.stopped is None:
        tail = (event.output or "")[-MAX_RESULT_CHARS:]
        blocked = find_nothing_ran(tail)
        if _only_runs_others(effect) and counts_failures(strip_terminal_codes(tail)):
            return _build_check(effect, False, _describe_failures(event.output or ""))
        return _build_check(effect, None if blocked else True, blocked=blocked)
    text = _cut_output(event.output or "")
    parsers = [find_parser_name(tool) for tool in effect.checks]
    names = list(dict.fromkeys(filter(None, parsers)))
    if blocked := _find_block(event, effect, code, names, text):
        return _build_check(effect, None, blocked=blocked)
    passed: bool | None = None
    failures: CheckFailures | None = None
    if code is None and _is_silent_pass(event, effect):
        passed = True
    elif code is None:
        passed, failures = _judge_output(
            text, names, recognise_parsers(text) if None in parsers else []
        )
    else:
        passed = False
        failures = find_failures(text, names) or failure_collector.failures_from_tail(text)
    if failures and failures.parser == "launch":
        missing = [key for key in failures.errors if key.endswith(": not found")]
        if len(missing) == len(failures.errors):
            return _build_check(effect, None, blocked=missing[0])
    return _build_check(effect, passed, failures)


def _describe_failures(output: str) -> CheckFailures:
    """Return the failures of an output of an unknown tool."""
    text = _cut_output(output)
    return find_failures(text, ()) or failure_collector.failures_from_tail(text)


def _only_runs_others(effect: CommandEffect) -> bool:
    """Whether its tools are scripts or task runners, which may hide the exit code of a test."""
    return all(find_parser_name(tool) is None for tool in effect.checks)


def _build_check(
    effect: CommandEffect,
    passed: bool | None,
    failures: CheckFailures | None = None,
    blocked: str | None = None,
) -> TraceCheck:
    return TraceCheck(
        tool=effect.checks[0],
        target=effect.target,
        passed=passed,
        failures=failures,
        blocked=blocked,
        folder=effect.folder,
    )


# A check that could not run is neither pass nor fail.

_COMPILED_PARSERS = frozenset(("places", "java", "go", "cargo"))
"""Their messages about modules are about the code."""
MAX_RESULT_CHARS = 3000
"""Characters at the end of an output that are searched for results, and why there are none."""
_TESTS_RAN = compile_lazily(
    r"(?<!Suites: )(?<!Files  )\b[1-9]\d* (?:passed|failed|passing|failing)\b|^Ran [1-9]"
    r"|^--- (?:FAIL|PASS)|^test result:.* [1-9]\d* (?:passed|failed)"
    r"|^(?:ok|FAIL)\s+\S+\s+[\d.(]|^[1-9]\d* examples?,"
    r"|^Tests run: [1-9]",
    re.MULTILINE,
)
_NOTHING_RAN = compile_lazily(
    r"\bno tests ran\b|^collected 0 items$|\bNo tests? (?:files? )?(?:were )?(?:found|executed)\b"
    r"|^Ran 0 tests|\[no test files\]|\[no tests to run\]|\bNo tests to run\b"
    r"|^Tests: +0 total|^ *Tests +no tests$|^running 0 tests$|^0 examples, 0 failures|^ +0 passing",
    re.MULTILINE | re.IGNORECASE,
)
_COLLECTION_ERROR = compile_lazily(
    r"Interrupted: \d+ errors? during collection|Error while loading conftest"
    r"|^E? *ImportError: Failed to import test module",
    re.MULTILINE,
)
_SETTINGS_ERROR = compile_lazily(
    r"^(?:pytest: |\S+ )?error: (?:unrecognized arguments|argument |the following arguments)"
    r"|^ERROR: (?:file or directory )?not found: |^ERROR: file or directory not found"
    r"|^INTERNALERROR>|ImproperlyConfigured: |AppRegistryNotReady: |\bMissing script: "
    r"|No rule to make target|: unrecognized option|: unknown option|unrecognized subcommand"
    r"|error: no such (?:command|subcommand)|ESLint couldn't find|could not find `Cargo.toml`"
    r"|go.mod file not found|go: cannot find main module|no Go files in"
    r"|Unsupported environment \(bad |Unsupported engine|Cannot find module 'node:"
    r"|^error: Could not resolve|Connection refused|: can't read file|^Usage: \w"
    r"|^Error: no test specified|: Could not resolve dependencies for project"
    r"|Could not resolve host|there is no POM in this directory|^Task '[^'\n]*' not found in "
    r"|open '[^'\n]*package\.json'|^Could not open input file: |Cannot connect to the Docker daemon"
    r"|error TS(?:18003|5058|5083): |^ruff failed$|^Failed to change working directory to"
    r"|does not contain main module or its"
    r"|npx canceled due to missing packages|could not find python interpreter with spec"
    r"|: error MSB1003: |^Command not found: |is not recognized as an internal or external command",
    re.MULTILINE,
)
_MISSING_MODULE = compile_lazily(
    r"^\S*(?:python\S*|pytest)\S*: No module named |^(?:E +)?ModuleNotFoundError: "
    r"|^Error: Cannot find module '|ERR_MODULE_NOT_FOUND|can't open file '",
    re.MULTILINE,
)


_TAIL_MARKS = {
    _NOTHING_RAN: (
        "no tests ran", "collected 0 items", "no tests found", "no test found", "no tests were",
        "no test files", "ran 0 tests", "no tests to run", "no tests executed", "tests:",
        "no tests", "running 0 tests", "0 examples", "0 passing",
    ),
    _COLLECTION_ERROR: ("during collection", "loading conftest", "failed to import test module"),
    _SETTINGS_ERROR: (
        "error: unrecognized", "error: argument", "error: the following", "not found: ",
        "directory not found", "internalerror>", "improperlyconfigured", "appregistrynotready",
        "missing script", "no rule to make", "unrecognized option", "unknown option",
        "unrecognized subcommand", "no such command", "no such subcommand", "couldn't find",
        "cargo.toml`", "go.mod file", "cannot find main module", "no go files", "unsupported en",
        "module 'node:", "could not resolve", "connection refused", "can't read file", "usage: ",
        "no test specified", "no pom in this", "' not found in ", "package.json'",
        "could not open input", "docker daemon", "error ts18003", "error ts5058", "error ts5083",
        "ruff failed", "failed to change working", "does not contain main module", "npx canceled",
        "could not find python", "msb1003", "command not found: ", "is not recognized as an",
    ),
    _MISSING_MODULE: (
        "no module named", "modulenotfounderror", "cannot find module", "err_module_not_found",
        "can't open file",
    ),
}  # fmt: skip
"""Lower-case words without which a pattern cannot match, as a quick filter."""


@cache
def _build_tail_search() -> tuple[AhoCorasick, list[re.Pattern[str]]]:
    """Build the search for all those words, and the pattern of each."""
    patterns = [pattern for pattern, marks in _TAIL_MARKS.items() for _ in marks]
    words = [mark for marks in _TAIL_MARKS.values() for mark in marks]
    return AhoCorasick(words, implementation=Implementation.DFA), patterns


def _search_tail(tail: str) -> set[re.Pattern[str]]:
    """Return the patterns that match the end of an output."""
    search, patterns = _build_tail_search()
    matches = search.find_matches_as_indexes(tail.lower(), overlapping=True)
    return {
        pattern for pattern in {patterns[index] for index, _, _ in matches} if pattern.search(tail)
    }


def find_nothing_ran(tail: str) -> str | None:
    """Return why an output without a failure is not a success either: no test ran."""
    if _NOTHING_RAN in _search_tail(tail) and not _TESTS_RAN.search(tail):
        return "no test ran"
    return None


def _find_block(
    event: Command, effect: CommandEffect, code: int | None, parsers: Sequence[str], text: str
) -> str | None:
    """Return why a check that did not pass could not run; None if it ran as far as known."""
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
    """Return the output's reason for having no result."""
    tail = text[-MAX_RESULT_CHARS:]
    patterns = _search_tail(tail)
    if _COLLECTION_ERROR in patterns or "Error while loading conftest" in text[:500]:
        return "its tests could not be collected"
    if not patterns or _TESTS_RAN.search(tail):
        return None
    if _NOTHING_RAN in patterns:
        return "no test ran"
    if _SETTINGS_ERROR in patterns:
        return "its settings or arguments are wrong"
    if _MISSING_MODULE in patterns and _COMPILED_PARSERS.isdisjoint(parsers):
        return "a module is missing"
    return None


# A command that prints test results is a check, whatever its name.

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
_PRINTED_RESULTS = compile_lazily(
    r"^Ran \d+ tests? in |^=+ [^\n]*\b\d+ (?:passed|failed|errors?)\b[^\n]*=$"
    r"|^(?:\d+ (?:failed|passed|skipped|errors?|warnings?)(?:, |))+(?: in [\d.]+ ?s.*)?$"
    r"|^Tests: +[^\n]*\b\d+ total|^test result: (?:ok|FAILED)|^(?:ok|FAIL)\t\S+\t[\d.]+s"
    r"|^ +\d+ passing \(|^ *Test Files +[^\n]*\d+ (?:passed|failed)|^\d+ examples?, \d+ failures?"
    r"|^--- FAIL: |^All (?:\d+ |the )?(?:\w+ )?tests? (?:have )?passed\b"
    r"|^\[ FAIL \d+ \| WARN \d+ \|[^\n]*\]"
    r"|^(\d+) ?(?:/|of) ?(\d+) (?:\w+ )?passed\b",
    re.MULTILINE | re.IGNORECASE,
)


_FAILURE_COUNT = compile_lazily(
    r"\b[1-9]\d* (?:failed|failures?|errors?)\b|\A(?:FAIL\t|--- FAIL|\[ FAIL [1-9])", re.IGNORECASE
)


def _check_from_results(event: Command, effect: CommandEffect) -> TraceCheck | None:
    """Recognise a run of something else, such as a script, whose output is that of tests."""
    if not event.output or not runs_program(effect):
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
        passed = event.exit_code == 0 and not counts_failures(tail)
        failures = None if passed else failure_collector.failures_from_tail(text)
    blocked = find_nothing_ran(tail)
    return TraceCheck(
        tool="printed results",
        target=shorten_target(" ".join(event.command.split())),
        passed=None if blocked else passed,
        failures=None if blocked else failures,
        blocked=blocked,
        folder=effect.folder,
    )


def counts_failures(tail: str) -> bool:
    """Whether the last line with results counts a failure, whatever the exit code is.

    Go prints a line for each package, of which any may fail.
    """
    results = list(_PRINTED_RESULTS.finditer(tail))
    if not results:
        return False
    passed, count = results[-1].groups()
    last_results = [result[0] for result in results if "\t" in result[0]] or [results[-1][0]]
    return passed != count or any(map(_FAILURE_COUNT.search, last_results))


LOOK_PROGRAMS = frozenset((
    "cd", "ls", "cat", "head", "tail", "sed", "nl", "grep", "rg", "ag", "find", "fd", "git",
    "echo", "pwd", "wc", "diff", "tree", "awk", "sort", "uniq", "rm", "mv", "cp", "mkdir",
    "touch", "which", "env", "export", "true", "false", "pip", "chmod", "stat", "file", "less",
    "more", "printf", "test", "xargs", "tee", "gh", "submit", "source", "set", "sleep", "date",
    "tar", "unzip", "apt", "apt-get", "brew", "cut", "tr", "kill", "ps",
))  # fmt: skip


def runs_program(effect: CommandEffect) -> bool:
    """Whether it runs something that does not only read files."""
    return any(name.partition(" ")[0] not in LOOK_PROGRAMS for name in effect.programs)


def _judge_output(
    text: str, parsers: list[str], other_parsers: list[str]
) -> tuple[bool | None, CheckFailures | None]:
    """Return the verdict and failures of a check without an exit code.

    The tool's summary decides, else what its output lists.
    """
    verdicts = {
        name: PARSERS_BY_NAME[name].read_verdict(text) for name in (*parsers, *other_parsers)
    }
    if False in verdicts.values():
        return False, find_failures(text, parsers) or failure_collector.failures_from_tail(text)
    if True in verdicts.values():
        # One tool passed; of the others that the command runs, none may list a failure.
        silent_parsers = [name for name in parsers if verdicts[name] is None]
        failures = run_parsers(text, silent_parsers, warnings=False)
        return failures is None, failures
    failures = find_failures(text, parsers, warnings=False)
    return (False if failures else None), failures


_SILENT_TOOLS = frozenset((
    "tsc", "vue-tsc", "eslint", "stylelint", "shellcheck", "flake8", "pycodestyle", "pydocstyle",
    "py_compile", "syntax", "gcc", "g++", "cc", "c++", "clang", "clang++", "rustc", "javac",
    "golangci-lint", "staticcheck", "yamllint",
))  # fmt: skip
"""Tools that print nothing if nothing is wrong."""
_SILENT_TARGETS = ("go vet", "go build")
_NO_OUTPUT = compile_lazily(
    r"\s*(?:Your command ran successfully and did not produce any output\.|\(no output\))?\s*"
)
"""What clients show instead of no output, whatever the exit code was."""
_ECHO_ON_SUCCESS = compile_lazily(r"&& *echo +(?:\"([^\"$`]+)\"|'([^']+)'|([\w .:!-]+))\s*\Z")


def _is_silent_pass(event: Command, effect: CommandEffect) -> bool:
    """Whether a tool that prints only what is wrong ran to its end and printed nothing."""
    if effect.masked or event.output is None or not _NO_OUTPUT.fullmatch(event.output):
        return False
    return _SILENT_TOOLS.issuperset(effect.checks) or effect.target.startswith(_SILENT_TARGETS)


def _echoes_success(event: Command) -> bool:
    """Whether the output ends with what `… && echo OK` prints if all before it passed."""
    echo = _ECHO_ON_SUCCESS.search(event.command)
    text = next(filter(None, echo.groups()), "").strip() if echo else ""
    return bool(text) and (event.output or "").rstrip().rpartition("\n")[2].strip() == text


def _known_exit_code(event: Command, effect: CommandEffect) -> int | None:
    if not effect.masked:
        is_ended = event.exit_code is None and event.stopped is None
        return 0 if is_ended and _echoes_success(event) else event.exit_code
    if "PIPESTATUS" in event.command or ("$?" in event.command and "|" not in event.command):
        # `pytest; echo "exit: $?"` prints the hidden exit code.
        match = _PRINTED_EXIT_CODE.search((event.output or "")[-200:])
        return int(match[1]) if match else None
    return None


def _cut_output(output: str) -> str:
    if len(output) > MAX_OUTPUT_CHARS:
        output = f"{output[: MAX_OUTPUT_CHARS // 4]}\n{output[-MAX_OUTPUT_CHARS * 3 // 4 :]}"
    return strip_terminal_codes(output)


# Which checks can be compared, and what changed from one to the next.
#
# Two checks of a lane are comparable when they exercise overlapping tests, or run the same
# program on the same targets in the same folder. Flags that select fewer tests or change the
# output do not make another check; another folder does.


FailureProgress = Literal["gone", "fewer", "different", "same", "unknown"]
"""What happened to failures by the next comparable check; unknown if it does not show that."""

_TWO_WORD_PROGRAMS = frozenset((
    "go", "cargo", "npm", "pnpm", "yarn", "bun", "node", "python", "bash", "sh", "zsh", "ruby",
    "php", "deno", "dotnet", "mix", "zig", "swift", "make", "rake", "just", "task", "nox", "mvn",
    "gradle", "manage.py", "setup.py", "rails", "bazel", "flutter", "dart", "composer", "tsx",
    "ts-node", "perl", "lua", "julia", "Rscript",
))  # fmt: skip
"""Programs whose next word says what they do."""
_QUOTING_SIGN = compile_lazily(r"[\"'\\]")
"""Without one, a line needs no parsing of quotations, which is slow."""
_OUTPUT_FILTERS = frozenset(("head", "tail", "grep", "egrep", "rg", "sed", "awk"))


class CheckScope(Record, gc=False):
    """The scope of one program of a check."""

    program: str
    places: frozenset[str]
    """Files, folders and test ids; empty is everything."""
    filters: frozenset[str]
    """Options that select among them: `-k total`."""


@lru_cache(maxsize=4096)
def parse_scopes(target: str) -> tuple[CheckScope, ...]:
    """Parse a check's target, program by program."""
    return tuple(_parse_scope(part) for part in target.split(" && ") if part)


def _parse_scope(part: str) -> CheckScope:
    try:
        words = shlex.split(part) if _QUOTING_SIGN.search(part) else part.split()
    except ValueError:
        words = part.split()
    count = 2 if words[0] in _TWO_WORD_PROGRAMS and words[1:2] and words[1][:1] != "-" else 1
    places, filters = set(), set()
    arguments = iter(words[count:])
    for word in arguments:
        if word[:1] != "-":
            places.add(word.removesuffix("...").removeprefix("./").rstrip("/"))
        elif len(word) == 2:
            value = next(arguments, "")
            if value not in (".", "tsconfig.json"):
                filters.add(f"{word} {value}")
        else:
            filters.add(word)
    if "" in places:
        places.clear()
    return CheckScope(
        program=" ".join(words[:count]), places=frozenset(places), filters=frozenset(filters)
    )


def find_comparable(check: TraceCheck, steps: Iterable[TraceStep]) -> Iterator[TraceStep]:
    """Yield the checks that are comparable with this one, in order.

    They run overlapping tests, or the same program on the same targets in the same folder.
    """
    folder, target, failures = check.folder, check.target, check.failures
    subject = _find_subject(target)
    keys = failures.errors.keys() if failures and failures.parser != "tail" else None
    for step in steps:
        other_check = step.check
        if other_check is None or (folder and other_check.folder and folder != other_check.folder):
            continue
        other_failures = other_check.failures
        # Cheap conditions first.
        if other_check.target == target or (
            keys
            and other_failures
            and not keys.isdisjoint(other_failures.errors)
            and other_failures.parser != "tail"
        ):
            yield step
            continue
        if failures and other_failures and _share_python_tests(failures, other_failures):
            yield step
            continue
        relation = _relate_subjects(subject, _find_subject(other_check.target))
        if relation == "overlapping" or (
            relation == "apart"
            and (_runs_tests_of(check, other_failures) or _runs_tests_of(other_check, failures))
        ):
            yield step


def _runs_tests_of(
    check: TraceCheck, failures: CheckFailures | None, *, all_of: bool = False
) -> bool:
    """The check runs tests that failed elsewhere, such as `pytest tests` after `make test`.

    `all_of`: without an option that selects among them, and each of them.
    """
    if failures is None:
        return False
    parser = find_parser_name(check.tool)
    if parser != failures.parser:
        if not {parser, failures.parser} <= _PYTHON_RUNNERS:
            return False
        return _runs_python_tests_of(check, failures, all_of=all_of)
    match = all if all_of else any
    return any(
        not (all_of and scope.filters)
        and (
            not scope.places
            or match(_is_named(key, failures, scope.places) for key in failures.errors)
        )
        for scope in parse_scopes(check.target)
    )


_PYTHON_RUNNERS = frozenset(("pytest", "unittest"))
"""Both run the same tests, which they name differently."""


def _runs_python_tests(first: CheckFailures, second: CheckFailures) -> bool:
    """Whether they are of the two runners of Python tests, one of each."""
    return first.parser != second.parser and {first.parser, second.parser} <= _PYTHON_RUNNERS


def _share_python_tests(first: CheckFailures, second: CheckFailures) -> bool:
    return _runs_python_tests(first, second) and not _python_tests(first).keys().isdisjoint(
        _python_tests(second)
    )


def _python_tests(failures: CheckFailures) -> dict[str, str]:
    """Return failures by dotted names: `tests/test_cart.py::Cart::test_total` as unittest does."""
    return {_dotted_name(key): message for key, message in failures.errors.items()}


def _dotted_name(name: str) -> str:
    path, _, test = name.partition("::")
    path = path.removesuffix(".py").replace("/", ".")
    return f"{path}.{test.replace('::', '.')}" if test else path


def _runs_python_tests_of(check: TraceCheck, failures: CheckFailures, *, all_of: bool) -> bool:
    match = all if all_of else any
    tests = _python_tests(failures)
    return any(
        not (all_of and scope.filters)
        and (
            not scope.places
            or match(
                any(_is_within(test, _dotted_name(place)) for place in scope.places)
                for test in tests
            )
        )
        for scope in parse_scopes(check.target)
    )


def _is_named(test: str, failures: CheckFailures, places: frozenset[str]) -> bool:
    """Whether the test, or the only file of the output if its id has no path, is in the places."""
    names = (test, *failures.paths) if len(failures.errors) == 1 else (test,)
    return any(_is_within(name, place) for name in names for place in places)


class _TargetSubject:
    """The subject of targets, whatever options select within it: few subjects stand for many
    targets.

    Compared by identity, because a lane's checks are compared with many others.
    """

    __slots__ = ("scopes",)

    def __init__(self, scopes: tuple[tuple[str, frozenset[str]], ...]) -> None:
        self.scopes = scopes


@lru_cache(maxsize=4096)
def _find_subject(target: str) -> _TargetSubject:
    return _keep_subject(tuple([(scope.program, scope.places) for scope in parse_scopes(target)]))


_keep_subject = lru_cache(maxsize=4096)(_TargetSubject)


@lru_cache(maxsize=1 << 14)
def _relate_subjects(
    first: _TargetSubject, second: _TargetSubject
) -> Literal["overlapping", "same program", "apart"]:
    shared = [
        _places_overlap(places, other_places)
        for program, places in first.scopes
        for other_program, other_places in second.scopes
        if program == other_program
    ]
    return "overlapping" if any(shared) else "same program" if shared else "apart"


def share_program(first: TraceCheck, second: TraceCheck) -> bool:
    """Whether they run the same program, possibly on other tests, so that one does not answer the
    other."""
    return _relate_subjects(_find_subject(first.target), _find_subject(second.target)) != "apart"


def covers_check(later: TraceCheck, earlier: TraceCheck) -> bool:
    """Whether the later one runs all that the earlier one ran, so that its pass answers for it."""
    return _target_contains(later.target, earlier.target)


@lru_cache(maxsize=1 << 14)
def _target_contains(wider: str, narrower: str) -> bool:
    return wider == narrower or all(
        any(
            wide_scope.program == narrow_scope.program
            and wide_scope.filters <= narrow_scope.filters
            and _places_contain(wide_scope.places, narrow_scope.places)
            for wide_scope in parse_scopes(wider)
        )
        for narrow_scope in parse_scopes(narrower)
    )


def compare_failures(earlier: TraceStep, later: TraceStep) -> FailureProgress:
    """Return what happened to the earlier check's failures, by a later comparable one that ran."""
    before, after = earlier.check, later.check
    assert before is not None, "both are checks"
    assert after is not None, "both are checks"
    assert before.failures is not None, "the earlier one failed"
    covers = covers_check(after, before)
    if after.passed:
        covers = covers or _runs_tests_of(after, before.failures, all_of=True)
        return "gone" if covers else "unknown"
    if after.failures is None or after.passed is None:
        return "unknown"
    if "tail" in (before.failures.parser, after.failures.parser):
        if same_failures(before.failures, after.failures):
            return "same"
        return "different" if is_same_line(earlier, later) else "unknown"
    if (hides_output(earlier) or hides_output(later)) and not is_same_line(earlier, later):
        # Truncated output may contain further failures.
        return "same" if _returns(before.failures, after.failures) else "unknown"
    return _compare_sets(before.failures, after.failures, covers=covers)


def _compare_sets(before: CheckFailures, after: CheckFailures, *, covers: bool) -> FailureProgress:
    if _runs_python_tests(before, after):
        before, after = (
            msgspec.structs.replace(failures, errors=_python_tests(failures), parser="pytest")
            for failures in (before, after)
        )
    if not covers:
        if before.errors.keys().isdisjoint(after.errors):
            return "unknown"
        return "same" if _returns(after, before) else "different"
    if _returns(before, after):
        return "same"
    return "fewer" if after.keys < before.keys else "different"


def same_failures(first: CheckFailures, second: CheckFailures) -> bool:
    """Whether the same things fail, in the same way as far as both say."""
    return first.errors.keys() == second.errors.keys() and _returns(first, second)


def _returns(failures: CheckFailures, later_failures: CheckFailures) -> bool:
    """Whether all of some are among the others, failing in the same way."""
    return all(
        key in later_failures.errors and is_same_message(message, later_failures.errors[key])
        for key, message in failures.errors.items()
    )


def hides_output(step: TraceStep) -> bool:
    """Whether its output was truncated or filtered, so that other failures may be hidden."""
    effect = step.effect
    return effect is not None and effect.masked and not _OUTPUT_FILTERS.isdisjoint(effect.programs)


def is_same_line(first: TraceStep, second: TraceStep) -> bool:
    """Whether the command's words are the same."""
    return (
        isinstance(first.event, Command)
        and isinstance(second.event, Command)
        and (
            first.event.command == second.event.command
            or first.event.command.split() == second.event.command.split()
        )
    )


def _places_overlap(first: frozenset[str], second: frozenset[str]) -> bool:
    if not first or not second or not first.isdisjoint(second):
        return True
    return any(
        _is_within(place, other_place) or _is_within(other_place, place)
        for place in first
        for other_place in second
    )


def _places_contain(wider: frozenset[str], narrower: frozenset[str]) -> bool:
    if not wider or wider == narrower:
        return True
    return bool(narrower) and all(
        any(_is_within(place, wider_place) for wider_place in wider) for place in narrower
    )


def _is_within(inner: str, outer: str) -> bool:
    return inner == outer or (inner.startswith(outer) and inner[len(outer)] in "/:.[")


MAX_CHECKS_AHEAD = 50
"""Checks after one that are tested for comparability."""


def find_next_comparable(
    checks: Sequence[TraceStep], index: int, *, ran: bool = True
) -> Iterable[TraceStep]:
    """Return the later checks that are comparable, in order; with `ran`, only those that ran."""
    check = checks[index].check
    assert check is not None, "it is a check"
    for step in find_comparable(check, checks[index + 1 : index + 1 + MAX_CHECKS_AHEAD]):
        if not ran or (step.check and step.check.passed is not None):
            yield step
