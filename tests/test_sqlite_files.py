"""Databases from a repository or a recording: read with care, and never for ever."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import small_project
from closeloop.changes.affected_tests import read_line_coverage
from closeloop.records.errors import BadInput
from closeloop.sqlite_files import has_tables, open_database

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
HOSTILE = f"""
CREATE VIEW file AS {ENDLESS} SELECT x AS id, 'calculator.py' AS path FROM c;
CREATE VIEW line_bits AS {ENDLESS} SELECT x AS file_id, x'ff' AS numbits, x AS context_id FROM c;
CREATE VIEW arc AS {ENDLESS} SELECT x AS file_id, 1 AS fromno, 2 AS tono FROM c;
CREATE VIEW context AS {ENDLESS} SELECT x AS id, 'a::b' AS context FROM c;
"""
COVERAGE = """
CREATE TABLE file (id INTEGER PRIMARY KEY, path TEXT);
CREATE TABLE context (id INTEGER PRIMARY KEY, context TEXT);
CREATE TABLE line_bits (file_id INTEGER, context_id INTEGER, numbits BLOB);
CREATE TABLE arc (file_id INTEGER, context_id INTEGER, fromno INTEGER, tono INTEGER);
INSERT INTO file VALUES (1, 'calculator.py');
INSERT INTO line_bits VALUES (1, 1, x'06');
INSERT INTO arc VALUES (1, 1, 5, 6);
"""
PATIENCE_SECONDS = 120


def database(path: Path, script: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
        connection.commit()
    return path


def run_python(*words: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_check_ends_beside_coverage_data_whose_views_never_do(tmp_path: Path) -> None:
    project = small_project.build(tmp_path / "project")
    database(project / ".coverage", HOSTILE)
    text = (project / "calculator.py").read_text()
    (project / "calculator.py").write_text(text.replace("a - b", "a + b"))
    checking = run_python("-m", "closeloop", "check", "--tier", "risk", folder=project)
    try:
        printed, _ = checking.communicate(timeout=PATIENCE_SECONDS)
    finally:
        checking.kill()
    assert checking.returncode == 0, printed
    assert "not readable as coverage data" in " ".join(printed.split())
    assert "\nRisk " in printed  # the rest of the risk is looked at all the same


def test_coverage_data_is_read_from_plain_tables(tmp_path: Path) -> None:
    read = read_line_coverage(database(tmp_path / ".coverage", COVERAGE))
    assert read["calculator.py"].covered == {1, 2, 5, 6}


COMPUTED = "CREATE TABLE line_bits (file_id, numbits GENERATED ALWAYS AS (x'ff') VIRTUAL);"


@pytest.mark.parametrize(
    "spoiled",
    [
        f"DROP TABLE line_bits; {COMPUTED}",
        "DROP TABLE line_bits; CREATE TABLE line_bits (file_id, bits);",
        "UPDATE line_bits SET numbits = zeroblob(3000000);",
    ],
    ids=["computed", "another table", "too many lines"],
)
def test_other_data_is_no_coverage_data(tmp_path: Path, spoiled: str) -> None:
    path = database(tmp_path / ".coverage", COVERAGE + spoiled)
    with pytest.raises(BadInput, match="not readable as coverage data"):
        read_line_coverage(path)


def test_what_takes_longer_than_its_time_is_interrupted(tmp_path: Path) -> None:
    path = database(tmp_path / "any.db", COVERAGE)
    with (
        pytest.raises(sqlite3.OperationalError, match="interrupted"),
        open_database(path, seconds=0.05) as connection,
    ):
        connection.execute(f"{ENDLESS} SELECT count(*) FROM c").fetchone()


def test_a_view_is_no_table(tmp_path: Path) -> None:
    path = database(tmp_path / "any.db", HOSTILE)
    assert not has_tables(path, {"file": ("id",)})
    assert has_tables(database(tmp_path / "plain.db", COVERAGE), {"file": ("id",)})


def test_a_database_is_not_written_to(tmp_path: Path) -> None:
    path = database(tmp_path / "any.db", COVERAGE)
    with open_database(path) as connection, pytest.raises(sqlite3.OperationalError):
        connection.execute("DELETE FROM file")


READING = """
import sys
from pathlib import Path
from closeloop.sqlite_files import open_database
with open_database(Path(sys.argv[1])) as connection:
    print("reading", flush=True)
    try:
        connection.execute(sys.argv[2]).fetchone()
    except Exception:
        print("swallowed", flush=True)
        raise
"""
COMPUTING = """
import anyio
from closeloop.concurrency import compute_in_thread
def count():
    print("reading", flush=True)
    number = 0
    while True:
        number += 1
anyio.run(compute_in_thread, count)
"""


@pytest.mark.parametrize("script", [READING, COMPUTING], ids=["a database", "a computation"])
def test_ctrl_c_stops_what_would_never_end(tmp_path: Path, script: str) -> None:
    path = database(tmp_path / "any.db", COVERAGE)
    endless = f"{ENDLESS} SELECT count(*) FROM c"
    process = run_python("-c", script, str(path), endless, folder=tmp_path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in printed
    assert process.returncode == -signal.SIGINT


def test_reports_that_would_take_for_ever_are_read_in_time_that_grows_with_their_size(
    tmp_path: Path,
) -> None:
    lcov = tmp_path / "lcov.info"
    hits = "".join(f"DA:{number},1\n" for number in range(1, 20_001))
    lcov.write_text(f"SF:a.py\n{hits}" + "end_of_record\n" * 20_000)
    assert len(read_line_coverage(lcov)["a.py"].covered) == 20_000
    xml = tmp_path / "coverage.xml"
    sources = "".join(f"<source>/{number}</source>" for number in range(2_000))
    classes = '<class filename="a.py"><line number="1" hits="1"/></class>' * 2_000
    xml.write_text(f"<coverage>{sources}{classes}</coverage>")
    assert len(read_line_coverage(xml)) == 101
    deep = tmp_path / "coverage.json"
    deep.write_text('{"a":' * 100_000)
    with pytest.raises(BadInput):
        read_line_coverage(deep)
