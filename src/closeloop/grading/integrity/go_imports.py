"""Which imports of a Go file some of its functions need: one too many does not compile."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from closeloop.grading.integrity.source_edits import node_text, walk_nodes
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node

_SCOPES = frozenset(
    {
        "block",
        "if_statement",
        "for_statement",
        "expression_switch_statement",
        "type_switch_statement",
        "communication_case",
        "expression_case",
        "type_case",
        "default_case",
        "func_literal",
        "function_declaration",
        "method_declaration",
    }
)
_DECLARING = {
    "short_var_declaration": "left",
    "range_clause": "left",
    "receive_statement": "left",
    "type_switch_statement": "alias",
    "var_spec": "name",
    "const_spec": "name",
    "parameter_declaration": "name",
    "variadic_parameter_declaration": "name",
}


class GoImports(Record):
    """What a file imports."""

    named: dict[str, str] = {}
    """Paths by the name that the file uses."""
    has_dot: bool = False
    """Some names come from nowhere to be seen."""
    unknown: tuple[str, ...] = ()
    """Paths whose package has a name that cannot be told from the path."""


def read_imports(root: Node) -> GoImports:
    """Read a file's imports; a package's name is what the file uses of the likely ones."""
    used = list_package_names([root])
    named: dict[str, str] = {}
    unknown, has_dot = [], False
    for spec in walk_nodes(root):
        if spec.type != "import_spec":
            continue
        name = node_text(spec.child_by_field_name("name"))
        path = node_text(spec.child_by_field_name("path")).strip('"`')
        likely = [name] if name else _likely_names(path)
        known = next((one for one in likely if one in used), None)
        if name == ".":
            has_dot = True
        elif known is not None:
            named[known] = path
        elif name != "_":
            unknown.append(path)
    return GoImports(named=named, has_dot=has_dot, unknown=tuple(unknown))


def _likely_names(path: str) -> list[str]:
    """`gopkg.in/yaml.v3` → yaml; `github.com/a/go-b/v2` → go-b, b."""
    parts = [part for part in path.split("/") if not re.fullmatch(r"v\d+", part)] or [path]
    last = re.sub(r"\.v\d+$", "", parts[-1])
    bare = re.sub(r"^go[-.]|[-.]go$", "", last)
    return [last, bare, re.sub(r"\W", "", bare), re.sub(r"\W", "_", bare), bare.split("-")[-1]]


def needed_imports(functions: Iterable[Node], imports: GoImports) -> dict[str, str] | None:
    """Return the imports that functions use; None where the file leaves that open."""
    if imports.has_dot or imports.unknown:
        return None
    used = list_package_names(functions)
    return {name: path for name, path in imports.named.items() if name in used}


def list_package_names(roots: Iterable[Node]) -> set[str]:
    """Return `x` of each `x.y` where x is declared by nothing in the functions around it."""
    names = set()
    for root in roots:
        declared = _list_declarations(root)
        for node in walk_nodes(root):
            field = {"selector_expression": "operand", "qualified_type": "package"}.get(node.type)
            operand = node.child_by_field_name(field) if field else None
            if operand is None or operand.type not in ("identifier", "package_identifier"):
                continue
            place, name = operand.start_byte, node_text(operand)
            if not any(start <= place < end for start, end in declared.get(name, ())):
                names.add(name)
    return names


def _list_declarations(root: Node) -> dict[str, list[tuple[int, int]]]:
    """Where each name that is declared inside functions is known, as ranges of bytes."""
    declared: dict[str, list[tuple[int, int]]] = {}
    for node in walk_nodes(root):
        field = _DECLARING.get(node.type)
        if field is None:
            continue
        scope = node if node.type == "type_switch_statement" else node.parent
        while scope is not None and scope.type not in _SCOPES:
            scope = scope.parent
        if scope is None:
            continue
        for named in node.children_by_field_name(field):
            start = scope.start_byte if "parameter" in node.type else node.end_byte
            if node.type == "type_switch_statement":
                start = named.end_byte
            for name in walk_nodes(named):
                if name.type == "identifier":
                    declared.setdefault(node_text(name), []).append((start, scope.end_byte))
    return declared
