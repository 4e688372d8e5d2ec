"""The Python API: tables of a project, recorded sessions, comparisons and checks in a notebook."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow.parquet
import pytest

import closeloop
from closeloop.metrics.data_tables import arrow_table, column_type, table_columns, write_csv
from closeloop.records.estimate import CompareReport, VariantSide
from closeloop.records.trace import Message, Trace
from command_line import typed

PAGE = (Path(__file__).parent.parent / "docs" / "notebook.md").read_text(encoding="utf-8")
FIXTURES = Path(__file__).parent / "traces" / "fixtures"
SESSION = next((FIXTURES / "claude_stream").glob("*.jsonl"))
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two commits, recorded sessions, and two variants on six tasks."""
    from closeloop.store import make_store
    from metrics.scripted_work import fill

    root = tmp_path_factory.mktemp("notebook")
    (root / "closeloop.toml").write_text("")
    (root / ".gitignore").write_text(".closeloop\n")
    (root / "session.jsonl").write_bytes(SESSION.read_bytes())
    for message in ("Start", "Add a name"):
        (root / "names.py").write_text(f'NAME = "{message}"\n')
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
        if message == "Start":
            subprocess.run([*git, "init", "-q"], cwd=root, check=True)
        subprocess.run([*git, "add", "."], cwd=root, check=True)
        subprocess.run([*git, "commit", "-qm", message], cwd=root, check=True)
    for name in ("claude_stream", "codex", "goose"):
        assert typed(root, "import", str(FIXTURES / name)).returncode == 0
    with make_store(str(root / ".closeloop/closeloop.db")) as store:
        tasks = [f"task-{number}" for number in range(6)]
        fill(store, {"careful": dict.fromkeys(tasks, (True, True))})
        fill(store, {"looping": dict.fromkeys(tasks, (False, True))})
    return root


