from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from closeloop.records.attempt import Usage
from closeloop.records.trace import Command, Edit, Handoff, Message, Note, Read, Session
from closeloop.traces.file_source import FileSource, installed_readers
from closeloop.traces.readers import claude_code, claude_stream

FIXTURES = Path(__file__).parent / "fixtures"
RECORDED = FIXTURES / "claude_stream" / "stream.jsonl"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
REAL = [
    *sorted(SHARED.glob("claude_code_stream_json/**/*.jsonl")),
    *sorted(SHARED.glob("harbor_atif/**/claude-code.txt")),
]
INIT = {"type": "system", "subtype": "init", "tools": [], "model": "m", "cwd": "/w"}


def read(path: Path) -> list[Session]:
    source = FileSource(path)
    assert claude_stream.recognises(source)
    return list(claude_stream.read(source))


def stream(folder: Path, *lines: dict[str, Any], session: str = "s") -> Path:
    path = folder / "stream.jsonl"
    path.write_text("".join(json.dumps({"session_id": session, **line}) + "\n" for line in lines))
    return path


def agent(*blocks: Any, parent: str | None = None, **message: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]
    said = {"id": "msg_1", "model": "m", "content": content, "stop_reason": None, **message}
    return {"type": "assistant", "message": said, "parent_tool_use_id": parent}


def result(**fields: Any) -> dict[str, Any]:
    base = {"type": "result", "subtype": "success", "is_error": False, "num_turns": 1}
    return {**base, "result": "Done.", "total_cost_usd": 0.5, **fields}


def test_a_recorded_stream_is_read_event_by_event() -> None:
    (session,) = read(RECORDED)
    told = [event for event in session.trace.events if not isinstance(event, Note)]
    assert [(type(event).__name__, event.lane, event.turn) for event in told] == [
        ("Message", "root", 1),
        ("Command", "root", 1),
        ("Message", "root", 2),
        ("Read", "root", 2),
        ("Message", "root", 3),
        ("Edit", "root", 3),
        ("Command", "root", 4),
        ("Message", "root", 5),
        ("Handoff", "root", 5),
        ("Message", "call-9-0", None),
        ("Read", "call-9-0", 1),
        ("Message", "root", 6),
    ]
    _, failing, _, opened, _, edit, passing, _, handoff, brief, _, claim = told
    assert isinstance(failing, Command)
    assert isinstance(passing, Command)
    assert (failing.exit_code, passing.exit_code) == (1, 0)
    assert isinstance(opened, Read)
    assert (opened.first_line, opened.last_line) == (1, 3)
    assert isinstance(edit, Edit)
    assert edit.patch is not None
    assert isinstance(handoff, Handoff)
    assert (handoff.child, handoff.ok) == ("call-9-0", True)
    assert handoff.report == "The rounding is right: half a cent goes up. Nothing else changed."
    assert isinstance(brief, Message)
    assert (brief.text, brief.intent) == (handoff.brief, "request")
    assert isinstance(claim, Message)
    assert (claim.intent, claim.text) == ("claim", session.summary)
    lane = session.trace.lanes[1]
    assert (lane.parent, lane.agent) == ("root", "general-purpose")


def test_a_stream_and_its_session_file_agree() -> None:
    (streamed,) = read(RECORDED)
    file = next(FIXTURES.joinpath("claude_code").glob("*.jsonl"))
    (kept,) = claude_code.read(FileSource(file))
    assert (streamed.id, streamed.agent, streamed.model) == (kept.id, kept.agent, kept.model)
    assert streamed.agent_version == kept.agent_version
    assert [e.call for e in streamed.trace.events if e.call] == [
        e.call for e in kept.trace.events if e.call
    ]
    assert streamed.usage.input_tokens == kept.usage.input_tokens
    assert streamed.usage.output_tokens == kept.usage.output_tokens


