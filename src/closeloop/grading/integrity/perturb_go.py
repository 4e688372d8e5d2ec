"""Make Go tests wrong on purpose: assertions inverted, expected values changed.

Certain is only what a passing test surely reaches: statements of the function itself, of the
subtests it starts and of loops over a table that is not empty, up to the first statement that
may leave early. A block that fails the test is never entered by a test that passes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from closeloop.grading.integrity.go_syntax import (
    arguments_of,
    call_of,
    find_test_parameter,
    list_statements,
    method_of,
    nearest_test_parameter,
    operand_of,
    single_name,
    test_parameters_around,
)
from closeloop.grading.integrity.literals import change_literal
from closeloop.grading.integrity.source_edits import (
    Perturbation,
    SourceEdit,
    insert_text,
    node_text,
    replace_node,
    walk_nodes,
)

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_WAYS = 24
"""Ways in which one test is made wrong: each is a copy to compile and to run."""
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
"""Where another value may not compile."""
_CLOSURE = frozenset({"func_literal"})
_LOOPS = frozenset(
    {
        "for_statement",
        "expression_switch_statement",
        "type_switch_statement",
        "select_statement",
    }
)
_FAILING_CALL = re.compile(r"\.(?:Error|Fatal|Fail)\w*\(|\bpanic\(|\breturn\b.*\w")
_EXPECTING = re.compile(r"\b(?:Expect|Eventually|Consistently|Ω)\b|^is\.\w+$|^(?:c|qt)\.\w+$")
_OUTPUT = re.compile(r"//\s*(?:unordered )?output:", re.IGNORECASE)


def list_test_bodies(function: Node) -> list[tuple[str, Node]]:
    """The bodies of the function and of its closures that take one named `*testing.T`: its name."""
    bodies = []
    for node in walk_nodes(function):
        if node.type in ("function_declaration", "func_literal"):
            name, body = find_test_parameter(node), node.child_by_field_name("body")
            if name and body is not None and node.child_by_field_name("result") is None:
                bodies.append((name, body))
    return bodies


def guard_panics(function: Node, *, fail: bool = False) -> tuple[SourceEdit, ...]:
    """Let a panic fail its test instead of ending the process, and with it all other tests.

    A test that is to fail whatever happens gets a guard that fails it in any case.
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

    Imports are paths by the name that the file knows them by.
    """
    if node_text(function.child_by_field_name("name")).startswith("Example"):
        return list(_change_output(function, rng))
    body = function.child_by_field_name("body")
    if body is None or not find_test_parameter(function):
        return []
    reached = list(_reached_statements(body, body))
    inverted = [*_inverted_conditions(reached), *_inverted_testify(reached, imports)]
    certain = [change for change in _changed_values(reached, imports, rng) if change.certain]
    places = {change.edits[0].start for change in certain}
    likely = {
        change.edits[0].start: change
        for change in list_likely_changes(body, imports, rng)
        if change.edits[0].start not in places
    }
    chosen = _pick(certain, MAX_WAYS // 2, rng)
    chosen += _pick(inverted, MAX_WAYS // 4, rng)
    chosen += _pick([*likely.values()], MAX_WAYS - len(chosen), rng)
    guard = guard_panics(function)
    ways = [
        Perturbation(edits=(*change.edits, *guard), how=change.how, certain=change.certain)
        for change in chosen
    ]
    forced = guard_panics(function, fail=True)
    return [*ways, Perturbation(edits=forced, how="failure added at the end", certain=True)]


def list_likely_changes(
    node: Node, imports: Mapping[str, str], rng: random.Random
) -> Iterator[Perturbation]:
    """Changed values of every assertion in a function or a table, whether it is reached or not."""
    for change in (*_changed_everywhere(node, imports, rng), *_changed_tables(node, rng)):
        yield Perturbation(edits=change.edits, how=change.how, certain=False)


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
    """Whether it is the condition of a case: `case got != 5:`."""
    above = node.parent
    listed = above.parent if above is not None and above.type == "expression_list" else above
    return listed is not None and listed.type == "expression_case"


def _is_check(call: Node) -> bool:
    """Whether a call can fail its test: it gets the test, or is part of `Expect(…).To(…)`."""
    arguments = arguments_of(call)
    if any(node_text(argument) in test_parameters_around(call) for argument in arguments):
        return True
    function = call.child_by_field_name("function")
    return bool(_EXPECTING.search(node_text(function))) if function is not None else False


def _pick(ways: list[Perturbation], most: int, rng: random.Random) -> list[Perturbation]:
    return rng.sample(ways, min(most, len(ways)))


def _reached_statements(block: Node, function_body: Node) -> Iterator[Node]:
    for statement in list_statements(block):
        yield statement
        inner = _inner_block(statement, function_body)
        if inner is not None:
            yield from _reached_statements(inner, function_body)
        if _may_leave(statement):
            return


def _inner_block(statement: Node, function_body: Node) -> Node | None:
    """The block that a statement surely runs: of a subtest, a loop over a table, or its own."""
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
    """Whether a table is written here with at least one element."""
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
    """Whether a statement may end its function or loop early in a test that passes."""
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
    """Whether it is an `if` whose block surely fails the test."""
    block = node.child_by_field_name("consequence") if node.type == "if_statement" else None
    for statement in list_statements(block) if block is not None else []:
        call = call_of(statement)
        if call is not None and method_of(call) in _FAILING:
            return operand_of(call) in test_parameters_around(call)
        if _may_leave(statement):
            return False
    return False


def _inverted_conditions(reached: list[Node]) -> Iterator[Perturbation]:
    for statement in filter(_is_failing, reached):
        condition = statement.child_by_field_name("condition")
        if condition is not None:
            edit = replace_node(condition, f"!({node_text(condition)})")
            how = f"condition inverted in line {condition.start_point[0] + 1}"
            yield Perturbation(edits=(edit,), how=how, certain=True)


def _testify_calls(reached: list[Node], imports: Mapping[str, str]) -> Iterator[Node]:
    for statement in reached:
        call = call_of(statement)
        if call is None:
            continue
        operand = operand_of(call)
        if TESTIFY.fullmatch(imports.get(operand, "")) or _is_testify_object(call, operand):
            yield call


def _is_testify_object(call: Node, name: str) -> bool:
    """Whether `name := assert.New(t)` stands in a function around a call."""
    around: Node | None = call
    while around is not None and around.type != "source_file":
        if around.type in ("func_literal", "function_declaration"):
            made = re.search(
                rf"\b{re.escape(name)} := (?:assert|require)\.New\(", node_text(around)
            )
            if name and made:
                return True
        around = around.parent
    return False


def _inverted_testify(reached: list[Node], imports: Mapping[str, str]) -> Iterator[Perturbation]:
    for call in _testify_calls(reached, imports):
        method, opposite = method_of(call), _OPPOSITE.get(method_of(call))
        function = call.child_by_field_name("function")
        field = function.child_by_field_name("field") if function is not None else None
        if opposite is not None and field is not None:
            how = f"{opposite} for {method}"
            yield Perturbation(edits=(replace_node(field, opposite),), how=how, certain=True)


def _changed_values(
    reached: list[Node], imports: Mapping[str, str], rng: random.Random
) -> Iterator[Perturbation]:
    """Literals that are compared with what the code under test returned."""
    for statement in reached:
        condition = statement.child_by_field_name("condition") if _is_failing(statement) else None
        if condition is not None:
            compared = {node.id for node in _compared_literals(condition)}
            yield from _changes(condition, compared, rng)
        elif statement.type == "short_var_declaration":
            right = statement.child_by_field_name("right")
            if _EXPECTED_NAME.search(single_name(statement)) and right is not None:
                yield from _changes(right, set(), rng)
    for call in _testify_calls(reached, imports):
        arguments = [] if method_of(call).startswith("Not") else arguments_of(call)
        if arguments and node_text(arguments[0]) == nearest_test_parameter(call):
            del arguments[0]
        for argument in arguments[:2]:
            compared = {argument.id} if method_of(call) in _COMPARING else set()
            yield from _changes(argument, compared, rng)


def _compared_literals(condition: Node) -> Iterator[Node]:
    """`L` of `got != L`, where one such difference is enough to enter the block."""
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
    """Whether it is a map's key, an index, or a field that only names its case."""
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
    """Values of tables: those of fields named after an expectation where there are any."""
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
    """An example is compared with the comment at its end."""
    comments = [n for n in walk_nodes(function) if n.type == "comment"]
    for comment in comments:
        match = _OUTPUT.match(node_text(comment))
        if match:
            letters = "".join(rng.choices("abcdefghijklmnop", k=6))
            place = comment.start_byte + len(match[0].encode())
            edit = insert_text(place, f" {letters}\n\t//")
            yield Perturbation(edits=(edit,), how=f"{letters} in the output", certain=True)
