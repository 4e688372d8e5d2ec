"""Take an assertion of JavaScript apart into several that say the same together.

`assert(a && b)` becomes two. What is compared with a literal list or object is compared item by
item, and as a whole only in its shape: each item can be made wrong without the others, and no
value is written twice, so that nobody can tell a right one by that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from closeloop.grading.integrity.javascript_assertions import Assertion
from closeloop.grading.integrity.javascript_tests import arguments_of, first_child
from closeloop.grading.integrity.javascript_values import (
    ValueChanger,
    change_value,
    random_letters,
    random_word,
)
from closeloop.grading.integrity.source_edits import SourceEdit, apply_edits, node_text
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_ITEMS = 12
_DEEP = {"toEqual", "toStrictEqual", "deepEqual", "deepStrictEqual", "eql", "eqls"}


class AssertionPart(Record):
    """A statement that is a part of another: as it is, and made wrong."""

    right: str
    wrong: str
    how: str


class SplitAssertion(Record):
    """The parts of an assertion, and what comes before them."""

    before: str
    parts: list[AssertionPart]


def split_assertion(
    statement: Node, assertion: Assertion, rng: random.Random, changer: ValueChanger
) -> SplitAssertion | None:
    """None where an assertion has but one part."""
    if assertion.is_negated or assertion.is_promised:
        return None
    if assertion.style == "assert" and assertion.name in ("ok", "assert"):
        return _split_condition(statement, assertion)
    deep = {link.name for link in assertion.links} & {"deep"} and assertion.name == "equal"
    if assertion.name not in _DEEP and not deep:
        return None
    sides = _find_sides(assertion)
    if sides is None:
        return None
    items = _list_items(sides[1])
    if not 1 < len(items) <= MAX_ITEMS:
        return None
    return _split_items(statement, sides, items, rng, changer)


def _split_condition(statement: Node, assertion: Assertion) -> SplitAssertion | None:
    """`assert(a && b)`."""
    arguments = assertion.arguments
    operands = list(_list_operands(arguments[0])) if arguments else []
    if len(operands) < 2:
        return None

    def write(operand: str) -> str:
        edit = SourceEdit(start=arguments[0].start_byte, end=arguments[0].end_byte, text=operand)
        return _edit_statement(statement, [edit])

    parts = [
        AssertionPart(right=write(text), wrong=write(f"!({text})"), how="assertion inverted")
        for text in map(node_text, operands)
    ]
    return SplitAssertion(before="", parts=parts)


def _list_operands(condition: Node) -> Iterator[Node]:
    inner = first_child(condition)
    if condition.type == "parenthesized_expression" and inner is not None:
        yield from _list_operands(inner)
    elif node_text(condition.child_by_field_name("operator")) == "&&":
        for field in ("left", "right"):
            operand = condition.child_by_field_name(field)
            yield from _list_operands(operand) if operand is not None else ()
    else:
        yield condition


def _find_sides(assertion: Assertion) -> tuple[Node, Node] | None:
    """What is compared, and with what."""
    arguments = assertion.arguments
    if assertion.style == "assert":
        return (arguments[0], arguments[1]) if len(arguments) > 1 else None
    calls = [link.call for link in assertion.links if link.name == "soft" and link.call is not None]
    given = arguments_of(calls[0] if calls else assertion.root)
    if assertion.style == "should" or len(given) != 1 or not arguments:
        return None
    return given[0], arguments[0]


def _list_items(literal: Node) -> list[tuple[str, Node]]:
    """Key and value of each item of a literal; none where one of them has no value of its own."""
    children = [child for child in literal.named_children if child.type != "comment"]
    found: list[tuple[str, Node]] = []
    for number, child in enumerate(children):
        key, value = child.child_by_field_name("key"), child.child_by_field_name("value")
        if literal.type == "array" and child.type != "spread_element":
            found.append((str(number), child))
        elif key is not None and value is not None and literal.type == "object":
            name = node_text(key)
            found.append((name if key.type == "string" else f"'{name}'", value))
            if key.type not in ("property_identifier", "string") or "__proto__" in name:
                return []
        else:
            return []
    is_matched = any(node_text(value).startswith("expect.") for _, value in found)
    return [] if is_matched or _has_holes(literal) else found


def _has_holes(literal: Node) -> bool:
    """`[1, , 2]`."""
    kinds = [child.type for child in literal.children if child.type != "comment"]
    return any(pair in (("[", ","), (",", ",")) for pair in pairwise(kinds))


def _split_items(
    statement: Node,
    sides: tuple[Node, Node],
    items: list[tuple[str, Node]],
    rng: random.Random,
    changer: ValueChanger,
) -> SplitAssertion:
    actual, expected = sides
    kept, is_list = random_word(rng), expected.type == "array"
    empty, extra = ("[]", f"'{random_letters(rng)}'") if is_list else ("{}", random_letters(rng))

    def write(shown: str, wanted: str) -> str:
        edits = [
            SourceEdit(start=side.start_byte, end=side.end_byte, text=text)
            for side, text in ((actual, shown), (expected, wanted))
        ]
        return _edit_statement(statement, edits)

    own = [f"({kept} ?? {empty})[{key}]" for key, _ in items]
    keyed = [f"[{key}]: {text}" for (key, _), text in zip(items, own, strict=True)]
    named = own if is_list else keyed
    added = extra if is_list else f"{extra}: '{extra}'"
    right, wrong = (
        write(kept, f"{empty[0]}{', '.join(texts)}{empty[1]}") for texts in (named, [*named, added])
    )
    parts = [AssertionPart(right=right, wrong=wrong, how="one item more")]
    for text, (_, value) in zip(own, items, strict=True):
        right, wrong, how = _change_item(value, rng, changer)
        parts.append(AssertionPart(right=write(text, right), wrong=write(text, wrong), how=how))
    rng.shuffle(parts)
    before = f"let {kept}; try {{ {kept} = {node_text(actual)} }} catch (error) {{}}"
    return SplitAssertion(before=before, parts=parts)


def _change_item(value: Node, rng: random.Random, changer: ValueChanger) -> tuple[str, str, str]:
    """An item as it is, another in its place, and how they differ."""
    text = node_text(value)
    if (change := change_value(value, rng)) is not None:
        edit, how = change
        return text, apply_edits(value.text or b"", [edit], value.start_byte).decode(), how
    right, wrong = (f"{changer.open_call(rng, changes=one)}{text})" for one in (False, True))
    return right, wrong, f"another value expected for `{text[:60]}`"


def _edit_statement(statement: Node, edits: list[SourceEdit]) -> str:
    text = apply_edits(statement.text or b"", edits, statement.start_byte)
    return text.decode("utf-8", "surrogateescape")
