from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.providers.openai import OPENAI_FORMAT, decode_openai, encode_openai
from closeloop.providers.wire_format import Dialect, adapt_dialect
from closeloop.records.attempt import Usage
from closeloop.records.errors import Fault, MachineFailed
from closeloop.records.trace import ChatMessage, ModelReply, ModelRequest, ModelToolCall, ToolSpec

SCHEMA = {"type": "object", "properties": {"score": {"type": "number"}}, "required": ["score"]}
HELLO = ModelRequest(messages=(ChatMessage(role="user", text="Hello"),))


def answer(message: dict[str, Any], finish: str = "stop", **rest: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": finish}], **rest}


def test_a_conversation_with_tools_is_put_as_the_server_wants_it() -> None:
    call = ModelToolCall(id="c1", name="read", arguments={"path": "a.py"})
    request = ModelRequest(
        system="Be brief.",
        messages=(
            ChatMessage(role="user", text="Look."),
            ChatMessage(role="assistant", calls=(call,)),
            ChatMessage(role="tool", call="c1", text="no such file", failed=True),
        ),
        tools=(ToolSpec(name="read", description="Read a file.", parameters={"type": "object"}),),
        max_tokens=100,
        temperature=0.5,
    )
    assert encode_openai(request, "m", Dialect()) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "read", "arguments": '{"path":"a.py"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "no such file"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "read",
                    "description": "Read a file.",
                    "parameters": {"type": "object"},
                },
            }
        ],
        "temperature": 0.5,
        "max_tokens": 100,
    }


def test_each_rung_asks_for_json_in_its_own_way() -> None:
    request = ModelRequest(messages=HELLO.messages, schema=SCHEMA)
    payloads = {
        rung: encode_openai(request, "m", Dialect(rung=rung)) for rung in OPENAI_FORMAT.rungs
    }
    assert payloads["schema"]["response_format"]["json_schema"]["strict"] is True
    assert payloads["tool"]["tool_choice"]["function"]["name"] == "answer"
    assert payloads["tool"]["tools"][0]["function"]["parameters"] == SCHEMA
    assert payloads["object"]["response_format"] == {"type": "json_object"}
    for rung in ("object", "prompt"):
        assert json.dumps(SCHEMA, separators=(",", ":")) in payloads[rung]["messages"][0]["content"]
    assert "response_format" not in payloads["prompt"]


def test_text_may_be_a_string_a_list_of_parts_or_nothing() -> None:
    assert decode_openai(answer({"content": "Hi"})).text == "Hi"
    parts = [{"type": "text", "text": "H"}, {"type": "image"}, "i"]
    assert decode_openai(answer({"content": parts})).text == "Hi"
    assert decode_openai(answer({"content": None})) == ModelReply()


def test_calls_keep_what_the_model_sent_when_it_is_no_json_object() -> None:
    def call(arguments: Any) -> ModelToolCall:
        function = {"name": "read", "arguments": arguments}
        reply = decode_openai(answer({"tool_calls": [{"id": "c", "function": function}]}))
        assert reply.stop == "tools"
        return reply.calls[0]

    assert call('{"path": "a"}').arguments == {"path": "a"}
    assert call({"path": "a"}).arguments == {"path": "a"}
    assert call("") == call(None) == ModelToolCall(id="c", name="read", arguments={})
    for bad in ('{"path": ', "[1]", "null", "[" * 9000, '{"seconds": 1%s}' % ("0" * 30)):
        assert call(bad) == ModelToolCall(id="c", name="read", arguments={}, malformed=bad)


def test_stops_and_refusals_are_told_apart() -> None:
    assert decode_openai(answer({"content": "a"}, "length")).stop == "length"
    assert decode_openai(answer({"content": "a"}, "content_filter")).stop == "refused"
    refused = decode_openai(answer({"refusal": "I will not."}))
    assert (refused.stop, refused.text) == ("refused", "I will not.")


