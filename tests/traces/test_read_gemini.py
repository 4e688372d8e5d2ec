"""Gemini CLI's session files."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

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
from closeloop.traces.file_source import FileSource, installed_readers
from closeloop.traces.readers import gemini

FIXTURES = Path(__file__).parent / "fixtures" / "gemini"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "gemini_cli_session"
HEADER = {"sessionId": "s1", "projectHash": "f00", "startTime": "2026-01-01T00:00:00Z"}


def main_file() -> Path:
    return next(FIXTURES.glob("session-*.jsonl"))


def read(path: Path) -> Session:
    source = FileSource(path)
    assert gemini.recognises(source)
    [session] = gemini.read(source)
    return session


def log(path: Path, *records: Any) -> Session:
    """A session from the records of a patch log."""
    path.write_text("".join(json.dumps(record) + "\n" for record in (HEADER, *records)))
    return read(path)


def message(name: str, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "timestamp": "2026-01-01T00:00:01Z",
        "type": kind,
        "content": content,
    } | more


def call(name: str, status: str = "success", **more: Any) -> dict[str, Any]:
    response = {"id": f"{name}-1", "name": name, "response": {"output": more.pop("output", "")}}
    result = [{"functionResponse": response}]
    return {"id": f"{name}-1", "name": name, "args": {}, "result": result, "status": status} | more


def one(session: Session, kind: type) -> Any:
    [event] = [event for event in session.trace.events if isinstance(event, kind)]
    return event


def test_a_recorded_session_is_told_event_by_event() -> None:
    session = read(main_file())
    events = session.trace.events
    child = next(FIXTURES.glob("*/*.jsonl")).stem
    assert [(type(event).__name__, event.lane, event.turn) for event in events] == [
        ("Message", "root", None),
        ("Message", "root", None),
        ("Message", "root", 1),
        ("Command", "root", 1),
        ("Message", "root", 2),
        ("Read", "root", 2),
        ("Read", "root", 2),
        ("Edit", "root", 3),
        ("Message", "root", 4),
        ("Edit", "root", 4),
        ("Command", "root", 5),
        ("Edit", "root", 5),
        ("Message", "root", 6),
        ("Handoff", "root", 6),
        ("Message", child, None),
        ("Message", child, 1),
        ("Read", child, 1),
        ("Message", child, 2),
        ("Note", child, None),
        ("Message", "root", 7),
    ]
    said = [(e.role, e.intent) for e in events if isinstance(e, Message) and e.lane == "root"]
    assert said[:3] == [("system", None), ("user", "request"), ("agent", None)]
    assert said[-1] == ("agent", "claim")
    assert session.summary is not None
    assert session.summary.endswith("the review found nothing.")
    assert (session.exit, session.model, session.directory) == (
        "finished",
        "gemini-2.5-pro",
        "/tmp/workspace",
    )
    assert session.started is not None
    assert session.ended is not None
    assert session.started < session.ended


def test_commands_edits_and_reads_have_their_results() -> None:
    events = read(main_file()).trace.events
    commands = [event for event in events if isinstance(event, Command)]
    assert [(event.exit_code, event.exit_from) for event in commands] == [
        (1, "parsed"),
        (0, "parsed"),
    ]
    assert "FAILED (failures=1)" in (commands[0].output or "")
    failed, edited, created = (event for event in events if isinstance(event, Edit))
    assert (failed.ok, failed.action) == (False, "change")
    assert failed.error is not None
    assert failed.error.startswith("Could not find an exact match")
    assert (edited.ok, edited.before) == (True, "return int(amount * 100) / 100")
    assert edited.patch is not None
    assert "+    return int(amount * 100 + 0.5) / 100" in edited.patch
    assert (created.ok, created.action, created.after) == (True, "create", "Half a cent goes up.\n")
    found, missing, again = (event for event in events if isinstance(event, Read))
    assert (found.ok, missing.ok, again.ok) == (True, False, True)
    assert found.text == "def rounded(amount):\n    return int(amount * 100) / 100\n"
    assert missing.error == "File not found: /tmp/workspace/rates.py"


def test_a_sub_agent_is_a_lane_of_its_parent() -> None:
    session = read(main_file())
    handoff = one(session, Handoff)
    root, child = session.trace.lanes
    assert (child.id, child.parent, child.agent) == (handoff.child, "root", "generalist")
    assert handoff.ok is True
    assert handoff.brief.startswith("REVIEW-BRIEF")
    assert "half a cent goes up" in handoff.report
    claim = [e for e in session.trace.events if isinstance(e, Message) and e.lane == child.id][-1]
    assert (claim.intent, claim.text) == ("claim", "The rounding is right: half a cent goes up.")
    assert (len(root.turns), len(child.turns)) == (7, 2)


def test_tokens_are_those_the_agent_itself_prints_at_the_end() -> None:
    printed = FIXTURES.parent / "gemini_stream" / "stream.jsonl"
    stats = json.loads(printed.read_text().splitlines()[-1])["stats"]
    usage = read(main_file()).usage
    assert usage.input_tokens == stats["input_tokens"]
    assert usage.output_tokens == stats["output_tokens"]


def test_parts_and_owner_name_each_other() -> None:
    main, child = main_file(), next(FIXTURES.glob("*/*.jsonl"))
    assert list(gemini.parts(FileSource(main))) == [child]
    assert gemini.owner(FileSource(child)) == main
    assert gemini.owner(FileSource(main)) is None
    assert gemini.parts(FileSource(child)) == ()


def test_a_child_without_its_parent_is_a_session_that_names_it(tmp_path: Path) -> None:
    child = next(FIXTURES.glob("*/*.jsonl"))
    copy = tmp_path / child.parent.name / child.name
    copy.parent.mkdir()
    shutil.copy(child, copy)
    assert gemini.owner(FileSource(copy)) is None
    session = read(copy)
    assert (session.id, session.parent) == (child.stem, child.parent.name)


def test_a_child_whose_call_was_never_recorded_is_a_lane_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "s1").mkdir()
    log(tmp_path / "s1" / "c.jsonl", {"$set": {"kind": "subagent", "sessionId": "c1"}})
    header = HEADER | {"sessionId": "c1", "kind": "subagent"}
    lines = [header, message("m", "user", "Look.")]
    (tmp_path / "s1" / "c.jsonl").write_text("\n".join(map(json.dumps, lines)))
    session = log(tmp_path / "s.jsonl", message("u", "user", "Hello"))
    assert [(lane.id, lane.parent) for lane in session.trace.lanes] == [
        ("root", None),
        ("c1", "root"),
    ]
    assert [event.lane for event in session.trace.events] == ["root", "c1"]


def test_a_later_line_replaces_the_earlier_of_the_same_id(tmp_path: Path) -> None:
    tokens = {"input": 10, "output": 2, "cached": 4, "thoughts": 0, "tool": 0, "total": 12}
    session = log(
        tmp_path / "s.jsonl",
        message("a", "gemini", "Now.", tokens=tokens),
        message("b", "user", "Go on"),
        message("a", "gemini", "Now.", tokens=tokens, toolCalls=[call("list_directory")]),
    )
    assert [type(event) for event in session.trace.events] == [Message, ToolUse, Message]
    assert session.usage.input_tokens == 6
    assert session.usage.cache_read_tokens == 4
    assert len(session.trace.lanes[0].turns) == 1


def test_a_rewind_is_noted_and_what_it_took_back_happened(tmp_path: Path) -> None:
    session = log(
        tmp_path / "s.jsonl",
        message("a", "user", "One"),
        message("b", "gemini", "Done."),
        {"$rewindTo": "b"},
        message("b", "gemini", "Done differently."),
    )
    texts = [getattr(event, "text", "") for event in session.trace.events]
    assert texts == ["One", "Done.", "1 message was taken back, to before b.", "Done differently."]
    assert one(session, Note).about == "rewind"


def test_compaction_is_noted_and_loses_nothing(tmp_path: Path) -> None:
    masked = message("b", "gemini", "", toolCalls=[call("run_shell_command", output="[masked]")])
    real = message("b", "gemini", "", toolCalls=[call("run_shell_command", output="real")])
    summary = message("z", "user", [{"text": "<state_snapshot>short</state_snapshot>"}])
    session = log(
        tmp_path / "s.jsonl",
        message("a", "user", "One"),
        real,
        {"$set": {"messages": [summary, masked]}},
        message("c", "gemini", "Two"),
    )
    assert one(session, Note).about == "compaction"
    assert "<state_snapshot>" in one(session, Note).text
    assert [e.output for e in session.trace.events if isinstance(e, ToolUse)] == ["real"]
    assert [e.text for e in session.trace.events if isinstance(e, Message)] == ["One", "Two"]


def test_the_document_of_older_versions_is_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    thoughts = [{"subject": "Plan", "description": "Look.", "timestamp": "2026-01-01T00:00:02Z"}]
    tokens = {"input": 100, "output": 5, "cached": 40, "thoughts": 7, "tool": 0, "total": 112}
    spoken = message("b", "gemini", [{"text": "Hi"}, "!"], thoughts=thoughts, tokens=tokens)
    document = HEADER | {"messages": [message("a", "user", "Hello"), spoken]}
    path.write_text(json.dumps(document, indent=2))
    session = read(path)
    assert [type(event) for event in session.trace.events] == [Message, Thought, Message]
    assert one(session, Thought).text == "Plan\nLook."
    assert one(session, Thought).at == datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert session.trace.events[-1].text == "Hi!"  # type: ignore[union-attr]
    usage = session.usage
    assert (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens) == (60, 12, 7)


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ("Command: x\nOutput: y\nError: (none)\nExit Code: 0\nSignal: 0\nProcess Group PGID: 7", 0),
        ("Command: x\nOutput: y\nExit Code: 127\nSignal: 0\nBackground PIDs: (none)", 127),
        ("Command: x\nOutput: Exit Code: 3\nExit Code: (none)\nSignal: 9", None),
        ("Output: Exit Code: 3\nmore\nProcess Group PGID: 7", 0),
        ("Output: y\nExit Code: 2\nProcess Group PGID: 7", 2),
        ("Output: y\nSignal: 9\nProcess Group PGID: 7", None),
        ("<untrusted_context>\nOutput: y\nProcess Group PGID: 7\n</untrusted_context>", 0),
        ("Output too large. Showing first 1 and last 2.\ny\nProcess Group PGID: 7", 0),
        ("Command moved to background (PID: 7). Output hidden.", None),
        ("Command was cancelled by user before it could complete.", None),
        ("", None),
    ],
)
def test_an_exit_code_is_what_stands_below_the_output(
    output: str, code: int | None, tmp_path: Path
) -> None:
    ran = call("run_shell_command", output=output, args={"command": "x"})
    session = log(tmp_path / "s.jsonl", message("a", "gemini", "", toolCalls=[ran]))
    assert one(session, Command).exit_code == code
    assert one(session, Command).exit_from == (None if code is None else "parsed")


def test_calls_without_a_result_stay_open_until_one_comes(tmp_path: Path) -> None:
    open_call = {
        "id": "r",
        "name": "read_file",
        "args": {"file_path": "a", "offset": 4, "limit": 2},
    }
    result = {"functionResponse": {"id": "r", "response": {"output": "text"}}}
    asked = message("a", "gemini", [{"functionCall": open_call}])
    waiting = one(log(tmp_path / "a.jsonl", asked), Read)
    assert (waiting.ok, waiting.text) == (None, None)
    assert (waiting.first_line, waiting.last_line) == (5, 6)
    session = log(tmp_path / "b.jsonl", asked, message("b", "user", [result, result]))
    assert one(session, Read).text == "text"


def test_rejections_questions_and_interrupts_are_the_users_words(tmp_path: Path) -> None:
    rejected = call("write_file", "cancelled", args={"file_path": "a", "content": "b"})
    rejected["result"][0]["functionResponse"]["response"] = {
        "error": "[Operation Cancelled] Reason: User did not allow tool call"
    }
    questions = {"questions": [{"question": "Which one?", "header": "Kind"}]}
    question = call("ask_user", args=questions, output='{"answers":{"0":"Blue"}}')
    session = log(
        tmp_path / "s.jsonl",
        message("a", "user", "One"),
        message("b", "gemini", "", toolCalls=[rejected, question]),
        message("c", "info", "Request cancelled."),
    )
    said = [(e.intent, e.text) for e in session.trace.events if isinstance(e, Message)]
    assert said[1:] == [
        ("correction", "[Operation Cancelled] Reason: User did not allow tool call"),
        ("question", "Which one?"),
        ("answer", "Blue"),
        ("interrupt", "Request cancelled."),
    ]
    assert one(session, Edit).ok is False


def test_an_interrupt_is_told_once_by_the_calls_it_stopped(tmp_path: Path) -> None:
    stopped = [
        call("run_shell_command", "cancelled", args={"command": name}) for name in ("a", "b")
    ]
    for one_of_them in stopped:
        one_of_them["result"][0]["functionResponse"]["response"] = {
            "error": "[Operation Cancelled] Reason: Operation cancelled by user"
        }
    session = log(
        tmp_path / "s.jsonl",
        message("a", "user", "One"),
        message("b", "gemini", "", toolCalls=stopped),
        message("c", "info", "Request cancelled."),
        message("d", "user", "Not so."),
    )
    events = session.trace.events
    assert [e.stopped for e in events if isinstance(e, Command)] == ["interrupted"] * 2
    intents = [event.intent for event in events if isinstance(event, Message)]
    assert intents == ["request", "interrupt", "correction"]


def test_a_command_out_of_time_says_so(tmp_path: Path) -> None:
    words = "Command was automatically cancelled because it exceeded the timeout of 5.0 minutes."
    ran = call("run_shell_command", output=words, args={"command": "x"})
    session = log(tmp_path / "s.jsonl", message("a", "gemini", "", toolCalls=[ran]))
    assert one(session, Command).stopped == "out of time"


def test_a_sub_agent_is_known_by_what_is_shown_of_it(tmp_path: Path) -> None:
    shown = "\nSubagent codebase_investigator Finished\n\nResult:\nAll seen."
    given = call("codebase_investigator", args={"question": "Where?"}, resultDisplay=shown)
    session = log(tmp_path / "s.jsonl", message("a", "gemini", "", toolCalls=[given]))
    assert one(session, Handoff).brief == "Where?"


def test_a_sub_agent_that_failed_is_not_a_success(tmp_path: Path) -> None:
    shown = {"isSubagentProgress": True, "state": "error"}
    arguments = {"objective": "Look around"}
    given = call("codebase_investigator", args=arguments, resultDisplay=shown, output="failed")
    session = log(tmp_path / "s.jsonl", message("a", "gemini", "", toolCalls=[given]))
    handoff = one(session, Handoff)
    assert (handoff.brief, handoff.ok, handoff.child) == ("Look around", False, None)


def test_notices_unknown_records_and_faults_are_kept(tmp_path: Path) -> None:
    session = log(
        tmp_path / "s.jsonl",
        message("a", "warning", "Careful"),
        message("b", "hologram", "?"),
        {"$set": {"mood": "fine", "lastUpdated": "2026-01-02T00:00:00Z"}},
        ["what"],
        message("c", "error", "The API broke"),
    )
    abouts = [event.about for event in session.trace.events if isinstance(event, Note)]
    assert abouts == ["warning", "unknown: hologram", "unknown: mood", "unknown: record", "error"]
    assert (session.exit, session.cause) == ("crashed", "The API broke")
    assert session.ended == datetime(2026, 1, 2, tzinfo=UTC)
    assert session.trace.skipped == {}


def test_tokens_of_nothing_but_zeros_are_not_believed(tmp_path: Path) -> None:
    zeros = dict.fromkeys(("input", "output", "cached", "thoughts", "tool", "total"), 0)
    session = log(tmp_path / "s.jsonl", message("a", "gemini", "Hi", tokens=zeros))
    assert session.usage.input_tokens is None


@pytest.mark.parametrize("name", ["../../etc", "..", "/tmp", "a/b", "\0", "x" * 5000, ""])
def test_a_session_id_never_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(HEADER | {"sessionId": name}) + "\n")
    assert gemini.parts(FileSource(path)) == ()
    assert read(path).id


def test_the_agents_other_files_are_refused(tmp_path: Path) -> None:
    for content in (
        [{"sessionId": "s", "messageId": 0, "type": "user", "message": "Hello"}],
        {"history": [{"role": "user", "parts": [{"text": "Hello"}]}]},
        {"sessionId": "s", "messages": []},
        {"projects": {"/tmp/workspace": "workspace"}},
    ):
        path = tmp_path / "file.json"
        path.write_text(json.dumps(content))
        assert not gemini.recognises(FileSource(path))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared recordings are not here")
def test_every_shared_recording_is_read_whole() -> None:
    for path in sorted(SHARED.rglob("*.json")):
        assert [
            reader.name for reader in installed_readers() if reader.recognises(FileSource(path))
        ] == ["gemini"]
        session = read(path)
        document = json.loads(path.read_text())
        calls = [tool for one in document["messages"] for tool in one.get("toolCalls") or ()]
        events = [event for event in session.trace.events if event.call is not None]
        assert [event.call for event in events] == [tool["id"] for tool in calls]
        for event in events:
            assert isinstance(event, Command | Edit | Read | ToolUse), event
            if isinstance(event, Command):
                assert event.exit_code is not None
                assert event.output
            else:
                assert event.ok is True
        tokens = [one["tokens"] for one in document["messages"] if one.get("tokens")]
        fresh = sum(count["input"] - count["cached"] for count in tokens)
        assert (session.usage.input_tokens or 0) == fresh
        assert not session.trace.skipped
