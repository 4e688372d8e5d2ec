"""Answers of OpenAI responses. We never ask for one ourselves: agents do."""

from __future__ import annotations

from typing import Any

import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.chat import ModelReply, ToolCall
from closeloop.model.errors import MachineFailed
from closeloop.runs.models.dialect import arguments_of, count


class _Answer(msgspec.Struct):
    output: list[dict[str, Any]]
    status: str | None = None
    model: str | None = None
    usage: Any = None


def decode(answer: Any) -> ModelReply:
    """The reply in an answer; MachineFailed when it is of another shape."""
    try:
        known = msgspec.convert(answer, _Answer)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MachineFailed(f"That is no response: {error}. Check base_url.") from None
    texts: list[str] = []
    calls: list[ToolCall] = []
    refused = False
    for item in known.output:
        if item.get("type") == "message":
            for part in item.get("content") or ():
                said = part.get("text") or part.get("refusal") if isinstance(part, dict) else None
                refused = refused or (isinstance(part, dict) and part.get("type") == "refusal")
                texts += [said] if isinstance(said, str) else []
        elif item.get("type") in ("function_call", "custom_tool_call"):
            calls.append(_call(item))
    stop: Any = "tools" if calls else "refused" if refused else "end"
    return ModelReply(
        text="".join(texts),
        calls=tuple(calls),
        stop="length" if known.status == "incomplete" else stop,
        usage=_usage(known.usage),
        model=known.model,
    )


def _call(item: dict[str, Any]) -> ToolCall:
    space, name = item.get("namespace"), str(item.get("name") or "")
    if item["type"] == "custom_tool_call":
        arguments, malformed = {"input": item.get("input") or ""}, None
    else:
        arguments, malformed = arguments_of(item.get("arguments"))
    return ToolCall(
        id=str(item.get("call_id") or ""),
        name=f"{space}.{name}" if space else name,
        arguments=arguments,
        malformed=malformed,
    )


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    into, out = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    read = count(into.get("cached_tokens")) if isinstance(into, dict) else None
    sent = count(usage.get("input_tokens"))
    return Usage(
        input_tokens=None if sent is None else max(0, sent - (read or 0)),
        output_tokens=count(usage.get("output_tokens")),
        cache_read_tokens=read,
        reasoning_tokens=count(out.get("reasoning_tokens")) if isinstance(out, dict) else None,
    )
