"""Rust's public names: what a library crate's modules offer, straight or through `pub use`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

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

_ITEM_KINDS = {
    "struct_item": "class",
    "enum_item": "class",
    "union_item": "class",
    "trait_item": "class",
    "const_item": "value",
    "static_item": "value",
    "type_item": "value",
}


class Crate:
    """One side of a library crate. Files are read when they are asked for."""

    def __init__(self, read: Callable[[str], bytes | None], paths: Collection[str]) -> None:
        self._read, self._paths = read, paths

    def source_root(self, path: str) -> str | None:
        """The folder of sources of the library that a file belongs to, with its slash."""
        folder = path.rpartition("/")[0]
        while True:
            if f"{folder}/lib.rs".lstrip("/") in self._paths:
                return f"{folder}/" if folder else ""
            if not folder:
                return None
            folder = folder.rpartition("/")[0]

    def public_names(self, path: str) -> dict[str, tuple[str, Member]]:
        """Public names of a file, by the path that callers use; those handed on by parents too."""
        root, content = self.source_root(path), self._read(path) if path in self._paths else None
        if root is None or content is None:
            return {}
        inner = path.removeprefix(root).removesuffix(".rs").removesuffix("/mod")
        modules = [] if inner == "lib" else inner.split("/")
        crate = self._crate_name(root)
        own = read_rust_names(content)
        if self._is_public_path(root, modules):
            prefix = ".".join([crate, *modules])
            return {f"{prefix}.{name}": (path, member) for name, member in own.items()}
        handed = self._reexported_names(root, modules)
        return {
            f"{crate}.{name}": (path, member)
            for name, member in own.items()
            if "*" in handed or name.partition(".")[0] in handed
        }

    def _crate_name(self, root: str) -> str:
        """The name under which others use it."""
        manifest = self._read(re.sub(r"src/$", "", root) + "Cargo.toml") or b""
        named = re.search(rb"^name\s*=\s*\"([\w-]+)\"", manifest, re.MULTILINE)
        return named[1].decode().replace("-", "_") if named else "crate"

    def _module_file(self, root: str, modules: list[str]) -> str | None:
        if not modules:
            return f"{root}lib.rs"
        stem = root + "/".join(modules)
        return next((one for one in (f"{stem}.rs", f"{stem}/mod.rs") if one in self._paths), None)

    def _is_public_path(self, root: str, modules: list[str]) -> bool:
        """Whether every module on the way is declared public."""
        for depth, name in enumerate(modules):
            above = self._module_file(root, modules[:depth])
            content = (self._read(above) if above else None) or b""
            if not re.search(rb"^\s*pub\s+mod\s+%s\b" % name.encode(), content, re.MULTILINE):
                return False
        return True

    def _reexported_names(self, root: str, modules: list[str]) -> set[str]:
        """Names that public `use` lines of the modules above take from this one."""
        names: set[str] = set()
        for depth in range(len(modules)):
            above = self._module_file(root, modules[:depth])
            content = ((self._read(above) if above else None) or b"").decode("utf-8", "replace")
            for used in re.findall(r"^\s*pub\s+use\s+([^;]{1,2000});", content, re.MULTILINE):
                if re.search(rf"\b{re.escape(modules[-1])}\b", used):
                    names.update(re.findall(r"\w+|\*", used.partition(modules[-1])[2]))
        return names


def read_rust_names(content: bytes) -> dict[str, Member]:
    """`Searcher`, `Searcher.new`, with fields, variants and methods of traits."""
    return dict(_list_members(content, parse_syntax_root("rust", content), ""))


def _list_members(content: bytes, block: Node, prefix: str) -> Iterator[tuple[str, Member]]:
    for node in child_nodes(block):
        name = f"{prefix}{node_source(child_field(node, 'name'))}"
        if node.type == "impl_item" and child_field(node, "trait") is None:
            owner = re.sub(r"<.*", "", node_source(child_field(node, "type")))
            for one in child_nodes(child_field(node, "body")):
                if one.type == "function_item" and _is_public(one):
                    yield (
                        f"{prefix}{owner}.{node_source(child_field(one, 'name'))}",
                        _function_member(content, one),
                    )
        elif node.type == "macro_definition" and "macro_export" in _attribute_text(node):
            yield f"{name}!", Member(kind="value", line=node_line(content, node))
        elif _is_public(node):
            yield from _public_members(content, node, name)


def _public_members(content: bytes, node: Node, name: str) -> Iterator[tuple[str, Member]]:
    if node.type == "function_item":
        yield name, _function_member(content, node)
    elif node.type in _ITEM_KINDS:
        yield name, _item_member(content, node)
        yield from _inner_members(content, node, name)
    elif node.type == "mod_item" and "cfg(test)" not in _attribute_text(node):
        body = child_field(node, "body")
        if body is not None:
            yield from _list_members(content, body, f"{name}.")


def _inner_members(content: bytes, node: Node, owner: str) -> Iterator[tuple[str, Member]]:
    for one in child_nodes(child_field(node, "body")):
        name = f"{owner}.{node_source(child_field(one, 'name'))}"
        if "._" in name:
            continue
        if one.type == "enum_variant":
            yield (
                name,
                Member(
                    kind="value",
                    line=node_line(content, one),
                    type=_type_text(child_field(one, "body")),
                ),
            )
        elif one.type == "field_declaration" and _is_public(one):
            kind = _type_text(child_field(one, "type"))
            yield name, Member(kind="value", line=node_line(content, one), type=kind)
        elif one.type in ("function_item", "function_signature_item"):
            yield name, _function_member(content, one)


def _item_member(content: bytes, node: Node) -> Member:
    kind = _type_text(child_field(node, "type"))
    return Member(
        kind="class" if _ITEM_KINDS[node.type] == "class" else "value",
        line=node_line(content, node),
        type=kind,
        deprecated="deprecated" in _attribute_text(node),
    )


def _function_member(content: bytes, node: Node) -> Member:
    return Member(
        kind="function",
        line=node_line(content, node),
        parameters=tuple(
            Parameter(
                name="",
                type=_type_text(child_field(one, "type")) or flat_node_source(one),
                passing="position",
            )
            for one in child_nodes(child_field(node, "parameters"))
            if one.type in ("parameter", "self_parameter")
        ),
        type=_type_text(child_field(node, "return_type")),
        deprecated="deprecated" in _attribute_text(node),
        waiting="async" in node_source(node)[:60].split("fn")[0],
        body=body_fingerprint(child_field(node, "body")),
    )


def _type_text(node: Node | None) -> str:
    """A type as written, without the path that leads to it and the names of lifetimes."""
    return re.sub(r"\b(?:\w+::)+|'\w+ ?|\s+", "", node_source(node))


def _is_public(node: Node) -> bool:
    return any(
        one.type == "visibility_modifier" and node_source(one) == "pub" for one in node.children
    ) and ("doc(hidden)" not in _attribute_text(node))


def _attribute_text(node: Node) -> str:
    above, attributes = node.prev_sibling, ""
    while above is not None and above.type in ("attribute_item", "line_comment"):
        attributes += node_source(above) if above.type == "attribute_item" else ""
        above = above.prev_sibling
    return attributes
