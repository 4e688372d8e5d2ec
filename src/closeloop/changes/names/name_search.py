"""Search for names that exist neither in the repository, nor in the change, nor in a library."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from pathlib import PurePosixPath

from msgspec.structs import replace

from closeloop.changes.file_kinds import classify_file, is_test_file, language_of
from closeloop.changes.names.suspect_names import (
    AMBIENT_NAMES,
    BUILD_SPECIFIC_NAMES,
    LANGUAGE_NAMES,
    PYTHON_2_NAMES,
    InstalledPackages,
    NameUse,
    Suspect,
    find_name_uses,
    find_nearest_name,
    find_slips,
    import_bindings,
    is_likely_meant,
    is_misspelt,
    is_other_word,
    list_standard_names,
    load_standard_library,
    module_bindings,
    split_name_words,
)
from closeloop.changes.syntax import extract_words
from closeloop.records.change import Inspection, Language, SourceImport, SourceModule
from closeloop.records.record import Record

# Names that the repository and its libraries provide to a changed file.


MAX_OTHER_FILES = 400
"""Maximum files of other languages and schemas that are searched for a name."""
SCRIPT_LANGUAGES = ("javascript", "typescript", "tsx")
_SCRIPT_ENDINGS = (".ts", ".tsx", ".d.ts", ".js", ".jsx", ".mts", ".cts", ".mjs", ".cjs")
_SOURCE_ROOTS = ("", "src", "lib", "python")
_DYNAMIC_EXPORTS = {
    "python": re.compile(
        rb"import \*|import_module|__import__|sys\.modules|setattr\((?!self\b|cls\b)"
        # Not where a name of the module is only read.
        rb"|globals\(\)(?!\.get\(|\[[^\]\n]*\](?!\s*=(?!=)))"
    ),
    "scripts": re.compile(rb"export \*|module\.exports|\bexports\b\s*[.=\[]"),
}
"""Patterns showing that a file exports names which are not written in it."""
_MODULE_LOOKUP = re.compile(rb"^def __getattr__\(\s*(\w+).*\n(?:(?:[ \t)].*)?\n)*", re.MULTILINE)
"""A module's `__getattr__`. It gives only names of the file if it raises for others, and passes
none on."""


class NameScope(Record):
    """A place in which a name is looked up."""

    label: str
    """Name shown to readers."""
    names: frozenset[str]
    own: bool
    """Whether it belongs to the repository."""


_BUILD_FILES = (".gitignore", "pyproject.toml", "setup.cfg", "setup.py")
_PYTHON_2_BUILD = re.compile(rb"Python :: 2\b|\bpy2[67]\b|python_requires\W+2\.")
_PYTHON_2_SOURCE = re.compile(
    rb"^\s*(?:except [^:(\n]+, *\w+:|print [\"'\w]|raise \w+, )"
    rb"|^from __future__ import (?!annotations)|\bimport six\b|\bfrom six\b",
    re.MULTILINE | re.IGNORECASE,
)
_PYTHON_2_EXCEPTION = re.compile(rb"^\s*except [^:(\n]+, *(\w+):", re.MULTILINE)


class NameEnvironment:
    """Where names can come from; caches what it reads, since it is asked for many names."""

    def __init__(self, inspection: Inspection) -> None:
        self.sides, self.index = inspection.sides, inspection.index
        self.installed = InstalledPackages(inspection.installed)
        self._words: dict[str, frozenset[str]] = {}
        self._scopes: dict[tuple[str, ...], NameScope | None] = {}

    @cached_property
    def tree(self) -> Mapping[str, str]:
        tree: Mapping[str, str] = self.sides.tree("after")
        return tree

    @cached_property
    def folders(self) -> Mapping[str, list[str]]:
        """Return source files by folder."""
        paths_by_folder: dict[str, list[str]] = {}
        for path in self.tree:
            if language_of(path):
                paths_by_folder.setdefault(str(PurePosixPath(path).parent), []).append(path)
        return paths_by_folder

    @cached_property
    def python_modules(self) -> Mapping[str, list[str]]:
        """Return paths of Python modules and packages by the last part of their name."""
        paths_by_name: dict[str, list[str]] = {}
        for path in self.tree:
            if path.endswith((".py", ".pyi")):
                parts = path.rsplit(".", 1)[0].removesuffix("/__init__").split("/")
                paths_by_name.setdefault(parts[-1], []).append(path)
        return paths_by_name

    @cached_property
    def built_files(self) -> frozenset[str]:
        """Return Python files that git ignores or a manifest names: one that is missing is
        built."""
        contents = (self.sides.read("after", name) or b"" for name in _BUILD_FILES)
        paths = re.findall(rb"[\w./-]+\.py\b", b"\n".join(contents))
        return frozenset(path.decode("utf-8", "replace").lstrip("./") for path in paths)

    @cached_property
    def supports_python_2(self) -> bool:
        """Return whether a manifest says so, before or after the change."""
        return any(
            _PYTHON_2_BUILD.search(self.sides.read(side, name) or b"") is not None
            for side in ("before", "after")
            for name in (*_BUILD_FILES, "tox.ini")
        )

    def is_built(self, module: str) -> bool:
        """Return whether the build makes the module, as setuptools_scm writes `_version.py` and
        Cython compiles `_parser.pyx`."""
        stem = module.lstrip(".").replace(".", "/")
        files = (f"{stem}.py", f"{stem}.pyx", f"{stem}.c")
        return any(
            f"/{path}".endswith(tuple(f"/{file}" for file in files))
            for path in (*self.built_files, *self.compiled_files)
        )

    @cached_property
    def compiled_files(self) -> Sequence[str]:
        """Return sources of compiled Python modules."""
        return [path for path in self.tree if path.endswith((".pyx", ".c"))]

    @cached_property
    def go_module(self) -> str | None:
        content = self.sides.read("after", "go.mod") or b""
        match = re.search(rb"^module\s+(\S+)", content, re.MULTILINE)
        return match[1].decode("utf-8", "replace").strip('"') if match else None

    @cached_property
    def script_packages(self) -> Mapping[str, str]:
        """Return folders of the repository's own packages, by import name."""
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
        """Return words of schemas and of unsupported languages."""
        known_words: set[bytes] = set()
        other_paths = (
            path
            for path in self.tree
            if language_of(path) is None and classify_file(path) in ("source", "schema")
        )
        for _, path in zip(range(MAX_OTHER_FILES), other_paths, strict=False):
            known_words |= extract_words(self.sides.read("after", path) or b"")
        return frozenset(known_words)

    def standard_module_names(self, module: str) -> frozenset[str]:
        return load_standard_library("python").get(module, frozenset())

    def language_names(self, language: Language) -> frozenset[str]:
        """Return the language's built-in names."""
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
        self, target: SourceImport, inner_name: str, language: Language
    ) -> SourceImport | None:
        """Return the import meant by looking a name up inside an imported module."""
        if language == "go":
            return None if inner_name else target
        if language == "java":
            return None
        if language != "python":
            # A name imported from a module is not a module.
            return None if inner_name or target.name else target
        module = target.module
        if target.name:
            module = f"{module}{target.name}" if module.endswith(".") else f"{module}.{target.name}"
        elif not target.alias:
            module = module.split(".")[0]
        return SourceImport(
            module=f"{module}.{inner_name}" if inner_name else module, line=target.line
        )

    def is_standard(self, language: Language, name: str) -> bool:
        return name in LANGUAGE_NAMES.get(language, ()) or name in list_standard_names(language)

    def file_words(self, path: str) -> frozenset[str]:
        if path not in self._words:
            file_words = extract_words(self.sides.read("after", path) or b"")
            self._words[path] = frozenset(word.decode("utf-8", "replace") for word in file_words)
        return self._words[path]

    def find_scope(self, path: str, language: Language, target: SourceImport) -> NameScope | None:
        """Return the module that an import means; None if unknown or if it may export any name."""
        key = path, target.module
        if key not in self._scopes:
            family = self.language_family(language) or ""
            scope_finders = {
                "python": self._python_scope,
                "scripts": self._script_scope,
                "go": self._go_scope,
                "java": self._java_scope,
            }
            finder = scope_finders.get(family)
            self._scopes[key] = finder(path, target.module) if finder else None
        return self._scopes[key]

    def is_foreign(self, language: Language, target: SourceImport) -> bool:
        """Return whether its package is neither in the repository, nor installed, nor standard."""
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
        """Return files that a module name may mean, relative to a file."""
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
        for module_path in self.python_modules.get(parts[-1], ()):
            stem_path = "/" + module_path.rsplit(".", 1)[0].removesuffix("/__init__")
            # Modules inside a package are not imported by their own name alone.
            root = stem_path[1 : -len(tail)] if stem_path.endswith(tail) else None
            if root is None or self.is_package(root):
                continue
            # A nested folder may have the name of an unrelated package.
            if len(parts) > 1 or root in _SOURCE_ROOTS or path.startswith(f"{root}/"):
                paths.append(module_path)
        return paths

    def is_extensible(self, module: str) -> bool:
        """Return whether others may add modules to the package that contains this one."""
        parts = module.split(".")
        for end in range(len(parts) - 1, 0, -1):
            files = self.find_python_files("", ".".join(parts[:end]))
            if files:
                return any(b"__path__" in (self.sides.read("after", file) or b"") for file in files)
        return True

    def is_package(self, folder: str) -> bool:
        return bool(folder) and f"{folder}/__init__.py" in self.tree

    def list_submodules(self, path: str) -> Iterator[str]:
        """Yield the names of the modules inside a package."""
        if PurePosixPath(path).stem == "__init__":
            folder = str(PurePosixPath(path).parent)
            for other_path in self.tree:
                if other_path.startswith(f"{folder}/"):
                    yield other_path[len(folder) + 1 :].split("/")[0].split(".")[0]

    def _python_scope(self, path: str, module: str) -> NameScope | None:
        files = self.find_python_files(path, module)
        if files:
            return self._scope_of_files(module, files, _DYNAMIC_EXPORTS["python"])
        standard_names = load_standard_library("python").get(module)
        if (
            standard_names is not None
            and module.split(".", maxsplit=1)[0] not in self.python_modules
        ):
            submodules = {
                name.split(".")[-1]
                for name in load_standard_library("python")
                if name.startswith(f"{module}.")
            }
            return NameScope(
                label=module,
                names=standard_names | submodules | BUILD_SPECIFIC_NAMES.get(module, set()),
                own=False,
            )
        return None

    def _scope_of_files(
        self, label: str, files: list[str], dynamic: re.Pattern[bytes]
    ) -> NameScope | None:
        contents = [self.sides.read("after", file) or b"" for file in files]
        if any(dynamic.search(content) or _passes_names_on(content) for content in contents):
            return None
        names = frozenset[str]().union(
            *(self.file_words(file) for file in files),
            *(set(self.list_submodules(file)) for file in files),
        )
        return NameScope(label=label, names=names, own=True)

    # JavaScript and TypeScript

    def find_script_file(self, path: str, module: str) -> str | None:
        """Return the file that a relative import means."""
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
        candidates = [
            base,
            *(f"{prefix}{end}" for prefix in (stem, base) for end in _SCRIPT_ENDINGS),
        ]
        candidates += [f"{base}/index{end}" for end in _SCRIPT_ENDINGS]
        return next((candidate for candidate in candidates if candidate in self.tree), None)

    def _script_scope(self, path: str, module: str) -> NameScope | None:
        standard_names = load_standard_library("javascript").get(module.removeprefix("node:"))
        if standard_names and not module.startswith("."):
            return NameScope(label=module, names=standard_names, own=False)
        file = self.find_script_file(path, module)
        if file is None or not language_of(file):
            return None
        return self._scope_of_files(module, [file], _DYNAMIC_EXPORTS["scripts"])

    # Go

    def find_go_folder(self, module: str) -> str | None:
        """Return the repository's folder that an import path means."""
        go_module = self.go_module
        if go_module is None or not (module == go_module or module.startswith(go_module + "/")):
            return None
        folder = module[len(go_module) :].lstrip("/") or "."
        return folder if folder in self.folders else None

    def _go_scope(self, path: str, module: str) -> NameScope | None:
        folder = self.find_go_folder(module)
        if folder is not None:
            files = [file_path for file_path in self.folders[folder] if file_path.endswith(".go")]
            names = frozenset[str]().union(*(self.file_words(file) for file in files))
            return NameScope(label=module, names=names, own=True)
        standard_names = load_standard_library("go").get(module)
        return (
            NameScope(label=module, names=standard_names, own=False)
            if standard_names is not None
            else None
        )

    # Java

    @cached_property
    def java_files(self) -> Mapping[str, list[str]]:
        """Return source files by the names under which others import them and their folder."""
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
            # A file does not define the names that it imports.
            names = frozenset[str]().union(
                *(self.file_words(file) for file in files if file != path)
            )
            return NameScope(label=module, names=names, own=True)
        package = module if module in load_standard_library("java") else module.rpartition(".")[0]
        standard_names = load_standard_library("java").get(package)
        return (
            NameScope(label=module, names=standard_names, own=False)
            if standard_names is not None
            else None
        )


