"""Quotes that must be there, character by character."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MIN_QUOTE_CHARS = 6
"""Shorter ones are found anywhere, unless they are all there is."""


def find_quote_fault(
    quotes: Sequence[str], shown: Mapping[str, str], kinds: Sequence[str]
) -> str | None:
    """Why quotes do not carry a verdict: one is nowhere, or none is from where one must be."""
    if not quotes:
        return "no evidence is given"
    places = [_parts_with_quote(quote, shown) for quote in quotes]
    for quote, found in zip(quotes, places, strict=True):
        if not found:
            return f"the quote {quote[:80]!r} is not in what was shown"
    if not any(kind in kinds for found in places for kind in found):
        return "no quote is from the work"
    return None


def _parts_with_quote(quote: str, shown: Mapping[str, str]) -> list[str]:
    if len(quote) < MIN_QUOTE_CHARS:
        return [kind for kind, text in shown.items() if text.strip() == quote]
    return [kind for kind, text in shown.items() if quote in text]
