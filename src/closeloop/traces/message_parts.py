"""Messages in the shapes that providers and instrumentations give them, as parts of one shape."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from closeloop.text.untrusted import clean_unicode
from closeloop.traces.trace_export import EXPORT_KEY
from closeloop.traces.untrusted_json import (
    as_list,
    as_mapping,
    clean_text,
    json_excerpt,
    text_or_json,
    unfold_json,
)

PartRole = Literal["user", "agent", "system", "tool"]
MAX_NESTING = 16
MAX_STEP_CHARS = 1 << 18

_ROLES: dict[str, PartRole] = {
    "user": "user", "human": "user", "assistant": "agent", "model": "agent", "ai": "agent",
    "agent": "agent", "system": "system", "developer": "system", "tool": "tool",
    "function": "tool", "tool-call": "agent", "tool-response": "tool",
}  # fmt: skip
_TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal"})
_THOUGHT_TYPES = frozenset({"reasoning", "think", "thinking", "redacted_thinking"})
_CALL_TYPES = frozenset({"tool_call", "tool_use", "tool-call", "function", "function_call",
                    "custom_tool_call", "server_tool_use", "mcp_call"})  # fmt: skip
_RESULT_TYPES = frozenset(
    {
        "tool_call_response",
        "tool_result",
        "tool-result",
        "function_call_output",
        "custom_tool_call_output",
        "server_tool_call_response",
        "mcp_tool_result",
    }
)
_CALL_KEYS = frozenset({"toolCallId", "function", "functionCall", "function_call"})
_RESULT_KEYS = frozenset({"functionResponse", "function_response"})
_MEDIA_TYPES = frozenset(
    {
        "image",
        "image_url",
        "input_image",
        "audio",
        "input_audio",
        "video",
        "file",
        "input_file",
        "document",
        "blob",
        "uri",
        "media",
    }
)
_SYSTEM_KEYS = ("system", "system_instruction", "systemInstruction", "instructions")
_STEP_CALLS = "Calling tools:\n["
_STEP_RESULT = re.compile(r"\A(?:Call id: \S+\n)?(?=(Observation|Error):\n)(?:Observation:\n)?")
"""How smolagents writes into its dialogue what its code was and what came of it."""
_WRAPPER_KEYS = (
    *_SYSTEM_KEYS,
    "config",
    "messages",
    "contents",
    "new_message",
    "prompt",
    "choices",
    "candidates",
    "message",
)


class MessagePart(NamedTuple):
    """One part of a message."""

    role: PartRole
    kind: Literal["text", "thought", "call", "result", "unknown"]
    text: str = ""
    name: str | None = None
    id: str | None = None
    arguments: Any = None
    ok: bool | None = None
    own: Mapping[str, Any] | None = None


def parse_message_parts(value: Any, role: PartRole, depth: int = 0) -> list[MessagePart]:
    """The parts of messages, of one message, of parts, or of plain text said by `role`."""
    parts: list[MessagePart] = []
    _collect_parts(value, role, depth, parts)
    return parts


def _collect_parts(value: Any, role: PartRole, depth: int, found: list[MessagePart]) -> None:
    if isinstance(value, str):
        value = unfold_json(value)
    if depth > MAX_NESTING:
        return
    if isinstance(value, str):
        if value and not value.isspace():
            found += _parse_step_text(value, role, found)
    elif isinstance(value, list):
        for one in value:
            _collect_parts(one, role, depth + 1, found)
    elif isinstance(value, dict):
        _collect_message(value, role, depth, found)


def _plain_role(value: Mapping[str, Any]) -> str:
    """The role that a message states; smolagents' may be written as members of an enumeration."""
    role = str(value.get("role") or value.get("type"))
    return role.rpartition(".")[2].lower().replace("_", "-") if "." in role else role


