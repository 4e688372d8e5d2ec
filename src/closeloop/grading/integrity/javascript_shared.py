"""The functions beside JavaScript tests that may run with them: helpers, hooks, other modules.

Names decide: a function that a test names may be called by it, and so on from there. That finds
too much rather than too little. Functions without a name, such as hooks, always run.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from closeloop.grading.integrity.javascript_sites import (
    FUNCTIONS,
    called_names,
    list_statements,
    name_of_function,
    passes_error_on,
    sees_failure,
)
from closeloop.grading.integrity.javascript_tests import (
    Declaration,
    arguments_of,
    descendants,
    parse_script,
)
from closeloop.grading.integrity.source_edits import node_text
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node

_NAMES = ("identifier", "property_identifier", "shorthand_property_identifier")
_RELATIVE = re.compile(rb"""['"`](\.{1,2}/[^'"`\n]*)['"`]""")
_SUFFIXES = ("", ".js", ".ts", ".mjs", ".cjs", ".tsx", ".jsx", ".mts", ".cts")


class ScriptModule(Record):
    """A file of tests, or one that tests import."""

    path: str
    content: bytes
    root: Node
    declarations: list[Declaration]
    """None in a module that holds no tests."""


class SharedFunction(Record):
    """A function that stands in no test."""

    module: ScriptModule
    node: Node
    names: frozenset[str]
    """What it mentions."""


class SharedFunctions:
    """The functions of some modules that tests may run."""

    def __init__(self, modules: Iterable[ScriptModule]) -> None:
        self.by_name: dict[str, list[SharedFunction]] = {}
        self.aliases: dict[str, set[str]] = {}
        self.unsafe: set[str] = set()
        """Names of functions that something may expect to fail."""
        for module in modules:
            self._add_module(module)
        reached = self.reach(self.unsafe, hooks=False)
        self.unsafe.update(name_of_function(one.node) for one in reached)
        self.unsafe.discard("")

    def _add_module(self, module: ScriptModule) -> None:
        tests = {one.callback.start_byte: one.kind for one in module.declarations if one.callback}
        for node in _outer_functions(module.root, tests):
            shared = SharedFunction(module=module, node=node, names=frozenset(names_in(node)))
            self.by_name.setdefault(name_of_function(node), []).append(shared)
        for node in descendants(module.root):
            if node.type in ("import_specifier", "variable_declarator", "pair_pattern"):
                self._add_alias(node)
            elif node.type in ("call_expression", "try_statement"):
                self.unsafe.update(_names_expected_to_fail(node))

    def _add_alias(self, node: Node) -> None:
        """`import { check as verify }`, `const verify = makeCheck(3)`."""
        fields = {
            "import_specifier": ("alias", "name"),
            "variable_declarator": ("name", "value"),
            "pair_pattern": ("value", "key"),
        }
        alias, value = (node.child_by_field_name(field) for field in fields[node.type])
        if alias is None or value is None or alias.type != "identifier":
            return
        if value.type not in FUNCTIONS:
            named = {node_text(value)} if value.type in _NAMES else set(names_in(value))
            self.aliases.setdefault(node_text(alias), set()).update(named)

    def reach(self, names: Iterable[str], *, hooks: bool = True) -> list[SharedFunction]:
        """The functions that these names lead to; and hooks, with what they lead to."""
        waiting, seen = [*names, *([""] if hooks else [])], set[str]()
        found: list[SharedFunction] = []
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            waiting += self.aliases.get(name, ())
            for function in self.by_name.get(name, ()):
                found.append(function)
                waiting += function.names
        return found


def read_imported(
    module: ScriptModule, helpers: Mapping[str, str], known: dict[str, ScriptModule]
) -> None:
    """Add the modules that one imports by relative paths, directly or not, to those known."""
    waiting = [module]
    while waiting:
        importing = waiting.pop()
        folder = posixpath.dirname(importing.path)
        for match in _RELATIVE.finditer(importing.content):
            stem = posixpath.normpath(posixpath.join(folder, match[1].decode("utf-8", "replace")))
            path = next((path for path in _candidates(stem) if path in helpers), None)
            if path is None or path in known:
                continue
            content = helpers[path].encode("utf-8", "surrogateescape")
            root = parse_script(path, content)
            if root is not None:
                known[path] = ScriptModule(path=path, content=content, root=root, declarations=[])
                waiting.append(known[path])


def _candidates(stem: str) -> Iterator[str]:
    for suffix in _SUFFIXES:
        yield stem + suffix
        yield f"{stem}/index{suffix}"
    bare, dot, suffix = stem.rpartition(".")
    if dot and suffix in ("js", "mjs", "cjs"):
        yield f"{bare}.{suffix.replace('js', 'ts')}"


def names_in(node: Node) -> Iterator[str]:
    """Everything that a piece of code mentions."""
    return (node_text(inner) for inner in descendants(node) if inner.type in _NAMES)


def _outer_functions(root: Node, tests: Mapping[int, str]) -> Iterator[Node]:
    """Functions outside of tests and of other functions, but for those of suites."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        kind = tests.get(node.start_byte) if node.type in FUNCTIONS else "suite"
        if kind is None:
            yield node
        elif kind == "suite":
            waiting.extend(reversed(node.named_children))


def _names_expected_to_fail(node: Node) -> Iterator[str]:
    """What stands in functions, or is one, that a call or a `try` may expect to fail."""
    if node.type == "try_statement":
        handler = node.child_by_field_name("handler")
        if not passes_error_on(handler):
            for statement in list_statements(node.child_by_field_name("body")):
                yield from names_in(statement)
    elif sees_failure(called_names(node)):
        for argument in arguments_of(node):
            if argument.type == "identifier":
                yield node_text(argument)
            for inner in (argument, *descendants(argument)):
                if inner.type in FUNCTIONS:
                    yield from names_in(inner)
