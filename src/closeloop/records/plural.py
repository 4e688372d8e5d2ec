"""Numbers of things, as a sentence has them."""

from __future__ import annotations


def count_with_noun(number: int, one: str, more: str | None = None) -> str:
    """`1 finding`, `2 findings`."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"
