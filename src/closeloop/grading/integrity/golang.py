"""Probes for `go test`.

In the first room each test file that holds wanted tests gets a neighbour with a random name in the
same package, so that helpers stay where they are. If the imports of the copies cannot be determined
from the source (dot imports, packages not named after their path), the copies go into the file
itself. The sources of the probe are emptied before the test program starts: code under test cannot
read them. A subtest is confirmed by a copy of its whole test function.

An assembler file or cgo can read the tests while they are compiled. So the other rooms hold each
test once, right or made wrong, in the file itself.
"""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from closeloop.grading.integrity.probe import (
    MAX_PERTURBED,
    ROOMS,
    Perturbation,
    Probe,
    ProbeRequest,
    ProbeTest,
    Results,
    SourceEdit,
    ToolCall,
    apply_edits,
    change_literal,
    choose_changes,
    find_tool_call,
    insert_text,
    is_made_wrong,
    make_generator,
    make_name,
    node_text,
    parse_source,
    replace_node,
    split_option,
    walk_nodes,
)
from closeloop.grading.runner_reports import Status, split_terminal_lines
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node


# The imports that some functions of a Go file need: an unused import does not compile.


_SCOPES = frozenset(
    {
        "block",
        "if_statement",
        "for_statement",
        "expression_switch_statement",
        "type_switch_statement",
        "communication_case",
        "expression_case",
        "type_case",
        "default_case",
        "func_literal",
        "function_declaration",
        "method_declaration",
    }
)
_DECLARING = {
    "short_var_declaration": "left",
    "range_clause": "left",
    "receive_statement": "left",
    "type_switch_statement": "alias",
    "var_spec": "name",
    "const_spec": "name",
    "parameter_declaration": "name",
    "variadic_parameter_declaration": "name",
}


class GoImports(Record):
    """The imports of a file."""

    named: dict[str, str] = {}
    """Import paths by the name that the file uses."""
    has_dot: bool = False
    """Whether there is a dot import: the origin of some names is unknown."""
    unknown: tuple[str, ...] = ()
    """Paths of packages whose name cannot be derived from the path."""


def read_imports(root: Node) -> GoImports:
    """Read a file's imports; of a package's likely names, the one that the file uses is its
    name."""
    used_names = list_package_names([root])
    paths_by_name: dict[str, str] = {}
    unknown, has_dot = [], False
    for spec in walk_nodes(root):
        if spec.type != "import_spec":
            continue
        name = node_text(spec.child_by_field_name("name"))
        path = node_text(spec.child_by_field_name("path")).strip('"`')
        likely_names = [name] if name else _likely_names(path)
        used_name = next((candidate for candidate in likely_names if candidate in used_names), None)
        if name == ".":
            has_dot = True
        elif used_name is not None:
            paths_by_name[used_name] = path
        elif name != "_":
            unknown.append(path)
    return GoImports(named=paths_by_name, has_dot=has_dot, unknown=tuple(unknown))


def _likely_names(path: str) -> list[str]:
    """Return likely package names: `gopkg.in/yaml.v3` → yaml; `github.com/a/go-b/v2` → go-b, b."""
    parts = [part for part in path.split("/") if not re.fullmatch(r"v\d+", part)] or [path]
    last = re.sub(r"\.v\d+$", "", parts[-1])
    bare = re.sub(r"^go[-.]|[-.]go$", "", last)
    return [last, bare, re.sub(r"\W", "", bare), re.sub(r"\W", "_", bare), bare.split("-")[-1]]


def needed_imports(functions: Iterable[Node], imports: GoImports) -> dict[str, str] | None:
    """Return the imports that functions use; None if the file does not show that."""
    if imports.has_dot or imports.unknown:
        return None
    used_names = list_package_names(functions)
    return {name: path for name, path in imports.named.items() if name in used_names}


def list_package_names(roots: Iterable[Node]) -> set[str]:
    """Return `x` of each `x.y` if no function around it declares x."""
    names = set()
    for root in roots:
        scopes_by_name = _list_import_declarations(root)
        for node in walk_nodes(root):
            field = {"selector_expression": "operand", "qualified_type": "package"}.get(node.type)
            operand = node.child_by_field_name(field) if field else None
            if operand is None or operand.type not in ("identifier", "package_identifier"):
                continue
            position, name = operand.start_byte, node_text(operand)
            if not any(start <= position < end for start, end in scopes_by_name.get(name, ())):
                names.add(name)
    return names


def _list_import_declarations(root: Node) -> dict[str, list[tuple[int, int]]]:
    """Return the scope of each name declared inside functions, as byte ranges."""
    scopes_by_name: dict[str, list[tuple[int, int]]] = {}
    for node in walk_nodes(root):
        field = _DECLARING.get(node.type)
        if field is None:
            continue
        scope = node if node.type == "type_switch_statement" else node.parent
        while scope is not None and scope.type not in _SCOPES:
            scope = scope.parent
        if scope is None:
            continue
        for declared_node in node.children_by_field_name(field):
            start = scope.start_byte if "parameter" in node.type else node.end_byte
            if node.type == "type_switch_statement":
                start = declared_node.end_byte
            for name in walk_nodes(declared_node):
                if name.type == "identifier":
                    scopes_by_name.setdefault(node_text(name), []).append((start, scope.end_byte))
    return scopes_by_name


# Read parts of Go's syntax tree: statements, calls and the test parameter.


_TESTING = re.compile(r"(\w+) \*?testing\.(?:T|TB|F|B)\b")


