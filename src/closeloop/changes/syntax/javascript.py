"""JavaScript and TypeScript, with or without JSX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tree_sitter_javascript
import tree_sitter_typescript
from msgspec.structs import replace
from tree_sitter import Node

from closeloop.changes.syntax.grammar import (
    Grammar,
    NodeLine,
    first_named_child,
    flat_node_text,
    list_child_texts,
    short_node_text,
    split_kinds,
    unquote_node,
)
from closeloop.records.inspection import (
    SourceImport,
)

_NAME_FIELDS = {
    "variable_declarator": "name",
    "pair": "key",
    "assignment_expression": "left",
    "field_definition": "property",
    "public_field_definition": "name",
}
_MEMBER_NODES = split_kinds(
    "method_definition method_signature abstract_method_signature field_definition "
    "public_field_definition"
)


def _definition_name(node: Node, around: Sequence[Node]) -> str | None:
    """Its own name, or that of what it is given to."""
    if name := node.child_by_field_name("name"):
        return unquote_node(name)
    above = around[-1] if around else None
    if above is None:
        return None
    if above.type == "export_statement":
        return "default"
    target = above.child_by_field_name(_NAME_FIELDS.get(above.type, "-"))
    if target and target.type == "member_expression":
        target = target.child_by_field_name("property")
    return (
        unquote_node(target) if target and target.type.endswith(("identifier", "string")) else None
    )


def _is_public(name: str, node: Node, around: Sequence[Node]) -> bool:
    holder = around[-1] if around and around[-1].type in _MEMBER_NODES else node
    if holder.type in _MEMBER_NODES:
        modifiers = {
            short_node_text(child) for child in holder.children if child.type.endswith("modifier")
        }
        return not name.startswith("#") and modifiers.isdisjoint({"private", "protected"})
    return any(other.type == "export_statement" for other in around[-3:])


def _exported_names(root: Node) -> frozenset[str]:
    return frozenset(name for child in root.named_children for name in _statement_exports(child))


def _statement_exports(node: Node) -> Iterator[str]:
    """Names in `export { a, b }`, `export default a`, `module.exports = …`, `exports.a = …`."""
    if node.type == "export_statement":
        for clause in node.named_children:
            if clause.type == "export_clause":
                yield from (
                    short_node_text(spec.child_by_field_name("name"))
                    for spec in clause.named_children
                )
        yield short_node_text(node.child_by_field_name("value"))
    elif node.type == "expression_statement" and (inner := first_named_child(node)):
        left, right = inner.child_by_field_name("left"), inner.child_by_field_name("right")
        target = short_node_text(left) if inner.type == "assignment_expression" else ""
        if target == "module.exports" and right:
            yield short_node_text(right)
            if right.type == "object":
                for child in right.named_children:
                    yield short_node_text(child.child_by_field_name("key") or child)
        elif target.startswith(("module.exports.", "exports.")):
            yield target.rpartition(".")[2]
            yield short_node_text(right)


def _list_parameters(node: Node) -> list[str]:
    if single := node.child_by_field_name("parameter"):
        return [flat_node_text(single)]
    return list_child_texts(node.child_by_field_name("parameters"))


def _list_bases(node: Node) -> list[str]:
    waiting = [
        child for child in node.named_children if child.type.endswith(("heritage", "clause"))
    ]
    bases = []
    while waiting:
        clause = waiting.pop(0)
        for child in clause.named_children:
            if child.type.endswith("clause"):
                waiting.append(child)
            elif child.type != "type_arguments":
                bases.append(flat_node_text(child))
    return bases


def _read_import(node: Node, line_of: NodeLine) -> list[SourceImport]:
    module = node.child_by_field_name("source")
    clauses = [child for child in node.named_children if child.type.startswith("import_")]
    if module is None:
        module = next((child.child_by_field_name("source") for child in clauses), None)
    brought = SourceImport(module=unquote_node(module), line=line_of(node))
    imports = [
        _read_clause(part, brought, line_of) for clause in clauses for part in clause.named_children
    ]
    return [one for many in imports for one in many] or [brought]


def _read_clause(part: Node, whole: SourceImport, line_of: NodeLine) -> list[SourceImport]:
    if part.type == "identifier":
        return [replace(whole, name="default", alias=short_node_text(part))]
    if part.type == "namespace_import":
        return [replace(whole, alias=short_node_text(first_named_child(part)))]
    return [
        replace(
            whole,
            name=unquote_node(spec.child_by_field_name("name")),
            alias=short_node_text(spec.child_by_field_name("alias")) or None,
            line=line_of(spec),
        )
        for spec in part.named_children
        if spec.type in ("import_specifier", "export_specifier")
    ]


def _read_reexport(node: Node, line_of: NodeLine) -> list[SourceImport]:
    """`export … from`: brought in only to be handed on."""
    source = node.child_by_field_name("source")
    if source is None:
        return []
    whole = SourceImport(module=unquote_node(source), line=line_of(node))
    imports = [_read_clause(child, whole, line_of) for child in node.named_children]
    return [one for many in imports for one in many] or [replace(whole, name="*")]


def _read_require(node: Node, line_of: NodeLine) -> list[SourceImport]:
    """`const name = require("module")`."""
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if value is None or value.type != "call_expression" or name is None:
        return []
    arguments = value.child_by_field_name("arguments")
    module = first_named_child(arguments)
    called = short_node_text(value.child_by_field_name("function"))
    if called != "require" or module is None or module.type != "string":
        return []
    whole = SourceImport(module=unquote_node(module), line=line_of(node))
    if name.type != "object_pattern":
        return [replace(whole, alias=flat_node_text(name))]
    return [
        replace(
            whole,
            name=short_node_text(part.child_by_field_name("key") or part),
            alias=short_node_text(part.child_by_field_name("value")) or None,
        )
        for part in name.named_children
    ]


_SHARED_OUTLINE = """
[(function_declaration) (generator_function_declaration) (method_definition)] @function
(variable_declarator name: (identifier) value: [(arrow_function) (function_expression)]) @function
(pair key: (property_identifier) @definition
    value: [(arrow_function) (function_expression)] @function)
