"""The public API of Go, Java, Rust, JavaScript and TypeScript sources."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec
from tree_sitter import Node

from closeloop.changes.file_kinds import language_of
from closeloop.changes.risk.api_members import (
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

# Go's public names: what a package's files export.


_INTERNAL_PATHS = re.compile(r"(?:^|/)(?:internal|testdata|vendor|examples?|cmd|test)/|_test\.go$")

_EMPTY_INTERFACE = re.compile(r"\binterface ?\{ ?\}")


def is_public_go_file(path: str) -> bool:
    return path.endswith(".go") and not _INTERNAL_PATHS.search(path)


def read_go_names(content: bytes) -> dict[str, Member]:
    """Return exported names with their members: `Command`, `Command.Execute`."""
    root = parse_syntax_root("go", content)
    if re.search(rb"^package\s+main\b", content, re.MULTILINE):
        return {}
    return {
        name: member
        for node in child_nodes(root)
        for name, member in _go_declared_members(content, node)
        if all(part[:1].isupper() for part in name.split("."))
    }


def _go_declared_members(content: bytes, node: Node) -> Iterator[tuple[str, Member]]:
    if node.type == "function_declaration":
        yield node_source(child_field(node, "name")), _go_function_member(content, node, node)
    elif node.type == "method_declaration":
        receiver = re.search(
            r"(\w+)(?:\[[^\]]*\])?\s*\)$", node_source(child_field(node, "receiver"))
        )
        if receiver:
            yield (
                f"{receiver[1]}.{node_source(child_field(node, 'name'))}",
                _go_function_member(content, node, node),
            )
    elif node.type == "type_declaration":
        for spec in child_nodes(node):
            yield from _go_type_members(content, spec, node)
    elif node.type in ("const_declaration", "var_declaration"):
        for spec in _list_specs(node):
            for name in spec.children_by_field_name("name"):
                kind = _go_type_text(child_field(spec, "type"))
                yield node_source(name), _make_member(content, "value", spec, node, type=kind)


def _list_specs(node: Node) -> Iterator[Node]:
    for child_node in child_nodes(node):
        if child_node.type == "var_spec_list":
            yield from child_nodes(child_node)
        else:
            yield child_node


def _go_type_members(content: bytes, spec: Node, node: Node) -> Iterator[tuple[str, Member]]:
    name, inner = node_source(child_field(spec, "name")), child_field(spec, "type")
    if inner is None:
        return
    kind = inner.type if inner.type in ("struct_type", "interface_type") else _go_type_text(inner)
    kind = f"= {kind}" if spec.type == "type_alias" else kind
    yield name, _make_member(content, "class", spec, node, type=kind)
    if inner.type == "struct_type":
        for declaration in (
            child_node for block in child_nodes(inner) for child_node in child_nodes(block)
        ):
            for label in declaration.children_by_field_name("name"):
                kind = _go_type_text(child_field(declaration, "type"))
                yield (
                    f"{name}.{node_source(label)}",
                    _make_member(content, "value", declaration, declaration, type=kind),
                )
    elif inner.type == "interface_type":
        for child_node in child_nodes(inner):
            if child_node.type == "method_elem":
                yield (
                    f"{name}.{node_source(child_field(child_node, 'name'))}",
                    _go_function_member(content, child_node, child_node),
                )


def _go_function_member(content: bytes, node: Node, commented: Node) -> Member:
    return Member(
        kind="function",
        line=node_line(content, node),
        parameters=tuple(_read_go_parameters(child_field(node, "parameters"))),
        type=_result_type(child_field(node, "result")),
        deprecated=_has_go_deprecation(commented),
        body=body_fingerprint(child_field(node, "body")),
    )


def _make_member(content: bytes, kind: str, node: Node, commented: Node, *, type: str) -> Member:  # noqa: A002
    return Member(
        kind="class" if kind == "class" else "value",
        line=node_line(content, node),
        type=type,
        deprecated=_has_go_deprecation(commented),
    )


def _read_go_parameters(node: Node | None) -> Iterator[Parameter]:
    for child_node in child_nodes(node):
        kind = _go_type_text(child_field(child_node, "type"))
        is_variadic = child_node.type == "variadic_parameter_declaration"
        names = [node_source(name) for name in child_node.children_by_field_name("name")] or [""]
        for name in names:
            yield Parameter(name=name, type=kind, passing="rest" if is_variadic else "position")


def _go_type_text(node: Node | None) -> str:
    """Return a type as written, without parameter names of function types."""
    if node is None or node.type != "function_type":
        return _EMPTY_INTERFACE.sub("any", flat_node_source(node))
    takes = ", ".join(
        go_parameter.type for go_parameter in _read_go_parameters(child_field(node, "parameters"))
    )
    return f"func({takes}) {_result_type(child_field(node, 'result'))}".rstrip()


def expand_aliases(names: Mapping[str, tuple[str, Member]]) -> dict[str, tuple[str, Member]]:
    """Expand aliases (`type A = B`), which are the same type."""
    aliases = {name: m.type[2:] for name, (_, m) in names.items() if m.type.startswith("= ")}
    if not aliases:
        return dict(names)
    alias = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, aliases))})\b")

    def plainly(type_text: str) -> str:
        for _ in range(4):
            type_text = alias.sub(lambda match: aliases[match[0]], type_text)
        return type_text

    def whole(member: Member) -> Member:
        parameters = member.parameters and tuple(
            msgspec.structs.replace(parameter, type=plainly(parameter.type))
            for parameter in member.parameters
        )
        return msgspec.structs.replace(
            member, type=plainly(member.type).removeprefix("= "), parameters=parameters
        )

    return {name: (path, whole(member)) for name, (path, member) in names.items()}


def _result_type(node: Node | None) -> str:
    """Return the types of results without their names, which may change freely."""
    if node is None or node.type != "parameter_list":
        return _go_type_text(node)
    types = [go_parameter.type for go_parameter in _read_go_parameters(node)]
    return types[0] if len(types) == 1 else f"({', '.join(types)})"


def _has_go_deprecation(node: Node) -> bool:
    sibling = node.prev_sibling
    comment_text = ""
    while sibling is not None and sibling.type == "comment":
        comment_text = node_source(sibling) + comment_text
        sibling = sibling.prev_sibling
    return "Deprecated:" in comment_text


# Java's public names: types, methods by their parameter types, and fields.


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
    """Return public and protected names: `Gson`, `Gson.toJson(Object)`, `Gson.DEFAULT`."""
    root = parse_syntax_root("java", content)
    package = next(
        (
            flat_node_source(child_node)
            for child_node in child_nodes(root)
            if child_node.type == "package_declaration"
        ),
        "",
    )
    if re.search(r"\binternal\b", package):
        return {}
    names: dict[str, Member] = {}
    for node in child_nodes(root):
        if node.type in _TYPE_NODES:
            names.update(_java_type_members(content, node, "", implied=False))
    return names


def _java_type_members(
    content: bytes, node: Node, prefix: str, *, implied: bool
) -> Iterator[tuple[str, Member]]:
    if not implied and not _is_visible(node):
        return
    name = f"{prefix}{node_source(child_field(node, 'name'))}"
    final = "final" in _modifier_text(node) or node.type != "class_declaration"
    yield (
        name,
        Member(kind="class", line=node_line(content, node), deprecated=_has_java_deprecation(node)),
    )
    if node.type == "record_declaration":
        parameters = tuple(_read_java_parameters(child_field(node, "parameters")))
        yield (
            _method_signature(name, name, parameters),
            Member(kind="function", line=node_line(content, node), parameters=parameters),
        )
    for body_node in _body_nodes(child_field(node, "body")):
        inner = node.type in _INTERFACE_NODES
        if body_node.type in _TYPE_NODES:
            yield from _java_type_members(content, body_node, f"{name}.", implied=inner)
        elif body_node.type == "enum_constant":
            yield (
                f"{name}.{node_source(child_field(body_node, 'name'))}",
                Member(
                    kind="value",
                    line=node_line(content, body_node),
                    deprecated=_has_java_deprecation(body_node),
                ),
            )
        elif inner or _is_visible(body_node, final=final):
            yield from _java_declared_members(content, body_node, name)


def _body_nodes(body: Node | None) -> Iterator[Node]:
    for child_node in child_nodes(body):
        if child_node.type == "enum_body_declarations":
            yield from child_nodes(child_node)
        else:
            yield child_node


def _java_declared_members(content: bytes, node: Node, owner: str) -> Iterator[tuple[str, Member]]:
    line, old = node_line(content, node), _has_java_deprecation(node)
    if node.type in ("method_declaration", "constructor_declaration"):
        parameters = tuple(_read_java_parameters(child_field(node, "parameters")))
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
        for declarator in node.children_by_field_name("declarator"):
            name = node_source(child_field(declarator, "name"))
            yield f"{owner}.{name}", Member(kind="value", line=line, type=kind, deprecated=old)


def _method_signature(full: str, name: str, parameters: tuple[Parameter, ...]) -> str:
    return f"{full}({', '.join(parameter.type for parameter in parameters)})"


def _read_java_parameters(node: Node | None) -> Iterator[Parameter]:
    for child_node in child_nodes(node):
        if child_node.type == "spread_parameter":
            kind = flat_node_source(
                next(
                    (
                        child_node
                        for child_node in child_nodes(child_node)
                        if child_node.type != "modifiers"
                    ),
                    None,
                )
            )
            yield Parameter(name="", type=f"{kind}...", passing="position")
        elif child_node.type == "formal_parameter":
            kind = re.sub(
                r"<.*>|@\w+(?:\([^)]*\))?\s*", "", flat_node_source(child_field(child_node, "type"))
            )
            yield Parameter(
                name=node_source(child_field(child_node, "name")), type=kind, passing="position"
            )


def _modifier_text(node: Node) -> str:
    return next(
        (flat_node_source(child) for child in node.children if child.type == "modifiers"), ""
    )


def _is_visible(node: Node, *, final: bool = False) -> bool:
    modifiers = _modifier_text(node).split()
    return "public" in modifiers or ("protected" in modifiers and not final)


def _has_java_deprecation(node: Node) -> bool:
    sibling = node.prev_sibling
    javadoc = node_source(sibling) if sibling is not None and "comment" in sibling.type else ""
    return "@Deprecated" in _modifier_text(node) or "@deprecated" in javadoc


# Rust's public names: what a library crate's modules export, directly or through `pub use`.


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
    """One side of a library crate. Files are read on demand."""

    def __init__(self, read: Callable[[str], bytes | None], paths: Collection[str]) -> None:
        self._read, self._paths = read, paths

    def source_root(self, path: str) -> str | None:
        """Return the source folder of a file's library, with a trailing slash."""
        folder = path.rpartition("/")[0]
        while True:
            if f"{folder}/lib.rs".lstrip("/") in self._paths:
                return f"{folder}/" if folder else ""
            if not folder:
                return None
            folder = folder.rpartition("/")[0]

    def public_names(self, path: str) -> dict[str, tuple[str, Member]]:
        """Return a file's public names by the path callers use, including parents' re-exports."""
        root, content = self.source_root(path), self._read(path) if path in self._paths else None
        if root is None or content is None:
            return {}
        inner = path.removeprefix(root).removesuffix(".rs").removesuffix("/mod")
        modules = [] if inner == "lib" else inner.split("/")
        crate = self._crate_name(root)
        members = read_rust_names(content)
        if self._is_public_path(root, modules):
            prefix = ".".join([crate, *modules])
            return {f"{prefix}.{name}": (path, member) for name, member in members.items()}
        reexported = self._reexported_names(root, modules)
        return {
            f"{crate}.{name}": (path, member)
            for name, member in members.items()
            if "*" in reexported or name.partition(".")[0] in reexported
        }

    def _crate_name(self, root: str) -> str:
        """Return the name under which others use it."""
        manifest = self._read(re.sub(r"src/$", "", root) + "Cargo.toml") or b""
        name_match = re.search(rb"^name\s*=\s*\"([\w-]+)\"", manifest, re.MULTILINE)
        return name_match[1].decode().replace("-", "_") if name_match else "crate"

    def _module_file(self, root: str, modules: list[str]) -> str | None:
        if not modules:
            return f"{root}lib.rs"
        stem = root + "/".join(modules)
        return next(
            (
                candidate
                for candidate in (f"{stem}.rs", f"{stem}/mod.rs")
                if candidate in self._paths
            ),
            None,
        )

    def _is_public_path(self, root: str, modules: list[str]) -> bool:
        """Return whether every module on the path is declared public."""
        for depth, name in enumerate(modules):
            parent_file = self._module_file(root, modules[:depth])
            content = (self._read(parent_file) if parent_file else None) or b""
            if not re.search(rb"^\s*pub\s+mod\s+%s\b" % name.encode(), content, re.MULTILINE):
                return False
        return True

    def _reexported_names(self, root: str, modules: list[str]) -> set[str]:
        """Return names that public `use` lines of parent modules take from this one."""
        names: set[str] = set()
        for depth in range(len(modules)):
            parent_file = self._module_file(root, modules[:depth])
            content = ((self._read(parent_file) if parent_file else None) or b"").decode(
                "utf-8", "replace"
            )
            for use_path in re.findall(r"^\s*pub\s+use\s+([^;]{1,2000});", content, re.MULTILINE):
                if re.search(rf"\b{re.escape(modules[-1])}\b", use_path):
                    names.update(re.findall(r"\w+|\*", use_path.partition(modules[-1])[2]))
        return names