def find_test_parameter(function: Node) -> str:
    parameters = function.child_by_field_name("parameters")
    match = re.fullmatch(r"\(\s*(\w+) \*testing\.T\s*,?\s*\)", node_text(parameters))
    return match[1] if match and match[1] != "_" else ""


def list_statements(block: Node) -> list[Node]:
    """Return the statements of a block, whether or not the grammar has a list node for them."""
    inner = [child for child in block.named_children if child.type != "comment"]
    if len(inner) == 1 and inner[0].type == "statement_list":
        inner = [child for child in inner[0].named_children if child.type != "comment"]
    return inner


def single_name(declaration: Node) -> str:
    left = declaration.child_by_field_name("left")
    names = left.named_children if left is not None else []
    return node_text(names[0]) if len(names) == 1 else ""


def nearest_test_parameter(node: Node) -> str:
    """Return the name of the `*testing.T` of the nearest enclosing function; '' if it has none."""
    ancestor: Node | None = node
    while ancestor is not None and ancestor.type not in ("func_literal", "function_declaration"):
        ancestor = ancestor.parent
    return find_test_parameter(ancestor) if ancestor is not None else ""


def test_parameters_around(node: Node) -> set[str]:
    """Return the names of `*testing.T` and the like in all enclosing functions, including
    helpers."""
    names, ancestor = set[str](), node.parent
    while ancestor is not None:
        if ancestor.type in ("func_literal", "function_declaration", "method_declaration"):
            parameters = ancestor.child_by_field_name("parameters")
            names |= set(_TESTING.findall(node_text(parameters)))
        ancestor = ancestor.parent
    return names


def call_of(statement: Node) -> Node | None:
    inner = statement.named_children
    is_call = (
        statement.type == "expression_statement"
        and len(inner) == 1
        and inner[0].type == "call_expression"
    )
    return inner[0] if is_call else None


def method_of(call: Node) -> str:
    function = call.child_by_field_name("function")
    return node_text(function.child_by_field_name("field")) if function is not None else ""


def operand_of(call: Node) -> str:
    function = call.child_by_field_name("function")
    return node_text(function.child_by_field_name("operand")) if function is not None else ""


def arguments_of(call: Node) -> list[Node]:
    arguments = call.child_by_field_name("arguments")
    return [c for c in arguments.named_children if c.type != "comment"] if arguments else []


# Make Go tests wrong on purpose: assertions inverted, expected values changed.
#
# A change is certain only if a passing test always reaches it: statements of the function itself,
# of the subtests it starts and of loops over a non-empty table, up to the first statement that
# may leave early. A passing test never enters a block that fails the test.


MAX_WAYS = 24
"""Maximum number of wrong copies of one test: each must be compiled and run."""
TESTIFY = re.compile(r"github\.com/stretchr/testify(?:/v\d+)?/(?:assert|require)")
_FAILING = frozenset({"Error", "Errorf", "Fatal", "Fatalf", "Fail", "FailNow"})
_PAIRS = (
    ("Equal", "NotEqual"),
    ("True", "False"),
    ("Nil", "NotNil"),
    ("NoError", "Error"),
    ("Contains", "NotContains"),
    ("Empty", "NotEmpty"),
    ("Zero", "NotZero"),
)
_OPPOSITE = {
    f"{name}{form}": f"{opposite}{form}"
    for pair in _PAIRS
    for name, opposite in (pair, pair[::-1])
    for form in ("", "f")
}
_COMPARING = frozenset({"Equal", "Equalf", "Len", "Lenf", "Exactly", "EqualValues"})
_LITERALS = frozenset(
    {
        "int_literal",
        "float_literal",
        "rune_literal",
        "interpreted_string_literal",
        "raw_string_literal",
        "true",
        "false",
    }
)
_EXPECTED_NAME = re.compile(r"want|expect|exp\b|out|result|res\b", re.IGNORECASE)
_LABEL_NAME = re.compile(r"name|desc|title|label|msg|comment", re.IGNORECASE)
_FIXED_PLACES = frozenset({"index_expression", "slice_expression", "array_type", "expression_case"})
"""Node types in which another value may not compile."""
_CLOSURE = frozenset({"func_literal"})
_LOOPS = frozenset(
    {"for_statement", "expression_switch_statement", "type_switch_statement", "select_statement"}
)
_FAILING_CALL = re.compile(r"\.(?:Error|Fatal|Fail)\w*\(|\bpanic\(|\breturn\b.*\w")
_EXPECTING = re.compile(r"\b(?:Expect|Eventually|Consistently|Ω)\b|^is\.\w+$|^(?:c|qt)\.\w+$")
_OUTPUT = re.compile(r"//\s*(?:unordered )?output:", re.IGNORECASE)


def list_test_bodies(function: Node) -> list[tuple[str, Node]]:
    """Return bodies of a function and its closures that take a named `*testing.T`, with its
    name."""
    bodies = []
    for node in walk_nodes(function):
        if node.type in ("function_declaration", "func_literal"):
            name, body = find_test_parameter(node), node.child_by_field_name("body")
            if name and body is not None and node.child_by_field_name("result") is None:
                bodies.append((name, body))
    return bodies


def guard_panics(function: Node, *, fail: bool = False) -> tuple[SourceEdit, ...]:
    """Make a panic fail its test instead of ending the process with all other tests.

    With `fail`, the guard fails the test in any case.
    """
    edits = []
    for name, body in list_test_bodies(function):
        shortest = 0 if fail and body.parent == function else 1 << 16
        claim = f"r != nil || len({name}.Name()) > {shortest}"
        guard = f" defer func() {{ if r := recover(); {claim} {{ {name}.Error(r) }} }}();"
        edits.append(insert_text(body.start_byte + 1, guard))
    return tuple(edits)


