"""Java."""

from __future__ import annotations

from collections.abc import Sequence

import tree_sitter_java
from tree_sitter import Node

from closeloop.changes.syntax.grammar import (
    Grammar,
    Lines,
    first,
    kinds,
    listed,
    named,
    plain,
    text,
)
from closeloop.model.inspection import Import


def _import(node: Node, line_of: Lines) -> list[Import]:
    written = plain(
        next((child for child in node.named_children if "identifier" in child.type), None)
    )
    if any(child.type == "asterisk" for child in node.named_children):
        return [Import(module=written, name="*", line=line_of(node))]
    module, _, name = written.rpartition(".")
    return [Import(module=module, name=name, line=line_of(node))]


def _parameters(node: Node) -> list[str]:
    return listed(node.child_by_field_name("parameters"))


def _bases(node: Node) -> list[str]:
    found = []
    for child in node.named_children:
        if child.type == "superclass":
            found += listed(child)
        elif child.type in ("super_interfaces", "extends_interfaces"):
            found += listed(first(child))
    return found


def _is_public(name: str, node: Node, around: Sequence[Node]) -> bool:
    modifiers = next((child for child in node.children if child.type == "modifiers"), None)
    words = {child.type for child in modifiers.children} if modifiers else set()
    if len(around) > 1 and around[-1].type in ("interface_body", "annotation_type_body"):
        return "private" not in words
    return not words.isdisjoint({"public", "protected"})


def _is_default(node: Node) -> bool:
    return node.type == "switch_label" and text(node).startswith("default")


GRAMMAR = Grammar(
    load=tree_sitter_java.language,
    outline="""
[(method_declaration) (constructor_declaration) (compact_constructor_declaration)] @function
[(class_declaration name: (_) @definition) (interface_declaration name: (_) @definition)
    (enum_declaration name: (_) @definition) (record_declaration name: (_) @definition)
    (annotation_type_declaration name: (_) @definition) (enum_constant name: (_) @definition)
    (field_declaration declarator: (variable_declarator name: (_) @definition))
    (constant_declaration declarator: (variable_declarator name: (_) @definition))]
""",
    functions=kinds("method_declaration constructor_declaration compact_constructor_declaration"),
    types=kinds(
        "class_declaration interface_declaration enum_declaration record_declaration "
        "annotation_type_declaration"
    ),
    decorators=frozenset({"annotation", "marker_annotation"}),
    statements=kinds(
        "expression_statement local_variable_declaration if_statement for_statement "
        "enhanced_for_statement while_statement do_statement switch_expression try_statement "
        "try_with_resources_statement return_statement throw_statement break_statement "
        "continue_statement yield_statement assert_statement synchronized_statement "
        "labeled_statement explicit_constructor_invocation"
    ),
    sealed=frozenset({"import_declaration", "package_declaration"}),
    imports={"import_declaration": _import},
    leaves=frozenset({"identifier", "type_identifier"}),
    members={"field_access": ("object", "field"), "method_invocation": ("object", "name")},
    roles={
        ("method_invocation", "name"): "call",
        ("object_creation_expression", "type"): "call",
        ("element_value_pair", "key"): "keyword",
        ("method_declaration", "name"): "",
        ("constructor_declaration", "name"): "",
        ("compact_constructor_declaration", "name"): "",
        ("class_declaration", "name"): "",
        ("interface_declaration", "name"): "",
        ("enum_declaration", "name"): "",
        ("record_declaration", "name"): "",
        ("annotation_type_declaration", "name"): "",
    },
    calls=frozenset(),
    owners={"element_value_pair": (2, "name")},
    binds=frozenset(
        {
            ("variable_declarator", "name"),
            ("assignment_expression", "left"),
            ("formal_parameter", "name"),
            ("catch_formal_parameter", "name"),
            ("enhanced_for_statement", "name"),
            ("instanceof_expression", "name"),
            ("lambda_expression", "parameters"),
            ("inferred_parameters", None),
            ("resource", "name"),
            ("enum_constant", "name"),
            ("type_parameter", None),
        }
    ),
    decisions=kinds(
        "if_statement for_statement enhanced_for_statement while_statement do_statement "
        "catch_clause ternary_expression switch_label"
    ),
    is_default=_is_default,
    nests=kinds(
        "if_statement for_statement enhanced_for_statement while_statement do_statement "
        "catch_clause ternary_expression switch_expression"
    ),
    deepens=frozenset({"lambda_expression"}),
    flat=frozenset(
        {
            ("if_statement", "alternative"),
            ("break_statement", None),
            ("continue_statement", None),
        }
    ),
    boolean={"binary_expression": frozenset({"&&", "||"})},
    name_of=named,
    parameters_of=_parameters,
    bases_of=_bases,
    is_public=_is_public,
)
