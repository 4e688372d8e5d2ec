"""Make Rust tests wrong on purpose: assertions inverted, expected values changed.

Certain is what a passing test surely reaches, and what `#[should_panic]` says the opposite of.
A changed value is only likely to matter, as `==` means what a type makes of it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

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
_OPPOSITE = {"assert_eq": "assert_ne", "assert_ne": "assert_eq"}
_PLAIN_MACROS = re.compile(
    r"(?:debug_)?assert\w*|e?print(?:ln)?|dbg|vec|format|write(?:ln)?|matches|panic|todo"
    r"|unimplemented|unreachable|concat|stringify|include\w*|env|line|file|json"
)
"""Macros that leave a function by a panic or not at all."""
_COMPILED_MACROS = re.compile(r"include\w*|env|option_env|concat")
_LITERAL = re.compile(r"(?:integer|float|string|raw_string|char|boolean)_literal")
_EXPECTED_NAME = re.compile(r"want|expect|cases|tests|table", re.IGNORECASE)
_BEFORE = frozenset({"", ",", "&", ":", "==", "!=", "<=", ">=", "(", "[", "{", "="})
_AFTER = frozenset({"", ",", ".", "==", "!=", "&&", "||", ")", "]", "}", ";"})
_CLAIMING_FIELDS = {
    "let_declaration": "value",
    "const_item": "value",
    "static_item": "value",
    "for_expression": "value",
    "if_expression": "condition",
    "call_expression": "arguments",
}
_FAILING = re.compile(r"\bpanic!|\bassert|\bErr\(|\bunreachable!|\bexit\(")
_OWN_FLOW = frozenset({"closure_expression", "async_block", "function_item"})
_LOOPS = frozenset({"for_expression", "while_expression", "loop_expression"})
_ENDING = (
    " let _ending = { struct Ending; impl Drop for Ending { fn drop(&mut self) {"
    " if !::std::thread::panicking() { panic!() } } } Ending };"
)


def perturb_rust_test(
    function: Node, attributes: list[Node], rng: random.Random
) -> list[Perturbation]:
    """Return ways to make the test fail wherever it passes."""
    body = function.child_by_field_name("body")
    panicking = [node for node in attributes if read_attribute_name(node) == "should_panic"]
    if body is None:
        return []
    if panicking:
        return list(_spoil_panic(panicking[0], rng))
    reached = list(_reached_statements(body))
    inverted = [way for macro in _assertions(reached) for way in _invert(macro)]
    chosen = rng.sample(inverted, min(MAX_WAYS // 2, len(inverted)))
    likely = list(list_likely_changes(body, rng))
    chosen += rng.sample(likely, min(MAX_WAYS - len(chosen), len(likely)))
    if function.child_by_field_name("return_type") is None:
        edit, how = insert_text(function.start_byte, "#[should_panic]\n"), "should_panic added"
    else:
        edit, how = insert_text(body.start_byte + 1, _ENDING), "failure added at the end"
    return [*chosen, Perturbation(edits=(edit,), how=how, certain=True)]


def read_attribute_name(attribute: Node) -> str:
    """`tokio::test` of `#[tokio::test(flavor = "current_thread")]`."""
    inner = attribute.named_children[0] if attribute.named_children else None
    return node_text(inner.named_children[0]) if inner is not None and inner.named_children else ""


def _spoil_panic(attribute: Node, rng: random.Random) -> Iterator[Perturbation]:
    yield Perturbation(
        edits=(replace_node(attribute, ""),), how="should_panic removed", certain=True
    )
    for literal in walk_nodes(attribute):
        if literal.type == "string_literal":
            changed = change_literal(node_text(literal), rng)
            if changed is not None:
                how = f"{changed} for {node_text(literal)}"
                yield Perturbation(edits=(replace_node(literal, changed),), how=how, certain=True)


def _reached_statements(block: Node) -> Iterator[Node]:
    is_conditional = False
    for statement in block.named_children:
        if "comment" in statement.type:
            continue
        if statement.type == "attribute_item":
            is_conditional = True
            continue
        if not is_conditional:
            yield statement
            inner = _inner_block(statement)
            if inner is not None:
                yield from _reached_statements(inner)
        is_conditional = False
        if _may_leave(statement):
            return


def _inner_block(statement: Node) -> Node | None:
    """A block of its own, or the body of a loop over an array that is written out."""
    inner = statement.named_children[0] if statement.type == "expression_statement" else statement
    if inner.type == "block":
        return inner
    if inner.type != "for_expression":
        return None
    value = inner.child_by_field_name("value")
    if value is not None and value.type == "reference_expression":
        value = value.child_by_field_name("value")
    is_filled = (
        value is not None
        and value.type == "array_expression"
        and bool(value.named_children)
        and value.child_by_field_name("length") is None
    )
    return inner.child_by_field_name("body") if is_filled else None


def _may_leave(node: Node, in_loop: bool = False) -> bool:
    """Whether a statement may end its function or loop early in a test that passes."""
    if node.type == "return_expression":
        return True
    if node.type in ("break_expression", "continue_expression"):
        return not in_loop or any(child.type == "label" for child in node.children)
    if node.type == "macro_invocation":
        return not _PLAIN_MACROS.fullmatch(_macro_name(node))
    if node.type in _OWN_FLOW:
        return False
    return any(_may_leave(child, in_loop or node.type in _LOOPS) for child in node.children)


def _macro_name(macro: Node) -> str:
    return node_text(macro.child_by_field_name("macro")).rpartition("::")[2]


def _assertions(reached: list[Node]) -> Iterator[Node]:
    for statement in reached:
        inner = statement
        if statement.type == "expression_statement" and statement.named_children:
            inner = statement.named_children[0]
        if inner.type == "macro_invocation":
            yield inner


def _split_arguments(macro: Node) -> list[list[Node]]:
    """The tokens of each argument; commas of generics split too, as only types tell them apart."""
    tree = next((child for child in macro.children if child.type == "token_tree"), None)
    arguments: list[list[Node]] = [[]]
    for token in tree.children[1:-1] if tree is not None else []:
        if token.type == ",":
            arguments.append([])
        elif "comment" not in token.type:
            arguments[-1].append(token)
    return [argument for argument in arguments if argument]


def _invert(macro: Node) -> Iterator[Perturbation]:
    name, title = _macro_name(macro), macro.child_by_field_name("macro")
    line = macro.start_point[0] + 1
    if name in _OPPOSITE and title is not None:
        end = title.end_byte
        edit = SourceEdit(start=end - len(name), end=end, text=_OPPOSITE[name])
        how = f"{_OPPOSITE[name]} for {name} in line {line}"
        yield Perturbation(edits=(edit,), how=how, certain=True)
    arguments = _split_arguments(macro)
    if name != "assert" or not arguments:
        return
    is_split_wrong = len(arguments) > 1 and any(t.type in ("<", ">", "|") for t in arguments[0])
    if not is_split_wrong:
        edits = (
            insert_text(arguments[0][0].start_byte, "!("),
            insert_text(arguments[0][-1].end_byte, ")"),
        )
        yield Perturbation(edits=edits, how=f"assertion inverted in line {line}", certain=True)


def list_likely_changes(node: Node, rng: random.Random) -> Iterator[Perturbation]:
    """Changed values of every assertion in a function or a table, whether it is reached or not."""
    changes = {change.edits[0].start: change for change in _changed_values(node, rng)}
    yield from changes.values()


def _changed_values(node: Node, rng: random.Random) -> Iterator[Perturbation]:
    for inner in walk_nodes(node):
        for part in _list_claimed_parts(inner):
            yield from _change_literals(part, rng)


def _list_claimed_parts(node: Node) -> list[Node]:
    """What a node compares with: in assertions, conditions, tables and calls that assert."""
    if node.type == "macro_invocation":
        arguments = _split_arguments(node)[:2] if _asserts(node) else []
        return [token for argument in arguments for token in argument]
    field = _CLAIMING_FIELDS.get(node.type)
    part = node.child_by_field_name(field) if field else None
    if part is None:
        return []
    if node.type == "let_declaration":
        is_claim = bool(_EXPECTED_NAME.search(node_text(node.child_by_field_name("pattern"))))
    elif node.type == "if_expression":
        is_claim = bool(_FAILING.search(node_text(node)))
    elif node.type == "call_expression":
        is_claim = _is_statement(node)
    else:
        is_claim = True
    return [part] if is_claim else []


def _asserts(macro: Node) -> bool:
    """Whether a macro may be one that asserts: all that are not known to do something else."""
    name = _macro_name(macro)
    return "assert" in name or not _PLAIN_MACROS.fullmatch(name)


def _is_statement(call: Node) -> bool:
    """Whether a call of a plain function stands alone, as helpers that assert do."""
    function, above = call.child_by_field_name("function"), call.parent
    is_plain = function is not None and function.type == "identifier"
    is_tried = above is not None and above.type == "try_expression"
    around = above.parent if above is not None and is_tried else above
    return is_plain and around is not None and around.type in ("expression_statement", "block")


def _change_literals(node: Node, rng: random.Random) -> Iterator[Perturbation]:
    for literal in walk_nodes(node, skip=_OWN_FLOW):
        if _LITERAL.fullmatch(literal.type) and _is_value(literal):
            changed = change_literal(node_text(literal), rng)
            if changed is not None:
                how = f"{changed} for {node_text(literal)} in line {literal.start_point[0] + 1}"
                edit = replace_node(literal, changed)
                yield Perturbation(edits=(edit,), how=how, certain=False)


def _is_value(literal: Node) -> bool:
    """Whether another value compiles: no length, index, tuple field, operand or file name."""
    before, after = literal.prev_sibling, literal.next_sibling
    if before is not None and before.type == "-":
        before = before.prev_sibling
    if (before.type if before else "") not in _BEFORE or (
        after.type if after else ""
    ) not in _AFTER:
        return False
    tree = literal.parent
    if tree is None or tree.type != "token_tree":
        return tree is None or tree.type not in ("index_expression", "match_pattern")
    opener = tree.prev_sibling
    if opener is None:
        return True
    if opener.type == "!":
        return not _COMPILED_MACROS.fullmatch(node_text(opener.prev_sibling))
    is_index = tree.children[0].type == "[" and opener.type in ("identifier", "token_tree", "?")
    return not is_index


def list_siblings(nodes: list[Node]) -> Iterator[tuple[Node, list[Node]]]:
    """Yield each item with the attributes in front of it."""
    attributes: list[Node] = []
    for node in nodes:
        if node.type == "attribute_item":
            attributes.append(node)
        elif "comment" not in node.type:
            yield node, attributes
            attributes = []
