"""Texts and numbers as ATIF writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from closeloop.records.attempt import Usage
from closeloop.traces.provider_values import uncached_input_tokens
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    as_mapping,
    clean_text,
    text_or_json,
)


def atif_content_text(content: Any) -> str:
    """A message or a result: text, or parts with text and with media, which are named."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return text_or_json(content)
    pieces = []
    for part in content:
        fields = as_mapping(part)
        path = clean_text(as_mapping(fields.get("source")).get("path"))
        media = f"[{fields.get('type')}: {path}]" if path else ""
        pieces.append(clean_text(fields.get("text")) or media)
    return "\n".join(one for one in pieces if one)


def usage_from_atif(metrics: Mapping[str, Any]) -> Usage:
    """What one step used; prompt tokens have in them what came from and went to a cache."""
    extra = as_mapping(metrics.get("extra"))
    read = as_count(metrics.get("cached_tokens"))
    write = as_count(extra.get("cache_creation_input_tokens"))
    prompt_tokens, completion_tokens = (
        as_count(metrics.get("prompt_tokens")),
        as_count(metrics.get("completion_tokens")),
    )
    cost = as_amount(metrics.get("cost_usd"))
    if not prompt_tokens and not completion_tokens and not cost:
        return Usage()
    reasoning = extra.get("reasoning_tokens", extra.get("reasoning_output_tokens"))
    return Usage(
        input_tokens=uncached_input_tokens(prompt_tokens, read, write),
        output_tokens=completion_tokens,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=as_count(reasoning),
        cost=cost,
        cost_from=None if cost is None else "reported",
    )
