"""Make the tests of JavaScript files wrong: other expectations, assertions turned round.

Only assertions that are surely reached are changed: statements of the test's own function. Where
the original passes, its changed form must then fail.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from closeloop.model.record import Record
from closeloop.runs.integrity.javascript_matchers import (
    ASSERT_TURNED,
    CALLED_WITH,
    CERTAIN,
    CHAI_WORDS,
    CLASSES,
    EQUALITIES,
    OPPOSITES,
    PROMISED,
    TEXTS,
)
from closeloop.runs.integrity.javascript_tests import arguments_of, descendants, first_child
from closeloop.runs.integrity.javascript_values import change_value, random_word
from closeloop.runs.integrity.source_edits import Edit, Perturbation, node_text

if TYPE_CHECKING:
    from tree_sitter import Node

Style = Literal["jest", "chai", "should", "assert"]

_WHOLE_ASSERT = ("default", "assert", "strict")
"""The module itself, or what it exports as a whole."""
_HELPER_NAME = re.compile(r"(?:^|\.)(?:assert|check|expect|verify|ensure|must)\w*$", re.I)
_WRAPPERS = ("await_expression", "parenthesized_expression")
_FUNCTIONS = ("arrow_function", "function_expression", "function_declaration", "method_definition")


class Link(Record):
    """One `.name` or `.name(…)` of a chain of calls."""

    name: str
    place: Node
    """Of the name."""
    before: int
    """Where the dot stands."""
    call: Node | None

    @property
    def arguments(self) -> list[Node]:
        return [] if self.call is None else arguments_of(self.call)


class Assertion(Record):
    """A statement that fails the test where something does not hold."""

    style: Style
    root: Node
    """`expect(x)` or `assert`."""
    links: tuple[Link, ...] = ()
    matcher: Link | None = None
    """None where the root is the assertion: `assert(x)`."""
    name: str
    """Of the matcher."""
    reached: bool
    """Whether nothing before it may end the test."""

    @property
    def is_negated(self) -> bool:
        return any(link.name == "not" for link in self.links)

    @property
    def arguments(self) -> list[Node]:
        return arguments_of(self.root) if self.matcher is None else self.matcher.arguments

    @property
    def is_certain(self) -> bool:
        promised = self.style in ("chai", "should") and PROMISED & {one.name for one in self.links}
        return self.reached and self.name in CERTAIN | ASSERT_TURNED.keys() and not promised


def list_statements(callback: Node) -> list[Node]:
    """The statements of a function; its one expression, where it has no block."""
    body = callback.child_by_field_name("body")
    if body is None:
        return []
    if body.type != "statement_block":
        return [body]
    return [child for child in body.named_children if child.type != "comment"]


def find_assertions(callback: Node, assert_names: Mapping[str, str]) -> list[Assertion]:
    """The assertions that the test itself makes, in order.

    `assert_names` are local names of what the assert modules export, as `imported_names` says.
    """
    assertions = []
    reached = True
    for statement in list_statements(callback):
        expression, waited = _unwrap(statement)
        assertion = (
            None
            if expression is None
            else _read_assertion(expression, waited, reached, assert_names)
        )
        if assertion is not None:
            assertions.append(assertion)
        reached = reached and not _may_leave(statement)
    return assertions


def _unwrap(statement: Node) -> tuple[Node | None, bool]:
    """The expression of a statement, and whether the test waits for its promise."""
    expression: Node | None = statement
    if statement.type in ("expression_statement", "return_statement"):
        expression = first_child(statement)
    waited = statement.type != "expression_statement"
    while expression is not None and expression.type in _WRAPPERS:
        waited = waited or expression.type == "await_expression"
        expression = first_child(expression)
    return expression, waited


def _may_leave(statement: Node) -> bool:
    if statement.type in _FUNCTIONS:
        return False
    kinds = {statement.type, *(node.type for node in descendants(statement, but_not_in=_FUNCTIONS))}
    return "return_statement" in kinds


def _read_assertion(
    expression: Node, waited: bool, reached: bool, assert_names: Mapping[str, str]
) -> Assertion | None:
    root, links = _read_chain(expression)
    names = [link.name for link in links]
    if not waited and PROMISED & set(names):
        return None
    called = (
        node_text(root.child_by_field_name("function")) if root.type == "call_expression" else ""
    )
    direct = assert_names.get(called, "default" if called == "assert" else None)
    if direct is not None and not links:
        name = "ok" if direct in _WHOLE_ASSERT else direct
        return Assertion(style="assert", root=root, name=name, reached=reached)
    if not links:
        return None
    style: Style
    if assert_names.get(node_text(root), node_text(root)) in _WHOLE_ASSERT:
        if links[-1].call is None or not set(names[:-1]) <= {"strict"}:
            return None
        style = "assert"
    elif "should" in names[:-1]:
        style = "should"
    elif called == "expect" or (node_text(root) == "expect" and names[0] == "soft" and names[1:]):
        style = "chai" if CHAI_WORDS & set(names) or links[-1].call is None else "jest"
    else:
        return None
    if style == "jest" and not set(names[:-1]) <= {"soft", "not", "resolves", "rejects"}:
        return None
    if "Snapshot" in names[-1]:
        return None
    return Assertion(
        style=style,
        root=root,
        links=tuple(links),
        matcher=links[-1],
        name=names[-1],
        reached=reached,
    )


def _read_chain(expression: Node) -> tuple[Node, list[Link]]:
    """`expect(x).not.toBe(1)` as its root and its links."""
    links: list[Link] = []
    node = expression
    while True:
        member, call = node, None
        if node.type == "call_expression":
            function = node.child_by_field_name("function")
            member, call = function or node, node
        if member.type != "member_expression":
            break
        below, name = member.child_by_field_name("object"), member.child_by_field_name("property")
        if below is None or name is None:
            break
        links.append(Link(name=node_text(name), place=name, before=below.end_byte, call=call))
        node = below
    return node, links[::-1]


def change_expectation(
    assertion: Assertion, rng: random.Random, helper: str
) -> Perturbation | None:
    """Expect something else; values that cannot be seen go through the function `helper`."""
    if assertion.is_negated:
        return None
    if assertion.style == "assert":
        return _change_assert(assertion, rng, helper)
    word, arguments, name = random_word(rng), assertion.arguments, assertion.name
    if name in OPPOSITES:
        return _rename(assertion, OPPOSITES[name])
    if name in TEXTS:
        return _replace_arguments(assertion, f"'{word}'")
    if name in EQUALITIES and arguments:
        return _change_argument(assertion, arguments[0], rng, helper)
    if name == "match":
        return _replace_arguments(assertion, f"/{word}/")
    if name in CLASSES:
        return _replace_arguments(assertion, "class {}")
    if name in CALLED_WITH:
        return _replace_arguments(assertion, ", ".join([f"'{word}'", *map(node_text, arguments)]))
    return None


def invert_assertion(assertion: Assertion) -> Perturbation | None:
    """Assert the opposite."""
    how = "assertion inverted"
    if assertion.style == "assert":
        if assertion.name in ("ok", "assert") and assertion.arguments:
            value = assertion.arguments[0]
            edits = (
                Edit(start=value.start_byte, end=value.start_byte, text="!("),
                Edit(start=value.end_byte, end=value.end_byte, text=")"),
            )
            return Perturbation(edits=edits, how=how, certain=assertion.reached)
        if assertion.matcher is None or assertion.name not in ASSERT_TURNED:
            return None
        return _rename(assertion, ASSERT_TURNED[assertion.name])
    denial = next((link for link in assertion.links if link.name == "not"), None)
    if denial is not None:
        edit = Edit(start=denial.before, end=denial.place.end_byte, text="")
    elif assertion.style == "jest":
        assert assertion.matcher is not None
        edit = Edit(start=assertion.matcher.before, end=assertion.matcher.before, text=".not")
    else:
        anchor = assertion.root.end_byte
        for link in assertion.links:
            if link.name in ("should", "soft"):
                anchor = (link.call or link.place).end_byte
        edit = Edit(start=anchor, end=anchor, text=".not")
    calls = sum(link.call is not None for link in assertion.links[:-1])
    certain = assertion.is_certain and (assertion.style == "jest" or calls == 0)
    return Perturbation(edits=(edit,), how=how, certain=certain)


def change_last_literal(callback: Node, rng: random.Random) -> Perturbation | None:
    """Another literal in the last call of a helper that seems to assert something."""
    for statement in reversed(list_statements(callback)):
        expression, _ = _unwrap(statement)
        if expression is None or expression.type != "call_expression":
            continue
        if not _HELPER_NAME.search(node_text(expression.child_by_field_name("function"))):
            continue
        for argument in reversed(arguments_of(expression)):
            if (change := change_value(argument, rng)) is not None:
                edit, how = change
                return Perturbation(edits=(edit,), how=how, certain=False)
    return None


def throw_at_end(callback: Node, word: str) -> Perturbation | None:
    """Let the test fail by itself, after all that it does."""
    body = callback.child_by_field_name("body")
    if body is None:
        return None
    how = "error thrown at the end"
    error = f"throw new Error('{word}');"
    statements = list_statements(callback)
    prefix = "" if node_text(callback).startswith("async") else "async "
    start = Edit(start=callback.start_byte, end=callback.start_byte, text=prefix)
    if body.type != "statement_block":
        edits = (
            start,
            Edit(start=body.start_byte, end=body.start_byte, text="{ await ("),
            Edit(start=body.end_byte, end=body.end_byte, text=f"); {error} }}"),
        )
        return Perturbation(edits=edits, how=how)
    certain = not any(_may_leave(statement) for statement in statements[:-1])
    last = statements[-1] if statements else None
    if last is not None and last.type == "return_statement" and first_child(last) is not None:
        value = first_child(last)
        assert value is not None
        edits = (
            start,
            Edit(start=last.start_byte, end=value.start_byte, text="await ("),
            Edit(start=value.end_byte, end=last.end_byte, text=f"); {error}"),
        )
        return Perturbation(edits=edits, how=how, certain=certain)
    certain = certain and (last is None or not _may_leave(last))
    edit = Edit(start=body.end_byte - 1, end=body.end_byte - 1, text=f"; {error} ")
    return Perturbation(edits=(edit,), how=how, certain=certain)


def _rename(assertion: Assertion, name: str) -> Perturbation | None:
    if assertion.matcher is None:
        return None
    old = assertion.matcher.place
    edit = Edit(start=old.start_byte, end=old.end_byte, text=name)
    how = f"{name} for {assertion.name}"
    return Perturbation(edits=(edit,), how=how, certain=assertion.is_certain)


def _replace_arguments(assertion: Assertion, text: str) -> Perturbation | None:
    call = assertion.root if assertion.matcher is None else assertion.matcher.call
    listed = call.child_by_field_name("arguments") if call is not None else None
    if listed is None:
        return None
    edit = Edit(start=listed.start_byte, end=listed.end_byte, text=f"({text})")
    how = f"{assertion.name}({text[:60]}) for {assertion.name}{node_text(listed)[:60]}"
    return Perturbation(edits=(edit,), how=how, certain=assertion.is_certain)


def _change_argument(
    assertion: Assertion, argument: Node, rng: random.Random, helper: str
) -> Perturbation | None:
    if (change := change_value(argument, rng)) is not None:
        edit, how = change
        return Perturbation(edits=(edit,), how=how, certain=assertion.is_certain)
    if argument.type == "spread_element" or node_text(argument).startswith("expect."):
        return None
    edits = (
        Edit(start=argument.start_byte, end=argument.start_byte, text=f"{helper}("),
        Edit(start=argument.end_byte, end=argument.end_byte, text=")"),
    )
    return Perturbation(edits=edits, how="another value", certain=assertion.is_certain)


def _change_assert(assertion: Assertion, rng: random.Random, helper: str) -> Perturbation | None:
    arguments, word = assertion.arguments, random_word(rng)
    if assertion.name in EQUALITIES and len(arguments) > 1:
        is_first = change_value(arguments[1], rng) is None and change_value(arguments[0], rng)
        return _change_argument(assertion, arguments[0 if is_first else 1], rng, helper)
    if assertion.name in ("throws", "rejects", "match", "throw"):
        return _replace_arguments(assertion, f"{node_text(arguments[0])}, /{word}/")
    if assertion.name in ("include", "property") and len(arguments) > 1:
        return _replace_arguments(assertion, f"{node_text(arguments[0])}, '{word}'")
    return None
