"""The OpenAI responses format: decoding of answers, and serving."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from closeloop.providers.wire_format import (
    ServedFormat,
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


class _ResponsesAnswer(msgspec.Struct):
    output: list[dict[str, Any]]
    status: str | None = None
    model: str | None = None
    usage: Any = None


def decode_responses(answer: Any) -> ModelReply:
    """Decode the reply of an answer; MachineFailed if it has another shape."""
    try:
        parsed = msgspec.convert(answer, _ResponsesAnswer)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MachineFailed(f"The reply is not a response: {error}. Check base_url.") from None
    texts: list[str] = []
    calls: list[ModelToolCall] = []
    is_refused = False
    for item in parsed.output:
        if item.get("type") == "message":
            for part in item.get("content") or ():
                part_text = (
                    part.get("text") or part.get("refusal") if isinstance(part, dict) else None
                )
                is_refused = is_refused or (
                    isinstance(part, dict) and part.get("type") == "refusal"
                )
                texts += [part_text] if isinstance(part_text, str) else []
        elif item.get("type") in ("function_call", "custom_tool_call"):
            calls.append(_decode_call(item))
    stop: Any = "tools" if calls else "refused" if is_refused else "end"
    return ModelReply(
        text="".join(texts),
        calls=tuple(calls),
        stop="length" if parsed.status == "incomplete" else stop,
        usage=_decode_usage(parsed.usage),
        model=parsed.model,
    )


def _decode_call(item: dict[str, Any]) -> ModelToolCall:
    space, name = item.get("namespace"), str(item.get("name") or "")
    if item["type"] == "custom_tool_call":
        arguments, malformed = {"input": item.get("input") or ""}, None
    else:
        arguments, malformed = parse_call_arguments(item.get("arguments"))
    return ModelToolCall(
        id=str(item.get("call_id") or ""),
        name=f"{space}.{name}" if space else name,
        arguments=arguments,
        malformed=malformed,
    )


def _decode_usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    input_details, output_details = (
        usage.get("input_tokens_details"),
        usage.get("output_tokens_details"),
    )
    cached_tokens = (
        read_token_count(input_details.get("cached_tokens"))
        if isinstance(input_details, dict)
        else None
    )
    input_tokens = read_token_count(usage.get("input_tokens"))
    return Usage(
        input_tokens=None if input_tokens is None else max(0, input_tokens - (cached_tokens or 0)),
        output_tokens=read_token_count(usage.get("output_tokens")),
        cache_read_tokens=cached_tokens,
        reasoning_tokens=read_token_count(output_details.get("reasoning_tokens"))
        if isinstance(output_details, dict)
        else None,
    )


# OpenAI responses, served.

FREE_TEXT_SCHEMA = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""Parameters of a custom tool: one text that is not JSON."""


