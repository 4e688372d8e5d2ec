"""Sessions of Cline's command line: their calls, their agents, and what is beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from closeloop.records.attempt import Usage
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Message,
    Read,
    Session,
    Thought,
)
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import cline, gemini


def read(path: Path) -> Session:
    source = FileSource(path)
    assert cline.recognises(source)
    assert not gemini.recognises(source)
    (session,) = cline.read(source)
    return session


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def brief(event: AnyEvent) -> Any:
    match event:
        case Message():
            return (event.role, event.intent, event.text)
        case Command():
            return (event.command, event.exit_code, event.exit_from)
        case Edit():
            return (event.path, event.action, event.ok)
        case Read():
            return (event.path, event.ok)
        case Handoff():
            return (event.child, event.report)
        case Thought():
            return event.text
    return event


def cli(folder: Path, name: str, *messages: Any, **more: Any) -> Path:
    """The messages of a session of Cline's command line."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.rpartition('__')[2]}.messages.json"
    about = {"version": 1, "updated_at": "2026-11-15T05:46:00Z", "agent": "lead"}
    path.write_text(json.dumps({**about, "sessionId": name, "messages": list(messages), **more}))
    return path


def asked(number: int, words: str) -> dict[str, Any]:
    return {"id": f"u{number}", "role": "user", "content": [text(words)]}


def called(number: int, name: str, given: Any, content: Any, **more: Any) -> list[dict[str, Any]]:
    use = {"type": "tool_use", "id": f"t{number}", "name": name, "input": given}
    metrics = {"inputTokens": 100, "outputTokens": 8, "cacheReadTokens": 60,
               "cacheWriteTokens": 10, "cost": 0.5}  # fmt: skip
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": content, **more}
    return [
        {"role": "assistant", "ts": 1_700_000_000_000 + number, "content": [use],
         "modelInfo": {"id": "m-1", "provider": "p"}, "metrics": metrics},
        {"role": "user", "content": [result]},
    ]  # fmt: skip


def test_a_session_of_the_command_line_is_told_call_by_call(tmp_path: Path) -> None:
    failed = {"query": "make", "result": "[Command exited with code 2]\nno rule",
              "error": "Command exited with code 2", "success": False}  # fmt: skip
    lied = {"query": "ls", "result": "[Command exited with code 7]", "success": True}
    edited = json.dumps({"query": "edit:/w/a", "result": "Edited /w/a", "success": True})
    reads = [
        {"query": "/w/a", "result": "1 | x", "success": True},
        {"query": "/w/b", "result": "", "error": "Error reading file", "success": False},
    ]
    path = cli(
        tmp_path / "1784_a",
        "1784_a",
        asked(1, '<user_input mode="act">Fix it.</user_input>'),
        *called(1, "run_commands", {"commands": ["make", {"command": "ls", "args": ["-l", "a b"]}]},
                [failed, lied]),
        *called(2, "read_files", {"files": [{"path": "/w/a"}, {"path": "/w/b"}]}, reads),
        *called(3, "editor", {"path": "/w/a", "old_text": "x", "new_text": "y"}, edited),
        *called(4, "ask_question", {"question": "Sure?", "options": ["y", "n"]}, "y"),
        *called(5, "spawn_agent", {"systemPrompt": "p", "task": "Count."}, '{"text": "3"}'),
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, text("Done.")]},
        system_prompt="You are Cline.",
        origin={"version": "3.99.0"},
    )  # fmt: skip
    session = read(path)
    assert [brief(event) for event in session.trace.events] == [
        ("user", "request", "Fix it."),
        ("make", 2, "parsed"),
        ("ls -l 'a b'", 0, "parsed"),
        ("/w/a", True),
        ("/w/b", False),
        ("/w/a", "change", True),
        ("agent", "question", "Sure?"),
        ("user", "answer", "y"),
        (None, '{"text": "3"}'),
        "Hm.",
        ("agent", "claim", "Done."),
    ]
    assert (session.id, session.agent, session.agent_version) == ("1784_a", "cline", "3.99.0")
    assert (session.model, session.system, session.summary) == ("m-1", "You are Cline.", "Done.")
    assert session.usage == Usage(
        input_tokens=150, output_tokens=40, cache_read_tokens=300, cache_write_tokens=50, cost=2.5,
        cost_from="reported",
    )  # fmt: skip


def test_agents_that_the_command_line_sent_off_are_lanes_of_their_session(tmp_path: Path) -> None:
    folder = tmp_path / "s1"
    path = cli(
        folder, "s1", asked(1, "Go."), *called(1, "spawn_agent", {"task": "Count."}, "3 files")
    )
    child = cli(folder, "s1__agent-7", asked(1, "Count."), *called(1, "look", {}, "x"),
                agent="subagent")  # fmt: skip
    about = folder / "s1.json"
    about.write_text(json.dumps({
        "session_id": "s1", "pid": 1, "started_at": "2026-11-15T05:42:00Z", "status": "cancelled",
        "cwd": "/w",
    }))  # fmt: skip
    assert set(cline.parts(FileSource(path))) == {child, about}
    for part in (child, about):
        assert cline.recognises(FileSource(part))
        assert cline.owner(FileSource(part)) == path
    session = read(path)
    assert [lane.id for lane in session.trace.lanes] == ["root", "s1__agent-7"]
    [handoff] = [event for event in session.trace.events if isinstance(event, Handoff)]
    assert (handoff.child, handoff.report) == ("s1__agent-7", "3 files")
    assert (session.directory, session.exit) == ("/w", "gave_up")


def test_a_sessions_messages_without_any_are_no_session(tmp_path: Path) -> None:
    source = FileSource(cli(tmp_path, "s1"))
    assert cline.recognises(source)
    assert list(cline.read(source)) == []
