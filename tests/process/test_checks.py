"""When a check passed, when it failed, and when nobody can say."""

from __future__ import annotations

import pytest

from closeloop.process.check_results import check_from_command
from closeloop.records.change import CheckFailures, CommandEffect, TraceCheck
from closeloop.records.trace import Command

FAILING = (
    "FAILED a.py::test_x - assert 1 == 2\n"
    "=========================== 1 failed, 3 passed in 0.12s ===========================\n"
)
PASSING = "=========================== 4 passed in 0.12s ===========================\n"


def check(
    output: str | None,
    code: int | None,
    *tools: str,
    masked: bool = False,
    command: str = "x",
    stopped: str | None = None,
) -> TraceCheck:
    event = Command(
        number=1, lane="root", command=command, output=output, exit_code=code, stopped=stopped
    )
    made = check_from_command(
        event, CommandEffect(checks=tools or ("pytest",), target="t", masked=masked)
    )
    assert made is not None
    return made


def failures(output: str, tool: str = "pytest", code: int | None = 1) -> CheckFailures:
    told = check(output, code, tool).failures
    assert told is not None
    return told


def test_a_command_that_checks_nothing_is_no_check() -> None:
    event = Command(number=1, lane="root", command="ls", output="FAILED a.py::t", exit_code=1)
    assert check_from_command(event, CommandEffect(programs=("ls",))) is None


def test_an_exit_code_of_zero_is_a_pass_whatever_the_output_mentions() -> None:
    made = check(FAILING, 0)
    assert (made.passed, made.failures, made.tool, made.target) == (True, None, "pytest", "t")
    assert (
        check("ERROR: expected\nTraceback (most recent call last):\n", 0, "script").passed is True
    )


def test_another_exit_code_is_a_failure_whatever_the_output_says() -> None:
    made = check(PASSING, 1)
    assert made.passed is False
    assert made.failures is not None
    assert made.failures.parser == "tail"


@pytest.mark.parametrize("code", [None, 0, 1])
def test_where_the_exit_code_is_hidden_the_output_tells(code: int | None) -> None:
    assert check(PASSING, code, masked=True).passed is True
    failing = check(FAILING, code, masked=True)
    assert failing.passed is False
    assert failing.failures is not None
    assert failing.failures.keys == {"a.py::test_x"}
    assert check("tests/a.py ..", code, masked=True).passed is None
    assert check("", code, masked=True).passed is None
    assert check(None, code, masked=True).passed is None


def test_an_unknown_exit_code_is_never_zero() -> None:
    assert check("hello", None).passed is None
    assert check(None, None).passed is None
    assert check("FAILED a.py::test_x\n", None).passed is False


@pytest.mark.parametrize(
    ("tool", "output"),
    [
        ("pytest", "12 passed in 0.1s"),
        ("unittest", "Ran 3 tests in 0.1s\n\nOK"),
        ("jest", "Tests:       5 passed, 5 total"),
        ("go", "ok  \tpkg\t0.1s"),
        ("cargo", "test result: ok. 5 passed; 0 failed"),
        ("mypy", "Success: no issues found in 3 source files"),
        ("ruff", "All checks passed!"),
        ("pyright", "0 errors, 0 warnings, 0 informations"),
        ("npm", "> test\n> jest\n\nTest Suites: 1 passed, 1 total\nTests:       5 passed, 5 total"),
        ("make", "pytest -q\n....\n12 passed in 0.1s"),
    ],
)
def test_a_clear_summary_of_success_is_a_pass(tool: str, output: str) -> None:
    assert check(output, 0, tool, masked=True).passed is True


def test_a_traceback_in_a_log_does_not_undo_the_summary() -> None:
    log = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x\nValueError: x\n'
    assert check(log + PASSING, 0, masked=True).passed is True


def test_of_two_tools_one_that_lists_errors_is_enough_to_fail() -> None:
    made = check(
        "a.py:1:8: F401 `os` imported but unused\n" + PASSING, 0, "ruff", "pytest", masked=True
    )
    assert made.passed is False
    assert made.failures is not None
    assert made.failures.keys == {"a.py: F401 `os` imported but unused"}
    assert check("All checks passed!\n" + PASSING, 0, "ruff", "pytest", masked=True).passed is True
    assert check("All checks passed!\n" + FAILING, 0, "ruff", "npm", masked=True).passed is False


def test_warnings_alone_fail_a_check_only_by_its_exit_code() -> None:
    warning = "b.cpp:5:74: warning: unused variable [-Wunused-variable]\n"
    assert check(warning, 0, "g++", masked=True).passed is None
    made = check(warning, 1, "g++")
    assert made.failures is not None
    assert made.failures.parser == "places"


def test_what_a_log_did_not_find_is_no_failure() -> None:
    assert check("looking for header: not found\nbuilt\n", 0, "make", masked=True).passed is None


def test_no_tests_is_neither_a_pass_nor_a_failure() -> None:
    assert check("no tests ran in 0.00s", 5).passed is None
    assert check("no tests ran in 0.00s", None).passed is None
    assert check("Error: no go files", 5, "golangci-lint").passed is False