def read_rust_names(content: bytes) -> dict[str, Member]:
    """Return names such as `Searcher`, `Searcher.new`, with fields, variants and trait methods."""
    return dict(_list_members(content, parse_syntax_root("rust", content), ""))


def _list_members(content: bytes, block: Node, prefix: str) -> Iterator[tuple[str, Member]]:
    for node in child_nodes(block):
        name = f"{prefix}{node_source(child_field(node, 'name'))}"
        if node.type == "impl_item" and child_field(node, "trait") is None:
            owner = re.sub(r"<.*", "", node_source(child_field(node, "type")))
            for child_node in child_nodes(child_field(node, "body")):
                if child_node.type == "function_item" and _is_public(child_node):
                    yield (
                        f"{prefix}{owner}.{node_source(child_field(child_node, 'name'))}",
                        _rust_function_member(content, child_node),
                    )
        elif node.type == "macro_definition" and "macro_export" in _attribute_text(node):
            yield f"{name}!", Member(kind="value", line=node_line(content, node))
        elif _is_public(node):
            yield from _public_members(content, node, name)


def _public_members(content: bytes, node: Node, name: str) -> Iterator[tuple[str, Member]]:
    if node.type == "function_item":
        yield name, _rust_function_member(content, node)
    elif node.type in _ITEM_KINDS:
        yield name, _item_member(content, node)
        yield from _inner_members(content, node, name)
    elif node.type == "mod_item" and "cfg(test)" not in _attribute_text(node):
        body = child_field(node, "body")
        if body is not None:
            yield from _list_members(content, body, f"{name}.")


