"""Usage and content of messages, in the shapes that providers and agents give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from closeloop.records.attempt import Usage
from closeloop.traces.untrusted_json import as_amount, as_count, as_list, as_mapping


def uncached_input_tokens(asked: int | None, read: int | None, write: int | None) -> int | None:
    """Input without what a cache gave or took, as far as the count had it in it."""
    if asked is None:
        return None
    # Some clients count what the cache gave, and not what it took.
    within = (cached for cached in ((read or 0) + (write or 0), read or 0) if cached <= asked)
    return asked - next(within, 0)


def usage_from_openai(told: object, cost: object = None) -> Usage:
    """The usage block of a chat completion or of a response; nothing but zeros is not known."""
    fields = as_mapping(told)
    input_tokens = _first_count(fields, "prompt_tokens", "input_tokens")
    output = _first_count(fields, "completion_tokens", "output_tokens")
    input_details = as_mapping(
        fields.get("prompt_tokens_details") or fields.get("input_tokens_details")
    )
    output_details = as_mapping(
        fields.get("completion_tokens_details") or fields.get("output_tokens_details")
    )
    read = _first_count(fields, "cache_read_input_tokens", "cache_read_tokens")
    read = read or _first_count(input_details, "cached_tokens") or read
    write = _first_count(fields, "cache_creation_input_tokens", "cache_write_tokens")
    paid = as_amount(cost) or as_amount(fields.get("cost")) or None
    if not any((input_tokens, output, read, write)):
        return Usage(cost=paid, cost_from="reported" if paid else None)
    return Usage(
        input_tokens=uncached_input_tokens(input_tokens, read, write),
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=_first_count(output_details, "reasoning_tokens")
        or _first_count(fields, "reasoning_tokens"),
        cost=paid,
        cost_from="reported" if paid else None,
    )


def _first_count(told: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        if name in told and (number := as_count(told[name])) is not None:
            return number
    return None


def openai_content_text(content: object) -> str:
    """What a message says, whether as one text or in parts."""
    if isinstance(content, str):
        return content
    parts = (
        as_mapping(part) if isinstance(part, dict) else {"text": part} for part in as_list(content)
    )
    texts = (part.get("text") for part in parts)
    return "\n".join(said for said in texts if isinstance(said, str))


def with_total_cost(usage: Usage, cost: object) -> Usage:
    """The sum of the turns with the cost that a recording states for all of them."""
    paid = as_amount(cost) or None
    if paid is None:
        return usage
    return msgspec.structs.replace(usage, cost=paid, cost_from="reported")
