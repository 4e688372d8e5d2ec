"""Fingerprints of code, by which copies are found though they were renamed.

What counts are the words that a copy keeps: keywords, operators, what is called and which
attributes are looked up. Other names are one and the same, as are strings, and as are numbers;
commas, closing brackets, comments and bare strings count for nothing. Each statement of a named
function has one print, over the tokens that follow its beginning. So imports, signatures, tables
outside of functions and tests (`test…`) have none, nor do stretches that hardly vary.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from functools import cache
from zlib import adler32, crc32

from closeloop.records.inspection import Language

WINDOW_TOKENS = 16
"""Tokens that a print covers; about twice as many when every bracket and comma is counted."""
MIN_DISTINCT_TOKENS = 8
"""So many of them must differ."""

_KEYWORDS = frozenset(
    b"""and as assert async await break case catch class const continue def default defer del do
    elif else enum except extends false False finally fn for from func function global go goto
    if impl implements import in instanceof interface is lambda let loop match mod mut new nil
    None nonlocal not null of or package pass raise range return select self Self static struct
    super switch this throw throws trait true True try type typeof undefined unsafe use var void
    where while with yield""".split()
)
_NAME = rb"\.?[^\W\d][\w\x80-\xff]*!?\(?|\.?[\x80-\xff][\w\x80-\xff]*\(?"
_COMMON = _NAME + rb"|\d[\w.]*|\n\s*|[-+*/%&|^~<>=!?@:]+|[\[({})\]]"
# Every string and comment may lack its end: then no search for it is ever tried twice.
_DOUBLE = rb"\"[^\"\\\n]*(?:\\.[^\"\\\n]*)*\"?"
_SINGLE = _DOUBLE.replace(b'"', b"'")
_TRIPLE = rb"\"\"\"[^\"\\]*(?:(?:\\.|\"(?!\"\"))[^\"\\]*)*(?:\"\"\")?"
_PYTHON = rb"\#[^\n]*|[rRbBuUfFtT]{0,2}(?:%b)|%b" % (
    b"|".join((_TRIPLE, _TRIPLE.replace(b'"', b"'"), _DOUBLE, _SINGLE)),
    _COMMON,
)
_BRACES = (
    rb"//[^\n]*|/\*[^*]*(?:\*(?!/)[^*]*)*(?:\*/)?|`[^`\\]*(?:\\.[^`\\]*)*`?|"
    rb"\"[^\"\\]*(?:\\.[^\"\\]*)*\"?|%b|" + _COMMON
)
_TOKENS: dict[str, bytes] = {
    "python": _PYTHON,
    # A quote may begin a lifetime, which has no end.
    "rust": _BRACES.replace(b"%b", rb"'(?:[^'\\\n]|\\.[^'\n]*)'|'\w+"),
    "": _BRACES.replace(b"%b", _SINGLE),
}

_PLAIN, _OPEN, _CLOSE, _ODD = range(4)
"""What the last two bits of a token's value say; of an odd one the others count its newlines."""
_SAME_NAME, _SAME_TEXT, _SAME_NUMBER = 4, 8, 12
_MEMORY, _SHORT = 100_000, 40


@cache
def _token_pattern(language: str) -> re.Pattern[bytes]:
    return re.compile(_TOKENS.get(language, _TOKENS[""]), re.DOTALL)


def fingerprint_body(language: Language, body: bytes, line: int) -> Iterator[tuple[int, int]]:
    """The prints of a function's body that begins on that line, each with its own line."""
    codes, starts = _encode_tokens(language, body, line)
    last = len(codes) - WINDOW_TOKENS
    for start, where in starts:
        if start > last:
            return
        window = codes[start : start + WINDOW_TOKENS]
        if len(set(window)) >= MIN_DISTINCT_TOKENS:
            written = window.tobytes()
            yield crc32(written) << 32 | adler32(written), where


def _encode_tokens(
    language: Language, body: bytes, line: int
) -> tuple[array[int], list[tuple[int, int]]]:
    """The tokens as numbers, and where statements begin: at which of them, on which line."""
    codes = array("Q")
    starts = []
    append = codes.append
    around: list[int] = []
    depth, fresh = 0, True
    for token in _token_pattern(language).findall(body):
        value = _token_values[token]
        token_class = value & 3
        if token_class == _ODD:
            line += value >> 2
            fresh = fresh or token[0] == 10
            continue
        if token_class == _CLOSE:
            depth = around.pop() if around else 0
            continue
        if value == _SAME_TEXT:
            line += token.count(b"\n")
            if (fresh and not depth) or (codes and codes[-1] == _SAME_TEXT):
                continue
        if fresh and not depth:
            starts.append((len(codes), line))
        fresh = False
        if value != _OPEN:
            append(value)
        if token_class == _OPEN:
            around.append(depth)
            # Statements stand between braces, not between other brackets.
            depth = 0 if token == b"{" and language != "python" else depth + 1
    return codes, starts


class _TokenValues(dict[bytes, int]):
    """The numbers of tokens, made when they are first met."""

    def __missing__(self, token: bytes) -> int:
        value = _compute_token_value(token)
        if value != _SAME_TEXT and len(token) < _SHORT:
            if len(self) > _MEMORY:
                self.clear()
            self[token] = value
        return value


_token_values = _TokenValues()


def _compute_token_value(token: bytes) -> int:
    first = token[:1]
    if first == b"\n":
        return token.count(b"\n") << 2 | _ODD
    if first == b"#" or token[:2] in (b"//", b"/*"):
        return token.count(b"\n") << 2 | _ODD
    if token in (b")", b"]", b"}"):
        return _CLOSE
    if token in (b":", b"?"):
        return _ODD
    if first in (b'"', b"'", b"`") or token[-1:] in (b'"', b"'"):
        return _SAME_TEXT
    if first.isdigit():
        return _SAME_NUMBER
    if token == b"(":
        return _OPEN
    opens = token[-1:] in (b"(", b"[", b"{")
    if token[:-1] in _KEYWORDS:
        token = token[:-1]
    is_word = first.isalpha() or first == b"_" or first >= b"\x80"
    if is_word and not opens and token not in _KEYWORDS:
        return _SAME_NAME
    return crc32(token) + 4 << 2 | (_OPEN if opens else _PLAIN)
