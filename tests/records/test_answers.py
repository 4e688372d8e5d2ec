from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.providers.provider_streams import read_provider_reply


def stream(*events: Any, end: bytes = b"", gap: bytes = b"\n\n") -> bytes:
    lines = [b"data: " + json.dumps(event).encode() + gap for event in events]
    return b"".join(lines) + end


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def test_chat_completions_are_put_together() -> None:
    function = {"name": "run", "arguments": '{"comm'}
    body = stream(
        chunk({"role": "assistant", "content": "He"}, id="x", model="m"),
        chunk({"content": "llo", "reasoning_content": "Hm"}),
        chunk({"tool_calls": [{"index": 0, "id": "c1", "function": function}]}),
        chunk({"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "b"}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": 'and": 1}'}}]}),
        {"choices": [{"index": 1, "delta": {"content": "another answer"}}]},
        chunk({}, "tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 1}},
        end=b"data: [DONE]\n\n",
    )
    found = read_provider_reply(body)
    assert found.complete
    assert found.answer is not None
    message = found.answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Hello", "Hm")
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "run", "arguments": '{"command": 1}'},
        {"name": "b", "arguments": ""},
    ]
    assert found.answer["choices"][0]["finish_reason"] == "tool_calls"
    assert (found.answer["usage"], found.answer["model"]) == ({"prompt_tokens": 1}, "m")


def test_messages_are_put_together() -> None:
    usage = {"input_tokens": 9, "output_tokens": 1, "cache_read_input_tokens": 4}
    message = {"role": "assistant", "content": [], "usage": usage, "model": "m"}
    tool = {"type": "tool_use", "id": "t", "name": "run", "input": {}}
    events = [
        {"type": "message_start", "message": message},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
        {"type": "content_block_delta", "index": 0, "delta": {"thinking": "H"}},
        {"type": "content_block_delta", "index": 0, "delta": {"thinking": "m"}},
        {"type": "content_block_delta", "index": 0, "delta": {"signature": "sig"}},
        {"type": "content_block_start", "index": 1, "content_block": tool},
        {"type": "content_block_delta", "index": 1, "delta": {"partial_json": '{"a"'}},
        {"type": "content_block_delta", "index": 1, "delta": {"partial_json": ": 1}"}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use"},
            "usage": {"output_tokens": 7},
        },
    ]
    whole = read_provider_reply(stream(*events, {"type": "message_stop"}, gap=b"\r\n\r\n"))
    assert whole.complete
    assert whole.answer is not None
    assert whole.answer["content"] == [
        {"type": "thinking", "thinking": "Hm", "signature": "sig"},
        {**tool, "input": {"a": 1}},
    ]
    assert whole.answer["usage"] == {**usage, "output_tokens": 7}
    assert whole.answer["stop_reason"] == "tool_use"
    broken = read_provider_reply(stream(*events[:8]))
    assert not broken.complete
    assert broken.answer is not None
    assert broken.answer["usage"]["input_tokens"] == 9


def test_a_response_is_told_at_its_end_or_item_by_item() -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
    begun = {"type": "response.created", "response": {"id": "r", "model": "m", "output": []}}
    done = {"type": "response.output_item.done", "item": item}
    end = {"type": "response.completed", "response": {"id": "r", "output": [], "usage": {"a": 1}}}
    whole = read_provider_reply(stream(begun, done, end))
    assert whole.complete
    assert whole.answer == {"id": "r", "output": [item], "usage": {"a": 1}}
    broken = read_provider_reply(stream(begun, done))
    assert not broken.complete
    assert broken.answer == {"id": "r", "model": "m", "output": [item]}


def test_generated_content_is_put_together() -> None:
    def part(*parts: Any, **more: Any) -> dict[str, Any]:
        return {"candidates": [{"content": {"parts": list(parts)}, **more}]}

    call = {"functionCall": {"name": "run", "args": {}}, "thoughtSignature": "s"}
    events = (
        part({"text": "Hm", "thought": True}),
        part({"text": "He"}),
        part({"text": "llo"}),
        {**part(call, finishReason="STOP"), "usageMetadata": {"promptTokenCount": 3}},
    )
    for body in (stream(*events), json.dumps(events).encode()):
        found = read_provider_reply(body)
        assert found.complete
        assert found.answer is not None
        assert found.answer["candidates"][0]["content"]["parts"] == [
            {"text": "Hm", "thought": True},
            {"text": "Hello"},
            call,
        ]
        assert found.answer["usageMetadata"] == {"promptTokenCount": 3}


@pytest.mark.parametrize("gap", [b"\n", b"\r\n"])
def test_an_event_may_have_its_data_on_several_lines_among_others(gap: bytes) -> None:
    lines = (b"event: data: x", b'data: {"choices":', b"id: 7", b'data: [{"delta": ', b": a data:",
             b'data:{"content": "He"}}]}', b"", b"retry: 1", b"", b"", b" data: [DONE]", b"",
             b'data: {"choices": [{"delta": {"content": "y"}}]}')  # fmt: skip
    found = read_provider_reply(gap.join(lines))
    assert found.answer is not None
    assert found.answer["choices"][0]["message"]["content"] == "Hey"
    assert not found.complete
    assert read_provider_reply(gap.join([*lines, b"", b"data: [DONE]"])).complete


def test_an_answer_that_came_at_once_is_as_it_is() -> None:
    assert read_provider_reply(b' {"a": 1}').answer == {"a": 1}


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b"<html>", b"data: ", b"[" * 99_999, b"\xff"])
def test_garbage_is_no_answer(body: bytes) -> None:
    assert read_provider_reply(body).answer is None


NAMES = """type index delta choices content parts candidates message content_block usage text
    tool_calls function arguments partial_json response output item"""
events = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(NAMES.split()),
            inner | st.sampled_from(["message_start", "content_block_delta", "response.completed"]),
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(st.lists(events, max_size=5))
def test_whatever_a_stream_holds_is_heard_without_a_fault(told: list[Any]) -> None:
    read_provider_reply(stream(*told))
    read_provider_reply(stream({"type": "message_start", "message": {}}, *told))
    read_provider_reply(stream({"choices": []}, *told))
    read_provider_reply(stream({"candidates": []}, *told))
    read_provider_reply(stream({"type": "response.created"}, *told))
