"""Go."""

from __future__ import annotations

from collections.abc import Sequence

import tree_sitter_go
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
    unquoted,
)
from closeloop.model.inspection import Import


def _imports(node: Node, line_of: Lines) -> list[Import]:
    specs = [
        spec
        for child in node.named_children
        for spec in (child.named_children if child.type == "import_spec_list" else [child])
    ]
    return [
        Import(
            module=unquoted(spec.child_by_field_name("path")),
            alias=text(spec.child_by_field_name("name")) or None,
            line=line_of(spec),
        )
        for spec in specs
        if spec.type == "import_spec"
    ]


def _parameters(node: Node) -> list[str]:
    return listed(node.child_by_field_name("parameters"))


def _bases(node: Node) -> list[str]:
    """Embedded types."""
    inner = node.child_by_field_name("type")
    fields = first(inner) if inner and inner.type == "struct_type" else None
    return [
        plain(field.child_by_field_name("type"))
        for field in (fields.named_children if fields else ())
        if field.type == "field_declaration" and not field.child_by_field_name("name")
    ]


def _owner(node: Node) -> str | None:
    """The receiver's type, without its star and its parameters."""
    receiver = node.child_by_field_name("receiver")
    declared = first(receiver)
    written = plain(declared.child_by_field_name("type")) if declared else ""
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
    statements=kinds(
        "expression_statement short_var_declaration var_declaration const_declaration "
        "type_declaration assignment_statement inc_statement dec_statement send_statement "
        "go_statement defer_statement return_statement break_statement continue_statement "
        "goto_statement fallthrough_statement if_statement for_statement "
        "expression_switch_statement type_switch_statement select_statement labeled_statement"
    ),
    sealed=frozenset({"import_declaration", "package_clause"}),
    imports={"import_declaration": _imports},
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
    decisions=kinds("if_statement for_statement expression_case type_case communication_case"),
    nests=kinds(
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
    name_of=named,
    parameters_of=_parameters,
    bases_of=_bases,
    owner_of=_owner,
    is_public=_is_public,
)
