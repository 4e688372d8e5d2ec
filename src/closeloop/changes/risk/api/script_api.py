"""JavaScript and TypeScript: what a package's entries export, through other files too."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec
from tree_sitter import Node

from closeloop.changes.file_kinds import language_of
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
from closeloop.records.record import Record

_ENDINGS = ("", ".ts", ".tsx", ".mts", ".cts", ".js", ".jsx", ".mjs", ".cjs", ".d.ts")
_BUILD_FOLDER = re.compile(
    r"^(?:dist|lib|build|out|es|esm|cjs|distribution)(?:/(?:esm?|cjs|src|types))?/"
)
_SOURCE_FOLDERS = ("", "src/", "source/", "lib/")
_UNKNOWN_MEMBER = Member(kind="unknown")


class ModuleExports(Record):
    """What one file hands out."""

    own: dict[str, Member] = {}
    """By the name given to others."""
    passed: dict[str, tuple[str, str]] = {}
    """Handed on: by name, the module as written and the name there (`*` for all of it)."""
    stars: tuple[str, ...] = ()


class ScriptPackage:
    """One side of a package. Files are read when they are asked for."""

    def __init__(self, read: Callable[[str], bytes | None], paths: Collection[str]) -> None:
        self._read, self._paths = read, paths
        self._exports: dict[str, ModuleExports] = {}
        self._names: dict[str, dict[str, tuple[str, Member]]] = {}

    def find_manifest(self, path: str) -> tuple[str, dict[str, Any]] | None:
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

    def list_entries(self, folder: str, manifest: dict[str, Any]) -> set[str]:
        """Source files that callers import from, as the manifest says or as is usual."""
        named = [manifest.get(key) for key in ("exports", "main", "module", "source", "types")]
        entries = {
            entry
            for value in _nested_strings(named)
            if (entry := self._resolve_entry(folder, value))
        }
        usual = (self._resolve_entry(folder, "index.js"), self._resolve_entry(folder, "main.js"))
        return entries or {entry for entry in usual if entry}

    def _resolve_entry(self, folder: str, value: str) -> str | None:
        value = posixpath.normpath(value)
        stem = re.sub(r"\.d\.[mc]?ts$|\.[mc]?[jt]sx?$", "", _BUILD_FOLDER.sub("", value))
        for written in _SOURCE_FOLDERS:
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

    def load_exports(self, path: str) -> ModuleExports:
        if path not in self._exports:
            language = language_of(path)
            content = self._read(path) if language else None
            known = content is not None and language is not None
            self._exports[path] = read_exports(path, content or b"") if known else ModuleExports()
        return self._exports[path]

    def exported_names(self, path: str) -> dict[str, tuple[str, Member]]:
        """All that a file hands out, with where it is written."""
        if path in self._names:
            return self._names[path]
        names: dict[str, tuple[str, Member]] = {}
        self._names[path] = names  # Files that hand on each other's names find none twice.
        exports = self.load_exports(path)
        for module in exports.stars:
            if target := self.resolve_import(path, module):
                handed = self.exported_names(target).items()
                names |= {name: at for name, at in handed if name.split(".")[0] != "default"}
        names |= {name: (path, member) for name, member in exports.own.items()}
        for name, (module, original) in exports.passed.items():
            target = self.resolve_import(path, module)
            target_names = self.exported_names(target) if target else {}
            names[name] = (path, _UNKNOWN_MEMBER)
            names |= {
                name + each[len(original) :]: at
                for each, at in _nested_names(target_names, original)
            }
        return names

    def resolve_import(self, path: str, module: str) -> str | None:
        """The file of a relative import."""
        if not module.startswith("."):
            return None
        stem = posixpath.normpath(posixpath.join(posixpath.dirname(path), module))
        bare = re.sub(r"\.[mc]?jsx?$", "", stem)
        choices = [stem, *(f"{base}{end}" for base in (stem, bare) for end in _ENDINGS[1:])]
        choices += [f"{stem}/index{end}" for end in _ENDINGS[1:]]
        return next((one for one in choices if one in self._paths), None)


def _nested_strings(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)) and depth < 6:
        for one in value.values() if isinstance(value, dict) else value:
            yield from _nested_strings(one, depth + 1)


def read_exports(path: str, content: bytes) -> ModuleExports:
    """All of one file's exports, ES modules' and CommonJS's."""
    language = language_of(path)
    assert language is not None
    root = parse_syntax_root(language, content)
    reading = _ExportParser(content, root)
    for node in child_nodes(root):
        if node.type == "export_statement":
            reading.read_export(node)
    if language == "javascript" and not reading.own and not reading.passed:
        source = node_source(root)
        reading.own = {
            name: reading.local.get(name, _UNKNOWN_MEMBER) for name in _commonjs_names(source)
        }
        reading.stars += re.findall(r"^module\.exports = require\([\"'](\S+?)[\"']\)", source, re.M)
    return ModuleExports(own=reading.own, passed=reading.passed, stars=tuple(reading.stars))


