"""Find and edit the tests and suites that a JavaScript or TypeScript file declares."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from closeloop.grading.integrity.probe import (
    SourceEdit,
    change_text,
    choose_number_grain,
    load_parser,
    node_text,
)
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node


# Replacement values for JavaScript literals, and for values known only at run time.
#
# They look like those that a person writes, and are close to the right ones as often as far from
# them: a changed value cannot be recognised by its looks.


SHOWN_CHARACTERS = 40
ERROR_CLASSES = (
    *("TypeError", "RangeError", "SyntaxError", "ReferenceError", "URIError", "EvalError"),
)
"""Error classes of the language; none is a subclass of another."""
# If no different value of the same type is known, a new symbol is used: it equals nothing else.
_CHANGER = """
;function {name}(key, value, far) {{
  if (key * {factor} % {modulus} % 2) return value;
  const other = (inner) => {name}(key, inner, far);
  if (typeof value === 'number' && !Number.isFinite(value)) return {far};
  if (typeof value === 'number')
    return far || Math.abs(value) > 1e9 ? value * 2 + (value < 0 ? -{far} : {far}) : value + {near};
  if (typeof value === 'bigint') return value + BigInt({near});
  if (typeof value === 'string') return value.slice(0, {at}) + '{word}' + value.slice({at});
  if (typeof value === 'boolean') return !value;
  if (Array.isArray(value) && value.length && {inner})
    return value.map((item, at) => at === {at} % value.length ? other(item) : item);
  if (Array.isArray(value)) return [...value, '{word}'];
  if (value instanceof Error) return new Error(value.message + '{word}');
  if (value != null && Object.getPrototypeOf(value) === Object.prototype)
    return {{ ...value, {word}: '{word}' }};
  return Symbol('{word}');
}}
"""


class ValueChanger(Record):
    """A function of a probe file that returns its argument or another value, depending on a key.

    Right expectations pass through it in the same way as wrong ones.
    """

    name: str
    factor: int
    modulus: int

    def open_call(self, rng: random.Random, *, changes: bool) -> str:
        """Return `name(key, ` with a random key."""
        while True:
            key = rng.randrange(100_000)
            if (key * self.factor % self.modulus % 2 == 0) == changes:
                return f"{self.name}({key}, "

    def render_source(self, rng: random.Random) -> str:
        return _CHANGER.format(
            name=self.name,
            factor=self.factor,
            modulus=self.modulus,
            near=rng.choice((-3, -2, -1, 1, 2, 3, 7, 10, 100)),
            far=rng.randrange(10_000_019, 99_999_989),
            word=random_letters(rng),
            at=rng.randrange(6),
            inner=str(rng.random() < 0.5).lower(),
        )


def make_changer(rng: random.Random) -> ValueChanger:
    """Make a changer with a random name, whose keys have another meaning in each file."""
    return ValueChanger(
        name=random_word(rng),
        factor=rng.randrange(1_001, 9_999, 2),
        modulus=rng.choice((7_919, 8_191, 9_973)),
    )


def random_word(rng: random.Random) -> str:
    """Return a random word that occurs nowhere and is a valid name in any language."""
    return f"{rng.choice('abcdefghijklmnopqrstuvwxyz')}{rng.getrandbits(44):011x}"


def random_letters(rng: random.Random) -> str:
    """Return random letters that no text contains by chance."""
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(5, 9)))


def change_value(
    node: Node, rng: random.Random, *, far: bool = False
) -> tuple[SourceEdit, str] | None:
    """Return an edit to another literal of the same type, and its description.

    None for a non-literal. `far`: so different that no rounding makes them equal, and that no text
    or list contains it by chance; None if there is no such value.
    """
    text = node_text(node)
    match node.type:
        case "number" | "unary_expression":
            other_number = _other_number(text, rng, far=far)
            return None if other_number is None else _replaced(node, other_number)
        case "string":
            return _replaced(node, _other_text(text, rng, far=far))
        case "template_string":
            if any(child.type == "template_substitution" for child in node.named_children):
                return None
            return _replaced(node, _other_text(text, rng, far=far))
        case "regex":
            return _change_pattern(node, rng)
        case "true" | "false" if not far:
            return _replaced(node, "false" if text == "true" else "true")
        case "null" | "undefined" if not far:
            return _replaced(node, rng.choice(("0", "''", "false")))
        case "array" | "object":
            return _change_part(node, rng, far=far)
        case _:
            return None


def _change_part(node: Node, rng: random.Random, *, far: bool) -> tuple[SourceEdit, str] | None:
    """Change one item or property, but none that a following `...rest` may replace."""
    parts = [child for child in node.named_children if child.type != "comment"]
    if not parts:
        word = change_text("", rng) if rng.random() < 0.7 else random_letters(rng)
        item = rng.choice(("0", "1", "null", f"'{word}'"))
        return _replaced(node, f"[{item}]" if node.type == "array" else f"{{ '{word}': {item} }}")
    spreads = [index for index, part in enumerate(parts) if part.type == "spread_element"]
    parts = parts[spreads[-1] + 1 :] if spreads else parts
    rng.shuffle(parts)
    for part in parts:
        value = part.child_by_field_name("value") if part.type == "pair" else part
        if value is not None and (change := change_value(value, rng, far=far)) is not None:
            return change
    return None


def _other_number(text: str, rng: random.Random, *, far: bool) -> str | None:
    """Return another number; `far` moves it away from zero, so that no rounding brings it back."""
    match = re.fullmatch(r"(-?)\s*(\d+)(\.\d*)?(n?)", text)
    if match is None or re.match(r"0\d", match[2]):
        sign = "-" if text.startswith("-") else "+"
        is_number = re.fullmatch(r"-?\s*[\d.][\w.]*", text)
        return f"({text} * 3 {sign} {rng.randrange(1_003, 9_973)})" if is_number else None
    value = int(match[2])
    if far or value > 10**9:
        changed = 2 * value + rng.randrange(10_000_019, 99_999_989)
        return f"{match[1]}{changed}{match[3] or ''}{match[4]}"
    value = -value if match[1] else value
    step = rng.choice((-10, -2, -1, 1, 2, 5, 10, rng.randrange(1_003, 9_973)))
    if (grain := choose_number_grain(value, rng)) > 1:
        step = grain * rng.choice((-3, -2, -1, 1, 2, 3, 5))
    if match[3] is None:
        return f"{value + step}{match[4]}"
    return f"{match[1]}{abs(value) + abs(step)}{match[3]}"


def _other_text(text: str, rng: random.Random, *, far: bool) -> str:
    """Return another text, plausible or with other letters; `text` includes its quotes."""
    content = text[1:-1]
    if not far and rng.random() < 0.85:
        return f"{text[0]}{change_text(content, rng)}{text[-1]}"
    if "\\" in content:
        return f"{text[:-1]}{random_letters(rng)}{text[-1]}"
    positions = [
        index
        for index, character in enumerate(content)
        if character.isascii() and character.isalnum()
    ]
    if positions and not far and rng.random() < 0.5:
        position = rng.choice(positions)
        characters = string.digits if content[position].isdigit() else string.ascii_lowercase
        new_character = rng.choice(characters.replace(content[position].lower(), ""))
        new_character = new_character.upper() if content[position].isupper() else new_character
        return f"{text[0]}{content[:position]}{new_character}{content[position + 1 :]}{text[-1]}"
    position = rng.randint(0, len(content))
    return f"{text[0]}{content[:position]}{random_letters(rng)}{content[position:]}{text[-1]}"


def _change_pattern(node: Node, rng: random.Random) -> tuple[SourceEdit, str] | None:
    """Insert letters into a regular expression; None if it need not match its letters one by
    one."""
    pattern = node.child_by_field_name("pattern")
    text = node_text(pattern)
    positions = [match.start() + 1 for match in re.finditer(r"(?<![\\\w])[A-Za-z]{2}", text)]
    if pattern is None or not positions or set(text) & set("|?*{(["):
        return None
    position = rng.choice(positions)
    return _replaced(pattern, f"{text[:position]}{random_letters(rng)}{text[position:]}")


def _replaced(node: Node, text: str) -> tuple[SourceEdit, str]:
    how = f"{text[:SHOWN_CHARACTERS]} for {node_text(node)[:SHOWN_CHARACTERS]}"
    return SourceEdit(start=node.start_byte, end=node.end_byte, text=text), how


# Find and edit the tests and suites that a JavaScript or TypeScript file declares.


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
    """Names of the callee with its modifiers: `it.only.each(…)` is it, only, each."""
    function: str
    """Callee without modifiers, as the file writes it: `it`, `runner.it`."""
    title: Node
    callback: Node | None
    """None if it is not a function literal."""
    parents: tuple[Declaration, ...]

    @property
    def is_fit(self) -> bool:
        """Whether a copy passes if the original does: it is run, and has no stored snapshots."""
        names = {name for declaration in (*self.parents, self) for name in declaration.names}
        return not names & (_NOT_RUN | _REVERSED) and not _SNAPSHOTS.search(node_text(self.call))

    @property
    def is_repeated(self) -> bool:
        """Whether it declares several tests by a table of values."""
        return any(_WITH_VALUES & set(declaration.names) for declaration in (*self.parents, self))


def first_child(node: Node | None) -> Node | None:
    """Return the first named child of a node."""
    return node.named_child(0) if node is not None and node.named_child_count else None


def parse_script(path: str, content: bytes) -> Node | None:
    """Parse a file; None for another language, a file that is too large, or syntax errors."""
    if len(content) > LARGEST_SOURCE_BYTES:
        return None
    for grammar in _BY_SUFFIX.get(PurePosixPath(path).suffix, ()):
        root = load_parser(*grammar).parse(content).root_node
        if not root.has_error:
            return root
    return None


def descendants(node: Node, but_not_in: tuple[str, ...] = ()) -> Iterator[Node]:
    """Yield every named node below this one, in order, but none inside types of `but_not_in`."""
    pending = list(reversed(node.named_children))
    while pending:
        child = pending.pop()
        yield child
        if child.type not in but_not_in:
            pending.extend(reversed(child.named_children))


def arguments_of(call: Node) -> list[Node]:
    arguments = call.child_by_field_name("arguments")
    if arguments is None or arguments.type != "arguments":
        return []
    return [child for child in arguments.named_children if child.type != "comment"]


def imported_names(root: Node, modules: Iterable[str]) -> dict[str, str]:
    """Return local names of imports from some modules, each with its exported name.

    A whole module, or its default export, is `default`.
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
    """Return all tests and suites of a file, in order, each with its enclosing declarations."""
    aliases = imported_names(root, _RUNNER_MODULES)
    declarations: list[Declaration] = []
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
            declarations.append(declaration)
            parents = (*parents, declaration)
        pending.extend((child, parents) for child in reversed(node.named_children))
    return declarations


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
    callback = next((argument for argument in arguments[1:] if argument.type in _FUNCTIONS), None)
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
    """Return whether this is `it.each(…)` itself, rather than the call of what it returns."""
    function = call.child_by_field_name("function")
    property_ = function.child_by_field_name("property") if function is not None else None
    return node_text(property_) == name