def _inner_members(content: bytes, node: Node, owner: str) -> Iterator[tuple[str, Member]]:
    for child_node in child_nodes(child_field(node, "body")):
        name = f"{owner}.{node_source(child_field(child_node, 'name'))}"
        if "._" in name:
            continue
        if child_node.type == "enum_variant":
            yield (
                name,
                Member(
                    kind="value",
                    line=node_line(content, child_node),
                    type=_rust_type_text(child_field(child_node, "body")),
                ),
            )
        elif child_node.type == "field_declaration" and _is_public(child_node):
            kind = _rust_type_text(child_field(child_node, "type"))
            yield name, Member(kind="value", line=node_line(content, child_node), type=kind)
        elif child_node.type in ("function_item", "function_signature_item"):
            yield name, _rust_function_member(content, child_node)


def _item_member(content: bytes, node: Node) -> Member:
    kind = _rust_type_text(child_field(node, "type"))
    return Member(
        kind="class" if _ITEM_KINDS[node.type] == "class" else "value",
        line=node_line(content, node),
        type=kind,
        deprecated="deprecated" in _attribute_text(node),
    )


def _rust_function_member(content: bytes, node: Node) -> Member:
    return Member(
        kind="function",
        line=node_line(content, node),
        parameters=tuple(
            Parameter(
                name="",
                type=_rust_type_text(child_field(child_node, "type"))
                or flat_node_source(child_node),
                passing="position",
            )
            for child_node in child_nodes(child_field(node, "parameters"))
            if child_node.type in ("parameter", "self_parameter")
        ),
        type=_rust_type_text(child_field(node, "return_type")),
        deprecated="deprecated" in _attribute_text(node),
        waiting="async" in node_source(node)[:60].split("fn")[0],
        body=body_fingerprint(child_field(node, "body")),
    )