class _ExportParser:
    def __init__(self, content: bytes, root: Node) -> None:
        self.content = content
        self.local = dict(
            one for node in child_nodes(root) for one in _declared_members(content, node)
        )
        self.own: dict[str, Member] = {}
        self.passed: dict[str, tuple[str, str]] = {}
        self.stars: list[str] = []

    def read_export(self, node: Node) -> None:
        source = child_field(node, "source")
        module = node_source(source).strip("\"'`")
        declaration = child_field(node, "declaration")
        named = next((one for one in child_nodes(node) if one.type == "export_clause"), None)
        if declaration is not None:
            for name, member in _declared_members(self.content, declaration):
                _, _, inner = name.partition(".")
                default = f"default.{inner}" if inner else "default"
                self.own[default if _is_default_export(node) else name] = member
        elif named is not None:
            for one in child_nodes(named):
                name = node_source(child_field(one, "name"))
                alias = node_source(child_field(one, "alias")) or name
                if source:
                    self.passed[alias] = (module, name)
                else:
                    self._export_local(name, alias)
        elif source:
            alias_of_all = re.search(r"\*\s+as\s+(\w+)", node_source(node))
            if alias_of_all:
                self.own[alias_of_all[1]] = _UNKNOWN_MEMBER
            else:
                self.stars.append(module)
        elif _is_default_export(node):
            self._export_local(node_source(child_field(node, "value")), "default")

    def _export_local(self, name: str, alias: str) -> None:
        self.own |= {
            alias + each[len(name) :]: one for each, one in _nested_names(self.local, name)
        }
        self.own.setdefault(alias, _UNKNOWN_MEMBER)


def _nested_names(names: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """A name and those inside it."""
    for each, one in names.items():
        if each == name or each.startswith(f"{name}."):
            yield each, one


def _commonjs_names(source: str) -> Iterator[str]:
    yield from re.findall(r"^(?:module\.)?exports\.([A-Za-z]\w*)\s*=", source, re.MULTILINE)
    if listed := re.search(r"^module\.exports\s*=\s*\{([^{}]{0,4000})\}", source, re.MULTILINE):
        yield from re.findall(r"^\s*(\w+)\s*[:,]?", listed[1].replace(",", "\n"), re.MULTILINE)


def _is_default_export(node: Node) -> bool:
    return node_source(node)[:40].split()[1:2] == ["default"]


def _declared_members(content: bytes, node: Node) -> Iterator[tuple[str, Member]]:
    name = node_source(child_field(node, "name"))
    line, old = node_line(content, node), _has_doc_mark(node, "@deprecated")
    if node.type in (
        "function_declaration",
        "generator_function_declaration",
        "function_signature",
    ):
        yield name or "default", _function_member(content, node, deprecated=old)
    elif node.type in ("class_declaration", "abstract_class_declaration"):
        yield name or "default", Member(kind="class", line=line, deprecated=old)
        for one in child_nodes(child_field(node, "body")):
            yield from _class_members(content, one, name or "default")
    elif node.type == "interface_declaration":
        yield name, Member(kind="class", line=line, deprecated=old)
    elif node.type in ("type_alias_declaration", "enum_declaration", "internal_module"):
        yield name, Member(kind="value", line=line, deprecated=old)
    elif node.type in ("lexical_declaration", "variable_declaration"):
        for one in child_nodes(node):
            value = child_field(one, "value")
            label = node_source(child_field(one, "name"))
            if value is not None and value.type in ("arrow_function", "function_expression"):
                yield label, _function_member(content, value, deprecated=old)
            elif re.fullmatch(r"\w+", label):
                yield label, Member(kind="value", line=line, deprecated=old)


def _class_members(content: bytes, node: Node, owner: str) -> Iterator[tuple[str, Member]]:
    words = node_source(node)[:60].split("(")[0].split()
    name = node_source(child_field(node, "name"))
    if (
        {"private", "protected"} & set(words)
        or name.startswith(("#", "_", "["))
        or _has_doc_mark(node, "@internal")
    ):
        return
    if node.type in ("method_definition", "method_signature", "abstract_method_signature"):
        if {"get", "set"} & set(words[:-1]):
            yield f"{owner}.{name}", Member(kind="property", line=node_line(content, node))
        else:
            old = _has_doc_mark(node, "@deprecated")
            yield f"{owner}.{name}", _function_member(content, node, deprecated=old)
    elif node.type in ("public_field_definition", "field_definition"):
        name = name or node_source(child_field(node, "property"))
        if name.startswith(("#", "_", "[")):
            return
        yield f"{owner}.{name}", Member(kind="value", line=node_line(content, node))


def _function_member(content: bytes, node: Node, *, deprecated: bool) -> Member:
    return Member(
        kind="function",
        line=node_line(content, node),
        parameters=tuple(_read_parameters(child_field(node, "parameters"))),
        deprecated=deprecated,
        body=body_fingerprint(child_field(node, "body")),
    )


def _read_parameters(node: Node | None) -> Iterator[Parameter]:
    """Types are left to the compiler: as written they say too little about what still fits."""
    for number, one in enumerate(child_nodes(node)):
        pattern = child_field(one, "pattern") or child_field(one, "left") or one
        written = node_source(pattern)
        if written == "this":
            continue
        value = child_field(one, "value") or child_field(one, "right")
        optional = value is not None or one.type in ("optional_parameter", "assignment_pattern")
        rest = "rest_pattern" in (pattern.type, one.type)
        yield Parameter(
            name=str(number),
            passing="rest" if rest else "position",
            default=(flat_node_source(value) if value is not None else "undefined")
            if optional
            else None,
        )


def _has_doc_mark(node: Node, mark: str) -> bool:
    """Whether the comment above says so."""
    exported = node.parent is not None and node.parent.type == "export_statement"
    above = node.parent.prev_sibling if exported and node.parent else node.prev_sibling
    return above is not None and above.type == "comment" and mark in node_source(above)
