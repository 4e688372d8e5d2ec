"""Import graph of the repository, from the imports of its files; direct ones only."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from tree_sitter import Node

from closeloop.changes.file_kinds import classify_file, is_test_file, language_of
from closeloop.changes.risk.api_members import parse_syntax_root
from closeloop.changes.risk.change_history import is_product_source
from closeloop.records.change import (
    ChangeSide,
    FileChange,
    Inspection,
    Language,
    RiskFactor,
    SourceImport,
    SourceIndex,
    SourceModule,
    SourceType,
)
from closeloop.text.code_patterns import parse_python
from closeloop.text.wording import compile_lazily, count_with_noun

# Files whose behaviour is unchanged: comments, docstrings, versions in CI.


MAX_COMPARED_BYTES = 500_000
_HASH_COMMENTS = (
    ".yml",
    ".yaml",
    ".toml",
    ".cfg",
    ".ini",
    ".conf",
    ".sh",
    "dockerfile",
    "makefile",
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_WHOLE_COMMENT = compile_lazily(r"\s*#")
_TRAILING_COMMENT = compile_lazily(r"\s+#[^'\"]*$")
_VERSION = compile_lazily(
    r"\b[0-9a-f]{40}\b|(?:\bv)?\d+(?:[.x*]\d*)*(?:-?(?:dev|rc|alpha|beta|nightly)\d*)?"
)
_VERSION_LIST = compile_lazily(r"(['\"]?\w*-?#['\"]?)(?:\s*,\s*['\"]?\w*-?#['\"]?)+")


def leave_out_unchanged_code(inspection: Inspection) -> Inspection:
    """Return the change without files in which only comments, docstrings or layout differ."""
    unchanged = {file.path for file in inspection.files if _has_same_code(inspection, file)}
    # Reformatted files are no longer among the inspected files, but still in the change.
    inspected = {file.path for file in inspection.files}
    sources = {file.path for file in inspection.change.files if language_of(file.path)}
    unchanged |= {path for path in sources - inspected if path.endswith((".py", ".pyi"))}
    if not unchanged:
        return inspection
    change = inspection.change
    return msgspec.structs.replace(
        inspection,
        change=msgspec.structs.replace(
            change, files=tuple(file for file in change.files if file.path not in unchanged)
        ),
        files=tuple(file for file in inspection.files if file.path not in unchanged),
        added={path: lines for path, lines in inspection.added.items() if path not in unchanged},
        removed={
            path: lines for path, lines in inspection.removed.items() if path not in unchanged
        },
    )


def is_version_bump(inspection: Inspection, path: str) -> bool:
    """Return whether a CI file changed only versions: of actions, images and interpreters."""
    before, after = (_read_text(inspection, side, path) for side in _SIDES)
    if before is None or after is None:
        return False
    return _without_versions(before) == _without_versions(after)


def _has_same_code(inspection: Inspection, file: FileChange) -> bool:
    if file.status != "changed" or file.old_path not in (None, file.path):
        return False
    # Tests do not affect the level: there is no need to parse them.
    if classify_file(file.path) == "test":
        return False
    language = language_of(file.path)
    if language is None and not file.path.lower().endswith(_HASH_COMMENTS):
        return False
    if language is not None and not _has_same_names(inspection, file.path):
        return False
    before, after = (_read_text(inspection, side, file.path) for side in _SIDES)
    if before is None or after is None:
        return False
    if language is None:
        return list(_code_lines(before)) == list(_code_lines(after))
    read: Callable[[str], object] = (
        _dump_python if language == "python" else lambda text: _list_tokens(language, text)
    )
    try:
        return read(before) == read(after)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _has_same_names(inspection: Inspection, path: str) -> bool:
    """Return whether both sides contain the same names in order: else they need no comparison."""
    before, after = (inspection.modules.get((side, path)) for side in _SIDES)
    if before is None or after is None or before.broken_lines or after.broken_lines:
        return False
    return _name_sequence(before) == _name_sequence(after)


def _name_sequence(module: SourceModule) -> list[tuple[str, str]]:
    return [(name.text, name.kind) for name in module.names]


def _read_text(inspection: Inspection, side: ChangeSide, path: str) -> str | None:
    content: bytes | None = inspection.sides.read(side, path)
    if content is None or len(content) > MAX_COMPARED_BYTES:
        return None
    return str(content, "utf-8", "replace")


def _dump_python(text: str) -> str:
    """Return the syntax tree as text, without positions and docstrings."""
    tree = parse_python(text)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and node.body and _is_docstring(node.body[0]):
            node.body = node.body[1:]
    return ast.dump(tree)


def _is_docstring(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _list_tokens(language: Language, text: str) -> list[bytes]:
    return [node.text or b"" for node in _walk_leaves(parse_syntax_root(language, text.encode()))]


def _walk_leaves(root: Node) -> Iterator[Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if "comment" in node.type:
            continue
        if node.children:
            waiting.extend(reversed(node.children))
        else:
            yield node


def _code_lines(text: str) -> Iterator[str]:
    """Yield lines without comments; a comment mark inside quotes does not count."""
    for line in text.splitlines():
        if line.strip() and not _WHOLE_COMMENT.match(line):
            yield _TRAILING_COMMENT.sub("", line).rstrip()


def _without_versions(text: str) -> list[str]:
    """Return the file's lines with a placeholder per version; equal ones in a row count once."""
    lines: list[str] = []
    for line in _code_lines(text):
        plain = _VERSION_LIST.sub(r"\1", _VERSION.sub("#", line))
        if "#" not in plain or not lines or lines[-1] != plain:
            lines.append(plain)
    return lines


