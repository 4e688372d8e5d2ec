"""What the repository and its libraries offer to a changed file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import PurePosixPath

from closeloop.changes.kinds import kind_of, language_of
from closeloop.changes.names.builtin import ELSEWHERE, OWN
from closeloop.changes.names.installed import Installed, standard, standard_names
from closeloop.changes.syntax import words
from closeloop.model.inspection import Import, Inspection, Language
from closeloop.model.record import Record

MOST_OTHER = 400
"""So many files of other languages, and schemas, are searched for a name."""
SCRIPTS = ("javascript", "typescript", "tsx")
_SCRIPT_ENDINGS = (".ts", ".tsx", ".d.ts", ".js", ".jsx", ".mts", ".cts", ".mjs", ".cjs")
_ROOTS = ("", "src", "lib", "python")
_DYNAMIC = {
    "python": re.compile(rb"import \*|import_module|__import__|globals\(\)|sys\.modules|setattr\("),
    "scripts": re.compile(rb"export \*|module\.exports|\bexports\b\s*[.=\[]"),
}
"""Signs that a file offers names which do not stand in it."""


class Scope(Record):
    """Where a name is looked up."""

    label: str
    """As a reader would call it."""
    names: frozenset[str]
    own: bool
    """Whether it is the repository's."""


class Surroundings:
    """Asked for many names, so whatever is read is kept."""

    def __init__(self, inspection: Inspection) -> None:
        self.sides, self.index = inspection.sides, inspection.index
        self.installed = Installed(inspection.sides.root)
        self._words: dict[str, frozenset[str]] = {}
        self._scopes: dict[tuple[str, ...], Scope | None] = {}

    @cached_property
    def tree(self) -> Mapping[str, str]:
        tree: Mapping[str, str] = self.sides.tree("after")
        return tree

    @cached_property
    def folders(self) -> Mapping[str, list[str]]:
        """Source files by folder."""
        found: dict[str, list[str]] = {}
        for path in self.tree:
            if language_of(path):
                found.setdefault(str(PurePosixPath(path).parent), []).append(path)
        return found

    @cached_property
    def python_modules(self) -> Mapping[str, list[str]]:
        """Paths of Python modules and packages by the last part of their name."""
        found: dict[str, list[str]] = {}
        for path in self.tree:
            if path.endswith((".py", ".pyi")):
                parts = path.rsplit(".", 1)[0].removesuffix("/__init__").split("/")
                found.setdefault(parts[-1], []).append(path)
        return found

    @cached_property
    def go_module(self) -> str | None:
        content = self.sides.read("after", "go.mod") or b""
        found = re.search(rb"^module\s+(\S+)", content, re.MULTILINE)
        return found[1].decode("utf-8", "replace").strip('"') if found else None

    @cached_property
    def script_packages(self) -> Mapping[str, str]:
        """Folders of the repository's own packages, by the name that others import them by."""
        found = {}
        for path in self.tree:
            if path.endswith("package.json") and path.count("/") <= 3:
                try:
                    name = json.loads(self.sides.read("after", path) or b"{}").get("name")
                except (ValueError, AttributeError):
                    continue
                if isinstance(name, str):
                    found[name] = str(PurePosixPath(path).parent)
        return found

    @cached_property
    def other_words(self) -> frozenset[bytes]:
        """Words of schemas and of languages that we do not read."""
        found: set[bytes] = set()
        wanted = (
            path
            for path in self.tree
            if language_of(path) is None and kind_of(path) in ("source", "schema")
        )
        for _, path in zip(range(MOST_OTHER), wanted, strict=False):
            found |= words(self.sides.read("after", path) or b"")
        return frozenset(found)

    def standard_module(self, module: str) -> frozenset[str]:
        return standard("python").get(module, frozenset())

    def own(self, language: Language) -> frozenset[str]:
        """Names that the language itself has, without any import."""
        if language in SCRIPTS:
            return standard(language)["*"] | OWN["scripts"]
        if language == "java":
            return standard("java")["java.lang"]
        return OWN.get(language, frozenset())

    def family(self, language: Language | None) -> str | None:
        return "scripts" if language in SCRIPTS else language

    def package(self, module: str, language: Language) -> str:
        return _package(module) if language in SCRIPTS else module.split(".", maxsplit=1)[0]

    def inner(self, target: Import, rest: str, language: Language) -> Import | None:
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
        return Import(module=f"{whole}.{rest}" if rest else whole, line=target.line)

    def is_standard(self, language: Language, name: str) -> bool:
        return name in OWN.get(language, ()) or name in standard_names(language)

    def words_of(self, path: str) -> frozenset[str]:
        if path not in self._words:
            found = words(self.sides.read("after", path) or b"")
            self._words[path] = frozenset(word.decode("utf-8", "replace") for word in found)
        return self._words[path]

    def scope(self, path: str, language: Language, target: Import) -> Scope | None:
        """The module that an import means; None where it is not known, or offers anything."""
        key = path, target.module
        if key not in self._scopes:
            family = self.family(language) or ""
            looks = {
                "python": self._python,
                "scripts": self._script,
                "go": self._go,
                "java": self._java,
            }
            look = looks.get(family)
            self._scopes[key] = look(path, target.module) if look else None
        return self._scopes[key]

    def is_foreign(self, language: Language, target: Import) -> bool:
        """Whether it comes from a package that is neither here nor installed nor standard."""
        module = target.module
        if language == "python":
            first = module.split(".")[0]
            if not first or first in standard("python") or self.python_files("", module):
                return False
            return self.is_open(module) and self.installed.names(language, first) is None
        if language in SCRIPTS:
            package = _package(module)
            if module.startswith((".", "node:", "#", "/")) or package in self.script_packages:
                return False
            return module not in standard(language) and (
                self.installed.names(language, package) is None
            )
        if language == "go":
            return self.go_folder(module) is None and module not in standard("go")
        if language == "java":
            return self.scope("", language, target) is None
        if language == "rust":
            return module.split("::")[0] not in ("crate", "self", "super", "std", "core", "alloc")
        return True

    # Python

    def python_files(self, path: str, module: str) -> list[str]:
        """Files that a module's name may mean, seen from a file."""
        stripped = module.lstrip(".")
        parts = stripped.split(".") if stripped else []
        if dots := len(module) - len(stripped):
            folder = list(PurePosixPath(path).parent.parts)
            folder = folder[: len(folder) - dots + 1] if dots > 1 else folder
            base = "/".join([*folder, *parts])
            ends = (f"{base}.py", f"{base}/__init__.py", f"{base}.pyi", f"{base}/__init__.pyi")
            return [end for end in ends if end in self.tree]
        if not parts or parts[0] in standard("python"):
            return []
        tail, found = "/" + "/".join(parts), []
        for one in self.python_modules.get(parts[-1], ()):
            whole = "/" + one.rsplit(".", 1)[0].removesuffix("/__init__")
            # What lies inside a package is not imported by its own name alone.
            root = whole[1 : -len(tail)] if whole.endswith(tail) else None
            if root is None or self.is_package(root):
                continue
            # A folder somewhere below may well be called like somebody else's package.
            if len(parts) > 1 or root in _ROOTS or path.startswith(f"{root}/"):
                found.append(one)
        return found

    def is_open(self, module: str) -> bool:
        """Whether others may add modules to the package that this one would be in."""
        parts = module.split(".")
        for end in range(len(parts) - 1, 0, -1):
            files = self.python_files("", ".".join(parts[:end]))
            if files:
                return any(b"__path__" in (self.sides.read("after", one) or b"") for one in files)
        return True

    def is_package(self, folder: str) -> bool:
        return bool(folder) and f"{folder}/__init__.py" in self.tree

    def submodules(self, path: str) -> Iterator[str]:
        """Names of the modules inside a package."""
        if PurePosixPath(path).stem == "__init__":
            folder = str(PurePosixPath(path).parent)
            for other in self.tree:
                if other.startswith(f"{folder}/"):
                    yield other[len(folder) + 1 :].split("/")[0].split(".")[0]

    def _python(self, path: str, whole: str) -> Scope | None:
        files = self.python_files(path, whole)
        if files:
            return self._files(whole, files, _DYNAMIC["python"])
        known = standard("python").get(whole)
        if known is not None and whole.split(".", maxsplit=1)[0] not in self.python_modules:
            inside = {
                one.split(".")[-1] for one in standard("python") if one.startswith(f"{whole}.")
            }
            return Scope(label=whole, names=known | inside | ELSEWHERE.get(whole, set()), own=False)
        return None

    def _files(self, label: str, files: list[str], dynamic: re.Pattern[bytes]) -> Scope | None:
        if any(dynamic.search(self.sides.read("after", one) or b"") for one in files):
            return None
        names = frozenset[str]().union(
            *(self.words_of(one) for one in files), *(set(self.submodules(one)) for one in files)
        )
        return Scope(label=label, names=names, own=True)

    # JavaScript and TypeScript

    def script_file(self, path: str, module: str) -> str | None:
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

    def _script(self, path: str, module: str) -> Scope | None:
        known = standard("javascript").get(module.removeprefix("node:"))
        if known and not module.startswith("."):
            return Scope(label=module, names=known, own=False)
        file = self.script_file(path, module)
        if file is None or not language_of(file):
            return None
        return self._files(module, [file], _DYNAMIC["scripts"])

    # Go

    def go_folder(self, module: str) -> str | None:
        """The repository's folder that an import path means."""
        own = self.go_module
        if own is None or not (module == own or module.startswith(own + "/")):
            return None
        folder = module[len(own) :].lstrip("/") or "."
        return folder if folder in self.folders else None

    def _go(self, path: str, module: str) -> Scope | None:
        folder = self.go_folder(module)
        if folder is not None:
            files = [one for one in self.folders[folder] if one.endswith(".go")]
            names = frozenset[str]().union(*(self.words_of(one) for one in files))
            return Scope(label=module, names=names, own=True)
        known = standard("go").get(module)
        return Scope(label=module, names=known, own=False) if known is not None else None

    # Java

    @cached_property
    def java_files(self) -> Mapping[str, list[str]]:
        """Source files by what they and their folder are called by others."""
        found: dict[str, list[str]] = {}
        for folder, files in self.folders.items():
            name = re.split(r"(?:^|/)(?:java|src)/", folder)[-1].replace("/", ".")
            for path in files:
                if path.endswith(".java"):
                    found.setdefault(name, []).append(path)
                    found.setdefault(f"{name}.{PurePosixPath(path).stem}", []).append(path)
        return found

    def _java(self, path: str, module: str) -> Scope | None:
        files = self.java_files.get(module)
        if files:
            # A file does not make what it imports.
            names = frozenset[str]().union(*(self.words_of(one) for one in files if one != path))
            return Scope(label=module, names=names, own=True)
        package = module if module in standard("java") else module.rpartition(".")[0]
        known = standard("java").get(package)
        return Scope(label=module, names=known, own=False) if known is not None else None


def _package(module: str) -> str:
    """The name of a package in what is imported from it."""
    return "/".join(module.split("/")[: 2 if module.startswith("@") else 1])
