"""The tests and suites that a JavaScript or TypeScript file declares, and edits of its text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from closeloop.grading.integrity.source_edits import SourceEdit, load_parser, node_text
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node

_JAVASCRIPT = ("tree_sitter_javascript", "language")
_TYPESCRIPT = ("tree_sitter_typescript", "language_typescript")
_TSX = ("tree_sitter_typescript", "language_tsx")
_BY_SUFFIX = {
    # Types in JavaScript files (Flow) are close enough to TypeScript's.
    **dict.fromkeys((".js", ".jsx", ".mjs", ".cjs"), (_JAVASCRIPT, _TSX)),
    **dict.fromkeys((".ts", ".mts", ".cts"), (_TYPESCRIPT,)),
    ".tsx": (_TSX,),
}
ASSERT_MODULES = ("assert", "node:assert", "assert/strict", "node:assert/strict", "chai")
LARGEST_SOURCE_BYTES = 1_000_000

_TESTS = {"test", "it", "specify", "fit", "xit", "xtest", "xspecify"}
_SUITES = {"describe", "suite", "context", "fdescribe", "xdescribe", "xcontext"}
_FOCUSED = {"fit": "it", "fdescribe": "describe"}
_UNMODIFIED = {**_FOCUSED, "xit": "it", "xtest": "test", "xspecify": "specify"}
_NOT_RUN = {"xit", "xtest", "xspecify", "xdescribe", "xcontext", "skip", "todo"}
_REVERSED = {"failing", "fails"}
_WITH_VALUES = {"each", "for"}
_CONDITIONAL = {"skipIf", "runIf"}
_MODIFIERS = {
    *("only", "concurrent", "sequential", "shuffle", "extend"),
    *_NOT_RUN,
    *_REVERSED,
    *_WITH_VALUES,
    *_CONDITIONAL,
}
_RUNNER_MODULES = {"node:test", "test", "vitest", "@jest/globals", "mocha", "bun:test"}
_SNAPSHOTS = re.compile(
    r"\b(?:toMatch|toThrowErrorMatching)(?:File)?Snapshot\b|InlineSnapshot\(\s*\)|\bassert\.snapshot\b"
)
_PLACEHOLDER = re.compile(r"%[a-zA-Z#$%]|\$[\w.#]+")
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]+)\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.S)
_CONTROL_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "\n": ""}
_FUNCTIONS = ("arrow_function", "function_expression")


class Declaration(Record):
    """A call that declares a test or a suite."""

    kind: Literal["test", "suite"]
    call: Node
    names: tuple[str, ...]
    """Of what is called, with its modifiers: `it.only.each(…)` is it, only, each."""
    function: str
    """How the file calls it, without modifiers: `it`, `runner.it`."""
    title: Node
    callback: Node | None
    """None where it is no function that can be seen here."""
    parents: tuple[Declaration, ...]

    @property
    def is_fit(self) -> bool:
        """Whether a copy passes wherever it passes: it runs, and has no snapshots on file."""
        names = {name for one in (*self.parents, self) for name in one.names}
        return not names & (_NOT_RUN | _REVERSED) and not _SNAPSHOTS.search(node_text(self.call))

    @property
    def is_repeated(self) -> bool:
        """Whether it stands for several tests, by a table of values."""
        return any(_WITH_VALUES & set(one.names) for one in (*self.parents, self))


def first_child(node: Node | None) -> Node | None:
    """The first thing in a node that has a name."""
    return node.named_child(0) if node is not None and node.named_child_count else None


def parse_script(path: str, content: bytes) -> Node | None:
    """The root of a file's syntax tree; None for another language, or text that is broken."""
    if len(content) > LARGEST_SOURCE_BYTES:
        return None
    for grammar in _BY_SUFFIX.get(PurePosixPath(path).suffix, ()):
        root = load_parser(*grammar).parse(content).root_node
        if not root.has_error:
            return root
    return None


