"""Answers of OpenAI responses. We never ask for one ourselves: agents do."""

from __future__ import annotations

from typing import Any

import msgspec

from closeloop.providers.format_dialect import parse_call_arguments, read_token_count
from closeloop.records.attempt import Usage
from closeloop.records.chat import ModelReply, ModelToolCall
from closeloop.records.errors import MachineFailed


class _ResponsesAnswer(msgspec.Struct):
    output: list[dict[str, Any]]
    status: str | None = None
    model: str | None = None
    usage: Any = None


def decode_responses(answer: Any) -> ModelReply:
    """The reply in an answer; MachineFailed when it is of another shape."""
    try:
        parsed = msgspec.convert(answer, _ResponsesAnswer)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MachineFailed(f"That is no response: {error}. Check base_url.") from None
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
    into, out = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    read = read_token_count(into.get("cached_tokens")) if isinstance(into, dict) else None
    sent = read_token_count(usage.get("input_tokens"))
    return Usage(
        input_tokens=None if sent is None else max(0, sent - (read or 0)),
        output_tokens=read_token_count(usage.get("output_tokens")),
        cache_read_tokens=read,
        reasoning_tokens=read_token_count(out.get("reasoning_tokens"))
        if isinstance(out, dict)
        else None,
    )
