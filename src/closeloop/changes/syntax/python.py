"""Python."""

from __future__ import annotations

from collections.abc import Sequence

import tree_sitter_python
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
    line = line_of(node)
    return [
        SourceImport(module=module, alias=alias, line=line)
        for module, alias in map(_split_alias, node.children_by_field_name("name"))
    ]


def _read_import_from(node: Node, line_of: NodeLine) -> list[SourceImport]:
    module = flat_node_text(node.child_by_field_name("module_name")) or "__future__"
    if any(child.type == "wildcard_import" for child in node.named_children):
        return [SourceImport(module=module, name="*", line=line_of(node))]
    return [
        SourceImport(module=module, name=name, alias=alias, line=line_of(child))
        for child in node.children_by_field_name("name")
        for name, alias in [_split_alias(child)]
    ]


def _split_alias(node: Node) -> tuple[str, str | None]:
    if node.type == "aliased_import":
        return flat_node_text(node.child_by_field_name("name")), short_node_text(
            node.child_by_field_name("alias")
        )
    return flat_node_text(node), None


def _list_parameters(node: Node) -> list[str]:
    return list_child_texts(node.child_by_field_name("parameters"))


def _list_bases(node: Node) -> list[str]:
    return list_child_texts(node.child_by_field_name("superclasses"))


def _is_public(name: str, node: Node, around: Sequence[Node]) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def _is_default(node: Node) -> bool:
    return node.type == "case_clause" and flat_node_text(first_named_child(node)) == "_"


GRAMMAR = Grammar(
    load=tree_sitter_python.language,
    outline="""
(function_definition) @function
(class_definition name: (identifier) @definition)
(module (expression_statement (assignment left: (identifier) @definition)))
(class_definition body: (block (expression_statement
    (assignment left: (identifier) @definition))))
(assignment left: (attribute object: (identifier) @_self attribute: (identifier) @definition)
    (#eq? @_self "self"))
""",
    functions=frozenset({"function_definition"}),
    types=frozenset({"class_definition"}),
    decorators=frozenset({"decorator"}),
    statements=split_kinds(
        "expression_statement return_statement raise_statement pass_statement break_statement "
        "continue_statement delete_statement assert_statement global_statement nonlocal_statement "
        "import_statement import_from_statement future_import_statement if_statement for_statement "
        "while_statement try_statement with_statement match_statement function_definition "
        "class_definition type_alias_statement print_statement exec_statement"
    ),
    sealed=frozenset({"import_statement", "import_from_statement", "future_import_statement"}),
    imports={
        "import_statement": _read_import,
        "import_from_statement": _read_import_from,
        "future_import_statement": _read_import_from,
    },
    leaves=frozenset({"identifier"}),
    members={"attribute": ("object", "attribute")},
    roles={
        ("call", "function"): "call",
        ("keyword_argument", "name"): "keyword",
        ("function_definition", "name"): "",
        ("class_definition", "name"): "",
    },
    calls=frozenset({("call", "function")}),
    owners={"keyword_argument": (2, "function")},
    binds=frozenset(
        {
            ("assignment", "left"),
            ("augmented_assignment", "left"),
            ("named_expression", "name"),
            ("for_statement", "left"),
            ("for_in_clause", "left"),
            ("as_pattern_target", None),
            ("parameters", None),
            ("lambda_parameters", None),
            ("typed_parameter", None),
            ("default_parameter", "name"),
            ("typed_default_parameter", "name"),
            ("pattern_list", None),
            ("tuple_pattern", None),
            ("list_pattern", None),
            ("list_splat_pattern", None),
            ("dictionary_splat_pattern", None),
        }
    ),
    lists=frozenset({"tuple", "list"}),
    decisions=split_kinds(
        "if_statement elif_clause for_statement while_statement except_clause "
        "conditional_expression for_in_clause if_clause case_clause"
    ),
    is_default=_is_default,
    nests=split_kinds(
        "if_statement for_statement while_statement except_clause conditional_expression "
        "match_statement list_comprehension set_comprehension dictionary_comprehension "
        "generator_expression"
    ),
    deepens=frozenset({"lambda"}),
    adds=frozenset({"if_clause"}),
    flat=frozenset({("if_statement", "alternative")}),
    boolean={"boolean_operator": frozenset({"and", "or"})},
    name_of=read_name_field,
    parameters_of=_list_parameters,
    bases_of=_list_bases,
    is_public=_is_public,
)
