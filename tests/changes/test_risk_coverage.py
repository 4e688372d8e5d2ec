"""Coverage data of the common tools is read, and old data is not believed."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from risk_repository import changed

from closeloop.changes.affected_tests import (
    Coverage,
    LineCoverage,
    find_coverage,
    find_runnable_lines,
    read_coverage,
)
from closeloop.changes.risk import coverage_factor
from closeloop.records.errors import BadInput
from closeloop.records.finding import Unmeasured

SOURCE = "def f(a):\n    if a:\n        return 1\n    return 2\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").write_text(SOURCE)
    os.utime(tmp_path / "pkg" / "a.py", (1, 1))
    return tmp_path


def test_the_database_of_coverage_py_is_read(root: Path) -> None:
    with sqlite3.connect(root / ".coverage") as data:
        data.executescript(
            "CREATE TABLE file (id INTEGER, path TEXT);"
            "CREATE TABLE line_bits (file_id INTEGER, context_id INTEGER, numbits BLOB);"
            "CREATE TABLE arc (file_id INTEGER, context_id INTEGER, fromno INTEGER, tono INTEGER);"
        )
        data.execute("INSERT INTO file VALUES (1, ?)", (str(root / "pkg" / "a.py"),))
        data.execute("INSERT INTO line_bits VALUES (1, 0, ?)", (bytes([0b00000110]),))
        data.execute("INSERT INTO arc VALUES (1, 0, -1, 4)")

    found = find_coverage(root)

    assert found is not None
    assert read_coverage(found, root).files == {
        "pkg/a.py": LineCoverage(covered=frozenset({1, 2, 4}))
    }


WRITTEN = {
    "coverage.xml": """<?xml version="1.0" ?>
        <!DOCTYPE coverage SYSTEM "http://example.org/coverage-04.dtd">
        <coverage><sources><source>{root}/pkg</source></sources><packages><package><classes>
        <class filename="a.py"><lines><line number="1" hits="1"/><line number="3" hits="0"/></lines>
        </class></classes></package></packages></coverage>""",
    "lcov.info": "TN:\nSF:pkg/a.py\nDA:1,3\nDA:3,0\nend_of_record\n",
    "coverage.out": "mode: set\nx.org/m/pkg/a.py:1.2,1.9 1 4\nx.org/m/pkg/a.py:3.1,3.5 1 0\n",
    "coverage.json": '{"files": {"pkg/a.py": {"executed_lines": [1], "missing_lines": [3]}}}',
    "coverage-final.json": '{"x": {"path": "/ci/build/pkg/a.py", "s": {"0": 1, "1": 0},'
    ' "statementMap": {"0": {"start": {"line": 1}}, "1": {"start": {"line": 3}}}}}',
}


@pytest.mark.parametrize("name", WRITTEN)
def test_every_format_says_the_same(root: Path, name: str) -> None:
    (root / name).write_text(WRITTEN[name].replace("{root}", str(root)).strip())

    coverage = read_coverage(root / name, root)

    assert coverage.files == {
        "pkg/a.py": LineCoverage(covered=frozenset({1}), missed=frozenset({3}))
    }
    assert not coverage.stale


def test_data_older_than_its_sources_is_stale(root: Path) -> None:
    (root / "lcov.info").write_text(WRITTEN["lcov.info"])
    os.utime(root / "lcov.info", (1000, 1000))
    os.utime(root / "pkg" / "a.py", (2000, 2000))

    assert read_coverage(root / "lcov.info", root).stale == {"pkg/a.py"}


@given(
    content=some.binary(max_size=200) | some.sampled_from([b"{}", b'{"files": 3}', b"<a>", b"SF:"])
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_other_files_are_refused_or_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data").write_bytes(content)

    try:
        told = read_coverage(tmp_path / "data", tmp_path)
    except BadInput:
        return
    assert not told.files


def test_statements_are_what_can_run() -> None:
    source = b'"""Text."""\nx = 1\n\ndef f():\n    """Doc."""\n    return (\n        1)\n'
    skipped = b"if x:  # pragma: no cover\n    y = 1\n"

    assert find_runnable_lines(source) == {2, 4, 6}
    assert find_runnable_lines(skipped) == {2}
    assert find_runnable_lines(b"def (") == frozenset()


def factor(folder: Path, after: str, known: LineCoverage | None, **more: frozenset[str]):  # type: ignore[no-untyped-def]
    files = {"pkg/a.py": known} if known else {}
    coverage = Coverage(files=files, source=".coverage", **more)
    with changed(folder, {"pkg/a.py": "x = 1\n"}, {"pkg/a.py": after}) as inspection:
        return coverage_factor(inspection, coverage)


def test_changed_lines_that_no_test_reaches_are_counted(tmp_path: Path) -> None:
    told = factor(tmp_path / "r", SOURCE, LineCoverage(covered=frozenset({1, 2, 4})))

    assert (
        told.text
        == "no test covers 1 of 4 changed lines, so mistakes there go unnoticed: pkg/a.py:3"
    )
    assert told.places == ("pkg/a.py:3",)
    assert 1 <= told.weight < 2


def test_full_coverage_does_not_weigh(tmp_path: Path) -> None:
    told = factor(tmp_path / "r", SOURCE, LineCoverage(covered=frozenset({1, 2, 3, 4})))

    assert told.text == "tests cover every changed executable line (4), so mistakes are noticed"
    assert told.weight < 1


def test_a_file_without_any_data_is_not_covered(tmp_path: Path) -> None:
    many = "".join(f"x{number} = {number}\n" for number in range(9))

    told = factor(tmp_path / "r", many, None)

    assert told.value == 1
    assert told.weight >= 2


def test_stale_data_says_so(tmp_path: Path) -> None:
    told = factor(
        tmp_path / "r", SOURCE, LineCoverage(covered=frozenset({1})), stale=frozenset({"pkg/a.py"})
    )

    assert told == Unmeasured(
        rule="coverage", reason=".coverage is older than pkg/a.py: measure again"
    )
