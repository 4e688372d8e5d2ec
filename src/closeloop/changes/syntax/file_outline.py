"""The little of a file that the whole repository is asked for: names, definitions, prints."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from zlib import adler32, crc32

from tree_sitter import Node, Query, QueryCursor, Tree

from closeloop.changes.syntax.grammar import NodeLine
from closeloop.records.inspection import (
    Language,
    SourceImport,
)
from closeloop.records.record import Record

# Fingerprints of code, by which copies are found though they were renamed.
#
# What counts are the words that a copy keeps: keywords, operators, what is called and which
# attributes are looked up. Other names are one and the same, as are strings, and as are numbers;
# commas, closing brackets, comments and bare strings count for nothing. Each statement of a named
# function has one print, over the tokens that follow its beginning. So imports, signatures,
# tables outside of functions and tests (`test…`) have none, nor do stretches that hardly vary.

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
    if opens and token[:-1] in _KEYWORDS:  # `not(` is `not (`, and `user` is no `use`
        token = token[:-1]
    is_word = first.isalpha() or first == b"_" or first >= b"\x80"
    if is_word and not opens and token not in _KEYWORDS:
        return _SAME_NAME
    return crc32(token) + 4 << 2 | (_OPEN if opens else _PLAIN)


_WORD_BYTES = bytes(
    byte if byte >= 0x80 or chr(byte).isalnum() or chr(byte) in "_$" else 0x20
    for byte in range(256)
)
"""Every byte that is in no word as a space."""
ImportReaders = Mapping[str, Callable[[Node, NodeLine], Sequence[SourceImport]]]
DEEPEST, IN_PYTHON = 50, 10
"""What lies deeper is no definition that others would use; in Python a method lies five deep."""
MAX_TOKEN_RUN = 5000
"""So many signs in a row, of which nothing was made, are not searched: at each of them, all that
follow are looked at."""
_TEST_NAME = re.compile(rb"[tT]est|it$|describe$")


class Outline(Record):
    """Kept for every file, so it is small and quick to search."""

    names: bytes = b""
    """Every word of the file, once, with newlines between."""
    defined: bytes = b""
    """Names that it defines, with newlines between."""
    defined_lines: bytes = b""
    prints: bytes = b""
    """Eight bytes each."""
    print_lines: bytes = b""
    imports: bytes = b""
    """Modules that it imports with the names it takes from them, tabs and newlines between."""


def extract_words(content: bytes) -> set[bytes]:
    """Every word and number that occurs, in comments and strings too."""
    return set(content.translate(_WORD_BYTES).split())


def build_outline(
    language: Language,
    content: bytes,
    tree: Tree,
    query: Query,
    imports: ImportReaders,
    printed: bool = True,
) -> Outline:
    """What one file has to offer, with fingerprints or without."""
    root = tree.root_node
    cursor = QueryCursor(query)
    cursor.set_max_start_depth(IN_PYTHON if language == "python" else DEEPEST)
    captures = {} if _has_token_runs(root) else cursor.captures(root)
    functions = sorted(captures.get("function", []), key=_start_byte)
    names = [*captures.get("definition", []), *filter(None, map(_name_node, functions))]
    names.sort(key=_start_byte)
    skipped = sorted(captures.get("skip", []), key=_start_byte)
    hashes, lines = _fingerprint_functions(language, content, functions if printed else [], skipped)
    return Outline(
        names=b"\n".join(extract_words(content)),
        defined=b"\n".join(node.text or b"" for node in names),
        defined_lines=array("I", _node_lines(content, names)).tobytes(),
        prints=hashes.tobytes(),
        print_lines=lines.tobytes(),
        imports=_encode_imports(captures.get("import", []), imports),
    )


def _has_token_runs(root: Node) -> bool:
    """Whether signs stand in a long row, as in a file that is in another language."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.descendant_count > MAX_TOKEN_RUN:
            inside = node.children
            rows = groupby(inside, _is_named_node)
            if any(len(list(row)) > MAX_TOKEN_RUN for is_named, row in rows if not is_named):
                return True
            waiting += inside
    return False


def _encode_imports(nodes: list[Node], imports: ImportReaders) -> bytes:
    rows = {
        f"{one.module}\t{one.name or ''}\t{one.alias or ''}"
        for node in nodes
        for one in imports[node.type](node, lambda _: 0)
    }
    return "\n".join(one for one in rows if "\n" not in one).encode("utf-8", "replace")


def _fingerprint_functions(
    language: Language, content: bytes, functions: list[Node], skipped: list[Node]
) -> tuple[array[int], array[int]]:
    """Prints of the outermost functions; both lists of nodes are in the order of the file."""
    hashes, lines = array("Q"), array("I")
    at, line, end = 0, 1, 0
    for function in functions:
        start = function.start_byte
        while skipped and skipped[0].start_byte <= start:
            end = max(end, skipped.pop(0).end_byte)
        if start < end:
            continue
        end = function.end_byte
        name, body = _name_node(function), _body_node(function)
        if body is None or (name and _TEST_NAME.match(name.text or b"")):
            continue
        line += content.count(b"\n", at, body.start_byte)
        at = body.start_byte
        for hashed, where in fingerprint_body(language, content[at : body.end_byte], line):
            hashes.append(hashed)
            lines.append(where)
    return hashes, lines


def _node_lines(content: bytes, nodes: list[Node]) -> Iterator[int]:
    """The lines of nodes in the order of the file."""
    at, line = 0, 1
    for node in nodes:
        start = node.start_byte
        line += content.count(b"\n", at, start)
        at = start
        yield line


def _start_byte(node: Node) -> int:
    return node.start_byte


def _is_named_node(node: Node) -> bool:
    return node.is_named


def _name_node(function: Node) -> Node | None:
    return function.child_by_field_name("name")


def _body_node(function: Node) -> Node | None:
    body = function.child_by_field_name("body")
    value = function.child_by_field_name("value") if body is None else None
    return value.child_by_field_name("body") if value else body