def test_the_result_has_the_tokens_of_all_lanes_and_the_cost() -> None:
    (session,) = read(RECORDED)
    served = json.loads(FIXTURES.joinpath("claude_code", "served.json").read_bytes())
    assert session.usage.input_tokens == sum(one["input_tokens"] for one in served)
    assert session.usage.output_tokens == sum(one["output_tokens"] for one in served)
    assert session.usage.cost is not None
    assert session.usage.cost_from == "reported"
    # The lines themselves have only what was known when the answers began.
    assert {turn.usage.output_tokens for turn in session.trace.lanes[0].turns} == {None}


def test_a_stream_that_was_cut_is_a_crash_with_what_is_known(tmp_path: Path) -> None:
    call = {"type": "tool_use", "id": "c", "name": "Bash", "input": {"command": "x"}}
    usage = {"input_tokens": 9, "output_tokens": 1}
    (session,) = read(stream(tmp_path, INIT, agent("Go.", call, usage=usage)))
    assert (session.exit, session.cause) == ("crashed", "The stream ends without a result.")
    assert (session.usage.input_tokens, session.usage.output_tokens) == (9, None)
    assert session.usage.cost is None
    assert (session.started, session.ended) == (None, None)


def test_a_run_whose_provider_counts_only_zeros_has_an_unknown_cost(tmp_path: Path) -> None:
    zeros = {"input_tokens": 0, "output_tokens": 0}
    end = result(total_cost_usd=0, usage=zeros, modelUsage={"x": {"inputTokens": 0}})
    (session,) = read(stream(tmp_path, INIT, agent("Go.", usage=zeros), end))
    assert session.usage == Usage()
    (session,) = read(stream(tmp_path, INIT, end))
    assert session.usage.cost == 0  # no model answered


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "finished"),
        ({"subtype": "error_max_turns"}, "out_of_budget"),
        ({"subtype": "error_during_execution"}, "crashed"),
        ({"is_error": True, "result": "API Error: 500"}, "machine"),
    ],
)
def test_how_it_ended_is_what_the_result_says(
    tmp_path: Path, fields: dict[str, Any], expected: str
) -> None:
    (session,) = read(stream(tmp_path, INIT, agent("Done."), result(**fields)))
    assert session.exit == expected
    assert (session.cause is None) == (expected == "finished")


def test_a_program_that_answers_several_prompts_counts_on(tmp_path: Path) -> None:
    one, two, again = (
        result(total_cost_usd=cost, modelUsage={"m": {"inputTokens": tokens}})
        for cost, tokens in ((0.5, 10), (0.75, 15), (0.25, 5))
    )
    lines = [INIT, agent("a"), one, INIT, agent("b"), two]
    (session,) = read(stream(tmp_path, *lines))
    assert (session.usage.cost, session.usage.input_tokens) == (0.75, 15)
    (session,) = read(stream(tmp_path, *lines, INIT, agent("c"), again))
    assert (session.usage.cost, session.usage.input_tokens) == (1.0, 20)


