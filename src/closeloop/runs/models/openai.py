"""OpenAI-compatible chat completions, which most providers and local servers speak."""

from __future__ import annotations

from typing import Any

import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.chat import ChatMessage, ModelReply, ModelRequest, ToolCall
from closeloop.model.errors import MachineFailed
from closeloop.runs.models.dialect import ANSWER, Dialect, Format, arguments_of, count, plea

REASONING = ("reasoning_content", "reasoning_details")
"""Fields of a reply that thinking models want back in the next request."""


class _Part(msgspec.Struct):
    text: str | None = None


class _Function(msgspec.Struct):
    name: str
    arguments: Any = None


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = None
    extra_content: dict[str, Any] | None = None


class _Message(msgspec.Struct):
    content: str | list[str | _Part] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    reasoning_content: Any = None
    reasoning_details: Any = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    model: str | None = None
    usage: Any = None


def headers(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def encode(request: ModelRequest, model: str, dialect: Dialect) -> dict[str, Any]:
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
            named = {"name": ANSWER, "schema": request.schema, "strict": True}
            payload["response_format"] = {"type": "json_schema", "json_schema": named}
        elif dialect.rung == "tool":
            function = {"name": ANSWER, "description": "The reply.", "parameters": request.schema}
            tools = [{"type": "function", "function": function}]
            payload["tool_choice"] = {"type": "function", "function": {"name": ANSWER}}
        else:
            system = plea(request)
            if dialect.rung == "object":
                payload["response_format"] = {"type": "json_object"}
    first = [{"role": "system", "content": system}] if system else []
    payload["messages"] = [*first, *map(_message, request.messages)]
    if tools:
        payload["tools"] = tools
    if request.temperature is not None and dialect.temperature:
        payload["temperature"] = request.temperature
    if request.max_tokens is not None:
        payload[dialect.reply_limit] = request.max_tokens
    return payload


def _message(message: ChatMessage) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call or "", "content": message.text}
    if not message.calls:
        return {**_reasoning(message), "role": message.role, "content": message.text}
    extras = _echo(message).get("calls") or {}
    calls = []
    for call in message.calls:
        arguments = msgspec.json.encode(call.arguments).decode()
        function = {"name": call.name, "arguments": arguments}
        extra = {"extra_content": extras[call.id]} if call.id in extras else {}
        calls.append({"id": call.id, "type": "function", "function": function, **extra})
    return {
        **_reasoning(message),
        "role": "assistant",
        "content": message.text or None,
        "tool_calls": calls,
    }


def _echo(message: ChatMessage) -> dict[str, Any]:
    return message.echo if isinstance(message.echo, dict) else {}


def _reasoning(message: ChatMessage) -> dict[str, Any]:
    echo = _echo(message)
    return {name: echo[name] for name in REASONING if name in echo}


def decode(answer: Any) -> ModelReply:
    """The reply in an answer; MachineFailed when it is of another shape."""
    try:
        known = msgspec.convert(answer, _Answer)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MachineFailed(f"That is no chat completion: {error}. Check base_url.") from None
    if not known.choices:
        raise MachineFailed("The answer holds no choice: try again, or try another model.")
    choice = known.choices[0]
    message = choice.message
    calls = tuple(_call(call) for call in message.tool_calls or ())
    content = message.content
    if isinstance(content, list):
        content = "".join(part if isinstance(part, str) else part.text or "" for part in content)
    return ModelReply(
        text=content or message.refusal or "",
        calls=calls,
        stop=_stop(choice, bool(calls)),
        usage=_usage(known.usage),
        model=known.model,
        echo=_kept(message),
    )


def _call(call: _Call) -> ToolCall:
    arguments, malformed = arguments_of(call.function.arguments)
    name = call.function.name
    return ToolCall(id=call.id or "", name=name, arguments=arguments, malformed=malformed)


def _stop(choice: _Choice, calls: bool) -> Any:
    if choice.message.refusal or choice.finish_reason == "content_filter":
        return "refused"
    if choice.finish_reason == "length":
        return "length"
    return "tools" if calls else "end"


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    into = usage.get("prompt_tokens_details")
    into = into if isinstance(into, dict) else {}
    out = usage.get("completion_tokens_details")
    out = out if isinstance(out, dict) else {}
    prompt = count(usage.get("prompt_tokens"))
    read, written = count(into.get("cached_tokens")), count(into.get("cache_write_tokens"))
    cost = usage.get("cost")
    known = isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < 1e9
    return Usage(
        input_tokens=None if prompt is None else max(0, prompt - (read or 0) - (written or 0)),
        output_tokens=count(usage.get("completion_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=count(out.get("reasoning_tokens")),
        cost=float(cost or 0) if known else None,
        cost_from="reported" if known else None,
    )


def _kept(message: _Message) -> dict[str, Any] | None:
    kept = {name: getattr(message, name) for name in REASONING if getattr(message, name)}
    calls = {call.id: call.extra_content for call in message.tool_calls or () if call.extra_content}
    return {**kept, **({"calls": calls} if calls else {})} or None


FORMAT = Format(
    address="https://api.openai.com/v1",
    path="/chat/completions",
    key_env="OPENAI_API_KEY",
    headers=headers,
    rungs=("schema", "tool", "object", "prompt"),
    encode=encode,
    decode=decode,
)