def _rust_type_text(node: Node | None) -> str:
    """Return a type as written, without its module path and lifetime names."""
    return re.sub(r"\b(?:\w+::)+|'\w+ ?|\s+", "", node_source(node))


def _is_public(node: Node) -> bool:
    return any(
        child.type == "visibility_modifier" and node_source(child) == "pub"
        for child in node.children
    ) and ("doc(hidden)" not in _attribute_text(node))


def _attribute_text(node: Node) -> str:
    sibling, attributes = node.prev_sibling, ""
    while sibling is not None and sibling.type in ("attribute_item", "line_comment"):
        attributes += node_source(sibling) if sibling.type == "attribute_item" else ""
        sibling = sibling.prev_sibling
    return attributes


# JavaScript and TypeScript: what a package's entries export, also through other files.


_ENDINGS = ("", ".ts", ".tsx", ".mts", ".cts", ".js", ".jsx", ".mjs", ".cjs", ".d.ts")
_BUILD_FOLDER = re.compile(
    r"^(?:dist|lib|build|out|es|esm|cjs|distribution)(?:/(?:esm?|cjs|src|types))?/"
)
_SOURCE_FOLDERS = ("", "src/", "source/", "lib/")
_UNKNOWN_MEMBER = Member(kind="unknown")


class ModuleExports(Record):
    """The exports of one file."""

    own: dict[str, Member] = {}
    """Own definitions, by exported name."""
    passed: dict[str, tuple[str, str]] = {}
    """Re-exports: by name, the module as written and the name there (`*` for all)."""
    stars: tuple[str, ...] = ()


