from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from claude_log import SESSION, Log, only, read, session_of, words

from closeloop.records.trace import AnyEvent, Command, Edit, Handoff, Message, Note, Read, ToolUse
from closeloop.traces.file_source import FileSource, installed_readers
from closeloop.traces.readers import claude_code

FIXTURES = Path(__file__).parent / "fixtures"
RECORDED = next(FIXTURES.joinpath("claude_code").glob("*.jsonl"))
REAL = Path(__file__).resolve().parents[3] / "shared" / "traces" / "claude_code_session"


@pytest.fixture
def log() -> Log:
    log = Log()
    log.user("Do it.")
    return log


# The recording


def test_a_recorded_session_is_read_event_by_event() -> None:
    (session,), skipped = read(RECORDED)
    child = session.trace.lanes[1].id
    told = [event for event in session.trace.events if not isinstance(event, Note)]
    assert [(type(event).__name__, event.lane == child, event.turn) for event in told] == [
        ("Message", False, None),
        ("Message", False, 1),
        ("Command", False, 1),
        ("Message", False, 2),
        ("Read", False, 2),
        ("Message", False, 3),
        ("Edit", False, 3),
        ("Command", False, 4),
        ("Message", False, 5),
        ("Handoff", False, 5),
        ("Message", True, None),
        ("Message", True, 1),
        ("Read", True, 1),
        ("Message", True, 2),
        ("Message", False, 6),
    ]
    _, _, failing, _, opened, _, edit, passing, _, handoff, brief, _, second, _, claim = told
    assert isinstance(failing, Command)
    assert (failing.command, failing.exit_code) == ("python3 -m unittest -q 2>&1", 1)
    assert failing.exit_from == "parsed"
    assert "AssertionError: 0.12 != 0.13" in (failing.output or "")
    assert isinstance(opened, Read)
    assert (opened.first_line, opened.last_line, opened.ok) == (1, 3, True)
    assert opened.text == "def rounded(amount):\n    return int(amount * 100) / 100\n"
    assert isinstance(edit, Edit)
    assert (edit.before, edit.ok) == ("return int(amount * 100) / 100", True)
    assert edit.patch == (
        "@@ -1,2 +1,2 @@\n def rounded(amount):\n"
        "-    return int(amount * 100) / 100\n+    return int(amount * 100 + 0.5) / 100"
    )
    assert isinstance(passing, Command)
    assert (passing.exit_code, passing.exit_from) == (0, "parsed")
    assert isinstance(handoff, Handoff)
    assert (handoff.child, handoff.ok) == (child, True)
    assert handoff.report == "The rounding is right: half a cent goes up. Nothing else changed."
    assert isinstance(brief, Message)
    assert (brief.text, brief.intent) == (handoff.brief, "request")
    assert isinstance(second, Read)
    assert isinstance(claim, Message)
    assert claim.intent == "claim"
    assert skipped == {}


def test_a_recorded_session_says_where_and_by_whom_it_was() -> None:
    (session,), _ = read(RECORDED)
    assert session.id == RECORDED.stem
    assert (session.agent, session.model) == ("claude-code", "claude-sonnet-4-5")
    assert session.agent_version
    assert session.directory == "/tmp/workspace"
    assert session.exit == "finished"
    assert session.started is not None
    assert session.ended is not None
    assert session.started < session.ended
    root, child = session.trace.lanes
    assert (child.parent, child.agent) == (root.id, "general-purpose")


def test_its_tokens_are_those_that_the_server_counted() -> None:
    (session,), _ = read(RECORDED)
    served = json.loads(RECORDED.parent.joinpath("served.json").read_bytes())
    assert session.usage.input_tokens == sum(one["input_tokens"] for one in served)
    assert session.usage.output_tokens == sum(one["output_tokens"] for one in served)
    assert sum(len(lane.turns) for lane in session.trace.lanes) == len(served)
    assert session.usage.cost is None


def test_a_sub_agents_file_is_a_part_of_its_parents() -> None:
    (part,) = claude_code.parts(FileSource(RECORDED))
    assert claude_code.recognises(FileSource(part))
    assert claude_code.owner(FileSource(part)) == RECORDED
    assert claude_code.owner(FileSource(RECORDED)) is None


# Sub-agents


def test_sub_agents_beside_their_parent_are_its_lanes(tmp_path: Path) -> None:
    log = Log()
    log.user("Do it.")
    brief = {"prompt": "Look.", "subagent_type": "Explore"}
    log.call("Task", brief, "Seen.", detail={"agentId": "abc", "content": "Seen."})
    child = Log(isSidechain=True, agentId="abc")
    child.user("Look.")
    child.agent("Seen.")
    other = Log(isSidechain=True, agentId="def", sessionId="another")
    other.user("Elsewhere.")
    main = log.write(tmp_path / f"{SESSION}.jsonl")
    part = child.write(tmp_path / "agent-abc.jsonl")
    alone = other.write(tmp_path / "agent-def.jsonl")
    assert list(claude_code.parts(FileSource(main))) == [part]
    assert claude_code.owner(FileSource(part)) == main
    assert claude_code.owner(FileSource(alone)) is None
    (session,), _ = read(main)
    assert [(lane.id, lane.parent, lane.agent) for lane in session.trace.lanes] == [
        ("root", None, None),
        ("abc", "root", "Explore"),
    ]
    assert only(session, Handoff).child == "abc"