def test_partial_messages_tell_only_their_counts(tmp_path: Path) -> None:
    start = {"id": "msg_1", "model": "m", "usage": {"input_tokens": 9, "output_tokens": 1}}
    events = [
        {"type": "message_start", "message": start},
        {"type": "content_block_delta", "delta": {"text": "Do"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
         "usage": {"output_tokens": 40}},
    ]  # fmt: skip
    lines = [{"type": "stream_event", "event": event} for event in events]
    said = agent("Done.", usage=start["usage"])
    (session,) = read(stream(tmp_path, INIT, *lines[:2], said, lines[2]))
    assert (session.usage.input_tokens, session.usage.output_tokens) == (9, 40)
    assert len(session.trace.events) == 1


def test_all_messages_in_one_document_are_the_same_session(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    for indent in (None, 2):
        path = tmp_path / "output.json"
        path.write_text(json.dumps(lines, indent=indent))
        assert read(path) == read(RECORDED)


def test_a_result_alone_is_a_session_with_its_words(tmp_path: Path) -> None:
    (session,) = read(stream(tmp_path, result()))
    assert (session.summary, session.usage.cost) == ("Done.", 0.5)
    (event,) = session.trace.events
    assert isinstance(event, Message)
    assert event.intent == "claim"


def test_words_of_a_terminal_before_the_stream_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    path.write_bytes(b"$ claude -p ...\n" + RECORDED.read_bytes())
    source = FileSource(path)
    assert claude_stream.recognises(source)
    (session,) = claude_stream.read(source)
    assert session.trace.events == read(RECORDED)[0].trace.events
    assert source.skipped == {"a line that is not JSON": 1}


@pytest.mark.parametrize(
    "line",
    [
        {"type": "init", "session_id": "s", "model": "gemini"},
        {**INIT, "tools": None},
        {**INIT, "qwen_code_version": "0.1"},
        {"type": "result", "session_id": "s"},
        {"type": "user", "sessionId": "s", "message": {}},
    ],
)
def test_other_streams_are_refused(tmp_path: Path, line: dict[str, Any]) -> None:
    assert not claude_stream.recognises(FileSource(stream(tmp_path, line)))


@pytest.mark.skipif(not REAL, reason="no real streams at hand")
def test_real_streams_are_read_by_this_reader_alone_and_in_full() -> None:
    calls = 0
    for path in REAL:
        names = [
            reader.name for reader in installed_readers() if reader.recognises(FileSource(path))
        ]
        assert names == ["claude-stream"], path
        (session,) = read(path)
        records = list(FileSource(path).records())
        blocks = [
            (record["parent_tool_use_id"], block)
            for record in records
            if record["type"] in ("assistant", "user")
            for block in record["message"]["content"]
        ]
        made = [block["id"] for _, block in blocks if block["type"] == "tool_use"]
        given = [block for _, block in blocks if block["type"] == "tool_result"]
        called = [event for event in session.trace.events if event.call is not None]
        assert [event.call for event in called] == made
        open_ = [e for e in called if unanswered(e)]
        assert len(open_) == len(made) - len(given), path
        answers = {(r["parent_tool_use_id"], r["message"]["id"]) for r in records
                   if r["type"] == "assistant"}  # fmt: skip
        assert sum(len(lane.turns) for lane in session.trace.lanes) == len(answers)
        ends = [record for record in records if record["type"] == "result"]
        assert (session.exit == "crashed") == (not ends)
        # Only zeros, where a model answered, are no count.
        cost = ends[-1]["total_cost_usd"] if ends else None
        assert session.usage.cost == (cost or None if answers else cost)
        calls += len(called)
    assert calls > 0


def unanswered(event: Any) -> bool:
    return {getattr(event, name, None) for name in ("output", "ok", "report")} == {None}


def test_a_stream_that_begins_with_long_words_of_a_hook_is_recognised(tmp_path: Path) -> None:
    hook = {"type": "system", "hook_id": "h", "hook_event": "SessionStart"}
    spoken = {**hook, "subtype": "hook_response", "output": "x" * 70_000}
    lines = ({**hook, "subtype": "hook_started"}, spoken, INIT, agent("Hi."), result())
    (session,) = read(stream(tmp_path, *lines))
    assert (session.directory, session.summary) == ("/w", "Hi.")


def test_a_command_that_was_denied_says_so(tmp_path: Path) -> None:
    call = {"type": "tool_use", "id": "c", "name": "Bash", "input": {"command": "ls -'x'"}}
    refusal = {"type": "tool_result", "tool_use_id": "c", "is_error": True, "content": "Quoted."}
    denial = {"tool_name": "Bash", "tool_use_id": "c", "tool_input": {}}
    heard = {"type": "user", "message": {"content": [refusal]}, "parent_tool_use_id": None}
    (session,) = read(
        stream(tmp_path, INIT, agent(call), heard, result(permission_denials=[denial]))
    )
    (command,) = [event for event in session.trace.events if isinstance(event, Command)]
    assert (command.exit_code, command.stopped) == (None, "not permitted")