def _names_called(call: Node) -> tuple[str, ...]:
    """Return the names of `it.only.each(…)`; none for another call."""
    names: list[str] = []
    node = call
    while True:
        if node.type == "call_expression":
            inner = node.child_by_field_name("function")
        elif node.type == "member_expression":
            names.append(node_text(node.child_by_field_name("property")))
            inner = node.child_by_field_name("object")
        elif node.type == "identifier":
            return (node_text(node), *reversed(names))
        else:
            return ()
        if inner is None:
            return ()
        node = inner


def _first_parameter(declaration: Declaration) -> str:
    """Return the name of a test's context parameter: `t` in `test("…", (t) => t.test(…))`."""
    callback = declaration.callback
    if callback is None:
        return ""
    single = callback.child_by_field_name("parameter")
    parameters = callback.child_by_field_name("parameters")
    parameter = single or first_child(parameters)
    if parameter is not None and parameter.type == "required_parameter":
        parameter = parameter.child_by_field_name("pattern")
    return node_text(parameter)


def match_declarations(
    declarations: Iterable[Declaration], titles: str, separator: str
) -> list[Declaration]:
    """Return the most likely tests for these titles, joined as in an id."""
    best: list[Declaration] = []
    best_length = 0
    for declaration in declarations:
        if declaration.kind != "test":
            continue
        patterns = [_title_pattern(level) for level in (*declaration.parents, declaration)]
        if not re.fullmatch(re.escape(separator).join(patterns), titles, re.DOTALL):
            continue
        literal_length = sum(len(pattern.replace(".*", "")) for pattern in patterns) + 1
        if literal_length >= best_length:
            best = [*(best if literal_length == best_length else ()), declaration]
            best_length = literal_length
    return best


