"""`closeloop import`, `export`, `attempts` and `show`, as a user types them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from closeloop.cli.export import open_output_file
from closeloop.store import open_store
from command_line import typed

FIXTURES = Path(__file__).parents[1] / "traces" / "fixtures"


def closeloop(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return typed(folder, *arguments, HOME=str(folder), **environ)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Somebody's home, with sessions of two agents in it."""
    shutil.copytree(FIXTURES / "claude_code", tmp_path / ".claude/projects/-tmp-billing")
    shutil.copytree(FIXTURES / "pi", tmp_path / ".pi/agent/sessions/billing")
    return tmp_path


def imported(folder: Path, *arguments: str) -> dict[str, Any]:
    result = closeloop(folder, "import", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    tally: dict[str, Any] = json.loads(result.stdout)
    return tally


def test_agents_folders_are_found_when_none_is_named(home: Path) -> None:
    first = imported(home)
    assert set(first["formats"]) == {"claude-code", "pi"}
    assert first["formats"]["claude-code"]["sessions"] == 1
    assert first["formats"]["claude-code"]["calls"] == first["formats"]["claude-code"]["paired"]
    second = imported(home)
    assert second["formats"] == {}
    assert second["unchanged"] >= 3


def test_the_table_counts_by_format_and_the_list_names_agent_and_model(home: Path) -> None:
    told = closeloop(home, "import", ".claude")
    assert told.returncode == 0
    header, row, *_ = told.stdout.splitlines()
    assert " ".join(header.split()) == "format files sessions new events calls paired skipped"
    assert row.split()[:4] == ["claude-code", "2", "1", "1"]
    listed = closeloop(home, "list", "attempts").stdout
    assert "claude-code" in listed
    name = listed.splitlines()[1].split()[0]
    shown = closeloop(home, "show", name)
    assert shown.returncode == 0
    assert shown.stdout.startswith("session  claude-code ")
    assert "None" not in shown.stdout.splitlines()[0]
    assert " from start to end · " in shown.stdout, "a person may have been away in between"
    assert "hands over to" in shown.stdout
    assert closeloop(home, "show", name, "--json").returncode == 0


def test_an_import_ends_with_what_can_be_learned_today(home: Path) -> None:
    told = closeloop(home, "import").stdout
    lessons = told[told.index("Summary of your sessions") :].splitlines()
    assert lessons[1].startswith(" 2 sessions from ")
    assert "agents: " in told
    (shown,) = {line.split()[-1] for line in lessons if line.startswith("   closeloop show")} or {
        ""
    }
    assert closeloop(home, "show", shown).returncode == 0
    (line,) = [line for line in lessons if line.startswith(" most likely failed: ")]
    report = json.loads(closeloop(home, "triage", "--since", "all", "--json").stdout)
    reasons = report["sessions"][0]["reasons"]
    speaking = [reason["text"] for reason in reasons if reason["effect"] < 0][:2]
    assert line.endswith(f" ({'; '.join(speaking) or 'no sign of failure'})")
    assert lessons[-1].startswith("closeloop serve ")
    assert closeloop(home, "import").stdout.endswith("\n".join(lessons) + "\n"), "again, the same"
    assert "Summary of your sessions" not in closeloop(home, "import", "--json").stdout


def test_a_home_without_agents_says_what_to_do(tmp_path: Path) -> None:
    result = closeloop(tmp_path, "import")
    assert result.returncode == 2
    assert "give a file or a folder" in result.stderr


@pytest.mark.parametrize("times", [1, 2])
def test_nothing_that_can_be_read_is_exit_2_however_often(tmp_path: Path, times: int) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/notes.txt").write_text("hello")
    for _ in range(times):
        result = closeloop(tmp_path, "import", "in")
    assert result.returncode == 2
    assert "Nothing could be read: 1 file skipped, which is not a recording" in result.stderr
    assert not (tmp_path / ".closeloop").exists(), "nothing is left behind"
    assert "notes.txt" not in result.stderr
    named = closeloop(tmp_path, "import", "in", "--verbose").stderr
    assert f"not a recording: {tmp_path / 'in/notes.txt'}" in named
    for number in range(25):
        (tmp_path / f"in/notes-{number}.txt").write_text("hello")
    named = closeloop(tmp_path, "import", "in", "--verbose").stderr
    assert "… and 6 more that are not recordings" in named
    absent = closeloop(tmp_path, "import", "absent")
    assert absent.returncode == 2
    assert "absent: No such file or directory" in absent.stderr


@pytest.mark.parametrize("times", [1, 2])
def test_a_recording_without_a_session_is_exit_2_however_often(tmp_path: Path, times: int) -> None:
    with zipfile.ZipFile(tmp_path / "run.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_journal/start.json", '{"version": 2, "eval": {"task": "t"}}')
        archive.writestr("samples/1_epoch_1.json", '{"id": 1, "epoch"')
    for _ in range(times):
        result = closeloop(tmp_path, "import", "run.eval")
    assert result.returncode == 2
    assert ("inspect-eval" if times == 1 else "1 unchanged file") in result.stdout
    assert "no recording contains a complete session" in result.stderr


def test_a_path_that_does_not_exist_leaves_no_store(tmp_path: Path) -> None:
    result = closeloop(tmp_path, "import", "absent")
    assert result.returncode == 2
    assert "absent: No such file or directory" in result.stderr
    assert not (tmp_path / ".closeloop").exists()


def test_the_own_store_is_not_searched(home: Path) -> None:
    assert imported(home, ".pi")["others"] == 0
    assert (home / ".closeloop/closeloop.db").exists()
    assert not [path for path in imported(home, ".")["other_paths"] if ".closeloop/" in path]


def test_half_a_document_is_named_but_other_broken_files_are_not(home: Path) -> None:
    (home / "in").mkdir()
    talk = '{"sessionId": "s", "messages": [{"id": "1", "type": "user", "content": "hi"}, {"id'
    (home / "in/half.json").write_text(talk)
    (home / "in/settings.json").write_text('{"size": 1, // a comment\n}')
    alone = closeloop(home, "import", "in")
    assert alone.returncode == 2
    assert "in/half.json: JSON that is broken or ends in the middle" in alone.stderr
    assert "settings.json" not in alone.stderr
    assert closeloop(home, "import", "in", ".pi").returncode == 0


def test_what_could_not_be_read_is_named_and_the_rest_is_imported(home: Path) -> None:
    result = closeloop(home, "import", ".pi", "absent")
    assert result.returncode == 0
    assert "absent: No such file or directory" in result.stderr
    assert "pi" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--since", "yesterday"), "a date such as 2026-11-01"),
        (("--jobs", "0"), "--jobs must be more than 0"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    home: Path, arguments: tuple[str, ...], said: str
) -> None:
    result = closeloop(home, "import", *arguments)
    assert result.returncode == 2
    assert said in result.stderr


def test_sessions_with_results_and_no_call_are_counted_and_named(home: Path) -> None:
    told = {
        "info": {"exit_status": "LimitsExceeded"},
        "trajectory_format": "mini-swe-agent-1",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Fix it."},
            {"role": "assistant", "content": "RUN ls"},
            {"role": "user", "content": "<returncode>0</returncode>\n<output>\na\n</output>"},
        ],
    }
    (home / "x.traj.json").write_text(json.dumps(told))
    result = closeloop(home, "import", "x.traj.json")
    assert result.returncode == 0
    assert "mini-swe-agent: 1 session holds results but no calls" in " ".join(result.stderr.split())
    assert "1 × result without a call" in " ".join(result.stdout.split())
    assert "no calls" not in closeloop(home, "import", ".claude").stderr


