"""Java's public names: types, methods by their parameter types, and fields."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from closeloop.changes.risk.api.members import Member, Parameter
from closeloop.changes.risk.api.trees import (
    body_print,
    children,
    field,
    line_of,
    plain,
    root_of,
    text,
)

_APART = re.compile(
    r"(?:^|/)(?:internal|impl|test|tests|examples?|samples?|benchmarks?|metrics|perf|androidTest)/"
)
_TYPES = frozenset(
    [
        "class_declaration",
        "interface_declaration",
        "enum_declaration",
        "record_declaration",
        "annotation_type_declaration",
    ]
)
_OPEN = frozenset(("interface_declaration", "annotation_type_declaration"))


def is_public(path: str) -> bool:
    return path.endswith(".java") and not _APART.search(path)


def names_of(content: bytes) -> dict[str, Member]:
    """`Gson`, `Gson.toJson(Object)`, `Gson.DEFAULT`: public and protected ones."""
    root = root_of("java", content)
    package = next((plain(one) for one in children(root) if one.type == "package_declaration"), "")
    if re.search(r"\binternal\b", package):
        return {}
    found: dict[str, Member] = {}
    for node in children(root):
        if node.type in _TYPES:
            found.update(_type(content, node, "", implied=False))
    return found


def _type(
    content: bytes, node: Node, prefix: str, *, implied: bool
) -> Iterator[tuple[str, Member]]:
    if not implied and not _visible(node):
        return
    name = f"{prefix}{text(field(node, 'name'))}"
    final = "final" in _modifiers(node) or node.type != "class_declaration"
    yield name, Member(kind="class", line=line_of(content, node), deprecated=_deprecated(node))
    if node.type == "record_declaration":
        parameters = tuple(_parameters(field(node, "parameters")))
        yield (
            _called(name, name, parameters),
            Member(kind="function", line=line_of(content, node), parameters=parameters),
        )
    for one in _inside(field(node, "body")):
        inner = node.type in _OPEN
        if one.type in _TYPES:
            yield from _type(content, one, f"{name}.", implied=inner)
        elif one.type == "enum_constant":
            yield (
                f"{name}.{text(field(one, 'name'))}",
                Member(kind="value", line=line_of(content, one), deprecated=_deprecated(one)),
            )
        elif inner or _visible(one, final=final):
            yield from _member(content, one, name)


def _inside(body: Node | None) -> Iterator[Node]:
    for one in children(body):
        if one.type == "enum_body_declarations":
            yield from children(one)
        else:
            yield one


def _member(content: bytes, node: Node, owner: str) -> Iterator[tuple[str, Member]]:
    line, old = line_of(content, node), _deprecated(node)
    if node.type in ("method_declaration", "constructor_declaration"):
        parameters = tuple(_parameters(field(node, "parameters")))
        name = text(field(node, "name"))
        full = owner if node.type == "constructor_declaration" else f"{owner}.{name}"
        yield (
            _called(full, name, parameters),
            Member(
                kind="function",
                line=line,
                parameters=parameters,
                type=plain(field(node, "type")),
                deprecated=old,
                body=body_print(field(node, "body")),
            ),
        )
    elif node.type in ("field_declaration", "constant_declaration"):
        kind = plain(field(node, "type"))
        for one in node.children_by_field_name("declarator"):
            name = text(field(one, "name"))
            yield f"{owner}.{name}", Member(kind="value", line=line, type=kind, deprecated=old)


def _called(full: str, name: str, parameters: tuple[Parameter, ...]) -> str:
    return f"{full}({', '.join(one.type for one in parameters)})"


def _parameters(node: Node | None) -> Iterator[Parameter]:
    for one in children(node):
        if one.type == "spread_parameter":
            kind = plain(next((each for each in children(one) if each.type != "modifiers"), None))
            yield Parameter(name="", type=f"{kind}...", passing="position")
        elif one.type == "formal_parameter":
            kind = re.sub(r"<.*>|@\w+(?:\([^)]*\))?\s*", "", plain(field(one, "type")))
            yield Parameter(name=text(field(one, "name")), type=kind, passing="position")


def _modifiers(node: Node) -> str:
    return next((plain(one) for one in node.children if one.type == "modifiers"), "")


def _visible(node: Node, *, final: bool = False) -> bool:
    words = _modifiers(node).split()
    return "public" in words or ("protected" in words and not final)


def _deprecated(node: Node) -> bool:
    above = node.prev_sibling
    javadoc = text(above) if above is not None and "comment" in above.type else ""
    return "@Deprecated" in _modifiers(node) or "@deprecated" in javadoc
