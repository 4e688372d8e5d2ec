from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from closeloop.records.attempt import Usage
from closeloop.records.trace import (
    ChatMessage,
    Command,
    Edit,
    Exchange,
    Handoff,
    Message,
    ModelReply,
    ModelRequest,
    ModelToolCall,
    Session,
    ToolUse,
)
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import gateway
from closeloop.traces.readers.gateway import session_from_exchanges
from record_strategies import records

FIXTURES = Path(__file__).parent / "fixtures" / "gateway"
FORMATS = ("openai", "responses", "anthropic", "gemini")
AT = datetime(2026, 11, 15, tzinfo=UTC)


def read(path: Path) -> Session:
    (session,) = gateway.read(FileSource(path))
    return session


def exchange(
    request: Any, response: Any, path: str = "/v1/messages", number: int = 1, **more: Any
) -> Exchange:
    def body(value: Any) -> bytes:
        return value if isinstance(value, bytes) else json.dumps(value).encode()

    fields = {"status": 200, "seconds": 1.0, "at": AT, **more}
    return Exchange(
        number=number, path=path, request=body(request), response=body(response), **fields
    )


@pytest.mark.parametrize("speaks", FORMATS)
def test_a_conversation_of_any_format_is_read_as_what_was_done(speaks: str) -> None:
    session = read(FIXTURES / f"{speaks}.jsonl")
    root = [event for event in session.trace.events if event.lane == "root"]
    kinds = [Message, Message, Command, Edit, Handoff, Command, Message]
    assert [type(event) for event in root] == kinds
    asked, said, failed, edit, handoff, passed, claim = (
        msgspec.structs.asdict(event) for event in root
    )
    assert (asked["role"], asked["intent"]) == ("user", "request")
    assert asked["text"] == "Fix the greeting in greet.py"
    assert said["text"] == "I run the tests."
    assert (failed["exit_code"], passed["exit_code"]) == (1, 0)
    assert (edit["path"], edit["before"], edit["after"]) == ("greet.py", "Helo", "Hello")
    assert (handoff["child"], handoff["report"]) == ("conversation 3", "done")
    assert claim["intent"] == "claim"
    assert [event.turn for event in root] == [None, 1, 1, 2, 2, 3, 4]
    assert session.summary == "The greeting is right now and the check passes."
    assert session.system == "Be brief."


@pytest.mark.parametrize("speaks", FORMATS)
def test_conversations_that_begin_otherwise_have_lanes_of_their_own(speaks: str) -> None:
    session = read(FIXTURES / f"{speaks}.jsonl")
    lanes = {lane.id: (lane.parent, len(lane.turns)) for lane in session.trace.lanes}
    assert lanes == {
        "root": (None, 4),
        "conversation 1": ("root", 1),
        "conversation 3": ("root", 1),
    }
    texts = {event.lane: event.text for event in session.trace.events if isinstance(event, Message)}
    assert texts["conversation 1"] == "A greeting"
    assert texts["conversation 3"] == "greet.py says Hello."


@pytest.mark.parametrize("speaks", FORMATS)
def test_every_token_is_counted_once(speaks: str) -> None:
    path = FIXTURES / f"{speaks}.jsonl"
    used = [json.loads(line)["usage"]["output_tokens"] for line in path.read_bytes().splitlines()]
    assert read(path).usage.output_tokens == sum(used)
    assert len(used) == 6


def test_all_formats_tell_the_same_story() -> None:
    def story(speaks: str) -> list[Any]:
        session = read(FIXTURES / f"{speaks}.jsonl")
        return [
            msgspec.structs.replace(event, at=None, call=None) for event in session.trace.events
        ]

    first = story("anthropic")
    assert all(story(speaks) == first for speaks in FORMATS)


def test_a_file_and_the_exchanges_it_was_made_of_are_read_alike(tmp_path: Path) -> None:
    path = FIXTURES / "openai.jsonl"
    exchanges = list(gateway._iter_exchanges(FileSource(path)))
    assert session_from_exchanges(exchanges, {}) == read(path)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(b"".join(map(gateway.encode_exchange_line, exchanges)))
    assert copy.read_bytes() == path.read_bytes()


@settings(max_examples=50, deadline=None)
@given(records(Exchange))
def test_any_exchange_can_be_written_and_read(made: Exchange) -> None:
    told = json.loads(gateway.encode_exchange_line(made))
    bodies = {name: gateway._body_from_json(told[name]) for name in ("request", "response")}
    assert msgspec.convert({**told, **bodies}, Exchange) == made
    session_from_exchanges([made, made], {})


