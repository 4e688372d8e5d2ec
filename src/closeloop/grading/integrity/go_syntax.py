"""Parts of Go's syntax tree that tests are read by: statements, calls and what is tested with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from closeloop.grading.integrity.source_edits import node_text

if TYPE_CHECKING:
    from tree_sitter import Node

_TESTING = re.compile(r"(\w+) \*?testing\.(?:T|TB|F|B)\b")


def find_test_parameter(function: Node) -> str:
    parameters = function.child_by_field_name("parameters")
    match = re.fullmatch(r"\(\s*(\w+) \*testing\.T\s*,?\s*\)", node_text(parameters))
    return match[1] if match and match[1] != "_" else ""


def list_statements(block: Node) -> list[Node]:
    """The statements of a block, whether or not the grammar keeps them in a list node."""
    inner = [child for child in block.named_children if child.type != "comment"]
    if len(inner) == 1 and inner[0].type == "statement_list":
        inner = [child for child in inner[0].named_children if child.type != "comment"]
    return inner


def single_name(declaration: Node) -> str:
    left = declaration.child_by_field_name("left")
    names = left.named_children if left is not None else []
    return node_text(names[0]) if len(names) == 1 else ""


def nearest_test_parameter(node: Node) -> str:
    """The name of the `*testing.T` of the nearest function around; '' where it has none."""
    around: Node | None = node
    while around is not None and around.type not in ("func_literal", "function_declaration"):
        around = around.parent
    return find_test_parameter(around) if around is not None else ""


def test_parameters_around(node: Node) -> set[str]:
    """The names of `*testing.T` and the like in all functions around, those of helpers too."""
    names, around = set[str](), node.parent
    while around is not None:
        if around.type in ("func_literal", "function_declaration", "method_declaration"):
            parameters = around.child_by_field_name("parameters")
            names |= set(_TESTING.findall(node_text(parameters)))
        around = around.parent
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