def _title_pattern(declaration: Declaration) -> str:
    """Return a regular expression for the titles that a declaration may have at run time."""
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
    """Change a declaration's title, and remove `only` so that others run too."""
    yield SourceEdit(
        start=declaration.title.start_byte, end=declaration.title.end_byte, text=f"'{title}'"
    )
    node = declaration.call.child_by_field_name("function")
    while node is not None and node.type in ("call_expression", "member_expression"):
        inner = node.child_by_field_name("object") or node.child_by_field_name("function")
        name = node.child_by_field_name("property")
        if inner is not None and name is not None and node_text(name) == "only":
            yield SourceEdit(start=inner.end_byte, end=name.end_byte, text="")
        node = inner
    if node is not None and node_text(node) in _FOCUSED:
        yield SourceEdit(start=node.start_byte, end=node.end_byte, text=_FOCUSED[node_text(node)])


def drop_edit(declaration: Declaration) -> SourceEdit:
    """Replace a declaration by `void 0`, which is valid wherever an expression is."""
    return SourceEdit(
        start=declaration.call.start_byte, end=declaration.call.end_byte, text="void 0"
    )


# Find where a variable of a test gets its value: a literal is changed there, and not where it is
# compared, so that the file never shows the right value beside the wrong one.


_SCOPES = ("statement_block", "program", "for_in_statement", *_FUNCTIONS)
_USES = ("identifier", "shorthand_property_identifier", "shorthand_property_identifier_pattern")


