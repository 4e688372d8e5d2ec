"""What Python tests need of a change: modules, names, members and keywords that its base lacks."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath

from closeloop.python_trees import parse_python
from closeloop.records.record import Record

MAX_STAR_DEPTH = 4
"""Modules that pass names on with `import *`, one from the other."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class PythonFiles:
    """The Python files of one commit, by path and by the name they are imported under."""

    def __init__(self, paths: Iterable[str], read_text: Callable[[str], str | None]) -> None:
        self.paths = frozenset(path for path in paths if path.endswith(".py"))
        self._read_text = read_text
        self._trees: dict[str, ast.Module | None] = {}
        self._modules: dict[str, str] = {}
        for path in sorted(self.paths, key=len, reverse=True):
            for name in self._import_names(path):
                self._modules[name] = path

    def find_module(self, name: str) -> str | None:
        """The file of a module, by its dotted name."""
        return self._modules.get(name)

    def find_relative(self, importer: str, level: int, name: str) -> str | None:
        """The file that a relative import in a file means."""
        parents = PurePosixPath(importer).parents
        if level > len(parents):
            return None
        place = parents[level - 1].joinpath(*filter(None, name.split(".")))
        files = (f"{place}.py", str(place / "__init__.py"))
        return next((path for path in files if path in self.paths), None)

    def module_name(self, path: str) -> str:
        """The shortest name that a file is imported under."""
        return min(self._import_names(path), key=len, default=path)

    def parse_file(self, path: str) -> ast.Module | None:
        """The tree of a file; None where it cannot be read as Python."""
        if path not in self._trees:
            text = self._read_text(path)
            try:
                self._trees[path] = None if text is None else parse_python(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._trees[path] = None
        return self._trees[path]

    def list_bindings(self, path: str, depth: int = MAX_STAR_DEPTH) -> frozenset[str] | None:
        """The names that a module has, those of `import *` too; None where nobody can know."""
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
        """The file that a `from … import` takes its names from."""
        if node.level:
            return self.find_relative(importer, node.level, node.module or "")
        return self.find_module(node.module or "")

    def _import_names(self, path: str) -> Iterator[str]:
        """Dotted names, each from a folder that is no package itself."""
        stem = path.rpartition(".")[0].removesuffix("/__init__")
        parts = stem.split("/")
        for start in range(len(parts)):
            above = "/".join([*parts[:start], "__init__.py"])
            if start == 0 or above not in self.paths:
                yield ".".join(parts[start:])


def _walk_module_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Statements that bind names of the module: also those under `if`, `try` and `with`."""
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
    """Something of a class or a function: a method, an attribute, or a parameter."""

    owner: str
    """In its module: `Shop`, `Shop.refund`."""
    name: str
    is_parameter: bool = False


def list_members(tree: ast.Module | None) -> frozenset[PythonMember]:
    """The methods, attributes and parameters that a module defines."""
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
    """Methods, what is assigned in the class, and what its methods give `self`."""
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
    """What is called, by its last name, and the keyword it is given."""
    names: frozenset[str] = frozenset()
    """Names that the file does not bind, and arguments, which may be fixtures."""


def read_test_use(tree: ast.Module | None, lines: frozenset[int]) -> PythonUse:
    """What the given lines of a test file use."""
    attributes: set[str] = set()
    keywords: set[tuple[str, str]] = set()
    arguments: set[str] = set()
    loaded: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(tree) if tree is not None else ():
        bound |= _bound_names(node)
        if getattr(node, "lineno", None) not in lines and not isinstance(node, ast.Call):
            continue
        match node:
            case ast.Attribute(attr=name):
                attributes.add(name)
            case ast.Call(func=called, keywords=given):
                callee = getattr(called, "attr", getattr(called, "id", ""))
                keywords |= {(callee, one.arg) for one in given if one.arg and one.lineno in lines}
            case ast.Name(id=name, ctx=ast.Load()):
                loaded.add(name)
            case ast.arg(arg=name):
                arguments.add(name)
            case _:
                pass
    return PythonUse(
        attributes=frozenset(attributes),
        keywords=frozenset(keywords),
        names=frozenset((loaded | arguments) - bound),
    )


class ImportNeed(Record):
    """A module or a name of one that tests need and the base lacks."""

    module: str
    name: str = ""
    imported: bool = True
    """Else it is only asked for as the module's attribute."""

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}".rstrip(".")


def list_import_needs(
    test: str, before: PythonFiles, after: PythonFiles, given: frozenset[str]
) -> Iterator[ImportNeed]:
    """What a test file takes from modules of the project and the base does not have.

    `given` are the files that come with the tests.
    """
    tree = after.parse_file(test)
    if tree is None:
        return
    modules: dict[str, str | None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {one.asname or one.name: after.find_module(one.name) for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                yield from _find_name_need(test, node, one.name, before, after, given)
                modules[one.asname or one.name] = _find_submodule(test, node, one.name, after)
    own_modules = {name: path for name, path in modules.items() if path and path not in given}
    for path in dict.fromkeys(own_modules.values()):
        if _find_base_path(path, before, after) is None:
            yield ImportNeed(module=after.module_name(path))
    yield from _list_attribute_needs(tree, own_modules, before, after)


def _list_attribute_needs(
    tree: ast.Module, modules: dict[str, str], before: PythonFiles, after: PythonFiles
) -> Iterator[ImportNeed]:
    """What is asked for as an attribute of a module, by the name it has in the file."""
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
    given: frozenset[str],
) -> Iterator[ImportNeed]:
    submodule = _find_submodule(test, node, name, after)
    path = submodule or after.find_import(test, node)
    if path is None or path in given:
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
    """Where the base has a module of the work: a package may have been a file."""
    return path if path in before.paths else before.find_module(after.module_name(path))


def _lacks_name(path: str, name: str, before: PythonFiles, after: PythonFiles) -> bool:
    """Whether the work gives a module a name that it does not have at the base."""
    base_path = _find_base_path(path, before, after)
    old = before.list_bindings(base_path) if base_path else frozenset[str]()
    new = after.list_bindings(path)
    return old is not None and name not in old and (new is None or name in new)
