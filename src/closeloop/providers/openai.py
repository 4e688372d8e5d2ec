"""Chat completions, which most providers and local servers support, as client and server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from closeloop.providers.wire_format import (
    ANSWER_TOOL,
    Dialect,
    ProviderFormat,
    ServedFormat,
    build_schema_prompt,
    convert_payload,
    find_reply_schema,
    format_sse_event,
    join_content_text,
    parse_call_arguments,
    read_token_count,
    sum_input_tokens,
)
from closeloop.records.attempt import Usage
from closeloop.records.errors import MachineFailed
from closeloop.records.trace import ChatMessage, ModelReply, ModelRequest, ModelToolCall, ToolSpec

REASONING_FIELDS = ("reasoning_content", "reasoning_details")
"""Fields of a reply that reasoning models expect back in the next request."""


class _OpenaiPart(msgspec.Struct):
    text: str | None = None


class _OpenaiFunction(msgspec.Struct):
    name: str
    arguments: Any = None


class _OpenaiCall(msgspec.Struct):
    function: _OpenaiFunction
    id: str | None = None
    extra_content: dict[str, Any] | None = None


class _OpenaiMessage(msgspec.Struct):
    content: str | list[str | _OpenaiPart] | None = None
    refusal: str | None = None
    tool_calls: list[_OpenaiCall] | None = None
    reasoning_content: Any = None
    reasoning_details: Any = None


class _OpenaiChoice(msgspec.Struct):
    message: _OpenaiMessage
    finish_reason: str | None = None


class _OpenaiAnswer(msgspec.Struct):
    choices: list[_OpenaiChoice]
    model: str | None = None
    usage: Any = None


def build_openai_headers(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def encode_openai(request: ModelRequest, model: str, dialect: Dialect) -> dict[str, Any]:
    """Encode the request for the server."""
    payload: dict[str, Any] = {"model": model}
    system = request.system
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            },
        }
        for tool in request.tools
    ]
    if request.schema is not None:
        if dialect.rung == "schema":
            schema_fields = {"name": ANSWER_TOOL, "schema": request.schema, "strict": True}
            payload["response_format"] = {"type": "json_schema", "json_schema": schema_fields}
        elif dialect.rung == "tool":
            function = {
                "name": ANSWER_TOOL,
                "description": "The reply.",
                "parameters": request.schema,
            }
            tools = [{"type": "function", "function": function}]
            payload["tool_choice"] = {"type": "function", "function": {"name": ANSWER_TOOL}}
        else:
            system = build_schema_prompt(request)
            if dialect.rung == "object":
                payload["response_format"] = {"type": "json_object"}
    system_messages = [{"role": "system", "content": system}] if system else []
    payload["messages"] = [*system_messages, *map(_encode_message, request.messages)]
    if tools:
        payload["tools"] = tools
    if request.temperature is not None and dialect.temperature:
        payload["temperature"] = request.temperature
    if request.max_tokens is not None:
        payload[dialect.reply_limit] = request.max_tokens
    return payload


def _encode_message(message: ChatMessage) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call or "", "content": message.text}
    if not message.calls:
        return {**_read_reasoning(message), "role": message.role, "content": message.text}
    extras = _read_echo(message).get("calls") or {}
    calls = []
    for call in message.calls:
        arguments = msgspec.json.encode(call.arguments).decode()
        function = {"name": call.name, "arguments": arguments}
        extra = {"extra_content": extras[call.id]} if call.id in extras else {}
        calls.append({"id": call.id, "type": "function", "function": function, **extra})
    return {
        **_read_reasoning(message),
        "role": "assistant",
        "content": message.text or None,
        "tool_calls": calls,
    }


def _read_echo(message: ChatMessage) -> dict[str, Any]:
    return message.echo if isinstance(message.echo, dict) else {}


def _read_reasoning(message: ChatMessage) -> dict[str, Any]:
    echo = _read_echo(message)
    return {name: echo[name] for name in REASONING_FIELDS if name in echo}


def decode_openai(answer: Any) -> ModelReply:
    """Decode the reply of an answer; MachineFailed if it has another shape."""
    try:
        parsed = msgspec.convert(answer, _OpenaiAnswer)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MachineFailed(
            f"The reply is not a chat completion: {error}. Check base_url."
        ) from None
    if not parsed.choices:
        raise MachineFailed("The reply has no choice: try again, or try another model.")
    choice = parsed.choices[0]
    message = choice.message
    calls = tuple(_decode_call(call) for call in message.tool_calls or ())
    content = message.content
    if isinstance(content, list):
        content = "".join(part if isinstance(part, str) else part.text or "" for part in content)
    return ModelReply(
        text=content or message.refusal or "",
        calls=calls,
        stop=_decode_stop(choice, bool(calls)),
        usage=_decode_usage(parsed.usage),
        model=parsed.model,
        echo=_build_echo(message),
    )


def _decode_call(call: _OpenaiCall) -> ModelToolCall:
    arguments, malformed = parse_call_arguments(call.function.arguments)
    name = call.function.name
    return ModelToolCall(id=call.id or "", name=name, arguments=arguments, malformed=malformed)


def _decode_stop(choice: _OpenaiChoice, calls: bool) -> Any:
    if choice.message.refusal or choice.finish_reason == "content_filter":
        return "refused"
    if choice.finish_reason == "length":
        return "length"
    return "tools" if calls else "end"


def _decode_usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    input_details = usage.get("prompt_tokens_details")
    input_details = input_details if isinstance(input_details, dict) else {}
    output_details = usage.get("completion_tokens_details")
    output_details = output_details if isinstance(output_details, dict) else {}
    prompt = read_token_count(usage.get("prompt_tokens"))
    cached_tokens, written_tokens = (
        read_token_count(input_details.get("cached_tokens")),
        read_token_count(input_details.get("cache_write_tokens")),
    )
    cost = usage.get("cost")
    has_cost = isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < 1e9
    return Usage(
        input_tokens=None
        if prompt is None
        else max(0, prompt - (cached_tokens or 0) - (written_tokens or 0)),
        output_tokens=read_token_count(usage.get("completion_tokens")),
        cache_read_tokens=cached_tokens,
        cache_write_tokens=written_tokens,
        reasoning_tokens=read_token_count(output_details.get("reasoning_tokens")),
        cost=float(cost or 0) if has_cost else None,
        cost_from="reported" if has_cost else None,
    )


def _build_echo(message: _OpenaiMessage) -> dict[str, Any] | None:
    reasoning = {
        name: getattr(message, name) for name in REASONING_FIELDS if getattr(message, name)
    }
    calls = {call.id: call.extra_content for call in message.tool_calls or () if call.extra_content}
    return {**reasoning, **({"calls": calls} if calls else {})} or None


OPENAI_FORMAT = ProviderFormat(
    address="https://api.openai.com/v1",
    path="/chat/completions",
    key_env="OPENAI_API_KEY",
    headers=build_openai_headers,
    rungs=("schema", "tool", "object", "prompt"),
    encode=encode_openai,
    decode=decode_openai,
)


# Chat completions, served.

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
    input_tokens, output_tokens = sum_input_tokens(usage), usage.output_tokens or 0
    return {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
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
