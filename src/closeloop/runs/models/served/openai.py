"""Chat completions, served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from closeloop.model.chat import ChatMessage, ModelReply, ModelRequest, ToolCall, ToolSpec
from closeloop.runs.models.served.speech import (
    Speech,
    event,
    plain,
    schema_in,
    shaped,
    tokens_in,
)

_STOPS = {"length": "length", "refused": "content_filter"}


class _Function(msgspec.Struct):
    name: str
    arguments: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: Any = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


class _Tool(msgspec.Struct):
    function: _Function | None = None


class _Request(msgspec.Struct):
    messages: list[_Message]
    tools: list[_Tool] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    response_format: Any = None


def read(payload: Any) -> ModelRequest:
    request = shaped(payload, _Request)
    system, messages = [], []
    for message in request.messages:
        text = plain(message.content)
        if message.role in ("system", "developer"):
            system.append(text)
        elif message.role == "tool":
            messages.append(ChatMessage(role="tool", text=text, call=message.tool_call_id))
        elif message.role == "assistant":
            calls = tuple(_call(call) for call in message.tool_calls or ())
            messages.append(ChatMessage(role="assistant", text=text, calls=calls))
        else:
            messages.append(ChatMessage(role="user", text=text))
    tools = tuple(_tool(tool.function) for tool in request.tools or () if tool.function)
    return ModelRequest(
        messages=tuple(messages),
        system="\n\n".join(system) or None,
        tools=tools,
        schema=schema_in(request.response_format, "json_schema"),
        max_tokens=request.max_completion_tokens or request.max_tokens,
        temperature=request.temperature,
    )


def _call(call: _Call) -> ToolCall:
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (ValueError, RecursionError):
        arguments = {}
    return ToolCall(id=call.id or "", name=call.function.name, arguments=arguments)


def _tool(function: _Function) -> ToolSpec:
    return ToolSpec(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters or {},
    )


def answer(reply: ModelReply, payload: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = _calls(reply)
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": None}
    head = _head(payload, "chat.completion")
    return {**head, "choices": [choice], "usage": _usage(reply)}


def events(reply: ModelReply, payload: Any) -> Iterator[str]:
    head = _head(payload, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return event({**head, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    if reply.text:
        yield chunk({"content": reply.text})
    for index, call in enumerate(_calls(reply)):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    yield chunk({}, _finish(reply))
    options = payload.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield event({**head, "choices": [], "usage": _usage(reply)})
    yield "data: [DONE]\n\n"


def fault(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": "script"}}


def _head(payload: Any, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{len(payload['messages'])}",
        "object": kind,
        "created": 0,
        "model": payload.get("model") or "scripted",
    }


def _calls(reply: ModelReply) -> list[dict[str, Any]]:
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


def _finish(reply: ModelReply) -> str:
    return _STOPS.get(reply.stop, "tool_calls" if reply.calls else "stop")


def _usage(reply: ModelReply) -> dict[str, Any]:
    usage = reply.usage
    into, out = tokens_in(usage), usage.output_tokens or 0
    return {
        "prompt_tokens": into,
        "completion_tokens": out,
        "total_tokens": into + out,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens or 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "cost": usage.cost,
    }


SPEECH = Speech(
    name="openai",
    path="/v1/chat/completions",
    read=read,
    answer=answer,
    events=events,
    fault=fault,
    ping=b": waiting\n\n",
)
