"""Usage and content of messages, in the shapes that providers and agents give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def make_usage(
    input_tokens: int | None,
    output_tokens: int | None,
    *,
    read: int | None = None,
    write: int | None = None,
    reasoning: int | None = None,
    cost: float | None = None,
) -> Usage:
    """Usage as a recording reports it: input without what a cache gave (`read`) or took."""
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=reasoning,
        cost=cost,
        cost_from=None if cost is None else "reported",
    )


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
        return make_usage(None, None, cost=paid)
    reasoning = _first_count(output_details, "reasoning_tokens")
    return make_usage(
        uncached_input_tokens(input_tokens, read, write),
        output,
        read=read,
        write=write,
        reasoning=reasoning or _first_count(fields, "reasoning_tokens"),
        cost=paid,
    )


def _first_count(told: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        if name in told and (number := as_count(told[name])) is not None:
            return number
    return None


def content_text(
    content: object, name_part: Callable[[dict[str, Any]], str | None] | None = None
) -> str:
    """The text of a content that is a text or a list of parts; `name_part` names those without."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in as_list(content):
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str) and isinstance(part, dict) and name_part is not None:
            text = name_part(part)
        if isinstance(text, str):
            texts.append(text)
    return "\n".join(texts)


def with_total_cost(usage: Usage, cost: object) -> Usage:
    """The sum of the turns with the cost that a recording states for all of them."""
    paid = as_amount(cost) or None
    if paid is None:
        return usage
    return msgspec.structs.replace(usage, cost=paid, cost_from="reported")
