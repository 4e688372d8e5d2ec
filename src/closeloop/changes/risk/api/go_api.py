"""Go's public names: what a package's files export."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec
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

_INTERNAL_PATHS = re.compile(r"(?:^|/)(?:internal|testdata|vendor|examples?|cmd|test)/|_test\.go$")

_EMPTY_INTERFACE = re.compile(r"\binterface ?\{ ?\}")


def is_public_go_file(path: str) -> bool:
    return path.endswith(".go") and not _INTERNAL_PATHS.search(path)


def read_go_names(content: bytes) -> dict[str, Member]:
    """Exported names with those inside them: `Command`, `Command.Execute`."""
    root = parse_syntax_root("go", content)
    if re.search(rb"^package\s+main\b", content, re.MULTILINE):
        return {}
    return {
        name: member
        for node in child_nodes(root)
        for name, member in _declared_members(content, node)
        if all(part[:1].isupper() for part in name.split("."))
    }


def _declared_members(content: bytes, node: Node) -> Iterator[tuple[str, Member]]:
    if node.type == "function_declaration":
        yield node_source(child_field(node, "name")), _function_member(content, node, node)
    elif node.type == "method_declaration":
        receiver = re.search(
            r"(\w+)(?:\[[^\]]*\])?\s*\)$", node_source(child_field(node, "receiver"))
        )
        if receiver:
            yield (
                f"{receiver[1]}.{node_source(child_field(node, 'name'))}",
                _function_member(content, node, node),
            )
    elif node.type == "type_declaration":
        for spec in child_nodes(node):
            yield from _type_members(content, spec, node)
    elif node.type in ("const_declaration", "var_declaration"):
        for spec in _list_specs(node):
            for name in spec.children_by_field_name("name"):
                kind = _type_text(child_field(spec, "type"))
                yield node_source(name), _make_member(content, "value", spec, node, type=kind)


def _list_specs(node: Node) -> Iterator[Node]:
    for one in child_nodes(node):
        if one.type == "var_spec_list":
            yield from child_nodes(one)
        else:
            yield one


def _type_members(content: bytes, spec: Node, node: Node) -> Iterator[tuple[str, Member]]:
    name, inner = node_source(child_field(spec, "name")), child_field(spec, "type")
    if inner is None:
        return
    kind = inner.type if inner.type in ("struct_type", "interface_type") else _type_text(inner)
    kind = f"= {kind}" if spec.type == "type_alias" else kind
    yield name, _make_member(content, "class", spec, node, type=kind)
    if inner.type == "struct_type":
        for one in (each for block in child_nodes(inner) for each in child_nodes(block)):
            for label in one.children_by_field_name("name"):
                kind = _type_text(child_field(one, "type"))
                yield (
                    f"{name}.{node_source(label)}",
                    _make_member(content, "value", one, one, type=kind),
                )
    elif inner.type == "interface_type":
        for one in child_nodes(inner):
            if one.type == "method_elem":
                yield (
                    f"{name}.{node_source(child_field(one, 'name'))}",
                    _function_member(content, one, one),
                )


def _function_member(content: bytes, node: Node, commented: Node) -> Member:
    return Member(
        kind="function",
        line=node_line(content, node),
        parameters=tuple(_read_parameters(child_field(node, "parameters"))),
        type=_result_type(child_field(node, "result")),
        deprecated=_has_deprecation(commented),
        body=body_fingerprint(child_field(node, "body")),
    )


def _make_member(content: bytes, kind: str, node: Node, commented: Node, *, type: str) -> Member:  # noqa: A002
    return Member(
        kind="class" if kind == "class" else "value",
        line=node_line(content, node),
        type=type,
        deprecated=_has_deprecation(commented),
    )


def _read_parameters(node: Node | None) -> Iterator[Parameter]:
    for one in child_nodes(node):
        kind = _type_text(child_field(one, "type"))
        rest = one.type == "variadic_parameter_declaration"
        names = [node_source(name) for name in one.children_by_field_name("name")] or [""]
        for name in names:
            yield Parameter(name=name, type=kind, passing="rest" if rest else "position")


def _type_text(node: Node | None) -> str:
    """A type as written, without the names that a function type may give its parameters."""
    if node is None or node.type != "function_type":
        return _EMPTY_INTERFACE.sub("any", flat_node_source(node))
    takes = ", ".join(one.type for one in _read_parameters(child_field(node, "parameters")))
    return f"func({takes}) {_result_type(child_field(node, 'result'))}".rstrip()


def expand_aliases(names: Mapping[str, tuple[str, Member]]) -> dict[str, tuple[str, Member]]:
    """With aliases (`type A = B`) written out, for they are the same type."""
    aliases = {name: m.type[2:] for name, (_, m) in names.items() if m.type.startswith("= ")}
    if not aliases:
        return dict(names)
    alias = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, aliases))})\b")

    def plainly(written: str) -> str:
        for _ in range(4):
            written = alias.sub(lambda found: aliases[found[0]], written)
        return written

    def whole(member: Member) -> Member:
        parameters = member.parameters and tuple(
            msgspec.structs.replace(one, type=plainly(one.type)) for one in member.parameters
        )
        return msgspec.structs.replace(
            member, type=plainly(member.type).removeprefix("= "), parameters=parameters
        )

    return {name: (path, whole(member)) for name, (path, member) in names.items()}


def _result_type(node: Node | None) -> str:
    """Types only: results may be given names freely."""
    if node is None or node.type != "parameter_list":
        return _type_text(node)
    types = [one.type for one in _read_parameters(node)]
    return types[0] if len(types) == 1 else f"({', '.join(types)})"


def _has_deprecation(node: Node) -> bool:
    above = node.prev_sibling
    words = ""
    while above is not None and above.type == "comment":
        words = node_source(above) + words
        above = above.prev_sibling
    return "Deprecated:" in words
