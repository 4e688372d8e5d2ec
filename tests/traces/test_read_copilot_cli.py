"""Copilot CLI's events: a small session in the measured shape, the traps, and real recordings."""

from __future__ import annotations

import json
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
from closeloop.traces.readers import copilot_cli

FIXTURE = Path(__file__).parent / "fixtures" / "copilot_cli" / "events.jsonl"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "copilot_cli"


def read(path: Path) -> Session:
    source = FileSource(path)
    assert copilot_cli.recognises(source)
    (session,) = copilot_cli.read(source)
    return session


def made(tmp_path: Path, *records: tuple[str, dict[str, Any]]) -> Session:
    path = tmp_path / "events"
    begun = ("session.start", {"sessionId": "s", "context": {}})
    lines = [
        {"type": kind, "data": data, "id": str(n), "parentId": None,
         "timestamp": f"2026-01-01T00:00:{n:02d}Z"}
        for n, (kind, data) in enumerate([begun, *records])
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, lines)))
    return read(path)


def test_a_session_is_told_event_by_event() -> None:
    session = read(FIXTURE)
    told = []
    for event in session.trace.events:
        match event:
            case Message():
                what: Any = (event.role, event.intent, event.text)
            case Command():
                what = (event.command, event.exit_code, event.exit_from)
            case Edit():
                what = (event.before, event.ok, event.error)
            case Read():
                what = (event.path, event.first_line, event.last_line)
            case Handoff():
                what = (event.child, event.report)
            case _:
                what = event.about if isinstance(event, Note) else None
        told.append((event.lane, event.turn, what))
    test, explored = "python -m unittest -q", "`total` adds floats and does not round."
    assert told == [
        ("root", None, ("user", "request", "The test of billing.py fails: make it pass.")),
        (
            "root",
            1,
            ("agent", None, "I run the test, and a sub-agent looks where totals are made."),
        ),
        ("root", 1, (test, 1, "parsed")),
        ("root", 1, ("agent call_task", explored)),
        ("agent call_task", 1, ("/workspace/billing.py", 1, 2)),
        ("agent call_task", 2, ("agent", None, explored)),
        ("root", 2, ("agent", "question", "Round to cents?")),
        ("root", None, ("user", "answer", "Yes")),
        ("root", 3, ("return total(prices)", False, "No match found")),
        ("root", 4, ("agent", None, "That text is not there.")),
        ("root", 4, ("return sum(prices)", True, None)),
        ("root", 5, ("git push --force", None, None)),
        ("root", None, "permission"),
        ("root", None, ("user", "correction", "Never push.")),
        ("root", None, ("user", "interrupt", "user_initiated")),
        ("root", None, ("user", "correction", "Run the test again.")),
        ("root", 6, (test, 0, "parsed")),
        ("root", None, "compaction"),
        ("root", None, "unknown: session.tool_belt"),
        ("root", 7, ("agent", "claim", "`total` rounds to cents now, and the test passes.")),
    ]


def test_what_the_session_says_of_itself_is_kept() -> None:
    session = read(FIXTURE)
    assert (session.id, session.agent_version) == ("7c0ffee0-0000-4000-8000-000000000001", "1.0.64")
    assert (session.model, session.system) == ("scripted-large", "You are a terminal assistant.")
    assert (session.directory, session.branch, session.commit) == ("/workspace", "main", "0" * 40)
    assert session.links == {"repository": "example/billing"}
    assert session.exit == "finished"
    assert session.trace.skipped == {}


def test_tokens_come_from_the_end_and_cached_input_is_not_fresh() -> None:
    session = read(FIXTURE)
    assert session.usage == Usage(
        input_tokens=1500, output_tokens=206, cache_read_tokens=7000, cache_write_tokens=500
    )
    turns = [turn.usage.output_tokens for lane in session.trace.lanes for turn in lane.turns]
    assert sum(tokens or 0 for tokens in turns) == 206


def test_without_an_end_only_what_answers_state_is_counted(tmp_path: Path) -> None:
    session = made(
        tmp_path,
        ("assistant.message", {"messageId": "a", "content": "x", "outputTokens": 5}),
        ("assistant.message", {"messageId": "b", "content": "y", "outputTokens": 0}),
    )
    assert session.usage == Usage(output_tokens=5)


