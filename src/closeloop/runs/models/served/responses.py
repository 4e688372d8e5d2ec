"""OpenAI responses, served."""

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

FREE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""What a custom tool takes: one text, which is no JSON."""


class _Tool(msgspec.Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    tools: list[_Tool] | None = None


class _Item(msgspec.Struct):
    type: str = "message"
    role: str = "user"
    content: Any = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: Any = None
    tools: list[_Tool] | None = None


class _Request(msgspec.Struct):
    input: str | list[_Item]
    instructions: str | None = None
    tools: list[_Tool] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    text: Any = None


def read(payload: Any) -> ModelRequest:
    request = shaped(payload, _Request)
    items = request.input
    if isinstance(items, str):
        items = [_Item(content=items)]
    system = [request.instructions] if request.instructions else []
    messages: list[ChatMessage] = []
    for item in items:
        if item.type == "message" and item.role in ("system", "developer"):
            system.append(plain(item.content))
        elif (message := _message(item)) is not None:
            # A turn comes as several items; what the client adds to a request comes beside it.
            if messages and message.role != "tool" and messages[-1].role == message.role:
                message = _joined(messages.pop(), message)
            messages.append(message)
    specs = tuple(spec for tool in _tools(request) for spec in _specs(tool))
    return ModelRequest(
        messages=tuple(messages),
        system="\n\n".join(system) or None,
        tools=specs,
        schema=schema_in(request.text, "format"),
        max_tokens=request.max_output_tokens,
        temperature=request.temperature,
    )


def _tools(request: _Request) -> Iterator[_Tool]:
    yield from request.tools or ()
    if not isinstance(request.input, str):
        # Some clients bring their tools as an item of the conversation.
        for item in request.input:
            yield from item.tools or ()


def _message(item: _Item) -> ChatMessage | None:
    if item.type == "agent_message":
        # The provider hides what agents tell each other; what it hid came from here, as it is.
        parts = item.content if isinstance(item.content, list) else ()
        hidden = [part.get("encrypted_content") for part in parts if isinstance(part, dict)]
        texts = [plain(parts), *(text for text in hidden if isinstance(text, str))]
        return ChatMessage(role="user", text="\n".join(texts))
    if item.type == "message":
        role = "assistant" if item.role == "assistant" else "user"
        return ChatMessage(role=role, text=plain(item.content))  # type: ignore[arg-type]
    if item.type == "function_call":
        return _calling(item, _arguments(item.arguments))
    if item.type == "custom_tool_call":
        return _calling(item, {"input": item.input or ""})
    if item.type in ("function_call_output", "custom_tool_call_output"):
        return ChatMessage(role="tool", text=plain(item.output), call=item.call_id)
    return None


def _calling(item: _Item, arguments: dict[str, Any]) -> ChatMessage:
    name = f"{item.namespace}.{item.name}" if item.namespace else item.name or ""
    call = ToolCall(id=item.call_id or "", name=name, arguments=arguments)
    return ChatMessage(role="assistant", calls=(call,))


def _arguments(written: str | None) -> dict[str, Any]:
    try:
        return msgspec.json.decode(written or "{}", type=dict[str, Any])
    except (ValueError, RecursionError):
        return {}


def _joined(one: ChatMessage, other: ChatMessage) -> ChatMessage:
    text = "\n".join(part for part in (one.text, other.text) if part)
    return msgspec.structs.replace(one, text=text, calls=one.calls + other.calls)


def _specs(tool: _Tool, namespace: str = "") -> Iterator[ToolSpec]:
    if tool.type == "namespace":
        for inner in tool.tools or ():
            yield from _specs(inner, f"{tool.name}.")
    elif tool.name and tool.type in ("function", "custom"):
        yield ToolSpec(
            name=namespace + tool.name,
            description=tool.description or "",
            parameters=FREE_TEXT if tool.type == "custom" else tool.parameters or {},
        )


def answer(reply: ModelReply, payload: Any) -> dict[str, Any]:
    into, out = tokens_in(reply.usage), reply.usage.output_tokens or 0
    usage = {
        "input_tokens": into,
        "input_tokens_details": {"cached_tokens": reply.usage.cache_read_tokens or 0},
        "output_tokens": out,
        "output_tokens_details": {"reasoning_tokens": reply.usage.reasoning_tokens or 0},
        "total_tokens": into + out,
    }
    whole = {**_head(payload), "output": _items(reply, payload), "usage": usage}
    if reply.stop == "length":
        why = {"reason": "max_output_tokens"}
        return {**whole, "status": "incomplete", "incomplete_details": why}
    return {**whole, "status": "completed"}


def events(reply: ModelReply, payload: Any) -> Iterator[str]:
    whole = answer(reply, payload)
    for number, (name, rest) in enumerate(_steps(whole, payload)):
        yield event({"type": name, "sequence_number": number, **rest}, name)


def _steps(whole: dict[str, Any], payload: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = {**_head(payload), "status": "in_progress", "output": []}
    yield "response.created", {"response": begun}
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        yield (
            "response.output_item.added",
            {"output_index": index, "item": {**item, **_EMPTY[item["type"]]}},
        )
        if item["type"] == "message":
            part, at = item["content"][0], {**at, "content_index": 0}
            yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
            yield "response.output_text.delta", {**at, "delta": part["text"]}
            yield "response.output_text.done", {**at, "text": part["text"]}
            yield "response.content_part.done", {**at, "part": part}
        else:
            field, name = _WRITTEN[item["type"]]
            yield f"response.{name}.delta", {**at, "delta": item[field]}
            yield f"response.{name}.done", {**at, field: item[field]}
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield f"response.{whole['status']}", {"response": whole}


_EMPTY: dict[str, dict[str, Any]] = {
    "message": {"content": [], "status": "in_progress"},
    "function_call": {"arguments": "", "status": "in_progress"},
    "custom_tool_call": {"input": "", "status": "in_progress"},
}
_WRITTEN = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}


def fault(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": "script"}}


def _head(payload: Any) -> dict[str, Any]:
    return {
        "id": f"resp_{len(payload['input'])}",
        "object": "response",
        "created_at": 0,
        "model": payload.get("model") or "scripted",
    }


def _items(reply: ModelReply, payload: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    done = {"status": "completed"}
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        said = {"type": "message", "id": f"msg_{len(payload['input'])}", "role": "assistant"}
        items.append({**said, "content": [part], **done})
    free = {spec.name for spec in read(payload).tools if spec.parameters is FREE_TEXT}
    for call in reply.calls:
        # A function's own name has no dot.
        namespace, _, name = call.name.rpartition(".")
        item = {"id": f"item_{call.id}", "call_id": call.id, "name": name, **done}
        if namespace:
            item["namespace"] = namespace
        if call.name in free:
            written = str(call.arguments.get("input", ""))
            items.append({"type": "custom_tool_call", **item, "input": written})
        else:
            written = call.malformed or msgspec.json.encode(call.arguments).decode()
            items.append({"type": "function_call", **item, "arguments": written})
    return items


SPEECH = Speech(
    name="responses",
    path="/v1/responses",
    read=read,
    answer=answer,
    events=events,
    fault=fault,
    ping=b": waiting\n\n",
)
