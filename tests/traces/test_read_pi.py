"""pi's sessions and what it prints."""

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
from closeloop.traces.file_source import FileSource, installed_readers
from closeloop.traces.readers import pi

FIXTURES = Path(__file__).parent / "fixtures" / "pi"
RECORDED = next(FIXTURES.glob("2*.jsonl"))
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "other_agents"
HEADER = {
    "type": "session",
    "version": 3,
    "id": "s1",
    "timestamp": "2026-01-02T00:00:00.000Z",
    "cwd": "/workspace",
}


def read(path: Path) -> Session:
    source = FileSource(path)
    assert pi.recognises(source)
    [session] = pi.read(source)
    return session


def session_of(path: Path, *records: Any, **header: Any) -> Session:
    lines = (HEADER | header, *records)
    path.write_text("".join(json.dumps(record) + "\n" for record in lines))
    return read(path)


def entry(name: str, after: str | None, role: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": content, "timestamp": 1767312000000} | more
    head = {"type": "message", "id": name, "parentId": after}
    return head | {"timestamp": "2026-01-02T00:00:01Z", "message": message}


def called(name: str, **arguments: Any) -> list[dict[str, Any]]:
    return [{"type": "toolCall", "id": "c1", "name": name, "arguments": arguments}]


def one(session: Session, kind: type) -> Any:
    [event] = [event for event in session.trace.events if isinstance(event, kind)]
    return event


def test_a_recorded_session_is_told_event_by_event() -> None:
    session = read(RECORDED)
    events = session.trace.events
    assert [(type(event).__name__, event.turn) for event in events] == [
        ("Note", None),
        ("Note", None),
        ("Message", None),
        ("Message", 1),
        ("Command", 1),
        ("Message", 2),
        ("Read", 2),
        ("Read", 2),
        ("Edit", 3),
        ("Message", 4),
        ("Edit", 4),
        ("Command", 5),
        ("Edit", 5),
        ("Message", 6),
    ]
    commands = [event for event in events if isinstance(event, Command)]
    assert [(event.exit_code, event.exit_from) for event in commands] == [
        (1, "parsed"),
        (0, "parsed"),
    ]
    failed, edited, created = (event for event in events if isinstance(event, Edit))
    assert (failed.ok, edited.ok, created.ok) == (False, True, True)
    assert failed.error is not None
    assert failed.error.startswith("Could not find the exact text")
    assert (edited.before, edited.after) == (
        "return int(amount * 100) / 100",
        "return int(amount * 100 + 0.5) / 100",
    )
    assert edited.patch is not None
    assert "+2     return int(amount * 100 + 0.5) / 100" in edited.patch
    assert (created.action, created.after) == ("create", "Half a cent goes up.\n")
    assert [event.ok for event in events if isinstance(event, Read)] == [True, False]
    intents = [event.intent for event in events if isinstance(event, Message)]
    assert intents == ["request", None, None, None, "claim"]
    assert (session.directory, session.model) == ("/tmp/workspace", "pi-scripted")


def test_tokens_and_money_are_the_sums_of_the_messages() -> None:
    usage = read(RECORDED).usage
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    counts = [line["message"]["usage"] for line in lines if "usage" in line.get("message", {})]
    assert usage.input_tokens == sum(count["input"] for count in counts)
    assert usage.output_tokens == sum(count["output"] for count in counts)
    assert usage.cost == pytest.approx(sum(count["cost"]["total"] for count in counts))
    assert usage.cost_from == "reported"


def test_what_is_printed_tells_the_same_and_nothing_twice() -> None:
    printed, recorded = read(FIXTURES / "printed.jsonl"), read(RECORDED)
    told = [event for event in recorded.trace.events if not isinstance(event, Note)]

    def said(events: Any) -> list[Any]:
        names = ("text", "command", "path", "output", "exit_code", "ok", "call", "turn")
        return [[getattr(event, name, None) for name in names] for event in events]

    assert said(printed.trace.events) == said(told)
    assert printed.usage == recorded.usage
    assert printed.id == recorded.id


def test_a_branch_is_noted_and_what_it_left_happened(tmp_path: Path) -> None:
    session = session_of(
        tmp_path / "s",
        entry("a", None, "user", "One"),
        entry("b", "a", "assistant", [{"type": "text", "text": "Wrong"}]),
        entry("c", "a", "assistant", [{"type": "text", "text": "Right"}]),
    )
    assert [getattr(event, "about", event.text) for event in session.trace.events] == [  # type: ignore[union-attr]
        "One",
        "Wrong",
        "rewind",
        "Right",
    ]


def test_a_fork_is_cut_where_it_begins_when_its_origin_is_there(tmp_path: Path) -> None:
    copied = entry("a", None, "user", "One") | {"timestamp": "2026-01-01T00:00:00Z"}
    new = entry("b", "a", "user", "Two")
    origin = "/home/me/.pi/agent/sessions/--w--/2026_s0.jsonl"
    alone = session_of(tmp_path / "s.jsonl", copied, new, parentSession=origin)
    assert alone.parent == "s0"
    assert [e.text for e in alone.trace.events if isinstance(e, Message)] == ["One", "Two"]
    (tmp_path / "2026_s0.jsonl").write_text("{}")
    session = session_of(tmp_path / "s.jsonl", copied, new, parentSession=origin)
    assert one(session, Note).about == "fork"
    assert one(session, Message).text == "Two"


def test_the_first_version_without_ids_is_read(tmp_path: Path) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    line = {"type": "message", "timestamp": "2025-01-01T00:00:00Z", "message": message}
    path = tmp_path / "s"
    header = {key: value for key, value in HEADER.items() if key != "version"}
    path.write_text(json.dumps(header) + "\n" + json.dumps(line))
    assert one(read(path), Message).text == "Hello"


@pytest.mark.parametrize(
    ("output", "failed", "code", "stopped"),
    [
        ("fine", False, 0, None),
        ("Command exited with code 3\n", False, 0, None),
        ("oh\n\n\nCommand exited with code 3", True, 3, None),
        ("oh\n\nCommand timed out after 5 seconds", True, None, "out of time"),
        ("Command aborted", True, None, None),
    ],
)
def test_how_a_command_ended(
    output: str, failed: bool, code: int | None, stopped: str | None, tmp_path: Path
) -> None:
    session = session_of(
        tmp_path / "s",
        entry("a", None, "assistant", called("bash", command="x")),
        entry("b", "a", "toolResult", [{"type": "text", "text": output}], toolCallId="c1",
              isError=failed),
    )  # fmt: skip
    command = one(session, Command)
    assert (command.exit_code, command.stopped) == (code, stopped)


def test_an_abort_is_an_interrupt_and_an_error_the_end(tmp_path: Path) -> None:
    zeros = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "cost": {"total": 0}}
    session = session_of(
        tmp_path / "s",
        entry("a", None, "user", "One"),
        entry("b", "a", "assistant", [], stopReason="aborted", usage=zeros),
        entry("c", "b", "assistant", [], stopReason="error", errorMessage="529", usage=zeros),
    )
    assert [e.intent for e in session.trace.events if isinstance(e, Message)] == [
        "request",
        "interrupt",
    ]
    assert (session.exit, session.cause) == ("crashed", "529")
    assert session.usage.input_tokens is None
    assert session.usage.cost is None