class ScriptPackage:
    """One side of a package. Files are read on demand."""

    def __init__(self, read: Callable[[str], bytes | None], paths: Collection[str]) -> None:
        self._read, self._paths = read, paths
        self._exports: dict[str, ModuleExports] = {}
        self._names: dict[str, dict[str, tuple[str, Member]]] = {}

    def find_manifest(self, path: str) -> tuple[str, dict[str, Any]] | None:
        """Return the folder, with trailing slash, and content of a file's package.json."""
        folder = path
        while folder:
            folder = folder.rpartition("/")[0]
            manifest_path = f"{folder}/package.json" if folder else "package.json"
            if manifest_path in self._paths:
                try:
                    data = msgspec.json.decode(self._read(manifest_path) or b"")
                except (ValueError, RecursionError):
                    return None
                return (f"{folder}/" if folder else ""), data if isinstance(data, dict) else {}
        return None

    def list_entries(self, folder: str, manifest: dict[str, Any]) -> set[str]:
        """Return source files that callers import from, by the manifest or by convention."""
        entry_values = [
            manifest.get(key) for key in ("exports", "main", "module", "source", "types")
        ]
        entries = {
            entry
            for value in _nested_strings(entry_values)
            if (entry := self._resolve_entry(folder, value))
        }
        usual = (self._resolve_entry(folder, "index.js"), self._resolve_entry(folder, "main.js"))
        return entries or {entry for entry in usual if entry}

    def _resolve_entry(self, folder: str, value: str) -> str | None:
        value = posixpath.normpath(value)
        stem = re.sub(r"\.d\.[mc]?ts$|\.[mc]?[jt]sx?$", "", _BUILD_FOLDER.sub("", value))
        for source_folder in _SOURCE_FOLDERS:
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
                if f"{folder}{source_folder}{stem}{ending}" in self._paths:
                    return f"{folder}{source_folder}{stem}{ending}"
        return folder + value if folder + value in self._paths else None

    def load_exports(self, path: str) -> ModuleExports:
        if path not in self._exports:
            language = language_of(path)
            content = self._read(path) if language else None
            is_readable = content is not None and language is not None
            self._exports[path] = (
                read_exports(path, content or b"") if is_readable else ModuleExports()
            )
        return self._exports[path]

    def exported_names(self, path: str) -> dict[str, tuple[str, Member]]:
        """Return all exports of a file, with where each is defined."""
        if path in self._names:
            return self._names[path]
        names: dict[str, tuple[str, Member]] = {}
        self._names[path] = names  # Files that re-export each other's names are visited once.
        exports = self.load_exports(path)
        for module in exports.stars:
            if target := self.resolve_import(path, module):
                target_exports = self.exported_names(target).items()
                names |= {
                    name: definition
                    for name, definition in target_exports
                    if name.split(".")[0] != "default"
                }
        names |= {name: (path, member) for name, member in exports.own.items()}
        for name, (module, original) in exports.passed.items():
            target = self.resolve_import(path, module)
            target_names = self.exported_names(target) if target else {}
            names[name] = (path, _UNKNOWN_MEMBER)
            names |= {
                name + export_name[len(original) :]: definition
                for export_name, definition in _nested_names(target_names, original)
            }
        return names

    def resolve_import(self, path: str, module: str) -> str | None:
        """Return the file of a relative import."""
        if not module.startswith("."):
            return None
        stem = posixpath.normpath(posixpath.join(posixpath.dirname(path), module))
        bare = re.sub(r"\.[mc]?jsx?$", "", stem)
        choices = [stem, *(f"{base}{end}" for base in (stem, bare) for end in _ENDINGS[1:])]
        choices += [f"{stem}/index{end}" for end in _ENDINGS[1:]]
        return next((choice for choice in choices if choice in self._paths), None)


