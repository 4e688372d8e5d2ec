"""Gemini's generateContent, served: whole, and as a stream at an address of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from closeloop.model.chat import ChatMessage, ModelReply, ModelRequest, ToolCall, ToolSpec
from closeloop.runs.models.served.speech import Speech, event, plain, shaped, tokens_in

_STOPS = {"length": "MAX_TOKENS", "refused": "SAFETY"}


class _Call(msgspec.Struct):
    name: str
    args: dict[str, Any] | None = None
    id: str | None = None


class _Result(msgspec.Struct):
    response: dict[str, Any] | None = None
    id: str | None = None


class _Part(msgspec.Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    function_call: _Call | None = None
    function_response: _Result | None = None


class _Content(msgspec.Struct):
    parts: list[_Part] | None = None
    role: str | None = None


class _Function(msgspec.Struct, rename="camel"):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


class _Tool(msgspec.Struct, rename="camel"):
    function_declarations: list[_Function] | None = None


class _Wishes(msgspec.Struct, rename="camel"):
    max_output_tokens: int | None = None
    temperature: float | None = None
    response_json_schema: dict[str, Any] | None = None


class _Request(msgspec.Struct, rename="camel"):
    contents: list[_Content]
    system_instruction: Any = None
    tools: list[_Tool] | None = None
    generation_config: _Wishes | None = None


def read(payload: Any) -> ModelRequest:
    request = shaped(payload, _Request)
    messages = [part for content in request.contents for part in _messages(content)]
    tools = tuple(
        ToolSpec(
            name=function.name,
            description=function.description or "",
            parameters=function.parameters_json_schema or function.parameters or {},
        )
        for tool in request.tools or ()
        for function in tool.function_declarations or ()
    )
    told = request.system_instruction
    system = plain(told.get("parts") if isinstance(told, dict) else told) or None
    wishes = request.generation_config or _Wishes()
    return ModelRequest(
        messages=tuple(messages),
        system=system,
        tools=tools,
        schema=wishes.response_json_schema,
        max_tokens=wishes.max_output_tokens,
        temperature=wishes.temperature,
    )


def _messages(content: _Content) -> Iterator[ChatMessage]:
    parts = content.parts or []
    text = "\n".join(part.text for part in parts if part.text and not part.thought)
    if content.role == "model":
        calls = tuple(
            ToolCall(id=call.id or "", name=call.name, arguments=call.args or {})
            for part in parts
            if (call := part.function_call)
        )
        yield ChatMessage(role="assistant", text=text, calls=calls)
        return
    for part in parts:
        if result := part.function_response:
            said = result.response or {}
            failed = "error" in said
            value = said.get("error" if failed else "output", said)
            written = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            yield ChatMessage(role="tool", text=written, call=result.id, failed=failed)
    if text:
        yield ChatMessage(role="user", text=text)


def answer(reply: ModelReply, payload: Any) -> dict[str, Any]:
    into, out = tokens_in(reply.usage), reply.usage.output_tokens or 0
    thought = reply.usage.reasoning_tokens or 0
    text = [{"text": reply.text}] if reply.text else []
    calls = [
        {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}
        for call in reply.calls
    ]
    content = {"role": "model", "parts": text + calls}
    finish = _STOPS.get(reply.stop, "STOP")
    return {
        "responseId": f"response-{len(payload['contents'])}",
        "modelVersion": reply.model,
        "candidates": [{"index": 0, "content": content, "finishReason": finish}],
        "usageMetadata": {
            "promptTokenCount": into,
            "cachedContentTokenCount": reply.usage.cache_read_tokens or 0,
            "candidatesTokenCount": max(0, out - thought),
            "thoughtsTokenCount": thought,
            "totalTokenCount": into + out,
        },
    }


def events(reply: ModelReply, payload: Any) -> Iterator[str]:
    whole = answer(reply, payload)
    head = {"responseId": whole["responseId"], "modelVersion": whole["modelVersion"]}
    parts = whole["candidates"][0]["content"]["parts"]
    for part in parts[:-1]:
        content = {"role": "model", "parts": [part]}
        yield event({**head, "candidates": [{"index": 0, "content": content}]})
    whole["candidates"][0]["content"]["parts"] = parts[-1:]
    yield event(whole)


def fault(message: str) -> dict[str, Any]:
    return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}


SPEECH = Speech(
    name="gemini",
    path="/v1beta/models/{model}:generateContent",
    read=read,
    answer=answer,
    events=events,
    fault=fault,
)
STREAMED = msgspec.structs.replace(
    SPEECH, path="/v1beta/models/{model}:streamGenerateContent", streams=True
)
