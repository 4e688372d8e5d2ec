"""Linters, type checkers and compilers, as they really print; and what only says that it failed."""
# ruff: noqa: E501  (what tools print is quoted as they print it)

from __future__ import annotations

import pytest
from parsed import keys, parsed, verdict

from closeloop.process import failure_collector

EXPECTED = {
    "mypy": (
        'bad.py:4: error: Name "undefined_name" is not defined  [name-defined]\n'
        "bad.py:4: note: See https://mypy.rtfd.io\nFound 1 error in 1 file (checked 1 source file)\n",
        ['bad.py: Name "undefined_name" is not defined [name-defined]'],
    ),
    "ruff": (
        "F401 [*] `os` imported but unused\n --> bad.py:1:8\n  |\n1 | import os, sys\n  |        ^^\n"
        "help: Remove unused import\n  |\n\nF821 Undefined name `undefined_name`\n  --> bad.py:14:16\n",
        ["bad.py: F401 `os` imported but unused", "bad.py: F821 Undefined name `undefined_name`"],
    ),
    "ruff concise": (
        "bad.py:1:8: F401 [*] `os` imported but unused\nbad.py:4:16: F821 Undefined name `undefined_name`\n"
        "Found 2 errors.\n",
        ["bad.py: F401 `os` imported but unused", "bad.py: F821 Undefined name `undefined_name`"],
    ),
    "ruff format": (
        "Would reformat: src/bad.py\n1 file would be reformatted\n",
        ["Would reformat: src/bad.py"],
    ),
    "flake8": (
        "bad.py:3:1: E302 expected 2 blank lines, found 0\nbad.py:5:1: E302 expected 2 blank lines, found 1\n",
        ["bad.py: E302 expected # blank lines, found #", "bad.py: E302 expected # blank lines, found # #2"],
    ),
    "pylint": (
        "************* Module bad\nbad.py:9:4: E1101: Function 'add' has no 'foo' member (no-member)\n",
        ["bad.py: E1101: Function 'add' has no 'foo' member (no-member)"],
    ),
    "ty": (
        "error[invalid-argument-type]: Argument to function `f` is incorrect\n --> bad.py:7:7\n  |\n"
        "7 |     f(1)\ninfo: Function defined here\n --> bad.py:3:5\n",
        ["bad.py: invalid-argument-type Argument to function `f` is incorrect"],
    ),
    "pyright": (
        '/proj/bad.py\n  /proj/bad.py:4:16 - error: "undefined_name" is not defined (reportUndefinedVariable)\n'
        '  /proj/bad.py:7:7 - error: Argument of type "str"\n    "str" is not assignable to "int" (x)\n'
        "2 errors, 0 warnings, 0 informations\n",
        ['/proj/bad.py: "undefined_name" is not defined (reportUndefinedVariable)',
         '/proj/bad.py: Argument of type "str"'],
    ),
    "tsc": (
        "a.ts(4,1): error TS2304: Cannot find name 'foo'.\n",
        ["a.ts: TS2304 Cannot find name 'foo'."],
    ),
    "tsc --pretty": (
        "\x1b[96ma.ts\x1b[0m:\x1b[93m4\x1b[0m:\x1b[93m1\x1b[0m - \x1b[91merror\x1b[0m\x1b[90m TS2304: \x1b[0m"
        "Cannot find name 'foo'.\n\n\x1b[7m4\x1b[0m foo.bar();\n",
        ["a.ts: TS2304 Cannot find name 'foo'."],
    ),
    "eslint": (
        "\n/proj/bad.js\n  1:1   error    Unexpected var, use let or const instead     no-var\n"
        "  2:5   warning  'unused' is assigned a value but never used  no-unused-vars\n\n"
        "✖ 2 problems (1 error, 1 warning)\n",
        ["/proj/bad.js: no-var Unexpected var, use let or const instead"],
    ),
    "eslint compact": (
        "/proj/bad.js: line 1, col 1, Error - Unexpected var. (no-var)\n"
        "/proj/bad.js: line 2, col 5, Warning - 'unused' is never used. (no-unused-vars)\n",
        ["/proj/bad.js: Unexpected var. (no-var)"],
    ),
    "eslint unix": (
        "/proj/bad.js:1:1: Unexpected var. [Error/no-var]\n/proj/bad.js:2:5: 'a' is unused. [Warning/x]\n",
        ["/proj/bad.js: Unexpected var. [Error/no-var]"],
    ),
    "g++": (
        "b.cpp: In function ‘int main()’:\nb.cpp:5:21: error: ‘struct S’ has no member named ‘nope’\n"
        "    5 | int main() { S s; s.nope = 1; }\n      |                     ^~~~\n"
        "b.cpp:4:11: note:   initializing argument 1 of ‘int f(int)’\n"
        "b.cpp:5:74: warning: unused variable ‘unused’ [-Wunused-variable]\n",
        ["b.cpp: ‘struct S’ has no member named ‘nope’"],
    ),
    "gcc": (
        "a.c:2:10: fatal error: missing.h: No such file or directory\ncompilation terminated.\n",
        ["a.c: missing.h: No such file or directory"],
    ),
    "ld": (
        "/usr/bin/ld: /tmp/ccSo39Za.o: in function `main':\nc.c:(.text+0xa): undefined reference to `missing'\n",
        ["undefined reference to `missing'"],
    ),
    "javac": (
        "A.java:2: error: cannot find symbol\n  undefined();\n  ^\n  symbol:   method undefined()\n  location: class A\n"
        "1 error\n",
        ["A.java: cannot find symbol symbol: method undefined()"],
    ),
    "dotnet build": (
        "/proj/A.cs(3,14): error CS0103: The name 'x' does not exist [/proj/App.csproj]\n",
        ["/proj/A.cs: CS0103 The name 'x' does not exist [/proj/App.csproj]"],
    ),
    "rustc short": (
        "src/lib.rs:1:21: error[E0308]: mismatched types\nerror: could not compile `calc`\n",
        ["src/lib.rs: E0308 mismatched types"],
    ),
    "golangci-lint under mise": (
        "[lint:go] internal/syncer.go:665:15: Error return value is not checked (errcheck)\n",
        ["internal/syncer.go: return value is not checked (errcheck)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("tool", EXPECTED)
def test_an_error_is_told_by_file_and_message_without_its_line(tool: str) -> None:
    text, expected = EXPECTED[tool]
    assert keys("places", text) == expected


def test_moved_lines_make_no_new_error_and_one_fixed_of_three_makes_fewer() -> None:
    three = "".join(f"a.py:{line}:1: E302 expected 2 blank lines, found 1\n" for line in (3, 7, 9))
    moved = three.replace("a.py:3", "a.py:33").replace("a.py:7", "a.py:40")
    assert keys("places", three) == keys("places", moved)
    assert set(keys("places", three.partition("\n")[2])) < set(keys("places", three))


def test_warnings_count_where_nothing_is_worse() -> None:
    text = "\n/proj/a.js\n  2:5  warning  'unused' is never used  no-unused-vars\n\n✖ 1 problem (0 errors, 1 warning)\n"
    assert keys("places", text) == ["/proj/a.js: no-unused-vars 'unused' is never used"]


def test_what_is_found_by_grep_or_logged_is_no_error() -> None:
    text = "src/a.py:12: def error(x): pass\nsrc/b.py:3:import os\n2024-01-02 10:11:12: started\nhttp://x:80: up\n"
    with pytest.raises(AssertionError):
        parsed("places", text)


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("Success: no issues found in 1 source file", True),
        ("All checks passed!", True),
        ("0 errors, 0 warnings, 0 informations", True),
        ("3 files already formatted", True),
        ("Found 1 error in 1 file (checked 1 source file)", False),
        ("6 errors, 0 warnings, 0 informations", False),
        ("✖ 5 problems (4 errors, 1 warning)", False),
        ("✖ 1 problem (0 errors, 1 warning)", True),
        ("Found 7 errors in the same file, starting at: a.ts:1", False),
        ("2 files would be reformatted", False),
        ("", None),
    ],
)
def test_their_last_words(text: str, passed: bool | None) -> None:
    assert verdict("places", text) is passed


def test_json_reports_say_what_the_text_says() -> None:
    ruff = '[{"code": "F401", "filename": "/proj/bad.py", "message": "`os` imported but unused", "end_location": {"row": 1}}]'
    assert keys("json", ruff) == ["/proj/bad.py: F401 `os` imported but unused"]
    eslint = (
        '[{"filePath":"/proj/a.js","messages":[{"ruleId":"no-var","severity":2,"message":"Unexpected var."},'
        '{"ruleId":null,"severity":1,"message":"x"}],"errorCount":1}]'
    )
    assert keys("json", eslint) == ["/proj/a.js: no-var Unexpected var."]
    pyright = '{"version": "1", "generalDiagnostics": [{"file": "/proj/a.py", "severity": "error", "message": "x is unknown", "rule": "reportX"}]}'
    assert keys("json", "0 files\n" + pyright) == ["/proj/a.py: reportX x is unknown"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Exit code 127\n/bin/bash: line 1: pytest: command not found", "pytest: not found"),
        ("/bin/sh: 1: jest: not found", "jest: not found"),
        ("zsh: command not found: pytest", "pytest: not found"),
        ("bash: ./run_tests.sh: No such file or directory", "./run_tests.sh: not found"),
        ("/usr/bin/python: No module named pytest", "pytest: not found"),
        ("python: can't open file '/w/test_a.py': [Errno 2] No such file or directory", "/w/test_a.py: not found"),
        ("make: *** [Makefile:5: test] Error 1", "make: *** [Makefile test] Error 1"),
        ("make[2]: *** No rule to make target 'nope'.  Stop.", "make[2]: *** No rule to make target 'nope'. Stop."),
        ('npm ERR! Missing script: "tests"', 'npm ERR! Missing script: "tests"'),
        ("npm error Lifecycle script `check` failed with error:", "npm error Lifecycle script `check` failed with error:"),
    ],
)  # fmt: skip
def test_what_did_not_start_or_only_says_that_it_failed(text: str, key: str) -> None:
    assert keys("launch", text) == [key]
    assert verdict("launch", text) is False


def test_the_last_lines_are_compared_without_times_and_line_numbers() -> None:
    one = failure_collector.failures_from_tail(
        "building…\n" * 50 + "src/app.py:12: 'colour' is odd\nfailed after 3.2s\n"
    )
    other = failure_collector.failures_from_tail(
        "src/app.py:80: 'colour' is odd\nfailed after 17 ms\n" * 4
    )
    assert next(iter(other.errors)).endswith("src/app.py: 'colour' is odd\nfailed after <time>")
    assert one.parser == "tail"
    assert (one.paths, one.symbols) == (("src/app.py",), ("colour",))
    assert (
        failure_collector.failures_from_tail("a 1.5s\nsrc/a.py:3: x").errors
        == failure_collector.failures_from_tail("a 2.5s\nsrc/a.py:4: x").errors
    )
    assert failure_collector.failures_from_tail("").errors == {"no output": ""}