def test_other_entries_are_notes(tmp_path: Path) -> None:
    head = {"timestamp": "2026-01-02T00:00:01Z"}
    session = session_of(
        tmp_path / "s",
        {"type": "compaction", "summary": "So far", **head},
        {"type": "branch_summary", "summary": "Tried A", **head},
        {"type": "custom_message", "customType": "todo", "content": "Buy milk", **head},
        {"type": "hologram", **head},
        entry("a", None, "bashExecution", None, command="ls", output="a", exitCode=0),
        entry("b", "a", "toolResult", "?", toolCallId="nobody"),
    )
    assert [event.about for event in session.trace.events if isinstance(event, Note)] == [
        "compaction",
        "branch summary",
        "extension: todo",
        "unknown: hologram",
        "command of the user",
        "result without a call",
    ]


def test_a_retry_that_was_given_up_says_why(tmp_path: Path) -> None:
    ended = {"type": "auto_retry_end", "success": False, "attempt": 3, "finalError": "429"}
    note = one(session_of(tmp_path / "s.jsonl", ended), Note)
    assert (note.about, note.text) == ("retry", "429")


def test_thoughts_lines_and_answers(tmp_path: Path) -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm."},
        *called("read", path="a", offset=10, limit=5),
        {"type": "toolCall", "id": "q", "name": "question", "arguments": {"question": "Which?"}},
    ]
    session = session_of(
        tmp_path / "s",
        entry("a", None, "assistant", blocks),
        entry("b", "a", "toolResult", [{"type": "text", "text": "Blue"}], toolCallId="q"),
    )
    assert one(session, Thought).text == "Hm."
    found = one(session, Read)
    assert (found.first_line, found.last_line, found.ok) == (10, 14, None)
    said = [(e.intent, e.text) for e in session.trace.events if isinstance(e, Message)]
    assert said == [("question", "Which?"), ("answer", "Blue")]


def test_the_sub_agents_of_its_extension_are_lanes(tmp_path: Path) -> None:
    inner = [
        {"role": "user", "content": "Task: look"},
        {"role": "assistant", "content": called("ls", path=".")},
        {"role": "toolResult", "toolCallId": "c1", "content": "a.py", "isError": False},
    ]
    details = {"mode": "single", "results": [{"agent": "scout", "messages": inner}]}
    session = session_of(
        tmp_path / "s",
        entry("a", None, "assistant", called("subagent", agent="scout", task="look")),
        entry("b", "a", "toolResult", "Only a.py.", toolCallId="c1", details=details,
              isError=False),
    )  # fmt: skip
    handoff = one(session, Handoff)
    assert (handoff.brief, handoff.report, handoff.ok) == ("look", "Only a.py.", True)
    assert [(lane.id, lane.agent) for lane in session.trace.lanes[1:]] == [(handoff.child, "scout")]
    assert one(session, ToolUse).output == "a.py"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared recordings are not here")
def test_the_shared_recording_is_read_whole() -> None:
    path = SHARED / "pi_large_session.jsonl"
    assert [
        reader.name for reader in installed_readers() if reader.recognises(FileSource(path))
    ] == ["pi"]
    session = read(path)
    messages = [json.loads(line).get("message", {}) for line in path.read_text().splitlines()]
    results = {one["toolCallId"] for one in messages if one.get("role") == "toolResult"}
    wanted = [
        block["id"]
        for one in messages
        if one.get("role") == "assistant"
        for block in one["content"]
        if block["type"] == "toolCall"
    ]
    events = {event.call: event for event in session.trace.events if event.call}
    assert list(events) == wanted
    for call, event in events.items():
        done = [getattr(event, name, None) for name in ("output", "ok", "exit_code")]
        assert any(value is not None for value in done) is (call in results), event
    usage = [one["usage"] for one in messages if "usage" in one]
    assert session.usage.output_tokens == sum(one["output"] for one in usage)
    assert session.usage.cost == pytest.approx(sum(one["cost"]["total"] for one in usage))
    assert session.trace.skipped == {}
