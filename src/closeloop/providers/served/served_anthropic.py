"""Anthropic messages, served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from closeloop.providers.served.served_format import (
    ServedFormat,
    convert_payload,
    format_sse_event,
    join_content_text,
)
from closeloop.records.chat import ChatMessage, ModelReply, ModelRequest, ModelToolCall, ToolSpec

_STOP_REASONS = {"length": "max_tokens", "refused": "refusal"}


class _AnthropicBlock(msgspec.Struct):
    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None


class _AnthropicMessage(msgspec.Struct):
    role: str
    content: str | list[_AnthropicBlock]


class _AnthropicTool(msgspec.Struct):
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class _AnthropicRequest(msgspec.Struct):
    messages: list[_AnthropicMessage]
    system: Any = None
    tools: list[_AnthropicTool] | None = None
    max_tokens: int | None = None
    temperature: float | None = None


def read_anthropic_request(payload: Any) -> ModelRequest:
    request = convert_payload(payload, _AnthropicRequest)
    messages = [part for message in request.messages for part in _parse_messages(message)]
    tools = tuple(
        ToolSpec(
            name=tool.name,
            description=tool.description or "",
            parameters=tool.input_schema or {},
        )
        for tool in request.tools or ()
    )
    return ModelRequest(
        messages=tuple(messages),
        system=join_content_text(request.system) or None,
        tools=tools,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
    )


def _parse_messages(message: _AnthropicMessage) -> Iterator[ChatMessage]:
    blocks = message.content
    if isinstance(blocks, str):
        blocks = [_AnthropicBlock(type="text", text=blocks)]
    text = "\n".join(block.text or "" for block in blocks if block.type == "text")
    if message.role == "assistant":
        calls = tuple(
            ModelToolCall(
                id=block.id or "",
                name=block.name or "",
                arguments=block.input if isinstance(block.input, dict) else {},
            )
            for block in blocks
            if block.type == "tool_use"
        )
        yield ChatMessage(role="assistant", text=text, calls=calls)
        return
    for block in blocks:
        if block.type == "tool_result":
            yield ChatMessage(
                role="tool",
                text=join_content_text(block.content),
                call=block.tool_use_id,
                failed=bool(block.is_error),
            )
    if text:
        yield ChatMessage(role="user", text=text)


def build_anthropic_answer(reply: ModelReply, payload: Any) -> dict[str, Any]:
    return {
        "id": f"msg_{len(payload['messages'])}",
        "type": "message",
        "role": "assistant",
        "model": payload.get("model") or "scripted",
        "content": _answer_blocks(reply),
        "stop_reason": _STOP_REASONS.get(reply.stop, "tool_use" if reply.calls else "end_turn"),
        "stop_sequence": None,
        "usage": _answer_usage(reply),
    }


def stream_anthropic_events(reply: ModelReply, payload: Any) -> Iterator[str]:
    full_answer = build_anthropic_answer(reply, payload)
    reason = {"stop_reason": full_answer["stop_reason"], "stop_sequence": None}
    start = {**full_answer, "content": [], "stop_reason": None}
    start["usage"] = {**full_answer["usage"], "output_tokens": 0}
    yield format_sse_event({"type": "message_start", "message": start}, "message_start")
    for index, block in enumerate(full_answer["content"]):
        if block["type"] == "text":
            empty: dict[str, Any] = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            input_json = msgspec.json.encode(block["input"]).decode()
            delta = {"type": "input_json_delta", "partial_json": input_json}
        steps: list[tuple[str, dict[str, Any]]] = [
            ("content_block_start", {"content_block": empty}),
            ("content_block_delta", {"delta": delta}),
            ("content_block_stop", {}),
        ]
        for name, rest in steps:
            yield format_sse_event({"type": name, "index": index, **rest}, name)
    final_usage = {"output_tokens": full_answer["usage"]["output_tokens"]}
    yield format_sse_event(
        {"type": "message_delta", "delta": reason, "usage": final_usage}, "message_delta"
    )
    yield format_sse_event({"type": "message_stop"}, "message_stop")


def build_anthropic_error(message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


def _answer_blocks(reply: ModelReply) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": reply.text}] if reply.text else []
    return text + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in reply.calls
    ]


def _answer_usage(reply: ModelReply) -> dict[str, Any]:
    return {
        "input_tokens": reply.usage.input_tokens or 0,
        "output_tokens": reply.usage.output_tokens or 0,
        "cache_creation_input_tokens": reply.usage.cache_write_tokens or 0,
        "cache_read_input_tokens": reply.usage.cache_read_tokens or 0,
    }


ANTHROPIC_SERVED_FORMAT = ServedFormat(
    name="anthropic",
    path="/v1/messages",
    read=read_anthropic_request,
    answer=build_anthropic_answer,
    events=stream_anthropic_events,
    fault=build_anthropic_error,
    ping=b'event: ping\ndata: {"type": "ping"}\n\n',
)