def test_a_sub_agent_without_its_parent_is_a_session_that_names_it(tmp_path: Path) -> None:
    child = Log(isSidechain=True, agentId="abc")
    child.user("Look.")
    child.agent("Seen.")
    (session,), _ = read(child.write(tmp_path / "agent-abc.jsonl"))
    assert (session.id, session.parent) == (f"{SESSION}/abc", SESSION)
    assert [lane.id for lane in session.trace.lanes] == ["root"]
    assert words(session.trace.events) == [
        ("user", "request", "Look."),
        ("agent", "claim", "Seen."),
    ]


def test_the_oldest_sub_agents_are_chains_in_the_same_file(log: Log, tmp_path: Path) -> None:
    log.agent({"type": "tool_use", "id": "t", "name": "Task", "input": {"prompt": "Look."}})
    asked = log.last
    log.last = None
    log.user("Look.", isSidechain=True)
    log.agent("Seen.", isSidechain=True)
    log.last = asked
    log.user([{"type": "tool_result", "tool_use_id": "t", "content": "Seen."}])
    session = session_of(log, tmp_path)
    handoff = only(session, Handoff)
    assert handoff.report == "Seen."
    assert handoff.child == session.trace.lanes[1].id
    lanes = [event.lane for event in session.trace.events]
    assert lanes == ["root", "root", handoff.child, handoff.child]


@pytest.mark.parametrize("with_file", [True, False])
def test_copies_of_a_sub_agents_messages_count_once(
    log: Log, tmp_path: Path, with_file: bool
) -> None:
    child = Log(isSidechain=True, agentId="abc")
    child.user("Look.")
    child.agent("Seen.", requestId="req-1")
    log.agent({"type": "tool_use", "id": "t", "name": "Task", "input": {"prompt": "Look."}})
    for line in child.lines:
        data = {"type": "agent_progress", "agentId": "abc", "message": line}
        log.put("progress", data=data, parentToolUseID="t")
    if with_file:
        child.write(tmp_path / SESSION / "subagents" / "agent-abc.jsonl")
    session = session_of(log, tmp_path)
    assert only(session, Handoff).child == "abc"
    assert words(e for e in session.trace.events if e.lane == "abc") == [
        ("user", "request", "Look."),
        ("agent", None, "Seen."),
    ]
    assert session.usage.input_tokens == 20


def test_a_sub_agent_that_begins_with_a_copy_of_the_talk_counts_what_is_new(
    log: Log, tmp_path: Path
) -> None:
    log.agent("One.", requestId="req-1", name="msg_1")
    child = Log(isSidechain=True, agentId="acompact")
    child.agent("One.", requestId="req-1", name="msg_1")
    child.agent("Two.", requestId="req-2", name="msg_2")
    child.write(tmp_path / SESSION / "subagents" / "agent-acompact.jsonl")
    session = session_of(log, tmp_path)
    assert [lane.id for lane in session.trace.lanes] == ["root", "acompact"]
    assert session.usage.input_tokens == 20


def test_warm_ups_are_left_out_and_counted(log: Log, tmp_path: Path) -> None:
    child = Log(isSidechain=True, agentId="warm")
    child.user("Warmup")
    child.agent("Ready.")
    child.write(tmp_path / SESSION / "subagents" / "agent-warm.jsonl")
    log.agent("Done.")
    (session,), skipped = read(log.write(tmp_path / f"{SESSION}.jsonl"))
    assert [lane.id for lane in session.trace.lanes] == ["root"]
    assert skipped == {"a warm-up of a sub-agent": 1}
    assert read(child.write(tmp_path / "elsewhere" / "x"))[0] == []


def test_work_in_the_background_is_told_where_it_began(log: Log, tmp_path: Path) -> None:
    command = {"command": "make", "run_in_background": True}
    detail = {"stdout": "", "backgroundTaskId": "b1"}
    log.call("Bash", command, "Command running in background with ID: b1", detail=detail)
    log.call("BashOutput", {"bash_id": "b1"}, "<status>running</status>")
    ended = "<status>failed</status>\n\n<exit_code>2</exit_code>\n\n<stdout>\nNo rule\n</stdout>"
    log.call("BashOutput", {"bash_id": "b1"}, ended)
    task = {"prompt": "Look.", "run_in_background": True}
    launched = {"isAsync": True, "agentId": "abc", "status": "async_launched"}
    log.call("Agent", task, "Async agent launched successfully.", detail=launched)
    log.user(
        "<task-notification>\n<task-id>abc</task-id>\n<status>completed</status>\n"
        "<result>All seen.</result>\n</task-notification>"
    )
    session = session_of(log, tmp_path)
    ran = only(session, Command)
    assert (ran.exit_code, ran.exit_from) == (2, "parsed")
    assert "No rule" in ran.output
    handoff = only(session, Handoff)
    assert (handoff.report, handoff.ok, handoff.child) == ("All seen.", True, None)


