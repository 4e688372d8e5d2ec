"""What the repository and its libraries offer to a changed file."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from pathlib import PurePosixPath

from closeloop.changes.file_kinds import classify_file, language_of
from closeloop.changes.names.suspect_names import (
    BUILD_SPECIFIC_NAMES,
    LANGUAGE_NAMES,
    InstalledPackages,
    list_standard_names,
    load_standard_library,
)
from closeloop.changes.syntax import extract_words
from closeloop.records.inspection import (
    Inspection,
    Language,
    SourceImport,
)
from closeloop.records.record import Record

MAX_OTHER_FILES = 400
"""So many files of other languages, and schemas, are searched for a name."""
SCRIPT_LANGUAGES = ("javascript", "typescript", "tsx")
_SCRIPT_ENDINGS = (".ts", ".tsx", ".d.ts", ".js", ".jsx", ".mts", ".cts", ".mjs", ".cjs")
_SOURCE_ROOTS = ("", "src", "lib", "python")
_DYNAMIC_EXPORTS = {
    "python": re.compile(rb"import \*|import_module|__import__|globals\(\)|sys\.modules|setattr\("),
    "scripts": re.compile(rb"export \*|module\.exports|\bexports\b\s*[.=\[]"),
}
"""Signs that a file offers names which do not stand in it."""


class NameScope(Record):
    """Where a name is looked up."""

    label: str
    """As a reader would call it."""
    names: frozenset[str]
    own: bool
    """Whether it is the repository's."""


