"""Tokens as the provider counts them."""

from __future__ import annotations

from typing import Any

from closeloop.records.attempt import Usage


def usage_from_claude(
    given: dict[str, Any], output: int | None, cost: float | None = None
) -> Usage:
    """Tokens of one message. A provider that says 0 for everything has not counted."""
    fresh = non_negative_int(given.get("input_tokens"))
    read = non_negative_int(given.get("cache_read_input_tokens"))
    written = non_negative_int(given.get("cache_creation_input_tokens"))
    if not (fresh or read or written):
        fresh = read = written = None
    return Usage(
        input_tokens=fresh,
        output_tokens=output or None,
        cache_read_tokens=read,
        cache_write_tokens=written,
        cost=cost or None,
        cost_from="reported" if cost else None,
    )


def non_negative_int(value: Any) -> int | None:
    """A count that can be one."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53:
        return value
    return None
