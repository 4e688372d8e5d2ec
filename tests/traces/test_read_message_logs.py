"""Cursor, Droid, Kimi CLI and Kiro: files with one message of the dialogue a line."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from read_back import FIXTURES, REAL, actions, recognised_by, sessions, told, written

from closeloop.records.trace import Command, Edit, Session
from closeloop.traces.readers import cursor, droid, kimi, kiro

CURSOR = FIXTURES / "cursor" / "5e12d300-1f90-4409-b098-1f5da9ca345d.jsonl"
DROID = FIXTURES / "droid" / "0d9f2c1e-0000-4000-8000-000000000001.jsonl"
KIMI = FIXTURES / "kimi" / "context.jsonl"
SHARED_CURSOR = REAL / "cursor" / "agent_sessions_fixture" / "cursor_large.jsonl"
REQUEST = ("user", "request", "The sum in sums.py is wrong: make the test pass.")


def only(path: Path, reader: object) -> Session:
    (session,) = sessions(reader, path)  # type: ignore[arg-type]
    return session


def test_a_transcript_of_cursor_is_read_event_by_event() -> None:
    session = only(CURSOR, cursor)
    assert told(session) == [
        REQUEST,
        ("thought", "I look at it first."),
        ("agent", None, "I read the file."),
        ("read", "sums.py", None),
        ("change", "sums.py", "n[1:]", "n", True),
        ("run", "python3 test_sums.py", 0, "parsed", None),
        ("agent", "claim", "The sum is right, and the test passes."),
    ]
    assert (session.id, session.agent, session.exit) == (CURSOR.stem, "cursor", "finished")
    assert len(session.trace.lanes[0].turns) == 4


def test_a_transcript_without_results_was_not_cut_off(tmp_path: Path) -> None:
    text = "\n".join(line for line in CURSOR.read_text().splitlines()[:6] if "result" not in line)
    assert only(written(tmp_path / "x.jsonl", text), cursor).exit == "finished"
    cut = "\n".join(CURSOR.read_text().splitlines()[:6])
    assert only(written(tmp_path / "y.jsonl", cut), cursor).exit == "crashed"


@pytest.mark.skipif(not SHARED_CURSOR.exists(), reason="no shared recordings")
def test_the_shared_transcript_of_cursor_is_read() -> None:
    assert recognised_by(SHARED_CURSOR) == ["cursor"]
    session = only(SHARED_CURSOR, cursor)
    ran, read = actions([session])
    assert isinstance(ran, Command)
    assert (ran.command, ran.output) == ("ls -la", "file1.txt\nfile2.txt")
    assert told(session)[-1] == ("agent", "claim", "You are welcome.")
    assert read.text == "hello world"  # type: ignore[union-attr]


def test_a_session_of_droid_is_read_with_its_settings() -> None:
    session = only(DROID, droid)
    assert told(session) == [
        ("system", None, "<system-reminder>"),
        REQUEST,
        ("agent", None, "I run the test."),
        ("run", "python3 test_sums.py", None, None, None),
        ("change", "/tmp/sums/sums.py", "n[1:]", "n", True),
        ("agent", "claim", "The sum is right now."),
    ]
    assert (session.model, session.directory) == ("claude-sonnet-4", "/tmp/sums")
    usage = session.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (100, 10, 20)
    assert session.started is not None
    assert session.trace.skipped == {"todo_state": 1}
    ran, _ = actions([session])
    assert ran.output == "AssertionError: 5 != 6"  # type: ignore[union-attr]


def test_a_session_of_kimi_is_read_with_its_exit_codes() -> None:
    session = only(KIMI, kimi)
    assert told(session) == [
        REQUEST,
        ("system", None, "<system-reminder>"),
        ("thought", "First the test."),
        ("agent", None, "I run the test."),
        ("run", "python3 test_sums.py", 1, "parsed", None),
        ("change", "sums.py", "n[1:]", "n", True),
        ("read", "sums.py", True),
        ("run", "python3 test_sums.py", 0, "parsed", None),
        ("agent", "claim", "The sum is right, and the test passes."),
    ]
    assert session.system == "You are Kimi CLI."
    assert session.trace.skipped == {"_checkpoint": 2, "_usage": 4}


def test_an_edit_that_failed_says_so(tmp_path: Path) -> None:
    failed = "<system>ERROR: No replacements were made. The old string was not found.</system>"
    lines = KIMI.read_text().splitlines()
    lines[10] = lines[10].replace(
        "<system>File successfully edited. Applied 1 edit(s) with 1 total replacement(s).</system>",
        failed,
    )
    session = only(written(tmp_path / "context.jsonl", "\n".join(lines)), kimi)
    (edit,) = [event for event in actions([session]) if isinstance(event, Edit)]
    assert (edit.ok, edit.error) == (False, failed)


def test_a_conversation_of_kiro_is_read_from_its_database_or_where_it_was_saved(
    tmp_path: Path,
) -> None:
    saved = FIXTURES / "kiro" / "saved.json"
    base = sqlite3.connect(tmp_path / "data.sqlite3")
    base.execute("CREATE TABLE conversations_v2 (key TEXT, conversation_id TEXT, value TEXT)")
    base.execute("CREATE TABLE conversations (key TEXT PRIMARY KEY, value TEXT)")
    row = ("/tmp/sums", "8f0c2a34", saved.read_text())
    base.execute("INSERT INTO conversations_v2 VALUES (?, ?, ?)", row)
    base.execute("INSERT INTO conversations VALUES ('/tmp/other', '{}')")
    base.commit()
    base.close()
    assert recognised_by(tmp_path / "data.sqlite3") == ["kiro"]
    stored = only(tmp_path / "data.sqlite3", kiro)
    session = only(saved, kiro)
    assert told(stored) == told(session)
    assert stored.trace.skipped == {}
    assert told(session) == [
        REQUEST,
        ("agent", None, "I run the test."),
        ("run", "python3 test_sums.py", 1, "parsed", None),
        ("read", "/tmp/sums/sums.py", True),
        ("change", "/tmp/sums/sums.py", "n[1:]", "n", True),
        ("change", "/tmp/sums/a.py", "x", "y", False),
        ("agent", "claim", "The sum is right now."),
    ]
    assert (session.directory, session.model) == ("/tmp/sums", "claude-sonnet-4")
    ran = actions([session])[0]
    assert ran.output == "AssertionError: 5 != 6"  # type: ignore[union-attr]


def test_a_table_of_conversations_of_another_program_is_not_kiros(tmp_path: Path) -> None:
    base = sqlite3.connect(tmp_path / "x.db")
    base.execute("CREATE TABLE conversations (key TEXT, value TEXT)")
    base.execute("INSERT INTO conversations VALUES ('a', '{}')")
    base.commit()
    base.close()
    assert recognised_by(tmp_path / "x.db") == []