def test_a_check_that_a_limit_stopped_is_no_pass() -> None:
    assert check("....F... [ 50%]", None, stopped="out of time").passed is None
    assert check(PASSING, 0, stopped="out of time").passed is None
    stopped = check("a.py::test_x FAILED [ 10%]\n", None, stopped="out of time")
    assert (stopped.passed, stopped.blocked) == (None, "it was stopped: out of time")
    assert stopped.failures is None


@pytest.mark.parametrize(
    ("command", "output", "passed"),
    [
        ('make x; echo "exit: $?"', "odd\nexit: 2\n", False),
        ("make x; echo $?", "odd\n0\n", True),
        ("make x | tail -3; echo ${PIPESTATUS[0]}", "odd\n1\n", False),
        ("make x | tail -3; echo $?", "odd\n0\n", None),
        ("make x; echo $?", "odd in 0.5\n", None),
        ("make x; [ $? = 0 ] && date", "total: 5\n", None),
    ],
)
def test_an_exit_code_that_the_command_prints_is_known(
    command: str, output: str, passed: bool | None
) -> None:
    assert check(output, 0, "make", masked=True, command=command).passed is passed


def test_the_tool_under_a_runner_is_known_by_its_output() -> None:
    jest = "FAIL a.test.js\n  ● sum › adds\n\n    Error: x\n\nTests:       1 failed, 1 total\n"
    assert failures(jest, "npm").parser == "jest"
    assert failures(FAILING, "tox").parser == "pytest"
    assert (
        failures("a.c:2:10: error: no\nmake: *** [Makefile:5: a.o] Error 1\n", "make").parser
        == "places"
    )
    assert failures("make: *** [Makefile:5: a.o] Error 1\n", "make").parser == "launch"
    blocked = check("/bin/sh: 1: pytest: not found", 127)
    assert (blocked.passed, blocked.failures) == (None, None)
    assert blocked.blocked == "its program is missing"


def test_a_timing_on_the_first_line_does_not_hide_a_repeat() -> None:
    one = "ran in 0.12s at 10:11:12\nsomething odd happened\n"
    other = "ran in 3.4s at 11:12:13\nsomething odd happened\n"
    assert failures(one, "make").keys == failures(other, "make").keys
    assert failures(FAILING).errors == failures(FAILING.replace("0.12s", "9.1s")).errors


def test_another_failing_test_under_one_header_is_another_failure() -> None:
    runs = [failures(FAILING.replace("test_x", name)).keys for name in ("test_1", "test_2")]
    assert runs[0].isdisjoint(runs[1])


def test_colours_and_line_ends_change_nothing() -> None:
    coloured = FAILING.replace("FAILED", "\x1b[31mFAILED\x1b[0m").replace("\n", "\r\n")
    assert failures(coloured) == failures(FAILING)


def test_of_a_huge_output_its_beginning_and_its_end_are_read() -> None:
    text = "a.py::test_first FAILED\n" + "a.py::test_ok PASSED\n" * 100_000 + FAILING
    assert failures(text).keys == {"a.py::test_first", "a.py::test_x"}


@pytest.mark.parametrize(
    ("tool", "code", "output"),
    [
        (
            "mvn",
            1,
            "[ERROR] Failed to execute goal surefire:test: No tests were executed!  (Set …)",
        ),
        ("mvn", 1, "[ERROR] … requires a project to execute but there is no POM in this directory"),
        ("mvn", 1, "[ERROR] Failed: Could not resolve dependencies for project shop:shop:jar:1.0"),
        ("gradle", 1, "* What went wrong:\nTask 'integTest' not found in root project 'shop'."),
        ("npm", 1, '> echo "Error: no test specified" && exit 1\n\nError: no test specified'),
        ("npm", 254, "npm ERR! enoent ENOENT: no such file, open '/srv/shop/package.json'"),
        ("jest", 1, 'npm ERR! npx canceled due to missing packages: ["jest@29.7.0"]'),
        ("phpunit", 1, "Could not open input file: vendor/bin/phpunit"),
        ("pytest", 1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."),
        ("pytest", 1, "Command not found: pytest"),
        ("pytest", 1, "'pytest' is not recognized as an internal or external command,"),
        ("pytest", 137, "....Killed"),
        ("pytest", 143, "...."),
        ("tsc", 2, "error TS18003: No inputs were found in config file 'tsconfig.json'."),
        ("ruff", 2, "ruff failed\n  Cause: Failed to parse pyproject.toml"),
        (
            "cargo test",
            101,
            "error: failed to get `serde`\n  [6] Could not resolve host: crates.io",
        ),
        ("ctest", 1, "Failed to change working directory to /srv/shop/build : No such file"),
        ("go test", 1, "pattern ./...: directory prefix . does not contain main module or its …"),
        ("tox", 1, "py39: skipped because could not find python interpreter with spec(s): py39"),
        ("dotnet", 1, "MSBUILD : error MSB1003: Specify a project or solution file."),
    ],
)
def test_a_check_whose_output_says_why_nothing_ran_is_neither_pass_nor_failure(
    tool: str, code: int, output: str
) -> None:
    made = check(output, code, tool)
    assert (made.passed, made.failures) == (None, None)
    assert made.blocked is not None
    assert check(f"{output}\n2 failed, 1 passed in 0.1s", 1, tool).passed is False
