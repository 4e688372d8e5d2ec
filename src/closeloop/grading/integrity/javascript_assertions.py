"""Read assertions of JavaScript tests and make them wrong: expect something else, or the opposite.

Where the original passes, its changed form must fail.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from closeloop.grading.integrity.javascript_matchers import (
    ASSERT_TURNED,
    CALLED_WITH,
    CERTAIN,
    CHAI_WORDS,
    CLASSES,
    EQUALITIES,
    INLINE_SNAPSHOTS,
    OPPOSITES,
    PROMISED,
    TEXTS,
    VALUED,
)
from closeloop.grading.integrity.javascript_tests import arguments_of
from closeloop.grading.integrity.javascript_values import ERROR_CLASSES, ValueChanger, change_value
from closeloop.grading.integrity.source_edits import (
    Perturbation,
    SourceEdit,
    insert_text,
    node_text,
)
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node

Style = Literal["jest", "chai", "should", "assert"]

_WHOLE_ASSERT = ("default", "assert", "strict")
"""The module itself, or what it exports as a whole."""
_NEARLY = ("toBeCloseTo",)
"""Equalities with a tolerance."""


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

    @property
    def is_negated(self) -> bool:
        return any(link.name == "not" for link in self.links)

    @property
    def arguments(self) -> list[Node]:
        return arguments_of(self.root) if self.matcher is None else self.matcher.arguments

    @property
    def is_certain(self) -> bool:
        promised = self.style in ("chai", "should") and PROMISED & {one.name for one in self.links}
        return self.name in CERTAIN | ASSERT_TURNED.keys() and not promised

    @property
    def is_promised(self) -> bool:
        return bool(PROMISED & {self.name, *(link.name for link in self.links)})

    @property
    def shown_by(self) -> str:
        """A statement that throws where this does not hold, if jest would keep that for later."""
        if self.name not in INLINE_SNAPSHOTS:
            return ""
        kept = "globalThis.expect?.getState?.().suppressedErrors?.splice(0)"
        return f"if ({kept}?.length) throw new Error(); "

    def harden(self) -> Iterator[SourceEdit]:
        """Let `expect.soft` throw as others do: else nothing around it notices a failure."""
        for link in self.links:
            if link.name == "soft":
                yield SourceEdit(start=link.before, end=link.place.end_byte, text="")


def read_assertion(
    expression: Node, assert_names: Mapping[str, str], *, waited: bool
) -> Assertion | None:
    """None for any other expression, and for a promise of one that the test does not wait for.

    `assert_names` are local names of what the assert modules export, as `imported_names` says.
    """
    root, links = read_chain(expression)
    names = [link.name for link in links]
    called = (
        node_text(root.child_by_field_name("function")) if root.type == "call_expression" else ""
    )
    direct = assert_names.get(called, "default" if called == "assert" else None)
    if not waited and PROMISED & {*names, direct}:
        return None
    if direct is not None and not links:
        name = "ok" if direct in _WHOLE_ASSERT else direct
        return Assertion(style="assert", root=root, name=name)
    if not links:
        return None
    style = _find_style(root, links, assert_names)
    if style is None or ("Snapshot" in names[-1] and names[-1] not in INLINE_SNAPSHOTS):
        return None
    return Assertion(style=style, root=root, links=tuple(links), matcher=links[-1], name=names[-1])


def _find_style(root: Node, links: list[Link], assert_names: Mapping[str, str]) -> Style | None:
    """By which library a chain asserts; None where it does nothing of the kind."""
    *before, last = (link.name for link in links)
    text, is_called = node_text(root), links[-1].call is not None
    if assert_names.get(text, text) in _WHOLE_ASSERT:
        return "assert" if is_called and set(before) <= {"strict"} else None
    if before == ["assert"] and root.type == "identifier" and is_called:
        return "assert"  # of a test's context, or of a library of mocks
    if "should" in before:
        return "should"
    called = node_text(root.child_by_field_name("function"))
    if called != "expect" and (text != "expect" or before[:1] != ["soft"]):
        return None
    if CHAI_WORDS & {*before, last} or not is_called:
        return "chai"
    return "jest" if set(before) <= {"soft", "not", "resolves", "rejects"} else None


def read_chain(expression: Node) -> tuple[Node, list[Link]]:
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
    assertion: Assertion, rng: random.Random, changer: ValueChanger
) -> Perturbation | None:
    """Expect something else; a value that cannot be seen goes through the changer."""
    if assertion.is_negated:
        return None
    if assertion.style == "assert":
        return _change_assert(assertion, rng, changer)
    arguments, name = assertion.arguments, assertion.name
    if name in INLINE_SNAPSHOTS:
        return _change_choice(assertion, arguments[-1], rng) if arguments else None
    if name in OPPOSITES:
        return _rename(assertion, OPPOSITES[name])
    if name in EQUALITIES and arguments:
        return _change_argument(assertion, arguments[0], rng, changer)
    if name in VALUED and len(arguments) == 2:
        return _change_argument(assertion, arguments[1], rng, changer)
    if name in {*TEXTS, *CLASSES, "match"} and arguments:
        return _change_choice(assertion, arguments[0], rng)
    if name in CALLED_WITH:
        return _change_call(assertion, 0, rng, changer)
    return None


def invert_assertion(assertion: Assertion) -> Perturbation | None:
    """Assert the opposite."""
    how = "assertion inverted"
    if assertion.name in INLINE_SNAPSHOTS:
        return None
    if assertion.style == "assert":
        if assertion.name in ("ok", "assert") and assertion.arguments:
            value = assertion.arguments[0]
            edits = (insert_text(value.start_byte, "!("), insert_text(value.end_byte, ")"))
            return Perturbation(edits=edits, how=how)
        if assertion.matcher is None or assertion.name not in ASSERT_TURNED:
            return None
        return _rename(assertion, ASSERT_TURNED[assertion.name])
    denial = next((link for link in assertion.links if link.name == "not"), None)
    if denial is not None:
        edit = SourceEdit(start=denial.before, end=denial.place.end_byte, text="")
    elif assertion.style == "jest":
        assert assertion.matcher is not None
        edit = insert_text(assertion.matcher.before, ".not")
    else:
        anchor = assertion.root.end_byte
        for link in assertion.links:
            if link.name in ("should", "soft"):
                anchor = (link.call or link.place).end_byte
        edit = insert_text(anchor, ".not")
    calls = sum(link.call is not None for link in assertion.links[:-1])
    certain = assertion.is_certain and (assertion.style == "jest" or calls == 0)
    return Perturbation(edits=(edit,), how=how, certain=certain)


def _rename(assertion: Assertion, name: str) -> Perturbation | None:
    if assertion.matcher is None:
        return None
    old = assertion.matcher.place
    edit = SourceEdit(start=old.start_byte, end=old.end_byte, text=name)
    how = f"{name} for {assertion.name}"
    return Perturbation(edits=(edit,), how=how, certain=assertion.is_certain)


def _change_call(
    assertion: Assertion, start: int, rng: random.Random, changer: ValueChanger
) -> Perturbation | None:
    """Expect a call with another argument, one of those from here on."""
    arguments = assertion.arguments[start:]
    rng.shuffle(arguments)
    changes = (_change_argument(assertion, argument, rng, changer) for argument in arguments)
    way = next((way for way in changes if way is not None), None)
    return way or _add_argument(assertion, start, rng)


def _add_argument(assertion: Assertion, at: int, rng: random.Random) -> Perturbation | None:
    """Expect a call with one argument more, before those from here on."""
    call = assertion.root if assertion.matcher is None else assertion.matcher.call
    listed = call.child_by_field_name("arguments") if call is not None else None
    if listed is None:
        return None
    arguments, value = [*map(node_text, assertion.arguments)], str(rng.randrange(1_003, 9_973))
    text = ", ".join([*arguments[:at], value, *arguments[at:]])
    edit = SourceEdit(start=listed.start_byte, end=listed.end_byte, text=f"({text})")
    how = f"{assertion.name}({text[:60]}) for {assertion.name}{node_text(listed)[:60]}"
    return Perturbation(edits=(edit,), how=how, certain=assertion.is_certain)


def _change_argument(
    assertion: Assertion, argument: Node, rng: random.Random, changer: ValueChanger
) -> Perturbation | None:
    far = assertion.name in _NEARLY
    if (change := change_value(argument, rng, far=far)) is not None:
        edit, how = change
        return Perturbation(edits=(edit,), how=how, certain=assertion.is_certain)
    if argument.type == "spread_element" or node_text(argument).startswith("expect."):
        return None
    edits = (
        insert_text(argument.start_byte, changer.open_call(rng, changes=True)),
        insert_text(argument.end_byte, ", true)" if far else ")"),
    )
    how = f"another value expected for `{node_text(argument)[:60]}`"
    return Perturbation(edits=edits, how=how, certain=assertion.is_certain)


def _change_choice(assertion: Assertion, argument: Node, rng: random.Random) -> Perturbation | None:
    """Another text, pattern or class of errors: one that what is compared cannot have too."""
    if argument.type in ("string", "template_string", "number", "regex"):
        if (change := change_value(argument, rng, far=True)) is not None:
            edit, how = change
            return Perturbation(edits=(edit,), how=how, certain=assertion.is_certain)
        return None
    text = node_text(argument)
    if text not in ERROR_CLASSES:
        return None
    other = rng.choice([name for name in ERROR_CLASSES if name != text])
    edit = SourceEdit(start=argument.start_byte, end=argument.end_byte, text=other)
    return Perturbation(edits=(edit,), how=f"{other} for {text}", certain=assertion.is_certain)


def _change_assert(
    assertion: Assertion, rng: random.Random, changer: ValueChanger
) -> Perturbation | None:
    arguments, name = assertion.arguments, assertion.name
    if name in CALLED_WITH and arguments:
        return _change_call(assertion, 1, rng, changer)
    if len(arguments) < 2:
        return None
    if name == "propertyVal":
        return _change_argument(assertion, arguments[-1], rng, changer)
    if name in EQUALITIES:
        is_first = change_value(arguments[1], rng) is None and change_value(arguments[0], rng)
        return _change_argument(assertion, arguments[0 if is_first else 1], rng, changer)
    if name in ("throws", "rejects", "throw") and arguments[1].type == "object":
        return _change_argument(assertion, arguments[1], rng, changer)
    if name in ("throws", "rejects", "throw") and arguments[1].type.endswith("string"):
        return None  # a message of the test's own, for Node
    if name in ("throws", "rejects", "throw", "match", "include", "property"):
        return _change_choice(assertion, arguments[1], rng)
    return None
