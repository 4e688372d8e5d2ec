"""Java."""

from __future__ import annotations

from collections.abc import Sequence

import tree_sitter_java
from tree_sitter import Node

from closeloop.changes.syntax.grammar import (
    Grammar,
    NodeLine,
    first_named_child,
    flat_node_text,
    list_child_texts,
    read_name_field,
    short_node_text,
    split_kinds,
)
from closeloop.records.inspection import (
    SourceImport,
)


def _read_import(node: Node, line_of: NodeLine) -> list[SourceImport]:
    written = flat_node_text(
        next((child for child in node.named_children if "identifier" in child.type), None)
    )
    if any(child.type == "asterisk" for child in node.named_children):
        return [SourceImport(module=written, name="*", line=line_of(node))]
    module, _, name = written.rpartition(".")
    return [SourceImport(module=module, name=name, line=line_of(node))]


def _list_parameters(node: Node) -> list[str]:
    return list_child_texts(node.child_by_field_name("parameters"))


def _list_bases(node: Node) -> list[str]:
    bases = []
    for child in node.named_children:
        if child.type == "superclass":
            bases += list_child_texts(child)
        elif child.type in ("super_interfaces", "extends_interfaces"):
            bases += list_child_texts(first_named_child(child))
    return bases


def _is_public(name: str, node: Node, around: Sequence[Node]) -> bool:
    modifiers = next((child for child in node.children if child.type == "modifiers"), None)
    words = {child.type for child in modifiers.children} if modifiers else set()
    if len(around) > 1 and around[-1].type in ("interface_body", "annotation_type_body"):
        return "private" not in words
    return not words.isdisjoint({"public", "protected"})


def _is_default(node: Node) -> bool:
    return node.type == "switch_label" and short_node_text(node).startswith("default")


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
    functions=split_kinds(
        "method_declaration constructor_declaration compact_constructor_declaration"
    ),
    types=split_kinds(
        "class_declaration interface_declaration enum_declaration record_declaration "
        "annotation_type_declaration"
    ),
    decorators=frozenset({"annotation", "marker_annotation"}),
    statements=split_kinds(
        "expression_statement local_variable_declaration if_statement for_statement "
        "enhanced_for_statement while_statement do_statement switch_expression try_statement "
        "try_with_resources_statement return_statement throw_statement break_statement "
        "continue_statement yield_statement assert_statement synchronized_statement "
        "labeled_statement explicit_constructor_invocation"
    ),
    sealed=frozenset({"import_declaration", "package_declaration"}),
    imports={"import_declaration": _read_import},
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
    decisions=split_kinds(
        "if_statement for_statement enhanced_for_statement while_statement do_statement "
        "catch_clause ternary_expression switch_label"
    ),
    is_default=_is_default,
    nests=split_kinds(
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
    name_of=read_name_field,
    parameters_of=_list_parameters,
    bases_of=_list_bases,
    is_public=_is_public,
)
