"""Messages in the shapes that providers and instrumentations give them, as parts of one shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from closeloop.traces.results import OWN
from closeloop.traces.texts import clean
from closeloop.traces.untrusted import items, mapping, raw
from closeloop.traces.values import text, unfolded, written

Role = Literal["user", "agent", "system", "tool"]
DEEPEST = 16

_ROLES: dict[str, Role] = {
    "user": "user", "human": "user", "assistant": "agent", "model": "agent", "ai": "agent",
    "agent": "agent", "system": "system", "developer": "system", "tool": "tool",
    "function": "tool",
}  # fmt: skip
_TEXTS = frozenset({"text", "input_text", "output_text", "refusal"})
_THOUGHTS = frozenset({"reasoning", "thinking", "redacted_thinking"})
_CALLS = frozenset({"tool_call", "tool_use", "tool-call", "function", "function_call",
                    "custom_tool_call", "server_tool_use", "mcp_call"})  # fmt: skip
_RESULTS = frozenset({"tool_call_response", "tool_result", "tool-result", "function_call_output",
                      "custom_tool_call_output", "server_tool_call_response",
                      "mcp_tool_result"})  # fmt: skip
_CALL_SIGNS = frozenset({"toolCallId", "function", "functionCall", "function_call"})
_RESULT_SIGNS = frozenset({"functionResponse", "function_response"})
_MEDIA = frozenset({"image", "image_url", "input_image", "audio", "input_audio", "video", "file",
                    "input_file", "document", "blob", "uri", "media"})  # fmt: skip
_SYSTEM = ("system", "system_instruction", "systemInstruction", "instructions")
_WRAPPERS = (*_SYSTEM, "config", "messages", "contents", "new_message", "prompt", "choices",
             "candidates", "message")  # fmt: skip


class Said(NamedTuple):
    """One part of a message."""

    role: Role
    kind: Literal["text", "thought", "call", "result", "unknown"]
    text: str = ""
    name: str | None = None
    id: str | None = None
    arguments: Any = None
    ok: bool | None = None
    own: Mapping[str, Any] | None = None


def said(value: Any, role: Role, depth: int = 0) -> list[Said]:
    """The parts of messages, of one message, of parts, or of plain text said by `role`."""
    found: list[Said] = []
    _say(value, role, depth, found)
    return found


def _say(value: Any, role: Role, depth: int, found: list[Said]) -> None:
    if isinstance(value, str):
        value = unfolded(value)
    if depth > DEEPEST:
        return
    if isinstance(value, str):
        if value and not value.isspace():
            found.append(Said(role, "text", value))
    elif isinstance(value, list):
        for one in value:
            _say(one, role, depth + 1, found)
    elif isinstance(value, dict):
        _message(value, role, depth, found)


def identity(value: Any) -> str | None:
    """An id, which some make of several; None where there is none."""
    value = unfolded(value)
    return written(value) if value not in (None, "", [], {}) else None


def _message(value: Mapping[str, Any], role: Role, depth: int, found: list[Said]) -> None:
    part = _part(value, role)
    if part is not None:
        found.append(part)
        return
    stated = _ROLES.get(str(value.get("role") or value.get("type")))
    content = unfolded(value.get("parts") or value.get("content"))
    if stated is None:
        for name in _WRAPPERS:
            if (inner := value.get(name)) is not None:
                _say(inner, "system" if name in _SYSTEM else role, depth + 1, found)
        if not isinstance(content, list | dict) and role == "user":
            # A content of which nobody says whose it is says nothing about the user.
            if content and (tool := text(value.get("role"))) and tool != "tool-call":
                found.append(Said("tool", "result", written(content), tool))
            content = None
    thoughts = (value.get("reasoning_content"), value.get("reasoning"))
    found += [Said("agent", "thought", one) for one in thoughts if isinstance(one, str)]
    _content(value, content, stated or role, depth, found)
    calls = value.get("tool_calls") or value.get("toolCalls")
    calls = calls or mapping(value.get("additional_kwargs")).get("tool_calls")
    found += [_call(call, None) for call in items(unfolded(calls)) if isinstance(call, dict)]


def _content(
    value: Mapping[str, Any], content: Any, role: Role, depth: int, found: list[Said]
) -> None:
    if role != "tool" or _holds_results(content):
        _say(content, role, depth + 1, found)
        return
    if isinstance(content, dict) and "parameters" in _function(content):
        # LangChain tells of its tools as if they had spoken.
        return
    given = value.get("parts") or value.get("content")
    words = "\n".join([one.text for one in said(content, "tool", depth + 1)])
    if isinstance(given, str) or (given is not None and not words.strip()):
        words = result_text(given)
    name = value.get("name")
    called = identity(value.get("tool_call_id") or value.get("id"))
    found.append(Said("tool", "result", words, name if isinstance(name, str) else None, called))


def _holds_results(content: Any) -> bool:
    """Whether a tool's message consists of parts that say themselves which call they answer."""
    parts = content if isinstance(content, list) else [content]
    return any(
        text(part.get("type")) in _RESULTS
        or "functionResponse" in part
        or "function_response" in part
        for part in parts
        if isinstance(part, dict)
    )


