"""The grammars of Python, Go, Java, Rust, JavaScript and TypeScript."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tree_sitter_go
import tree_sitter_java
import tree_sitter_javascript
import tree_sitter_python
import tree_sitter_rust
import tree_sitter_typescript
from msgspec.structs import replace
from tree_sitter import Node

from closeloop.changes.syntax import (
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
from closeloop.records.change import SourceImport

# Python.


def _read_python_import(node: Node, line_of: NodeLine) -> list[SourceImport]:
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


def _list_python_parameters(node: Node) -> list[str]:
    return list_child_texts(node.child_by_field_name("parameters"))


def _list_python_bases(node: Node) -> list[str]:
    return list_child_texts(node.child_by_field_name("superclasses"))


def _is_public_in_python(name: str, node: Node, ancestors: Sequence[Node]) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def _is_python_default(node: Node) -> bool:
    return node.type == "case_clause" and flat_node_text(first_named_child(node)) == "_"


PYTHON = Grammar(
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
        "import_statement": _read_python_import,
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
    is_default=_is_python_default,
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
    parameters_of=_list_python_parameters,
    bases_of=_list_python_bases,
    is_public=_is_public_in_python,
)


# Go.


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


def _list_go_bases(node: Node) -> list[str]:
    """Return embedded types."""
    inner = node.child_by_field_name("type")
    fields = first_named_child(inner) if inner and inner.type == "struct_type" else None
    return [
        flat_node_text(field.child_by_field_name("type"))
        for field in (fields.named_children if fields else ())
        if field.type == "field_declaration" and not field.child_by_field_name("name")
    ]


def _receiver_type(node: Node) -> str | None:
    """Return the receiver's type, without its star and type parameters."""
    receiver = node.child_by_field_name("receiver")
    declared = first_named_child(receiver)
    type_text = flat_node_text(declared.child_by_field_name("type")) if declared else ""
    return type_text.lstrip("*( ").partition("[")[0].rstrip(") ") or None


def _is_public_in_go(name: str, node: Node, ancestors: Sequence[Node]) -> bool:
    return name[:1].isupper()


GO = Grammar(
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
    bases_of=_list_go_bases,
    owner_of=_receiver_type,
    is_public=_is_public_in_go,
)


# Java.


def _read_java_import(node: Node, line_of: NodeLine) -> list[SourceImport]:
    import_path = flat_node_text(
        next((child for child in node.named_children if "identifier" in child.type), None)
    )
    if any(child.type == "asterisk" for child in node.named_children):
        return [SourceImport(module=import_path, name="*", line=line_of(node))]
    module, _, name = import_path.rpartition(".")
    return [SourceImport(module=module, name=name, line=line_of(node))]


def _list_java_bases(node: Node) -> list[str]:
    bases = []
    for child in node.named_children:
        if child.type == "superclass":
            bases += list_child_texts(child)
        elif child.type in ("super_interfaces", "extends_interfaces"):
            bases += list_child_texts(first_named_child(child))
    return bases


def _is_public_in_java(name: str, node: Node, ancestors: Sequence[Node]) -> bool:
    modifiers = next((child for child in node.children if child.type == "modifiers"), None)
    modifier_names = {child.type for child in modifiers.children} if modifiers else set()
    if len(ancestors) > 1 and ancestors[-1].type in ("interface_body", "annotation_type_body"):
        return "private" not in modifier_names
    return not modifier_names.isdisjoint({"public", "protected"})


def _is_java_default(node: Node) -> bool:
    return node.type == "switch_label" and short_node_text(node).startswith("default")


JAVA = Grammar(
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
    imports={"import_declaration": _read_java_import},
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
    is_default=_is_java_default,
    nests=split_kinds(
        "if_statement for_statement enhanced_for_statement while_statement do_statement "
        "catch_clause ternary_expression switch_expression"
    ),
    deepens=frozenset({"lambda_expression"}),
    flat=frozenset(
        {("if_statement", "alternative"), ("break_statement", None), ("continue_statement", None)}
    ),
    boolean={"binary_expression": frozenset({"&&", "||"})},
    name_of=read_name_field,
    parameters_of=_list_parameters,
    bases_of=_list_java_bases,
    is_public=_is_public_in_java,
)


# Rust.


def _read_use(node: Node, line_of: NodeLine) -> list[SourceImport]:
    """Return each name of a `use`, including nested lists."""
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
            full_path = _join_path(prefix, flat_node_text(path if alias else part))
            module, _, name = full_path.rpartition("::")
            imports.append(
                SourceImport(
                    module=module, name=name, alias=short_node_text(alias) or None, line=line
                )
            )
    return imports


def _join_path(prefix: str, path: str) -> str:
    return f"{prefix}::{path}" if prefix and path else prefix or path