def test_an_answer_told_twice_is_one_turn(tmp_path: Path) -> None:
    answer = {"messageId": "a", "apiCallId": "api", "content": "x", "outputTokens": 5}
    session = made(tmp_path, ("assistant.message", answer), ("assistant.message", answer))
    assert session.usage == Usage(output_tokens=5)


def test_hooks_repeat_what_tools_say_and_are_no_events(tmp_path: Path) -> None:
    hook = {"hookType": "postToolUse", "input": {"toolName": "bash", "toolResult": {}}}
    session = made(tmp_path, ("hook.start", hook), ("hook.end", hook))
    assert session.trace.events == ()


def test_a_call_that_only_started_has_no_result(tmp_path: Path) -> None:
    session = made(
        tmp_path,
        ("assistant.turn_start", {"turnId": "0"}),
        (
            "tool.execution_start",
            {"toolCallId": "c", "toolName": "bash", "arguments": {"command": "x"}},
        ),
    )
    (event,) = session.trace.events
    assert isinstance(event, Command)
    assert (event.output, event.exit_code, event.seconds) == (None, None, None)
    assert (session.exit, session.cause) == (
        "crashed", "the recording ends in the middle of a turn",
    )  # fmt: skip


def test_a_patch_given_as_bare_text_is_an_edit(tmp_path: Path) -> None:
    patch = "*** Begin Patch\n*** Update File: a.py\n-1\n+2\n*** End Patch"
    session = made(
        tmp_path,
        (
            "tool.execution_start",
            {"toolCallId": "c", "toolName": "apply_patch", "arguments": patch},
        ),
        (
            "tool.execution_complete",
            {"toolCallId": "c", "success": True, "result": {"content": "ok"}},
        ),
    )
    (event,) = session.trace.events
    assert isinstance(event, Edit)
    assert (event.path, event.patch, event.ok) == ("a.py", patch, True)


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ("ok\n<exited with exit code 101>", 101),
        ("<command with id: 7 exited with exit code 3>", 3),
        (
            "log: <shellId: 1 completed with exit code 9>\n<shellId: 2 completed with exit code 0>",
            0,
        ),
    ],
)
def test_an_exit_code_is_the_one_that_stands_last(output: str, code: int, tmp_path: Path) -> None:
    session = made(tmp_path, *ran("c", "powershell", {"command": "make"}, output))
    (command,) = session.trace.events
    assert isinstance(command, Command)
    assert (command.exit_code, command.exit_from) == (code, "parsed")


def ran(call: str, tool: str, given: dict[str, Any], output: str) -> list[tuple[str, Any]]:
    start = {"toolCallId": call, "toolName": tool, "arguments": given}
    end = {"toolCallId": call, "success": True, "result": {"content": output}}
    return [("tool.execution_start", start), ("tool.execution_complete", end)]


def test_a_command_left_running_gets_its_exit_code_when_it_ends(tmp_path: Path) -> None:
    ended = "bad\n<command with id: 4 exited with exit code 2>"
    going = "<command with shellId: 4 is still running after 30 seconds.>"
    session = made(
        tmp_path,
        *ran("a", "bash", {"command": "make"}, going),
        *ran("b", "read_bash", {"shellId": "4"}, going),
        *ran("c", "read_bash", {"shellId": "4"}, ended),
    )
    command = session.trace.events[0]
    assert isinstance(command, Command)
    assert (command.exit_code, (command.output or "").startswith(going)) == (2, True)


def test_a_question_that_nobody_was_there_for_has_no_answer(tmp_path: Path) -> None:
    nobody = "The user is not available to respond and will review your work later."
    session = made(tmp_path, *ran("q", "ask_user", {"question": "Which?"}, nobody))
    question, note = session.trace.events
    assert isinstance(question, Message)
    assert isinstance(note, Note)
    assert (question.intent, note.about) == ("question", "question unanswered")