def descendants(node: Node, but_not_in: tuple[str, ...] = ()) -> Iterator[Node]:
    """Every named node below this one, in order."""
    pending = list(reversed(node.named_children))
    while pending:
        below = pending.pop()
        yield below
        if below.type not in but_not_in:
            pending.extend(reversed(below.named_children))


def arguments_of(call: Node) -> list[Node]:
    arguments = call.child_by_field_name("arguments")
    if arguments is None or arguments.type != "arguments":
        return []
    return [child for child in arguments.named_children if child.type != "comment"]


def imported_names(root: Node, modules: Iterable[str]) -> dict[str, str]:
    """Local names of what is imported from some modules, each with its name there.

    The name of a whole module, or of its default, is `default`.
    """
    names: dict[str, str] = {}
    for node in descendants(root, but_not_in=_FUNCTIONS):
        pattern: Node | None = node
        if node.type == "import_statement":
            source = node.child_by_field_name("source")
        elif node.type == "variable_declarator":
            value, pattern = node.child_by_field_name("value"), node.child_by_field_name("name")
            while value is not None and value.type == "member_expression":
                value = value.child_by_field_name("object")
            if value is None or node_text(value.child_by_field_name("function")) != "require":
                continue
            source = next(iter(arguments_of(value)), None)
        else:
            continue
        if pattern is not None and node_text(source).strip("'\"`") in modules:
            names.update(_bound_names(pattern))
    return names


def _bound_names(pattern: Node) -> Iterator[tuple[str, str]]:
    if pattern.type == "identifier":
        yield node_text(pattern), "default"
    for node in descendants(pattern):
        if node.type == "import_specifier":
            name = node.child_by_field_name("name")
            yield node_text(node.child_by_field_name("alias") or name), node_text(name)
        elif node.type == "pair_pattern":
            key, value = node.child_by_field_name("key"), node.child_by_field_name("value")
            yield node_text(value), node_text(key)
        elif node.type == "shorthand_property_identifier_pattern":
            yield node_text(node), node_text(node)
        elif node.type == "identifier" and _is_whole_import(node.parent):
            yield node_text(node), "default"


def _is_whole_import(parent: Node | None) -> bool:
    return parent is not None and parent.type in ("import_clause", "namespace_import")


def find_declarations(root: Node) -> list[Declaration]:
    """All tests and suites of a file, in order, each with what it lies in."""
    aliases = imported_names(root, _RUNNER_MODULES)
    found: list[Declaration] = []
    pending: list[tuple[Node, tuple[Declaration, ...]]] = [(root, ())]
    while pending:
        node, parents = pending.pop()
        if node.type == "variable_declarator":
            value = node.child_by_field_name("value")
            if value is not None and "extend" in _names_called(value):
                aliases[node_text(node.child_by_field_name("name"))] = "test"
        declaration = (
            _declaration(node, parents, aliases) if node.type == "call_expression" else None
        )
        if declaration is not None:
            found.append(declaration)
            parents = (*parents, declaration)
        pending.extend((child, parents) for child in reversed(node.named_children))
    return found


def _declaration(
    call: Node, parents: tuple[Declaration, ...], aliases: dict[str, str]
) -> Declaration | None:
    names = _names_called(call)
    arguments = arguments_of(call)
    if not names or len(arguments) < 2:
        return None
    contexts = {_first_parameter(parent) for parent in parents}
    function = _UNMODIFIED.get(names[0], names[0])
    if len(names) > 1 and (names[0] in contexts or (names[0] in aliases and _is_known(names[1]))):
        function, names = f"{function}.{names[1]}", names[1:]
    elif names[0] in aliases:
        original = aliases[names[0]]
        names = ("test" if original == "default" else original, *names[1:])
    if not _is_known(names[0]) or not set(names[1:]) <= _MODIFIERS:
        return None
    if names[-1] in _CONDITIONAL | _WITH_VALUES and _is_call_of(call, names[-1]):
        return None
    callback = next((one for one in arguments[1:] if one.type in _FUNCTIONS), None)
    return Declaration(
        kind="test" if names[0] in _TESTS else "suite",
        call=call,
        names=names,
        function=function,
        title=arguments[0],
        callback=callback,
        parents=parents,
    )


