"""Tokens of a thread: its running totals turned into what each provider message used."""

from __future__ import annotations

from typing import Any

from closeloop.model.attempt import Usage

_NAMES = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_input_tokens",
    "output_tokens",
    "reasoning_output_tokens",
)
Counts = tuple[int | None, ...]
_NOTHING = (None,) * len(_NAMES)
_LARGEST = 1 << 53


class Meter:
    """Remembers the total that was read last."""

    def __init__(self) -> None:
        self._told: Any = None
        self._total: Counts | None = None

    def used(self, total: Any, last: Any) -> Usage | None:
        """What was used since; None where the same total is only told again."""
        if total == self._told:
            return None
        self._told = total
        now = _counts(total)
        if now is None or now == self._total:
            return None
        before, self._total = self._total, now
        if before is None:
            # The file may begin in the middle of a thread: then the total has the rest in it.
            return usage_of(_counts(last) or now)
        rest = tuple(
            [None if a is None else a - (b or 0) for a, b in zip(now, before, strict=True)]
        )
        if min(filter(None, rest), default=0) < 0:
            return usage_of(_counts(last) or now)
        return usage_of(rest)


def _counts(told: Any) -> Counts | None:
    if not isinstance(told, dict):
        return None
    numbers = map(told.get, _NAMES)
    found = tuple([one if type(one) is int and 0 <= one < _LARGEST else None for one in numbers])
    return found if found != _NOTHING else None


def usage_of(counts: Counts) -> Usage | None:
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