_SIDES: tuple[ChangeSide, ChangeSide] = ("before", "after")


ImportGraph = Mapping[str, frozenset[str]]
"""The importers of each file."""
_SCRIPT_ENDINGS = (".ts", ".tsx", ".mts", ".cts", ".js", ".jsx", ".mjs", ".cjs", ".d.ts", ".vue")


def build_import_graph(
    imports: Mapping[str, Sequence[SourceImport]], modules: Mapping[str, str]
) -> ImportGraph:
    """Build the graph without tests. `modules` has the folder of each Go module, by name."""
    files = ImportResolver(imports.keys(), modules)
    sources = {path for path in imports if classify_file(path) != "test"}
    importers_by_path: dict[str, set[str]] = {path: set() for path in sources}
    for path in sources:
        language, lines = language_of(path), imports[path]
        if language is None:
            continue
        for line in lines:
            for target in files.resolve_import(language, path, line):
                for real in _follow_reexport(files, imports, target, line):
                    if real != path and real in importers_by_path:
                        importers_by_path[real].add(path)
    return {path: frozenset(importers) for path, importers in importers_by_path.items()}


def _follow_reexport(
    files: ImportResolver,
    imports: Mapping[str, Sequence[SourceImport]],
    target: str,
    line: SourceImport,
) -> Iterator[str]:
    """Yield the named file, and the one behind it if a package only re-exports the name."""
    yield target
    if line.name and target.endswith("/__init__.py"):
        for reexport in imports.get(target, ()):
            if (reexport.alias or reexport.name) == line.name and reexport.module.startswith("."):
                yield from files.resolve_import("python", target, reexport)