def perturb_go_test(
    function: Node, imports: Mapping[str, str], rng: random.Random
) -> list[Perturbation]:
    """Return ways to make the test fail; none for a test that takes no `*testing.T`.

    `imports` are paths by their name in the file.
    """
    if node_text(function.child_by_field_name("name")).startswith("Example"):
        return list(_change_output(function, rng))
    body = function.child_by_field_name("body")
    if body is None or not find_test_parameter(function):
        return []
    statements = list(_reached_statements(body, body))
    inverted = list_inversions(function, imports)
    certain = [change for change in _changed_values(statements, imports, rng) if change.certain]
    certain_starts = {change.edits[0].start for change in certain}
    likely_by_start = {
        change.edits[0].start: change
        for change in list_likely_changes(body, imports, rng)
        if change.edits[0].start not in certain_starts
    }
    changes = _pick(certain, MAX_WAYS // 2, rng)
    changes += _pick(inverted, MAX_WAYS // 4, rng)
    changes += _pick([*likely_by_start.values()], MAX_WAYS - len(changes), rng)
    guard = guard_panics(function)
    perturbations = [
        Perturbation(edits=(*change.edits, *guard), how=change.how, certain=change.certain)
        for change in changes
    ]
    forced = guard_panics(function, fail=True)
    return [
        *perturbations,
        Perturbation(edits=forced, how="failure added at the end", certain=True),
    ]


def list_hidden_changes(
    function: Node, imports: Mapping[str, str], rng: random.Random
) -> list[Perturbation]:
    """Return changed values of a test that do not reveal which of two versions is wrong."""
    if node_text(function.child_by_field_name("name")).startswith("Example"):
        return list(_change_output(function, rng))
    body = function.child_by_field_name("body")
    if body is None or not find_test_parameter(function):
        return []
    statements = list(_reached_statements(body, body))
    certain = [change for change in _changed_values(statements, imports, rng) if change.certain]
    certain_starts = {change.edits[0].start for change in certain}
    likely_changes = [
        change
        for change in list_likely_changes(body, imports, rng)
        if change.edits[0].start not in certain_starts
    ]
    return [*certain, *likely_changes]


def list_inversions(function: Node, imports: Mapping[str, str]) -> list[Perturbation]:
    """Return inversions of a test's conditions."""
    body = function.child_by_field_name("body")
    statements = list(_reached_statements(body, body)) if body is not None else []
    return [*_inverted_conditions(statements), *_inverted_testify(statements, imports)]


def list_likely_changes(
    node: Node, imports: Mapping[str, str], rng: random.Random
) -> Iterator[Perturbation]:
    """Yield changed values for every assertion in a function or table, reached or not."""
    changes = (*_changed_everywhere(node, imports, rng), *_changed_tables(node, rng))
    # Two rules may change a value in the same way, and copies are named after the change.
    for edits, change in {change.edits: change for change in changes}.items():
        yield Perturbation(edits=edits, how=change.how, certain=False)


def _changed_everywhere(
    node: Node, imports: Mapping[str, str], rng: random.Random
) -> Iterator[Perturbation]:
    yield from _changed_values(list(walk_nodes(node)), imports, rng)
    for inner in walk_nodes(node):
        if inner.type == "if_statement" and _FAILING_CALL.search(node_text(inner)):
            condition = inner.child_by_field_name("condition")
            if condition is not None:
                yield from _changes(condition, set(), rng)
        elif inner.type == "binary_expression" and _has_case_above(inner):
            yield from _changes(inner, set(), rng)
        elif inner.type == "call_expression" and _is_check(inner):
            for argument in arguments_of(inner):
                yield from _changes(argument, set(), rng)


def _has_case_above(node: Node) -> bool:
    """Return whether a node is the condition of a case: `case got != 5:`."""
    parent = node.parent
    case = parent.parent if parent is not None and parent.type == "expression_list" else parent
    return case is not None and case.type == "expression_case"


def _is_check(call: Node) -> bool:
    """Return whether a call can fail its test: it takes the test, or is part of
    `Expect(…).To(…)`."""
    arguments = arguments_of(call)
    if any(node_text(argument) in test_parameters_around(call) for argument in arguments):
        return True
    function = call.child_by_field_name("function")
    return bool(_EXPECTING.search(node_text(function))) if function is not None else False


def _pick(changes: list[Perturbation], max_count: int, rng: random.Random) -> list[Perturbation]:
    return rng.sample(changes, min(max_count, len(changes)))


def _reached_statements(block: Node, function_body: Node) -> Iterator[Node]:
    for statement in list_statements(block):
        yield statement
        inner = _inner_block(statement, function_body)
        if inner is not None:
            yield from _reached_statements(inner, function_body)
        if _may_leave(statement):
            return


def _inner_block(statement: Node, function_body: Node) -> Node | None:
    """Return the block that a statement always runs: of a subtest, a loop over a table, or its
    own."""
    if statement.type == "block":
        return statement
    if statement.type == "for_statement":
        ranged = next((n for n in statement.named_children if n.type == "range_clause"), None)
        over = ranged.child_by_field_name("right") if ranged is not None else None
        is_filled = over is not None and _has_elements(over, function_body)
        return statement.child_by_field_name("body") if is_filled else None
    call = call_of(statement)
    if call is None or method_of(call) != "Run":
        return None
    arguments = arguments_of(call)
    is_subtest = len(arguments) == 2 and arguments[1].type == "func_literal"
    return arguments[1].child_by_field_name("body") if is_subtest else None


def _has_elements(table: Node, function_body: Node) -> bool:
    """Return whether a table is a literal in this function with at least one element."""
    if table.type == "composite_literal":
        value = table.child_by_field_name("body")
        return value is not None and any(c.type != "comment" for c in value.named_children)
    if table.type != "identifier":
        return False
    declared, assigned = [], []
    for node in walk_nodes(function_body):
        if node.type == "short_var_declaration" and single_name(node) == node_text(table):
            declared.append(node)
        elif node.type == "assignment_statement" and single_name(node) == node_text(table):
            assigned.append(node)
    right = declared[0].child_by_field_name("right") if declared else None
    if len(declared) != 1 or assigned or right is None:
        return False
    return right.named_children[0].type == "composite_literal" and _has_elements(
        right.named_children[0], function_body
    )


def _may_leave(node: Node, in_loop: bool = False) -> bool:
    """Return whether a statement may leave its function or loop early in a passing test."""
    if node.type in ("return_statement", "goto_statement"):
        return True
    if node.type in ("break_statement", "continue_statement"):
        return not in_loop or bool(node.named_children)
    if node.type == "func_literal":
        return False
    failing = node.child_by_field_name("consequence") if _is_failing(node) else None
    return any(
        _may_leave(child, in_loop or node.type in _LOOPS)
        for child in node.children
        if failing is None or child.id != failing.id
    )


def _is_failing(node: Node) -> bool:
    """Return whether a node is an `if` whose block always fails the test."""
    block = node.child_by_field_name("consequence") if node.type == "if_statement" else None
    for statement in list_statements(block) if block is not None else []:
        call = call_of(statement)
        if call is not None and method_of(call) in _FAILING:
            return operand_of(call) in test_parameters_around(call)
        if _may_leave(statement):
            return False
    return False


def _inverted_conditions(statements: list[Node]) -> Iterator[Perturbation]:
    for statement in filter(_is_failing, statements):
        condition = statement.child_by_field_name("condition")
        if condition is not None:
            edit = replace_node(condition, f"!({node_text(condition)})")
            how = f"condition inverted in line {condition.start_point[0] + 1}"
            yield Perturbation(edits=(edit,), how=how, certain=True)


def _testify_calls(statements: list[Node], imports: Mapping[str, str]) -> Iterator[Node]:
    for statement in statements:
        call = call_of(statement)
        if call is None:
            continue
        operand = operand_of(call)
        if TESTIFY.fullmatch(imports.get(operand, "")) or _is_testify_object(call, operand):
            yield call


def _is_testify_object(call: Node, name: str) -> bool:
    """Return whether `name := assert.New(t)` is in an enclosing function of a call."""
    ancestor: Node | None = call
    while ancestor is not None and ancestor.type != "source_file":
        if ancestor.type in ("func_literal", "function_declaration"):
            creation = re.search(
                rf"\b{re.escape(name)} := (?:assert|require)\.New\(", node_text(ancestor)
            )
            if name and creation:
                return True
        ancestor = ancestor.parent
    return False


def _inverted_testify(statements: list[Node], imports: Mapping[str, str]) -> Iterator[Perturbation]:
    for call in _testify_calls(statements, imports):
        method, opposite = method_of(call), _OPPOSITE.get(method_of(call))
        function = call.child_by_field_name("function")
        field = function.child_by_field_name("field") if function is not None else None
        if opposite is not None and field is not None:
            how = f"{opposite} for {method}"
            yield Perturbation(edits=(replace_node(field, opposite),), how=how, certain=True)


def _changed_values(
    statements: list[Node], imports: Mapping[str, str], rng: random.Random
) -> Iterator[Perturbation]:
    """Yield changes of literals that are compared with results of the code under test."""
    for statement in statements:
        condition = statement.child_by_field_name("condition") if _is_failing(statement) else None
        if condition is not None:
            compared = {node.id for node in _compared_literals(condition)}
            yield from _changes(condition, compared, rng)
        elif statement.type == "short_var_declaration":
            right = statement.child_by_field_name("right")
            if _EXPECTED_NAME.search(single_name(statement)) and right is not None:
                yield from _changes(right, set(), rng)
    for call in _testify_calls(statements, imports):
        arguments = [] if method_of(call).startswith("Not") else arguments_of(call)
        if arguments and node_text(arguments[0]) == nearest_test_parameter(call):
            del arguments[0]
        for argument in arguments[:2]:
            compared = {argument.id} if method_of(call) in _COMPARING else set()
            yield from _changes(argument, compared, rng)


def _compared_literals(condition: Node) -> Iterator[Node]:
    """Yield `L` of `got != L` if one such difference is enough to enter the block."""
    left, right = (condition.child_by_field_name(side) for side in ("left", "right"))
    operator = node_text(condition.child_by_field_name("operator"))
    if condition.type != "binary_expression" or left is None or right is None:
        return
    if operator == "||":
        yield from _compared_literals(left)
        yield from _compared_literals(right)
    elif operator == "!=":
        yield from (side for side in (left, right) if side.type in _LITERALS)


def _changes(node: Node, certain: set[int], rng: random.Random) -> Iterator[Perturbation]:
    for literal in walk_nodes(node, skip=_CLOSURE | _LITERALS):
        if literal.type in _LITERALS and not _is_label(literal):
            changed = change_literal(node_text(literal), rng)
            if changed is not None:
                how = f"{changed} for {node_text(literal)} in line {literal.start_point[0] + 1}"
                edit = replace_node(literal, changed)
                yield Perturbation(edits=(edit,), how=how, certain=literal.id in certain)


def _is_label(literal: Node) -> bool:
    """Return whether a literal is a map key, an index, or a field that only names its case."""
    element = literal.parent
    if element is None or element.type in _FIXED_PLACES:
        return True
    operator = node_text(element.child_by_field_name("operator"))
    if element.type == "binary_expression" and operator in ("/", "%", "<<", ">>"):
        return True
    keyed = element.parent if element.type == "literal_element" else None
    if keyed is None or keyed.type != "keyed_element":
        return False
    key = keyed.child_by_field_name("key")
    return key is None or key == element or bool(_LABEL_NAME.search(node_text(key)))


def _changed_tables(body: Node, rng: random.Random) -> list[Perturbation]:
    """Return changes of table values: of fields named after an expectation, else of last fields."""
    tables = [node for node in walk_nodes(body) if node.type == "literal_value"]
    elements = [
        element
        for table in tables
        for element in table.named_children
        if element.type in ("literal_element", "keyed_element")
        and not any(node.type == "literal_value" for node in walk_nodes(element))
    ]
    expected = [
        e for e in elements if _EXPECTED_NAME.search(node_text(e.child_by_field_name("key")))
    ]
    last = [e for e in elements if e.next_named_sibling is None]
    return [change for e in expected or last for change in _changes(e, set(), rng)]


def _change_output(function: Node, rng: random.Random) -> Iterator[Perturbation]:
    """Change the comment at the end of an example, with which its output is compared."""
    comments = [n for n in walk_nodes(function) if n.type == "comment"]
    for comment in comments:
        match = _OUTPUT.match(node_text(comment))
        if match:
            letters = "".join(rng.choices("abcdefghijklmnop", k=6))
            position = comment.start_byte + len(match[0].encode())
            edit = insert_text(position, f" {letters}\n\t//")
            yield Perturbation(edits=(edit,), how=f"{letters} in the output", certain=True)


CONTROL_PAIRS = 3
"""Number of controls that must pass, and of those that must fail, in each file."""
MAX_HELPER_WAYS = 4
"""Maximum number of wrong copies of one helper or table of a test."""
MAX_NAMED_CHANGES = 3
_MODULE = re.compile(r'^\s*module\s+"?([^\s"]+)', re.MULTILINE)
_KIND = re.compile(r"Test|Example|Fuzz")
_RESULT = re.compile(r"--- (PASS|FAIL|SKIP): (\S+) \([\d.]+s\)")
_PACKAGE = re.compile(r"^package\s+\w+", re.MULTILINE)
_READS_SOURCES = re.compile(
    r'\.go["`]|runtime\.Caller|"go/(?:parser|build|packages|ast)"|ReadDir\(|Glob\(|Walk(?:Dir)?\(|DirFS'
)
"""Ways to read test files, which are empty while a probe runs."""
_BEGUN = re.compile(r"=== RUN +(\S+)")
_STATUS: dict[str, Status] = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
_DROPPED = re.compile(
    r"C|args|bench\w*|blockprofile\w*|c|count|cover\w*|cpuprofile|failfast|fuzz\w*|json|list"
    r"|memprofile\w*|mutexprofile\w*|n|o|outputdir|run|shuffle|skip|trace|v|vet|x"
)
"""Options that select tests or reports and are dropped; all others stay as in the command."""
_WITH_VALUE = re.compile(
    r"C|asmflags|bench|benchtime|blockprofile\w*|buildmode|compiler|count|cover(?:mode|pkg|profile)"
    r"|cpu|cpuprofile|exec|fuzz\w*|gccgoflags|gcflags|installsuffix|ldflags|list|memprofile\w*|mod"
    r"|modfile|mutexprofile\w*|o|outputdir|overlay|p|parallel|pgo|pkgdir|run|shuffle|skip|tags"
    r"|timeout|toolexec|trace|vet"
)


class GoTestFile(Record):
    """A test file and the package and module it belongs to."""

    path: str
    module_folder: str
    package: str
    """Import path, without the `_test` of an external test package."""

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


class _ProbeFunction(Record):
    """A function of the probe and its expected results."""

    text: str
    tests: tuple[ProbeTest, ...]


class _GoProbeFile(Record):
    """The probe made of one test file."""

    source: GoTestFile
    text: str
    is_in_place: bool
    """Whether it replaces the file instead of being written beside it."""
    tests: tuple[ProbeTest, ...]


def build_probe(request: ProbeRequest) -> Probe | None:
    """Build copies, wrong copies and controls for every file with wanted tests.

    Rooms after the first hold one version of each test, and controls.
    """
    test_files = _list_test_files(request.sources)
    tests_by_path: dict[str, dict[str, list[str]]] = {}
    for test in (*request.fail_to_pass, *request.others):
        for path, function in _possible_places(test, test_files):
            tests_by_path.setdefault(path, {}).setdefault(function, []).append(test)
    probe_files = []
    build_file = _build_single_file if request.room else _build_file
    for path, functions in sorted(tests_by_path.items()):
        probe_file = build_file(request, test_files[path], functions)
        if probe_file is not None:
            probe_files.append(probe_file)
    if not probe_files:
        return None
    return Probe(
        files={
            **_build_script(request, probe_files),
            **{_path(request, file): file.text for file in probe_files},
        },
        command=_build_command(request, probe_files),
        tests=tuple(test for probe_file in probe_files for test in probe_file.tests),
        exit_codes=(1,),
        rooms=1 + ROOMS,
    )


def read_results(report: bytes) -> Results:
    """Read the text of `go test -v`; a test that began and did not end is an error.

    Of several results of one test the worst counts: an honest run prints each once.
    """
    results: Results = {}
    for line in split_terminal_lines(report):
        for start in _BEGUN.finditer(line):
            results.setdefault(start[1], "error")
    final_results: Results = {}
    for line in split_terminal_lines(report):
        for result in _RESULT.finditer(line):
            status = _STATUS[result[1]]
            if final_results.get(result[2]) != "failed":
                final_results[result[2]] = status
    return {**results, **final_results}


def _list_test_files(sources: Mapping[str, str]) -> dict[str, GoTestFile]:
    modules = {}
    for path, text in sources.items():
        folder, _, name = path.rpartition("/")
        module = _MODULE.search(text) if name == "go.mod" else None
        if module:
            modules[folder] = module[1]
    test_files = {}
    for path in sources:
        folder = path.rpartition("/")[0]
        module_folders = [
            parent for parent in modules if not parent or f"{folder}/".startswith(f"{parent}/")
        ]
        if path.endswith("_test.go") and module_folders:
            module_folder = max(module_folders, key=len)
            subfolder = folder[len(module_folder) :].strip("/")
            package = "/".join(filter(None, (modules[module_folder], subfolder)))
            test_files[path] = GoTestFile(path=path, module_folder=module_folder, package=package)
    return test_files


def _possible_places(test: str, test_files: Mapping[str, GoTestFile]) -> list[tuple[str, str]]:
    """Return the files of the test's package, each with the name of the function to look for."""
    packages = {file.package for file in test_files.values()}
    fitting = [package for package in packages if test.startswith(f"{package}/")]
    if not fitting:
        return []
    package = max(fitting, key=len)
    function = test[len(package) + 1 :].partition("/")[0]
    return [(path, function) for path, file in test_files.items() if file.package == package]


def _build_file(
    request: ProbeRequest, source: GoTestFile, ids_by_function: Mapping[str, list[str]]
) -> _GoProbeFile | None:
    text = request.sources[source.path]
    root = parse_source("tree_sitter_go", text.encode())
    originals = [node for node in _list_functions(root) if _name_of(node) in ids_by_function]
    imports = read_imports(root) if root is not None else GoImports()
    file_imports = needed_imports(originals, imports)
    testing = imports.named.get("testing", "" if file_imports is None else "testing")
    if root is None or not originals or testing != "testing":
        return None
    functions = _write_controls(request, source)
    used_nodes = list(originals)
    for node in originals:
        functions += _write_copies(request, source, node, ids_by_function[_name_of(node)], imports)
        if set(ids_by_function[_name_of(node)]) & set(request.fail_to_pass[:MAX_PERTURBED]):
            ids = [test for test in ids_by_function[_name_of(node)] if test in request.fail_to_pass]
            functions += _write_helper_copies(request, source, node, ids, imports, used_nodes)
    file_imports = needed_imports(used_nodes, imports)
    make_generator(request.token, "order", source.path).shuffle(functions)
    head = (
        text if file_imports is None else _write_head(root, {**file_imports, "testing": "testing"})
    )
    return _GoProbeFile(
        source=source,
        text="\n\n".join([head, *(function.text for function in functions), ""]),
        is_in_place=file_imports is None,
        tests=tuple(test for function in functions for test in function.tests),
    )


def _build_single_file(
    request: ProbeRequest, source: GoTestFile, ids_by_function: Mapping[str, list[str]]
) -> _GoProbeFile | None:
    """Return the file with each wanted test renamed, right or made wrong."""
    text = request.sources[source.path]
    root = parse_source("tree_sitter_go", text.encode())
    originals = [node for node in _list_functions(root) if _name_of(node) in ids_by_function]
    if root is None or not originals:
        return None
    imports, edits, tests = read_imports(root), list[SourceEdit](), list[ProbeTest]()
    for node in originals:
        changes = _choose_hidden_changes(request, source, node, imports)
        title, kind = node.child_by_field_name("name"), _KIND.match(_name_of(node))
        assert title is not None
        assert kind is not None
        names = [_single_name(request, room, kind[0], source, node) for room in (1, ROOMS)]
        name, opposite = names if request.room == 1 else reversed(names)
        edits += [replace_node(title, name), *guard_panics(node)]
        own_id, ids = f"{source.package}/{_name_of(node)}", ids_by_function[_name_of(node)]
        if not changes or not is_made_wrong(request, own_id):
            tests += _expect_copies(request, source, own_id, name, ids)
            continue
        edits += [edit for change in changes for edit in change.edits]
        certain = own_id in ids and all(change.certain for change in changes)
        perturbed = ProbeTest(
            name=name,
            kind="perturbed",
            expect="fail",
            how="; ".join(change.how for change in changes[:MAX_NAMED_CHANGES]),
            certain=certain,
            opposite=opposite if certain else "",
        )
        tests += _repeat_for(ids, perturbed)
    has_testing = imports.named.get("testing") == "testing"
    controls = _write_controls(request, source) if has_testing else []
    content = apply_edits(text.encode(), edits).decode("utf-8", "replace")
    return _GoProbeFile(
        source=source,
        text="\n\n".join([content, *(control.text for control in controls), ""]),
        is_in_place=True,
        tests=(*tests, *(test for control in controls for test in control.tests)),
    )


def _single_name(
    request: ProbeRequest, room: int, kind: str, source: GoTestFile, node: Node
) -> str:
    letters = make_name(request.token, str(room), source.path, _name_of(node))
    return f"{kind}{_prefix(replace(request, room=room))}{letters}"


def _choose_hidden_changes(
    request: ProbeRequest, source: GoTestFile, node: Node, imports: GoImports
) -> list[Perturbation]:
    """Choose how to make a test wrong: in itself, or in a helper or table that only it uses."""
    own_id = f"{source.package}/{_name_of(node)}"
    rng = make_generator(request.token, "hidden", own_id)
    changes = list_hidden_changes(node, imports.named, rng)
    if changes:
        certain = [change for change in changes if change.certain]
        likely_changes = [change for change in changes if not change.certain]
        # Certain changes need no reference; with one, the others count as well.
        candidates = (
            certain if certain and not (likely_changes and request.round % 2) else likely_changes
        )
        return choose_changes(candidates, rng, together=candidates is certain)
    functions = [node_text(function) for function in _list_functions(node.parent)]
    for name, declaration in _list_declarations(node):
        if sum(bool(re.search(rf"\b{name}\b", function)) for function in functions) == 1:
            changes += list_likely_changes(declaration, imports.named, rng)
    fallbacks = changes or list_inversions(node, imports.named)
    return choose_changes(fallbacks, rng, together=False)


def _list_functions(root: Node | None) -> list[Node]:
    children = root.named_children if root is not None else []
    functions = [node for node in children if node.type == "function_declaration"]
    return [node for node in functions if _KIND.match(_name_of(node))]


def _name_of(function: Node) -> str:
    return node_text(function.child_by_field_name("name"))


def _file_name(request: ProbeRequest, source: GoTestFile) -> str:
    return f"zz_{make_name(request.token, 'file', source.path)}_test.go"


def _path(request: ProbeRequest, probe_file: _GoProbeFile) -> str:
    source = probe_file.source
    new = f"{source.folder}/{_file_name(request, source)}".lstrip("/")
    return source.path if probe_file.is_in_place else new


def _write_copies(
    request: ProbeRequest, source: GoTestFile, node: Node, ids: list[str], imports: GoImports
) -> list[_ProbeFunction]:
    """Write a true copy of a test function, and wrong ones if it is a fail-to-pass test."""
    own_id = f"{source.package}/{_name_of(node)}"
    name, text = _rename_copy(request, source, node, guard_panics(node))
    copies = _expect_copies(request, source, own_id, name, ids)
    functions = [_ProbeFunction(text=text, tests=copies)]
    if not set(ids) & set(request.fail_to_pass[:MAX_PERTURBED]):
        return functions
    fail_to_pass = [test for test in ids if test in request.fail_to_pass]
    rng = make_generator(request.token, "perturb", own_id)
    for change in perturb_go_test(node, imports.named, rng):
        name, text = _rename_copy(request, source, node, change.edits)
        perturbed = ProbeTest(
            name=name,
            kind="perturbed",
            expect="fail",
            how=change.how,
            # A function of which only some subtests pass may fail anyway, or no longer fail.
            certain=change.certain and own_id in ids,
        )
        functions.append(_ProbeFunction(text=text, tests=_repeat_for(fail_to_pass, perturbed)))
    return functions


def _expect_copies(
    request: ProbeRequest, source: GoTestFile, own_id: str, name: str, ids: Iterable[str]
) -> tuple[ProbeTest, ...]:
    """Return the expected results of a true copy of a function, and of its subtests."""
    steady = not _READS_SOURCES.search(request.sources[source.path])
    return tuple(
        ProbeTest(
            name=f"{name}{test[len(own_id) :]}",
            kind="copy",
            expect="pass",
            original=test,
            certain=steady,
        )
        for test in ids
    )


def _repeat_for(originals: Iterable[str], test: ProbeTest) -> tuple[ProbeTest, ...]:
    """Repeat a wrong copy of a function for its subtests, which are parts of it."""
    return tuple(replace(test, original=original) for original in originals)


def _write_helper_copies(
    request: ProbeRequest,
    source: GoTestFile,
    test: Node,
    ids: Sequence[str],
    imports: GoImports,
    used_nodes: list[Node],
) -> list[_ProbeFunction]:
    """Write wrong copies of helpers and tables that a test uses, each with a copy of the test."""
    functions = []
    own_id = f"{source.package}/{_name_of(test)}"
    for name, declaration in _list_declarations(test):
        rng = make_generator(request.token, "helper", own_id, name)
        changes = list(list_likely_changes(declaration, imports.named, rng))
        for change in rng.sample(changes, min(MAX_HELPER_WAYS, len(changes))):
            new_name = f"zz{make_name(request.token, own_id, name, str(change.edits))}"
            renamed = _rename_uses(test, name, new_name)
            title, text = _rename_copy(request, source, test, (*renamed, *guard_panics(test)))
            edits = (*change.edits, *_rename_uses(declaration, name, new_name))
            content = declaration.text or b""
            helper = apply_edits(content, edits, declaration.start_byte).decode("utf-8", "replace")
            perturbed = ProbeTest(
                name=title, kind="perturbed", expect="fail", how=change.how, certain=False
            )
            functions.append(
                _ProbeFunction(text=f"{helper}\n\n{text}", tests=_repeat_for(ids, perturbed))
            )
            used_nodes.append(declaration)
    return functions


def _list_declarations(test: Node) -> Iterator[tuple[str, Node]]:
    """Yield the functions and tables of a test's file that the test names, each with its name."""
    root = test.parent
    names = {node_text(node) for node in walk_nodes(test) if node.type == "identifier"}
    for node in root.named_children if root is not None else []:
        name = _name_of(node) if node.type == "function_declaration" else ""
        if node.type == "var_declaration":
            specs = [inner for inner in walk_nodes(node) if inner.type == "var_spec"]
            name = _name_of(specs[0]) if len(specs) == 1 else ""
        if name in names and name != _name_of(test) and not _KIND.match(name):
            yield name, node


def _rename_uses(node: Node, name: str, new_name: str) -> tuple[SourceEdit, ...]:
    uses = (inner for inner in walk_nodes(node) if inner.type == "identifier")
    return tuple(replace_node(inner, new_name) for inner in uses if node_text(inner) == name)


def _rename_copy(
    request: ProbeRequest, source: GoTestFile, node: Node, edits: tuple[SourceEdit, ...]
) -> tuple[str, str]:
    """Return the random name and the text of a changed copy of a function."""
    title, kind = node.child_by_field_name("name"), _KIND.match(_name_of(node))
    assert title is not None
    assert kind is not None
    letters = make_name(request.token, source.path, _name_of(node), str(edits))
    name = f"{kind[0]}{_prefix(request)}{letters}"
    text = apply_edits(node.text or b"", (replace_node(title, name), *edits), node.start_byte)
    return name, text.decode("utf-8", "replace")


def _prefix(request: ProbeRequest) -> str:
    """Return the common prefix of a room's names, by which only these are run."""
    return make_name(request.token, "prefix", str(request.room)).capitalize()


def _write_controls(request: ProbeRequest, source: GoTestFile) -> list[_ProbeFunction]:
    """Write tests of correct sums and of wrong sums."""
    rng = make_generator(request.token, "controls", source.path, str(request.room))
    functions = []
    for number in range(2 * CONTROL_PAIRS):
        expect: Literal["pass", "fail"] = "pass" if number % 2 == 0 else "fail"
        letters = make_name(request.token, source.path, str(request.room), str(number))
        name = f"Test{_prefix(request)}{letters}"
        first, second = rng.randrange(999), rng.randrange(999)
        total = first + second + (0 if expect == "pass" else rng.randint(1, 99))
        claim = f'if got += {second}; got != {total} {{ t.Errorf("got %d", got) }}'
        text = f"func {name}(t *testing.T) {{\n\tgot := {first}\n\t{claim}\n}}"
        control = ProbeTest(name=name, kind="control", expect=expect)
        functions.append(_ProbeFunction(text=text, tests=(control,)))
    return functions


def _write_head(root: Node, imports: Mapping[str, str]) -> str:
    clause = next(node for node in root.named_children if node.type == "package_clause")
    lines = [f'\t{name} "{path}"' for name, path in sorted(imports.items())]
    return "\n".join([node_text(clause), "", "import (", *lines, ")"])


def _script_path(request: ProbeRequest) -> str:
    return f"{request.folder}/run.sh"


def _build_script(request: ProbeRequest, probe_files: Iterable[_GoProbeFile]) -> dict[str, str]:
    """Write a script that empties the test sources before it runs the test program."""
    lines = []
    for probe_file in probe_files:
        source = probe_file.source
        in_folder = f"[ . -ef {shlex.quote(f'{request.root}/{source.folder}')} ] &&"
        name = shlex.quote(source.path.rpartition("/")[2])
        clause = _PACKAGE.search(request.sources[source.path])
        lines.append(f"{in_folder} echo {shlex.quote(clause[0] if clause else '')} >{name}")
        if not probe_file.is_in_place:
            lines.append(f"{in_folder} rm -f -- {_file_name(request, source)}")
    script = "\n".join([*lines, 'exec "$@"', ""])
    return {_script_path(request).removeprefix(f"{request.root}/"): script}


def _build_command(request: ProbeRequest, probe_files: Iterable[_GoProbeFile]) -> str:
    """Build a command that calls `go test` once per module, and exits with 1 if each call does."""
    call = find_tool_call(request.command, "go")
    packages: dict[str, set[str]] = {}
    for probe_file in probe_files:
        source = probe_file.source
        subfolder = source.folder[len(source.module_folder) :].strip("/")
        packages.setdefault(source.module_folder, set()).add(f"./{subfolder}")
    lines = ["code=1"]
    for module_folder, folders in sorted(packages.items()):
        cd = f"cd {shlex.quote(f'{request.root}/{module_folder}'.rstrip('/'))}"
        steps = " && ".join([*call.setup, cd, _test_call(request, call, sorted(folders))])
        lines.append(f"( {steps} )\n[ $? = 1 ] || code=2")
    body = "\n".join([*lines, "exit $code"])
    return f"{{\n{body}\n}} >{shlex.quote(request.pipe)}"


def _test_call(request: ProbeRequest, call: ToolCall, folders: list[str]) -> str:
    kept_arguments, binary_arguments = _kept_arguments(call.arguments)
    own_options = ["-count=1", "-v", "-vet=off", f"-run='^(Test|Example|Fuzz){_prefix(request)}'"]
    if not any(split_option(argument)[0] == "exec" for argument in kept_arguments):
        launcher = f"sh '{_script_path(request)}'"
        own_options.append(f"-exec={shlex.quote(launcher)}")
    return " ".join(
        [call.start, *kept_arguments, *own_options, *map(shlex.quote, folders), *binary_arguments]
    )


def _kept_arguments(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the options to keep, and what follows `-args`; packages are given separately."""
    kept_arguments, remaining = list[str](), list(arguments)
    while remaining:
        argument = remaining.pop(0)
        name, has_value = split_option(argument)
        name = name.removeprefix("test.")
        if not argument.startswith("-"):
            continue
        if name == "args":
            return kept_arguments, [argument, *remaining]
        values = (
            [remaining.pop(0)]
            if remaining and _WITH_VALUE.fullmatch(name) and not has_value
            else []
        )
        if not _DROPPED.fullmatch(name):
            kept_arguments += [argument, *values]
    return kept_arguments, []
