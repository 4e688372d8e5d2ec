"""Syntax trees for reading an API, and lines in them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module

from tree_sitter import Language as Compiled
from tree_sitter import Node, Parser

from closeloop.records.inspection import Language

_GRAMMAR_LOADERS: dict[Language, tuple[str, str]] = {
    "python": ("tree_sitter_python", "language"),
    "javascript": ("tree_sitter_javascript", "language"),
    "typescript": ("tree_sitter_typescript", "language_typescript"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    "go": ("tree_sitter_go", "language"),
    "java": ("tree_sitter_java", "language"),
    "rust": ("tree_sitter_rust", "language"),
}


@cache
def _load_parser(language: Language) -> Parser:
    module, name = _GRAMMAR_LOADERS[language]
    return Parser(Compiled(getattr(import_module(module), name)()))


def parse_syntax_root(language: Language, content: bytes) -> Node:
    return _load_parser(language).parse(content).root_node


def node_line(content: bytes, node: Node) -> int:
    return content.count(b"\n", 0, node.start_byte) + 1


def node_source(node: Node | None) -> str:
    return "" if node is None or node.text is None else node.text.decode("utf-8", "replace")


def flat_node_source(node: Node | None) -> str:
    """As written, on one line."""
    return " ".join(node_source(node).split())


def child_field(node: Node, name: str) -> Node | None:
    return node.child_by_field_name(name)


def body_fingerprint(node: Node | None) -> int:
    """Equal for equal text, however it is laid out; 0 for none, or too little to tell by."""
    written = flat_node_source(node)
    return hash(written) if len(written) > 60 else 0


def child_nodes(node: Node | None) -> Iterator[Node]:
    if node is not None:
        yield from (child for child in node.named_children if child.type != "comment")
