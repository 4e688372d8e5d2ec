"""Chat completions, served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from closeloop.providers.served.served_format import (
    ServedFormat,
    convert_payload,
    find_reply_schema,
    format_sse_event,
    join_content_text,
    sum_input_tokens,
)
from closeloop.records.chat import ChatMessage, ModelReply, ModelRequest, ModelToolCall, ToolSpec

_FINISH_REASONS = {"length": "length", "refused": "content_filter"}


class _ChatFunction(msgspec.Struct):
    name: str
    arguments: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _ChatCall(msgspec.Struct):
    function: _ChatFunction
    id: str | None = None


class _ChatRequestMessage(msgspec.Struct):
    role: str
    content: Any = None
    tool_calls: list[_ChatCall] | None = None
    tool_call_id: str | None = None


class _ChatTool(msgspec.Struct):
    function: _ChatFunction | None = None


class _ChatRequest(msgspec.Struct):
    messages: list[_ChatRequestMessage]
    tools: list[_ChatTool] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    response_format: Any = None


def read_chat_request(payload: Any) -> ModelRequest:
    request = convert_payload(payload, _ChatRequest)
    system, messages = [], []
    for message in request.messages:
        text = join_content_text(message.content)
        if message.role in ("system", "developer"):
            system.append(text)
        elif message.role == "tool":
            messages.append(ChatMessage(role="tool", text=text, call=message.tool_call_id))
        elif message.role == "assistant":
            calls = tuple(_parse_call(call) for call in message.tool_calls or ())
            messages.append(ChatMessage(role="assistant", text=text, calls=calls))
        else:
            messages.append(ChatMessage(role="user", text=text))
    tools = tuple(_parse_tool(tool.function) for tool in request.tools or () if tool.function)
    return ModelRequest(
        messages=tuple(messages),
        system="\n\n".join(system) or None,
        tools=tools,
        schema=find_reply_schema(request.response_format, "json_schema"),
        max_tokens=request.max_completion_tokens or request.max_tokens,
        temperature=request.temperature,
    )


def _parse_call(call: _ChatCall) -> ModelToolCall:
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (ValueError, RecursionError):
        arguments = {}
    return ModelToolCall(id=call.id or "", name=call.function.name, arguments=arguments)


def _parse_tool(function: _ChatFunction) -> ToolSpec:
    return ToolSpec(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters or {},
    )


def build_chat_answer(reply: ModelReply, payload: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = _answer_calls(reply)
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": _finish_reason(reply),
        "logprobs": None,
    }
    head = _answer_head(payload, "chat.completion")
    return {**head, "choices": [choice], "usage": _answer_usage(reply)}


def stream_chat_events(reply: ModelReply, payload: Any) -> Iterator[str]:
    head = _answer_head(payload, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return format_sse_event({**head, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    if reply.text:
        yield chunk({"content": reply.text})
    for index, call in enumerate(_answer_calls(reply)):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    yield chunk({}, _finish_reason(reply))
    options = payload.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield format_sse_event({**head, "choices": [], "usage": _answer_usage(reply)})
    yield "data: [DONE]\n\n"


def build_chat_error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": "script"}}


def _answer_head(payload: Any, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{len(payload['messages'])}",
        "object": kind,
        "created": 0,
        "model": payload.get("model") or "scripted",
    }


def _answer_calls(reply: ModelReply) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": call.malformed or msgspec.json.encode(call.arguments).decode(),
            },
        }
        for call in reply.calls
    ]


def _finish_reason(reply: ModelReply) -> str:
    return _FINISH_REASONS.get(reply.stop, "tool_calls" if reply.calls else "stop")


def _answer_usage(reply: ModelReply) -> dict[str, Any]:
    usage = reply.usage
    into, out = sum_input_tokens(usage), usage.output_tokens or 0
    return {
        "prompt_tokens": into,
        "completion_tokens": out,
        "total_tokens": into + out,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens or 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "cost": usage.cost,
    }


OPENAI_SERVED_FORMAT = ServedFormat(
    name="openai",
    path="/v1/chat/completions",
    read=read_chat_request,
    answer=build_chat_answer,
    events=stream_chat_events,
    fault=build_chat_error,
    ping=b": waiting\n\n",
)