def _passes_names_on(content: bytes) -> bool:
    """Return whether a module of Python looks names up elsewhere that it does not have."""
    lookup = _MODULE_LOOKUP.search(content)
    if lookup is None:
        return False
    body = lookup[0].partition(b"\n")[2]
    is_computed = re.search(rb"\b" + lookup[1] + rb"\.", body) is not None
    return is_computed or b"AttributeError" not in body or b"getattr(" in body


def _script_package(module: str) -> str:
    """Return the package name of an import path."""
    return "/".join(module.split("/")[: 2 if module.startswith("@") else 1])


# How files near a name use such names: attributes, keywords and imports.

MAX_FILES = 20
_LOOKUP = re.compile(rb"(?<![\w$])([\w$]*)(?=(?:\.|::)\s{0,40}([\w$]+))")


class NearbyUsage:
    """How nearby files use names; caches what it reads, since it is asked for many names."""

    def __init__(self, inspection: Inspection, environment: NameEnvironment) -> None:
        self.inspection, self.around = inspection, environment
        self._looked_up: dict[str, Set[bytes]] = {}
        self._nearby: dict[str, Set[bytes]] = {}

    def list_nearby_files(self, path: str) -> Sequence[str]:
        """Return the file itself, and some in its folder and the parent folder."""
        paths = [path]
        for folder in PurePosixPath(path).parents[:2]:
            paths += self.around.folders.get(str(folder), ())[:MAX_FILES]
        return list(dict.fromkeys(paths))[:MAX_FILES]

    def has_lookup(self, owner: str, name: str, path: str) -> bool:
        """Return whether old lines nearby contain `owner.name`, or `.name` without an owner."""
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
        """Return whether files nearby contain `name=` or `name:` together with the called name."""
        word_paths = [
            nearby_file
            for nearby_file in self.list_nearby_files(path)
            if name in self.around.file_words(nearby_file)
        ]
        if not word_paths:
            return False
        pattern = re.compile(rb"(?<![\w$.])" + re.escape(name.encode()) + rb"\s?[=:](?![=:])")
        return any(
            (not called or called in self.around.file_words(other_path))
            and pattern.search(self.inspection.sides.read("after", other_path) or b"")
            for other_path in word_paths
        )

    def imported_names(self, module: str) -> Set[str]:
        """Return the names that other files import from a module."""
        return self._names_by_module.get(module, frozenset())

    @cached_property
    def _names_by_module(self) -> Mapping[str, Set[str]]:
        names_by_module: dict[str, set[str]] = defaultdict(set)
        for path, imports in self.inspection.index.imports().items():
            if path not in self.inspection.added:
                for source_import in imports:
                    if source_import.name:
                        names_by_module[source_import.module].add(source_import.name)
        return names_by_module

    def _read_old_lines(self, path: str) -> bytes:
        """Return a file without its added lines."""
        content: bytes = self.inspection.sides.read("after", path) or b""
        added = self.inspection.added.get(path)
        if not added:
            return content
        lines = enumerate(content.split(b"\n"), 1)
        return b"\n".join(line for number, line in lines if number not in added)