class ImportResolver:
    """The repository's files, by the names under which they are imported."""

    def __init__(self, paths: Iterable[str], modules: Mapping[str, str]) -> None:
        self.paths = frozenset(paths)
        self.go = sorted(modules.items(), key=lambda item: -len(item[0]))
        self.folders: dict[str, list[str]] = {}
        self._packages: dict[str, str] = {}
        self.python: dict[str, str] = {}
        self.java: dict[str, list[str]] = {}
        for path in self.paths:
            self.folders.setdefault(posixpath.dirname(path), []).append(path)
            language = language_of(path)
            if language == "python":
                # A stub only describes the source beside it.
                if not path.endswith(".pyi") or path.removesuffix("i") not in self.paths:
                    self.python[self.module_name(path)] = path
            elif language == "java":
                self.java.setdefault(posixpath.basename(path)[: -len(".java")], []).append(path)

    def resolve_import(self, language: Language, path: str, line: SourceImport) -> Iterator[str]:
        """Yield the files that one import resolves to; none for foreign code."""
        return _RESOLVERS[language](self, path, line)

    def module_name(self, path: str) -> str:
        """Return the name of a Python module, starting at the outermost package."""
        folder, _, name = path.rpartition("/")
        stem = name.rpartition(".")[0]
        package = self._package_name(folder)
        return package if stem == "__init__" else f"{package}.{stem}" if package else stem

    def _package_name(self, folder: str) -> str:
        if folder not in self._packages:
            parent, _, name = folder.rpartition("/")
            is_package = folder and f"{folder}/__init__.py" in self.paths
            outer = self._package_name(parent) if is_package else ""
            self._packages[folder] = (f"{outer}.{name}" if outer else name) if is_package else ""
        return self._packages[folder]


def _resolve_python(files: ImportResolver, path: str, line: SourceImport) -> Iterator[str]:
    module = line.module
    if module.startswith("."):
        dots = len(module) - len(module.lstrip("."))
        module_parts = files.module_name(path).split(".")
        package = module_parts if path.endswith("/__init__.py") else module_parts[:-1]
        parent_parts = package[: len(package) - dots + 1]
        module = ".".join([*parent_parts, module.lstrip(".")]).strip(".")
    parts = [*module.split("."), line.name] if line.name else module.split(".")
    while parts:
        if target := files.python.get(".".join(parts)):
            yield target
            return
        parts.pop()


def _resolve_script(files: ImportResolver, path: str, line: SourceImport) -> Iterator[str]:
    if line.module.startswith("."):
        stem = posixpath.normpath(posixpath.join(posixpath.dirname(path), line.module))
    elif line.module.startswith(("@/", "~/")):
        stem = f"src/{line.module[2:]}"
    else:
        return
    bare = re.sub(r"\.[mc]?jsx?$", "", stem)
    choices = [
        stem,
        *(f"{bare}{end}" for end in _SCRIPT_ENDINGS),
        *(f"{stem}{end}" for end in _SCRIPT_ENDINGS),
    ]
    choices += [f"{stem}/index{end}" for end in _SCRIPT_ENDINGS]
    yield from [choice for choice in choices if choice in files.paths][:1]


def _resolve_go(files: ImportResolver, path: str, line: SourceImport) -> Iterator[str]:
    for name, folder in files.go:
        if line.module == name or line.module.startswith(f"{name}/"):
            inner = line.module[len(name) :].strip("/")
            package_folder = "/".join(part for part in (folder, inner) if part)
            yield from (
                file_path
                for file_path in files.folders.get(package_folder, ())
                if not file_path.endswith("_test.go")
            )
            return


def _resolve_java(files: ImportResolver, path: str, line: SourceImport) -> Iterator[str]:
    parts = [*line.module.split("."), *([line.name] if line.name else [])]
    if parts[-1] == "*":
        suffix = "/".join(parts[:-1])
        for folder, folder_paths in files.folders.items():
            if folder == suffix or folder.endswith(f"/{suffix}"):
                yield from folder_paths
        return
    # A nested class or static member is in the file of its outer class.
    for end in range(len(parts), 0, -1):
        suffix = "/".join(parts[:end]) + ".java"
        for file_path in files.java.get(parts[end - 1], ()):
            if file_path == suffix or file_path.endswith(f"/{suffix}"):
                yield file_path
                return