def test_usage_counts_cached_input_apart_from_fresh_input() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
        "completion_tokens_details": {"reasoning_tokens": 15},
        "cost": 0.25,
    }
    assert decode_openai(answer({"content": "a"}, usage=usage)).usage == Usage(
        input_tokens=30,
        output_tokens=20,
        cache_read_tokens=60,
        cache_write_tokens=10,
        reasoning_tokens=15,
        cost=0.25,
        cost_from="reported",
    )


def test_usage_that_makes_no_sense_is_unknown_rather_than_zero() -> None:
    bad = {"prompt_tokens": "7", "completion_tokens": -1, "cost": True, "prompt_tokens_details": 1}
    for usage in (bad, None, [], "none"):
        assert decode_openai(answer({"content": "a"}, usage=usage)).usage == Usage()


def test_reasoning_goes_back_with_the_turn_it_belongs_to() -> None:
    signed = {"google": {"thought_signature": "s"}}
    call = {"id": "c", "function": {"name": "run", "arguments": "{}"}, "extra_content": signed}
    reply = decode_openai(answer({"reasoning_content": "hm", "tool_calls": [call]}))
    said = ChatMessage(role="assistant", calls=reply.calls, echo=reply.echo)
    message = encode_openai(ModelRequest(messages=(said,)), "m", Dialect())["messages"][0]
    assert message["reasoning_content"] == "hm"
    assert message["tool_calls"][0]["extra_content"] == signed
    assert decode_openai(answer({"content": "a"})).echo is None


@pytest.mark.parametrize("wrong", [{}, {"choices": []}, {"choices": [{}]}, [], None, "<html>"])
def test_another_shape_is_a_machine_fault(wrong: Any) -> None:
    with pytest.raises(MachineFailed):
        decode_openai(wrong)


def test_a_refused_request_is_put_another_way_until_no_way_is_left() -> None:
    request = ModelRequest(messages=(), max_tokens=5, temperature=0.1, schema=SCHEMA)
    new = Dialect(reply_limit="max_completion_tokens")
    assert (
        adapt_dialect(new, request, OPENAI_FORMAT.rungs, "extra: max_completion_tokens")
        == Dialect()
    )
    hint = "'max_tokens' is not supported, use 'max_completion_tokens'"
    assert adapt_dialect(Dialect(), request, OPENAI_FORMAT.rungs, hint) == new
    assert adapt_dialect(Dialect(), request, OPENAI_FORMAT.rungs, "no temperature") == Dialect(
        temperature=False
    )
    dialect: Dialect | None = Dialect()
    seen = []
    while dialect is not None:
        seen.append(dialect.rung)
        dialect = adapt_dialect(dialect, request, OPENAI_FORMAT.rungs, "no")
    assert seen == ["schema", "tool", "object", "prompt"]
    assert adapt_dialect(Dialect(), HELLO, OPENAI_FORMAT.rungs, "temperature max_tokens") is None


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
function = st.fixed_dictionaries({}, optional={"name": anything, "arguments": anything})
call = st.fixed_dictionaries({}, optional={"id": anything, "function": function | anything})
message = st.fixed_dictionaries(
    {},
    optional={
        "content": anything,
        "refusal": anything,
        "tool_calls": st.lists(call) | anything,
        "reasoning_content": anything,
    },
)
choice = st.fixed_dictionaries({}, optional={"message": message, "finish_reason": anything})
usage = st.dictionaries(
    st.sampled_from(["prompt_tokens", "completion_tokens", "cost", "prompt_tokens_details"]),
    anything,
)
completion = st.fixed_dictionaries(
    {"choices": st.lists(choice, min_size=1, max_size=2) | anything},
    optional={"model": anything, "usage": usage | anything},
)


@given(completion | anything)
def test_whatever_comes_back_is_a_reply_or_a_fault(payload: Any) -> None:
    try:
        reply = decode_openai(payload)
    except Fault:
        return
    assert isinstance(reply, ModelReply)
    assert isinstance(reply.text, str)
    msgspec.msgpack.encode(reply.calls)
    encode_openai(
        ModelRequest(messages=(ChatMessage(role="assistant", calls=reply.calls, echo=reply.echo),)),
        "m",
        Dialect(),
    )
