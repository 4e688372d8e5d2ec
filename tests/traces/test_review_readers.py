"""What a careful reader of agents' recordings would write down, and an early one did not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from read_back import sessions, told, written

from closeloop.records.trace import Command, Message, Session
from closeloop.traces.readers import (
    atif,
    codex,
    codex_exec,
    copilot_cli,
    inspect_eval,
    langfuse,
    mini_swe_agent,
    opencode,
    openhands_events,
    otlp,
)
from closeloop.traces.tool_calls import command_argument, find_exit_code


def lines(path: Path, *records: Any) -> Path:
    return written(path, "".join(json.dumps(record) + "\n" for record in records))


def rollout(path: Path, *payloads: dict[str, Any], **meta: Any) -> Session:
    opening = {"id": "thread", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/w", **meta}
    records = [{"timestamp": "2026-01-01T00:00:00Z", "type": "session_meta", "payload": opening}]
    for number, payload in enumerate(payloads):
        events = ("task_started", "task_complete", "turn_aborted", "error")
        kind = "event_msg" if payload["type"] in events else "response_item"
        time = f"2026-01-01T00:00:{number:02}.500Z"
        records.append({"timestamp": time, "type": kind, "payload": payload})
    (session,) = sessions(codex, lines(path, *records))
    return session


def said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "text", "text": text}]}


def ran(call: str, command: str, output: str) -> list[dict[str, Any]]:
    given = json.dumps({"command": ["bash", "-lc", command]})
    return [
        {"type": "function_call", "name": "shell", "arguments": given, "call_id": call},
        {"type": "function_call_output", "call_id": call, "output": output},
    ]


def test_every_task_of_codex_that_ends_with_words_ends_with_a_claim(tmp_path: Path) -> None:
    session = rollout(
        tmp_path / "r.jsonl",
        {"type": "task_started"},
        said("user", "fix it"),
        said("assistant", "All done."),
        {"type": "task_complete", "last_agent_message": "All done."},
        {"type": "task_started"},
        said("user", "no, the test still fails"),
        said("assistant", "I'll look."),
        {"type": "error", "message": "usage limit"},
        {"type": "task_complete", "last_agent_message": None},
    )
    assert told(session) == [
        ("user", "request", "fix it"),
        ("agent", "claim", "All done."),
        ("user", None, "no, the test still fails"),
        ("agent", None, "I'll look."),
        ("note", "error", "usage limit"),
    ]


def test_in_a_rollout_that_tells_of_no_tasks_the_last_words_are_the_claim(tmp_path: Path) -> None:
    talk = [said("user", "fix it"), said("assistant", "Let me see."), *ran("c", "ls", "x")]
    assert told(rollout(tmp_path / "a.jsonl", *talk))[1] == ("agent", None, "Let me see.")
    session = rollout(tmp_path / "b.jsonl", *talk, said("assistant", "Done."))
    assert told(session)[-1] == ("agent", "claim", "Done.")


def test_what_stopped_a_command_of_codex_is_said(tmp_path: Path) -> None:
    session = rollout(
        tmp_path / "r.jsonl",
        {"type": "task_started"},
        said("user", "clean up"),
        *ran("c1", "rm -rf x", "exec command rejected by user"),
        *ran("c2", "sleep 999", "aborted by user after 2.0s"),
        {"type": "turn_aborted", "reason": "interrupted"},
        {"type": "task_started"},
        said("user", "use trash instead"),
    )
    commands = [event for event in session.trace.events if isinstance(event, Command)]
    assert [event.stopped for event in commands] == ["rejected", "interrupted"]
    messages = [event for event in session.trace.events if isinstance(event, Message)]
    assert [event.intent for event in messages] == [
        "request",
        "correction",
        "interrupt",
        "correction",
    ]


def test_a_rollout_forked_from_nothing_is_read_whole(tmp_path: Path) -> None:
    talk = (said("user", "hi"), said("assistant", "hello"))
    assert told(rollout(tmp_path / "r.jsonl", *talk, forked_from_id=None)) == [
        ("user", "request", "hi"),
        ("agent", "claim", "hello"),
    ]


def test_a_turn_of_codex_exec_that_came_to_its_end_keeps_its_claim(tmp_path: Path) -> None:
    (session,) = sessions(
        codex_exec,
        lines(
            tmp_path / "e.jsonl",
            {"type": "thread.started", "thread_id": "t"},
            {"type": "turn.started"},
            {"type": "item.completed", "item": {"id": "1", "type": "agent_message", "text": "Ok."}},
            {"type": "turn.completed", "usage": {"input_tokens": 5, "output_tokens": 1}},
            {"type": "turn.started"},
            {"type": "turn.failed", "error": {"message": "limit"}},
        ),
    )
    assert told(session)[0] == ("agent", "claim", "Ok.")
    assert session.exit == "crashed"


def test_an_abort_of_copilot_is_an_interrupt_and_a_refusal_stops_the_command(
    tmp_path: Path,
) -> None:
    request = {"toolCallId": "c", "name": "bash", "arguments": {"command": "rm x"}}
    error = {"message": "Rejected. User feedback: use trash", "code": "rejected"}
    data: list[tuple[str, dict[str, Any]]] = [
        ("session.start", {"sessionId": "s", "copilotVersion": "1"}),
        ("user.message", {"content": "fix"}),
        ("assistant.message", {"content": "", "toolRequests": [request]}),
        ("tool.execution_complete", {"toolCallId": "c", "success": False, "error": error}),
        ("abort", {"reason": "user initiated"}),
        ("user.message", {"content": "differently"}),
    ]
    events = [
        {"type": kind, "data": one, "id": str(n), "parentId": None, "timestamp": ""}
        for n, (kind, one) in enumerate(data)
    ]
    (session,) = sessions(copilot_cli, lines(tmp_path / "events.jsonl", *events))
    assert told(session) == [
        ("user", "request", "fix"),
        ("run", "rm x", None, None, "rejected"),
        ("user", "correction", "use trash"),
        ("user", "interrupt", "user initiated"),
        ("user", "correction", "differently"),
    ]


def test_a_compaction_of_opencode_is_one_note_with_its_summary(tmp_path: Path) -> None:
    def message(role: str, part: dict[str, Any], **info: Any) -> dict[str, Any]:
        return {"info": {"id": role, "role": role, "sessionID": "ses_1", **info}, "parts": [part]}

    document = {
        "info": {"id": "ses_1", "title": "t", "version": "1", "directory": "/w", "time": {}},
        "messages": [
            message("user", {"type": "compaction", "auto": True}),
            message("assistant", {"type": "text", "text": "So far: …"}, summary=True),
        ],
    }
    (session,) = sessions(opencode, written(tmp_path / "o.json", document))
    assert told(session) == [("note", "compaction", "So far: …")]


def test_a_trajectory_of_mini_ends_with_its_last_result(tmp_path: Path) -> None:
    actions = [{"command": "ls", "tool_call_id": "a"}]
    seen = {"raw_output": "x", "returncode": 0, "timestamp": 1760000009.0}
    document = {
        "info": {"exit_status": "LimitsExceeded", "mini_version": "2.0.0"},
        "trajectory_format": "mini-swe-agent-1.1",
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "Solve"},
            {
                "role": "assistant",
                "content": "x",
                "extra": {"actions": actions, "timestamp": 1760000000.0},
            },
            {"role": "tool", "tool_call_id": "a", "content": "x", "extra": seen},
        ],
    }
    (session,) = sessions(mini_swe_agent, written(tmp_path / "t.json", document))
    assert session.started is not None
    assert session.ended is not None
    assert (session.ended - session.started).total_seconds() == 9


def test_the_instruction_of_an_instance_is_the_request_where_its_history_has_none(
    tmp_path: Path,
) -> None:
    action = {"id": 1, "source": "agent", "action": "run", "args": {"command": "ls"}}
    seen = {"id": 2, "cause": 1, "observation": "run", "content": "x", "extras": {"exit_code": 3}}
    line = {"instance_id": "i", "instruction": "Fix it.", "history": [[action, seen]]}
    (session,) = sessions(openhands_events, lines(tmp_path / "output.jsonl", line))
    assert told(session) == [("user", "request", "Fix it."), ("run", "ls", 3, "stated", None)]


def test_a_call_refused_in_inspect_says_why_not_what_the_agent_had_said(tmp_path: Path) -> None:
    approval = {
        "event": "approval", "message": "I will delete it.", "decision": "reject",
        "approver": "human", "explanation": "Not that one.", "call": {"id": "c", "function": "rm"},
    }  # fmt: skip
    sample = {"id": 1, "epoch": 1, "input": "Clean up.", "messages": [], "events": [approval]}
    log = {
        "version": 2,
        "status": "success",
        "eval": {"task": "t", "model": "m"},
        "samples": [sample],
    }
    (session,) = sessions(inspect_eval, written(tmp_path / "log.json", log))
    assert ("user", "correction", "Not that one.") in told(session)


@pytest.mark.parametrize(
    "cost", [{"costDetails": {"total": 0.5}}, {"calculatedTotalCost": 0.5}, {"totalCost": 0.5}]
)
def test_the_cost_that_langfuse_states_is_kept(tmp_path: Path, cost: dict[str, Any]) -> None:
    observation = {
        "id": "o", "traceId": "t", "type": "GENERATION", "name": "llm", "model": "m",
        "startTime": "2026-01-01T00:00:01Z", "endTime": "2026-01-01T00:00:02Z",
        "input": [{"role": "user", "content": "hi"}], "output": "hello",
        "usageDetails": {"input": 10, "output": 2, "total": 12}, **cost,
    }  # fmt: skip
    document = {"id": "t", "observations": [observation]}
    (session,) = sessions(langfuse, written(tmp_path / "l.json", document))
    assert (session.usage.cost, session.usage.cost_from) == (0.5, "reported")


def trajectory(**metrics: Any) -> dict[str, Any]:
    step = {"step_id": 2, "source": "agent", "message": "y", "metrics": metrics}
    return {
        "schema_version": "ATIF-v1.4",
        "session_id": "s",
        "agent": {"name": "a", "version": "1"},
        "steps": [{"step_id": 1, "source": "user", "message": "x"}, step],
    }


def test_what_an_agent_says_after_the_user_spoke_is_another_reply(tmp_path: Path) -> None:
    document = trajectory(completion_tokens=3)
    document["steps"] += [
        {"step_id": 3, "source": "agent", "message": "more of the first"},
        {"step_id": 4, "source": "user", "message": "really?"},
        {"step_id": 5, "source": "agent", "message": "really"},
    ]
    (session,) = sessions(atif, written(tmp_path / "t.json", document))
    assert [event.turn for event in session.trace.events] == [None, 1, 1, None, 2]


def test_a_document_with_a_number_that_only_python_writes_is_read(tmp_path: Path) -> None:
    document = trajectory(prompt_tokens=float("nan"), completion_tokens=3, cost_usd=float("inf"))
    (session,) = sessions(atif, written(tmp_path / "t.json", document))
    assert (session.usage.output_tokens, session.usage.cost) == (3, None)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["bash", "-lc", "ls | wc"], "ls | wc"),
        (["/bin/sh", "-c", "ls"], "ls"),
        (["bash", "check.sh", "all"], "bash check.sh all"),
        (["pytest", "-k", "a or b"], "pytest -k 'a or b'"),
    ],
)
def test_a_command_in_words_is_the_line_that_runs_the_same(words: list[str], command: str) -> None:
    assert command_argument({"command": words}) == command


def test_an_exit_code_that_no_process_can_have_is_unknown() -> None:
    assert find_exit_code("Exit code: 1") == 1
    assert find_exit_code(f"Exit code: {'9' * 30}") is None
    assert find_exit_code("first\nEXIT CODE 3\nlast") == 3
    # A letter that becomes two in lower case moves what comes after it.
    assert find_exit_code("\u0130\u0130\nProcess exited with code 4\nlast") == 4
    assert find_exit_code("exit code of what was called before: 5") is None


def span(number: int, **attributes: str) -> dict[str, Any]:
    return {
        "traceId": "a" * 32,
        "spanId": f"{number:016x}",
        "name": "chat m",
        "startTimeUnixNano": str((1760000000 + number) * 10**9),
        "endTimeUnixNano": str((1760000001 + number) * 10**9),
        "attributes": [
            {"key": key, "value": {"stringValue": value}} for key, value in attributes.items()
        ],
    }


def test_a_part_of_a_message_that_nobody_knows_is_a_note_and_no_claim(tmp_path: Path) -> None:
    question = {"type": "tool_call", "id": "q", "name": "ask_user", "arguments": {"text": "Both?"}}
    reply = [{"role": "assistant", "parts": [question, {"type": "hologram", "z": 1}]}]
    chat = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps([{"role": "user", "content": "go"}]),
        "gen_ai.output.messages": json.dumps(reply),
    }
    tool = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.call.id": "q",
        "gen_ai.tool.call.result": "yes",
    }
    spans = [span(1, **chat), span(2, **tool)]
    document = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    (session,) = sessions(otlp, written(tmp_path / "o.json", document))
    assert told(session) == [
        ("user", "request", "go"),
        ("agent", "question", "Both?"),
        ("note", "unknown: hologram", '{"type":"hologram","z":1}'),
        ("user", "answer", "yes"),
    ]
