"""Anthropic messages, served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from closeloop.model.chat import ChatMessage, ModelReply, ModelRequest, ToolCall, ToolSpec
from closeloop.runs.models.served.speech import Speech, event, plain, shaped

_STOPS = {"length": "max_tokens", "refused": "refusal"}


class _Block(msgspec.Struct):
    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Block]


class _Tool(msgspec.Struct):
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class _Request(msgspec.Struct):
    messages: list[_Message]
    system: Any = None
    tools: list[_Tool] | None = None
    max_tokens: int | None = None
    temperature: float | None = None


def read(payload: Any) -> ModelRequest:
    request = shaped(payload, _Request)
    messages = [part for message in request.messages for part in _messages(message)]
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
        system=plain(request.system) or None,
        tools=tools,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
    )


def _messages(message: _Message) -> Iterator[ChatMessage]:
    blocks = message.content
    if isinstance(blocks, str):
        blocks = [_Block(type="text", text=blocks)]
    text = "\n".join(block.text or "" for block in blocks if block.type == "text")
    if message.role == "assistant":
        calls = tuple(
            ToolCall(
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
                text=plain(block.content),
                call=block.tool_use_id,
                failed=bool(block.is_error),
            )
    if text:
        yield ChatMessage(role="user", text=text)


def answer(reply: ModelReply, payload: Any) -> dict[str, Any]:
    return {
        "id": f"msg_{len(payload['messages'])}",
        "type": "message",
        "role": "assistant",
        "model": payload.get("model") or "scripted",
        "content": _blocks(reply),
        "stop_reason": _STOPS.get(reply.stop, "tool_use" if reply.calls else "end_turn"),
        "stop_sequence": None,
        "usage": _usage(reply),
    }


def events(reply: ModelReply, payload: Any) -> Iterator[str]:
    whole = answer(reply, payload)
    reason = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    start = {**whole, "content": [], "stop_reason": None}
    start["usage"] = {**whole["usage"], "output_tokens": 0}
    yield event({"type": "message_start", "message": start}, "message_start")
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty: dict[str, Any] = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            written = msgspec.json.encode(block["input"]).decode()
            delta = {"type": "input_json_delta", "partial_json": written}
        steps: list[tuple[str, dict[str, Any]]] = [
            ("content_block_start", {"content_block": empty}),
            ("content_block_delta", {"delta": delta}),
            ("content_block_stop", {}),
        ]
        for name, rest in steps:
            yield event({"type": name, "index": index, **rest}, name)
    used = {"output_tokens": whole["usage"]["output_tokens"]}
    yield event({"type": "message_delta", "delta": reason, "usage": used}, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")


def fault(message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


def _blocks(reply: ModelReply) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": reply.text}] if reply.text else []
    return text + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in reply.calls
    ]


def _usage(reply: ModelReply) -> dict[str, Any]:
    return {
        "input_tokens": reply.usage.input_tokens or 0,
        "output_tokens": reply.usage.output_tokens or 0,
        "cache_creation_input_tokens": reply.usage.cache_write_tokens or 0,
        "cache_read_input_tokens": reply.usage.cache_read_tokens or 0,
    }


SPEECH = Speech(
    name="anthropic",
    path="/v1/messages",
    read=read,
    answer=answer,
    events=events,
    fault=fault,
    ping=b'event: ping\ndata: {"type": "ping"}\n\n',
)