@pytest.mark.parametrize(
    "lines",
    [
        [{"type": "user", "uuid": "1", "sessionId": "s", "parentUuid": None,
          "message": {"role": "user", "parts": []}, "isSidechain": False}],
        [{"type": "session", "id": "x", "version": 3}],
        [{"type": "system", "subtype": "init", "session_id": "s", "tools": []}],
        [{"role": "user", "message": {"content": []}}],
        [{"type": "summary"}],
    ],
)  # fmt: skip
def test_other_tools_lines_are_refused(tmp_path: Path, lines: list[Any]) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert not claude_code.recognises(FileSource(path))


def test_a_first_line_longer_than_a_files_head_is_recognised(tmp_path: Path) -> None:
    log = Log()
    log.user("x" * 200_000)
    log.agent("Done.")
    session = session_of(log, tmp_path)
    assert len(session.trace.events) == 2


# Real sessions, where they are at hand


def real() -> list[Path]:
    return sorted(REAL.rglob("*.jsonl"))


@pytest.mark.skipif(not REAL.is_dir(), reason="no real sessions at hand")
def test_real_sessions_are_recognised_by_this_reader_alone() -> None:
    for path in real():
        names = [
            reader.name for reader in installed_readers() if reader.recognises(FileSource(path))
        ]
        assert names == ["claude-code"], path


@pytest.mark.skipif(not REAL.is_dir(), reason="no real sessions at hand")
def test_in_real_sessions_every_call_has_the_result_its_file_has() -> None:
    calls = 0
    for path in real():
        source = FileSource(path)
        if claude_code.owner(source) is not None:
            continue
        files = [path, *claude_code.parts(source)]
        made, given = {}, {}
        for record in (line for file in files for line in FileSource(file).records()):
            for block in blocks_of(record):
                if block["type"] == "tool_use":
                    made[block["id"]] = block
                elif block["type"] == "tool_result":
                    given[block["tool_use_id"]] = block
        events = [event for session in claude_code.read(source) for event in session.trace.events]
        called = {event.call: event for event in events if event.call is not None}
        assert set(called) == set(made)
        assert {name for name, event in called.items() if has_result(event)} == {*given} & {*made}
        strays = [e for e in events if isinstance(e, Note) and e.about == "result without a call"]
        assert len(strays) == len({*given} - {*made})
        calls += len(called)
    assert calls > 0


@pytest.mark.skipif(not REAL.is_dir(), reason="no real sessions at hand")
def test_in_real_sessions_every_message_counts_once() -> None:
    for path in real():
        source = FileSource(path)
        if claude_code.owner(source) is not None:
            continue
        sessions = list(claude_code.read(source))
        seen: dict[Any, int] = {}
        for file in [path, *claude_code.parts(source)]:
            for record in FileSource(file).records():
                message = record.get("message")
                if record.get("type") == "assistant" and message["model"] != "<synthetic>":
                    key = (message["id"], record.get("requestId"))
                    seen[key] = (message.get("usage") or {}).get("cache_read_input_tokens", 0)
        if not sessions:
            continue
        turns = [turn for one in sessions for lane in one.trace.lanes for turn in lane.turns]
        assert len(turns) == len(seen), path
        assert sum(turn.usage.cache_read_tokens or 0 for turn in turns) == sum(seen.values())


def blocks_of(record: Any) -> list[dict[str, Any]]:
    message = record.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return [block for block in content if "type" in block] if isinstance(content, list) else []


def has_result(event: AnyEvent) -> bool:
    if isinstance(event, Command | ToolUse):
        return event.output is not None
    if isinstance(event, Edit | Read):
        return event.ok is not None
    if isinstance(event, Handoff):
        return event.report is not None
    return True


def test_a_read_that_failed_still_tells_which_lines_it_asked_for(log: Log, tmp_path: Path) -> None:
    too_long = "File content exceeds maximum allowed tokens."
    log.call("Read", {"file_path": "/w/a.txt"}, too_long, is_error=True)
    log.call("Read", {"file_path": "/w/a.txt", "limit": 500}, too_long, is_error=True)
    log.call(
        "Read", {"file_path": "/w/a.txt", "offset": 501, "limit": 300}, too_long, is_error=True
    )
    events = session_of(log, tmp_path).trace.events
    lines = [(one.first_line, one.last_line) for one in events if isinstance(one, Read)]
    assert lines == [(None, None), (None, 500), (501, 800)]
