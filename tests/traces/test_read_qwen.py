"""Qwen Code's chats and what it prints."""

from __future__ import annotations

import json
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
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import claude_code, claude_stream, qwen

FIXTURES = Path(__file__).parent / "fixtures"
CHAT = next((FIXTURES / "qwen" / "chats").glob("*.jsonl"))
STREAM = FIXTURES / "qwen_stream" / "stream.jsonl"
USAGE = {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}


def read(path: Path) -> Session:
    source = FileSource(path)
    assert qwen.recognises(source)
    [session] = qwen.read(source)
    return session


def record(kind: str, *parts: Any, **more: Any) -> dict[str, Any]:
    head = {"uuid": "u", "parentUuid": None, "sessionId": "s1", "timestamp": "2026-01-01T00:00:00Z"}
    role = "model" if kind == "assistant" else "user"
    about = {"type": kind, "cwd": "/workspace", "version": "1.0"}
    return head | about | {"message": {"role": role, "parts": list(parts)}} | more


def system(subtype: str, **payload: Any) -> dict[str, Any]:
    return record("system", subtype=subtype, systemPayload=payload) | {"message": None}


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"functionCall": {"id": f"{name}-1", "name": name, "args": args}}


def result(name: str, status: str | None = "success", **response: Any) -> dict[str, Any]:
    part = {"functionResponse": {"id": f"{name}-1", "name": name, "response": response}}
    said = {"callId": f"{name}-1"} | ({"status": status} if status else {})
    return record("tool_result", part, toolCallResult=said)


def write(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in records]
    path.write_text("".join(lines))
    return path


def chat(folder: Path, *records: Any) -> Session:
    return read(write(folder / "chats" / "s1.jsonl", *records))


def kinds(session: Session) -> list[tuple[str, str, int | None]]:
    return [(type(event).__name__, event.lane, event.turn) for event in session.trace.events]


def test_a_recorded_chat_is_told_event_by_event() -> None:
    session = read(CHAT)
    child = "general-purpose-"
    told = [(kind, lane[: len(child)], turn) for kind, lane, turn in kinds(session)]
    assert told == [
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
        ("Message", child, 1),
        ("Read", child, 1),
        ("Message", child, 2),
        ("Message", "root", 7),
    ]
    events = session.trace.events
    commands = [event for event in events if isinstance(event, Command)]
    assert [(event.exit_code, event.exit_from) for event in commands] == [
        (1, "parsed"),
        (0, "parsed"),
    ]
    edits = [event for event in events if isinstance(event, Edit)]
    assert [(event.ok, event.action) for event in edits] == [
        (False, "change"),
        (True, "change"),
        (True, "create"),
    ]
    assert [event.patch is not None for event in edits] == [False, True, True]
    assert [event.ok for event in events if isinstance(event, Read)] == [True, False, True]
    assert all(event.seconds is not None for event in events if event.call)
    assert session.summary is not None
    assert session.summary.endswith("the review found nothing.")
    assert (session.agent_version, session.directory) == ("0.15.10", "/tmp/workspace")
    assert session.trace.skipped == {"bookkeeping: attribution_snapshot": 3}


def test_a_sub_agent_without_a_file_is_known_from_telemetry() -> None:
    session = read(CHAT)
    [handoff] = [event for event in session.trace.events if isinstance(event, Handoff)]
    _, lane = session.trace.lanes
    assert (lane.id, lane.parent, lane.agent) == (handoff.child, "root", "general-purpose")
    assert handoff.report == "The rounding is right: half a cent goes up."
    assert handoff.ok is True
    assert len(lane.turns) == 2