def _resolve_rust(files: ImportResolver, path: str, line: SourceImport) -> Iterator[str]:
    parts = [part for part in line.module.split("::") if part]
    parts += [line.name] if line.name and line.name != "*" else []
    inner = re.match(r"(.*?\bsrc)/(.*?)(?:/mod)?\.rs$", path)
    if not parts or inner is None or parts[0] not in ("crate", "self", "super"):
        return
    module_parts = [] if inner[2] in ("lib", "main") else inner[2].split("/")
    parent_parts: list[str] = []
    if parts[0] in ("self", "super"):
        ups = sum(part == "super" for part in parts)
        parent_parts = module_parts[: len(module_parts) - ups]
    module_path = parent_parts + [part for part in parts if part not in ("crate", "self", "super")]
    while module_path:
        stem = f"{inner[1]}/{'/'.join(module_path)}"
        for candidate in (f"{stem}.rs", f"{stem}/mod.rs"):
            if candidate in files.paths and candidate != path:
                yield candidate
                return
        module_path.pop()


_RESOLVERS: dict[Language, Callable[[ImportResolver, str, SourceImport], Iterator[str]]] = {
    "python": _resolve_python,
    "javascript": _resolve_script,
    "typescript": _resolve_script,
    "tsx": _resolve_script,
    "go": _resolve_go,
    "java": _resolve_java,
    "rust": _resolve_rust,
}


# Shared infrastructure: files whose faults affect more than their own feature.

SHARED_QUANTILE = 0.95
MIN_IMPORTERS = 10
MIN_DERIVED_CLASSES = 3
"""A file is shared if at least MIN_IMPORTERS files import it, and more than import nearly all
others; a base class if at least this many others derive from it."""
_TOOLING_PATHS = compile_lazily(
    r"(?:^|/)(?:\.editorconfig|\.gitignore|\.gitattributes|\.pre-commit-config\.yaml|\.prettier.*|"
    r"\.eslint.*|eslint\.config\.\w+|ruff\.toml|\.flake8|mypy\.ini|tox\.ini|noxfile\.py|\.pylintrc|"
    r"\.golangci\.ya?ml|\.dockerignore|\.npmignore|codecov\.ya?ml|\.codecov\.yml|\.readthedocs\.ya?ml|"
    r"mkdocs\.yml|jest\.config\.\w+|vitest\.config\.\w+|codeowners|justfile|makefile|\.mailmap|"
    r"\.github/(?:dependabot\.yml|issue_template/.*|funding\.yml|.*template.*))$",
    re.IGNORECASE,
)
_KIND_TEXTS = {
    "ci": "changes CI/CD",
    "CI version": "changes versions in CI/CD",
    "schema": "changes a schema",
    "migration": "adds or changes a migration",
    "config": "changes configuration",
    "tooling": "changes the configuration of tools",
}
_KIND_REASONS = {
    "ci": "no test covers what runs there, and it may have access to secrets",
    "CI version": "what runs there may behave differently",
    "schema": "stored data and other programs depend on it",
    "migration": "it changes stored data, which is hard to undo",
    "config": "it can change what the program does without a change of code",
    "tooling": "the program itself stays the same",
}
_KIND_WEIGHTS = {
    "ci": 3.4,
    "CI version": 2.0,
    "schema": 3.8,
    "migration": 3.7,
    "config": 2.1,
    "tooling": 0.5,
}


def kind_factors(inspection: Inspection) -> Iterator[RiskFactor]:
    """Yield factors for CI/CD, schemas, migrations and configuration, by file kind."""
    paths_by_kind: dict[str, list[str]] = {}
    for file in inspection.change.files:
        kind: str = classify_file(file.path)
        if kind == "config" and _TOOLING_PATHS.search(file.path):
            kind = "tooling"
        elif kind == "ci" and file.status == "changed" and is_version_bump(inspection, file.path):
            kind = "CI version"
        if kind in _KIND_TEXTS and (file.added or file.removed or file.binary):
            paths_by_kind.setdefault(kind, []).append(file.path)
    for kind, paths in paths_by_kind.items():
        yield RiskFactor(
            name=kind,
            axis="impact",
            text=f"{_KIND_TEXTS[kind]}: {summarise_paths(paths)}; {_KIND_REASONS[kind]}",
            weight=_KIND_WEIGHTS[kind],
            value=float(len(paths)),
            places=tuple(paths[:5]),
        )