def test_what_copilot_prints_is_read_like_its_file(tmp_path: Path) -> None:
    def line(kind: str, data: dict[str, Any], **more: Any) -> dict[str, Any]:
        at = "2026-01-01T00:00:00Z"
        return {"type": kind, "data": data, "id": "1", "parentId": "0", "timestamp": at, **more}

    lines = [
        line("session.mcp_server_status_changed", {"status": "pending"}, ephemeral=True),
        line("mcp.tools.list_changed", {}, ephemeral=True),
        line("session.new_in_some_version", {}, ephemeral=True),
        line("user.message", {"content": "Do it"}),
        line("assistant.message", {"content": "Done.", "messageId": "m"}),
        {"type": "result", "timestamp": "2026-01-01T00:00:01Z", "sessionId": "s9", "exitCode": 1},
    ]
    path = tmp_path / "printed.json"
    path.write_text("\n".join(map(json.dumps, lines)))
    session = read(path)
    assert [type(event) for event in session.trace.events] == [Message, Message]
    assert (session.id, session.copy, session.exit) == ("s9", "printed", "crashed")


def test_a_patch_of_several_files_is_an_edit_of_each(tmp_path: Path) -> None:
    patch = "*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** Add File: b\n+z\n*** End Patch"
    start = {"toolCallId": "c", "toolName": "apply_patch", "arguments": patch}
    end = {"toolCallId": "c", "success": True, "result": {"content": "Modified 2 files"}}
    session = made(tmp_path, ("tool.execution_start", start), ("tool.execution_complete", end))
    edits = [event for event in session.trace.events if isinstance(event, Edit)]
    assert [(edit.path, edit.action, edit.ok) for edit in edits] == [
        ("a", "change", True),
        ("b", "create", True),
    ]


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        ({"errorType": "quota", "statusCode": 402, "message": "No quota"}, "machine"),
        ({"errorType": "context_limit", "message": "Too long"}, "out_of_budget"),
        ({"errorType": "query", "message": "Broken"}, "crashed"),
    ],
)
def test_what_ended_a_session_is_told_apart(
    error: dict[str, Any], ended: str, tmp_path: Path
) -> None:
    session = made(tmp_path, ("user.message", {"content": "Hi"}), ("session.error", error))
    assert (session.exit, session.cause) == (ended, error["message"])


def test_a_result_without_a_call_is_kept(tmp_path: Path) -> None:
    session = made(tmp_path, ("tool.execution_complete", {"toolCallId": "?", "success": True}))
    (event,) = session.trace.events
    assert isinstance(event, Note)
    assert event.about == "result without a call"


def test_a_changed_system_prompt_is_noted_and_the_same_one_is_not(tmp_path: Path) -> None:
    session = made(
        tmp_path,
        ("system.message", {"content": "one"}),
        ("system.message", {"content": "one"}),
        ("system.message", {"content": "two"}),
    )
    assert session.system == "one"
    assert [event.text for event in session.trace.events if isinstance(event, Note)] == ["two"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared recordings here")
def test_every_call_of_the_real_recordings_is_paired_as_the_file_pairs_it() -> None:
    for path in sorted(SHARED.glob("*.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        session = read(path)
        asked = {
            request["toolCallId"]
            for record in records
            if record["type"] == "assistant.message"
            for request in record["data"]["toolRequests"]
        }
        done = {
            record["data"]["toolCallId"]
            for record in records
            if record["type"] == "tool.execution_complete"
        }
        calls = [event for event in session.trace.events if event.call]
        assert {event.call for event in calls} == asked
        assert len(calls) == len(asked), "no call is told twice"
        assert {event.call for event in calls if event.seconds is not None} == done & asked
        answers = [record for record in records if record["type"] == "assistant.message"]
        assert len(session.trace.lanes[0].turns) == len(answers)
        thought = [record for record in answers if record["data"].get("reasoningText")]
        assert len([e for e in session.trace.events if isinstance(e, Thought)]) == len(thought)
        assert not [e for e in session.trace.events if isinstance(e, ToolUse)]
        commands = [event for event in session.trace.events if isinstance(event, Command)]
        stated = [c for c in commands if "completed with exit code" in (c.output or "")]
        assert all(command.exit_code is not None for command in stated)
        assert session.system
        assert session.trace.skipped == {}