def _nested_strings(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)) and depth < 6:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _nested_strings(item, depth + 1)


def read_exports(path: str, content: bytes) -> ModuleExports:
    """Read all exports of one file, of ES modules and CommonJS."""
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
            declared_member
            for node in child_nodes(root)
            for declared_member in _script_declared_members(content, node)
        )
        self.own: dict[str, Member] = {}
        self.passed: dict[str, tuple[str, str]] = {}
        self.stars: list[str] = []

    def read_export(self, node: Node) -> None:
        source = child_field(node, "source")
        module = node_source(source).strip("\"'`")
        declaration = child_field(node, "declaration")
        export_clause = next(
            (child_node for child_node in child_nodes(node) if child_node.type == "export_clause"),
            None,
        )
        if declaration is not None:
            for name, member in _script_declared_members(self.content, declaration):
                _, _, inner = name.partition(".")
                default = f"default.{inner}" if inner else "default"
                self.own[default if _is_default_export(node) else name] = member
        elif export_clause is not None:
            for child_node in child_nodes(export_clause):
                name = node_source(child_field(child_node, "name"))
                alias = node_source(child_field(child_node, "alias")) or name
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
            alias + local_name[len(name) :]: member
            for local_name, member in _nested_names(self.local, name)
        }
        self.own.setdefault(alias, _UNKNOWN_MEMBER)


