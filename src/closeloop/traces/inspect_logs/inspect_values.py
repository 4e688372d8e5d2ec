"""Texts and numbers as Inspect writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from closeloop.records.attempt import Usage
from closeloop.traces.provider_values import uncached_input_tokens
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    as_list,
    as_mapping,
    clean_text,
    text_or_json,
)


def usage_from_inspect(usage: Mapping[str, Any]) -> Usage:
    """Input is without what is cached, as newer versions count it; older ones had it in."""
    input_tokens, output_tokens = (
        as_count(usage.get("input_tokens")),
        as_count(usage.get("output_tokens")),
    )
    read = as_count(usage.get("input_tokens_cache_read"))
    write = as_count(usage.get("input_tokens_cache_write"))
    if not input_tokens and not output_tokens:
        return Usage()
    if input_tokens is not None and as_count(usage.get("total_tokens")) == input_tokens + (
        output_tokens or 0
    ):
        input_tokens = uncached_input_tokens(input_tokens, read, write)
    cost = as_amount(usage.get("total_cost"))
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=as_count(usage.get("reasoning_tokens")),
        cost=cost,
        cost_from=None if cost is None else "reported",
    )


def inspect_content_text(content: Any) -> str:
    """A text, or the texts of parts; media are named."""
    if content is None:
        return ""
    parts: Sequence[Any] = content if isinstance(content, list) else [content]
    texts = []
    for part in parts:
        if isinstance(part, dict) and "type" in part:
            plain = part.get("text")
            texts.append(text_or_json(plain) if isinstance(plain, str) else f"[{part['type']}]")
        else:
            texts.append(text_or_json(part))
    return "\n".join(texts)


def last_solver(header: Mapping[str, Any]) -> str | None:
    """Who worked on a sample, as the plan of a log has it."""
    steps = as_list(as_mapping(header.get("plan")).get("steps"))
    return clean_text(as_mapping(steps[-1]).get("solver")) if steps else None