def find_bound_values(use: Node) -> list[Node]:
    """Return all values that a variable is bound to; none if hidden, or read elsewhere too."""
    name, scope = node_text(use), use.parent
    while scope is not None:
        if scope.type in _SCOPES and (pattern := _find_pattern(scope, name)) is not None:
            reads = [node for node in descendants(scope) if _is_read(node, name)]
            return _read_bound(scope, pattern, name) if len(reads) <= 2 else []
        scope = scope.parent
    return []


def _is_read(node: Node, name: str) -> bool:
    """Return whether a node is this variable; uses in titles do not count, as titles are
    replaced."""
    if node.type not in _USES or node_text(node) != name:
        return False
    parent = node.parent
    while parent is not None and parent.type != "template_string":
        parent = (
            parent.parent if parent.type in ("template_substitution", "member_expression") else None
        )
    argument_list = parent.parent if parent is not None else None
    if parent is None or argument_list is None or argument_list.type != "arguments":
        return True
    arguments = argument_list.named_children
    return arguments[0] != parent or len(arguments) < 2 or arguments[1].type not in _FUNCTIONS


def _find_pattern(scope: Node, name: str) -> Node | None:
    """Return what binds a name in this scope: a declarator, a loop's left side, or a parameter."""
    if scope.type == "for_in_statement":
        patterns = [scope.child_by_field_name("left")]
    elif scope.type in _FUNCTIONS:
        parameters = scope.child_by_field_name("parameters")
        children = [] if parameters is None else parameters.named_children
        patterns = [scope.child_by_field_name("parameter"), *children]
    else:
        declared = (child for child in scope.named_children if child.type.endswith("_declaration"))
        patterns = [
            named_child.child_by_field_name("name")
            for declaration in declared
            for named_child in declaration.named_children
            if named_child.type == "variable_declarator"
        ]
    for pattern in patterns:
        if pattern is not None and any(
            node.type in _USES and node_text(node) == name
            for node in (pattern, *descendants(pattern))
        ):
            return pattern
    return None


