from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from read_back import FIXTURES, recognised_by, sessions, told, written

from closeloop.records.trace import Command, Handoff
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import openhands_sdk

FOLDER = FIXTURES / "openhands_sdk" / "conversation"
STATE = FOLDER / "base_state.json"
EVENTS = sorted((FOLDER / "events").iterdir())


def event(kind: str, number: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "id": f"e{number}", "source": "environment", "timestamp": None, **more}


def run(events: list[Any], tmp_path: Path) -> Any:
    (session,) = sessions(openhands_sdk, written(tmp_path / "x", events))
    return session


def test_a_conversation_is_read_event_by_event() -> None:
    (session,) = sessions(openhands_sdk, STATE)
    assert told(session) == [
        ("user", "request", "Make the sum right."),
        ("thought", "I run the test first."),
        ("run", "python test_sums.py", 1, "stated", None),
        ("thought", "I take all of them."),
        ("change", "/workspace/sums.py", "numbers[1:]", "numbers", True),
        ("run", "git diff --stat", None, None, "not executed"),
        ("user", "correction", "No git, please."),
        ("note", "compaction", "The test failed with 2."),
        ("handoff", "Run the tests and say how they end.", None, "The tests pass."),
        ("run", "cat missing", None, None, None),
        ("agent", "claim", "The sum is right."),
    ]
    assert session.id == "4b1f6f0e-5d0a-4b39-9a51-0a6f3d7a2c11"
    assert (session.model, session.directory) == ("openai/gpt-5", "/workspace")
    assert (session.system, session.exit) == ("You are OpenHands agent.", "finished")
    assert session.trace.skipped == {"a copy of the state": 1}


def test_tokens_are_counted_by_answer_and_the_condenser_is_paid_for() -> None:
    (session,) = sessions(openhands_sdk, STATE)
    turns = session.trace.lanes[0].turns
    assert [turn.usage.input_tokens for turn in turns] == [1000, 200, 100, 100, 100]
    assert [event.turn for event in session.trace.events[4:6]] == [2, 2]
    usage = session.usage
    assert (usage.input_tokens, usage.cache_read_tokens) == (1500 + 500, 4900)
    assert usage.cost == pytest.approx(0.051)


def test_the_state_owns_its_events() -> None:
    assert openhands_sdk.owner(FileSource(STATE)) is None
    assert list(openhands_sdk.parts(FileSource(STATE))) == EVENTS
    assert {openhands_sdk.owner(FileSource(path)) for path in EVENTS} == {STATE}


def test_events_without_a_state_are_read_from_the_first(tmp_path: Path) -> None:
    paths = [
        written(tmp_path / "events" / path.name, json.loads(path.read_text())) for path in EVENTS
    ]
    assert openhands_sdk.owner(FileSource(paths[0])) is None
    assert list(openhands_sdk.parts(FileSource(paths[0]))) == paths[1:]
    (session,) = sessions(openhands_sdk, paths[0])
    assert len(session.trace.events) == 11
    assert session.usage.input_tokens is None


def test_an_event_that_cannot_be_read_is_counted(tmp_path: Path) -> None:
    for path in (STATE, *EVENTS):
        written(tmp_path / path.relative_to(FOLDER), path.read_text())
    (tmp_path / "events" / EVENTS[3].name).write_text('{"kind": "Obs')
    (session,) = sessions(openhands_sdk, tmp_path / STATE.name)
    assert session.trace.skipped["an event that cannot be read"] == 1
    assert isinstance(command := session.trace.events[2], Command)
    assert (command.output, command.exit_code) == (None, None)


def test_a_list_of_events_and_an_evaluations_lines_are_read_too(tmp_path: Path) -> None:
    events = [json.loads(path.read_text()) for path in EVENTS]
    session = run(events, tmp_path)
    assert len(session.trace.events) == 11
    line = {
        "instance_id": "i",
        "history": events,
        "test_result": {"git_patch": "diff"},
        "error": None,
    }
    path = written(tmp_path / "output", json.dumps(line) + "\n" + json.dumps(line) + "\n")
    found = sessions(openhands_sdk, path)
    assert [told(one)[-1] for one in found] == [("note", "submission", "diff")] * 2
    assert recognised_by(path) == ["openhands-sdk"]


