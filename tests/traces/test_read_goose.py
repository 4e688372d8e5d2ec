"""Goose: its database, an exported session, an older file, and the traps of their shapes."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from closeloop.records.attempt import Usage
from closeloop.records.trace import (
    Command,
    Edit,
    Handoff,
    Message,
    Note,
    Read,
    Session,
    Thought,
    ToolUse,
)
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import goose

MADE = Path(__file__).parent / "fixtures" / "goose"


def read(path: Path) -> list[Session]:
    source = FileSource(path)
    assert goose.recognises(source)
    return list(goose.read(source))


def told(tmp_path: Path, *contents: tuple[str, list[Any]]) -> Session:
    """An older file with these messages."""
    path = tmp_path / "20260101_000000.jsonl"
    header = {"working_dir": "/w", "description": "", "message_count": len(contents)}
    messages = [
        {"role": role, "created": 1_700_000_000 + n, "content": content}
        for n, (role, content) in enumerate(contents)
    ]
    path.write_text("\n".join(map(json.dumps, [header, *messages])))
    (session,) = read(path)
    return session


def asked(name: str, call: str = "c", **arguments: Any) -> dict[str, Any]:
    value = {"name": name, "arguments": arguments}
    return {"type": "toolRequest", "id": call, "toolCall": {"status": "success", "value": value}}


def answered(words: str, call: str = "c", **more: Any) -> dict[str, Any]:
    value = {"content": [{"type": "text", "text": words}], **more}
    return {"type": "toolResponse", "id": call, "toolResult": {"status": "success", "value": value}}


def test_the_database_is_told_event_by_event_with_its_child_as_a_lane() -> None:
    (session,) = read(MADE / "sessions.db")
    events = []
    for event in session.trace.events:
        match event:
            case Message():
                what: Any = (event.role, event.intent, event.text)
            case Command():
                what = (event.command, event.exit_code, event.exit_from)
            case Edit():
                what = (event.before, event.after, event.ok)
            case Handoff():
                what = (event.child, event.report, event.ok)
            case _:
                what = getattr(event, "text", None)
        events.append((event.lane, event.turn, what))
    test, found = "python -m unittest -q", "`total` adds floats and does not round."
    child, brief = "20261115_2", "Where are totals made, and are they rounded?"
    assert events == [
        ("root", None, ("user", "request", "The test of billing.py fails: make it pass.")),
        ("root", 1, "The test first."),
        ("root", 1, ("agent", None, "I run the test.")),
        ("root", 1, (test, 1, "stated")),
        ("root", 2, (child, found, True)),
        (child, None, ("user", "request", brief)),
        (child, 1, ("cat billing.py", None, None)),
        (child, 2, ("agent", None, found)),
        ("root", 3, ("return total(prices)", "x", False)),
        ("root", 3, ("sum(prices)", "round(sum(prices), 2)", True)),
        ("root", None, "Totals were repaired; the test is to run."),
        ("root", 4, (test, 0, "stated")),
        ("root", 5, ("agent", "claim", "`total` rounds to cents now, and the test passes.")),
    ]
    assert session.trace.lanes[1].parent == "root"
    assert session.usage == Usage(input_tokens=5900, output_tokens=240)
    assert (session.model, session.directory) == ("scripted-large", "/workspace")


def test_a_child_that_no_session_mentions_is_not_lost(tmp_path: Path) -> None:
    path = Path(shutil.copy(MADE / "sessions.db", tmp_path / "x"))
    with sqlite3.connect(path) as base:
        base.execute("DELETE FROM messages WHERE content_json LIKE '%call_2%'")
    base.close()
    assert [session.id for session in read(path)] == ["20261115_1", "20261115_2"]


def test_an_older_database_without_later_columns_is_read(tmp_path: Path) -> None:
    path = Path(shutil.copy(MADE / "sessions.db", tmp_path / "x"))
    with sqlite3.connect(path) as base:
        for column in ("model_config_json", "provider_name", "session_type", "name"):
            base.execute(f"ALTER TABLE sessions DROP COLUMN {column}")
        base.execute("ALTER TABLE messages DROP COLUMN metadata_json")
        base.execute("ALTER TABLE messages DROP COLUMN message_id")
    base.close()
    (session,) = read(path)
    assert (session.model, len(session.trace.lanes)) == (None, 2)


def test_messages_that_are_not_json_are_counted(tmp_path: Path) -> None:
    path = Path(shutil.copy(MADE / "sessions.db", tmp_path / "x"))
    with sqlite3.connect(path) as base:
        base.execute("UPDATE messages SET content_json = 'x' WHERE id = 1")
    base.close()
    source = FileSource(path)
    assert len(list(goose.read(source))) == 1
    assert source.skipped == {"a message that is not JSON": 1}


def test_an_older_file_is_read_and_named_as_goose_named_it() -> None:
    (session,) = read(MADE / "20261114_234640.jsonl")
    assert session.id == "20261114_234640"
    view = session.trace.events[1]
    assert isinstance(view, Read)
    assert (view.path, view.text, view.ok) == (
        "/workspace/billing.py", "def total(prices): ...", True,
    )  # fmt: skip
    assert session.usage == Usage(input_tokens=1600, output_tokens=90)


def test_an_exported_session_is_read() -> None:
    (session,) = read(MADE / "export.json")
    assert (session.id, session.model, len(session.trace.events)) == (
        "20261115_2", "scripted-large", 3,
    )  # fmt: skip


def test_an_exit_code_is_taken_from_the_last_line_only_where_no_field_says_it(
    tmp_path: Path,
) -> None:
    session = told(
        tmp_path,
        ("assistant", [asked("shell", "a", command="x"), asked("shell", "b", command="y")]),
        ("user", [
            answered("Command exited with code 9\nand more\n\nCommand exited with code 3", "a"),
            answered("Command exited with code 9\nand more", "b"),
        ]),
    )  # fmt: skip
    commands = [event for event in session.trace.events if isinstance(event, Command)]
    assert [(one.exit_code, one.exit_from) for one in commands] == [(3, "parsed"), (None, None)]


def test_ids_that_repeat_are_paired_in_order(tmp_path: Path) -> None:
    session = told(
        tmp_path,
        ("assistant", [asked("tree", path="a"), asked("tree", path="b")]),
        ("user", [answered("first"), answered("second")]),
    )
    assert [e.output for e in session.trace.events if isinstance(e, ToolUse)] == ["first", "second"]


def test_calls_that_could_not_be_read_and_results_that_are_errors_are_failures(
    tmp_path: Path,
) -> None:
    broken = {"type": "toolRequest", "id": "a", "toolCall": {"status": "error", "error": "bad"}}
    failed = {"type": "toolResponse", "id": "b", "toolResult": {"status": "error", "error": "no"}}
    session = told(tmp_path, ("assistant", [broken, asked("tree", "b")]), ("user", [failed]))
    uses = [event for event in session.trace.events if isinstance(event, ToolUse)]
    assert [(one.ok, one.output) for one in uses] == [(False, "bad"), (False, "no")]


def test_a_form_is_a_question_and_what_is_filled_in_its_answer(tmp_path: Path) -> None:
    form = {"actionType": "elicitation", "id": "e", "message": "Which?", "requested_schema": {}}
    filled = {"actionType": "elicitationResponse", "id": "e", "user_data": {"x": 1}}
    session = told(
        tmp_path,
        ("assistant", [{"type": "actionRequired", "data": form}]),
        ("user", [{"type": "actionRequired", "data": filled}]),
    )
    assert [(e.role, e.intent, e.text) for e in session.trace.events if isinstance(e, Message)] == [
        ("agent", "question", "Which?"), ("user", "answer", '{"x":1}'),
    ]  # fmt: skip


def test_an_editor_that_writes_creates_and_one_that_replaces_changes(tmp_path: Path) -> None:
    editor = "developer__text_editor"
    session = told(
        tmp_path,
        ("assistant", [
            asked(editor, "a", command="write", path="p", file_text="t"),
            asked(editor, "b", command="str_replace", path="p", old_str="t", new_str="u"),
        ]),
    )  # fmt: skip
    edits = [event for event in session.trace.events if isinstance(event, Edit)]
    assert [(one.action, one.before, one.after) for one in edits] == [
        ("create", None, "t"), ("change", "t", "u"),
    ]  # fmt: skip


def test_a_child_in_the_background_reports_when_it_is_loaded(tmp_path: Path) -> None:
    session = told(
        tmp_path,
        ("assistant", [asked("delegate", "a", instructions="look")]),
        ("user", [answered("Task 7 started", "a", _meta={"subagent_session_id": "7"})]),
        ("assistant", [asked("load", "b", source="7")]),
        ("user", [answered("found it", "b")]),
    )
    handoff = session.trace.events[0]
    assert isinstance(handoff, Handoff)
    assert (handoff.report, handoff.child) == ("found it", None)


def test_unknown_content_is_kept_and_thoughts_of_both_ages_are_thoughts(tmp_path: Path) -> None:
    session = told(
        tmp_path,
        ("assistant", [
            {"type": "reasoning", "text": "old"}, {"type": "thinking", "thinking": "new"},
            {"type": "hologram"}, {"type": "conversationCompacted", "msg": "shorter"},
        ]),
    )  # fmt: skip
    assert [e.text for e in session.trace.events if isinstance(e, Thought)] == ["old", "new"]
    assert [e.about for e in session.trace.events if isinstance(e, Note)] == [
        "unknown: hologram", "compaction",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "lines",
    [
        [{"message_count": 1}],
        [{"message_count": 1}, {"role": "user", "content": "x"}],
        [{"role": "user", "created": 1, "content": []}] * 2,
    ],
)
def test_other_lines_are_refused(lines: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert not goose.recognises(FileSource(path))
