"""What has to be known of a language's syntax tree to read it: tables, and a few functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tree_sitter import Node

from closeloop.records.inspection import (
    SourceImport,
)
from closeloop.records.record import Record

MAX_TEXT_BYTES = 2000
NodeLine = Callable[[Node], int]
"""The line that a node begins on. (Nodes' own points crash tree-sitter 0.26.0.)"""
NodeSpot = tuple[str, str | None]
"""A place in a tree: the kind of a node and the field of it that a child stands in."""


class Grammar(Record):
    """One language. Kinds are tree-sitter's names for nodes."""

    load: Callable[[], object]
    """The compiled grammar."""
    outline: str
    """A query for `@definition`, a name, and `@function`; what is in `@skip` has no prints."""
    functions: frozenset[str]
    types: frozenset[str]
    scopes: frozenset[str] = frozenset()
    """Other kinds that lend their name to what is inside."""
    decorators: frozenset[str] = frozenset()
    statements: frozenset[str]
    sealed: frozenset[str] = frozenset()
    """What has no names of interest inside."""
    imports: Mapping[str, Callable[[Node, NodeLine], Sequence[SourceImport]]]

    leaves: frozenset[str]
    """Kinds of nodes that are one identifier."""
    members: Mapping[str, tuple[str, str]]
    """Kinds that look something up: the fields of what it is looked up on, and of its name."""
    roles: Mapping[NodeSpot, str]
    """Where an identifier is a call, a keyword or a definition, or is told elsewhere (`""`)."""
    calls: frozenset[NodeSpot]
    """Where a member that stands there is called."""
    owners: Mapping[str, tuple[int, str]] = {}
    """By the node around a keyword: how far up the call is, and its field for what is called."""
    binds: frozenset[NodeSpot]
    """Where an identifier, or a pattern of them, is given a value."""
    lists: frozenset[str] = frozenset()
    """Kinds whose parts are given values only if the whole is."""

    wrappers: frozenset[str] = frozenset()
    """Kinds that only wrap one thing: it stands where they do."""

    decisions: frozenset[str]
    """What adds a path through the function; but not where it is the default one."""
    is_default: Callable[[Node], bool] = lambda node: False
    nests: frozenset[str]
    """What makes it harder to follow, the more the deeper it lies."""
    deepens: frozenset[str] = frozenset()
    """What only makes the things inside lie deeper."""
    adds: frozenset[str] = frozenset()
    flat: frozenset[NodeSpot]
    """What, and where something, makes it harder however deep it lies: an else, a jump."""
    chained: frozenset[NodeSpot] = frozenset()
    """Where a decision only continues the one before it: `else if`."""
    boolean: Mapping[str, frozenset[str]] = {}
    """Kinds of binary expressions with the operators that add a path."""

    name_of: Callable[[Node, Sequence[Node]], str | None]
    """Name of a function, type or scope, given the nodes around it, the nearest last."""
    parameters_of: Callable[[Node], Sequence[str]]
    bases_of: Callable[[Node], Sequence[str]]
    owner_of: Callable[[Node], str | None] = lambda node: None
    """The type that a function belongs to, where it stands outside of it."""
    is_public: Callable[[str, Node, Sequence[Node]], bool]
    """Whether it can be used from elsewhere, if what it is in can."""
    exports: Callable[[Node], frozenset[str]] = lambda root: frozenset()
    """Names that a list somewhere in the file makes public."""


def split_kinds(names: str) -> frozenset[str]:
    """Those kinds, named with spaces between."""
    return frozenset(names.split())


def short_node_text(node: Node | None) -> str:
    """What is written there, unless it is very long: what nests would be copied over and over."""
    if node is None or node.end_byte - node.start_byte > MAX_TEXT_BYTES or node.text is None:
        return ""
    return node.text.decode("utf-8", "replace")


def flat_node_text(node: Node | None) -> str:
    """What is written there, on one line."""
    return " ".join(short_node_text(node).split())


def read_name_field(node: Node, around: Sequence[Node]) -> str | None:
    """The name that stands in the field of that name."""
    return short_node_text(node.child_by_field_name("name")) or None


def first_named_child(node: Node | None) -> Node | None:
    """The first thing inside that has a name."""
    return node.named_child(0) if node and node.named_child_count else None


def unquote_node(node: Node | None) -> str:
    """A string without its quotes."""
    return short_node_text(node).strip("'\"`")


def list_child_texts(node: Node | None) -> list[str]:
    """Each of the things inside, as written, without comments."""
    if node is None:
        return []
    return [flat_node_text(child) for child in node.named_children if "comment" not in child.type]