def fan_in_factor(inspection: Inspection, graph: ImportGraph) -> RiskFactor | None:
    """Count the files that import what was changed; unusually many make it a shared utility."""
    sources = [file.path for file in inspection.files if is_product_source(file.path)]
    changed = {file.path for file in inspection.files}
    reached = {
        importer for path in sources for importer in graph.get(path, ()) if importer not in changed
    }
    if not reached:
        return None
    threshold = shared_threshold(graph)
    # A package's `__init__` is imported everywhere, and contains little that can break.
    shared = [
        path
        for path in sources
        if len(graph.get(path, ())) >= threshold and not path.endswith("__init__.py")
    ]
    if shared:
        top = max(shared, key=lambda path: len(graph[path]))
        text = f"changes shared code: {len(graph[top])} files import {top} and can break with it"
        weight = 2.5
    else:
        verb = "imports" if len(reached) == 1 else "import"
        text = (
            f"{count_with_noun(len(reached), 'file')} {verb} the changed code and can break with it"
        )
        weight = 1.2 if len(reached) >= 5 else 0.6
    return RiskFactor(
        name="dependents",
        axis="impact",
        text=text,
        weight=weight,
        value=float(len(reached)),
        places=tuple(sorted(reached)[:5]),
    )


def shared_threshold(graph: ImportGraph) -> int:
    """Return the number of importers from which on a file is shared by the whole repository."""
    counts = sorted(len(importers) for importers in graph.values())
    return (
        max(MIN_IMPORTERS, counts[int(len(counts) * SHARED_QUANTILE)]) if counts else MIN_IMPORTERS
    )


def base_class_factor(inspection: Inspection, graph: ImportGraph) -> RiskFactor | None:
    """Return base classes whose lines the change touches."""
    index: SourceIndex = inspection.index
    derived: dict[str, list[str]] = {}
    for file in inspection.files:
        before = inspection.modules.get(("before", file.old_path or file.path))
        if before is None or is_test_file(file.path):
            continue
        changed_types = {
            touched_type.name
            for touched_type in _touched_types(
                before, inspection.removed, file.old_path or file.path
            )
        }
        after = inspection.modules.get(("after", file.path))
        changed_types |= (
            {
                touched_type.name
                for touched_type in _touched_types(after, inspection.added, file.path)
            }
            if after
            else set()
        )
        changed_types &= {known_type.name for known_type in before.types}
        for importer in sorted(graph.get(file.path, ()))[:200] if changed_types else ():
            module = index.module(importer) if not is_test_file(importer) else None
            for type_ in module.types if module else ():
                for base in {
                    base.rpartition(".")[2].partition("[")[0] for base in type_.bases
                } & changed_types:
                    derived.setdefault(base, []).append(f"{importer}:{type_.first_line}")
    if not derived:
        return None
    top_base = max(derived, key=lambda name: len(derived[name]))
    number = len(derived[top_base])
    verb = "derives" if number == 1 else "derive"
    return RiskFactor(
        name="base class",
        axis="impact",
        text=f"changes the base class `{top_base}`, from which"
        f" {count_with_noun(number, 'class', 'classes')} elsewhere {verb} and inherit the change",
        weight=2.4 if number >= MIN_DERIVED_CLASSES else 1.3,
        value=float(sum(map(len, derived.values()))),
        places=tuple(derived[top_base][:5]),
    )


def _touched_types(
    module: SourceModule, lines: Mapping[str, frozenset[int]], path: str
) -> Iterator[SourceType]:
    changed = lines.get(path, frozenset())
    for type_ in module.types:
        if any(type_.first_line <= line <= type_.last_line for line in changed):
            yield type_


def summarise_paths(paths: list[str]) -> str:
    """Return `a.sql`, or `a.sql and 2 more`."""
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
