"""Rust's public names: what a library crate's modules offer, straight or through `pub use`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

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

_NAMED = {
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

    def root(self, path: str) -> str | None:
        """The folder of sources of the library that a file belongs to, with its slash."""
        folder = path.rpartition("/")[0]
        while True:
            if f"{folder}/lib.rs".lstrip("/") in self._paths:
                return f"{folder}/" if folder else ""
            if not folder:
                return None
            folder = folder.rpartition("/")[0]

    def names(self, path: str) -> dict[str, tuple[str, Member]]:
        """Public names of a file, by the path that callers use; those handed on by parents too."""
        root, content = self.root(path), self._read(path) if path in self._paths else None
        if root is None or content is None:
            return {}
        inner = path.removeprefix(root).removesuffix(".rs").removesuffix("/mod")
        modules = [] if inner == "lib" else inner.split("/")
        crate = self._crate(root)
        own = names_of(content)
        if self._open(root, modules):
            prefix = ".".join([crate, *modules])
            return {f"{prefix}.{name}": (path, member) for name, member in own.items()}
        handed = self._handed_on(root, modules)
        return {
            f"{crate}.{name}": (path, member)
            for name, member in own.items()
            if "*" in handed or name.partition(".")[0] in handed
        }

    def _crate(self, root: str) -> str:
        """The name under which others use it."""
        manifest = self._read(re.sub(r"src/$", "", root) + "Cargo.toml") or b""
        named = re.search(rb"^name\s*=\s*\"([\w-]+)\"", manifest, re.MULTILINE)
        return named[1].decode().replace("-", "_") if named else "crate"

    def _file(self, root: str, modules: list[str]) -> str | None:
        if not modules:
            return f"{root}lib.rs"
        stem = root + "/".join(modules)
        return next((one for one in (f"{stem}.rs", f"{stem}/mod.rs") if one in self._paths), None)

    def _open(self, root: str, modules: list[str]) -> bool:
        """Whether every module on the way is declared public."""
        for depth, name in enumerate(modules):
            above = self._file(root, modules[:depth])
            content = (self._read(above) if above else None) or b""
            if not re.search(rb"^\s*pub\s+mod\s+%s\b" % name.encode(), content, re.MULTILINE):
                return False
        return True

    def _handed_on(self, root: str, modules: list[str]) -> set[str]:
        """Names that public `use` lines of the modules above take from this one."""
        found: set[str] = set()
        for depth in range(len(modules)):
            above = self._file(root, modules[:depth])
            content = ((self._read(above) if above else None) or b"").decode("utf-8", "replace")
            for used in re.findall(r"^\s*pub\s+use\s+([^;]{1,2000});", content, re.MULTILINE):
                if re.search(rf"\b{re.escape(modules[-1])}\b", used):
                    found.update(re.findall(r"\w+|\*", used.partition(modules[-1])[2]))
        return found


def names_of(content: bytes) -> dict[str, Member]:
    """`Searcher`, `Searcher.new`, with fields, variants and methods of traits."""
    return dict(_items(content, root_of("rust", content), ""))


def _items(content: bytes, block: Node, prefix: str) -> Iterator[tuple[str, Member]]:
    for node in children(block):
        name = f"{prefix}{text(field(node, 'name'))}"
        if node.type == "impl_item" and field(node, "trait") is None:
            owner = re.sub(r"<.*", "", text(field(node, "type")))
            for one in children(field(node, "body")):
                if one.type == "function_item" and _is_public(one):
                    yield f"{prefix}{owner}.{text(field(one, 'name'))}", _function(content, one)
        elif node.type == "macro_definition" and "macro_export" in _attributes(node):
            yield f"{name}!", Member(kind="value", line=line_of(content, node))
        elif _is_public(node):
            yield from _public(content, node, name)


def _public(content: bytes, node: Node, name: str) -> Iterator[tuple[str, Member]]:
    if node.type == "function_item":
        yield name, _function(content, node)
    elif node.type in _NAMED:
        yield name, _item(content, node)
        yield from _inside(content, node, name)
    elif node.type == "mod_item" and "cfg(test)" not in _attributes(node):
        body = field(node, "body")
        if body is not None:
            yield from _items(content, body, f"{name}.")


def _inside(content: bytes, node: Node, owner: str) -> Iterator[tuple[str, Member]]:
    for one in children(field(node, "body")):
        name = f"{owner}.{text(field(one, 'name'))}"
        if "._" in name:
            continue
        if one.type == "enum_variant":
            yield (
                name,
                Member(kind="value", line=line_of(content, one), type=_typed(field(one, "body"))),
            )
        elif one.type == "field_declaration" and _is_public(one):
            kind = _typed(field(one, "type"))
            yield name, Member(kind="value", line=line_of(content, one), type=kind)
        elif one.type in ("function_item", "function_signature_item"):
            yield name, _function(content, one)


def _item(content: bytes, node: Node) -> Member:
    kind = _typed(field(node, "type"))
    return Member(
        kind="class" if _NAMED[node.type] == "class" else "value",
        line=line_of(content, node),
        type=kind,
        deprecated="deprecated" in _attributes(node),
    )


def _function(content: bytes, node: Node) -> Member:
    return Member(
        kind="function",
        line=line_of(content, node),
        parameters=tuple(
            Parameter(name="", type=_typed(field(one, "type")) or plain(one), passing="position")
            for one in children(field(node, "parameters"))
            if one.type in ("parameter", "self_parameter")
        ),
        type=_typed(field(node, "return_type")),
        deprecated="deprecated" in _attributes(node),
        waiting="async" in text(node)[:60].split("fn")[0],
        body=body_print(field(node, "body")),
    )


def _typed(node: Node | None) -> str:
    """A type as written, without the path that leads to it and the names of lifetimes."""
    return re.sub(r"\b(?:\w+::)+|'\w+ ?|\s+", "", text(node))


def _is_public(node: Node) -> bool:
    return any(
        one.type == "visibility_modifier" and text(one) == "pub" for one in node.children
    ) and ("doc(hidden)" not in _attributes(node))


def _attributes(node: Node) -> str:
    above, found = node.prev_sibling, ""
    while above is not None and above.type in ("attribute_item", "line_comment"):
        found += text(above) if above.type == "attribute_item" else ""
        above = above.prev_sibling
    return found
