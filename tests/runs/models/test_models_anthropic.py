from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.providers.anthropic import ANTHROPIC_FORMAT, decode_anthropic, encode_anthropic
from closeloop.providers.wire_format import Dialect
from closeloop.records.attempt import Usage
from closeloop.records.errors import Fault, MachineFailed
from closeloop.records.trace import ChatMessage, ModelReply, ModelRequest, ModelToolCall, ToolSpec

SCHEMA = {"type": "object", "properties": {"score": {"type": "number"}}}


def test_what_follows_a_turn_is_one_message_with_tool_results_first() -> None:
    calls = tuple(
        ModelToolCall(id=f"c{n}", name="run", arguments={"command": "ls"}) for n in (1, 2)
    )
    request = ModelRequest(
        system="Be brief.",
        messages=(
            ChatMessage(role="user", text="Look."),
            ChatMessage(role="assistant", text="I look.", calls=calls),
            ChatMessage(role="tool", call="c1", text="a.py"),
            ChatMessage(role="user", text="Hurry."),
            ChatMessage(role="tool", call="c2", text="no", failed=True),
        ),
        tools=(ToolSpec(name="run", description="Run.", parameters={"type": "object"}),),
    )
    assert encode_anthropic(request, "m", Dialect()) == {
        "model": "m",
        "max_tokens": 32000,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "c1", "name": "run", "input": {"command": "ls"}},
                    {"type": "tool_use", "id": "c2", "name": "run", "input": {"command": "ls"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "a.py"},
                    {"type": "tool_result", "tool_use_id": "c2", "content": "no", "is_error": True},
                    {"type": "text", "text": "Hurry.", "cache_control": {"type": "ephemeral"}},
                ],
            },
        ],
        "system": "Be brief.",
        "tools": [{"name": "run", "description": "Run.", "input_schema": {"type": "object"}}],
    }


def test_each_rung_asks_for_json_in_its_own_way() -> None:
    request = ModelRequest(messages=(ChatMessage(role="user", text="?"),), schema=SCHEMA)
    payloads = {
        rung: encode_anthropic(request, "m", Dialect(rung=rung)) for rung in ANTHROPIC_FORMAT.rungs
    }
    assert payloads["schema"]["output_config"]["format"]["schema"] == SCHEMA
    assert payloads["tool"]["tool_choice"] == {"type": "tool", "name": "answer"}
    assert payloads["tool"]["tools"][0]["input_schema"] == SCHEMA
    assert "JSON schema" in payloads["prompt"]["system"]


def test_blank_messages_are_never_sent_blank() -> None:
    for role in ("user", "assistant"):
        payload = encode_anthropic(
            ModelRequest(messages=(ChatMessage(role=role, text=" \n"),)), "m", Dialect()
        )
        assert payload["messages"][0]["content"][0]["text"].strip()


def test_a_reply_is_its_texts_its_calls_and_its_usage() -> None:
    reply = decode_anthropic(
        {
            "content": [
                {"type": "text", "text": "I "},
                {"type": "text", "text": "look."},
                {"type": "tool_use", "id": "t", "name": "read", "input": {"path": "a"}},
                {"type": "tool_use", "id": "u", "name": "read", "input": "oops"},
            ],
            "stop_reason": "tool_use",
            "model": "claude",
            "usage": {
                "input_tokens": 3,
                "output_tokens": 4,
                "cache_read_input_tokens": 5,
                "cache_creation_input_tokens": 6,
            },
        }
    )
    assert reply == ModelReply(
        text="I look.",
        calls=(
            ModelToolCall(id="t", name="read", arguments={"path": "a"}),
            ModelToolCall(id="u", name="read", arguments={}, malformed="oops"),
        ),
        stop="tools",
        model="claude",
        usage=Usage(input_tokens=3, output_tokens=4, cache_read_tokens=5, cache_write_tokens=6),
    )


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "end"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refused"),
        (None, "end"),
    ],
)
def test_stop_reasons_are_translated(reason: str | None, stop: str) -> None:
    assert decode_anthropic({"content": [], "stop_reason": reason}).stop == stop


def test_signed_thinking_goes_back_exactly_as_it_came() -> None:
    content = [
        {"type": "thinking", "thinking": "", "signature": "sig"},
        {"type": "tool_use", "id": "t", "name": "run", "input": {}, "caller": {"type": "direct"}},
    ]
    reply = decode_anthropic({"content": content, "stop_reason": "tool_use"})
    said = ChatMessage(role="assistant", text=reply.text, calls=reply.calls, echo=reply.echo)
    payload = encode_anthropic(ModelRequest(messages=(said,)), "m", Dialect())
    assert payload["messages"][0]["content"] == content


@pytest.mark.parametrize("wrong", [{}, {"content": "text"}, {"content": [1]}, [], None])
def test_another_shape_is_a_machine_fault(wrong: Any) -> None:
    with pytest.raises(MachineFailed):
        decode_anthropic(wrong)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
block = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "thinking"]) | anything},
    optional={"text": anything, "name": anything, "id": anything, "input": anything},
)
whole = st.fixed_dictionaries(
    {"content": st.lists(block, max_size=3) | anything},
    optional={"stop_reason": anything, "model": anything, "usage": anything},
)


@given(whole | anything)
def test_whatever_comes_back_is_a_reply_or_a_fault(payload: Any) -> None:
    try:
        reply = decode_anthropic(payload)
    except Fault:
        return
    assert isinstance(reply, ModelReply)
    msgspec.msgpack.encode(reply.calls)
    said = ChatMessage(role="assistant", text=reply.text, calls=reply.calls, echo=reply.echo)
    encode_anthropic(ModelRequest(messages=(said,)), "m", Dialect())
