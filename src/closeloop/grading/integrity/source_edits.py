"""Parse source code of a language and rewrite parts of it."""

from __future__ import annotations

import functools
import importlib
import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from closeloop.records.record import Record, content_digest

if TYPE_CHECKING:
    from tree_sitter import Node, Parser


class SourceEdit(Record):
    """Bytes of a source to be replaced by others."""

    start: int
    end: int
    text: str


class Perturbation(Record):
    """How to make a test wrong on purpose."""

    edits: tuple[SourceEdit, ...]
    how: str
    certain: bool = True
    """By logic, the changed test fails wherever the original passes."""


def parse_source(grammar: str, source: bytes) -> Node | None:
    """Return the root of the syntax tree; None for a source with syntax errors."""
    root = load_parser(grammar).parse(source).root_node
    return None if root.has_error else root


@functools.cache
def load_parser(module: str, language: str = "language") -> Parser:
    """Return a parser for a grammar, by the package it comes in and its name there."""
    from tree_sitter import Language, Parser

    return Parser(Language(getattr(importlib.import_module(module), language)()))


def walk_nodes(node: Node, *, skip: frozenset[str] = frozenset()) -> Iterator[Node]:
    """Yield a node and all below it in source order; nothing below nodes of the types to skip."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        if current is node or current.type not in skip:
            waiting.extend(reversed(current.children))


def node_text(node: Node | None) -> str:
    """Return the source of a node; '' for None."""
    return "" if node is None else (node.text or b"").decode("utf-8", "replace")


def replace_node(node: Node, text: str) -> SourceEdit:
    return SourceEdit(start=node.start_byte, end=node.end_byte, text=text)


def insert_text(place: int, text: str) -> SourceEdit:
    return SourceEdit(start=place, end=place, text=text)


def apply_edits(source: bytes, edits: Iterable[SourceEdit], start: int = 0) -> bytes:
    """Apply edits to a source whose first byte is at `start`.

    Of edits that overlap, the outer one holds: what lies in a part that is replaced is left out.
    """
    parts, place = [], start
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end != edit.start, -edit.end)):
        if edit.start >= place:
            parts += [source[place - start : edit.start - start], edit.text.encode()]
            place = edit.end
    return b"".join([*parts, source[place - start :]])


def make_generator(token: str, *parts: str) -> random.Random:
    """Return a random generator that nobody can foresee who does not know the token."""
    return random.Random(content_digest(token, *parts))  # noqa: S311 (the token is from `secrets`)


def make_name(token: str, *parts: str) -> str:
    """Return random letters that disclose neither the token nor what they name."""
    return content_digest("name", token, *parts)[:12].translate(
        str.maketrans("0123456789", "ghijklmnop")
    )