class NameEnvironment:
    """Asked for many names, so whatever is read is kept."""

    def __init__(self, inspection: Inspection) -> None:
        self.sides, self.index = inspection.sides, inspection.index
        self.installed = InstalledPackages(inspection.sides.root)
        self._words: dict[str, frozenset[str]] = {}
        self._scopes: dict[tuple[str, ...], NameScope | None] = {}

    @cached_property
    def tree(self) -> Mapping[str, str]:
        tree: Mapping[str, str] = self.sides.tree("after")
        return tree

    @cached_property
    def folders(self) -> Mapping[str, list[str]]:
        """Source files by folder."""
        paths_by_folder: dict[str, list[str]] = {}
        for path in self.tree:
            if language_of(path):
                paths_by_folder.setdefault(str(PurePosixPath(path).parent), []).append(path)
        return paths_by_folder

    @cached_property
    def python_modules(self) -> Mapping[str, list[str]]:
        """Paths of Python modules and packages by the last part of their name."""
        paths_by_name: dict[str, list[str]] = {}
        for path in self.tree:
            if path.endswith((".py", ".pyi")):
                parts = path.rsplit(".", 1)[0].removesuffix("/__init__").split("/")
                paths_by_name.setdefault(parts[-1], []).append(path)
        return paths_by_name

    @cached_property
    def go_module(self) -> str | None:
        content = self.sides.read("after", "go.mod") or b""
        match = re.search(rb"^module\s+(\S+)", content, re.MULTILINE)
        return match[1].decode("utf-8", "replace").strip('"') if match else None

    @cached_property
    def script_packages(self) -> Mapping[str, str]:
        """Folders of the repository's own packages, by the name that others import them by."""
        folders_by_name = {}
        for path in self.tree:
            if path.endswith("package.json") and path.count("/") <= 3:
                try:
                    name = json.loads(self.sides.read("after", path) or b"{}").get("name")
                except (ValueError, AttributeError):
                    continue
                if isinstance(name, str):
                    folders_by_name[name] = str(PurePosixPath(path).parent)
        return folders_by_name

    @cached_property
    def other_words(self) -> frozenset[bytes]:
        """Words of schemas and of languages that we do not read."""
        known_words: set[bytes] = set()
        wanted = (
            path
            for path in self.tree
            if language_of(path) is None and classify_file(path) in ("source", "schema")
        )
        for _, path in zip(range(MAX_OTHER_FILES), wanted, strict=False):
            known_words |= extract_words(self.sides.read("after", path) or b"")
        return frozenset(known_words)

    def standard_module_names(self, module: str) -> frozenset[str]:
        return load_standard_library("python").get(module, frozenset())

    def language_names(self, language: Language) -> frozenset[str]:
        """Names that the language itself has, without any import."""
        if language in SCRIPT_LANGUAGES:
            return load_standard_library(language)["*"] | LANGUAGE_NAMES["scripts"]
        if language == "java":
            return load_standard_library("java")["java.lang"]
        return LANGUAGE_NAMES.get(language, frozenset())

    def language_family(self, language: Language | None) -> str | None:
        return "scripts" if language in SCRIPT_LANGUAGES else language

    def package_name(self, module: str, language: Language) -> str:
        return (
            _script_package(module)
            if language in SCRIPT_LANGUAGES
            else module.split(".", maxsplit=1)[0]
        )

    def inner_import(
        self, target: SourceImport, rest: str, language: Language
    ) -> SourceImport | None:
        """What is meant by looking something up inside of what was imported."""
        if language == "go":
            return None if rest else target
        if language == "java":
            return None
        if language != "python":
            # A name that was taken out of a module is no module.
            return None if rest or target.name else target
        whole = target.module
        if target.name:
            whole = f"{whole}{target.name}" if whole.endswith(".") else f"{whole}.{target.name}"
        elif not target.alias:
            whole = whole.split(".")[0]
        return SourceImport(module=f"{whole}.{rest}" if rest else whole, line=target.line)

    def is_standard(self, language: Language, name: str) -> bool:
        return name in LANGUAGE_NAMES.get(language, ()) or name in list_standard_names(language)

    def file_words(self, path: str) -> frozenset[str]:
        if path not in self._words:
            file_words = extract_words(self.sides.read("after", path) or b"")
            self._words[path] = frozenset(word.decode("utf-8", "replace") for word in file_words)
        return self._words[path]

    def find_scope(self, path: str, language: Language, target: SourceImport) -> NameScope | None:
        """The module that an import means; None where it is not known, or offers anything."""
        key = path, target.module
        if key not in self._scopes:
            family = self.language_family(language) or ""
            looks = {
                "python": self._python_scope,
                "scripts": self._script_scope,
                "go": self._go_scope,
                "java": self._java_scope,
            }
            look = looks.get(family)
            self._scopes[key] = look(path, target.module) if look else None
        return self._scopes[key]

    def is_foreign(self, language: Language, target: SourceImport) -> bool:
        """Whether it comes from a package that is neither here nor installed nor standard."""
        module = target.module
        if language == "python":
            first = module.split(".")[0]
            if (
                not first
                or first in load_standard_library("python")
                or self.find_python_files("", module)
            ):
                return False
            return (
                self.is_extensible(module) and self.installed.package_names(language, first) is None
            )
        if language in SCRIPT_LANGUAGES:
            package = _script_package(module)
            if module.startswith((".", "node:", "#", "/")) or package in self.script_packages:
                return False
            return module not in load_standard_library(language) and (
                self.installed.package_names(language, package) is None
            )
        if language == "go":
            return self.find_go_folder(module) is None and module not in load_standard_library("go")
        if language == "java":
            return self.find_scope("", language, target) is None
        if language == "rust":
            return module.split("::")[0] not in ("crate", "self", "super", "std", "core", "alloc")
        return True

    # Python

    def find_python_files(self, path: str, module: str) -> list[str]:
        """Files that a module's name may mean, seen from a file."""
        stripped = module.lstrip(".")
        parts = stripped.split(".") if stripped else []
        if dots := len(module) - len(stripped):
            folder = list(PurePosixPath(path).parent.parts)
            folder = folder[: len(folder) - dots + 1] if dots > 1 else folder
            base = "/".join([*folder, *parts])
            ends = (f"{base}.py", f"{base}/__init__.py", f"{base}.pyi", f"{base}/__init__.pyi")
            return [end for end in ends if end in self.tree]
        if not parts or parts[0] in load_standard_library("python"):
            return []
        tail, paths = "/" + "/".join(parts), []
        for one in self.python_modules.get(parts[-1], ()):
            whole = "/" + one.rsplit(".", 1)[0].removesuffix("/__init__")
            # What lies inside a package is not imported by its own name alone.
            root = whole[1 : -len(tail)] if whole.endswith(tail) else None
            if root is None or self.is_package(root):
                continue
            # A folder somewhere below may well be called like somebody else's package.
            if len(parts) > 1 or root in _SOURCE_ROOTS or path.startswith(f"{root}/"):
                paths.append(one)
        return paths

    def is_extensible(self, module: str) -> bool:
        """Whether others may add modules to the package that this one would be in."""
        parts = module.split(".")
        for end in range(len(parts) - 1, 0, -1):
            files = self.find_python_files("", ".".join(parts[:end]))
            if files:
                return any(b"__path__" in (self.sides.read("after", one) or b"") for one in files)
        return True

    def is_package(self, folder: str) -> bool:
        return bool(folder) and f"{folder}/__init__.py" in self.tree

    def list_submodules(self, path: str) -> Iterator[str]:
        """Names of the modules inside a package."""
        if PurePosixPath(path).stem == "__init__":
            folder = str(PurePosixPath(path).parent)
            for other in self.tree:
                if other.startswith(f"{folder}/"):
                    yield other[len(folder) + 1 :].split("/")[0].split(".")[0]

    def _python_scope(self, path: str, whole: str) -> NameScope | None:
        files = self.find_python_files(path, whole)
        if files:
            return self._scope_of_files(whole, files, _DYNAMIC_EXPORTS["python"])
        known = load_standard_library("python").get(whole)
        if known is not None and whole.split(".", maxsplit=1)[0] not in self.python_modules:
            inside = {
                one.split(".")[-1]
                for one in load_standard_library("python")
                if one.startswith(f"{whole}.")
            }
            return NameScope(
                label=whole,
                names=known | inside | BUILD_SPECIFIC_NAMES.get(whole, set()),
                own=False,
            )
        return None

    def _scope_of_files(
        self, label: str, files: list[str], dynamic: re.Pattern[bytes]
    ) -> NameScope | None:
        if any(dynamic.search(self.sides.read("after", one) or b"") for one in files):
            return None
        names = frozenset[str]().union(
            *(self.file_words(one) for one in files),
            *(set(self.list_submodules(one)) for one in files),
        )
        return NameScope(label=label, names=names, own=True)

    # JavaScript and TypeScript

    def find_script_file(self, path: str, module: str) -> str | None:
        """The file that a relative import means."""
        if not module.startswith("."):
            return None
        parts: list[str] = []
        for part in [*PurePosixPath(path).parent.parts, *module.split("/")]:
            if part == "..":
                if not parts:
                    return None
                parts.pop()
            elif part != ".":
                parts.append(part)
        base = "/".join(parts)
        stem = re.sub(r"\.[mc]?jsx?$", "", base)
        tries = [base, *(f"{one}{end}" for one in (stem, base) for end in _SCRIPT_ENDINGS)]
        tries += [f"{base}/index{end}" for end in _SCRIPT_ENDINGS]
        return next((one for one in tries if one in self.tree), None)

    def _script_scope(self, path: str, module: str) -> NameScope | None:
        known = load_standard_library("javascript").get(module.removeprefix("node:"))
        if known and not module.startswith("."):
            return NameScope(label=module, names=known, own=False)
        file = self.find_script_file(path, module)
        if file is None or not language_of(file):
            return None
        return self._scope_of_files(module, [file], _DYNAMIC_EXPORTS["scripts"])

    # Go

    def find_go_folder(self, module: str) -> str | None:
        """The repository's folder that an import path means."""
        own = self.go_module
        if own is None or not (module == own or module.startswith(own + "/")):
            return None
        folder = module[len(own) :].lstrip("/") or "."
        return folder if folder in self.folders else None

    def _go_scope(self, path: str, module: str) -> NameScope | None:
        folder = self.find_go_folder(module)
        if folder is not None:
            files = [one for one in self.folders[folder] if one.endswith(".go")]
            names = frozenset[str]().union(*(self.file_words(one) for one in files))
            return NameScope(label=module, names=names, own=True)
        known = load_standard_library("go").get(module)
        return NameScope(label=module, names=known, own=False) if known is not None else None

    # Java

    @cached_property
    def java_files(self) -> Mapping[str, list[str]]:
        """Source files by what they and their folder are called by others."""
        files_by_name: dict[str, list[str]] = {}
        for folder, files in self.folders.items():
            name = re.split(r"(?:^|/)(?:java|src)/", folder)[-1].replace("/", ".")
            for path in files:
                if path.endswith(".java"):
                    files_by_name.setdefault(name, []).append(path)
                    files_by_name.setdefault(f"{name}.{PurePosixPath(path).stem}", []).append(path)
        return files_by_name

    def _java_scope(self, path: str, module: str) -> NameScope | None:
        files = self.java_files.get(module)
        if files:
            # A file does not make what it imports.
            names = frozenset[str]().union(*(self.file_words(one) for one in files if one != path))
            return NameScope(label=module, names=names, own=True)
        package = module if module in load_standard_library("java") else module.rpartition(".")[0]
        known = load_standard_library("java").get(package)
        return NameScope(label=module, names=known, own=False) if known is not None else None


