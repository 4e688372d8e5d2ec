"""Whatever an output holds, reading it is quick, bounded and never fails."""
# ruff: noqa: E501  (what tools print is quoted as they print it)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.process import failure_collector
from closeloop.process.check_results import PARSERS_BY_NAME, find_failures, find_parser_name
from closeloop.process.failure_collector import MAX_ERRORS, MAX_NAMES, FailureCollector
from patience import takes

FRAGMENTS = [
    "\n", " ", "\t", "_", "=", "-----", "E   ", "FAIL: x (", "ERROR: x (y)\n", "FAILED a.py::t[", "] - ",
    "  ● ", "\n FAIL  ", "not ok 1 - x", "# TODO", "--- FAIL: T", "FAIL\tp", "=== RUN  ", "panic: ",
    "test x ... FAILED", "---- x stdout ----\n", "panicked at '", "', a.rs:1:1", "error[E1]: m", "a.py:1:2: error: m",
    "\n --> a:1:1\n", 'File "a", line 1, in x\n    ', "Traceback (most recent call last):\n", "\n    at x (a.js:1",
    '<testcase name="', '"><failure message="', "rspec ./a:1 # ", "1) A::b\n", " > ", "(1,2): ",
    "Time elapsed: 1 s <<< FAILURE!\n", "[ERROR] ", "[  FAILED  ] a.b", "***Failed", ": not found", "make: *** ",
    "make: *** [x] Error 1\n", "*** [",
    "'", '"', "`", "::", "…", "...", "1", "3 failing\n", "✖ ", "× ", '{"Action":"', '"Output":"', "%]", "____ t ____\n",
    '[{"filePath":', '"generalDiagnostics":[', "}", "]",
]  # fmt: skip
outputs = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=8), max_size=60).map("".join)


@given(outputs)
def test_no_output_breaks_a_parser_or_leaves_its_bounds(text: str) -> None:
    for name, parser in PARSERS_BY_NAME.items():
        found = FailureCollector()
        parser.collect_failures(text, found)
        assert parser.read_verdict(text) in (True, False, None)
        told = found.build_failures(name)
        if told is not None:
            assert 0 < len(told.errors) <= MAX_ERRORS + 1
            assert len(told.paths) <= MAX_NAMES
            assert len(told.symbols) <= MAX_NAMES
            assert all(key and len(key) < 300 for key in told.errors)
    assert failure_collector.failures_from_tail(text).errors


@given(outputs)
def test_the_same_output_is_read_the_same(text: str) -> None:
    assert find_failures(text, ["pytest", "places"]) == find_failures(text, ["pytest", "places"])


@pytest.mark.parametrize("piece", FRAGMENTS)
def test_no_output_takes_long(piece: str) -> None:
    def read(number: int) -> None:
        text = piece * (200_000 // len(piece) + number)
        for parser in PARSERS_BY_NAME.values():
            parser.collect_failures(text, FailureCollector())
            parser.read_verdict(text)

    assert takes(read, 5) < 5


def test_beyond_the_bound_failures_are_only_counted() -> None:
    found = FailureCollector()
    for number in range(MAX_ERRORS + 37):
        found.add_test(f"a.py::test_{number}")
    told = found.build_failures("pytest")
    assert told is not None
    assert list(told.errors)[-1] == "and 37 more"


def test_files_of_libraries_are_named_only_where_there_are_no_others() -> None:
    found = FailureCollector()
    found.add_test("t")
    found.add_path("/venv/lib/python3.11/site-packages/x.py")
    assert found.build_failures("x").paths == ("/venv/lib/python3.11/site-packages/x.py",)  # type: ignore[union-attr]
    found.add_path("pkg/a.py")
    assert found.build_failures("x").paths == ("pkg/a.py",)  # type: ignore[union-attr]


def test_tools_have_their_parsers_and_runners_of_others_have_none() -> None:
    assert [find_parser_name(tool) for tool in ("pytest", "go", "go test", "mypy", "mvn", "django")] == [
        "pytest", "go", "go", "places", "java", "unittest",
    ]  # fmt: skip
    assert [find_parser_name(tool) for tool in ("make", "npm", "tox", "script", "")] == [None] * 5
