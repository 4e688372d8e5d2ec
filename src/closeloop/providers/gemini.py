"""Gemini's generateContent, as client and server, whole or as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec

from closeloop.providers.wire_format import (
    Dialect,
    ProviderFormat,
    ServedFormat,
    build_schema_prompt,
    convert_payload,
    format_sse_event,
    join_content_text,
    parse_call_arguments,
    read_token_count,
    sum_input_tokens,
)
from closeloop.records.attempt import Usage
from closeloop.records.errors import MachineFailed
from closeloop.records.trace import ChatMessage, ModelReply, ModelRequest, ModelToolCall, ToolSpec

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
    """Encode the request for the server."""
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
    """Encode turn by turn: all that follows one reply is one user content."""
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
    """Decode the reply of an answer; MachineFailed if it has another shape."""
    try:
        parsed = msgspec.convert(answer, _GeminiAnswer)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MachineFailed(
            f"The reply is not generated content: {error}. Check base_url."
        ) from None
    if not parsed.candidates and parsed.prompt_feedback is None:
        raise MachineFailed("The reply has no candidate: try again, or try another model.")
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
    input_tokens, cached_tokens, output_tokens, thought_tokens, tool_tokens = (
        read_token_count(usage.get(f"{name}TokenCount"))
        for name in ("prompt", "cachedContent", "candidates", "thoughts", "toolUsePrompt")
    )
    if output_tokens is None and thought_tokens is None and input_tokens is not None:
        output_tokens = 0  # omitted if empty
    return Usage(
        input_tokens=None
        if input_tokens is None
        else max(0, input_tokens + (tool_tokens or 0) - (cached_tokens or 0)),
        output_tokens=None
        if output_tokens is None and thought_tokens is None
        else (output_tokens or 0) + (thought_tokens or 0),
        cache_read_tokens=cached_tokens,
        reasoning_tokens=thought_tokens,
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


# Gemini's generateContent, served: whole, and as a stream at its own address.

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
    input_tokens, output_tokens = sum_input_tokens(reply.usage), reply.usage.output_tokens or 0
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
            "promptTokenCount": input_tokens,
            "cachedContentTokenCount": reply.usage.cache_read_tokens or 0,
            "candidatesTokenCount": max(0, output_tokens - thought),
            "thoughtsTokenCount": thought,
            "totalTokenCount": input_tokens + output_tokens,
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
