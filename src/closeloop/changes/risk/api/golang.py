"""Go's public names: what a package's files export."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec
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

_APART = re.compile(r"(?:^|/)(?:internal|testdata|vendor|examples?|cmd|test)/|_test\.go$")

_EMPTY = re.compile(r"\binterface ?\{ ?\}")


def is_public(path: str) -> bool:
    return path.endswith(".go") and not _APART.search(path)


def names_of(content: bytes) -> dict[str, Member]:
    """Exported names with those inside them: `Command`, `Command.Execute`."""
    root = root_of("go", content)
    if re.search(rb"^package\s+main\b", content, re.MULTILINE):
        return {}
    return {
        name: member
        for node in children(root)
        for name, member in _declared(content, node)
        if all(part[:1].isupper() for part in name.split("."))
    }


def _declared(content: bytes, node: Node) -> Iterator[tuple[str, Member]]:
    if node.type == "function_declaration":
        yield text(field(node, "name")), _function(content, node, node)
    elif node.type == "method_declaration":
        receiver = re.search(r"(\w+)(?:\[[^\]]*\])?\s*\)$", text(field(node, "receiver")))
        if receiver:
            yield f"{receiver[1]}.{text(field(node, 'name'))}", _function(content, node, node)
    elif node.type == "type_declaration":
        for spec in children(node):
            yield from _type(content, spec, node)
    elif node.type in ("const_declaration", "var_declaration"):
        for spec in _specs(node):
            for name in spec.children_by_field_name("name"):
                kind = _typed(field(spec, "type"))
                yield text(name), _member(content, "value", spec, node, type=kind)


def _specs(node: Node) -> Iterator[Node]:
    for one in children(node):
        if one.type == "var_spec_list":
            yield from children(one)
        else:
            yield one


def _type(content: bytes, spec: Node, node: Node) -> Iterator[tuple[str, Member]]:
    name, inner = text(field(spec, "name")), field(spec, "type")
    if inner is None:
        return
    kind = inner.type if inner.type in ("struct_type", "interface_type") else _typed(inner)
    kind = f"= {kind}" if spec.type == "type_alias" else kind
    yield name, _member(content, "class", spec, node, type=kind)
    if inner.type == "struct_type":
        for one in (each for block in children(inner) for each in children(block)):
            for label in one.children_by_field_name("name"):
                kind = _typed(field(one, "type"))
                yield f"{name}.{text(label)}", _member(content, "value", one, one, type=kind)
    elif inner.type == "interface_type":
        for one in children(inner):
            if one.type == "method_elem":
                yield f"{name}.{text(field(one, 'name'))}", _function(content, one, one)


def _function(content: bytes, node: Node, commented: Node) -> Member:
    return Member(
        kind="function",
        line=line_of(content, node),
        parameters=tuple(_parameters(field(node, "parameters"))),
        type=_result(field(node, "result")),
        deprecated=_deprecated(commented),
        body=body_print(field(node, "body")),
    )


def _member(content: bytes, kind: str, node: Node, commented: Node, *, type: str) -> Member:  # noqa: A002
    return Member(
        kind="class" if kind == "class" else "value",
        line=line_of(content, node),
        type=type,
        deprecated=_deprecated(commented),
    )


def _parameters(node: Node | None) -> Iterator[Parameter]:
    for one in children(node):
        kind = _typed(field(one, "type"))
        rest = one.type == "variadic_parameter_declaration"
        names = [text(name) for name in one.children_by_field_name("name")] or [""]
        for name in names:
            yield Parameter(name=name, type=kind, passing="rest" if rest else "position")


def _typed(node: Node | None) -> str:
    """A type as written, without the names that a function type may give its parameters."""
    if node is None or node.type != "function_type":
        return _EMPTY.sub("any", plain(node))
    takes = ", ".join(one.type for one in _parameters(field(node, "parameters")))
    return f"func({takes}) {_result(field(node, 'result'))}".rstrip()


def expanded(names: Mapping[str, tuple[str, Member]]) -> dict[str, tuple[str, Member]]:
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


def _result(node: Node | None) -> str:
    """Types only: results may be given names freely."""
    if node is None or node.type != "parameter_list":
        return _typed(node)
    types = [one.type for one in _parameters(node)]
    return types[0] if len(types) == 1 else f"({', '.join(types)})"


def _deprecated(node: Node) -> bool:
    above = node.prev_sibling
    words = ""
    while above is not None and above.type == "comment":
        words = text(above) + words
        above = above.prev_sibling
    return "Deprecated:" in words