(assignment_expression left: (member_expression property: (property_identifier) @definition)
    right: [(arrow_function) (function_expression)] @function)
(assignment_expression
    left: (member_expression object: (this) property: (property_identifier) @definition))
(program [(lexical_declaration (variable_declarator name: (identifier) @definition))
    (variable_declaration (variable_declarator name: (identifier) @definition))])
(export_statement (lexical_declaration (variable_declarator name: (identifier) @definition)))
"""

JAVASCRIPT = Grammar(
    load=tree_sitter_javascript.language,
    outline=_SHARED_OUTLINE
    + """
(class_declaration name: (_) @definition)
(field_definition property: (property_identifier) @definition)
(field_definition property: (property_identifier)
    value: [(arrow_function) (function_expression)] @function)
""",
    functions=split_kinds(
        "function_declaration generator_function_declaration function_expression "
        "generator_function arrow_function method_definition"
    ),
    types=frozenset({"class_declaration", "class"}),
    decorators=frozenset({"decorator"}),
    statements=split_kinds(
        "expression_statement variable_declaration lexical_declaration if_statement for_statement "
        "for_in_statement while_statement do_statement switch_statement try_statement "
        "return_statement throw_statement break_statement continue_statement debugger_statement "
        "function_declaration class_declaration labeled_statement"
    ),
    sealed=frozenset({"import_statement"}),
    imports={
        "import_statement": _read_import,
        "export_statement": _read_reexport,
        "variable_declarator": _read_require,
    },
    leaves=split_kinds(
        "identifier property_identifier private_property_identifier shorthand_property_identifier "
        "shorthand_property_identifier_pattern"
    ),
    members={"member_expression": ("object", "property")},
    roles={
        ("call_expression", "function"): "call",
        ("new_expression", "constructor"): "call",
        ("jsx_attribute", None): "keyword",
        ("function_declaration", "name"): "",
        ("generator_function_declaration", "name"): "",
        ("function_expression", "name"): "",
        ("generator_function", "name"): "",
        ("method_definition", "name"): "",
        ("class_declaration", "name"): "",
        ("class", "name"): "",
        ("pair_pattern", "key"): "attribute",
    },
    calls=frozenset({("call_expression", "function"), ("new_expression", "constructor")}),
    owners={"jsx_attribute": (1, "name")},
    binds=frozenset(
        {
            ("variable_declarator", "name"),
            ("assignment_expression", "left"),
            ("augmented_assignment_expression", "left"),
            ("formal_parameters", None),
            ("arrow_function", "parameter"),
            ("assignment_pattern", "left"),
            ("object_assignment_pattern", "left"),
            ("object_pattern", None),
            ("pair_pattern", "value"),
            ("array_pattern", None),
            ("rest_pattern", None),
            ("catch_clause", "parameter"),
            ("for_in_statement", "left"),
            ("pair", "key"),
            ("field_definition", "property"),
        }
    ),
    decisions=split_kinds(
        "if_statement for_statement for_in_statement while_statement do_statement catch_clause "
        "ternary_expression switch_case"
    ),
    nests=split_kinds(
        "if_statement for_statement for_in_statement while_statement do_statement catch_clause "
        "ternary_expression switch_statement"
    ),
    flat=frozenset(
        {
            ("if_statement", "alternative"),
            ("break_statement", "label"),
            ("continue_statement", "label"),
        }
    ),
    chained=frozenset({("else_clause", None)}),
    boolean={"binary_expression": frozenset({"&&", "||", "??"})},
    name_of=_definition_name,
    parameters_of=_list_parameters,
    bases_of=_list_bases,
    is_public=_is_public,
    exports=_exported_names,
)

TYPESCRIPT = replace(
    JAVASCRIPT,
    load=tree_sitter_typescript.language_typescript,
    outline=_SHARED_OUTLINE
    + """