def test_the_chat_and_the_printed_stream_agree() -> None:
    printed, recorded = read(STREAM), read(CHAT)
    end = json.loads(STREAM.read_text().splitlines()[-1])["usage"]
    for session in (printed, recorded):
        assert session.usage.input_tokens == end["input_tokens"]
        assert session.usage.output_tokens == end["output_tokens"]
        assert session.exit == "finished"
    root = [turn.usage for turn in recorded.trace.lanes[0].turns]
    assert [(one.input_tokens, one.output_tokens) for one in root] == [
        (turn.usage.input_tokens, turn.usage.output_tokens) for turn in printed.trace.lanes[0].turns
    ]
    calls = [event.call for event in printed.trace.events if event.lane == "root" and event.call]
    assert calls == [e.call for e in recorded.trace.events if e.lane == "root" and e.call]
    [handoff] = [event for event in printed.trace.events if isinstance(event, Handoff)]
    assert handoff.child == printed.trace.lanes[1].id
    assert handoff.report == "The rounding is right: half a cent goes up."
    assert all(e.exit_code is None for e in printed.trace.events if isinstance(e, Command))


def test_exactly_one_reader_takes_each_file() -> None:
    for path in (CHAT, STREAM):
        assert not claude_code.recognises(FileSource(path))
        assert not claude_stream.recognises(FileSource(path))
    for folder in ("claude_code", "claude_stream"):
        for path in (FIXTURES / folder).rglob("*.jsonl"):
            assert not qwen.recognises(FileSource(path))


def test_a_sub_agents_file_is_a_lane_of_the_call_that_started_it(tmp_path: Path) -> None:
    inside = {"isSidechain": True, "agentId": "explore-7f", "agentName": "explore"}
    child = write(
        tmp_path / "subagents" / "s1" / "agent-explore-7f.jsonl",
        record("user", {"text": "Look around"}, **inside),
        record("assistant", {"text": "I look."}, usageMetadata=USAGE, **inside),
        record("assistant", call("glob", pattern="*"), **inside),
        result("glob", None, output="a.py") | inside,
        record("assistant", {"text": "Only a.py."}, usageMetadata=USAGE, **inside),
    )
    meta = child.with_suffix(".meta.json")
    meta.write_text(json.dumps({"agentType": "explore", "toolUseId": "agent-1"}))
    hidden = {"event.name": "qwen-code.api_response", "input_token_count": 9}
    session = chat(
        tmp_path,
        record("user", {"text": "Fix it"}),
        record("assistant", call("agent", prompt="Look around"), usageMetadata=USAGE),
        system("ui_telemetry", uiEvent=hidden | {"prompt_id": "s1#explore-7f#0"}),
        result("agent", output="Only a.py."),
    )
    main = tmp_path / "chats" / "s1.jsonl"
    assert list(qwen.parts(FileSource(main))) == [child, meta]
    assert qwen.owner(FileSource(child)) == main
    assert kinds(session) == [
        ("Message", "root", None),
        ("Handoff", "root", 1),
        ("Message", "explore-7f", None),
        ("Message", "explore-7f", 1),
        ("ToolUse", "explore-7f", 1),
        ("Message", "explore-7f", 2),
    ]
    [handoff] = [event for event in session.trace.events if isinstance(event, Handoff)]
    assert (handoff.child, handoff.report) == ("explore-7f", "Only a.py.")
    [tool] = [event for event in session.trace.events if isinstance(event, ToolUse)]
    assert (tool.output, tool.ok) == ("a.py", True)
    assert session.usage.input_tokens == 300
    main.unlink()
    assert qwen.owner(FileSource(child)) is None
    alone = read(child)
    assert (alone.id, alone.parent) == ("explore-7f", "s1")


def test_cached_and_thought_tokens_are_part_of_what_an_openai_provider_counts(
    tmp_path: Path,
) -> None:
    usage = USAGE | {"cachedContentTokenCount": 60, "thoughtsTokenCount": 15}
    session = chat(tmp_path, record("assistant", {"text": "Hi"}, usageMetadata=usage))
    counted = session.usage
    assert (counted.input_tokens, counted.cache_read_tokens) == (40, 60)
    assert (counted.output_tokens, counted.reasoning_tokens) == (20, 15)


def test_thoughts_are_not_words(tmp_path: Path) -> None:
    parts = [{"text": "Hm.", "thought": True}, {"text": "Hello."}]
    session = chat(tmp_path, record("assistant", *parts))
    thought, words = session.trace.events
    assert isinstance(thought, Thought)
    assert isinstance(words, Message)
    assert (thought.text, words.text) == ("Hm.", "Hello.")


