"""A text in pieces, some of them marked: what was kept and what was lost of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from closeloop.model.record import Record

Mark = Literal["kept", "dropped"]


class Piece(Record):
    text: str
    mark: Mark | None = None


def marked(text: str, found: Iterable[tuple[str, Mark]], most: int = 20_000) -> tuple[Piece, ...]:
    """The text with each part marked at its first place; what overlaps an earlier mark is not."""
    shown = text[:most]
    places: list[tuple[int, int, Mark]] = []
    for part, mark in found:
        start = shown.find(part) if part else -1
        end = start + len(part)
        if start >= 0 and all(end <= first or start >= last for first, last, _ in places):
            places.append((start, end, mark))
    pieces, at = [], 0
    for start, end, mark in sorted(places):
        if start > at:
            pieces.append(Piece(text=shown[at:start]))
        pieces.append(Piece(text=shown[start:end], mark=mark))
        at = end
    if at < len(shown):
        pieces.append(Piece(text=shown[at:]))
    if len(text) > most:
        pieces.append(Piece(text=" …"))
    return tuple(pieces)
