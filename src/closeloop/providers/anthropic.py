"""The Anthropic messages format, as client and server."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec

from closeloop.providers.wire_format import (
    ANSWER_TOOL,
    Dialect,
    ProviderFormat,
    ServedFormat,
    build_schema_prompt,
    convert_payload,
    format_sse_event,
    join_content_text,
    parse_call_arguments,
    read_token_count,
)
from closeloop.records.attempt import Usage
from closeloop.records.errors import MachineFailed
from closeloop.records.trace import ChatMessage, ModelReply, ModelRequest, ModelToolCall, ToolSpec

DEFAULT_MAX_TOKENS = 32_000
"""The format requires a limit; thinking counts towards it, so it is generous."""

_STOP_REASONS = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}
_THINKING_TYPES = ("thinking", "redacted_thinking")


class _AnthropicAnswer(msgspec.Struct):
    content: list[dict[str, Any]]
    stop_reason: str | None = None
    model: str | None = None
    usage: Any = None


def build_anthropic_headers(key: str | None) -> dict[str, str]:
    return {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}


def encode_anthropic(request: ModelRequest, model: str, dialect: Dialect) -> dict[str, Any]:
    """Encode the request for the server."""
    payload: dict[str, Any] = {
        "model": model,
        "max_tokens": request.max_tokens or DEFAULT_MAX_TOKENS,
        "messages": list(_encode_messages(request.messages)),
    }
    system = request.system
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
        for tool in request.tools
    ]
    if tools and request.messages[-1:] and request.messages[-1].role != "assistant":
        # An agent sends its history again at every turn: read from the cache, it costs a tenth.
        last_content = payload["messages"][-1]["content"]
        last_content[-1] = {**last_content[-1], "cache_control": {"type": "ephemeral"}}
    if request.schema is not None:
        if dialect.rung == "schema":
            shape = {"type": "json_schema", "schema": request.schema}
            payload["output_config"] = {"format": shape}
        elif dialect.rung == "tool":
            tool_fields = {"name": ANSWER_TOOL, "description": "The reply."}
            tools = [{**tool_fields, "input_schema": request.schema}]
            payload["tool_choice"] = {"type": "tool", "name": ANSWER_TOOL}
        else:
            system = build_schema_prompt(request)
    if system:
        payload["system"] = system
    if tools:
        payload["tools"] = tools
    if request.temperature is not None and dialect.temperature:
        payload["temperature"] = request.temperature
    return payload


def _encode_messages(messages: tuple[ChatMessage, ...]) -> Iterator[dict[str, Any]]:
    """Encode turn by turn: all that follows one reply, tool results first, is one user message."""
    for assistant, turn in groupby(messages, key=lambda message: message.role == "assistant"):
        blocks = [block for message in turn for block in _encode_blocks(message)]
        blocks.sort(key=lambda block: not assistant and block["type"] != "tool_result")
        yield {"role": "assistant" if assistant else "user", "content": blocks}


def _encode_blocks(message: ChatMessage) -> list[dict[str, Any]]:
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.call or "", "content": message.text}
        return [{**result, "is_error": True} if message.failed else result]
    if isinstance(message.echo, list) and message.echo:
        return message.echo
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in message.calls
    ]
    if message.text.strip():
        return [{"type": "text", "text": message.text}, *calls]
    # Blank text is refused by the server, and so is a message without content.
    return calls or [{"type": "text", "text": "(nothing)"}]


def decode_anthropic(answer: Any) -> ModelReply:
    """Decode the reply of an answer; MachineFailed if it has another shape."""
    try:
        parsed = msgspec.convert(answer, _AnthropicAnswer)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MachineFailed(f"The reply is not a message: {error}. Check base_url.") from None
    texts, calls = [], []
    for block in parsed.content:
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif block.get("type") == "tool_use":
            calls.append(_decode_call(block))
    has_thinking = any(block.get("type") in _THINKING_TYPES for block in parsed.content)
    stop: Any = _STOP_REASONS.get(parsed.stop_reason or "", "tools" if calls else "end")
    return ModelReply(
        text="".join(texts),
        calls=tuple(calls),
        stop=stop,
        usage=_decode_usage(parsed.usage),
        model=parsed.model,
        echo=parsed.content if has_thinking else None,
    )


def _decode_call(block: dict[str, Any]) -> ModelToolCall:
    name = block.get("name")
    if not isinstance(name, str):
        raise MachineFailed("A tool call without a name came back: try again.")
    arguments, malformed = parse_call_arguments(block.get("input"))
    call_id = str(block.get("id") or "")
    return ModelToolCall(id=call_id, name=name, arguments=arguments, malformed=malformed)


def _decode_usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    return Usage(
        input_tokens=read_token_count(usage.get("input_tokens")),
        output_tokens=read_token_count(usage.get("output_tokens")),
        cache_read_tokens=read_token_count(usage.get("cache_read_input_tokens")),
        cache_write_tokens=read_token_count(usage.get("cache_creation_input_tokens")),
    )


ANTHROPIC_FORMAT = ProviderFormat(
    address="https://api.anthropic.com",
    path="/v1/messages",
    key_env="ANTHROPIC_API_KEY",
    headers=build_anthropic_headers,
    rungs=("schema", "tool", "prompt"),
    encode=encode_anthropic,
    decode=decode_anthropic,
)


# Anthropic messages, served.

_SERVED_STOP_REASONS = {"length": "max_tokens", "refused": "refusal"}


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
            name=tool.name, description=tool.description or "", parameters=tool.input_schema or {}
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
        "stop_reason": _SERVED_STOP_REASONS.get(
            reply.stop, "tool_use" if reply.calls else "end_turn"
        ),
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
        for name, fields in steps:
            yield format_sse_event({"type": name, "index": index, **fields}, name)
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