def _nested_names(names: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """Yield a name and its members."""
    for full_name, value in names.items():
        if full_name == name or full_name.startswith(f"{name}."):
            yield full_name, value


def _commonjs_names(source: str) -> Iterator[str]:
    yield from re.findall(r"^(?:module\.)?exports\.([A-Za-z]\w*)\s*=", source, re.MULTILINE)
    if export_list := re.search(
        r"^module\.exports\s*=\s*\{([^{}]{0,4000})\}", source, re.MULTILINE
    ):
        yield from re.findall(r"^\s*(\w+)\s*[:,]?", export_list[1].replace(",", "\n"), re.MULTILINE)


def _is_default_export(node: Node) -> bool:
    return node_source(node)[:40].split()[1:2] == ["default"]


def _script_declared_members(content: bytes, node: Node) -> Iterator[tuple[str, Member]]:
    name = node_source(child_field(node, "name"))
    line, old = node_line(content, node), _has_doc_mark(node, "@deprecated")
    if node.type in (
        "function_declaration",
        "generator_function_declaration",
        "function_signature",
    ):
        yield name or "default", _script_function_member(content, node, deprecated=old)
    elif node.type in ("class_declaration", "abstract_class_declaration"):
        yield name or "default", Member(kind="class", line=line, deprecated=old)
        for child_node in child_nodes(child_field(node, "body")):
            yield from _class_members(content, child_node, name or "default")
    elif node.type == "interface_declaration":
        yield name, Member(kind="class", line=line, deprecated=old)
    elif node.type in ("type_alias_declaration", "enum_declaration", "internal_module"):
        yield name, Member(kind="value", line=line, deprecated=old)
    elif node.type in ("lexical_declaration", "variable_declaration"):
        for child in child_nodes(node):
            value = child_field(child, "value")
            label = node_source(child_field(child, "name"))
            if value is not None and value.type in ("arrow_function", "function_expression"):
                yield label, _script_function_member(content, value, deprecated=old)
            elif re.fullmatch(r"\w+", label):
                yield label, Member(kind="value", line=line, deprecated=old)


def _class_members(content: bytes, node: Node, owner: str) -> Iterator[tuple[str, Member]]:
    modifiers = node_source(node)[:60].split("(")[0].split()
    name = node_source(child_field(node, "name"))
    if (
        {"private", "protected"} & set(modifiers)
        or name.startswith(("#", "_", "["))
        or _has_doc_mark(node, "@internal")
    ):
        return
    if node.type in ("method_definition", "method_signature", "abstract_method_signature"):
        if {"get", "set"} & set(modifiers[:-1]):
            yield f"{owner}.{name}", Member(kind="property", line=node_line(content, node))
        else:
            old = _has_doc_mark(node, "@deprecated")
            yield f"{owner}.{name}", _script_function_member(content, node, deprecated=old)
    elif node.type in ("public_field_definition", "field_definition"):
        name = name or node_source(child_field(node, "property"))
        if name.startswith(("#", "_", "[")):
            return
        yield f"{owner}.{name}", Member(kind="value", line=node_line(content, node))


def _script_function_member(content: bytes, node: Node, *, deprecated: bool) -> Member:
    return Member(
        kind="function",
        line=node_line(content, node),
        parameters=tuple(_read_script_parameters(child_field(node, "parameters"))),
        deprecated=deprecated,
        body=body_fingerprint(child_field(node, "body")),
    )


def _read_script_parameters(node: Node | None) -> Iterator[Parameter]:
    """Yield parameters without types: as written they say too little about what still fits."""
    for number, child in enumerate(child_nodes(node)):
        pattern = child_field(child, "pattern") or child_field(child, "left") or child
        parameter_name = node_source(pattern)
        if parameter_name == "this":
            continue
        value = child_field(child, "value") or child_field(child, "right")
        optional = value is not None or child.type in ("optional_parameter", "assignment_pattern")
        is_rest = "rest_pattern" in (pattern.type, child.type)
        yield Parameter(
            name=str(number),
            passing="rest" if is_rest else "position",
            default=(flat_node_source(value) if value is not None else "undefined")
            if optional
            else None,
        )


def _has_doc_mark(node: Node, tag: str) -> bool:
    """Return whether the comment above has the mark."""
    exported = node.parent is not None and node.parent.type == "export_statement"
    sibling = node.parent.prev_sibling if exported and node.parent else node.prev_sibling
    return sibling is not None and sibling.type == "comment" and tag in node_source(sibling)