@pytest.fixture
def here(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    return project


def test_the_page_in_a_notebook_runs_from_top_to_bottom(here: Path) -> None:
    for command in re.findall(r"^closeloop (export .+)$", PAGE, re.MULTILINE):
        done = typed(here, *command.split())
        assert done.returncode == 0, done.stderr
    namespace: dict[str, object] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        exec(compile(code, "notebook.md", "exec"), namespace)  # our own page
    assert isinstance(namespace["report"], CompareReport)


def test_a_project_is_found_from_a_folder_inside_it(here: Path) -> None:
    (here / "deep" / "er").mkdir(parents=True, exist_ok=True)
    assert closeloop.open("deep/er").root == here
    assert repr(closeloop.open()) == f"<Project {here}>"


def test_a_folder_without_a_store_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(
        closeloop.BadInput, match=r"There is no store at .*: run `closeloop import`"
    ):
        closeloop.open(tmp_path)
    with pytest.raises(closeloop.BadInput, match="is not a folder"):
        closeloop.open(tmp_path / "nowhere")


def test_every_row_has_every_column_of_its_table(here: Path) -> None:
    project = closeloop.open()
    for table in (project.attempts(), project.findings(), project.events(), project.scores()):
        assert len(table) > 0
        assert {tuple(row) for row in table} == {table.columns}
        assert table.to_records() == list(table)
        assert list(table[:1]) == [table[0]]
    assert len(project.pulls()) == 0
    assert repr(project.pulls()).startswith("<ResultTable pulls: 0 rows, ")


def test_tables_have_the_numbers_that_the_commands_print(here: Path) -> None:
    project = closeloop.open()
    listed = json.loads(typed(here, "measure", "--all", "--json").stdout)["items"]
    findings = [one for each in listed for one in each["measurement"].get("findings", ())]
    assert len(project.findings()) == len(findings)
    attempt = next(row for row in project.attempts() if row["events"])
    assert len(project.events(attempt["id"])) == attempt["events"]
    assert len(project.trace(attempt["id"][:8]).events) == attempt["events"]


def test_scores_are_given_by_the_rules_of_the_command(here: Path) -> None:
    project = closeloop.open(here)
    attempt = project.attempts()[0]["id"]
    good = {"attempt": attempt, "name": "quality", "value": 0.8}
    before = len(project.scores(attempt))
    for wrong, sentence in (
        ({"attempt": "nobody"}, "score 2: No attempt begins with 'nobody'"),
        ({"name": "qualty"}, "score 2: No score named 'qualty'. Did you mean 'quality'?"),
        ({"name": "resolved"}, "score 2: 'resolved' is computed and cannot be set"),
        ({"value": 7.0}, "score 2: quality=7.0 is out of range: give a number from 0 to 1."),
        ({"value": float("nan")}, "score 2: quality=nan is out of range"),
        ({"colour": "red"}, "score 2: Object contains unknown field `colour`"),
    ):
        with pytest.raises(closeloop.BadInput) as refused:
            project.add_scores([good, good | wrong], by="lint-ratio")
        assert str(refused.value).startswith(sentence)
        assert "Nothing was saved." in str(refused.value)
    assert len(project.scores(attempt)) == before
    assert project.add_scores([good], by="lint-ratio") == 1
    assert project.add_scores([good], by="lint-ratio") == 0
    (row,) = [row for row in project.scores(attempt) if row["by"] == "lint-ratio"]
    assert (row["name"], row["value"], row["source"]) == ("quality", 0.8, "code")


def test_pandas_and_arrow_keep_types_and_missing_values(here: Path) -> None:
    events = closeloop.open().events()
    frame, table = events.to_pandas(), events.to_arrow()
    assert len(frame) == table.num_rows == len(events)
    assert str(frame["exit_code"].dtype) == "Int64"
    assert str(frame["at"].dtype) == "datetime64[us, UTC]"
    assert frame["exit_code"].isna().sum() == sum(row["exit_code"] is None for row in events)
    assert table.column("exit_code").to_pylist() == [row["exit_code"] for row in events]
    findings = closeloop.open().findings()
    assert findings.to_arrow().column("events").to_pylist() == [
        [*row["events"]] for row in findings
    ]
    empty = closeloop.open().pulls()
    assert list(empty.to_pandas().columns) == list(empty.columns)


def test_without_pandas_a_sentence_says_what_to_install(here: Path) -> None:
    code = (
        "import sys; sys.modules['pandas'] = sys.modules['pyarrow'] = None\n"
        "import closeloop\ntable = closeloop.open().attempts()\n"
        "for name in ('to_pandas', 'to_arrow'):\n"
        "    try:\n        getattr(table, name)()\n"
        "    except closeloop.BadInput as fault:\n        print(fault)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'closeloop[notebook]'" in ran.stdout
    assert "pip install 'closeloop[parquet]'" in ran.stdout


def test_a_file_and_a_folder_of_sessions_are_read_without_a_store(tmp_path: Path) -> None:
    session = closeloop.read(SESSION)
    assert session.trace.events
    measured = closeloop.measure(session)
    assert measured == closeloop.measure(session.trace)
    assert re.fullmatch(r"<Measurement \d+ events: \d+ iterations, \d+ findings>", repr(measured))
    assert len(closeloop.read_all(FIXTURES / "codex")) > 1
    with pytest.raises(closeloop.BadInput, match=r"sessions: use closeloop\.read_all"):
        closeloop.read(FIXTURES / "codex")
    (tmp_path / "empty.txt").write_text("nothing of the kind")
    with pytest.raises(closeloop.BadInput, match="No session could be read from"):
        closeloop.read(tmp_path / "empty.txt")
    with pytest.raises(closeloop.BadInput, match="There is no file or folder"):
        closeloop.read(tmp_path / "nowhere")


def test_compare_says_what_the_command_says(here: Path) -> None:
    report = closeloop.compare("careful", "looping")
    printed = json.loads(typed(here, "compare", "careful", "looping", "--json").stdout)
    assert list(report.pairs[0].words) == printed["pairs"][0]["words"]
    assert repr(report).startswith("<CompareReport careful against looping: ")
    assert repr(report).endswith(f": {report.pairs[0].words[0]}>")


def test_a_change_is_checked_also_where_an_event_loop_runs(here: Path) -> None:
    async def in_a_notebook() -> closeloop.ChangeReport:
        return closeloop.check("HEAD", tiers=["quality"])

    report = asyncio.run(in_a_notebook())
    assert report.verdict == "pass"
    assert report == closeloop.check("HEAD", tiers=["quality"]) or report.findings == ()
    assert repr(report).endswith(": pass, 0 tools, 0 findings>")
    with pytest.raises(closeloop.BadInput, match="Give only one of"):
        closeloop.check("HEAD", patch="some.patch")


def test_what_a_notebook_shows_is_escaped_and_short() -> None:
    events = tuple(
        Message(number=number, lane=HOSTILE, role="agent", text=HOSTILE * 1000)
        for number in range(1, 200)
    )
    trace = Trace(reader=HOSTILE, reader_version=1, events=events)
    side = VariantSide(name=HOSTILE, variants=(), tasks=1, attempts=1, scored=1, coverage=None)
    report = CompareReport(sides=(side,), refusal=HOSTILE, notes=(HOSTILE,))
    row = {**dict.fromkeys(table_columns("attempts")), "title": HOSTILE * 1000}
    table = closeloop.ResultTable("attempts", table_columns("attempts"), [row] * 100)
    for shown in (trace, report, table):
        page = shown._repr_html_()
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        assert len(page) < 40_000
    assert repr(trace) == f"<Trace {HOSTILE}: 199 events, 0 lanes>"
    assert "<td>agent message</td>" in trace._repr_html_()


def test_column_types_follow_the_records() -> None:
    assert table_columns("findings")["events"] == "integers"
    assert table_columns("findings")["places"] == "texts"
    assert table_columns("events")["arguments"] == "json"
    assert table_columns("attempts")["started"] == "time"
    assert table_columns("pulls")["draft"] == "boolean"
    assert column_type(int | float) == "number"
    assert column_type(dict[str, int]) == "json"


def test_a_table_is_the_same_in_csv_json_lines_and_parquet(here: Path) -> None:
    rows = closeloop.open().findings()
    for ending in ("csv", "jsonl", "parquet"):
        done = typed(here, "export", "--table", "findings", "--out", f"same.{ending}")
        assert done.returncode == 0, done.stderr
    with (here / "same.csv").open(newline="", encoding="utf-8") as file:
        from_csv = list(csv.DictReader(file))
    from_lines = [json.loads(line) for line in (here / "same.jsonl").read_text().splitlines()]
    from_parquet = pyarrow.parquet.read_table(here / "same.parquet").to_pylist()
    assert [(one["attempt"], one["rule"]) for one in rows] == [
        (one["attempt"], one["rule"]) for one in from_csv
    ]
    assert [json.loads(one["events"]) for one in from_csv] == [one["events"] for one in from_lines]
    assert [one["events"] for one in from_parquet] == [one["events"] for one in from_lines]
    (counted,) = duckdb.sql(f"SELECT count(*) FROM '{here}/same.csv'").fetchall()
    assert counted == (len(rows),)
    refused = typed(here, "export", "--table", "findings", "--out", "same.xlsx")
    assert "Choose a file name that ends in .csv, .jsonl, .parquet" in refused.stderr


def test_csv_writes_no_formula_and_survives_half_a_character() -> None:
    columns = {"text": "text", "at": "time", "ok": "boolean", "n": "integer"}
    rows = [
        {"text": "=cmd|' /C calc'!A0", "at": datetime(2026, 5, 4, tzinfo=UTC), "ok": True, "n": -1},
        {"text": "half \ud800", "at": None, "ok": None, "n": None},
    ]
    file = io.BytesIO()
    assert write_csv(columns, rows, file) == 2  # type: ignore[arg-type]
    written = file.getvalue().decode().splitlines()
    assert written[1] == "'=cmd|' /C calc'!A0,2026-05-04T00:00:00Z,true,-1"
    assert written[2] == "half ?,,,"
    assert arrow_table([rows[0]], columns).num_rows == 1  # type: ignore[arg-type]
