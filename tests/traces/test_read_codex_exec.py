from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Message,
    Note,
    Session,
    Thought,
    ToolUse,
)
from closeloop.traces.file_source import FileSource, installed_readers
from closeloop.traces.readers import codex_exec

FIXTURES = Path(__file__).parent / "fixtures" / "codex_exec"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "codex_exec_json"
RECORDINGS = sorted(SHARED.rglob("*.jsonl")) if SHARED.is_dir() else []
ANSWER = "billing.py now rounds half a cent up; the tests pass and the review found nothing."
BRIEF = "REVIEW-BRIEF: read billing.py and say whether half a cent goes up. Change nothing."
REVIEW = "Half a cent goes up. Nothing else changed."
TEST = "python3 -m unittest -q 2>&1"


def read(path: Path) -> list[Session]:
    return list(codex_exec.read(FileSource(path)))


def told(event: AnyEvent) -> tuple[Any, ...]:
    """An event in a line."""
    match event:
        case Message():
            return (event.role, event.intent, event.text)
        case Command():
            return ("run", event.command, event.exit_code, event.exit_from)
        case Edit():
            return (event.action, Path(event.path).name, event.ok)
        case Handoff():
            return ("handoff", event.brief, event.report, event.ok)
        case ToolUse():
            return ("tool", event.name, event.output, event.ok)
        case Note():
            return ("note", event.about, event.text)
        case Thought():
            return ("thought", event.text)
    return (type(event).__name__,)


def printed(folder: Path, *records: Any) -> Path:
    path = folder / "out.txt"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def item(kind: str, step: str = "completed", /, **details: Any) -> dict[str, Any]:
    return {"type": f"item.{step}", "item": {"id": "item_0", "type": kind, **details}}


START: dict[str, Any] = {"type": "thread.started", "thread_id": "t"}


def test_a_recording_is_read_event_by_event() -> None:
    (session,) = read(FIXTURES / "direct.jsonl")
    *lines, closed, last = [told(event) for event in session.trace.events]
    # Codex tells the files of a patch in any order.
    lines[3:5] = sorted(lines[3:5])
    assert lines[:-1] == [
        ("agent", None, "Let me see what fails."),
        ("run", TEST, 1, "stated"),
        ("agent", None, "The amount is cut, not rounded."),
        ("change", "billing.py", True),
        ("create", "NOTES.md", True),
        ("run", f"sleep 1; {TEST}", 0, "stated"),
        ("agent", None, "Now a review."),
        ("handoff", BRIEF, REVIEW, True),
    ]
    assert [line[1] for line in (lines[-1], closed)] == ["wait", "close_agent"]
    assert last == ("agent", "claim", ANSWER)
    assert all(event.turn == 1 and event.at is None for event in session.trace.events)
    assert (session.exit, session.summary, session.model) == ("finished", ANSWER, None)
    counted = json.loads((FIXTURES / "direct.jsonl").read_text().splitlines()[-1])["usage"]
    assert session.usage.input_tokens == counted["input_tokens"] > 0
    assert session.usage.output_tokens == counted["output_tokens"] > 0


def test_the_thread_is_the_one_of_its_rollout() -> None:
    for path in FIXTURES.glob("*.jsonl"):
        (session,) = read(path)
        rollouts = (FIXTURES.parent / "codex" / path.stem).rglob("*.jsonl")
        assert any(session.id in rollout.name for rollout in rollouts)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("bash -lc 'cat a'", "cat a"),
        ("/bin/zsh -lc pwd", "pwd"),
        ("""bash -lc "sed -n '1p' a" """.strip(), "sed -n '1p' a"),
        (r'''bash -lc "echo \"a\" 'b'"''', """echo "a" 'b'"""),
        ("bash -lc 'a' 'b'", "bash -lc 'a' 'b'"),
        ("bash -lc '", "bash -lc '"),
        ("git status", "git status"),
    ],
)
def test_the_shell_around_a_command_is_taken_off(command: str, line: str, tmp_path: Path) -> None:
    done = item("command_execution", command=command, exit_code=None, status="failed")
    (session,) = read(printed(tmp_path, START, done))
    assert told(session.trace.events[0]) == ("run", line, None, None)


def test_an_item_that_begins_and_ends_is_one_event(tmp_path: Path) -> None:
    command = {"command": "ls", "aggregated_output": "a", "exit_code": 0, "status": "completed"}
    begun = item("command_execution", "started", **{**command, "exit_code": None})
    done = item("command_execution", **command)
    lost = item("command_execution", "started", command="sleep 9", exit_code=None)
    (session,) = read(printed(tmp_path, START, begun, done, begun, done, lost))
    assert [told(event) for event in session.trace.events] == [
        ("run", "ls", 0, "stated"),
        ("run", "ls", 0, "stated"),
        ("run", "sleep 9", None, None),
    ]
    assert [e.output for e in session.trace.events if isinstance(e, Command)] == ["a", "a", None]


def test_a_declined_command_has_no_exit_code(tmp_path: Path) -> None:
    declined = item("command_execution", command="rm x", exit_code=None, status="declined")
    (session,) = read(printed(tmp_path, START, declined))
    (command,) = session.trace.events
    assert isinstance(command, Command)
    assert (command.exit_code, command.stopped) == (None, "rejected")


