"""Gemini's generateContent, served: whole, and as a stream at an address of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from closeloop.providers.served.served_format import (
    ServedFormat,
    convert_payload,
    format_sse_event,
    join_content_text,
    sum_input_tokens,
)
from closeloop.records.chat import ChatMessage, ModelReply, ModelRequest, ModelToolCall, ToolSpec

_FINISH_REASONS = {"length": "MAX_TOKENS", "refused": "SAFETY"}


class _GeminiCall(msgspec.Struct):
    name: str
    args: dict[str, Any] | None = None
    id: str | None = None


class _GeminiResult(msgspec.Struct):
    response: dict[str, Any] | None = None
    id: str | None = None


class _GeminiPart(msgspec.Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    function_call: _GeminiCall | None = None
    function_response: _GeminiResult | None = None


class _GeminiRequestContent(msgspec.Struct):
    parts: list[_GeminiPart] | None = None
    role: str | None = None


class _GeminiFunction(msgspec.Struct, rename="camel"):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


class _GeminiTool(msgspec.Struct, rename="camel"):
    function_declarations: list[_GeminiFunction] | None = None


class _GeminiGenerationConfig(msgspec.Struct, rename="camel"):
    max_output_tokens: int | None = None
    temperature: float | None = None
    response_json_schema: dict[str, Any] | None = None


class _GeminiRequest(msgspec.Struct, rename="camel"):
    contents: list[_GeminiRequestContent]
    system_instruction: Any = None
    tools: list[_GeminiTool] | None = None
    generation_config: _GeminiGenerationConfig | None = None


def read_gemini_request(payload: Any) -> ModelRequest:
    request = convert_payload(payload, _GeminiRequest)
    messages = [part for content in request.contents for part in _parse_messages(content)]
    tools = tuple(
        ToolSpec(
            name=function.name,
            description=function.description or "",
            parameters=function.parameters_json_schema or function.parameters or {},
        )
        for tool in request.tools or ()
        for function in tool.function_declarations or ()
    )
    instruction = request.system_instruction
    system = (
        join_content_text(
            instruction.get("parts") if isinstance(instruction, dict) else instruction
        )
        or None
    )
    generation_config = request.generation_config or _GeminiGenerationConfig()
    return ModelRequest(
        messages=tuple(messages),
        system=system,
        tools=tools,
        schema=generation_config.response_json_schema,
        max_tokens=generation_config.max_output_tokens,
        temperature=generation_config.temperature,
    )


def _parse_messages(content: _GeminiRequestContent) -> Iterator[ChatMessage]:
    parts = content.parts or []
    text = "\n".join(part.text for part in parts if part.text and not part.thought)
    if content.role == "model":
        calls = tuple(
            ModelToolCall(id=call.id or "", name=call.name, arguments=call.args or {})
            for part in parts
            if (call := part.function_call)
        )
        yield ChatMessage(role="assistant", text=text, calls=calls)
        return
    for part in parts:
        if result := part.function_response:
            response = result.response or {}
            failed = "error" in response
            value = response.get("error" if failed else "output", response)
            response_text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            yield ChatMessage(role="tool", text=response_text, call=result.id, failed=failed)
    if text:
        yield ChatMessage(role="user", text=text)


def build_gemini_answer(reply: ModelReply, payload: Any) -> dict[str, Any]:
    into, out = sum_input_tokens(reply.usage), reply.usage.output_tokens or 0
    thought = reply.usage.reasoning_tokens or 0
    text = [{"text": reply.text}] if reply.text else []
    calls = [
        {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}
        for call in reply.calls
    ]
    content = {"role": "model", "parts": text + calls}
    finish = _FINISH_REASONS.get(reply.stop, "STOP")
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


def stream_gemini_events(reply: ModelReply, payload: Any) -> Iterator[str]:
    full_answer = build_gemini_answer(reply, payload)
    head = {"responseId": full_answer["responseId"], "modelVersion": full_answer["modelVersion"]}
    parts = full_answer["candidates"][0]["content"]["parts"]
    for part in parts[:-1]:
        content = {"role": "model", "parts": [part]}
        yield format_sse_event({**head, "candidates": [{"index": 0, "content": content}]})
    full_answer["candidates"][0]["content"]["parts"] = parts[-1:]
    yield format_sse_event(full_answer)


def build_gemini_error(message: str) -> dict[str, Any]:
    return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}


GEMINI_SERVED_FORMAT = ServedFormat(
    name="gemini",
    path="/v1beta/models/{model}:generateContent",
    read=read_gemini_request,
    answer=build_gemini_answer,
    events=stream_gemini_events,
    fault=build_gemini_error,
)
GEMINI_STREAM_FORMAT = msgspec.structs.replace(
    GEMINI_SERVED_FORMAT, path="/v1beta/models/{model}:streamGenerateContent", streams=True
)
