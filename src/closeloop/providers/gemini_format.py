"""Gemini's generateContent."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec

from closeloop.providers.format_dialect import (
    Dialect,
    ProviderFormat,
    build_schema_prompt,
    parse_call_arguments,
    read_token_count,
)
from closeloop.records.attempt import Usage
from closeloop.records.chat import ChatMessage, ModelReply, ModelRequest, ModelToolCall
from closeloop.records.errors import MachineFailed

_REFUSAL_REASONS = {"SAFETY", "RECITATION", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII"}


class _GeminiContent(msgspec.Struct):
    parts: list[dict[str, Any]] | None = None


class _GeminiCandidate(msgspec.Struct, rename="camel"):
    content: _GeminiContent | None = None
    finish_reason: str | None = None


class _GeminiAnswer(msgspec.Struct, rename="camel"):
    candidates: list[_GeminiCandidate] | None = None
    model_version: str | None = None
    usage_metadata: Any = None
    prompt_feedback: Any = None


def build_gemini_headers(key: str | None) -> dict[str, str]:
    return {"x-goog-api-key": key} if key else {}


def encode_gemini(request: ModelRequest, model: str, dialect: Dialect) -> dict[str, Any]:
    """The request as the server wants it."""
    names = {call.id: call.name for message in request.messages for call in message.calls}
    payload: dict[str, Any] = {"contents": list(_encode_contents(request.messages, names))}
    system = request.system
    generation_config: dict[str, Any] = {}
    if request.schema is not None:
        if dialect.rung == "schema":
            generation_config = {
                "responseMimeType": "application/json",
                "responseJsonSchema": request.schema,
            }
        else:
            system = build_schema_prompt(request)
            generation_config = (
                {"responseMimeType": "application/json"} if dialect.rung == "object" else {}
            )
    if system:
        payload["systemInstruction"] = {"parts": [{"text": system}]}
    if request.tools:
        declarations = [
            {
                "name": tool.name,
                "description": tool.description,
                "parametersJsonSchema": tool.parameters,
            }
            for tool in request.tools
        ]
        payload["tools"] = [{"functionDeclarations": declarations}]
    if request.temperature is not None and dialect.temperature:
        generation_config["temperature"] = request.temperature
    if request.max_tokens is not None:
        generation_config["maxOutputTokens"] = request.max_tokens
    if generation_config:
        payload["generationConfig"] = generation_config
    return payload


def _encode_contents(
    messages: tuple[ChatMessage, ...], names: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Turn by turn: all that follows one reply is one content of the user."""
    for assistant, turn in groupby(messages, key=lambda message: message.role == "assistant"):
        parts = [part for message in turn for part in _encode_parts(message, names)]
        yield {"role": "model" if assistant else "user", "parts": parts}


def _encode_parts(message: ChatMessage, names: dict[str, str]) -> list[dict[str, Any]]:
    if message.role == "tool":
        response = {"error" if message.failed else "output": message.text}
        call = message.call or ""
        return [{"functionResponse": {"name": names.get(call, call), "response": response}}]
    if isinstance(message.echo, list) and message.echo:
        return message.echo
    calls = [
        {"functionCall": {"name": call.name, "args": call.arguments}} for call in message.calls
    ]
    return [{"text": message.text}, *calls] if message.text or not calls else calls


def decode_gemini(answer: Any) -> ModelReply:
    """The reply in an answer; MachineFailed when it is of another shape."""
    try:
        parsed = msgspec.convert(answer, _GeminiAnswer)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MachineFailed(f"That is no generated content: {error}. Check base_url.") from None
    if not parsed.candidates and parsed.prompt_feedback is None:
        raise MachineFailed("The answer holds no candidate: try again, or try another model.")
    candidate = (
        parsed.candidates[0] if parsed.candidates else _GeminiCandidate(finish_reason="SAFETY")
    )
    parts = (candidate.content and candidate.content.parts) or []
    texts = [part["text"] for part in parts if _is_spoken_part(part)]
    calls = tuple(
        _decode_call(part["functionCall"])
        for part in parts
        if isinstance(part.get("functionCall"), dict)
    )
    stop: Any = "tools" if calls else "end"
    if candidate.finish_reason == "MAX_TOKENS":
        stop = "length"
    elif candidate.finish_reason in _REFUSAL_REASONS:
        stop = "refused"
    return ModelReply(
        text="".join(texts),
        calls=calls,
        stop=stop,
        usage=_decode_usage(parsed.usage_metadata),
        model=parsed.model_version,
        echo=parts if any("thoughtSignature" in part for part in parts) else None,
    )


def _is_spoken_part(part: dict[str, Any]) -> bool:
    return isinstance(part.get("text"), str) and not part.get("thought")


def _decode_call(call: dict[str, Any]) -> ModelToolCall:
    name = call.get("name")
    if not isinstance(name, str):
        raise MachineFailed("A tool call without a name came back: try again.")
    arguments, malformed = parse_call_arguments(call.get("args"))
    call_id = str(call.get("id") or "")
    return ModelToolCall(id=call_id, name=name, arguments=arguments, malformed=malformed)


def _decode_usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    into, read, out, thought, by_tools = (
        read_token_count(usage.get(f"{name}TokenCount"))
        for name in ("prompt", "cachedContent", "candidates", "thoughts", "toolUsePrompt")
    )
    if out is None and thought is None and into is not None:
        out = 0  # left out when nothing was said
    return Usage(
        input_tokens=None if into is None else max(0, into + (by_tools or 0) - (read or 0)),
        output_tokens=None if out is None and thought is None else (out or 0) + (thought or 0),
        cache_read_tokens=read,
        reasoning_tokens=thought,
    )


GEMINI_FORMAT = ProviderFormat(
    address="https://generativelanguage.googleapis.com",
    path="/v1beta/models/{model}:generateContent",
    key_env="GEMINI_API_KEY",
    headers=build_gemini_headers,
    rungs=("schema", "object", "prompt"),
    encode=encode_gemini,
    decode=decode_gemini,
)
