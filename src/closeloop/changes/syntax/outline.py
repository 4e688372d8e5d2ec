"""The little of a file that the whole repository is asked for: names, definitions, prints."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from tree_sitter import Node, Query, QueryCursor, Tree

from closeloop.changes.prints import prints
from closeloop.changes.syntax.grammar import Lines
from closeloop.model.inspection import Import, Language
from closeloop.model.record import Record

_APART = bytes(
    byte if byte >= 0x80 or chr(byte).isalnum() or chr(byte) in "_$" else 0x20
    for byte in range(256)
)
"""Every byte that is in no word as a space."""
Imports = Mapping[str, Callable[[Node, Lines], Sequence[Import]]]
DEEPEST, IN_PYTHON = 50, 10
"""What lies deeper is no definition that others would use; in Python a method lies five deep."""
LONGEST = 5000
"""So many signs in a row, of which nothing was made, are not searched: at each of them, all that
follow are looked at."""
_TEST = re.compile(rb"[tT]est|it$|describe$")


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


def words(content: bytes) -> set[bytes]:
    """Every word and number that occurs, in comments and strings too."""
    return set(content.translate(_APART).split())


def outline(
    language: Language,
    content: bytes,
    tree: Tree,
    query: Query,
    imports: Imports,
    printed: bool = True,
) -> Outline:
    """What one file has to offer, with fingerprints or without."""
    root = tree.root_node
    cursor = QueryCursor(query)
    cursor.set_max_start_depth(IN_PYTHON if language == "python" else DEEPEST)
    captures = {} if _is_littered(root) else cursor.captures(root)
    functions = sorted(captures.get("function", []), key=_start)
    names = [*captures.get("definition", []), *filter(None, map(_name, functions))]
    names.sort(key=_start)
    skipped = sorted(captures.get("skip", []), key=_start)
    hashes, lines = _printed(language, content, functions if printed else [], skipped)
    return Outline(
        names=b"\n".join(words(content)),
        defined=b"\n".join(node.text or b"" for node in names),
        defined_lines=array("I", _lines(content, names)).tobytes(),
        prints=hashes.tobytes(),
        print_lines=lines.tobytes(),
        imports=_imported(captures.get("import", []), imports),
    )


def _is_littered(root: Node) -> bool:
    """Whether signs stand in a long row, as in a file that is in another language."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.descendant_count > LONGEST:
            inside = node.children
            rows = groupby(inside, _is_named)
            if any(len(list(row)) > LONGEST for is_named, row in rows if not is_named):
                return True
            waiting += inside
    return False


def _imported(nodes: list[Node], imports: Imports) -> bytes:
    found = {
        f"{one.module}\t{one.name or ''}\t{one.alias or ''}"
        for node in nodes
        for one in imports[node.type](node, lambda _: 0)
    }
    return "\n".join(one for one in found if "\n" not in one).encode("utf-8", "replace")


def _printed(
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
        name, body = _name(function), _body(function)
        if body is None or (name and _TEST.match(name.text or b"")):
            continue
        line += content.count(b"\n", at, body.start_byte)
        at = body.start_byte
        for hashed, where in prints(language, content[at : body.end_byte], line):
            hashes.append(hashed)
            lines.append(where)
    return hashes, lines


def _lines(content: bytes, nodes: list[Node]) -> Iterator[int]:
    """The lines of nodes in the order of the file."""
    at, line = 0, 1
    for node in nodes:
        start = node.start_byte
        line += content.count(b"\n", at, start)
        at = start
        yield line


def _start(node: Node) -> int:
    return node.start_byte


def _is_named(node: Node) -> bool:
    return node.is_named


def _name(function: Node) -> Node | None:
    return function.child_by_field_name("name")


def _body(function: Node) -> Node | None:
    body = function.child_by_field_name("body")
    value = function.child_by_field_name("value") if body is None else None
    return value.child_by_field_name("body") if value else body