def _read_bound(scope: Node, pattern: Node, name: str) -> list[Node]:
    if scope.type == "for_in_statement":
        operator = scope.child_by_field_name("operator")
        rows = _list_rows(scope.child_by_field_name("right"))
        return _read_column(rows, pattern, name) if node_text(operator) == "of" else []
    if scope.type in _FUNCTIONS:
        return _read_arguments(scope, pattern, name)
    parent = pattern.parent
    value = parent.child_by_field_name("value") if parent is not None else None
    return [value] if value is not None and pattern.type == "identifier" else []


def _read_arguments(function: Node, pattern: Node, name: str) -> list[Node]:
    """Return the values that `table.forEach(f)` or `test.each(table)('…', f)` passes to a
    function."""
    parent = function.parent
    call = parent.parent if parent is not None and parent.type == "arguments" else None
    called = call.child_by_field_name("function") if call is not None else None
    if called is None:
        return []
    if called.type == "member_expression":
        rows = _list_rows(called.child_by_field_name("object"))
        is_each = node_text(called.child_by_field_name("property")) == "forEach"
        return _read_column(rows, pattern, name) if is_each else []
    inner = called.child_by_field_name("function")
    call_arguments = arguments_of(called) if called.type == "call_expression" else []
    method = node_text(inner.child_by_field_name("property")) if inner is not None else ""
    if method not in _WITH_VALUES or len(call_arguments) != 1:
        return []
    rows, parameters = _list_rows(call_arguments[0]), function.child_by_field_name("parameters")
    if method == "for" or parameters is None or not all(row.type == "array" for row in rows):
        return _read_column(rows, pattern, name)
    return _read_column(rows, parameters, name)


def _list_rows(table: Node | None) -> list[Node]:
    """Return the items of a literal array, or of a variable that holds one and is used once."""
    if table is not None and table.type == "identifier":
        values = find_bound_values(table)
        table = values[0] if len(values) == 1 else None
    if table is None or table.type != "array":
        return []
    rows = [child for child in table.named_children if child.type != "comment"]
    return [] if any(row.type == "spread_element" for row in rows) else rows


def _read_column(rows: list[Node], pattern: Node, name: str) -> list[Node]:
    """Return the values that a pattern binds to a name in all rows; none if one is not visible."""
    values = [_pick_value(row, pattern, name) for row in rows]
    return [value for value in values if value is not None] if None not in values else []


def _pick_value(row: Node, pattern: Node, name: str) -> Node | None:
    if pattern.type in ("required_parameter", "optional_parameter"):
        inner = pattern.child_by_field_name("pattern")
        return _pick_value(row, inner, name) if inner is not None else None
    if pattern.type == "identifier":
        return row
    items = [child for child in row.named_children if child.type != "comment"]
    if pattern.type in ("array_pattern", "formal_parameters") and row.type == "array":
        for part, item in zip(pattern.named_children, items, strict=False):
            if part.type == "identifier" and node_text(part) == name:
                return None if item.type == "spread_element" else item
            if part.type == "required_parameter" and node_text(part).split(":")[0] == name:
                return item
        return None
    is_object = pattern.type == "object_pattern" and row.type == "object"
    return _pick_property(items, pattern, name) if is_object else None


def _pick_property(items: list[Node], pattern: Node, name: str) -> Node | None:
    keys = {
        node_text(part.child_by_field_name("value") if part.type == "pair_pattern" else part): part
        for part in pattern.named_children
    }
    key = property_node = keys.get(name)
    if property_node is not None and property_node.type == "pair_pattern":
        key = property_node.child_by_field_name("key")
    for item in items:
        if item.type == "pair" and node_text(item.child_by_field_name("key")) == node_text(key):
            return item.child_by_field_name("value")
    return None
