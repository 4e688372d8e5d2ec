"""Syntax of source files, in the supported languages."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import groupby
from time import process_time
from typing import Literal
from zlib import adler32, crc32

import msgspec
from msgspec.structs import replace
from tree_sitter import Language as CompiledLanguage
from tree_sitter import Node, Parser, Query, QueryCursor, Tree

from closeloop.records.change import (
    Language,
    SourceFunction,
    SourceImport,
    SourceModule,
    SourceName,
    SourceType,
)
from closeloop.records.record import Record

# Description of a language's syntax tree: tables, and a few functions.


MAX_TEXT_BYTES = 2000
NodeLine = Callable[[Node], int]
"""The line that a node begins on. (Nodes' own points crash tree-sitter 0.26.0.)"""
NodeSpot = tuple[str, str | None]
"""A place in a tree: a node's kind, and the field that a child is in."""


class Grammar(Record):
    """One language. Kinds are tree-sitter's names for nodes."""

    load: Callable[[], object]
    """The compiled grammar."""
    outline: str
    """A query for `@definition`, a name, and `@function`; `@skip` has no fingerprints."""
    functions: frozenset[str]
    types: frozenset[str]
    scopes: frozenset[str] = frozenset()
    """Other kinds whose name qualifies what is inside."""
    decorators: frozenset[str] = frozenset()
    statements: frozenset[str]
    sealed: frozenset[str] = frozenset()
    """Kinds without names of interest inside."""
    imports: Mapping[str, Callable[[Node, NodeLine], Sequence[SourceImport]]]

    leaves: frozenset[str]
    """Kinds of nodes that are one identifier."""
    members: Mapping[str, tuple[str, str]]
    """Kinds of member access: the fields of the receiver and of the name."""
    roles: Mapping[NodeSpot, str]
    """Where an identifier is a call, a keyword or a definition, or is reported elsewhere (`""`)."""
    calls: frozenset[NodeSpot]
    """Where a member access is called."""
    owners: Mapping[str, tuple[int, str]] = {}
    """By the node around a keyword: how far up the call is, and its field for the callee."""
    binds: frozenset[NodeSpot]
    """Where an identifier, or a pattern of them, is assigned."""
    lists: frozenset[str] = frozenset()
    """Kinds whose parts are assigned only if the whole is."""

    wrappers: frozenset[str] = frozenset()
    """Kinds that only wrap one node, which takes their place."""

    decisions: frozenset[str]
    """Kinds that add a path through the function, unless it is the default one."""
    is_default: Callable[[Node], bool] = lambda node: False
    nests: frozenset[str]
    """Kinds that add complexity, more the deeper they are nested."""
    deepens: frozenset[str] = frozenset()
    """Kinds that only increase the nesting of what is inside."""
    adds: frozenset[str] = frozenset()
    flat: frozenset[NodeSpot]
    """Places that add complexity regardless of nesting: an else, a jump."""
    chained: frozenset[NodeSpot] = frozenset()
    """Where a decision only continues the previous one: `else if`."""
    boolean: Mapping[str, frozenset[str]] = {}
    """Kinds of binary expressions with the operators that add a path."""

    name_of: Callable[[Node, Sequence[Node]], str | None]
    """Returns the name of a function, type or scope, given the nodes around it, nearest last."""
    parameters_of: Callable[[Node], Sequence[str]]
    bases_of: Callable[[Node], Sequence[str]]
    owner_of: Callable[[Node], str | None] = lambda node: None
    """Returns the type that a function belongs to, if it is defined outside of it."""
    is_public: Callable[[str, Node, Sequence[Node]], bool]
    """Returns whether it can be used from elsewhere, if its container can."""
    exports: Callable[[Node], frozenset[str]] = lambda root: frozenset()
    """Returns names that a list somewhere in the file makes public."""


def split_kinds(names: str) -> frozenset[str]:
    """Split a list of kinds at spaces."""
    return frozenset(names.split())


def short_node_text(node: Node | None) -> str:
    """Return a node's text, unless it is very long: nested text would be copied repeatedly."""
    if node is None or node.end_byte - node.start_byte > MAX_TEXT_BYTES or node.text is None:
        return ""
    return node.text.decode("utf-8", "replace")


def flat_node_text(node: Node | None) -> str:
    """Return a node's text on one line."""
    return " ".join(short_node_text(node).split())


def read_name_field(node: Node, ancestors: Sequence[Node]) -> str | None:
    """Return the text of the node's `name` field."""
    return short_node_text(node.child_by_field_name("name")) or None


def first_named_child(node: Node | None) -> Node | None:
    """Return the first named child."""
    return node.named_child(0) if node and node.named_child_count else None


def unquote_node(node: Node | None) -> str:
    """Return a string without its quotes."""
    return short_node_text(node).strip("'\"`")


def list_child_texts(node: Node | None) -> list[str]:
    """Return the text of each child, without comments."""
    if node is None:
        return []
    return [flat_node_text(child) for child in node.named_children if "comment" not in child.type]


# Walk a syntax tree once, from top to bottom, without recursion, at any depth.


MAX_NODES = 200_000
"""Maximum nodes read of a file."""
MAX_RECEIVER_BYTES = 60
"""Maximum bytes of a receiver that are reported."""

MAX_QUALIFIED_CHARS = 300
"""Maximum characters of a qualified name; a deeper one gets its own name only."""

NameKind = Literal["call", "attribute", "keyword", "name", "definition"]

_HEADER_FIELDS = frozenset({"condition", "right", "subject", "value"})
"""Fields of a loop, branch or switch that are not nested inside it."""


class _OpenDefinition:
    """A function or type that has not ended yet."""

    def __init__(self, kind: str, name: str, node: Node, parent: _OpenDefinition | None) -> None:
        self.kind = kind
        self.name = name
        self.node = node
        prefix = (
            parent.qualified if parent and len(parent.qualified) < MAX_QUALIFIED_CHARS else None
        )
        self.qualified: str = f"{prefix}.{name}" if prefix else name
        self.decorators: list[str] = []
        self.complexity = 1
        self.cognitive = 0
        self.statements = 0
        self.methods = 0
        self.line = 0
        self.public = False


class _WalkPlace:
    """A position of the walk: a node with children."""

    __slots__ = ("binding", "decorators", "header", "kind", "nesting", "node", "open", "spot")

    def __init__(self, node: Node, kind: str, spot: NodeSpot, parent: _WalkPlace | None) -> None:
        self.node = node
        self.kind = kind
        self.spot = spot
        self.binding = False
        self.decorators: list[str] = []
        self.header: int | None = None
        self.nesting = 0
        self.open: _OpenDefinition | None = None
        if parent:
            header = parent.header if spot[1] in _HEADER_FIELDS else None
            self.nesting = parent.nesting if header is None else header
            self.open = parent.open


class TreeWalk:
    """A walk over a syntax tree, with its results so far."""

    def __init__(self, grammar: Grammar, content: bytes) -> None:
        self.grammar = grammar
        self.newlines = [match.start() for match in re.finditer(b"\n", content)]
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
            is_entered = node.is_named and self.enter_node(node, cursor.field_name)
            if is_entered and cursor.goto_first_child():
                continue
            if is_entered:
                self.leave_node()
            while not cursor.goto_next_sibling():
                if not cursor.goto_parent():
                    return self.build_module(language)
                self.leave_node()
        read_to = self.node_line(cursor.node) if cursor.node else 0
        while self.places:
            self.leave_node()
        return self.build_module(language, f"Only read to line {read_to}: the file is too large.")

    def node_line(self, node: Node) -> int:
        """Return the line on which a node begins."""
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
        """Record a node; return whether to visit its children."""
        kind, grammar = node.type, self.grammar
        parent = self.places[-1] if self.places else None
        spot = (parent.kind if parent else "", field)
        if parent and (kind in grammar.leaves or not node.child_count):
            if kind in grammar.leaves:
                self._add_name(node, field, parent)
            if parent.open:
                parent.open.cognitive += spot in grammar.flat
                parent.open.statements += kind in grammar.statements
            return False
        place = _WalkPlace(node, kind, spot, parent)
        if parent and parent.binding and parent.kind in grammar.lists:
            place.binding = True
        else:
            place.binding = spot in grammar.binds
        self._add_complexity(place)
        if parent and kind in grammar.decorators:
            self._add_decorator(node, parent)
        elif parent and parent.decorators and "comment" not in kind:
            # They apply to the next statement only.
            place.decorators, parent.decorators = parent.decorators, []
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
        definition = place.open
        if definition and definition.node is place.node:
            self._close_definition(definition)

    def _open_definition(self, place: _WalkPlace) -> None:
        grammar, node, outer = self.grammar, place.node, place.open
        name = grammar.name_of(node, self.nodes)
        is_function = place.kind in grammar.functions
        if not name:
            place.nesting += is_function
            return
        kind = "function" if is_function else "type" if place.kind in grammar.types else "scope"
        place.open = definition = _OpenDefinition(kind, name, node, outer)
        definition.line = self.node_line(node)
        definition.decorators, place.decorators = place.decorators, []
        if outer is None:
            definition.public = (
                kind == "scope"
                or name in self.exported
                or grammar.is_public(name, node, self.nodes)
            )
        elif outer.kind != "function":
            outer.methods += is_function
            definition.public = outer.public and grammar.is_public(name, node, self.nodes)
        if is_function:
            place.nesting = 0
            if owner := grammar.owner_of(node):
                definition.qualified = f"{owner}.{name}"
                self.owned[owner] += 1
        name_node = node.child_by_field_name("name")
        if name_node and kind != "scope":
            definition.line = self.node_line(name_node)
            self.names.append(SourceName(text=name, line=definition.line, kind="definition"))

    def _close_definition(self, definition: _OpenDefinition) -> None:
        node = definition.node
        # The last byte, not the one after it, which may be on the next line.
        last = bisect_left(self.newlines, node.end_byte - 1) + 1
        if definition.kind == "function":
            self.functions.append(
                SourceFunction(
                    name=definition.name,
                    qualified=definition.qualified,
                    first_line=definition.line,
                    last_line=last,
                    parameters=tuple(self.grammar.parameters_of(node)),
                    complexity=definition.complexity,
                    cognitive=definition.cognitive,
                    statements=definition.statements,
                    public=definition.public,
                    decorators=tuple(definition.decorators),
                )
            )
        elif definition.kind == "scope":
            self.owned[definition.name] += definition.methods
        else:
            self.types.append(
                SourceType(
                    name=definition.name,
                    qualified=definition.qualified,
                    first_line=definition.line,
                    last_line=last,
                    bases=tuple(self.grammar.bases_of(node)),
                    methods=definition.methods,
                    public=definition.public,
                )
            )

    def _add_decorator(self, node: Node, parent: _WalkPlace) -> None:
        decorator = flat_node_text(node).lstrip("@#![").rstrip("]").strip()
        if parent.kind == "modifiers" and len(self.places) > 1:
            parent = self.places[-2]
            if parent.open is None or parent.open.node is not parent.node:
                return
        if parent.open and parent.open.node is parent.node:
            parent.open.decorators.append(decorator)
        else:
            parent.decorators.append(decorator)

    def _add_complexity(self, place: _WalkPlace) -> None:
        """Add the complexity of this node to its function."""
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
        """Count each operator as a path; only a different one makes a condition harder to
        follow."""
        operator = _operator_type(place.node)
        if operator not in self.grammar.boolean[place.kind]:
            return
        function.complexity += 1
        depth = len(self.places) - 1
        while depth > 0 and self.places[depth].kind == "parenthesized_expression":
            depth -= 1
        parent = self.places[depth]
        function.cognitive += parent.kind != place.kind or _operator_type(parent.node) != operator

    def _add_name(self, node: Node, field: str | None, parent: _WalkPlace) -> None:
        grammar = self.grammar
        kind: str
        receiver: str | None = None
        if parent.kind in grammar.wrappers and len(self.places) > 1:
            field, parent = parent.spot[1], self.places[-2]
        spot = (parent.kind, field)
        member = grammar.members.get(parent.kind)
        if member and field == member[1] and (owner := parent.node.child_by_field_name(member[0])):
            called = parent.spot in grammar.calls or grammar.roles.get(spot) == "call"
            kind = "call" if called else "definition" if parent.binding else "attribute"
            receiver = _receiver_text(owner)
        elif (role := grammar.roles.get(spot)) is not None:
            kind = role
            if role == "keyword" and (owner_place := grammar.owners.get(parent.kind)):
                receiver = self._keyword_owner(*owner_place)
        elif spot in grammar.binds or (parent.binding and parent.kind in grammar.lists):
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
    text = short_node_text(node)
    return None if "\n" in text else text


# Parse in pieces, and stop if it takes too long: a file may be in another language.

PIECE_BYTES = 32_768
"""Bytes parsed at a time; a few milliseconds if the text is in the expected language."""
PIECE_SECONDS = 0.5
PARSE_SECONDS = 3.0
"""Timeout in seconds: error recovery may take time quadratic in the length."""


def parse_in_pieces(parser: Parser, content: bytes) -> tuple[Tree, int]:
    """Return the tree and the bytes parsed. The result is that of parsing all at once."""
    end = min(PIECE_BYTES, len(content))
    started = last = process_time()
    tree = parser.parse(content[:end])
    while end < len(content):
        now = process_time()
        if now - last > PIECE_SECONDS or now - started > PARSE_SECONDS:
            break
        last = now
        start, end = end, min(end + PIECE_BYTES, len(content))
        point = _text_point(content, start)
        tree.edit(start, start, end, point, point, _text_point(content, end))
        tree = parser.parse(content[:end], tree)
    return tree, end


def _text_point(content: bytes, offset: int) -> tuple[int, int]:
    return content.count(b"\n", 0, offset), offset - content.rfind(b"\n", 0, offset) - 1


# The outline of a file, read for the whole repository: names, definitions, fingerprints.
#
# Fingerprints of code, which find copies even with renamed variables.
#
# They cover the words that a copy keeps: keywords, operators, called names (but the function's
# own) and accessed attributes. All other names are equal, as are all strings, and all numbers;
# commas, closing brackets, comments and bare strings are ignored. Each statement of a named
# function has one fingerprint, over the tokens from its beginning. So imports, signatures,
# tables outside of functions and tests (`test…`) have none, nor has code that hardly varies.

WINDOW_TOKENS = 16
"""Tokens covered by a fingerprint; about twice as many if brackets and commas are counted."""
MIN_DISTINCT_TOKENS = 8
"""Minimum distinct tokens in a fingerprint."""

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
# Any string or comment may be unterminated: its end is never searched for twice.
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
"""The last two bits of a token's value; in an odd one the others count its newlines."""
_SAME_NAME, _SAME_TEXT, _SAME_NUMBER, _OWN_CALL = 4, 8, 12, 16
_MEMORY, _SHORT = 100_000, 40


@cache
def _token_pattern(language: str) -> re.Pattern[bytes]:
    return re.compile(_TOKENS.get(language, _TOKENS[""]), re.DOTALL)


def fingerprint_body(
    language: Language, body: bytes, line: int, name: bytes = b""
) -> Iterator[tuple[int, int]]:
    """Yield fingerprints of a function's body that begins on that line, each with its line.

    A function that calls itself does so under its name, which a copy changes.
    """
    codes, starts = _encode_tokens(language, body, line)
    if name and name + b"(" in body:
        own_calls = {_token_values[call] for call in (name + b"(", b"." + name + b"(")}
        codes = array("Q", (_OWN_CALL if code in own_calls else code for code in codes))
    last = len(codes) - WINDOW_TOKENS
    for start, line_number in starts:
        if start > last:
            return
        window = codes[start : start + WINDOW_TOKENS]
        if len(set(window)) >= MIN_DISTINCT_TOKENS:
            encoded = window.tobytes()
            yield crc32(encoded) << 32 | adler32(encoded), line_number


def _encode_tokens(
    language: Language, body: bytes, line: int
) -> tuple[array[int], list[tuple[int, int]]]:
    """Return the tokens as numbers, and the token and line at which each statement begins."""
    codes = array("Q")
    starts = []
    append = codes.append
    outer_depths: list[int] = []
    depth, at_line_start = 0, True
    for token in _token_pattern(language).findall(body):
        value = _token_values[token]
        token_class = value & 3
        if token_class == _ODD:
            line += value >> 2
            at_line_start = at_line_start or token[0] == 10
            continue
        if token_class == _CLOSE:
            depth = outer_depths.pop() if outer_depths else 0
            continue
        if value == _SAME_TEXT:
            line += token.count(b"\n")
            if (at_line_start and not depth) or (codes and codes[-1] == _SAME_TEXT):
                continue
        if at_line_start and not depth:
            starts.append((len(codes), line))
        at_line_start = False
        if value != _OPEN:
            append(value)
        if token_class == _OPEN:
            outer_depths.append(depth)
            # Statements are inside braces, not inside other brackets.
            depth = 0 if token == b"{" and language != "python" else depth + 1
    return codes, starts


class _TokenValues(dict[bytes, int]):
    """The numbers of tokens, computed on first use."""

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
    if opens and token[:-1] in _KEYWORDS:  # `not(` is `not (`, and `user` is not `use`
        token = token[:-1]
    is_word = first.isalpha() or first == b"_" or first >= b"\x80"
    if is_word and not opens and token not in _KEYWORDS:
        return _SAME_NAME
    return crc32(token) + 4 << 2 | (_OPEN if opens else _PLAIN)


_WORD_BYTES = bytes(
    byte if byte >= 0x80 or chr(byte).isalnum() or chr(byte) in "_$" else 0x20
    for byte in range(256)
)
"""Translation table: every byte outside of words becomes a space."""
ImportReaders = Mapping[str, Callable[[Node, NodeLine], Sequence[SourceImport]]]
DEEPEST, IN_PYTHON = 50, 10
"""Maximum depth of a definition that others would use; in Python a method is five deep."""
MAX_TOKEN_RUN = 5000
"""Maximum consecutive unnamed nodes; files with longer runs are not searched, since at each node
all that follow are examined."""
_TEST_NAME = re.compile(rb"[tT]est|it$|describe$")


class Outline(Record):
    """Summary of one file, stored for every file: small and quick to search."""

    names: bytes = b""
    """Every word of the file, once, separated by newlines."""
    defined: bytes = b""
    """Names that it defines, separated by newlines."""
    defined_lines: bytes = b""
    prints: bytes = b""
    """Fingerprints, eight bytes each."""
    print_lines: bytes = b""
    imports: bytes = b""
    """Imported modules and names, separated by tabs and newlines."""


def extract_words(content: bytes) -> set[bytes]:
    """Return every word and number, including comments and strings."""
    return set(content.translate(_WORD_BYTES).split())


def build_outline(
    language: Language,
    content: bytes,
    tree: Tree,
    query: Query,
    imports: ImportReaders,
    fingerprints: bool = True,
) -> Outline:
    """Build the outline of one file, with or without fingerprints."""
    root = tree.root_node
    cursor = QueryCursor(query)
    cursor.set_max_start_depth(IN_PYTHON if language == "python" else DEEPEST)
    captures = {} if _has_token_runs(root) else cursor.captures(root)
    functions = sorted(captures.get("function", []), key=_start_byte)
    names = [*captures.get("definition", []), *filter(None, map(_name_node, functions))]
    names.sort(key=_start_byte)
    skipped = sorted(captures.get("skip", []), key=_start_byte)
    hashes, lines = _fingerprint_functions(
        language, content, functions if fingerprints else [], skipped
    )
    return Outline(
        names=b"\n".join(extract_words(content)),
        defined=b"\n".join(node.text or b"" for node in names),
        defined_lines=array("I", _node_lines(content, names)).tobytes(),
        prints=hashes.tobytes(),
        print_lines=lines.tobytes(),
        imports=_encode_imports(captures.get("import", []), imports),
    )


def _has_token_runs(root: Node) -> bool:
    """Return whether there are long runs of unnamed nodes, as in a file of another language."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.descendant_count > MAX_TOKEN_RUN:
            children = node.children
            rows = groupby(children, _is_named_node)
            if any(len(list(row)) > MAX_TOKEN_RUN for is_named, row in rows if not is_named):
                return True
            waiting += children
    return False


def _encode_imports(nodes: list[Node], imports: ImportReaders) -> bytes:
    rows = {
        f"{source_import.module}\t{source_import.name or ''}\t{source_import.alias or ''}"
        for node in nodes
        for source_import in imports[node.type](node, lambda _: 0)
    }
    return "\n".join(row for row in rows if "\n" not in row).encode("utf-8", "replace")


def _fingerprint_functions(
    language: Language, content: bytes, functions: list[Node], skipped: list[Node]
) -> tuple[array[int], array[int]]:
    """Fingerprint the outermost functions; both lists of nodes are in file order."""
    hashes, lines = array("Q"), array("I")
    offset, line, end = 0, 1, 0
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
        line += content.count(b"\n", offset, body.start_byte)
        offset = body.start_byte
        text = content[offset : body.end_byte]
        own_name = name.text if name else None
        for hashed, print_line in fingerprint_body(language, text, line, own_name or b""):
            hashes.append(hashed)
            lines.append(print_line)
    return hashes, lines


def _node_lines(content: bytes, nodes: list[Node]) -> Iterator[int]:
    """Yield the lines of nodes, given in file order."""
    offset, line = 0, 1
    for node in nodes:
        start = node.start_byte
        line += content.count(b"\n", offset, start)
        offset = start
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


__all__ = ["MAX_SOURCE_BYTES", "Outline", "extract_words", "outline_source", "parse_module"]

MAX_SOURCE_BYTES = 2_000_000
"""Maximum bytes of a file; larger files are not read."""

_GRAMMAR_PLACES: dict[Language, tuple[str, str]] = {
    "python": ("languages", "PYTHON"),
    "javascript": ("languages", "JAVASCRIPT"),
    "typescript": ("languages", "TYPESCRIPT"),
    "tsx": ("languages", "TSX"),
    "go": ("languages", "GO"),
    "java": ("languages", "JAVA"),
    "rust": ("languages", "RUST"),
}


def parse_module(language: Language, content: bytes) -> SourceModule:
    """Parse one file. What cannot be parsed is reported; the rest is read anyway."""
    if len(content) > MAX_SOURCE_BYTES:
        return SourceModule(language=language, note="Not read: it is larger than 2 MB.")
    grammar, parser, query = _load_grammar(language)
    tree, end = parse_in_pieces(parser, content)
    brief = build_outline(language, content[:end], tree, query, grammar.imports)
    module = TreeWalk(grammar, content).read(language, tree)
    return msgspec.structs.replace(
        module,
        prints=tuple(array("Q", brief.prints)),
        print_lines=tuple(array("I", brief.print_lines)),
        note=module.note
        or (_truncation_note(language, content, end) if end < len(content) else None),
    )


def outline_source(language: Language, content: bytes, fingerprints: bool = True) -> Outline:
    """Outline a file for the repository index, with or without fingerprints."""
    if len(content) > MAX_SOURCE_BYTES:
        return Outline()
    grammar, parser, query = _load_grammar(language)
    tree, end = parse_in_pieces(parser, content)
    return build_outline(language, content[:end], tree, query, grammar.imports, fingerprints)


def _truncation_note(language: Language, content: bytes, end: int) -> str:
    line = content.count(b"\n", 0, end) + 1
    return f"Only read to line {line}: the rest does not look like {language}."


@cache
def _load_grammar(language: Language) -> tuple[Grammar, Parser, Query]:
    module, name = _GRAMMAR_PLACES[language]
    grammar: Grammar = getattr(import_module(f"{__name__}.{module}"), name)
    compiled = CompiledLanguage(grammar.load())
    imports = " ".join(f"({kind}) @import" for kind in grammar.imports)
    return grammar, Parser(compiled), Query(compiled, f"{grammar.outline}\n{imports}")