def _parse_step_text(text: str, role: PartRole, before: list[MessagePart]) -> list[MessagePart]:
    """A text; or the calls and the result that smolagents tells in one."""
    if role == "agent" and text.startswith(_STEP_CALLS) and len(text) < MAX_STEP_CHARS:
        try:
            calls = ast.literal_eval(text[len(_STEP_CALLS) - 1 :].strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            calls = None
        # Their ids count from 1 in every agent, and newer results name none: they go in order.
        parts = [
            _parse_call(call, None)._replace(id=None)
            for call in as_list(calls)
            if isinstance(call, dict)
        ]
        return parts or [MessagePart(role, "text", text)]
    follows = bool(before) and before[-1].kind in ("call", "result")
    if role == "user" and follows and (header := _STEP_RESULT.match(text)) is not None:
        ok = False if header[1] == "Error" else None
        return [MessagePart("tool", "result", text[header.end() :], ok=ok)]
    return [MessagePart(role, "text", text)]


def id_text(value: Any) -> str | None:
    """An id, which some make of several; None where there is none."""
    value = unfold_json(value)
    return text_or_json(value) if value not in (None, "", [], {}) else None


def _collect_message(
    value: Mapping[str, Any], role: PartRole, depth: int, found: list[MessagePart]
) -> None:
    part = _parse_part(value, role)
    if part is not None:
        plain = part.kind == "text" and part.own is None
        found += _parse_step_text(part.text, part.role, found) if plain else [part]
        return
    stated = _ROLES.get(_plain_role(value))
    content = unfold_json(value.get("parts") or value.get("content"))
    if stated is None:
        for name in _WRAPPER_KEYS:
            if (inner := value.get(name)) is not None:
                _collect_parts(inner, "system" if name in _SYSTEM_KEYS else role, depth + 1, found)
        if not isinstance(content, list | dict) and role == "user":
            # A content of which nobody says whose it is says nothing about the user.
            if content and (tool := clean_text(value.get("role"))):
                found.append(MessagePart("tool", "result", text_or_json(content), tool))
            content = None
    thoughts = (value.get("reasoning_content"), value.get("reasoning"))
    found += [MessagePart("agent", "thought", one) for one in thoughts if isinstance(one, str)]
    _collect_content(value, content, stated or role, depth, found)
    calls = value.get("tool_calls") or value.get("toolCalls")
    calls = calls or as_mapping(value.get("additional_kwargs")).get("tool_calls")
    found += [
        _parse_call(call, None) for call in as_list(unfold_json(calls)) if isinstance(call, dict)
    ]


def _collect_content(
    value: Mapping[str, Any], content: Any, role: PartRole, depth: int, found: list[MessagePart]
) -> None:
    if role != "tool" or _holds_results(content):
        _collect_parts(content, role, depth + 1, found)
        return
    if isinstance(content, dict) and "parameters" in _function_fields(content):
        # LangChain tells of its tools as if they had spoken.
        return
    raw_content = value.get("parts") or value.get("content")
    words = "\n".join([one.text for one in parse_message_parts(content, "tool", depth + 1)])
    if isinstance(raw_content, str) or (raw_content is not None and not words.strip()):
        words = result_text(raw_content)
    name = value.get("name")
    if _plain_role(value) == "tool-response":
        words = _STEP_RESULT.sub("", words)
    call_id = id_text(value.get("tool_call_id") or value.get("id"))
    found.append(
        MessagePart("tool", "result", words, name if isinstance(name, str) else None, call_id)
    )


def _holds_results(content: Any) -> bool:
    """Whether a tool's message consists of parts that say themselves which call they answer."""
    parts = content if isinstance(content, list) else [content]
    return any(
        clean_text(part.get("type")) in _RESULT_TYPES
        or "functionResponse" in part
        or "function_response" in part
        for part in parts
        if isinstance(part, dict)
    )


def _parse_part(value: Mapping[str, Any], role: PartRole) -> MessagePart | None:
    kind = value.get("type")
    kind = kind if isinstance(kind, str) and kind else None
    own = value.get(EXPORT_KEY)
    own = own if isinstance(own, dict) else None
    if kind in _RESULT_TYPES:
        return _parse_result(value, own)
    if kind in _CALL_TYPES or (not _CALL_KEYS.isdisjoint(value) and _is_call(value)):
        return _parse_call(value, own)
    if kind in _TEXT_TYPES or (
        kind is None and "role" not in value and isinstance(value.get("text"), str)
    ):
        words = value.get("text") or value.get("content") or value.get("refusal") or ""
        return MessagePart(role, "text", text_or_json(words), own=own)
    if kind in _THOUGHT_TYPES:
        names = ("content", "thinking", "think", "reasoning", "text", "summary", "data")
        return MessagePart(
            "agent", "thought", text_or_json(_first_nonempty(value, names) or ""), own=own
        )
    if not _RESULT_KEYS.isdisjoint(value):
        for name in ("functionResponse", "function_response"):
            if isinstance(value.get(name), dict):
                return _parse_result(value[name], own)
    if kind and "role" not in value and "content" not in value and kind not in _ROLES:
        if kind in _MEDIA_TYPES:
            return MessagePart(role, "text", f"[{kind}]")
        return MessagePart(role, "unknown", json_excerpt(value), clean_unicode(kind))
    return None


def _is_call(value: Mapping[str, Any]) -> bool:
    return "toolCallId" in value or bool(_function_fields(value))


def _function_fields(value: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("function", "functionCall", "function_call"):
        if isinstance(value.get(name), dict):
            return as_mapping(value[name])
    return {}


def _parse_call(value: Mapping[str, Any], own: Mapping[str, Any] | None) -> MessagePart:
    function = _function_fields(value) or value
    name = function.get("name") or value.get("toolName") or value.get("tool.name")
    raw_id = value.get("call_id") or value.get("toolCallId") or value.get("id")
    call_arguments = _first_present(function, ("arguments", "args", "input"), value.get("input"))
    call_id = id_text(raw_id or function.get("id"))
    return MessagePart(
        "agent",
        "call",
        "",
        text_or_json(name or "unknown"),
        call_id,
        unfold_json(call_arguments),
        own=own,
    )


def _parse_result(value: Mapping[str, Any], own: Mapping[str, Any] | None) -> MessagePart:
    raw_id = _first_nonempty(value, ("tool_use_id", "tool_call_id", "toolCallId", "call_id", "id"))
    content = _first_present(value, ("response", "result", "content", "output"), "")
    name = value.get("name") or value.get("toolName")
    ok = False if value.get("is_error") is True or value.get("isError") is True else None
    named = name if isinstance(name, str) else None
    return MessagePart(
        "tool", "result", result_text(content), named, id_text(raw_id), ok=ok, own=own
    )


def _first_nonempty(value: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if first_value := value.get(name):
            return first_value
    return None


def _first_present(value: Mapping[str, Any], names: tuple[str, ...], otherwise: Any) -> Any:
    for name in names:
        if name in value:
            return value[name]
    return otherwise


def result_text(value: Any) -> str:
    """What a tool gave back, without the envelope that protocols put around texts."""
    inner = unfold_json(value)
    if isinstance(inner, dict):
        if inner.get("type") in ("text", "json") and ("value" in inner or "text" in inner):
            return text_or_json(inner.get("value", inner.get("text")))
        if isinstance(inner.get("content"), list) and set(inner) <= {
            "content",
            "isError",
            "is_error",
        }:
            inner = inner["content"]
    if (
        isinstance(inner, list)
        and inner
        and all(isinstance(one, dict) and isinstance(one.get("text"), str) for one in inner)
    ):
        return "\n".join(text_or_json(one["text"]) for one in inner)
    return text_or_json(value)