class _ResponsesTool(msgspec.Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    tools: list[_ResponsesTool] | None = None


class _ResponsesItem(msgspec.Struct):
    type: str = "message"
    role: str = "user"
    content: Any = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: Any = None
    tools: list[_ResponsesTool] | None = None


class _ResponsesRequest(msgspec.Struct):
    input: str | list[_ResponsesItem]
    instructions: str | None = None
    tools: list[_ResponsesTool] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    text: Any = None


def read_responses_request(payload: Any) -> ModelRequest:
    request = convert_payload(payload, _ResponsesRequest)
    items = request.input
    if isinstance(items, str):
        items = [_ResponsesItem(content=items)]
    system = [request.instructions] if request.instructions else []
    messages: list[ChatMessage] = []
    for item in items:
        if item.type == "message" and item.role in ("system", "developer"):
            system.append(join_content_text(item.content))
        elif (message := _parse_item(item)) is not None:
            # A turn consists of several items; text that the client adds is separate.
            if messages and message.role != "tool" and messages[-1].role == message.role:
                message = _join_messages(messages.pop(), message)
            messages.append(message)
    specs = tuple(spec for tool in _list_tools(request) for spec in _tool_specs(tool))
    return ModelRequest(
        messages=tuple(messages),
        system="\n\n".join(system) or None,
        tools=specs,
        schema=find_reply_schema(request.text, "format"),
        max_tokens=request.max_output_tokens,
        temperature=request.temperature,
    )


def _list_tools(request: _ResponsesRequest) -> Iterator[_ResponsesTool]:
    yield from request.tools or ()
    if not isinstance(request.input, str):
        # Some clients send their tools as an item of the conversation.
        for item in request.input:
            yield from item.tools or ()


def _parse_item(item: _ResponsesItem) -> ChatMessage | None:
    if item.type == "agent_message":
        # The provider encrypts messages between agents; the encrypted text is passed on unchanged.
        parts = item.content if isinstance(item.content, list) else ()
        hidden = [part.get("encrypted_content") for part in parts if isinstance(part, dict)]
        texts = [join_content_text(parts), *(text for text in hidden if isinstance(text, str))]
        return ChatMessage(role="user", text="\n".join(texts))
    if item.type == "message":
        role = "assistant" if item.role == "assistant" else "user"
        return ChatMessage(role=role, text=join_content_text(item.content))  # type: ignore[arg-type]
    if item.type == "function_call":
        return _call_message(item, _parse_arguments(item.arguments))
    if item.type == "custom_tool_call":
        return _call_message(item, {"input": item.input or ""})
    if item.type in ("function_call_output", "custom_tool_call_output"):
        return ChatMessage(role="tool", text=join_content_text(item.output), call=item.call_id)
    return None


def _call_message(item: _ResponsesItem, arguments: dict[str, Any]) -> ChatMessage:
    name = f"{item.namespace}.{item.name}" if item.namespace else item.name or ""
    call = ModelToolCall(id=item.call_id or "", name=name, arguments=arguments)
    return ChatMessage(role="assistant", calls=(call,))


def _parse_arguments(arguments_json: str | None) -> dict[str, Any]:
    try:
        return msgspec.json.decode(arguments_json or "{}", type=dict[str, Any])
    except (ValueError, RecursionError):
        return {}


def _join_messages(first: ChatMessage, second: ChatMessage) -> ChatMessage:
    text = "\n".join(part for part in (first.text, second.text) if part)
    return msgspec.structs.replace(first, text=text, calls=first.calls + second.calls)


def _tool_specs(tool: _ResponsesTool, namespace: str = "") -> Iterator[ToolSpec]:
    if tool.type == "namespace":
        for inner in tool.tools or ():
            yield from _tool_specs(inner, f"{tool.name}.")
    elif tool.name and tool.type in ("function", "custom"):
        yield ToolSpec(
            name=namespace + tool.name,
            description=tool.description or "",
            parameters=FREE_TEXT_SCHEMA if tool.type == "custom" else tool.parameters or {},
        )


def build_responses_answer(reply: ModelReply, payload: Any) -> dict[str, Any]:
    input_tokens, output_tokens = sum_input_tokens(reply.usage), reply.usage.output_tokens or 0
    usage = {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": reply.usage.cache_read_tokens or 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reply.usage.reasoning_tokens or 0},
        "total_tokens": input_tokens + output_tokens,
    }
    full_answer = {**_answer_head(payload), "output": _answer_items(reply, payload), "usage": usage}
    if reply.stop == "length":
        incomplete_details = {"reason": "max_output_tokens"}
        return {**full_answer, "status": "incomplete", "incomplete_details": incomplete_details}
    return {**full_answer, "status": "completed"}


def stream_responses_events(reply: ModelReply, payload: Any) -> Iterator[str]:
    full_answer = build_responses_answer(reply, payload)
    for number, (name, fields) in enumerate(_event_steps(full_answer, payload)):
        yield format_sse_event({"type": name, "sequence_number": number, **fields}, name)


def _event_steps(answer: dict[str, Any], payload: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    started = {**_answer_head(payload), "status": "in_progress", "output": []}
    yield "response.created", {"response": started}
    for index, item in enumerate(answer["output"]):
        item_fields = {"output_index": index, "item_id": item["id"]}
        yield (
            "response.output_item.added",
            {"output_index": index, "item": {**item, **_EMPTY_ITEMS[item["type"]]}},
        )
        if item["type"] == "message":
            part, item_fields = item["content"][0], {**item_fields, "content_index": 0}
            yield "response.content_part.added", {**item_fields, "part": {**part, "text": ""}}
            yield "response.output_text.delta", {**item_fields, "delta": part["text"]}
            yield "response.output_text.done", {**item_fields, "text": part["text"]}
            yield "response.content_part.done", {**item_fields, "part": part}
        else:
            field, name = _WRITTEN_FIELDS[item["type"]]
            yield f"response.{name}.delta", {**item_fields, "delta": item[field]}
            yield f"response.{name}.done", {**item_fields, field: item[field]}
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield f"response.{answer['status']}", {"response": answer}


_EMPTY_ITEMS: dict[str, dict[str, Any]] = {
    "message": {"content": [], "status": "in_progress"},
    "function_call": {"arguments": "", "status": "in_progress"},
    "custom_tool_call": {"input": "", "status": "in_progress"},
}
_WRITTEN_FIELDS = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}


def build_responses_error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": "script"}}


def _answer_head(payload: Any) -> dict[str, Any]:
    return {
        "id": f"resp_{len(payload['input'])}",
        "object": "response",
        "created_at": 0,
        "model": payload.get("model") or "scripted",
    }


def _answer_items(reply: ModelReply, payload: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    completed = {"status": "completed"}
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        message_fields = {
            "type": "message",
            "id": f"msg_{len(payload['input'])}",
            "role": "assistant",
        }
        items.append({**message_fields, "content": [part], **completed})
    freeform_tools = {
        spec.name
        for spec in read_responses_request(payload).tools
        if spec.parameters is FREE_TEXT_SCHEMA
    }
    for call in reply.calls:
        # A function's own name has no dot.
        namespace, _, name = call.name.rpartition(".")
        item = {"id": f"item_{call.id}", "call_id": call.id, "name": name, **completed}
        if namespace:
            item["namespace"] = namespace
        if call.name in freeform_tools:
            call_input = str(call.arguments.get("input", ""))
            items.append({"type": "custom_tool_call", **item, "input": call_input})
        else:
            call_input = call.malformed or msgspec.json.encode(call.arguments).decode()
            items.append({"type": "function_call", **item, "arguments": call_input})
    return items


RESPONSES_SERVED_FORMAT = ServedFormat(
    name="responses",
    path="/v1/responses",
    read=read_responses_request,
    answer=build_responses_answer,
    events=stream_responses_events,
    fault=build_responses_error,
    ping=b": waiting\n\n",
)