def test_a_command_that_still_runs_has_no_exit_code(tmp_path: Path) -> None:
    action = {"kind": "TerminalAction", "command": "tail -f log"}
    seen = {"kind": "TerminalObservation", "content": [], "exit_code": -1, "timeout": True}
    session = run(
        [
            event("ActionEvent", 1, tool_name="terminal", tool_call_id="c", action=action),
            event("ObservationEvent", 2, tool_name="terminal", action_id="e1", observation=seen),
        ],
        tmp_path,
    )
    assert told(session) == [("run", "tail -f log", None, None, "out of time")]


def test_arguments_that_were_never_valid_are_taken_from_the_call(tmp_path: Path) -> None:
    call = {"id": "c", "name": "terminal", "arguments": '{"command": "ls"}'}
    session = run(
        [
            event("ActionEvent", 1, tool_name="terminal", action=None, tool_call=call),
            event("AgentErrorEvent", 2, tool_call_id="c", error="not valid"),
            event("ConversationErrorEvent", 3, code="MaxIterationsReached", detail="500"),
            event("Unheard", 4),
        ],
        tmp_path,
    )
    assert told(session) == [
        ("run", "ls", None, None, None),
        ("note", "error", "MaxIterationsReached: 500"),
        (
            "note",
            "unknown: Unheard",
            '{"kind":"Unheard","id":"e4","source":"environment","timestam',
        ),
    ]
    assert (session.exit, session.cause) == ("out_of_budget", "500")


def said(number: int, source: str, text: str) -> dict[str, Any]:
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    return event("MessageEvent", number, llm_message=message) | {"source": source}


def acted(number: int, tool: str, **given: Any) -> dict[str, Any]:
    call = {"tool_name": tool, "tool_call_id": f"c{number}", "tool_call": {"id": f"c{number}"}}
    action = event("ActionEvent", number, action=given, thought=[], **call)
    return action | {"source": "agent"}


def saw(number: int, cause: int, text: str, **more: Any) -> dict[str, Any]:
    seen = {"content": [{"type": "text", "text": text}], **more}
    return event("ObservationEvent", number, action_id=f"e{cause}", observation=seen)


def conversation(folder: Path, *events: dict[str, Any]) -> Path:
    for number, one in enumerate(events):
        written(folder / "events" / f"event-{number:05d}-{one['id']}.json", one)
    state = {**json.loads(STATE.read_text()), "id": folder.name, "stats": {}}
    return written(folder / "base_state.json", state)


def test_a_sub_agents_conversation_is_a_lane_of_the_one_that_started_it(tmp_path: Path) -> None:
    state = conversation(
        tmp_path / "main",
        said(0, "user", "Mend it."),
        acted(1, "task", prompt="Run the tests.", subagent_type="tester"),
        saw(2, 1, "They fail.", task_id="task_00000001", status="completed"),
        acted(3, "task", prompt="Again, please.", resume="task_00000001"),
        saw(4, 3, "They pass.", task_id="task_00000001", status="completed"),
    )
    below = conversation(
        tmp_path / "main" / "subagents" / "aa",
        said(0, "user", "Run the tests."),
        acted(1, "terminal", command="pytest"),
        saw(2, 1, "1 failed", exit_code=1),
        acted(3, "task", prompt="Look around."),
        saw(4, 3, "Nothing.", task_id="task_00000001"),
        said(5, "user", "Again, please."),
    )
    inner = conversation(
        below.parent / "subagents" / "aa",
        said(0, "user", "Look around."),
        acted(1, "terminal", command="ls"),
    )
    (session,) = sessions(openhands_sdk, state)
    lanes = [(lane.id, lane.parent, lane.agent) for lane in session.trace.lanes]
    first, second = "subagents/aa", "subagents/aa/subagents/aa"
    assert lanes == [("root", None, None), (first, "root", "tester"), (second, first, None)]
    handed = [event for event in session.trace.events if isinstance(event, Handoff)]
    assert [(one.lane, one.child, one.report) for one in handed] == [
        ("root", first, "They fail."),
        (first, second, "Nothing."),
        ("root", first, "They pass."),
    ]
    ran = [(one.lane, one.command) for one in session.trace.events if isinstance(one, Command)]
    assert ran == [(first, "pytest"), (second, "ls")]
    for path in (below, inner, inner.parent / "events" / "event-00001-e1.json"):
        assert openhands_sdk.owner(FileSource(path)) == state
        assert path in openhands_sdk.parts(FileSource(state))


