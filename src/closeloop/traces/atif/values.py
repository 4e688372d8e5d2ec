"""Texts and numbers as ATIF writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from closeloop.model.attempt import Usage
from closeloop.traces.untrusted import amount, count, mapping
from closeloop.traces.values import fresh, text, written


def words(content: Any) -> str:
    """A message or a result: text, or parts with text and with media, which are named."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return written(content)
    found = []
    for part in content:
        given = mapping(part)
        path = text(mapping(given.get("source")).get("path"))
        media = f"[{given.get('type')}: {path}]" if path else ""
        found.append(text(given.get("text")) or media)
    return "\n".join(one for one in found if one)


def usage_of(metrics: Mapping[str, Any]) -> Usage:
    """What one step used; prompt tokens have in them what came from and went to a cache."""
    extra = mapping(metrics.get("extra"))
    read = count(metrics.get("cached_tokens"))
    write = count(extra.get("cache_creation_input_tokens"))
    asked, made = count(metrics.get("prompt_tokens")), count(metrics.get("completion_tokens"))
    cost = amount(metrics.get("cost_usd"))
    if not asked and not made and not cost:
        return Usage()
    reasoning = extra.get("reasoning_tokens", extra.get("reasoning_output_tokens"))
    return Usage(
        input_tokens=fresh(asked, read, write),
        output_tokens=made,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=count(reasoning),
        cost=cost,
        cost_from=None if cost is None else "reported",
    )
