"""Names that a request must contain: what hidden tests use of the work and the base lacks."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from posixpath import normpath

from closeloop.git import read_git_text
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.tasks.change_parts import ChangeParts
from closeloop.tasks.task_prompts import (
    find_introduced_names,
    is_label_told,
    remove_strings,
    split_patch_lines,
)
from closeloop.tasks.work_history import PastWork, find_words_at
from closeloop.text.code_patterns import parse_python
from closeloop.text.wording import compile_lazily

# What Python tests require from a change: modules, names, members and keywords the base lacks.


MAX_STAR_DEPTH = 4
"""Maximum chain of modules that re-export names with `import *`."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class PythonFiles:
    """The Python files of one commit, by path and by import name."""

    def __init__(self, paths: Iterable[str], read_text: Callable[[str], str | None]) -> None:
        self.paths = frozenset(path for path in paths if path.endswith(".py"))
        self._read_text = read_text
        self._trees: dict[str, ast.Module | None] = {}
        self._modules: dict[str, str] = {}
        for path in sorted(self.paths, key=len, reverse=True):
            for name in self._import_names(path):
                self._modules[name] = path

    def find_module(self, name: str) -> str | None:
        """Return the file of a module, by its dotted name."""
        return self._modules.get(name)

    def find_relative(self, importer: str, level: int, name: str) -> str | None:
        """Return the file that a relative import means."""
        parents = PurePosixPath(importer).parents
        if level > len(parents):
            return None
        module_path = parents[level - 1].joinpath(*filter(None, name.split(".")))
        files = (f"{module_path}.py", str(module_path / "__init__.py"))
        return next((path for path in files if path in self.paths), None)

    def module_name(self, path: str) -> str:
        """Return the shortest name under which a file is imported."""
        return min(self._import_names(path), key=len, default=path)

    def parse_file(self, path: str) -> ast.Module | None:
        """Return the syntax tree of a file; None if it does not parse as Python."""
        if path not in self._trees:
            text = self._read_text(path)
            try:
                self._trees[path] = None if text is None else parse_python(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._trees[path] = None
        return self._trees[path]

    def list_bindings(self, path: str, depth: int = MAX_STAR_DEPTH) -> frozenset[str] | None:
        """Return a module's names, including those of `import *`; None if they cannot be known."""
        tree = self.parse_file(path)
        if tree is None or depth == 0:
            return None
        names: set[str] = set()
        for node in _walk_module_level(tree):
            names |= _bound_names(node)
            if not isinstance(node, ast.ImportFrom) or node.names[0].name != "*":
                continue
            source = self.find_import(path, node)
            passed_on = self.list_bindings(source, depth - 1) if source else None
            if passed_on is None:
                return None
            names |= passed_on
        return None if "__getattr__" in names else frozenset(names)

    def find_import(self, importer: str, node: ast.ImportFrom) -> str | None:
        """Return the file that a `from … import` takes its names from."""
        if node.level:
            return self.find_relative(importer, node.level, node.module or "")
        return self.find_module(node.module or "")

    def _import_names(self, path: str) -> Iterator[str]:
        """Yield dotted names, each starting at a folder that is not a package."""
        stem = path.rpartition(".")[0].removesuffix("/__init__")
        parts = stem.split("/")
        for start in range(len(parts)):
            package_file = "/".join([*parts[:start], "__init__.py"])
            if start == 0 or package_file not in self.paths:
                yield ".".join(parts[start:])


def _walk_module_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield statements that bind names of the module, also under `if`, `try` and `with`."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield from _walk_module_level(node)


def _bound_names(node: ast.AST) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return {alias.asname or alias.name.partition(".")[0] for alias in aliases}
        case ast.Name(id=name, ctx=ast.Store()):
            return {name}
        case _:
            return set()


class PythonMember(Record):
    """A member of a class or a function: a method, an attribute, or a parameter."""

    owner: str
    """Its owner in the module: `Shop`, `Shop.refund`."""
    name: str
    is_parameter: bool = False


def list_members(tree: ast.Module | None) -> frozenset[PythonMember]:
    """Return the methods, attributes and parameters that a module defines."""
    return frozenset(_walk_members(tree, "")) if tree is not None else frozenset()


def _walk_members(node: ast.AST, owner: str) -> Iterator[PythonMember]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            qualified = f"{owner}.{child.name}".lstrip(".")
            for name in _list_class_attributes(child):
                yield PythonMember(owner=qualified, name=name)
            yield from _walk_members(child, qualified)
        elif isinstance(child, _FUNCTIONS):
            yield from _list_parameters(child, f"{owner}.{child.name}".lstrip("."))
        else:
            yield from _walk_members(child, owner)


def _list_class_attributes(node: ast.ClassDef) -> set[str]:
    """Return methods, class attributes, and attributes that methods set on `self`."""
    names = {name for child in node.body for name in _assigned_names(child)}
    names |= {child.name for child in node.body if isinstance(child, _FUNCTIONS)}
    for child in ast.walk(node):
        match child:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                names.add(name)
            case _:
                pass
    return names


def _assigned_names(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _list_parameters(
    node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str
) -> Iterator[PythonMember]:
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        if argument.arg not in ("self", "cls"):
            yield PythonMember(owner=owner, name=argument.arg, is_parameter=True)


class PythonUse(Record):
    """What the changed lines of a test file use."""

    attributes: frozenset[str] = frozenset()
    keywords: frozenset[tuple[str, str]] = frozenset()
    """The last name of the callee, and the keyword passed to it."""
    names: frozenset[str] = frozenset()
    """Names that the file does not bind, and arguments, which may be fixtures."""


def read_test_use(tree: ast.Module | None, lines: frozenset[int]) -> PythonUse:
    """Return what the given lines of a test file use."""
    attributes: set[str] = set()
    keywords: set[tuple[str, str]] = set()
    arguments: set[str] = set()
    loaded_names: set[str] = set()
    bound_names: set[str] = set()
    for node in ast.walk(tree) if tree is not None else ():
        bound_names |= _bound_names(node)
        if getattr(node, "lineno", None) not in lines and not isinstance(node, ast.Call):
            continue
        match node:
            case ast.Attribute(attr=name):
                attributes.add(name)
            case ast.Call(func=function, keywords=call_keywords):
                callee = getattr(function, "attr", getattr(function, "id", ""))
                keywords |= {
                    (callee, keyword.arg)
                    for keyword in call_keywords
                    if keyword.arg and keyword.lineno in lines
                }
            case ast.Name(id=name, ctx=ast.Load()):
                loaded_names.add(name)
            case ast.arg(arg=name):
                arguments.add(name)
            case _:
                pass
    return PythonUse(
        attributes=frozenset(attributes),
        keywords=frozenset(keywords),
        names=frozenset((loaded_names | arguments) - bound_names),
    )


class ImportNeed(Record):
    """A module, or a name in one, that tests need and the base lacks."""

    module: str
    name: str = ""
    imported: bool = True
    """Whether it is imported; else it is only read as an attribute of the module."""

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}".rstrip(".")


def list_import_needs(
    test: str, before: PythonFiles, after: PythonFiles, test_paths: frozenset[str]
) -> Iterator[ImportNeed]:
    """Yield what a test file takes from the project's modules and the base lacks.

    `test_paths` are the files that come with the tests.
    """
    tree = after.parse_file(test)
    if tree is None:
        return
    modules: dict[str, str | None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {
                name.asname or name.name: after.find_module(name.name) for name in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield from _find_name_need(test, node, alias.name, before, after, test_paths)
                modules[alias.asname or alias.name] = _find_submodule(test, node, alias.name, after)
    own_modules = {name: path for name, path in modules.items() if path and path not in test_paths}
    for path in dict.fromkeys(own_modules.values()):
        if _find_base_path(path, before, after) is None:
            yield ImportNeed(module=after.module_name(path))
    yield from _list_attribute_needs(tree, own_modules, before, after)


def _list_attribute_needs(
    tree: ast.Module, modules: dict[str, str], before: PythonFiles, after: PythonFiles
) -> Iterator[ImportNeed]:
    """Yield what is read as an attribute of a module, by its name in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (path := modules.get(ast.unparse(node.value))):
            name = after.module_name(path)
            missing = _lacks_name(path, node.attr, before, after)
            if missing and after.find_module(f"{name}.{node.attr}") is None:
                yield ImportNeed(module=name, name=node.attr, imported=False)


def _find_name_need(
    test: str,
    node: ast.ImportFrom,
    name: str,
    before: PythonFiles,
    after: PythonFiles,
    test_paths: frozenset[str],
) -> Iterator[ImportNeed]:
    submodule = _find_submodule(test, node, name, after)
    path = submodule or after.find_import(test, node)
    if path is None or path in test_paths:
        return
    module = after.module_name(path)
    if _find_base_path(path, before, after) is None:
        yield ImportNeed(module=module, name="" if submodule or name == "*" else name)
    elif not submodule and name != "*" and _lacks_name(path, name, before, after):
        yield ImportNeed(module=module, name=name)


def _find_submodule(test: str, node: ast.ImportFrom, name: str, files: PythonFiles) -> str | None:
    if node.level:
        return files.find_relative(test, node.level, f"{node.module or ''}.{name}")
    return files.find_module(f"{node.module}.{name}")


def _find_base_path(path: str, before: PythonFiles, after: PythonFiles) -> str | None:
    """Return the base's path of a module of the work: a package may have been a file."""
    return path if path in before.paths else before.find_module(after.module_name(path))


def _lacks_name(path: str, name: str, before: PythonFiles, after: PythonFiles) -> bool:
    """Return whether the work adds a name to a module that the base's module lacks."""
    base_path = _find_base_path(path, before, after)
    old = before.list_bindings(base_path) if base_path else frozenset[str]()
    new = after.list_bindings(path)
    return old is not None and name not in old and (new is None or name in new)


# Names that a request must contain: those that hidden tests use and the base lacks.


MAX_FILE_CHARS = 400_000
MAX_WEAK_NAMES = 96
_HUNK_HEADER = compile_lazily(r"@@ -\d{1,9}(?:,\d{1,9})? \+(\d{1,9})(?:,\d{1,9})? @@")


class RequiredName(Record):
    """A name that the tests use, as the request states it."""

    label: str
    """With its location: `` `shop.orders.refund` ``, `` `refund` of `src/orders.ts` ``."""
    imported: bool = False
    """Whether the tests cannot be loaded without it."""

    def is_told(self, prompt: str) -> bool:
        """Return whether a request contains each of its parts as a word."""
        return is_label_told(self.label, prompt)


class WorkFiles:
    """The files of a piece of work before and after it, read on demand."""

    def __init__(
        self,
        repo: Path,
        work: PastWork,
        parts: ChangeParts,
        base: Sequence[str],
        tip: Sequence[str],
    ) -> None:
        self.repo, self.work, self.parts = repo, work, parts
        self.base_paths, self.tip_paths = frozenset(base), frozenset(tip)
        self._texts: dict[tuple[str, str], str | None] = {}

    def read_base(self, path: str) -> str | None:
        return self._read(self.work.base, path) if path in self.base_paths else None

    def read_tip(self, path: str) -> str | None:
        return self._read(self.work.commit, path) if path in self.tip_paths else None

    def _read(self, commit: str, path: str) -> str | None:
        key = commit, path
        if key not in self._texts:
            try:
                text = read_git_text(self.repo, "cat-file", "blob", f"{commit}:{path}")
            except BadInput:
                text = ""
            self._texts[key] = text if 0 < len(text) <= MAX_FILE_CHARS else None
        return self._texts[key]

    @property
    def test_paths(self) -> tuple[str, ...]:
        """Return the files that come with the tests and exist after the work."""
        return tuple(
            path for path in (*self.parts.tests, *self.parts.support) if path in self.tip_paths
        )


def find_required_names(files: WorkFiles, source: str, tests: str) -> list[RequiredName]:
    """Return all names that the tests use and the base lacks, imported ones first."""
    lines = list_added_lines(tests)
    required_names = [
        *_find_python_names(files, lines),
        *_find_script_names(files),
        *_find_go_names(files, tests),
        *_find_other_names(files, source, tests),
    ]
    labels: dict[str, RequiredName] = {}
    for name in sorted(required_names, key=lambda name: not name.imported):
        labels.setdefault(name.label, name)
    return [name for name in labels.values() if not _is_implied(name, labels)]


def find_untold_names(prompt: str, names: Sequence[RequiredName]) -> list[str]:
    """Return imports of the tests that neither base nor request has: they could not be loaded."""
    return [name.label for name in names if name.imported and not name.is_told(prompt)]


def describe_untold_names(untold: Sequence[str]) -> str:
    """Describe why nobody could fulfil a request."""
    suffix = f" and {len(untold) - 3} more" if len(untold) > 3 else ""
    listed_names = ", ".join(untold[:3])
    return (
        f"its tests need {listed_names}{suffix}, which are neither in the request nor in the base"
    )


def list_added_lines(patch: str) -> dict[str, frozenset[int]]:
    """Return the numbers of the lines that a patch adds, by file."""
    added: dict[str, set[int]] = {}
    path, number, in_hunk = "", 0, False
    for line in patch.split("\n"):
        if line.startswith("diff --git "):
            in_hunk = False
        elif not in_hunk and line.startswith("+++ "):
            path = line[4:].strip('"').removeprefix("b/")
        elif header := _HUNK_HEADER.match(line):
            number, in_hunk = int(header[1]), True
        elif in_hunk and line[:1] in ("+", " "):
            if line[0] == "+":
                added.setdefault(path, set()).add(number)
            number += 1
    return {name: frozenset(numbers) for name, numbers in added.items()}


def _is_implied(name: RequiredName, labels: dict[str, RequiredName]) -> bool:
    """Return whether another name already implies it: a module by what is taken from it, an
    attribute by the parameter of its name."""
    bare = name.label.strip("`")
    owner, _, last = bare.rpartition(".")
    return f"`{last}` of `{owner}`" in labels or any(
        label != name.label and label.startswith(f"`{bare}.") for label in labels
    )


# Python: by its syntax.


def _find_python_names(
    files: WorkFiles, lines: dict[str, frozenset[int]]
) -> Iterator[RequiredName]:
    tests = [path for path in files.test_paths if path.endswith(".py")]
    if not tests:
        return
    before = PythonFiles(files.base_paths, files.read_base)
    after = PythonFiles(files.tip_paths, files.read_tip)
    test_paths = frozenset(files.test_paths)
    for test in tests:
        for need in list_import_needs(test, before, after, test_paths):
            yield RequiredName(label=f"`{need.path}`", imported=need.imported)
    uses = [read_test_use(after.parse_file(path), lines.get(path, frozenset())) for path in tests]
    members = {
        path: _list_new_members(path, before, after)
        for path in files.parts.source
        if path in after.paths
    }
    used_names = frozenset[str]().union(*(use.names for use in uses))
    unbound = {path: used_names & _list_new_bindings(path, before, after) for path in members}
    weak = {member.name for new_members in members.values() for member in new_members}.union(
        *unbound.values()
    )
    base_words = find_code_words(files, sorted(weak)[:MAX_WEAK_NAMES])
    for path, file_members in members.items():
        for name in sorted(unbound[path] - base_words):
            yield RequiredName(label=f"`{after.module_name(path)}.{name}`")
        for member in sorted(file_members, key=lambda member: (member.owner, member.name)):
            if any(_uses_member(use, member, base_words) for use in uses):
                yield _label_member(after.module_name(path), member)


def _list_new_members(path: str, before: PythonFiles, after: PythonFiles) -> set[PythonMember]:
    """Return what a file defines only after the work, without Python's special names."""
    new = list_members(after.parse_file(path))
    old = list_members(before.parse_file(path)) if path in before.paths else ()
    return {
        member
        for member in new.difference(old)
        if not (member.name.startswith("__") and len(member.name) > 4)
    }


def _list_new_bindings(path: str, before: PythonFiles, after: PythonFiles) -> frozenset[str]:
    old = before.list_bindings(path) if path in before.paths else None
    return (after.list_bindings(path) or frozenset()) - (old or frozenset())


def _uses_member(use: PythonUse, member: PythonMember, base_words: frozenset[str]) -> bool:
    """Return whether tests use a member: a keyword by its callee, another if its name is new."""
    owner = member.owner.removesuffix(".__init__").rpartition(".")[2]
    if (owner, member.name) in use.keywords:
        return True
    if member.name in base_words:
        return False
    return any(keyword == member.name for _, keyword in use.keywords) or (
        member.name in use.attributes and not member.is_parameter
    )


def _label_member(module: str, member: PythonMember) -> RequiredName:
    owner = f"{module}.{member.owner.removesuffix('.__init__')}"
    if member.is_parameter:
        return RequiredName(label=f"`{member.name}` of `{owner}`")
    return RequiredName(label=f"`{owner}.{member.name}`")


def find_code_words(files: WorkFiles, words: Sequence[str]) -> frozenset[str]:
    """Return which of the words occur in the base's code; documents do not count."""
    return find_words_at(files.repo, files.work.base, words, is_code_path)


def is_code_path(path: str) -> bool:
    """Return whether a file is code, by its ending."""
    return PurePosixPath(path).suffix in _CODE_SUFFIXES


# JavaScript and TypeScript: what tests import from files beside them.

_SCRIPT_SUFFIXES = (".js", ".ts", ".mjs", ".cjs", ".mts", ".cts", ".jsx", ".tsx")
_CODE_SUFFIXES = frozenset(
    {*_SCRIPT_SUFFIXES, ".py", ".pyi", ".go", ".rs", ".java", ".kt", ".rb", ".php", ".c", ".h"}
)
_SCRIPT_IMPORT = compile_lazily(
    r"(?:import|export)\s+(?:type\s+)?(?P<names>[^;'\"`]{0,2000}?)\s*from\s*['\"](?P<path>\.[^'\"\n]*)"
    r"|(?:(?:const|let|var)\s+(?P<bound>[^=;]{1,2000}?)\s*=\s*(?:await\s+)?)?"
    r"(?:require|import)\(\s*['\"](?P<called>\.[^'\"\n]*)['\"]\s*\)(?:\.(?P<member>\w+))?"
)
_BRACED_NAME = compile_lazily(r"(?:^|[{,])\s*(?:type\s+)?([A-Za-z_$][\w$]*)")
_STAR_EXPORT = compile_lazily(r"export\s*\*\s*from\s*['\"](\.[^'\"\n]*)")


def _find_script_names(files: WorkFiles) -> Iterator[RequiredName]:
    test_paths = frozenset(files.test_paths)
    for test in files.test_paths:
        if not test.endswith(_SCRIPT_SUFFIXES):
            continue
        for match in _SCRIPT_IMPORT.finditer(files.read_tip(test) or ""):
            target = match["path"] or match["called"]
            path = _resolve_script(test, target, files.tip_paths)
            if path is None or path in test_paths:
                continue
            base_path = _resolve_script(test, target, files.base_paths)
            braced = re.search(r"\{([^}]*)", match["names"] or match["bound"] or "")
            names = _BRACED_NAME.findall(f"{{{braced[1]}") if braced else []
            names += [match["member"]] if match["member"] else []
            missing = [
                name for name in names if base_path is None or _lacks_export(files, path, name)
            ]
            if base_path is None and not missing:
                yield RequiredName(label=f"`{path}`", imported=True)
            for name in missing:
                yield RequiredName(label=f"`{name}` of `{path}`", imported=True)


def _resolve_script(importer: str, target: str, paths: frozenset[str]) -> str | None:
    """Return the file that a relative import means, trying endings that may be omitted."""
    target_path = normpath(str(PurePosixPath(importer).parent / target)).removeprefix("./")
    stem = re.sub(r"\.[cm]?[jt]sx?$", "", target_path)
    index = "" if target_path == "." else f"{target_path}/"
    candidates = (
        target_path,
        *(f"{target_path}{ending}" for ending in _SCRIPT_SUFFIXES),
        *(f"{stem}{ending}" for ending in _SCRIPT_SUFFIXES),
        *(f"{index}index{ending}" for ending in _SCRIPT_SUFFIXES),
    )
    return next((path for path in candidates if path in paths), None)


def _lacks_export(files: WorkFiles, path: str, name: str) -> bool:
    """Return whether a module has a name only after the work, judged by its words."""
    before = _read_exports(path, files.base_paths, files.read_base)
    after = _read_exports(path, files.tip_paths, files.read_tip)
    pattern = re.compile(rf"(?<![\w$]){re.escape(name)}(?![\w$])")
    return pattern.search(after) is not None and pattern.search(before) is None


def _read_exports(
    path: str, paths: frozenset[str], read_text: Callable[[str], str | None], depth: int = 4
) -> str:
    """Return the text of a module and of those that it re-exports entirely."""
    text = read_text(path) or ""
    reexports = (
        _read_exports(target_path, paths, read_text, depth - 1)
        for target in _STAR_EXPORT.findall(text)
        if depth and (target_path := _resolve_script(path, target, paths)) is not None
    )
    return "\n".join([text, *reexports])


# Go: what tests of a package use of its own names.

_GO_DEFINITION = compile_lazily(
    r"^func(?: \((?:\w+ )?\*?(?P<owner>\w+)(?:\[[^\]]*\])?\))? (?P<function>\w+)"
    r"|^(?:type|var|const) (?P<name>\w+)",
    re.MULTILINE,
)
_GO_BLOCK = compile_lazily(
    r"^(?:(?:var|const) \(|type (\w+) (?:struct|interface) \{)\n(.*?)^[)}]",
    re.MULTILINE | re.DOTALL,
)


def _find_go_names(files: WorkFiles, tests: str) -> Iterator[RequiredName]:
    if not any(path.endswith("_test.go") for path in files.test_paths):
        return
    used_words = _list_words(split_patch_lines(tests).added)
    test_names = {
        name for path in files.test_paths for _, name in _go_names(files.read_tip(path) or "")
    }
    for path in files.parts.source:
        if not path.endswith(".go"):
            continue
        text, folder = files.read_tip(path) or "", PurePosixPath(path).parent
        old = {
            name
            for base_path in files.base_paths
            if base_path.endswith(".go") and PurePosixPath(base_path).parent == folder
            for name in _go_names(files.read_base(base_path) or "")
        }
        package = re.search(r"^package (\w+)", text, re.MULTILINE)
        for owner, name in sorted({*_go_names(text)} - old):
            is_local = owner and name[0].islower() and _declares_go_name(tests, name)
            if name in used_words and name not in test_names and package and not is_local:
                label = ".".join(filter(None, (package[1], owner, name)))
                yield RequiredName(label=f"`{label}`", imported=True)


def _declares_go_name(tests: str, name: str) -> bool:
    """Return whether tests declare a variable, parameter or table field of that name."""
    return (
        re.search(rf"\b{name}(?:, \w+)*(?: :?= |\s+[\w\[\]*.]+(?:$|[,)]))", tests, re.M) is not None
    )


def _go_names(text: str) -> Iterator[tuple[str, str]]:
    """Yield each top-level name of a Go file, preceded by its type."""
    for definition in _GO_DEFINITION.finditer(text):
        yield definition["owner"] or "", definition["function"] or definition["name"]
    for block in _GO_BLOCK.finditer(text):
        for line in block[2].split("\n"):
            if names_match := re.match(r"\t(\w+(?:, \w+)*)(?: |\(|$)", line):
                for name in names_match[1].split(", "):
                    yield block[1] or "", name


# Other languages, and further uses in scripts: words that work and tests both introduce.


def _find_other_names(files: WorkFiles, source: str, tests: str) -> Iterator[RequiredName]:
    # Tests that cannot be parsed, such as those for Python 2, are read by their words too.
    after = PythonFiles(files.tip_paths, files.read_tip)
    parsed = all(after.parse_file(path) for path in files.test_paths if path.endswith(".py"))
    endings = (".py", ".go") if parsed else (".go",)
    source, tests = (_drop_files(patch, endings) for patch in (source, tests))
    new_names = sorted(find_introduced_names(source, tests))[:MAX_WEAK_NAMES]
    base_words = find_code_words(files, new_names)
    for name in new_names:
        if name not in base_words:
            path = _find_bringing_file(source, name)
            yield RequiredName(label=f"`{name}` of `{path}`" if path else f"`{name}`")


def _find_bringing_file(patch: str, name: str) -> str | None:
    """Return the first code file to which a patch adds a name; type declarations come last."""
    paths = []
    for piece in re.split(r"(?m)^(?=diff --git )", patch):
        header = re.search(r"^\+\+\+ b/(\S+)$", piece, re.MULTILINE)
        added = "\n".join(split_patch_lines(piece).added) if header else ""
        if header and is_code_path(header[1]) and re.search(rf"\b{re.escape(name)}\b", added):
            paths.append(header[1])
    return min(paths, key=lambda path: path.endswith(".d.ts"), default=None)


def _drop_files(patch: str, endings: tuple[str, ...]) -> str:
    """Return a patch without files of these endings."""
    pieces = re.split(r"(?m)^(?=diff --git )", patch)
    return "".join(
        piece for piece in pieces if not piece.partition("\n")[0].strip('"').endswith(endings)
    )


def _list_words(lines: Sequence[str]) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z_]\w*", remove_strings("\n".join(lines))))