def test_tasks_of_one_delegation_are_handed_over_each(tmp_path: Path) -> None:
    state = conversation(
        tmp_path / "main",
        acted(1, "delegate", command="delegate", tasks={"one": "Read.", "two": "Write."}),
        saw(2, 1, "1. Agent one: read"),
        acted(3, "delegate", command="delegate", tasks={"two": "Write more."}),
        saw(4, 3, "1. Agent two: wrote"),
    )
    for name, brief in (("aa", "Write."), ("bb", "Read."), ("cc", "Nobody asked this.")):
        conversation(tmp_path / "main" / "subagents" / name, said(0, "user", brief))
    (session,) = sessions(openhands_sdk, state)
    handed = [event for event in session.trace.events if isinstance(event, Handoff)]
    assert [(one.brief, one.child, one.report) for one in handed] == [
        ("Read.", "subagents/bb", "1. Agent one: read"),
        ("Write.", "subagents/aa", "1. Agent one: read"),
        ("Write more.", "subagents/aa", "1. Agent two: wrote"),
    ]
    assert [lane.id for lane in session.trace.lanes][1:] == [
        "subagents/bb",
        "subagents/aa",
        "subagents/cc",
    ]


def test_events_may_stand_one_a_line(tmp_path: Path) -> None:
    asked = {"role": "user", "content": [{"type": "text", "text": "List it."}]}
    action = {"command": "ls", "kind": "TerminalAction"}
    lines = [
        event("MessageEvent", 1) | {"source": "user", "llm_message": asked},
        event("ActionEvent", 2, tool_name="terminal", tool_call_id="c", action=action),
        event("ObservationEvent", 3, action_id="e2", observation={"exit_code": 0}),
    ]
    path = written(tmp_path / "events.jsonl", "".join(json.dumps(one) + "\n" for one in lines))
    assert recognised_by(path) == ["openhands-sdk"]
    (session,) = sessions(openhands_sdk, path)
    assert told(session) == [("user", "request", "List it."), ("run", "ls", 0, "stated", None)]


def test_the_tools_of_another_agents_program_are_told_once(tmp_path: Path) -> None:
    def tool(number: int, kind: str, **more: Any) -> dict[str, Any]:
        known = {"tool_call_id": f"t-{kind}", "title": "A title", "tool_kind": kind}
        return event("ACPToolCallEvent", number, **known, **more)

    session = run(
        [
            tool(1, "execute", status="pending"),
            tool(2, "execute", status="in_progress", raw_input={"command": "make"}),
            tool(3, "execute", status="completed", raw_input={"command": "make"}, raw_output="ok"),
            tool(4, "fetch", status="failed", raw_output={"why": "no net"}, is_error=True),
            event("HookExecutionEvent", 5, hook_command="lint"),
        ],
        tmp_path,
    )
    assert told(session)[:2] == [("run", "make", None, None, None), ("tool", "A title", False)]
    assert [one.about for one in session.trace.events[2:]] == ["hook"]
    assert session.trace.events[0].output == "ok"
