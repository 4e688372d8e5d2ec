"""What Gemini CLI prints with `--output-format stream-json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from closeloop.records.trace import Command, Edit, Handoff, Message, Note, Read, Session
from closeloop.traces.file_source import FileSource, find_reader
from closeloop.traces.readers import gemini, gemini_stream

FIXTURE = Path(__file__).parent / "fixtures" / "gemini_stream" / "stream.jsonl"
AT = "2026-01-01T00:00:00Z"
INIT = {"type": "init", "timestamp": AT, "session_id": "s1", "model": "gemini-2.5-pro"}


def read(path: Path) -> Session:
    source = FileSource(path)
    assert gemini_stream.recognises(source)
    [session] = gemini_stream.read(source)
    return session


def stream(path: Path, *records: Any) -> Session:
    path.write_text("".join(json.dumps(record) + "\n" for record in (INIT, *records)))
    return read(path)


def said(role: str, text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "timestamp": AT, "role": role, "content": text} | more


def used(name: str, call: str, **parameters: Any) -> dict[str, Any]:
    head = {"type": "tool_use", "timestamp": AT, "tool_name": name, "tool_id": call}
    return head | {"parameters": parameters}


def result(call: str, status: str = "success", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "timestamp": AT, "tool_id": call, "status": status} | more


def test_a_recorded_stream_is_told_event_by_event() -> None:
    session = read(FIXTURE)
    events = session.trace.events
    assert [(type(event).__name__, event.turn) for event in events] == [
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
        ("Handoff", 6),
        ("Message", 7),
    ]
    assert all(event.at is not None for event in events)
    assert all(event.seconds is not None for event in events if event.call)
    assert [event.intent for event in events if isinstance(event, Message)] == [
        "request", None, None, None, None, "claim",
    ]  # fmt: skip
    assert (session.exit, session.model) == ("finished", "gemini-scripted")
    assert [event.ok for event in events if isinstance(event, Edit)] == [False, True, True]
    assert [event.ok for event in events if isinstance(event, Read)] == [True, False]
    assert [event.report for event in events if isinstance(event, Handoff)] == [None]


def test_the_exit_code_of_a_command_is_not_known() -> None:
    commands = [event for event in read(FIXTURE).trace.events if isinstance(event, Command)]
    assert [event.exit_code for event in commands] == [None, None]
    assert "FAILED (failures=1)" in (commands[0].output or "")


def failed(command: Path, output: str | None, why: str | None) -> Command:
    end = result("c", status="error", output=output, error={"type": "x", "message": why})
    session = stream(command, used("run_shell_command", "c", command="make"), end)
    [event] = [event for event in session.trace.events if isinstance(event, Command)]
    return event


def test_a_failed_command_keeps_what_it_printed_and_why_it_failed(tmp_path: Path) -> None:
    trailer = "Output: no rule\nExit Code: 2\nProcess Group PGID: 7"
    event = failed(tmp_path / "s", trailer, "shell: it failed")
    assert event.output == f"{trailer}\nshell: it failed"
    assert (event.exit_code, event.exit_from) == (2, "parsed")
    alone = failed(tmp_path / "s", None, "shell: it failed")
    assert (alone.output, alone.exit_code) == ("shell: it failed", None)
    assert failed(tmp_path / "s", "same", "same").output == "same"


@pytest.mark.parametrize(
    ("printed", "code"),
    [
        ("Command exited with code: 3", 3),
        ("I say: Command exited with code: 3", None),
        ("Output: x\nExit Code: 1\nProcess Group PGID: 7", None),
    ],
)
def test_what_a_command_that_went_well_printed_is_believed_only_where_it_is_alone(
    tmp_path: Path, printed: str, code: int | None
) -> None:
    session = stream(
        tmp_path / "s", used("run_shell_command", "c", command="make"), result("c", output=printed)
    )
    [event] = [event for event in session.trace.events if isinstance(event, Command)]
    assert event.exit_code == code


def test_tokens_are_counted_once_for_the_whole_session() -> None:
    stats = json.loads(FIXTURE.read_text().splitlines()[-1])["stats"]
    usage = read(FIXTURE).usage
    assert (usage.input_tokens, usage.output_tokens) == (
        stats["input_tokens"],
        stats["output_tokens"],
    )


def test_thoughts_are_counted_with_the_output_and_the_cache_apart(tmp_path: Path) -> None:
    stats = {"total_tokens": 150, "input_tokens": 100, "output_tokens": 20, "cached": 30}
    end = {"type": "result", "timestamp": AT, "status": "success", "stats": stats}
    usage = stream(tmp_path / "s", end).usage
    counts = (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens)
    assert counts == (70, 30, 50)


def test_pieces_of_a_message_are_one_message(tmp_path: Path) -> None:
    session = stream(
        tmp_path / "s",
        said("assistant", "I ", delta=True),
        said("assistant", "look.", delta=True),
        used("read_file", "r", file_path="a", start_line=3, end_line=9),
        result("r", output="Read lines 3-9 of 20"),
        said("assistant", "Done.", delta=True),
    )
    assert [e.text for e in session.trace.events if isinstance(e, Message)] == ["I look.", "Done."]
    [found] = [event for event in session.trace.events if isinstance(event, Read)]
    assert (found.first_line, found.last_line, found.text, found.ok) == (3, 9, None, True)
    assert len(session.trace.lanes[0].turns) == 2


def test_a_stream_that_was_cut_off_did_not_finish(tmp_path: Path) -> None:
    session = stream(tmp_path / "s", used("run_shell_command", "c", command="sleep 9"))
    assert session.exit == "crashed"
    [command] = [event for event in session.trace.events if isinstance(event, Command)]
    assert (command.output, command.exit_code) == (None, None)


def test_a_limit_and_a_fault_are_told_apart(tmp_path: Path) -> None:
    for kind, ending in (("FatalTurnLimitedError", "out_of_budget"), ("Error", "crashed")):
        error = {"type": kind, "message": "Too much"}
        end = {"type": "result", "timestamp": AT, "status": "error", "error": error}
        session = stream(tmp_path / "s", end)
        assert (session.exit, session.cause) == (ending, "Too much")


def test_warnings_strangers_and_results_without_a_call_are_notes(tmp_path: Path) -> None:
    session = stream(
        tmp_path / "s",
        {"type": "error", "timestamp": AT, "severity": "warning", "message": "Loop detected"},
        {"type": "hologram", "timestamp": AT},
        result("nobody"),
    )
    notes = [event.about for event in session.trace.events if isinstance(event, Note)]
    assert notes == ["warning", 'unknown: "hologram"', "result without a call"]


def test_a_terminals_log_is_read_from_its_first_record_on(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    path.write_text("YOLO mode is enabled.\n" + FIXTURE.read_text())
    session = read(path)
    assert len(session.trace.events) == len(read(FIXTURE).trace.events)
    assert session.trace.skipped == {"a line that is not JSON": 1}


def test_sessions_and_streams_are_told_apart() -> None:
    assert not gemini.recognises(FileSource(FIXTURE))
    for path in (FIXTURE.parents[1] / "gemini").rglob("*.jsonl"):
        assert not gemini_stream.recognises(FileSource(path))


def test_a_command_that_prints_nothing_has_ended(tmp_path: Path) -> None:
    session = stream(
        tmp_path / "s", used("run_shell_command", "c", command="mkdir a"), result("c", output="")
    )
    (command,) = [event for event in session.trace.events if isinstance(event, Command)]
    assert (command.output, command.exit_code) == ("", None)


def test_several_runs_in_one_file_are_several_sessions(tmp_path: Path) -> None:
    end = {"type": "result", "timestamp": AT, "status": "success"}
    runs = [INIT, said("user", "One"), end, said("user", "Two"), INIT | {"session_id": "second"}]
    path = tmp_path / "s"
    path.write_text("".join(json.dumps(record) + "\n" for record in runs))
    first, second = gemini_stream.read(FileSource(path))
    assert (first.id, second.id) == (INIT["session_id"], "second")
    assert [session.trace.events[0].text for session in (first, second)] == ["One", "Two"]
    assert (first.exit, second.exit) == ("finished", "crashed")


def telemetry(kind: str, second: int, session: str = "s1", **attributes: Any) -> dict[str, Any]:
    told = {"session.id": session, "event.name": f"gemini_cli.{kind}"}
    when = {"event.timestamp": f"2026-01-01T00:00:{second:02d}.000Z"}
    return {"hrTime": [1, 2], "attributes": told | when | attributes, "_body": kind}


TELEMETRY = [
    telemetry("config", 0, model="gemini-2.5-pro"),
    telemetry("user_prompt", 1, prompt="Fix the sum.", prompt_length=12),
    telemetry("api_response", 2, model="gemini-2.5-pro", input_token_count=100,
              output_token_count=9, cached_content_token_count=40, total_token_count=109),
    telemetry("tool_call", 3, function_name="run_shell_command", success=True, duration_ms=1500,
              function_args='{"command": "pytest -q"}'),
    telemetry("user_prompt", 4, "s2", prompt="Another session."),
    telemetry("tool_call", 5, function_name="replace", success=False, error="no such text",
              function_args='{"file_path": "a.py", "old_string": "x", "new_string": "y"}'),
    telemetry("tool_call", 6, function_name="run_shell_command", success=False, decision="reject",
              function_args={"command": "rm -r ."}),
    telemetry("api_error", 7, error="quota"),
    telemetry("api_response", 8, model="gemini-2.5-pro", response_text="Done.",
              input_token_count=10, output_token_count=1),
    {"descriptor": {"name": "gemini_cli.token.usage"}},
]  # fmt: skip


@pytest.mark.parametrize("indent", [None, 2])
def test_the_log_of_the_telemetry_is_read_session_by_session(
    indent: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "telemetry.log"
    path.write_text("".join(json.dumps(one, indent=indent) + "\n" for one in TELEMETRY))
    source = FileSource(path)
    reader = find_reader(source)
    assert reader is not None
    assert reader.name == "gemini-stream"
    first, second = reader.read(source)
    assert (first.id, first.model, first.copy) == ("s1", "gemini-2.5-pro", "printed")
    prompt, check, change, removal, error, answer = first.trace.events
    assert isinstance(check, Command)
    assert (check.command, check.exit_code, check.seconds) == ("pytest -q", None, 1.5)
    assert isinstance(change, Edit)
    assert (change.before, change.after, change.ok) == ("x", "y", False)
    assert isinstance(removal, Command)
    assert removal.stopped == "rejected"
    assert isinstance(error, Note)
    assert isinstance(prompt, Message)
    assert isinstance(answer, Message)
    assert (prompt.text, answer.text) == ("Fix the sum.", "Done.")
    usage = first.trace.lanes[0].turns[0].usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (60, 40, 9)
    assert [event.number for event in second.trace.events] == [1]
