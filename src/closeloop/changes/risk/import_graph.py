"""Who imports whom in the repository, by the imports of its files alone; direct ones only."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from closeloop.changes.file_kinds import classify_file, language_of
from closeloop.records.inspection import Language, SourceImport

ImportGraph = Mapping[str, frozenset[str]]
"""By file, the files that import it."""
_SCRIPT_ENDINGS = (".ts", ".tsx", ".mts", ".cts", ".js", ".jsx", ".mjs", ".cjs", ".d.ts", ".vue")


def build_import_graph(
    imports: Mapping[str, Sequence[SourceImport]], modules: Mapping[str, str]
) -> ImportGraph:
    """The whole graph, without tests. `modules` says the folder of each Go module, by its name."""
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
    """The file that is named, and the one behind it where a package only hands the name on."""
    yield target
    if line.name and target.endswith("/__init__.py"):
        for handed in imports.get(target, ()):
            if (handed.alias or handed.name) == line.name and handed.module.startswith("."):
                yield from files.resolve_import("python", target, handed)


class ImportResolver:
    """The repository's files, by the names under which imports know them."""

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
                self.python[self.module_name(path)] = path
            elif language == "java":
                self.java.setdefault(posixpath.basename(path)[: -len(".java")], []).append(path)

    def resolve_import(self, language: Language, path: str, line: SourceImport) -> Iterator[str]:
        """The files that one import leads to; none for what is not written here."""
        return _RESOLVERS[language](self, path, line)

    def module_name(self, path: str) -> str:
        """The name of a Python module, from the outermost package on."""
        folder, _, name = path.rpartition("/")
        stem = name.rpartition(".")[0]
        package = self._package_name(folder)
        return package if stem == "__init__" else f"{package}.{stem}" if package else stem

    def _package_name(self, folder: str) -> str:
        if folder not in self._packages:
            above, _, name = folder.rpartition("/")
            inside = folder and f"{folder}/__init__.py" in self.paths
            outer = self._package_name(above) if inside else ""
            self._packages[folder] = (f"{outer}.{name}" if outer else name) if inside else ""
        return self._packages[folder]


def _resolve_python(files: ImportResolver, path: str, line: SourceImport) -> Iterator[str]:
    module = line.module
    if module.startswith("."):
        dots = len(module) - len(module.lstrip("."))
        module_parts = files.module_name(path).split(".")
        package = module_parts if path.endswith("/__init__.py") else module_parts[:-1]
        above = package[: len(package) - dots + 1]
        module = ".".join([*above, module.lstrip(".")]).strip(".")
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
    yield from [one for one in choices if one in files.paths][:1]


def _resolve_go(files: ImportResolver, path: str, line: SourceImport) -> Iterator[str]:
    for name, folder in files.go:
        if line.module == name or line.module.startswith(f"{name}/"):
            inner = line.module[len(name) :].strip("/")
            place = "/".join(part for part in (folder, inner) if part)
            yield from (one for one in files.folders.get(place, ()) if not one.endswith("_test.go"))
            return


def _resolve_java(files: ImportResolver, path: str, line: SourceImport) -> Iterator[str]:
    parts = [*line.module.split("."), *([line.name] if line.name else [])]
    if parts[-1] == "*":
        place = "/".join(parts[:-1])
        for folder, inside in files.folders.items():
            if folder == place or folder.endswith(f"/{place}"):
                yield from inside
        return
    # A nested class or a static member lies in the file of the class around it.
    for end in range(len(parts), 0, -1):
        place = "/".join(parts[:end]) + ".java"
        for one in files.java.get(parts[end - 1], ()):
            if one == place or one.endswith(f"/{place}"):
                yield one
                return


def _resolve_rust(files: ImportResolver, path: str, line: SourceImport) -> Iterator[str]:
    parts = [part for part in line.module.split("::") if part]
    parts += [line.name] if line.name and line.name != "*" else []
    inner = re.match(r"(.*?\bsrc)/(.*?)(?:/mod)?\.rs$", path)
    if not parts or inner is None or parts[0] not in ("crate", "self", "super"):
        return
    module_parts = [] if inner[2] in ("lib", "main") else inner[2].split("/")
    above: list[str] = []
    if parts[0] in ("self", "super"):
        ups = sum(part == "super" for part in parts)
        above = module_parts[: len(module_parts) - ups]
    rest = above + [part for part in parts if part not in ("crate", "self", "super")]
    while rest:
        stem = f"{inner[1]}/{'/'.join(rest)}"
        for one in (f"{stem}.rs", f"{stem}/mod.rs"):
            if one in files.paths and one != path:
                yield one
                return
        rest.pop()


_RESOLVERS: dict[Language, Callable[[ImportResolver, str, SourceImport], Iterator[str]]] = {
    "python": _resolve_python,
    "javascript": _resolve_script,
    "typescript": _resolve_script,
    "tsx": _resolve_script,
    "go": _resolve_go,
    "java": _resolve_java,
    "rust": _resolve_rust,
}