def _rust_definition_name(node: Node, ancestors: Sequence[Node]) -> str | None:
    if node.type == "impl_item":
        return flat_node_text(node.child_by_field_name("type")).partition("<")[0] or None
    return short_node_text(node.child_by_field_name("name")) or None


def _list_rust_bases(node: Node) -> list[str]:
    return list_child_texts(node.child_by_field_name("bounds"))


def _is_public_in_rust(name: str, node: Node, ancestors: Sequence[Node]) -> bool:
    if any(
        child.type == "visibility_modifier" and short_node_text(child) == "pub"
        for child in node.children
    ):
        return True
    holder = (
        ancestors[-2] if len(ancestors) > 1 and ancestors[-1].type == "declaration_list" else None
    )
    return holder is not None and (
        holder.type == "trait_item" or holder.child_by_field_name("trait") is not None
    )


def _is_rust_default(node: Node) -> bool:
    return node.type == "match_arm" and flat_node_text(node.child_by_field_name("pattern")) == "_"


RUST = Grammar(
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
    is_default=_is_rust_default,
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
    name_of=_rust_definition_name,
    parameters_of=_list_parameters,
    bases_of=_list_rust_bases,
    is_public=_is_public_in_rust,
)


# JavaScript and TypeScript, with or without JSX.


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


def _javascript_definition_name(node: Node, ancestors: Sequence[Node]) -> str | None:
    """Return its own name, or that of what it is assigned to."""
    if name := node.child_by_field_name("name"):
        return unquote_node(name)
    parent = ancestors[-1] if ancestors else None
    if parent is None:
        return None
    if parent.type == "export_statement":
        return "default"
    target = parent.child_by_field_name(_NAME_FIELDS.get(parent.type, "-"))
    if target and target.type == "member_expression":
        target = target.child_by_field_name("property")
    return (
        unquote_node(target) if target and target.type.endswith(("identifier", "string")) else None
    )


def _is_public(name: str, node: Node, ancestors: Sequence[Node]) -> bool:
    holder = ancestors[-1] if ancestors and ancestors[-1].type in _MEMBER_NODES else node
    if holder.type in _MEMBER_NODES:
        modifiers = {
            short_node_text(child) for child in holder.children if child.type.endswith("modifier")
        }
        return not name.startswith("#") and modifiers.isdisjoint({"private", "protected"})
    return any(ancestor.type == "export_statement" for ancestor in ancestors[-3:])


def _exported_names(root: Node) -> frozenset[str]:
    return frozenset(name for child in root.named_children for name in _statement_exports(child))


def _statement_exports(node: Node) -> Iterator[str]:
    """Yield names of `export { a, b }`, `export default a`, `module.exports = …`, `exports.a =
    …`."""
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


def _list_javascript_parameters(node: Node) -> list[str]:
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
    module_import = SourceImport(module=unquote_node(module), line=line_of(node))
    imports = [
        _read_clause(part, module_import, line_of)
        for clause in clauses
        for part in clause.named_children
    ]
    return [source_import for group in imports for source_import in group] or [module_import]


def _read_clause(part: Node, module_import: SourceImport, line_of: NodeLine) -> list[SourceImport]:
    if part.type == "identifier":
        return [replace(module_import, name="default", alias=short_node_text(part))]
    if part.type == "namespace_import":
        return [replace(module_import, alias=short_node_text(first_named_child(part)))]
    return [
        replace(
            module_import,
            name=unquote_node(spec.child_by_field_name("name")),
            alias=short_node_text(spec.child_by_field_name("alias")) or None,
            line=line_of(spec),
        )
        for spec in part.named_children
        if spec.type in ("import_specifier", "export_specifier")
    ]


def _read_reexport(node: Node, line_of: NodeLine) -> list[SourceImport]:
    """Read `export … from`: imported only to be re-exported."""
    source = node.child_by_field_name("source")
    if source is None:
        return []
    module_import = SourceImport(module=unquote_node(source), line=line_of(node))
    imports = [_read_clause(child, module_import, line_of) for child in node.named_children]
    return [source_import for group in imports for source_import in group] or [
        replace(module_import, name="*")
    ]


def _read_require(node: Node, line_of: NodeLine) -> list[SourceImport]:
    """Read `const name = require("module")`."""
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if value is None or value.type != "call_expression" or name is None:
        return []
    arguments = value.child_by_field_name("arguments")
    module = first_named_child(arguments)
    called = short_node_text(value.child_by_field_name("function"))
    if called != "require" or module is None or module.type != "string":
        return []
    module_import = SourceImport(module=unquote_node(module), line=line_of(node))
    if name.type != "object_pattern":
        return [replace(module_import, alias=flat_node_text(name))]
    return [
        replace(
            module_import,
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
    name_of=_javascript_definition_name,
    parameters_of=_list_javascript_parameters,
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
