"""OpenAI-compatible chat completions, which most providers and local servers speak."""

from __future__ import annotations

from typing import Any

import msgspec

from closeloop.providers.format_dialect import (
    ANSWER_TOOL,
    Dialect,
    ProviderFormat,
    build_schema_prompt,
    parse_call_arguments,
    read_token_count,
)
from closeloop.records.attempt import Usage
from closeloop.records.chat import ChatMessage, ModelReply, ModelRequest, ModelToolCall
from closeloop.records.errors import MachineFailed

REASONING_FIELDS = ("reasoning_content", "reasoning_details")
"""Fields of a reply that thinking models want back in the next request."""


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
    """The request as the server wants it."""
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
    """The reply in an answer; MachineFailed when it is of another shape."""
    try:
        parsed = msgspec.convert(answer, _OpenaiAnswer)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MachineFailed(f"That is no chat completion: {error}. Check base_url.") from None
    if not parsed.choices:
        raise MachineFailed("The answer holds no choice: try again, or try another model.")
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
    into = usage.get("prompt_tokens_details")
    into = into if isinstance(into, dict) else {}
    out = usage.get("completion_tokens_details")
    out = out if isinstance(out, dict) else {}
    prompt = read_token_count(usage.get("prompt_tokens"))
    read, written = (
        read_token_count(into.get("cached_tokens")),
        read_token_count(into.get("cache_write_tokens")),
    )
    cost = usage.get("cost")
    has_cost = isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < 1e9
    return Usage(
        input_tokens=None if prompt is None else max(0, prompt - (read or 0) - (written or 0)),
        output_tokens=read_token_count(usage.get("completion_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=read_token_count(out.get("reasoning_tokens")),
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
