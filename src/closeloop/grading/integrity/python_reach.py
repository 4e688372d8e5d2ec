"""Which functions beside a Python test may run with it: helpers, fixtures, base classes, hooks.

Names decide: a function that a test names may be called by it, and so on from there. That finds
too much rather than too little.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from closeloop.grading.integrity.python_context import TestFunction

ALWAYS = re.compile(
    r"(?:async)?(?:set_?up|tear_?down)(?:_?class|_?module|_?method|_?function|_?test_?data)?"
    r"|pytest_\w+|__\w+__",
    re.IGNORECASE,
)
"""Functions that run although no test names them."""


class FunctionIndex:
    """The functions of some modules, and what each of them names."""

    def __init__(self, modules: Iterable[ast.Module]) -> None:
        self.by_name: dict[str, list[TestFunction]] = {}
        self.always: list[TestFunction] = []
        self.named: dict[int, frozenset[str]] = {}
        self.assigned: dict[str, set[str]] = {}
        self.homes: dict[int, ast.Module] = {}
        for tree in modules:
            for function in list_outer_functions(tree):
                self.homes[id(function)] = tree
                self.by_name.setdefault(function.name, []).append(function)
                self.named[id(function)] = frozenset(_names_in(function))
                if ALWAYS.fullmatch(function.name) or _is_autouse(function):
                    self.always.append(function)
            for statement in tree.body:
                if isinstance(statement, (ast.Assign, ast.ClassDef)):
                    self._add_names(statement)

    def _add_names(self, statement: ast.Assign | ast.ClassDef) -> None:
        """What a class or a variable is made of: `test_total = make_test(3)`."""
        if isinstance(statement, ast.ClassDef):
            inside = [one for one in statement.body if not isinstance(one, _FUNCTIONS)]
            outside: list[ast.AST] = [*statement.bases, *statement.decorator_list, *inside]
            names = [statement.name]
        else:
            outside = [statement.value]
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
        for name in names:
            self.assigned.setdefault(name, set()).update(
                used for node in outside for used in _names_in(node)
            )

    def called_by(self, name: str, home: ast.Module) -> set[int]:
        """The `id`s of functions that a call in a module leads to, by way of those in it first."""
        waiting, functions = [(name, home)], set[int]()
        while waiting:
            name, home = waiting.pop()
            found = self.by_name.get(name, ())
            for function in [one for one in found if self.homes[id(one)] is home] or found:
                if id(function) not in functions:
                    functions.add(id(function))
                    inner = self.homes[id(function)]
                    waiting += [(used, inner) for used in self.named[id(function)]]
        return functions

    def reachable_from(self, names: Iterable[str]) -> list[TestFunction]:
        """The functions that these names lead to, with those that always run."""
        waiting, seen = [*names], set[str]()
        functions = dict[int, TestFunction]()
        for function in self.always:
            functions[id(function)] = function
            waiting += self.named[id(function)]
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            waiting += self.assigned.get(name, ())
            for function in self.by_name.get(name, ()):
                functions[id(function)] = function
                waiting += self.named[id(function)]
        return list(functions.values())


def names_of_test(function: TestFunction | None, name: str, classes: Iterable[str]) -> set[str]:
    """What a test names itself, and the classes it stands in."""
    return {name, *classes, *(_names_in(function) if function is not None else ())}


def list_outer_functions(tree: ast.Module | ast.ClassDef) -> Iterator[TestFunction]:
    """The functions and methods of a module, but for those inside functions."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from list_outer_functions(node)
        elif isinstance(node, (ast.If, ast.Try)):
            yield from list_outer_functions(ast.Module(body=node.body, type_ignores=[]))
            yield from list_outer_functions(ast.Module(body=node.orelse, type_ignores=[]))


def imported_helpers(
    helpers: Mapping[str, str], sources: Collection[str], files: Iterable[str]
) -> dict[str, str]:
    """The modules that tests import, directly or not, and the `conftest.py` above their files."""
    folders = {file.rpartition("/")[0] for file in files}
    chosen = {
        path: text
        for path, text in helpers.items()
        if path.rpartition("/")[2] == "conftest.py"
        and any(_is_above(path.rpartition("/")[0], folder) for folder in folders)
    }
    stems = {path: _module_stem(path) for path in helpers}
    waiting = [*sources, *chosen.values()]
    while waiting:
        imported = set(re.findall(r"\w+", " ".join(_IMPORTS.findall(waiting.pop()))))
        for path, stem in stems.items():
            if path not in chosen and stem in imported:
                chosen[path] = helpers[path]
                waiting.append(helpers[path])
    return chosen


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_IMPORTS = re.compile(
    r"^\s*(?:from\s+\S+\s+import\s+(?:\([^)]*\)|.*)|import\s+.*)|import_module\(.*|pytest_plugins.*",
    re.MULTILINE,
)


def _module_stem(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return folder.rpartition("/")[2] if name == "__init__.py" else name.removesuffix(".py")


def _is_above(folder: str, inner: str) -> bool:
    return not folder or inner == folder or inner.startswith(f"{folder}/")


def _is_autouse(function: TestFunction) -> bool:
    return any("autouse" in ast.unparse(decorator) for decorator in function.decorator_list)


def _names_in(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        match inner:
            case ast.Name():
                yield inner.id
            case ast.Attribute():
                yield inner.attr
            case ast.arg():
                yield inner.arg
            case ast.Constant(value=str(text)) if text.isidentifier():
                yield text  # `usefixtures("prices")`