def _part(value: Mapping[str, Any], role: Role) -> Said | None:
    kind = value.get("type")
    kind = kind if isinstance(kind, str) and kind else None
    own = value.get(OWN)
    own = own if isinstance(own, dict) else None
    if kind in _RESULTS:
        return _result(value, own)
    if kind in _CALLS or (not _CALL_SIGNS.isdisjoint(value) and _is_call(value)):
        return _call(value, own)
    if kind in _TEXTS or (
        kind is None and "role" not in value and isinstance(value.get("text"), str)
    ):
        words = value.get("text") or value.get("content") or value.get("refusal") or ""
        return Said(role, "text", written(words), own=own)
    if kind in _THOUGHTS:
        names = ("content", "thinking", "reasoning", "text", "summary", "data")
        return Said("agent", "thought", written(_filled(value, names) or ""), own=own)
    if not _RESULT_SIGNS.isdisjoint(value):
        for name in ("functionResponse", "function_response"):
            if isinstance(value.get(name), dict):
                return _result(value[name], own)
    if kind and "role" not in value and "content" not in value and kind not in _ROLES:
        if kind in _MEDIA:
            return Said(role, "text", f"[{kind}]")
        return Said(role, "unknown", raw(value), clean(kind))
    return None


def _is_call(value: Mapping[str, Any]) -> bool:
    return "toolCallId" in value or bool(_function(value))


def _function(value: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("function", "functionCall", "function_call"):
        if isinstance(value.get(name), dict):
            return mapping(value[name])
    return {}


def _call(value: Mapping[str, Any], own: Mapping[str, Any] | None) -> Said:
    function = _function(value) or value
    name = function.get("name") or value.get("toolName") or value.get("tool.name")
    called = value.get("call_id") or value.get("toolCallId") or value.get("id")
    given = _present(function, ("arguments", "args", "input"), value.get("input"))
    found = identity(called or function.get("id"))
    return Said("agent", "call", "", written(name or "unknown"), found, unfolded(given), own=own)


def _result(value: Mapping[str, Any], own: Mapping[str, Any] | None) -> Said:
    called = _filled(value, ("tool_use_id", "tool_call_id", "toolCallId", "call_id", "id"))
    given = _present(value, ("response", "result", "content", "output"), "")
    name = value.get("name") or value.get("toolName")
    ok = False if value.get("is_error") is True or value.get("isError") is True else None
    named = name if isinstance(name, str) else None
    return Said("tool", "result", result_text(given), named, identity(called), ok=ok, own=own)


def _filled(value: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if found := value.get(name):
            return found
    return None


def _present(value: Mapping[str, Any], names: tuple[str, ...], otherwise: Any) -> Any:
    for name in names:
        if name in value:
            return value[name]
    return otherwise


def result_text(value: Any) -> str:
    """What a tool gave back, without the envelope that protocols put around texts."""
    inner = unfolded(value)
    if isinstance(inner, dict):
        if inner.get("type") in ("text", "json") and ("value" in inner or "text" in inner):
            return written(inner.get("value", inner.get("text")))
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
        return "\n".join(written(one["text"]) for one in inner)
    return written(value)