def _is_known(name: str) -> bool:
    return name in _TESTS or name in _SUITES


def _is_call_of(call: Node, name: str) -> bool:
    """Whether this is `it.each(…)` itself, rather than the call of what it returns."""
    function = call.child_by_field_name("function")
    property_ = function.child_by_field_name("property") if function is not None else None
    return node_text(property_) == name


def _names_called(call: Node) -> tuple[str, ...]:
    """`it.only.each(…)` as its names; none where something else is called."""
    names: list[str] = []
    node = call
    while True:
        if node.type == "call_expression":
            below = node.child_by_field_name("function")
        elif node.type == "member_expression":
            names.append(node_text(node.child_by_field_name("property")))
            below = node.child_by_field_name("object")
        elif node.type == "identifier":
            return (node_text(node), *reversed(names))
        else:
            return ()
        if below is None:
            return ()
        node = below


def _first_parameter(declaration: Declaration) -> str:
    """The name of a test's context: `t` in `test("…", (t) => t.test(…))`."""
    callback = declaration.callback
    if callback is None:
        return ""
    single = callback.child_by_field_name("parameter")
    several = callback.child_by_field_name("parameters")
    parameter = single or first_child(several)
    if parameter is not None and parameter.type == "required_parameter":
        parameter = parameter.child_by_field_name("pattern")
    return node_text(parameter)


def match_declarations(
    declarations: Iterable[Declaration], titles: str, separator: str
) -> list[Declaration]:
    """The tests that may bear those titles, joined as an id joins them; the likeliest ones."""
    best: list[Declaration] = []
    most = 0
    for declaration in declarations:
        if declaration.kind != "test":
            continue
        patterns = [_title_pattern(one) for one in (*declaration.parents, declaration)]
        if not re.fullmatch(re.escape(separator).join(patterns), titles, re.DOTALL):
            continue
        literal = sum(len(pattern.replace(".*", "")) for pattern in patterns) + 1
        if literal >= most:
            best = [*(best if literal == most else ()), declaration]
            most = literal
    return best


def _title_pattern(declaration: Declaration) -> str:
    """A regular expression of the titles that a declaration may have when it runs."""
    title = declaration.title
    if title.type not in ("string", "template_string"):
        return ".*"
    parts = []
    for child in title.named_children:
        if child.type == "template_substitution":
            parts.append(".*")
        elif declaration.is_repeated:
            pieces = _PLACEHOLDER.split(_unescaped(node_text(child)))
            parts.append(".*".join(map(re.escape, pieces)))
        else:
            parts.append(re.escape(_unescaped(node_text(child))))
    return "".join(parts)


def _unescaped(text: str) -> str:
    def character(escape: re.Match[str]) -> str:
        code = escape[1] or escape[2] or escape[3]
        if code:
            return chr(min(int(code, 16), 0x10FFFF))
        return _CONTROL_CHARACTERS.get(escape[4], escape[4])

    return _ESCAPE.sub(character, text)


def rename_edits(declaration: Declaration, title: str) -> Iterator[SourceEdit]:
    """Give it another title, and let it run beside others: without `only`."""
    yield SourceEdit(
        start=declaration.title.start_byte, end=declaration.title.end_byte, text=f"'{title}'"
    )
    node = declaration.call.child_by_field_name("function")
    while node is not None and node.type in ("call_expression", "member_expression"):
        below = node.child_by_field_name("object") or node.child_by_field_name("function")
        name = node.child_by_field_name("property")
        if below is not None and name is not None and node_text(name) == "only":
            yield SourceEdit(start=below.end_byte, end=name.end_byte, text="")
        node = below
    if node is not None and node_text(node) in _FOCUSED:
        yield SourceEdit(start=node.start_byte, end=node.end_byte, text=_FOCUSED[node_text(node)])


def drop_edit(declaration: Declaration) -> SourceEdit:
    """Leave a declaration out, wherever an expression may stand."""
    return SourceEdit(
        start=declaration.call.start_byte, end=declaration.call.end_byte, text="void 0"
    )