def test_watching_goes_on_reading(home: Path) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-m", "closeloop", "import", "inbox", "--watch", "--jobs", "1"],
        cwd=home,
        env={**os.environ, "HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        time.sleep(1)
        shutil.copytree(FIXTURES / "pi", home / "copied")
        (home / "copied").rename(home / "inbox")
        assert watching.stdout is not None
        assert watching.stdout.readline().split()[0] == "format"
        assert watching.stdout.readline().split()[0] == "pi"
    finally:
        watching.kill()
        watching.wait()


def test_every_format_is_written_and_ours_is_read_again(home: Path) -> None:
    imported(home)
    rows = json.loads(closeloop(home, "list", "attempts", "--json").stdout)["items"]
    name = rows[0]["id"]
    lines = closeloop(home, "export", name, "--table", "events").stdout.splitlines()
    assert len(lines) == rows[0]["events"]
    assert {json.loads(line)["attempt"] for line in lines}
    assert (
        closeloop(home, "export", name, "--table", "events", "--out", "-").stdout.splitlines()
        == lines
    )
    swallowed = closeloop(home, "export", name, "--table", "events", "--out", "--log")
    assert (swallowed.returncode, "Unknown option: --log" in swallowed.stderr) == (2, True)
    assert closeloop(home, "export", "--table", "events", "--out", "events.parquet").returncode == 0
    assert (home / "events.parquet").read_bytes()[:4] == b"PAR1"
    assert closeloop(home, "export", "--atif", "--out", "out").returncode == 0
    assert len(list((home / "out").glob("*.json"))) == len(rows)
    assert closeloop(home, "export", "--otlp", "--out", "spans.jsonl").returncode == 0
    again = imported(home, "out", "spans.jsonl")
    assert again["formats"]["atif"]["sessions"] == len(rows)
    assert again["formats"]["otlp"]["sessions"] == len(rows)


def test_an_export_needs_one_format_and_something_to_write(tmp_path: Path) -> None:
    for arguments in (("export",), ("export", "--atif", "--otlp")):
        result = closeloop(tmp_path, *arguments)
        assert result.returncode == 2
        assert "Choose one: --atif" in result.stderr
    assert "There is no store" in closeloop(tmp_path, "export", "--table", "events").stderr
    (tmp_path / ".closeloop").mkdir()
    open_store(str(tmp_path / ".closeloop/closeloop.db")).close()
    assert "nothing to export" in closeloop(tmp_path, "export", "--table", "events").stderr


def test_a_closed_pipe_ends_an_export_without_a_complaint(home: Path) -> None:
    imported(home)
    for kind in ("--log", "--otlp", "--table=events"):
        command = [sys.executable, "-m", "closeloop", "export", *kind.split("=")]
        with subprocess.Popen(
            command, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as export:
            assert export.stdout is not None
            assert export.stderr is not None
            export.stdout.close()
            assert export.stderr.read() == b"", kind


def test_an_export_that_fails_leaves_no_draft(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), open_output_file(tmp_path / "a.csv"):
        raise ValueError("no")
    assert not list(tmp_path.iterdir())
