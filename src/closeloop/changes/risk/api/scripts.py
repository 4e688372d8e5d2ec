"""JavaScript and TypeScript: what a package's entries export, through other files too."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec
from tree_sitter import Node

from closeloop.changes.kinds import language_of
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
from closeloop.model.record import Record

_ENDINGS = ("", ".ts", ".tsx", ".mts", ".cts", ".js", ".jsx", ".mjs", ".cjs", ".d.ts")
_BUILT = re.compile(r"^(?:dist|lib|build|out|es|esm|cjs|distribution)(?:/(?:esm?|cjs|src|types))?/")
_WRITTEN = ("", "src/", "source/", "lib/")
_UNKNOWN = Member(kind="unknown")


class Exports(Record):
    """What one file hands out."""

    own: dict[str, Member] = {}
    """By the name given to others."""
    passed: dict[str, tuple[str, str]] = {}
    """Handed on: by name, the module as written and the name there (`*` for all of it)."""
    stars: tuple[str, ...] = ()


class Package:
    """One side of a package. Files are read when they are asked for."""

    def __init__(self, read: Callable[[str], bytes | None], paths: Collection[str]) -> None:
        self._read, self._paths = read, paths
        self._exports: dict[str, Exports] = {}
        self._names: dict[str, dict[str, tuple[str, Member]]] = {}

    def manifest(self, path: str) -> tuple[str, dict[str, Any]] | None:
        """The folder, with its slash, and content of the package.json that a file belongs to."""
        folder = path
        while folder:
            folder = folder.rpartition("/")[0]
            place = f"{folder}/package.json" if folder else "package.json"
            if place in self._paths:
                try:
                    data = msgspec.json.decode(self._read(place) or b"")
                except (ValueError, RecursionError):
                    return None
                return (f"{folder}/" if folder else ""), data if isinstance(data, dict) else {}
        return None

    def entries(self, folder: str, manifest: dict[str, Any]) -> set[str]:
        """Source files that callers import from, as the manifest says or as is usual."""
        named = [manifest.get(key) for key in ("exports", "main", "module", "source", "types")]
        found = {entry for value in _strings(named) if (entry := self._entry(folder, value))}
        usual = (self._entry(folder, "index.js"), self._entry(folder, "main.js"))
        return found or {entry for entry in usual if entry}

    def _entry(self, folder: str, value: str) -> str | None:
        value = posixpath.normpath(value)
        stem = re.sub(r"\.d\.[mc]?ts$|\.[mc]?[jt]sx?$", "", _BUILT.sub("", value))
        for written in _WRITTEN:
            for ending in (
                ".ts",
                ".tsx",
                ".mts",
                ".js",
                ".mjs",
                ".cjs",
                ".d.ts",
                "/index.ts",
                "/index.js",
            ):
                if f"{folder}{written}{stem}{ending}" in self._paths:
                    return f"{folder}{written}{stem}{ending}"
        return folder + value if folder + value in self._paths else None

    def exports(self, path: str) -> Exports:
        if path not in self._exports:
            language = language_of(path)
            content = self._read(path) if language else None
            known = content is not None and language is not None
            self._exports[path] = read_exports(path, content or b"") if known else Exports()
        return self._exports[path]

    def names(self, path: str) -> dict[str, tuple[str, Member]]:
        """All that a file hands out, with where it is written."""
        if path in self._names:
            return self._names[path]
        found: dict[str, tuple[str, Member]] = {}
        self._names[path] = found  # Files that hand on each other's names find none twice.
        exports = self.exports(path)
        for module in exports.stars:
            if target := self.resolve(path, module):
                handed = self.names(target).items()
                found |= {name: at for name, at in handed if name.split(".")[0] != "default"}
        found |= {name: (path, member) for name, member in exports.own.items()}
        for name, (module, original) in exports.passed.items():
            target = self.resolve(path, module)
            there = self.names(target) if target else {}
            found[name] = (path, _UNKNOWN)
            found |= {name + each[len(original) :]: at for each, at in _inner(there, original)}
        return found

    def resolve(self, path: str, module: str) -> str | None:
        """The file of a relative import."""
        if not module.startswith("."):
            return None
        stem = posixpath.normpath(posixpath.join(posixpath.dirname(path), module))
        bare = re.sub(r"\.[mc]?jsx?$", "", stem)
        choices = [stem, *(f"{base}{end}" for base in (stem, bare) for end in _ENDINGS[1:])]
        choices += [f"{stem}/index{end}" for end in _ENDINGS[1:]]
        return next((one for one in choices if one in self._paths), None)


def _strings(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)) and depth < 6:
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one, depth + 1)


def read_exports(path: str, content: bytes) -> Exports:
    """All of one file's exports, ES modules' and CommonJS's."""
    language = language_of(path)
    assert language is not None
    root = root_of(language, content)
    reading = _Reading(content, root)
    for node in children(root):
        if node.type == "export_statement":
            reading.take(node)
    if language == "javascript" and not reading.own and not reading.passed:
        source = text(root)
        reading.own = {name: reading.local.get(name, _UNKNOWN) for name in _common(source)}
        reading.stars += re.findall(r"^module\.exports = require\([\"'](\S+?)[\"']\)", source, re.M)
    return Exports(own=reading.own, passed=reading.passed, stars=tuple(reading.stars))