def test_a_connection_tried_again_is_no_failure_but_a_failed_turn_is(tmp_path: Path) -> None:
    again = {"type": "error", "message": "Re-connecting... 1/5"}
    usage = {"input_tokens": 5, "cached_input_tokens": 2}
    ended = {"type": "turn.completed", "usage": usage}
    (session,) = read(printed(tmp_path, START, {"type": "turn.started"}, again, ended))
    assert (session.exit, session.usage.input_tokens) == ("finished", 3)
    assert told(session.trace.events[0]) == ("note", "error", "Re-connecting... 1/5")
    failed = {"type": "turn.failed", "error": {"message": "No credit."}}
    (session,) = read(printed(tmp_path, START, {"type": "turn.started"}, failed))
    assert (session.exit, session.cause) == ("crashed", "No credit.")
    (session,) = read(printed(tmp_path, START, {"type": "turn.started"}))
    assert (session.exit, session.cause) == ("gave_up", "The recording ends within a turn.")


def test_usage_is_of_the_thread_so_far_and_counted_once(tmp_path: Path) -> None:
    turns = [
        record
        for total in (100, 250)
        for record in (
            {"type": "turn.started"},
            {"type": "turn.completed", "usage": {"input_tokens": total, "output_tokens": 9}},
        )
    ]
    (session,) = read(printed(tmp_path, START, *turns))
    (lane,) = session.trace.lanes
    assert [turn.usage.input_tokens for turn in lane.turns] == [100, 150]
    assert session.usage.output_tokens == 9


def test_a_plan_is_kept_once_for_each_change(tmp_path: Path) -> None:
    one, two = [{"text": "a", "completed": False}], [{"text": "a", "completed": True}]
    lines = [
        item("todo_list", "started", items=one),
        item("todo_list", "updated", items=two),
        item("todo_list", items=two),
    ]
    (session,) = read(printed(tmp_path, START, *lines))
    assert [e.arguments for e in session.trace.events if isinstance(e, ToolUse)] == [
        {"items": one},
        {"items": two},
    ]


def test_tools_thoughts_and_searches_are_kept(tmp_path: Path) -> None:
    content = {"content": [{"type": "text", "text": "found"}]}
    tool = {"server": "docs", "tool": "find", "arguments": {"q": 1}}
    lines = [
        item("reasoning", text="Hm."),
        item("mcp_tool_call", "started", **tool, status="in_progress"),
        item("mcp_tool_call", **tool, result=content, status="completed"),
        item("mcp_tool_call", **tool, error={"message": "down"}, status="failed"),
        item("web_search", query="q"),
        item("error", message="Careful."),
        item("oracle", text="?"),
        {"type": "prophecy"},
    ]
    (session,) = read(printed(tmp_path, START, *lines))
    shown = [told(event) for event in session.trace.events]
    assert shown[:6] == [
        ("thought", "Hm."),
        ("tool", "mcp__docs__find", "found", True),
        ("tool", "mcp__docs__find", "down", False),
        ("tool", "web_search", None, None),
        ("note", "error", "Careful."),
        ("note", "unknown: oracle", '{"id":"item_0","type":"oracle","text":"?"}'),
    ]
    assert shown[6][1] == "unknown: prophecy"


def test_two_threads_in_one_file_are_two_sessions(tmp_path: Path) -> None:
    other = {"type": "thread.started", "thread_id": "u"}
    path = printed(tmp_path, START, item("agent_message", text="a"), START, other)
    assert [session.id for session in read(path)] == ["t", "u"]


def test_a_warning_before_the_first_line_does_not_hide_it(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text('Reading prompt from stdin...\n{"type":"thread.started","thread_id":"t"}\n')
    source = FileSource(path)
    assert codex_exec.recognises(source)
    assert [session.id for session in codex_exec.read(source)] == ["t"]
    assert source.skipped == {"a line that is not JSON": 1}


@pytest.mark.parametrize(
    ("records", "known"),
    [
        ([START], True),
        ([{"type": "session.created", "session_id": "t"}], True),
        ([{"type": "turn.started"}, item("agent_message", text="a")], True),
        ([{"type": "thread.started"}], False),
        ([{"type": "error", "message": "x"}], False),
        ([{"type": "error", "message": "x"}, {"type": "error", "message": "y"}], False),
        ([{"type": "turn.started", "turn": 1, "agent": "x"}, {"type": "turn.completed"}], False),
        ([{"type": "item.completed", "item": {"title": "a"}}] * 2, False),
    ],
)
def test_only_its_own_files_are_recognised(records: list[Any], known: bool, tmp_path: Path) -> None:
    assert codex_exec.recognises(FileSource(printed(tmp_path, *records))) is known


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_every_shared_recording_is_read_without_loss_or_doubles(path: Path) -> None:
    assert [r.name for r in installed_readers() if r.recognises(FileSource(path))] == ["codex-exec"]
    source = FileSource(path)
    (session,) = codex_exec.read(source)
    assert source.skipped == {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    done = [line["item"] for line in lines if line["type"] == "item.completed"]
    commands = [event for event in session.trace.events if isinstance(event, Command)]
    expected = [item for item in done if item["type"] == "command_execution"]
    assert [(c.exit_code, c.output) for c in commands] == [
        (item["exit_code"], item["aggregated_output"]) for item in expected
    ]
    edits = [event for event in session.trace.events if isinstance(event, Edit)]
    changes = [c for item in done if item["type"] == "file_change" for c in item["changes"]]
    assert [edit.path for edit in edits] == [change["path"] for change in changes]
    usages = [line["usage"] for line in lines if line["type"] == "turn.completed"]
    usage = session.usage
    assert (usage.input_tokens or 0) + (usage.cache_read_tokens or 0) == usages[-1]["input_tokens"]
