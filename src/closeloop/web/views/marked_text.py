"""A text in pieces, some of them marked: what was kept and what was lost of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from closeloop.records.record import Record

TextMark = Literal["kept", "dropped"]


class Piece(Record):
    text: str
    mark: TextMark | None = None


def mark_text_parts(
    text: str, found: Iterable[tuple[str, TextMark]], most: int = 20_000
) -> tuple[Piece, ...]:
    """The text with each part marked at its first place; what overlaps an earlier mark is not."""
    shown_text = text[:most]
    places: list[tuple[int, int, TextMark]] = []
    for part, mark in found:
        start = shown_text.find(part) if part else -1
        end = start + len(part)
        if start >= 0 and all(end <= first or start >= last for first, last, _ in places):
            places.append((start, end, mark))
    pieces, at = [], 0
    for start, end, mark in sorted(places):
        if start > at:
            pieces.append(Piece(text=shown_text[at:start]))
        pieces.append(Piece(text=shown_text[start:end], mark=mark))
        at = end
    if at < len(shown_text):
        pieces.append(Piece(text=shown_text[at:]))
    if len(text) > most:
        pieces.append(Piece(text=" …"))
    return tuple(pieces)
