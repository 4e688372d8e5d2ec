"""Texts and numbers as Inspect writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from closeloop.model.attempt import Usage
from closeloop.traces.untrusted import amount, count, items, mapping
from closeloop.traces.values import fresh, text, written


def usage_of(usage: Mapping[str, Any]) -> Usage:
    """Input is without what is cached, as newer versions count it; older ones had it in."""
    asked, made = count(usage.get("input_tokens")), count(usage.get("output_tokens"))
    read = count(usage.get("input_tokens_cache_read"))
    write = count(usage.get("input_tokens_cache_write"))
    if not asked and not made:
        return Usage()
    if asked is not None and count(usage.get("total_tokens")) == asked + (made or 0):
        asked = fresh(asked, read, write)
    cost = amount(usage.get("total_cost"))
    return Usage(
        input_tokens=asked,
        output_tokens=made,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=count(usage.get("reasoning_tokens")),
        cost=cost,
        cost_from=None if cost is None else "reported",
    )


def words(content: Any) -> str:
    """A text, or the texts of parts; media are named."""
    if content is None:
        return ""
    parts: Sequence[Any] = content if isinstance(content, list) else [content]
    found = []
    for part in parts:
        if isinstance(part, dict) and "type" in part:
            plain = part.get("text")
            found.append(written(plain) if isinstance(plain, str) else f"[{part['type']}]")
        else:
            found.append(written(part))
    return "\n".join(found)


def last_solver(header: Mapping[str, Any]) -> str | None:
    """Who worked on a sample, as the plan of a log has it."""
    steps = items(mapping(header.get("plan")).get("steps"))
    return text(mapping(steps[-1]).get("solver")) if steps else None
