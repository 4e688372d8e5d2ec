"""Rust."""

from __future__ import annotations

from collections.abc import Sequence

import tree_sitter_rust
from tree_sitter import Node

from closeloop.changes.syntax.grammar import (
    Grammar,
    NodeLine,
    first_named_child,
    flat_node_text,
    list_child_texts,
    short_node_text,
    split_kinds,
)
from closeloop.records.inspection import (
    SourceImport,
)


def _read_use(node: Node, line_of: NodeLine) -> list[SourceImport]:
    """Each name of a `use`, however its lists are nested."""
    argument = node.child_by_field_name("argument")
    waiting = [("", argument)] if argument else []
    imports = []
    while waiting:
        prefix, part = waiting.pop()
        line = line_of(part)
        if part.type in ("use_list", "scoped_use_list"):
            path = part.child_by_field_name("path")
            prefix = _join_path(prefix, flat_node_text(path)) if path else prefix
            inner = part.child_by_field_name("list") or part
            waiting.extend((prefix, child) for child in reversed(inner.named_children))
        elif part.type == "use_wildcard":
            module = _join_path(prefix, flat_node_text(first_named_child(part)))
            imports.append(SourceImport(module=module, name="*", line=line))
        else:
            path, alias = part.child_by_field_name("path"), part.child_by_field_name("alias")
            whole = _join_path(prefix, flat_node_text(path if alias else part))
            module, _, name = whole.rpartition("::")
            imports.append(
                SourceImport(
                    module=module, name=name, alias=short_node_text(alias) or None, line=line
                )
            )
    return imports


def _join_path(prefix: str, path: str) -> str:
    return f"{prefix}::{path}" if prefix and path else prefix or path


def _definition_name(node: Node, around: Sequence[Node]) -> str | None:
    if node.type == "impl_item":
        return flat_node_text(node.child_by_field_name("type")).partition("<")[0] or None
    return short_node_text(node.child_by_field_name("name")) or None


def _list_parameters(node: Node) -> list[str]:
    return list_child_texts(node.child_by_field_name("parameters"))


def _list_bases(node: Node) -> list[str]:
    return list_child_texts(node.child_by_field_name("bounds"))


def _is_public(name: str, node: Node, around: Sequence[Node]) -> bool:
    if any(
        child.type == "visibility_modifier" and short_node_text(child) == "pub"
        for child in node.children
    ):
        return True
    holder = around[-2] if len(around) > 1 and around[-1].type == "declaration_list" else None
    return holder is not None and (
        holder.type == "trait_item" or holder.child_by_field_name("trait") is not None
    )


def _is_default(node: Node) -> bool:
    return node.type == "match_arm" and flat_node_text(node.child_by_field_name("pattern")) == "_"


GRAMMAR = Grammar(
    load=tree_sitter_rust.language,
    outline="""
(function_item) @function
[(struct_item name: (_) @definition) (enum_item name: (_) @definition)
    (union_item name: (_) @definition) (trait_item name: (_) @definition)
    (type_item name: (_) @definition) (const_item name: (_) @definition)
    (static_item name: (_) @definition) (macro_definition name: (_) @definition)
    (function_signature_item name: (_) @definition) (enum_variant name: (_) @definition)
    (field_declaration name: (_) @definition) (mod_item name: (_) @definition)]
((mod_item name: (identifier) @_module) @skip (#match? @_module "^tests?$"))
""",
    functions=frozenset({"function_item", "function_signature_item"}),
    types=frozenset({"struct_item", "enum_item", "union_item", "trait_item", "type_item"}),
    scopes=frozenset({"impl_item"}),
    decorators=frozenset({"attribute_item"}),
    statements=split_kinds(
        "expression_statement let_declaration const_item static_item function_item struct_item "
        "enum_item use_declaration macro_definition"
    ),
    sealed=frozenset({"use_declaration"}),
    imports={"use_declaration": _read_use},
    leaves=split_kinds("identifier field_identifier type_identifier shorthand_field_identifier"),
    members={
        "field_expression": ("value", "field"),
        "scoped_identifier": ("path", "name"),
        "scoped_type_identifier": ("path", "name"),
    },
    roles={
        ("call_expression", "function"): "call",
        ("generic_function", "function"): "call",
        ("macro_invocation", "macro"): "call",
        ("field_initializer", "field"): "keyword",
        ("function_item", "name"): "",
        ("function_signature_item", "name"): "",
        ("struct_item", "name"): "",
        ("enum_item", "name"): "",
        ("union_item", "name"): "",
        ("trait_item", "name"): "",
        ("type_item", "name"): "",
    },
    calls=frozenset(
        {
            ("call_expression", "function"),
            ("generic_function", "function"),
            ("macro_invocation", "macro"),
        }
    ),
    owners={"field_initializer": (2, "name")},
    binds=frozenset(
        {
            ("let_declaration", "pattern"),
            ("let_condition", "pattern"),
            ("parameter", "pattern"),
            ("closure_parameters", None),
            ("for_expression", "pattern"),
            ("match_pattern", None),
            ("captured_pattern", None),
            ("tuple_pattern", None),
            ("tuple_struct_pattern", None),
            ("slice_pattern", None),
            ("ref_pattern", None),
            ("mut_pattern", None),
            ("reference_pattern", None),
            ("field_pattern", "name"),
            ("field_pattern", "pattern"),
            ("assignment_expression", "left"),
            ("const_item", "name"),
            ("static_item", "name"),
            ("field_declaration", "name"),
            ("enum_variant", "name"),
            ("type_parameter", "name"),
            ("const_parameter", "name"),
            ("macro_definition", "name"),
            ("mod_item", "name"),
        }
    ),
    decisions=split_kinds("if_expression for_expression while_expression match_arm"),
    is_default=_is_default,
    nests=split_kinds(
        """if_expression for_expression while_expression loop_expression match_expression"""
    ),
    deepens=frozenset({"closure_expression"}),
    flat=frozenset(
        {
            ("if_expression", "alternative"),
            ("let_declaration", "alternative"),
            ("continue_expression", None),
        }
    ),
    chained=frozenset({("else_clause", None)}),
    boolean={"binary_expression": frozenset({"&&", "||"})},
    name_of=_definition_name,
    parameters_of=_list_parameters,
    bases_of=_list_bases,
    is_public=_is_public,
)
