"""Java's public names: types, methods by their parameter types, and fields."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from closeloop.changes.risk.api.api_members import (
    Member,
    Parameter,
    body_fingerprint,
    child_field,
    child_nodes,
    flat_node_source,
    node_line,
    node_source,
    parse_syntax_root,
)

_INTERNAL_FOLDERS = re.compile(
    r"(?:^|/)(?:internal|impl|test|tests|examples?|samples?|benchmarks?|metrics|perf|androidTest)/"
)
_TYPE_NODES = frozenset(
    [
        "class_declaration",
        "interface_declaration",
        "enum_declaration",
        "record_declaration",
        "annotation_type_declaration",
    ]
)
_INTERFACE_NODES = frozenset(("interface_declaration", "annotation_type_declaration"))


def is_public_java_file(path: str) -> bool:
    return path.endswith(".java") and not _INTERNAL_FOLDERS.search(path)


def read_java_names(content: bytes) -> dict[str, Member]:
    """`Gson`, `Gson.toJson(Object)`, `Gson.DEFAULT`: public and protected ones."""
    root = parse_syntax_root("java", content)
    package = next(
        (flat_node_source(one) for one in child_nodes(root) if one.type == "package_declaration"),
        "",
    )
    if re.search(r"\binternal\b", package):
        return {}
    names: dict[str, Member] = {}
    for node in child_nodes(root):
        if node.type in _TYPE_NODES:
            names.update(_type_members(content, node, "", implied=False))
    return names


def _type_members(
    content: bytes, node: Node, prefix: str, *, implied: bool
) -> Iterator[tuple[str, Member]]:
    if not implied and not _is_visible(node):
        return
    name = f"{prefix}{node_source(child_field(node, 'name'))}"
    final = "final" in _modifier_text(node) or node.type != "class_declaration"
    yield (
        name,
        Member(kind="class", line=node_line(content, node), deprecated=_has_deprecation(node)),
    )
    if node.type == "record_declaration":
        parameters = tuple(_read_parameters(child_field(node, "parameters")))
        yield (
            _method_signature(name, name, parameters),
            Member(kind="function", line=node_line(content, node), parameters=parameters),
        )
    for one in _body_nodes(child_field(node, "body")):
        inner = node.type in _INTERFACE_NODES
        if one.type in _TYPE_NODES:
            yield from _type_members(content, one, f"{name}.", implied=inner)
        elif one.type == "enum_constant":
            yield (
                f"{name}.{node_source(child_field(one, 'name'))}",
                Member(
                    kind="value", line=node_line(content, one), deprecated=_has_deprecation(one)
                ),
            )
        elif inner or _is_visible(one, final=final):
            yield from _declared_members(content, one, name)


def _body_nodes(body: Node | None) -> Iterator[Node]:
    for one in child_nodes(body):
        if one.type == "enum_body_declarations":
            yield from child_nodes(one)
        else:
            yield one


def _declared_members(content: bytes, node: Node, owner: str) -> Iterator[tuple[str, Member]]:
    line, old = node_line(content, node), _has_deprecation(node)
    if node.type in ("method_declaration", "constructor_declaration"):
        parameters = tuple(_read_parameters(child_field(node, "parameters")))
        name = node_source(child_field(node, "name"))
        full = owner if node.type == "constructor_declaration" else f"{owner}.{name}"
        yield (
            _method_signature(full, name, parameters),
            Member(
                kind="function",
                line=line,
                parameters=parameters,
                type=flat_node_source(child_field(node, "type")),
                deprecated=old,
                body=body_fingerprint(child_field(node, "body")),
            ),
        )
    elif node.type in ("field_declaration", "constant_declaration"):
        kind = flat_node_source(child_field(node, "type"))
        for one in node.children_by_field_name("declarator"):
            name = node_source(child_field(one, "name"))
            yield f"{owner}.{name}", Member(kind="value", line=line, type=kind, deprecated=old)


def _method_signature(full: str, name: str, parameters: tuple[Parameter, ...]) -> str:
    return f"{full}({', '.join(one.type for one in parameters)})"


def _read_parameters(node: Node | None) -> Iterator[Parameter]:
    for one in child_nodes(node):
        if one.type == "spread_parameter":
            kind = flat_node_source(
                next((each for each in child_nodes(one) if each.type != "modifiers"), None)
            )
            yield Parameter(name="", type=f"{kind}...", passing="position")
        elif one.type == "formal_parameter":
            kind = re.sub(
                r"<.*>|@\w+(?:\([^)]*\))?\s*", "", flat_node_source(child_field(one, "type"))
            )
            yield Parameter(
                name=node_source(child_field(one, "name")), type=kind, passing="position"
            )


def _modifier_text(node: Node) -> str:
    return next((flat_node_source(one) for one in node.children if one.type == "modifiers"), "")


def _is_visible(node: Node, *, final: bool = False) -> bool:
    words = _modifier_text(node).split()
    return "public" in words or ("protected" in words and not final)


def _has_deprecation(node: Node) -> bool:
    above = node.prev_sibling
    javadoc = node_source(above) if above is not None and "comment" in above.type else ""
    return "@Deprecated" in _modifier_text(node) or "@deprecated" in javadoc
