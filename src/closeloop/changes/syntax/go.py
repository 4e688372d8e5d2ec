"""Go."""

from __future__ import annotations

from collections.abc import Sequence

import tree_sitter_go
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
    unquote_node,
)
from closeloop.records.inspection import (
    SourceImport,
)


def _read_imports(node: Node, line_of: NodeLine) -> list[SourceImport]:
    specs = [
        spec
        for child in node.named_children
        for spec in (child.named_children if child.type == "import_spec_list" else [child])
    ]
    return [
        SourceImport(
            module=unquote_node(spec.child_by_field_name("path")),
            alias=short_node_text(spec.child_by_field_name("name")) or None,
            line=line_of(spec),
        )
        for spec in specs
        if spec.type == "import_spec"
    ]


def _list_parameters(node: Node) -> list[str]:
    return list_child_texts(node.child_by_field_name("parameters"))


def _list_bases(node: Node) -> list[str]:
    """Embedded types."""
    inner = node.child_by_field_name("type")
    fields = first_named_child(inner) if inner and inner.type == "struct_type" else None
    return [
        flat_node_text(field.child_by_field_name("type"))
        for field in (fields.named_children if fields else ())
        if field.type == "field_declaration" and not field.child_by_field_name("name")
    ]


def _receiver_type(node: Node) -> str | None:
    """The receiver's type, without its star and its parameters."""
    receiver = node.child_by_field_name("receiver")
    declared = first_named_child(receiver)
    written = flat_node_text(declared.child_by_field_name("type")) if declared else ""
    return written.lstrip("*( ").partition("[")[0].rstrip(") ") or None


def _is_public(name: str, node: Node, around: Sequence[Node]) -> bool:
    return name[:1].isupper()


GRAMMAR = Grammar(
    load=tree_sitter_go.language,
    outline="""
[(function_declaration) (method_declaration)] @function
[(type_spec name: (_) @definition) (type_alias name: (_) @definition)
    (field_declaration name: (_) @definition) (method_elem name: (_) @definition)
    (const_spec name: (_) @definition)]
(source_file (var_declaration (var_spec name: (_) @definition)))
(source_file (var_declaration (var_spec_list (var_spec name: (_) @definition))))
""",
    functions=frozenset(
        {"function_declaration", "method_declaration", "method_elem", "func_literal"}
    ),
    types=frozenset({"type_spec", "type_alias"}),
    statements=split_kinds(
        "expression_statement short_var_declaration var_declaration const_declaration "
        "type_declaration assignment_statement inc_statement dec_statement send_statement "
        "go_statement defer_statement return_statement break_statement continue_statement "
        "goto_statement fallthrough_statement if_statement for_statement "
        "expression_switch_statement type_switch_statement select_statement labeled_statement"
    ),
    sealed=frozenset({"import_declaration", "package_clause"}),
    imports={"import_declaration": _read_imports},
    leaves=frozenset({"identifier", "field_identifier", "type_identifier", "package_identifier"}),
    members={"selector_expression": ("operand", "field"), "qualified_type": ("package", "name")},
    roles={
        ("call_expression", "function"): "call",
        ("function_declaration", "name"): "",
        ("method_declaration", "name"): "",
        ("method_elem", "name"): "",
        ("type_spec", "name"): "",
        ("type_alias", "name"): "",
        ("keyed_element", "key"): "keyword",
    },
    calls=frozenset({("call_expression", "function")}),
    owners={"keyed_element": (3, "type")},
    binds=frozenset(
        {
            ("short_var_declaration", "left"),
            ("assignment_statement", "left"),
            ("range_clause", "left"),
            ("receive_statement", "left"),
            ("type_switch_statement", "alias"),
            ("var_spec", "name"),
            ("const_spec", "name"),
            ("parameter_declaration", "name"),
            ("variadic_parameter_declaration", "name"),
            ("type_parameter_declaration", "name"),
            ("field_declaration", "name"),
        }
    ),
    lists=frozenset({"expression_list"}),
    wrappers=frozenset({"literal_element"}),
    decisions=split_kinds(
        "if_statement for_statement expression_case type_case communication_case"
    ),
    nests=split_kinds(
        "if_statement for_statement expression_switch_statement type_switch_statement "
        "select_statement"
    ),
    flat=frozenset(
        {
            ("if_statement", "alternative"),
            ("break_statement", None),
            ("continue_statement", None),
            ("goto_statement", None),
        }
    ),
    boolean={"binary_expression": frozenset({"&&", "||"})},
    name_of=read_name_field,
    parameters_of=_list_parameters,
    bases_of=_list_bases,
    owner_of=_receiver_type,
    is_public=_is_public,
)