class _Reading:
    def __init__(self, content: bytes, root: Node) -> None:
        self.content = content
        self.local = dict(one for node in children(root) for one in _declared(content, node))
        self.own: dict[str, Member] = {}
        self.passed: dict[str, tuple[str, str]] = {}
        self.stars: list[str] = []

    def take(self, node: Node) -> None:
        source = field(node, "source")
        module = text(source).strip("\"'`")
        declaration = field(node, "declaration")
        named = next((one for one in children(node) if one.type == "export_clause"), None)
        if declaration is not None:
            for name, member in _declared(self.content, declaration):
                _, _, inner = name.partition(".")
                default = f"default.{inner}" if inner else "default"
                self.own[default if _is_default(node) else name] = member
        elif named is not None:
            for one in children(named):
                name = text(field(one, "name"))
                alias = text(field(one, "alias")) or name
                if source:
                    self.passed[alias] = (module, name)
                else:
                    self._hand_out(name, alias)
        elif source:
            alias_of_all = re.search(r"\*\s+as\s+(\w+)", text(node))
            if alias_of_all:
                self.own[alias_of_all[1]] = _UNKNOWN
            else:
                self.stars.append(module)
        elif _is_default(node):
            self._hand_out(text(field(node, "value")), "default")

    def _hand_out(self, name: str, alias: str) -> None:
        self.own |= {alias + each[len(name) :]: one for each, one in _inner(self.local, name)}
        self.own.setdefault(alias, _UNKNOWN)


def _inner(names: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """A name and those inside it."""
    for each, one in names.items():
        if each == name or each.startswith(f"{name}."):
            yield each, one


def _common(source: str) -> Iterator[str]:
    yield from re.findall(r"^(?:module\.)?exports\.([A-Za-z]\w*)\s*=", source, re.MULTILINE)
    if listed := re.search(r"^module\.exports\s*=\s*\{([^{}]{0,4000})\}", source, re.MULTILINE):
        yield from re.findall(r"^\s*(\w+)\s*[:,]?", listed[1].replace(",", "\n"), re.MULTILINE)


def _is_default(node: Node) -> bool:
    return text(node)[:40].split()[1:2] == ["default"]


def _declared(content: bytes, node: Node) -> Iterator[tuple[str, Member]]:
    name = text(field(node, "name"))
    line, old = line_of(content, node), _marked(node, "@deprecated")
    if node.type in (
        "function_declaration",
        "generator_function_declaration",
        "function_signature",
    ):
        yield name or "default", _function(content, node, deprecated=old)
    elif node.type in ("class_declaration", "abstract_class_declaration"):
        yield name or "default", Member(kind="class", line=line, deprecated=old)
        for one in children(field(node, "body")):
            yield from _inside(content, one, name or "default")
    elif node.type == "interface_declaration":
        yield name, Member(kind="class", line=line, deprecated=old)
    elif node.type in ("type_alias_declaration", "enum_declaration", "internal_module"):
        yield name, Member(kind="value", line=line, deprecated=old)
    elif node.type in ("lexical_declaration", "variable_declaration"):
        for one in children(node):
            value = field(one, "value")
            label = text(field(one, "name"))
            if value is not None and value.type in ("arrow_function", "function_expression"):
                yield label, _function(content, value, deprecated=old)
            elif re.fullmatch(r"\w+", label):
                yield label, Member(kind="value", line=line, deprecated=old)


def _inside(content: bytes, node: Node, owner: str) -> Iterator[tuple[str, Member]]:
    words = text(node)[:60].split("(")[0].split()
    name = text(field(node, "name"))
    if (
        {"private", "protected"} & set(words)
        or name.startswith(("#", "_", "["))
        or _marked(node, "@internal")
    ):
        return
    if node.type in ("method_definition", "method_signature", "abstract_method_signature"):
        if {"get", "set"} & set(words[:-1]):
            yield f"{owner}.{name}", Member(kind="property", line=line_of(content, node))
        else:
            old = _marked(node, "@deprecated")
            yield f"{owner}.{name}", _function(content, node, deprecated=old)
    elif node.type in ("public_field_definition", "field_definition"):
        name = name or text(field(node, "property"))
        if name.startswith(("#", "_", "[")):
            return
        yield f"{owner}.{name}", Member(kind="value", line=line_of(content, node))


def _function(content: bytes, node: Node, *, deprecated: bool) -> Member:
    return Member(
        kind="function",
        line=line_of(content, node),
        parameters=tuple(_parameters(field(node, "parameters"))),
        deprecated=deprecated,
        body=body_print(field(node, "body")),
    )


def _parameters(node: Node | None) -> Iterator[Parameter]:
    """Types are left to the compiler: as written they say too little about what still fits."""
    for number, one in enumerate(children(node)):
        pattern = field(one, "pattern") or field(one, "left") or one
        written = text(pattern)
        if written == "this":
            continue
        value = field(one, "value") or field(one, "right")
        optional = value is not None or one.type in ("optional_parameter", "assignment_pattern")
        rest = "rest_pattern" in (pattern.type, one.type)
        yield Parameter(
            name=str(number),
            passing="rest" if rest else "position",
            default=(plain(value) if value is not None else "undefined") if optional else None,
        )


def _marked(node: Node, mark: str) -> bool:
    """Whether the comment above says so."""
    exported = node.parent is not None and node.parent.type == "export_statement"
    above = node.parent.prev_sibling if exported and node.parent else node.prev_sibling
    return above is not None and above.type == "comment" and mark in text(above)
