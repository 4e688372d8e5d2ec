"""Tokens of a thread: its running totals turned into what each provider message used."""

from __future__ import annotations

from typing import Any

from closeloop.records.attempt import Usage

_TOKEN_KEYS = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_input_tokens",
    "output_tokens",
    "reasoning_output_tokens",
)
TokenCounts = tuple[int | None, ...]
_NO_COUNTS = (None,) * len(_TOKEN_KEYS)
_MAX_COUNT = 1 << 53


class CodexTokenMeter:
    """Remembers the total that was read last."""

    def __init__(self) -> None:
        self._told: Any = None
        self._total: TokenCounts | None = None

    def usage_since_last(self, total: Any, last: Any) -> Usage | None:
        """What was used since; None where the same total is only told again."""
        if total == self._told:
            return None
        self._told = total
        current = _parse_counts(total)
        if current is None or current == self._total:
            return None
        before, self._total = self._total, current
        if before is None:
            # The file may begin in the middle of a thread: then the total has the rest in it.
            return usage_from_codex(_parse_counts(last) or current)
        difference = tuple(
            [None if a is None else a - (b or 0) for a, b in zip(current, before, strict=True)]
        )
        if min(filter(None, difference), default=0) < 0:
            return usage_from_codex(_parse_counts(last) or current)
        return usage_from_codex(difference)


def _parse_counts(told: Any) -> TokenCounts | None:
    if not isinstance(told, dict):
        return None
    numbers = map(told.get, _TOKEN_KEYS)
    counts = tuple([one if type(one) is int and 0 <= one < _MAX_COUNT else None for one in numbers])
    return counts if counts != _NO_COUNTS else None


def usage_from_codex(counts: TokenCounts) -> Usage | None:
    """As we count: the input is only what was fresh. All zeros is a placeholder."""
    if not any(counts):
        return None
    into, cached, written, out, reasoning = counts
    fresh = None if into is None else max(into - (cached or 0) - (written or 0), 0)
    return Usage(
        input_tokens=fresh,
        output_tokens=out,
        cache_read_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=reasoning,
    )
