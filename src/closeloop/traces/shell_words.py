"""The words of a shell line, as `shlex.split` has them but for long lines too: it reads letters."""

from __future__ import annotations

import re

_PIECE = re.compile(
    r"""(?P<plain>[^ \t\r\n\\'"]+)|(?P<space>[ \t\r\n]+)|'(?P<single>[^']*)'|"""
    r""""(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"|\\(?P<escaped>.)""",
    re.DOTALL,
)
_ESCAPED = re.compile(r'\\(["\\])')


def split_shell_words(line: str) -> list[str]:
    """ValueError where a quotation does not end."""
    split_words: list[str] = []
    pieces: list[str] = []
    place = 0
    while place < len(line):
        piece = _PIECE.match(line, place)
        if piece is None:
            raise ValueError("no closing quotation")
        place, text = piece.end(), piece[piece.lastgroup or 0]
        if piece.lastgroup != "space":
            pieces.append(_ESCAPED.sub(r"\1", text) if piece.lastgroup == "double" else text)
        elif pieces:
            split_words.append("".join(pieces))
            pieces = []
    return [*split_words, "".join(pieces)] if pieces else split_words
