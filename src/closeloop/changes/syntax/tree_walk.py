"""Read a syntax tree once, from top to bottom, without recursion: however deep it is."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from time import process_time
from typing import Literal

from msgspec.structs import replace
from tree_sitter import Node, Parser, Tree

from closeloop.changes.syntax.grammar import Grammar, NodeSpot, flat_node_text, short_node_text
from closeloop.records.inspection import (
    Language,
    SourceFunction,
    SourceImport,
    SourceModule,
    SourceName,
    SourceType,
)

MAX_NODES = 200_000
"""So many nodes of a file are read."""
MAX_RECEIVER_BYTES = 60
"""What a name is looked up on is told up to this length."""

MAX_QUALIFIED_CHARS = 300
"""What is named so deep inside is called by its own name."""

NameKind = Literal["call", "attribute", "keyword", "name", "definition"]

_HEADER_FIELDS = frozenset({"condition", "right", "subject", "value"})
"""Fields of a loop, branch or switch that are no deeper than itself."""


class _OpenDefinition:
    """A function or type whose end has not come yet."""

    def __init__(self, kind: str, name: str, node: Node, above: _OpenDefinition | None) -> None:
        self.kind = kind
        self.name = name
        self.node = node
        around = above.qualified if above and len(above.qualified) < MAX_QUALIFIED_CHARS else None
        self.qualified: str = f"{around}.{name}" if around else name
        self.decorators: list[str] = []
        self.complexity = 1
        self.cognitive = 0
        self.statements = 0
        self.methods = 0
        self.line = 0
        self.public = False


class _WalkPlace:
    """Where the reading is: a node with something inside."""

    __slots__ = ("binding", "decorators", "header", "kind", "nesting", "node", "open", "spot")

    def __init__(self, node: Node, kind: str, spot: NodeSpot, above: _WalkPlace | None) -> None:
        self.node = node
        self.kind = kind
        self.spot = spot
        self.binding = False
        self.decorators: list[str] = []
        self.header: int | None = None
        self.nesting = 0
        self.open: _OpenDefinition | None = None
        if above:
            header = above.header if spot[1] in _HEADER_FIELDS else None
            self.nesting = above.nesting if header is None else header
            self.open = above.open


class TreeWalk:
    """What was found so far."""

    def __init__(self, grammar: Grammar, content: bytes) -> None:
        self.grammar = grammar
        self.newlines = [found.start() for found in re.finditer(b"\n", content)]
        self.functions: list[SourceFunction] = []
        self.types: list[SourceType] = []
        self.imports: list[SourceImport] = []
        self.names: list[SourceName] = []
        self.broken: set[int] = set()
        self.nodes: list[Node] = []
        self.places: list[_WalkPlace] = []
        self.owned: Counter[str] = Counter()
        self.exported: frozenset[str] = frozenset()

    def read(self, language: Language, tree: Tree) -> SourceModule:
        cursor = tree.walk()
        self.exported = self.grammar.exports(tree.root_node)
        faulty = tree.root_node.has_error
        for _ in range(MAX_NODES):
            node = cursor.node
            assert node is not None
            if faulty and (node.is_error or node.is_missing):
                self.broken.add(self.node_line(node))
            inside = node.is_named and self.enter_node(node, cursor.field_name)
            if inside and cursor.goto_first_child():
                continue
            if inside:
                self.leave_node()
            while not cursor.goto_next_sibling():
                if not cursor.goto_parent():
                    return self.build_module(language)
                self.leave_node()
        read_to = self.node_line(cursor.node) if cursor.node else 0
        while self.places:
            self.leave_node()
        return self.build_module(language, f"Read to line {read_to} only: it is too large.")

    def node_line(self, node: Node) -> int:
        """The line that it begins on."""
        return bisect_left(self.newlines, node.start_byte) + 1

    def build_module(self, language: Language, note: str | None = None) -> SourceModule:
        self.functions.sort(key=lambda function: function.first_line)
        self.types.sort(key=lambda type_: type_.first_line)
        types = [
            replace(type_, methods=type_.methods + self.owned[type_.name]) for type_ in self.types
        ]
        return SourceModule(
            language=language,
            functions=tuple(self.functions),
            types=tuple(types),
            imports=tuple(self.imports),
            names=tuple(self.names),
            broken_lines=tuple(sorted(self.broken)),
            note=note,
        )

    def enter_node(self, node: Node, field: str | None) -> bool:
        """Take note of a node; whether to look inside it."""
        kind, grammar = node.type, self.grammar
        above = self.places[-1] if self.places else None
        spot = (above.kind if above else "", field)
        if above and (kind in grammar.leaves or not node.child_count):
            if kind in grammar.leaves:
                self._add_name(node, field, above)
            if above.open:
                above.open.cognitive += spot in grammar.flat
                above.open.statements += kind in grammar.statements
            return False
        place = _WalkPlace(node, kind, spot, above)
        if above and above.binding and above.kind in grammar.lists:
            place.binding = True
        else:
            place.binding = spot in grammar.binds
        self._add_complexity(place)
        if above and kind in grammar.decorators:
            self._add_decorator(node, above)
        elif above and above.decorators and "comment" not in kind:
            # They belong to what stands next to them, and to nothing after it.
            place.decorators, above.decorators = above.decorators, []
        if kind in grammar.imports:
            self.imports.extend(grammar.imports[kind](node, self.node_line))
        if kind in grammar.functions or kind in grammar.types or kind in grammar.scopes:
            self._open_definition(place)
        if kind in grammar.sealed:
            return False
        self.places.append(place)
        self.nodes.append(node)
        return True

    def leave_node(self) -> None:
        place = self.places.pop()
        self.nodes.pop()
        opened = place.open
        if opened and opened.node is place.node:
            self._close_definition(opened)

    def _open_definition(self, place: _WalkPlace) -> None:
        grammar, node, around = self.grammar, place.node, place.open
        name = grammar.name_of(node, self.nodes)
        is_function = place.kind in grammar.functions
        if not name:
            place.nesting += is_function
            return
        kind = "function" if is_function else "type" if place.kind in grammar.types else "scope"
        place.open = opened = _OpenDefinition(kind, name, node, around)
        opened.line = self.node_line(node)
        opened.decorators, place.decorators = place.decorators, []
        if around is None:
            opened.public = (
                kind == "scope"
                or name in self.exported
                or grammar.is_public(name, node, self.nodes)
            )
        elif around.kind != "function":
            around.methods += is_function
            opened.public = around.public and grammar.is_public(name, node, self.nodes)
        if is_function:
            place.nesting = 0
            if owner := grammar.owner_of(node):
                opened.qualified = f"{owner}.{name}"
                self.owned[owner] += 1
        own = node.child_by_field_name("name")
        if own and kind != "scope":
            opened.line = self.node_line(own)
            self.names.append(SourceName(text=name, line=opened.line, kind="definition"))

    def _close_definition(self, opened: _OpenDefinition) -> None:
        node = opened.node
        # The last byte, not the one behind it: that may be on the next line.
        last = bisect_left(self.newlines, node.end_byte - 1) + 1
        if opened.kind == "function":
            self.functions.append(
                SourceFunction(
                    name=opened.name,
                    qualified=opened.qualified,
                    first_line=opened.line,
                    last_line=last,
                    parameters=tuple(self.grammar.parameters_of(node)),
                    complexity=opened.complexity,
                    cognitive=opened.cognitive,
                    statements=opened.statements,
                    public=opened.public,
                    decorators=tuple(opened.decorators),
                )
            )
        elif opened.kind == "scope":
            self.owned[opened.name] += opened.methods
        else:
            self.types.append(
                SourceType(
                    name=opened.name,
                    qualified=opened.qualified,
                    first_line=opened.line,
                    last_line=last,
                    bases=tuple(self.grammar.bases_of(node)),
                    methods=opened.methods,
                    public=opened.public,
                )
            )

    def _add_decorator(self, node: Node, above: _WalkPlace) -> None:
        written = flat_node_text(node).lstrip("@#![").rstrip("]").strip()
        if above.kind == "modifiers" and len(self.places) > 1:
            above = self.places[-2]
            if above.open is None or above.open.node is not above.node:
                return
        if above.open and above.open.node is above.node:
            above.open.decorators.append(written)
        else:
            above.decorators.append(written)

    def _add_complexity(self, place: _WalkPlace) -> None:
        """Complexity: what this node adds to the function that it is in."""
        grammar, kind, spot, function = self.grammar, place.kind, place.spot, place.open
        continues = spot in grammar.flat or spot in grammar.chained
        if function:
            if kind in grammar.decisions and not grammar.is_default(place.node):
                function.complexity += 1
            if kind in grammar.boolean:
                self._add_operator(place, function)
            function.statements += kind in grammar.statements
            function.cognitive += (kind in grammar.adds) + (spot in grammar.flat)
        if kind in grammar.nests and not continues:
            if function:
                function.cognitive += 1 + place.nesting
            place.header = place.nesting
            place.nesting += 1
        elif kind in grammar.deepens:
            place.nesting += 1

    def _add_operator(self, place: _WalkPlace, function: _OpenDefinition) -> None:
        """Each operator is a path; only a new one makes a condition harder to follow."""
        operator = _operator_type(place.node)
        if operator not in self.grammar.boolean[place.kind]:
            return
        function.complexity += 1
        at = len(self.places) - 1
        while at > 0 and self.places[at].kind == "parenthesized_expression":
            at -= 1
        above = self.places[at]
        function.cognitive += above.kind != place.kind or _operator_type(above.node) != operator

    def _add_name(self, node: Node, field: str | None, above: _WalkPlace) -> None:
        grammar = self.grammar
        kind: str
        receiver: str | None = None
        if above.kind in grammar.wrappers and len(self.places) > 1:
            field, above = above.spot[1], self.places[-2]
        spot = (above.kind, field)
        member = grammar.members.get(above.kind)
        if member and field == member[1] and (owner := above.node.child_by_field_name(member[0])):
            called = above.spot in grammar.calls or grammar.roles.get(spot) == "call"
            kind = "call" if called else "definition" if above.binding else "attribute"
            receiver = _receiver_text(owner)
        elif (role := grammar.roles.get(spot)) is not None:
            kind = role
            if role == "keyword" and (owner_place := grammar.owners.get(above.kind)):
                receiver = self._keyword_owner(*owner_place)
        elif spot in grammar.binds or (above.binding and above.kind in grammar.lists):
            kind = "definition"
        else:
            kind = "name"
        if kind:
            self.names.append(
                SourceName(
                    text=short_node_text(node),
                    line=self.node_line(node),
                    kind=_NAME_KINDS[kind],
                    receiver=receiver,
                )
            )

    def _keyword_owner(self, levels: int, field: str) -> str | None:
        if levels >= len(self.nodes):
            return None
        called = self.nodes[-1 - levels].child_by_field_name(field)
        return _receiver_text(called) if called else None


_NAME_KINDS: dict[str, NameKind] = {
    "call": "call",
    "attribute": "attribute",
    "keyword": "keyword",
    "name": "name",
    "definition": "definition",
}


def _operator_type(node: Node) -> str:
    operator = node.child_by_field_name("operator")
    return operator.type if operator else ""


def _receiver_text(node: Node) -> str | None:
    if node.end_byte - node.start_byte > MAX_RECEIVER_BYTES:
        return None
    written = short_node_text(node)
    return None if "\n" in written else written


# Parse piece by piece, and stop where it takes too long: a file may be in another language.

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