def test_patches_of_several_files_are_an_edit_for_each() -> None:
    patch = """*** Begin Patch
*** Add File: new.py
+x = 1
*** Update File: old.py
@@
-a
+b
*** End Patch"""
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": patch}
    user = {"type": "message", "role": "user", "content": "Do it"}
    result = {"type": "custom_tool_call_output", "call_id": "c1", "output": "Success."}
    talk = [
        exchange({"input": [user], "tools": [1]}, {"output": [call]}, "/v1/responses"),
        exchange({"input": [user, call, result], "tools": [1]}, {"output": []}, "/v1/responses", 2),
    ]
    edits = [
        event for event in session_from_exchanges(talk, {}).trace.events if isinstance(event, Edit)
    ]
    assert [edit.path for edit in edits] == ["new.py", "old.py"]
    assert [edit.action for edit in edits] == ["create", "change"]
    assert edits[0].after == "x = 1\n"


def test_an_id_may_come_again_for_a_patch_of_more_files() -> None:
    def call(*paths: str) -> dict[str, Any]:
        body = "".join(f"*** Delete File: {path}\n" for path in paths)
        patch = f"*** Begin Patch\n{body}*** End Patch"
        return {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": patch}

    user = {"type": "message", "role": "user", "content": "Do it"}
    failed = {"type": "tool_result", "tool_use_id": "c", "is_error": True, "content": "No."}
    later = {"type": "message", "role": "user", "content": "Once more"}
    seen = [user, call("a"), failed]
    talk = [
        exchange({"input": [user]}, {"output": [call("a")]}),
        exchange({"input": seen}, {"output": [call("b", "c")]}),
        exchange({"input": [*seen, call("b", "c"), failed]}, {"output": []}),
        exchange({"input": [*seen, call("b", "c"), failed, later]}, {"output": []}),
    ]
    events = session_from_exchanges(talk, {}).trace.events
    edits = [event for event in events if isinstance(event, Edit)]
    assert [(edit.path, edit.call, edit.ok) for edit in edits] == [
        ("a", "c/1", False),
        ("b", "c/1", False),
        ("c", "c/2", False),
    ]
    assert [event.text for event in events if isinstance(event, Message)] == ["Do it", "Once more"]


def test_an_agent_of_ours_is_read_from_its_own_records() -> None:
    call = ModelToolCall(id="c1", name="run", arguments={"command": "ls"})
    user = ChatMessage(role="user", text="Look")
    first = ModelReply(text="I look.", calls=(call,), stop="tools")
    asked = ModelRequest(messages=(user,), system="Be brief.")
    later = ModelRequest(
        messages=(
            user,
            ChatMessage(role="assistant", text="I look.", calls=(call,)),
            ChatMessage(role="tool", call="c1", text="a.py\nexit code: 0"),
        )
    )
    encode = msgspec.json.encode
    talk = [
        exchange(encode(asked), encode(first), "reply"),
        exchange(encode(later), encode(ModelReply(text="Done.")), "reply", 2),
    ]
    events = session_from_exchanges(talk, {}).trace.events
    assert [type(event) for event in events] == [Message, Message, Command, Message]
    assert events[2].exit_code == 0  # type: ignore[union-attr]


def test_a_refused_request_is_no_turn_and_its_cause_is_noted() -> None:
    user = {"role": "user", "content": "Hi"}
    good = {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}
    cause = "2 of 2 turns are used."
    talk = [
        exchange({"messages": [user]}, good, usage=Usage(output_tokens=3)),
        exchange({"messages": [user]}, {"error": {}}, number=2, status=400, cause=cause),
        exchange({"messages": [user]}, {"input_tokens": 1}, "/v1/messages/count_tokens", 3),
        exchange(b"\xff", b"\xff", number=4),
    ]
    session = session_from_exchanges(talk, {})
    assert len(session.trace.lanes[0].turns) == 1
    assert session.usage.output_tokens == 3
    assert (session.exit, session.cause) == ("crashed", cause)
    assert sum(session.trace.skipped.values()) == 2


def test_what_agents_put_before_the_request_is_not_the_users() -> None:
    parts = [
        {"type": "text", "text": "<system-reminder>\nToday is Sunday.\n</system-reminder>"},
        {"type": "text", "text": "Fix it"},
    ]
    talk = [exchange({"messages": [{"role": "user", "content": parts}]}, {"content": []})]
    events = session_from_exchanges(talk, {}).trace.events
    said = [event for event in events if isinstance(event, Message)]
    assert [(one.text, one.intent) for one in said] == [("Fix it", "request")]


def test_tools_nobody_knows_are_kept_with_their_results() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "measure", "input": {"what": "x"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "7", "is_error": True}
    user = {"role": "user", "content": "Measure"}
    later = [user, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    talk = [
        exchange({"messages": [user]}, {"role": "assistant", "content": [use]}),
        exchange({"messages": later}, {"content": []}, number=2),
    ]
    (found,) = [
        one for one in session_from_exchanges(talk, {}).trace.events if isinstance(one, ToolUse)
    ]
    assert (found.name, found.output, found.ok) == ("measure", "7", False)
    assert not [
        one for one in session_from_exchanges(talk, {}).trace.events if isinstance(one, Handoff)
    ]
