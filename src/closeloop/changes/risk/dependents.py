"""Who imports whom in the repository, by the imports of its files alone; direct ones only."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from closeloop.changes.kinds import kind_of, language_of
from closeloop.model.inspection import Import, Language

Graph = Mapping[str, frozenset[str]]
"""By file, the files that import it."""
_SCRIPTS = (".ts", ".tsx", ".mts", ".cts", ".js", ".jsx", ".mjs", ".cjs", ".d.ts", ".vue")


def graph_of(imports: Mapping[str, Sequence[Import]], modules: Mapping[str, str]) -> Graph:
    """The whole graph, without tests. `modules` says the folder of each Go module, by its name."""
    files = Files(imports.keys(), modules)
    sources = {path for path in imports if kind_of(path) != "test"}
    found: dict[str, set[str]] = {path: set() for path in sources}
    for path in sources:
        language, lines = language_of(path), imports[path]
        if language is None:
            continue
        for line in lines:
            for target in files.targets(language, path, line):
                for real in _behind(files, imports, target, line):
                    if real != path and real in found:
                        found[real].add(path)
    return {path: frozenset(importers) for path, importers in found.items()}


def _behind(
    files: Files, imports: Mapping[str, Sequence[Import]], target: str, line: Import
) -> Iterator[str]:
    """The file that is named, and the one behind it where a package only hands the name on."""
    yield target
    if line.name and target.endswith("/__init__.py"):
        for handed in imports.get(target, ()):
            if (handed.alias or handed.name) == line.name and handed.module.startswith("."):
                yield from files.targets("python", target, handed)


class Files:
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
                self.python[self.dotted(path)] = path
            elif language == "java":
                self.java.setdefault(posixpath.basename(path)[: -len(".java")], []).append(path)

    def targets(self, language: Language, path: str, line: Import) -> Iterator[str]:
        """The files that one import leads to; none for what is not written here."""
        return _RESOLVE[language](self, path, line)

    def dotted(self, path: str) -> str:
        """The name of a Python module, from the outermost package on."""
        folder, _, name = path.rpartition("/")
        stem = name.rpartition(".")[0]
        package = self._package(folder)
        return package if stem == "__init__" else f"{package}.{stem}" if package else stem

    def _package(self, folder: str) -> str:
        if folder not in self._packages:
            above, _, name = folder.rpartition("/")
            inside = folder and f"{folder}/__init__.py" in self.paths
            outer = self._package(above) if inside else ""
            self._packages[folder] = (f"{outer}.{name}" if outer else name) if inside else ""
        return self._packages[folder]


def _python(files: Files, path: str, line: Import) -> Iterator[str]:
    module = line.module
    if module.startswith("."):
        dots = len(module) - len(module.lstrip("."))
        here = files.dotted(path).split(".")
        package = here if path.endswith("/__init__.py") else here[:-1]
        above = package[: len(package) - dots + 1]
        module = ".".join([*above, module.lstrip(".")]).strip(".")
    parts = [*module.split("."), line.name] if line.name else module.split(".")
    while parts:
        if found := files.python.get(".".join(parts)):
            yield found
            return
        parts.pop()


def _scripts(files: Files, path: str, line: Import) -> Iterator[str]:
    if line.module.startswith("."):
        stem = posixpath.normpath(posixpath.join(posixpath.dirname(path), line.module))
    elif line.module.startswith(("@/", "~/")):
        stem = f"src/{line.module[2:]}"
    else:
        return
    bare = re.sub(r"\.[mc]?jsx?$", "", stem)
    choices = [stem, *(f"{bare}{end}" for end in _SCRIPTS), *(f"{stem}{end}" for end in _SCRIPTS)]
    choices += [f"{stem}/index{end}" for end in _SCRIPTS]
    yield from [one for one in choices if one in files.paths][:1]


def _go(files: Files, path: str, line: Import) -> Iterator[str]:
    for name, folder in files.go:
        if line.module == name or line.module.startswith(f"{name}/"):
            inner = line.module[len(name) :].strip("/")
            place = "/".join(part for part in (folder, inner) if part)
            yield from (one for one in files.folders.get(place, ()) if not one.endswith("_test.go"))
            return


def _java(files: Files, path: str, line: Import) -> Iterator[str]:
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


def _rust(files: Files, path: str, line: Import) -> Iterator[str]:
    parts = [part for part in line.module.split("::") if part]
    parts += [line.name] if line.name and line.name != "*" else []
    inner = re.match(r"(.*?\bsrc)/(.*?)(?:/mod)?\.rs$", path)
    if not parts or inner is None or parts[0] not in ("crate", "self", "super"):
        return
    here = [] if inner[2] in ("lib", "main") else inner[2].split("/")
    above: list[str] = []
    if parts[0] in ("self", "super"):
        ups = sum(part == "super" for part in parts)
        above = here[: len(here) - ups]
    rest = above + [part for part in parts if part not in ("crate", "self", "super")]
    while rest:
        stem = f"{inner[1]}/{'/'.join(rest)}"
        for one in (f"{stem}.rs", f"{stem}/mod.rs"):
            if one in files.paths and one != path:
                yield one
                return
        rest.pop()


_RESOLVE: dict[Language, Callable[[Files, str, Import], Iterator[str]]] = {
    "python": _python,
    "javascript": _scripts,
    "typescript": _scripts,
    "tsx": _scripts,
    "go": _go,
    "java": _java,
    "rust": _rust,
}