MAX_LINE_CHARS = 2000
MAX_SIBLINGS = 20
MAX_SEARCHES = 500
"""Maximum searches for a similar name; after that nothing more is reported."""
MIN_NAME_CHARS = 3
TYPED_LANGUAGES = ("java", "rust")
"""Languages where enum constants, inherited, wildcard and generated names need no import."""
_QUOTED_TEXT = re.compile(rb"\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`")
_LAST_WORD = re.compile(r"[\w$]*$")
_MATCH_CASE = re.compile(rb"\s*case\s+[^=.,)\s]")
_FIRST_WORD = re.compile(r"\w+")
_DECLARATION = re.compile(
    rb"\b(?:namespace|module|enum|interface|type|record|union|static|mod|macro_rules!)\s{1,9}(\w+)"
)
"""Declarations that not every grammar reports."""
_REEXPORT = re.compile(rb"\bexport\s{1,9}(?:type\s{1,9})?\{([^{}]{0,20000})\}\s{0,9}from\b")
"""Names that a script re-exports from another without defining them."""
_CRATE_NAME = re.compile(r"[a-z]\w*")
_DOTTED_NAME = re.compile(r"\w+(?:\.\w+)*")


class NameSearch:
    """The search for the names of one change."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection
        self.around = NameEnvironment(inspection)
        self.habits = NearbyUsage(inspection, self.around)
        self.searched = 0
        self._modules: dict[str, SourceModule] = {}
        self._made: dict[str, frozenset[str]] = {}
        self._bound: dict[str, frozenset[str]] = {}
        self._judged: dict[tuple[str | None, ...], Suspect | None] = {}
        self._unknown_keys: set[tuple[str | None, ...]] = set()
        self.unknown_uses: list[NameUse] = []
        """Members and keywords that exist nowhere and resemble nothing nearby."""

    def find_suspects(self) -> Iterator[Suspect]:
        for use in find_name_uses(self.inspection):
            module = use.target.module if use.target else None
            key = use.path, use.text, use.kind, use.receiver, module
            if key not in self._judged:
                is_special = use.text.startswith("__") and use.text.endswith("__")
                is_examined = len(use.text) >= MIN_NAME_CHARS and not is_special
                # `aria-label` and similar names are HTML attributes.
                is_examined = is_examined and "-" not in use.text
                suspect = self.examine_use(use) if is_examined else None
                is_python_2 = suspect and self.is_python_2(use.path, use.text)
                self._judged[key] = None if is_python_2 else suspect
            if suspect := self._judged[key]:
                yield replace(suspect, use=use)
            elif key in self._unknown_keys:
                self.unknown_uses.append(use)

    def is_python_2(self, path: str, name: str) -> bool:
        """Return whether Python 2 has a name, and the file or the project is written for it."""
        content = self.inspection.sides.read("after", path) or b""
        if name.encode() in _PYTHON_2_EXCEPTION.findall(content):
            return True
        return name.rpartition(".")[2] in PYTHON_2_NAMES and (
            _PYTHON_2_SOURCE.search(content) is not None or self.around.supports_python_2
        )

    def examine_use(self, use: NameUse) -> Suspect | None:
        """Return why a name seems not to exist; None if nothing suggests that."""
        if use.receiver is None and use.kind in ("call", "name"):
            return self.examine_bare_name(use)
        origin = use.target or self.find_import(use)
        if origin is not None and use.kind != "keyword":
            scope = self.resolve_scope(use, origin)
            if scope is not None:
                return self.examine_module_name(use, scope)
        if self.name_exists(use.text, use) or self.is_library_name(use):
            return None
        if use.target:
            return self.examine_import(use, use.target)
        origin = origin or self.find_crate(use)
        foreign = origin is not None and self.around.is_foreign(use.language, origin)
        suspect = self.examine_member(use, foreign)
        if suspect is None and not foreign:
            self._unknown_keys.add((use.path, use.text, use.kind, use.receiver, None))
        return suspect

    def examine_bare_name(self, use: NameUse) -> Suspect | None:
        """Examine a name that is looked up in the file and its surroundings."""
        bound_names, language_names = (
            self.bound_names(use.path),
            self.around.language_names(use.language),
        )
        if (
            use.text in bound_names
            or use.text in language_names
            or self.is_defined_around_file(use)
        ):
            return None
        similar_name = _fitting_name(use, self.closest_name(use, bound_names | language_names))
        if similar_name is None and use.language not in TYPED_LANGUAGES:
            similar_name = find_nearest_name(use.text, bound_names)
        if similar_name:
            return Suspect(use=use, near=similar_name, certain=True)
        similar_name = _fitting_name(use, self.guess_name(use))
        if self.is_ambient(use) or (
            similar_name is None and use.language not in ("go", *SCRIPT_LANGUAGES)
        ):
            return None
        return Suspect(use=use, near=similar_name)

    def is_ambient(self, use: NameUse) -> bool:
        """Return whether the script's host may define it, as test runners and pages do."""
        return use.language in SCRIPT_LANGUAGES and (
            is_test_file(use.path) or len(split_name_words(use.text)) == 1
        )

    def is_defined_around_file(self, use: NameUse) -> bool:
        """Return whether a bare name may come from outside its file."""
        if use.language == "go":
            return self.is_in_package(use)
        exists = self.name_exists(use.text, use) or self.is_library_name(use)
        if use.language in SCRIPT_LANGUAGES:
            ambient = use.text[0].isupper() and self.around.is_standard(use.language, use.text)
            ambient |= use.text in AMBIENT_NAMES
            return ambient or self.is_html_element(use) or (exists and self.is_global(use))
        return exists and not (use.language == "python" and self.has_no_wildcard(use.path))

    def examine_module_name(self, use: NameUse, scope: NameScope) -> Suspect | None:
        """Examine a name that is looked up in a module whose names are all known."""
        if use.text in scope.names or (scope.own and self.is_defined_by_change(use.text, use)):
            return None
        if use.language == "python" and not scope.own and self.name_exists(use.text, use):
            return None
        similar_name = self.closest_name(use, scope.names)
        if similar_name is None and use.language != "java":
            # Much of a Java package may be generated.
            similar_name = find_nearest_name(use.text, scope.names)
        if similar_name is None and (not scope.own or self.name_exists(use.text, use)):
            return None
        if use.language == "java" and (
            similar_name is None or is_other_word(use.text, similar_name)
        ):
            return None
        return Suspect(
            use=use, near=similar_name, where=scope.label, certain=similar_name is not None
        )

    def examine_member(self, use: NameUse, foreign: bool) -> Suspect | None:
        """Examine a name that exists nowhere, looked up on something unknown."""
        owner = _LAST_WORD.search(use.receiver or "") if foreign else None
        before = owner[0] if owner else ""
        does = self.habits.has_keyword if use.kind == "keyword" else self.habits.has_lookup
        file_words = self.around.file_words(use.path)
        candidates = self.search_slips(
            use, lambda name: does(before, name, use.path), MIN_NAME_CHARS
        )
        likely_names = [name for name in candidates if self.is_likely(name, use, foreign)]
        if likely_names:
            similar_name = min(likely_names, key=lambda name: name not in file_words)
            return Suspect(
                use=use, near=similar_name, certain=not foreign and similar_name in file_words
            )
        if foreign:
            return None
        # Not one of an imported name: `plot` of a value is not `plt`.
        candidates = [
            *self.search_slips(use, self.names_made_in(use.path).__contains__, MIN_NAME_CHARS),
            *(
                search_slip
                for search_slip in self.search_slips(use, self.member_predicate(use))
                if is_likely_meant(use.text, search_slip)
            ),
        ]
        likely_name = next(
            (name for name in candidates if self.is_likely(name, use, foreign)), None
        )
        return Suspect(use=use, near=likely_name) if likely_name else None

    def is_likely(self, name: str, use: NameUse, foreign: bool) -> bool:
        """Return whether `name` was probably meant; foreign names often differ only in ending or
        case."""
        if not is_misspelt(use.text, name):
            return False
        is_similar = use.text.startswith(name) or name.startswith(use.text)
        is_similar |= use.text.replace("_", "").lower() == name.replace("_", "").lower()
        is_local = not foreign and name in self.around.file_words(use.path)
        is_local = is_local and (not use.receiver or self.is_customary(name, use))
        return not is_other_word(use.text, name) and (is_local or not is_similar)

    def is_customary(self, name: str, use: NameUse) -> bool:
        """Return whether the repository defines it, or looks it up on something of the same
        name."""
        owner = _LAST_WORD.search(use.receiver or "")
        looked_up = owner is not None and self.habits.has_lookup(owner[0], name, use.path)
        return looked_up or bool(self.inspection.index.defined(name))

    def examine_import(self, use: NameUse, target: SourceImport) -> Suspect | None:
        """Examine a name that is imported from an unknown module."""
        module = self.read_module(use.path)
        bare = {
            name.text
            for name in module.names
            if name.kind in ("call", "name") and name.receiver is None
        }
        free = bare - self.bound_names(use.path) - self.around.language_names(use.language)
        similar_name = next(iter(self.search_slips(use, free.__contains__)), None)
        if similar_name and not is_other_word(use.text, similar_name):
            return Suspect(use=use, near=similar_name, certain=True)
        foreign = self.around.is_foreign(use.language, target)
        candidates = self.search_slips(use, self.habits.imported_names(target.module).__contains__)
        if not candidates and not foreign:
            candidates = self.search_slips(use, self.member_predicate(use))
        likely_name = next(
            (name for name in candidates if self.is_likely(name, use, foreign)), None
        )
        return Suspect(use=use, near=likely_name) if likely_name else None

    def search_slips(
        self, use: NameUse, exists: Callable[[str], bool], shortest: int = 4
    ) -> list[str]:
        """Return similar existing names while there are few: a thousand unknown names are no
        typos."""
        self.searched += 1
        return find_slips(use.text, exists, shortest) if self.searched <= MAX_SEARCHES else []

    def closest_name(self, use: NameUse, names: Set[str]) -> str | None:
        """Return the name one edit away; of several, one that the file already contains."""
        candidates = self.search_slips(use, names.__contains__, MIN_NAME_CHARS)
        file_words = self.around.file_words(use.path)
        return next(
            (name for name in candidates if name in file_words),
            candidates[0] if candidates else None,
        )

    def member_predicate(self, use: NameUse) -> Callable[[str], bool]:
        """Return a predicate: is something of that name defined in the same language?"""
        family = self.around.language_family(use.language)

        def defined(name: str) -> bool:
            if name in self.change_definitions or self.around.is_standard(use.language, name):
                return True
            return any(
                self.around.language_family(language_of(path)) == family
                for path, _ in self.inspection.index.defined(name)
            )

        return defined

    def guess_name(self, use: NameUse) -> str | None:
        """Return the name that was probably meant, preferably one in the same file."""
        file_words = self.around.file_words(use.path)
        candidates = self.search_slips(use, self.existence_predicate(use))
        return next(
            (name for name in candidates if name in file_words),
            candidates[0] if candidates else None,
        )

    def existence_predicate(self, use: NameUse) -> Callable[[str], bool]:
        environment, language = self.around, use.language
        return lambda name: self.name_exists(name, use) or environment.is_standard(language, name)

    def name_exists(self, name: str, use: NameUse) -> bool:
        """Return whether the repository has the name, or the change defines it."""
        exists = self.inspection.index.known(name) or name in self.words_before
        return exists or self.is_defined_by_change(name, use)

    def is_defined_by_change(self, name: str, use: NameUse) -> bool:
        """Return whether the change defines it; an import does not define what it names."""
        return name in self.change_definitions and not (
            use.kind == "import" and name in self.only_imported_names
        )

    def is_library_name(self, use: NameUse) -> bool:
        """Return whether a library or an unsupported file has the name."""
        if self.around.is_standard(use.language, use.text):
            return True
        if use.text.encode() in self.around.other_words:
            return True
        module = self.read_module(use.path)
        return any(
            use.text in (self.around.installed.package_names(use.language, package) or ())
            for package in {
                self.around.package_name(source_import.module, use.language)
                for source_import in module.imports
            }
        )

    def is_in_package(self, use: NameUse) -> bool:
        """Return whether another file of the folder defines it, or it may come from anywhere."""
        folder = PurePosixPath(use.path).parent
        module = self.read_module(use.path)
        return any(source_import.alias == "." for source_import in module.imports) or any(
            PurePosixPath(path).parent == folder
            for path, _ in self.inspection.index.defined(use.text)
        )

    def is_html_element(self, use: NameUse) -> bool:
        """Return whether it is an HTML element, which a parser may report as a name in broken
        code."""
        content = self.inspection.sides.read("after", use.path) or b""
        return use.text.islower() and f"<{use.text}".encode() in content

    def has_no_wildcard(self, path: str) -> bool:
        """Return whether the file has no wildcard imports."""
        return all(source_import.name != "*" for source_import in self.read_module(path).imports)

    def is_global(self, use: NameUse) -> bool:
        """Return whether nearby files use it without defining it, no file defines it, or a `.d.ts`
        does."""
        folder = str(PurePosixPath(use.path).parent)
        for path in self.around.folders.get(folder, ())[:MAX_SIBLINGS]:
            if use.text in self.around.file_words(path) and path not in self.inspection.added:
                module = self.inspection.index.module(path)
                if module and use.text not in module_bindings(module):
                    return True
        definitions = self.inspection.index.defined(use.text)
        ambient = not definitions and self.inspection.index.known(use.text)
        return ambient or any(path.endswith(".d.ts") for path, _ in definitions)

    def find_import(self, use: NameUse) -> SourceImport | None:
        """Return the import of the object that a name is looked up on."""
        first_word = _FIRST_WORD.match(use.receiver or "")
        if first_word is None or first_word[0] in self.names_made_in(use.path):
            return None
        module = self.read_module(use.path)
        return next(
            (
                source_import
                for source_import in module.imports
                if first_word[0] in import_bindings(source_import, use.language)
            ),
            None,
        )

    def find_crate(self, use: NameUse) -> SourceImport | None:
        """Return the crate that a Rust path begins with; it needs no import."""
        first = (use.receiver or "").partition("::")[0]
        if (
            use.language != "rust"
            or not _CRATE_NAME.fullmatch(first)
            or self.name_exists(first, use)
        ):
            return None
        return SourceImport(module=first, line=use.line)

    def resolve_scope(self, use: NameUse, origin: SourceImport) -> NameScope | None:
        """Return the module that a name is looked up in."""
        if use.target is None:
            if not _DOTTED_NAME.fullmatch(use.receiver or ""):
                return None
            inner_name = (use.receiver or "").partition(".")[2]
            inner = self.around.inner_import(origin, inner_name, use.language)
            if inner is None:
                return None
            origin = inner
        return self.around.find_scope(use.path, use.language, origin)

    def read_module(self, path: str) -> SourceModule:
        if path not in self._modules:
            self._modules[path] = self.inspection.modules["after", path]
        return self._modules[path]

    @cached_property
    def changed_paths(self) -> Sequence[str]:
        """Return files with added lines."""
        return [
            path
            for side, path in self.inspection.modules
            if side == "after" and path in self.inspection.added
        ]

    def bound_names(self, path: str) -> frozenset[str]:
        """Return every name that the file defines or imports."""
        if path not in self._bound:
            captured = self.captured_names(path) if path.endswith(".py") else ()
            content = self.inspection.sides.read("after", path) or b""
            passed = (
                b" ".join(_REEXPORT.findall(content))
                if language_of(path) in SCRIPT_LANGUAGES
                else b""
            )
            declared_words = (*_DECLARATION.findall(content), *extract_words(passed))
            declared = (
                declared_word.decode("utf-8", "replace") for declared_word in declared_words
            )
            self._bound[path] = frozenset(
                (*module_bindings(self.read_module(path)), *captured, *declared)
            )
        return self._bound[path]

    def captured_names(self, path: str) -> Iterator[str]:
        """Yield names in the patterns of Python's `match`, which bind some of them."""
        lines = (self.inspection.sides.read("after", path) or b"").split(b"\n")
        depth, patterns = 0, set[int]()
        for number, line in enumerate(lines, 1):
            if depth > 0 or _MATCH_CASE.match(line):
                patterns.add(number)
                opened = sum(map(line.count, (b"(", b"[", b"{")))
                depth += opened - sum(map(line.count, (b")", b"]", b"}")))
        return (name.text for name in self.read_module(path).names if name.line in patterns)

    def names_made_in(self, path: str) -> frozenset[str]:
        """Return the names that the file defines itself."""
        if path not in self._made:
            module = self.read_module(path)
            self._made[path] = frozenset(module_bindings(module, imports=False))
        return self._made[path]

    @cached_property
    def change_definitions(self) -> Set[str]:
        """Return names that added lines define, or contain in a string."""
        definitions: set[str] = set()
        for path in self.changed_paths:
            definitions |= self.bound_names(path)
            definitions.update(self.quoted_words(path))
        return definitions

    def words_without_uses(self, path: str) -> Set[str]:
        """Return the words of a file, without those that only the change uses there."""
        if path not in self.inspection.added:
            return self.around.file_words(path)
        words = extract_words(self.inspection.sides.read("before", path) or b"")
        return {word.decode("utf-8", "replace") for word in words} | self.bound_names(path)

    @cached_property
    def words_before(self) -> Set[str]:
        """Return words of changed files before the change: a changed line repeats most of the old
        one."""
        words_found: set[bytes] = set()
        for side, path in self.inspection.modules:
            if side == "before":
                words_found |= extract_words(self.inspection.sides.read("before", path) or b"")
        return {word.decode("utf-8", "replace") for word in words_found}

    @cached_property
    def only_imported_names(self) -> Set[str]:
        """Return names that the change only imports."""
        modules = [
            module for (side, _), module in self.inspection.modules.items() if side == "after"
        ]
        imported_names = {
            name
            for module in modules
            for imp in module.imports
            for name in import_bindings(imp, module.language)
        }
        made_names = {name for module in modules for name in module_bindings(module, imports=False)}
        return imported_names - made_names

    def quoted_words(self, path: str) -> Iterator[str]:
        """Yield words inside strings: they may define names that no syntax shows."""
        used_names: dict[int, set[str]] = defaultdict(set)
        for name in self.read_module(path).names:
            # Code in a string, as in Python's f"{name}", is not text.
            used_names[name.line].add(name.text)
        lines = (self.inspection.sides.read("after", path) or b"").split(b"\n")
        for line in self.inspection.added[path]:
            if line <= len(lines):
                line_text = lines[line - 1][:MAX_LINE_CHARS]
                for text in _QUOTED_TEXT.findall(line_text):
                    for word in extract_words(text):
                        decoded = word.decode("utf-8", "replace")
                        if decoded not in used_names[line] or line_text.count(word) > 1:
                            yield decoded


def _fitting_name(use: NameUse, similar_name: str | None) -> str | None:
    """Return the similar name, unless it differs on purpose."""
    if similar_name is None or is_other_word(use.text, similar_name):
        return None
    return (
        None
        if use.language in TYPED_LANGUAGES and similar_name[0].isupper() != use.text[0].isupper()
        else similar_name
    )