def test_a_branch_tells_only_what_its_origin_does_not(tmp_path: Path) -> None:
    copied = record("user", {"text": "One"}, forkedFrom={"sessionId": "s0", "messageUuid": "u"})
    new = record("user", {"text": "Two"})
    session = chat(tmp_path, copied, new)
    assert session.parent == "s0"
    assert [e.text for e in session.trace.events if isinstance(e, Message)] == ["One", "Two"]
    write(tmp_path / "chats" / "s0.jsonl", record("user", {"text": "One"}) | {"sessionId": "s0"})
    session = chat(tmp_path, copied, new)
    note, said = session.trace.events
    assert isinstance(note, Note)
    assert isinstance(said, Message)
    assert (note.about, said.text) == ("fork", "Two")


def test_what_is_not_talk_is_noted(tmp_path: Path) -> None:
    history = [{"role": "user", "parts": [{"text": "<state_snapshot>"}]}]
    error = {"event.name": "qwen-code.api_error", "error_message": "429", "prompt_id": "p"}
    session = chat(
        tmp_path,
        record("user", {"text": "Go"}),
        record("user", {"text": "<task-notification>"}, subtype="notification"),
        record("user", {"text": "And faster"}, subtype="mid_turn_user_message"),
        system("chat_compression", info={}, compressedHistory=history),
        system("rewind", truncatedCount=2),
        system("hologram", mood="fine"),
        system("file_history_snapshot", snapshots=[]),
        system("ui_telemetry", uiEvent=error),
    )
    notes = [event.about for event in session.trace.events if isinstance(event, Note)]
    assert notes == ["compaction", "rewind", "unknown: hologram", "error"]
    said = [(e.role, e.intent) for e in session.trace.events if isinstance(e, Message)]
    assert said == [("user", "request"), ("system", None), ("user", None)]
    assert session.trace.skipped == {"bookkeeping: file_history_snapshot": 1}
    assert (session.exit, session.cause) == ("crashed", "429")


def test_questions_have_answers_and_rejections_are_corrections(tmp_path: Path) -> None:
    asked = call("ask_user_question", questions=[{"question": "Which?", "header": "Kind"}])
    session = chat(
        tmp_path,
        record("assistant", asked, call("write_file", file_path="a", content="b")),
        result("ask_user_question", output="User has provided the following answers: Blue"),
        result("write_file", "cancelled", error="[Operation Cancelled] Reason: no"),
    )
    said = [(e.role, e.intent) for e in session.trace.events if isinstance(e, Message)]
    assert said == [("agent", "question"), ("user", "answer"), ("user", "correction")]
    [edit] = [event for event in session.trace.events if isinstance(event, Edit)]
    assert edit.ok is False


def test_ids_that_come_twice_are_paired_in_order(tmp_path: Path) -> None:
    twice = [call("read_file", file_path=name) for name in "ab"]
    results = [result("read_file", output=text) for text in ("A", "B", "C")]
    session = chat(tmp_path, record("assistant", *twice), *results)
    reads = [(e.path, e.text) for e in session.trace.events if isinstance(e, Read)]
    assert reads == [("a", "A"), ("b", "B")]
    notes = [event.about for event in session.trace.events if isinstance(event, Note)]
    assert notes == ["result without a call"]


def test_a_first_line_longer_than_what_is_looked_at_is_recognised(tmp_path: Path) -> None:
    session = chat(tmp_path, record("user", {"text": "x" * 100_000}), record("user", {"text": "y"}))
    assert len(session.trace.events) == 2


@pytest.mark.parametrize(
    "line",
    [
        {"uuid": "u", "parentUuid": None, "sessionId": "s", "message": {"content": "Hi"}},
        {"uuid": "u", "sessionId": "s", "type": "system"},
        {"role": "user", "parts": [{"text": "Hi"}]},
        {"type": "system", "subtype": "init", "session_id": "s", "claude_code_version": "2"},
    ],
)
def test_other_lines_are_refused(line: dict[str, Any], tmp_path: Path) -> None:
    assert not qwen.recognises(FileSource(write(tmp_path / "x.jsonl", line)))