[(class_declaration name: (_) @definition) (abstract_class_declaration name: (_) @definition)
    (interface_declaration name: (_) @definition) (type_alias_declaration name: (_) @definition)
    (enum_declaration name: (_) @definition) (function_signature name: (_) @definition)
    (method_signature name: (property_identifier) @definition)
    (abstract_method_signature name: (property_identifier) @definition)
    (property_signature name: (property_identifier) @definition)
    (public_field_definition name: (property_identifier) @definition)
    (enum_body name: (property_identifier) @definition)
    (enum_assignment name: (property_identifier) @definition)]
(public_field_definition name: (property_identifier)
    value: [(arrow_function) (function_expression)] @function)
""",
    functions=JAVASCRIPT.functions
    | {"function_signature", "method_signature", "abstract_method_signature"},
    types=JAVASCRIPT.types
    | split_kinds(
        "abstract_class_declaration interface_declaration enum_declaration type_alias_declaration"
    ),
    scopes=frozenset({"internal_module"}),
    leaves=JAVASCRIPT.leaves | {"type_identifier"},
    members={**JAVASCRIPT.members, "nested_type_identifier": ("module", "name")},
    roles={spot: role for spot, role in JAVASCRIPT.roles.items() if spot[0] != "jsx_attribute"}
    | {
        ("function_signature", "name"): "",
        ("method_signature", "name"): "",
        ("abstract_method_signature", "name"): "",
        ("abstract_class_declaration", "name"): "",
        ("interface_declaration", "name"): "",
        ("enum_declaration", "name"): "",
        ("type_alias_declaration", "name"): "",
        ("internal_module", "name"): "",
    },
    owners={},
    binds=(JAVASCRIPT.binds - {("field_definition", "property")})
    | {
        ("required_parameter", "pattern"),
        ("optional_parameter", "pattern"),
        ("public_field_definition", "name"),
        ("property_signature", "name"),
        ("enum_body", "name"),
        ("enum_assignment", "name"),
        ("type_parameter", "name"),
        ("infer_type", None),
        ("mapped_type_clause", "name"),
    },
)

TSX = replace(
    TYPESCRIPT,
    load=tree_sitter_typescript.language_tsx,
    roles={**TYPESCRIPT.roles, ("jsx_attribute", None): "keyword"},
    owners=JAVASCRIPT.owners,
)
