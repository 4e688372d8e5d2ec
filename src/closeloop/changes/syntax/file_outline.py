"""The little of a file that the whole repository is asked for: names, definitions, prints."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from tree_sitter import Node, Query, QueryCursor, Tree

from closeloop.changes.code_fingerprints import fingerprint_body
from closeloop.changes.syntax.grammar import NodeLine
from closeloop.records.inspection import Language, SourceImport
from closeloop.records.record import Record

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
