"""Gemini's generateContent."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.chat import ChatMessage, ModelReply, ModelRequest, ToolCall
from closeloop.model.errors import MachineFailed
from closeloop.runs.models.dialect import Dialect, Format, arguments_of, count, plea

_REFUSED = {"SAFETY", "RECITATION", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII"}


class _Content(msgspec.Struct):
    parts: list[dict[str, Any]] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    model_version: str | None = None
    usage_metadata: Any = None
    prompt_feedback: Any = None


def headers(key: str | None) -> dict[str, str]:
    return {"x-goog-api-key": key} if key else {}


def encode(request: ModelRequest, model: str, dialect: Dialect) -> dict[str, Any]:
    """The request as the server wants it."""
    names = {call.id: call.name for message in request.messages for call in message.calls}
    payload: dict[str, Any] = {"contents": list(_contents(request.messages, names))}
    system = request.system
    wishes: dict[str, Any] = {}
    if request.schema is not None:
        if dialect.rung == "schema":
            wishes = {"responseMimeType": "application/json", "responseJsonSchema": request.schema}
        else:
            system = plea(request)
            wishes = {"responseMimeType": "application/json"} if dialect.rung == "object" else {}
    if system:
        payload["systemInstruction"] = {"parts": [{"text": system}]}
    if request.tools:
        declared = [
            {
                "name": tool.name,
                "description": tool.description,
                "parametersJsonSchema": tool.parameters,
            }
            for tool in request.tools
        ]
        payload["tools"] = [{"functionDeclarations": declared}]
    if request.temperature is not None and dialect.temperature:
        wishes["temperature"] = request.temperature
    if request.max_tokens is not None:
        wishes["maxOutputTokens"] = request.max_tokens
    if wishes:
        payload["generationConfig"] = wishes
    return payload


def _contents(messages: tuple[ChatMessage, ...], names: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Turn by turn: all that follows one reply is one content of the user."""
    for assistant, turn in groupby(messages, key=lambda message: message.role == "assistant"):
        parts = [part for message in turn for part in _parts(message, names)]
        yield {"role": "model" if assistant else "user", "parts": parts}


def _parts(message: ChatMessage, names: dict[str, str]) -> list[dict[str, Any]]:
    if message.role == "tool":
        said = {"error" if message.failed else "output": message.text}
        call = message.call or ""
        return [{"functionResponse": {"name": names.get(call, call), "response": said}}]
    if isinstance(message.echo, list) and message.echo:
        return message.echo
    calls = [
        {"functionCall": {"name": call.name, "args": call.arguments}} for call in message.calls
    ]
    return [{"text": message.text}, *calls] if message.text or not calls else calls


def decode(answer: Any) -> ModelReply:
    """The reply in an answer; MachineFailed when it is of another shape."""
    try:
        known = msgspec.convert(answer, _Answer)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MachineFailed(f"That is no generated content: {error}. Check base_url.") from None
    if not known.candidates and known.prompt_feedback is None:
        raise MachineFailed("The answer holds no candidate: try again, or try another model.")
    candidate = known.candidates[0] if known.candidates else _Candidate(finish_reason="SAFETY")
    parts = (candidate.content and candidate.content.parts) or []
    texts = [part["text"] for part in parts if _is_said(part)]
    calls = tuple(
        _call(part["functionCall"]) for part in parts if isinstance(part.get("functionCall"), dict)
    )
    stop: Any = "tools" if calls else "end"
    if candidate.finish_reason == "MAX_TOKENS":
        stop = "length"
    elif candidate.finish_reason in _REFUSED:
        stop = "refused"
    return ModelReply(
        text="".join(texts),
        calls=calls,
        stop=stop,
        usage=_usage(known.usage_metadata),
        model=known.model_version,
        echo=parts if any("thoughtSignature" in part for part in parts) else None,
    )


def _is_said(part: dict[str, Any]) -> bool:
    return isinstance(part.get("text"), str) and not part.get("thought")


def _call(call: dict[str, Any]) -> ToolCall:
    name = call.get("name")
    if not isinstance(name, str):
        raise MachineFailed("A tool call without a name came back: try again.")
    arguments, malformed = arguments_of(call.get("args"))
    known = str(call.get("id") or "")
    return ToolCall(id=known, name=name, arguments=arguments, malformed=malformed)


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    into, read, out, thought, by_tools = (
        count(usage.get(f"{name}TokenCount"))
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


FORMAT = Format(
    address="https://generativelanguage.googleapis.com",
    path="/v1beta/models/{model}:generateContent",
    key_env="GEMINI_API_KEY",
    headers=headers,
    rungs=("schema", "object", "prompt"),
    encode=encode,
    decode=decode,
)
