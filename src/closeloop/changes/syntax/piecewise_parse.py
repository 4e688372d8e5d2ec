"""Parse piece by piece, and stop where it takes too long: a file may be in another language."""

from __future__ import annotations

from time import process_time

from tree_sitter import Parser, Tree

PIECE_BYTES = 32_768
"""Bytes; a few thousandths of a second where the text is what its name says."""
PIECE_SECONDS = 0.5
PARSE_SECONDS = 3.0
"""Recovering from errors may take time that grows with the square of the length."""


def parse_in_pieces(parser: Parser, content: bytes) -> tuple[Tree, int]:
    """The tree, and how many bytes it is of. The result is that of parsing all at once."""
    end = min(PIECE_BYTES, len(content))
    begun = last = process_time()
    tree = parser.parse(content[:end])
    while end < len(content):
        now = process_time()
        if now - last > PIECE_SECONDS or now - begun > PARSE_SECONDS:
            break
        last = now
        start, end = end, min(end + PIECE_BYTES, len(content))
        place = _text_point(content, start)
        tree.edit(start, start, end, place, place, _text_point(content, end))
        tree = parser.parse(content[:end], tree)
    return tree, end


def _text_point(content: bytes, at: int) -> tuple[int, int]:
    return content.count(b"\n", 0, at), at - content.rfind(b"\n", 0, at) - 1