def _script_package(module: str) -> str:
    """The name of a package in what is imported from it."""
    return "/".join(module.split("/")[: 2 if module.startswith("@") else 1])


# How the files around a name write such things: what they look up, give and import.

MAX_FILES = 20
_LOOKUP = re.compile(rb"(?<![\w$])([\w$]*)(?=(?:\.|::)\s{0,40}([\w$]+))")


class NearbyUsage:
    """Asked for many names, so whatever is read is kept."""

    def __init__(self, inspection: Inspection, around: NameEnvironment) -> None:
        self.inspection, self.around = inspection, around
        self._looked_up: dict[str, Set[bytes]] = {}
        self._nearby: dict[str, Set[bytes]] = {}

    def list_nearby_files(self, path: str) -> Sequence[str]:
        """The file itself, and some in its folder and the one above."""
        paths = [path]
        for folder in PurePosixPath(path).parents[:2]:
            paths += self.around.folders.get(str(folder), ())[:MAX_FILES]
        return list(dict.fromkeys(paths))[:MAX_FILES]

    def has_lookup(self, owner: str, name: str, path: str) -> bool:
        """Whether old lines around have `owner.name`; of no owner, `.name`."""
        if path not in self._nearby:
            self._nearby[path] = set[bytes]().union(
                *map(self._read_lookups, self.list_nearby_files(path))
            )
        return f"{owner}.{name}".encode() in self._nearby[path]

    def _read_lookups(self, path: str) -> Set[bytes]:
        if path not in self._looked_up:
            pairs = set(_LOOKUP.findall(self._read_old_lines(path)))
            names = {b"." + name for _, name in pairs}
            self._looked_up[path] = names | {b"%b.%b" % pair for pair in pairs}
        return self._looked_up[path]

    def has_keyword(self, called: str, name: str, path: str) -> bool:
        """Whether files around have `name=` or `name:`, and what is called."""
        having = [
            one for one in self.list_nearby_files(path) if name in self.around.file_words(one)
        ]
        if not having:
            return False
        pattern = re.compile(rb"(?<![\w$.])" + re.escape(name.encode()) + rb"\s?[=:](?![=:])")
        return any(
            (not called or called in self.around.file_words(one))
            and pattern.search(self.inspection.sides.read("after", one) or b"")
            for one in having
        )

    def imported_names(self, module: str) -> Set[str]:
        """What other files take from a module."""
        return self._names_by_module.get(module, frozenset())

    @cached_property
    def _names_by_module(self) -> Mapping[str, Set[str]]:
        names_by_module: dict[str, set[str]] = defaultdict(set)
        for path, imports in self.inspection.index.imports().items():
            if path not in self.inspection.added:
                for one in imports:
                    if one.name:
                        names_by_module[one.module].add(one.name)
        return names_by_module

    def _read_old_lines(self, path: str) -> bytes:
        """A file without the lines that are new."""
        content: bytes = self.inspection.sides.read("after", path) or b""
        added = self.inspection.added.get(path)
        if not added:
            return content
        lines = enumerate(content.split(b"\n"), 1)
        return b"\n".join(line for at, line in lines if at not in added)
