"""Read assertions of JavaScript tests and make them wrong: expect something else, or the opposite.

If the original passes, its changed form must fail.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from closeloop.grading.integrity.javascript_source import (
    ERROR_CLASSES,
    ValueChanger,
    arguments_of,
    change_value,
    descendants,
    find_bound_values,
    first_child,
    random_letters,
    random_word,
)
from closeloop.grading.integrity.probe import (
    Perturbation,
    SourceEdit,
    apply_edits,
    insert_text,
    node_text,
)
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node


# The meaning of the matchers of jest, vitest, chai and Node's assert, and their opposites.


EQUALITIES = {
    *("toBe", "toEqual", "toStrictEqual", "toMatchObject", "toHaveLength", "toBeCloseTo"),
    *("toHaveBeenCalledTimes", "toBeCalledTimes", "toHaveReturnedTimes"),
    *("equal", "equals", "eq", "eql", "eqls", "lengthOf", "length"),
    *("strictEqual", "deepEqual", "deepStrictEqual", "deepEquals", "callCount"),
}
TEXTS = {
    *("toThrow", "toThrowError", "toContain", "toContainEqual", "toMatch", "toHaveProperty"),
    *("throw", "throws", "Throw", "include", "includes", "contain", "contains", "string"),
    *("property", "rejectedWith"),
}
"""Matchers that cannot hold for a text that occurs nowhere."""
CALLED_WITH = {
    *("toHaveBeenCalledWith", "toBeCalledWith", "toHaveBeenLastCalledWith", "lastCalledWith"),
    *("toHaveBeenCalledExactlyOnceWith", "calledWith", "calledWithExactly", "calledOnceWith"),
    *("calledOnceWithExactly", "alwaysCalledWith", "alwaysCalledWithExactly"),
}
VALUED = {"toHaveProperty", "property"}
"""Matchers whose second argument, if present, is the expected value."""
INLINE_SNAPSHOTS = {"toMatchInlineSnapshot", "toThrowErrorMatchingInlineSnapshot"}
CLASSES = {"toBeInstanceOf", "instanceOf", "instanceof"}
OPPOSITES = {
    "toBeGreaterThan": "toBeLessThanOrEqual",
    "toBeLessThanOrEqual": "toBeGreaterThan",
    "toBeLessThan": "toBeGreaterThanOrEqual",
    "toBeGreaterThanOrEqual": "toBeLessThan",
    "toBeTruthy": "toBeFalsy",
    "toBeFalsy": "toBeTruthy",
    "toBeDefined": "toBeUndefined",
    "toBeUndefined": "toBeDefined",
    "above": "most",
    "below": "least",
    "least": "below",
    "most": "above",
}
PLAIN_MATCHERS = {
    *("toBeNull", "toBeNaN", "toHaveBeenCalled", "toBeCalled", "toHaveReturned"),
    *("toBeTypeOf", "toSatisfy", "toHaveBeenNthCalledWith", "toHaveReturnedWith"),
    *("nthCalledWith", "toHaveBeenCalledOnce", "toBeOneOf", "toHaveLastReturnedWith"),
    *("toHaveNthReturnedWith", "toHaveResolved", "toHaveResolvedWith"),
    *("true", "false", "null", "undefined", "NaN", "ok", "empty", "exist", "exists", "a", "an"),
    *(
        "called",
        "calledOnce",
        "calledTwice",
        "notCalled",
        "members",
        "keys",
        "key",
        "match",
        "within",
        "oneOf",
        "satisfy",
    ),
}
CERTAIN = {*EQUALITIES, *TEXTS, *CALLED_WITH, *CLASSES, *OPPOSITES, *PLAIN_MATCHERS}
CERTAIN |= INLINE_SNAPSHOTS | {"propertyVal"}
CHAI_WORDS = {
    *("to", "be", "been", "is", "that", "which", "and", "has", "have", "with", "at", "of", "same"),
    *("but", "does", "still", "also", "deep", "nested", "own", "ordered", "any", "all", "itself"),
}
PROMISED = {
    *("resolves", "rejects", "eventually", "rejected", "rejectedWith", "fulfilled", "become"),
    *("doesNotReject",),
}
ASSERT_OPPOSITES = {
    "equal": "notEqual",
    "strictEqual": "notStrictEqual",
    "deepEqual": "notDeepEqual",
    "deepStrictEqual": "notDeepStrictEqual",
    "throws": "doesNotThrow",
    "rejects": "doesNotReject",
    "match": "doesNotMatch",
    "isTrue": "isNotTrue",
    "isFalse": "isNotFalse",
    "isNull": "isNotNull",
    "isUndefined": "isDefined",
    "isOk": "isNotOk",
    "isArray": "isNotArray",
    "isAbove": "isAtMost",
    "isBelow": "isAtLeast",
    "isAtLeast": "isBelow",
    "isAtMost": "isAbove",
    "exists": "notExists",
    "include": "notInclude",
    "instanceOf": "notInstanceOf",
    "property": "notProperty",
    "called": "notCalled",
    "deepInclude": "notDeepInclude",
    "isNumber": "isNotNumber",
    "isString": "isNotString",
    "isObject": "isNotObject",
    "isFunction": "isNotFunction",
    "isEmpty": "isNotEmpty",
    "typeOf": "notTypeOf",
}
ASSERT_TURNED = {
    "calledOnce": "notCalled",
    "calledTwice": "notCalled",
    **ASSERT_OPPOSITES,
    **{to: of for of, to in ASSERT_OPPOSITES.items()},
}


MET_BY_MOST = {
    *("toBeGreaterThan", "toBeGreaterThanOrEqual", "toBeLessThan", "toBeLessThanOrEqual"),
    *("toBeDefined", "above", "below", "least", "most", "isAbove", "isBelow", "isAtLeast"),
    *("isAtMost", "notEqual", "notStrictEqual", "notDeepEqual", "notDeepStrictEqual"),
    *("notDeepInclude", "notInclude", "doesNotMatch", "doesNotThrow", "doesNotReject"),
    *("isNotNull", "isDefined", "isNotArray", "notInstanceOf", "notProperty", "notCalled"),
    *("isNotNumber", "isNotString", "isNotObject", "isNotFunction", "notTypeOf", "exists"),
    *("exist", "within"),
}
"""Assertions that nearly every value meets, or nearly every one on one side of a bound."""
YES_OR_NO = {"toBeTruthy", "toBeFalsy", "true", "false", "ok"}


Style = Literal["jest", "chai", "should", "assert"]

_WHOLE_ASSERT = ("default", "assert", "strict")
"""Exports that stand for the assert module as a whole."""
_NEARLY = ("toBeCloseTo",)
"""Equalities with a tolerance."""


class Link(Record):
    """One `.name` or `.name(…)` of a chain of calls."""

    name: str
    place: Node
    """Node of the name."""
    before: int
    """Byte position of the dot."""
    call: Node | None

    @property
    def arguments(self) -> list[Node]:
        return [] if self.call is None else arguments_of(self.call)


class Assertion(Record):
    """A statement that fails the test if a condition does not hold."""

    style: Style
    root: Node
    """`expect(x)` or `assert`."""
    links: tuple[Link, ...] = ()
    matcher: Link | None = None
    """None if the root is the assertion: `assert(x)`."""
    name: str
    """Name of the matcher."""

    @property
    def is_negated(self) -> bool:
        return any(link.name == "not" for link in self.links)

    @property
    def is_met_by_most(self) -> bool:
        """Whether nearly every value meets it, so that one answer may and fail its inverse."""
        return self.name not in YES_OR_NO if self.is_negated else self.name in MET_BY_MOST

    @property
    def arguments(self) -> list[Node]:
        return arguments_of(self.root) if self.matcher is None else self.matcher.arguments

    @property
    def is_certain(self) -> bool:
        promised = self.style in ("chai", "should") and PROMISED & {
            link.name for link in self.links
        }
        return self.name in CERTAIN | ASSERT_TURNED.keys() and not promised

    @property
    def is_promised(self) -> bool:
        return bool(PROMISED & {self.name, *(link.name for link in self.links)})

    @property
    def shown_by(self) -> str:
        """Return a statement that throws on failure, for matchers whose errors jest defers."""
        if self.name not in INLINE_SNAPSHOTS:
            return ""
        deferred_errors = "globalThis.expect?.getState?.().suppressedErrors?.splice(0)"
        return f"if ({deferred_errors}?.length) throw new Error(); "

    def harden(self) -> Iterator[SourceEdit]:
        """Make `expect.soft` throw like others; otherwise nothing around it notices a failure."""
        for link in self.links:
            if link.name == "soft":
                yield SourceEdit(start=link.before, end=link.place.end_byte, text="")


def read_assertion(
    expression: Node, assert_names: Mapping[str, str], *, waited: bool
) -> Assertion | None:
    """Read an assertion, or return None for another expression or a promise that is not awaited.

    `assert_names` are local names of the assert modules' exports, as returned by `imported_names`.
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
    """Return the library by which a chain asserts; None if it does not assert."""
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
    """Split `expect(x).not.toBe(1)` into its root and its links."""
    links: list[Link] = []
    node = expression
    while True:
        member, call = node, None
        if node.type == "call_expression":
            function = node.child_by_field_name("function")
            member, call = function or node, node
        if member.type != "member_expression":
            break
        receiver, name = (
            member.child_by_field_name("object"),
            member.child_by_field_name("property"),
        )
        if receiver is None or name is None:
            break
        links.append(Link(name=node_text(name), place=name, before=receiver.end_byte, call=call))
        node = receiver
    return node, links[::-1]


def change_expectation(
    assertion: Assertion, rng: random.Random, changer: ValueChanger
) -> Perturbation | None:
    """Expect something else; a value that is not a literal is passed through the changer."""
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
    """Expect a call with another argument, one of those from `start` on."""
    arguments = assertion.arguments[start:]
    rng.shuffle(arguments)
    changes = (_change_argument(assertion, argument, rng, changer) for argument in arguments)
    change = next((change for change in changes if change is not None), None)
    return change or _add_argument(assertion, start, rng)


def _add_argument(assertion: Assertion, at: int, rng: random.Random) -> Perturbation | None:
    """Expect a call with one more argument, at position `at`."""
    call = assertion.root if assertion.matcher is None else assertion.matcher.call
    argument_list = call.child_by_field_name("arguments") if call is not None else None
    if argument_list is None:
        return None
    arguments, value = [*map(node_text, assertion.arguments)], str(rng.randrange(1_003, 9_973))
    text = ", ".join([*arguments[:at], value, *arguments[at:]])
    edit = SourceEdit(start=argument_list.start_byte, end=argument_list.end_byte, text=f"({text})")
    how = f"{assertion.name}({text[:60]}) for {assertion.name}{node_text(argument_list)[:60]}"
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
    if (change := _change_inner_argument(argument, rng)) is not None:
        edit, how = change
        return Perturbation(edits=(edit,), how=how, certain=False)
    how = f"another value expected for `{node_text(argument)[:60]}`"
    bound_values = find_bound_values(argument) if argument.type == "identifier" else []
    changes = [change_value(value, rng, far=far) for value in bound_values]
    if changes and None not in changes:
        value_edits = tuple(change[0] for change in changes if change is not None)
        return Perturbation(edits=value_edits, how=how, certain=assertion.is_certain)
    edits = (
        insert_text(argument.start_byte, changer.open_call(rng, changes=True)),
        insert_text(argument.end_byte, ", true)" if far else ")"),
    )
    return Perturbation(edits=edits, how=how, certain=assertion.is_certain)


def _change_inner_argument(value: Node, rng: random.Random) -> tuple[SourceEdit, str] | None:
    """Change a literal in `new Price(1250)`, now and then: its own equality may ignore all."""
    if value.type not in ("new_expression", "call_expression") or rng.random() < 0.5:
        return None
    changes = (change_value(argument, rng) for argument in arguments_of(value))
    return next((change for change in changes if change is not None), None)


def _change_choice(assertion: Assertion, argument: Node, rng: random.Random) -> Perturbation | None:
    """Replace a text, pattern or error class by one that the compared value cannot match too."""
    if argument.type in ("string", "template_string", "number", "regex"):
        if (change := change_value(argument, rng, far=True)) is not None:
            edit, how = change
            return Perturbation(edits=(edit,), how=how, certain=assertion.is_certain)
        return None
    text = node_text(argument)
    if text not in ERROR_CLASSES:
        return None
    other_class = rng.choice([name for name in ERROR_CLASSES if name != text])
    edit = SourceEdit(start=argument.start_byte, end=argument.end_byte, text=other_class)
    return Perturbation(
        edits=(edit,), how=f"{other_class} for {text}", certain=assertion.is_certain
    )


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


# Split a JavaScript assertion into several that are equivalent together.
#
# `assert(a && b)` becomes two. A comparison with a literal list or object is done item by item,
# and as a whole only for its shape: each item can be made wrong without the others, and no value
# is written twice, which would reveal the right one.


MAX_ITEMS = 12
_DEEP = {"toEqual", "toStrictEqual", "deepEqual", "deepStrictEqual", "eql", "eqls"}


class AssertionPart(Record):
    """A statement that is part of a split assertion: right, and made wrong."""

    right: str
    wrong: str
    how: str


class SplitAssertion(Record):
    """The parts of an assertion, and the code before them."""

    before: str
    parts: list[AssertionPart]


def split_assertion(
    statement: Node, assertion: Assertion, rng: random.Random, changer: ValueChanger
) -> SplitAssertion | None:
    """Split an assertion into parts; None if it has only one."""
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
    """Split `assert(a && b)`."""
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
    """Return the compared expression and the expected one."""
    arguments = assertion.arguments
    if assertion.style == "assert":
        return (arguments[0], arguments[1]) if len(arguments) > 1 else None
    calls = [link.call for link in assertion.links if link.name == "soft" and link.call is not None]
    root_arguments = arguments_of(calls[0] if calls else assertion.root)
    if assertion.style == "should" or len(root_arguments) != 1 or not arguments:
        return None
    return root_arguments[0], arguments[0]


def _list_items(literal: Node) -> list[tuple[str, Node]]:
    """Return key and value of each item of a literal; none if one of them has no value of its
    own."""
    children = [child for child in literal.named_children if child.type != "comment"]
    items: list[tuple[str, Node]] = []
    for number, child in enumerate(children):
        key, value = child.child_by_field_name("key"), child.child_by_field_name("value")
        if literal.type == "array" and child.type != "spread_element":
            items.append((str(number), child))
        elif key is not None and value is not None and literal.type == "object":
            name = node_text(key)
            items.append((name if key.type == "string" else f"'{name}'", value))
            if key.type not in ("property_identifier", "string") or "__proto__" in name:
                return []
        else:
            return []
    is_matched = any(node_text(value).startswith("expect.") for _, value in items)
    return [] if is_matched or _has_holes(literal) else items


def _has_holes(literal: Node) -> bool:
    """Return whether an array literal has holes: `[1, , 2]`."""
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
    variable, is_list = random_word(rng), expected.type == "array"
    empty, extra = ("[]", f"'{random_letters(rng)}'") if is_list else ("{}", random_letters(rng))

    def write(actual_text: str, expected_text: str) -> str:
        edits = [
            SourceEdit(start=side.start_byte, end=side.end_byte, text=text)
            for side, text in ((actual, actual_text), (expected, expected_text))
        ]
        return _edit_statement(statement, edits)

    item_reads = [f"({variable} ?? {empty})[{key}]" for key, _ in items]
    keyed_reads = [f"[{key}]: {text}" for (key, _), text in zip(items, item_reads, strict=True)]
    literal_items = item_reads if is_list else keyed_reads
    extra_item = extra if is_list else f"{extra}: '{extra}'"
    right, wrong = (
        write(variable, f"{empty[0]}{', '.join(texts)}{empty[1]}")
        for texts in (literal_items, [*literal_items, extra_item])
    )
    parts = [AssertionPart(right=right, wrong=wrong, how="one item more")]
    for text, (_, value) in zip(item_reads, items, strict=True):
        right, wrong, how = _change_item(value, rng, changer)
        parts.append(AssertionPart(right=write(text, right), wrong=write(text, wrong), how=how))
    rng.shuffle(parts)
    before = f"let {variable}; try {{ {variable} = {node_text(actual)} }} catch (error) {{}}"
    return SplitAssertion(before=before, parts=parts)


def _change_item(value: Node, rng: random.Random, changer: ValueChanger) -> tuple[str, str, str]:
    """Return an item as it is, another in its place, and a description of the difference."""
    text = node_text(value)
    if (change := change_value(value, rng)) is not None:
        edit, how = change
        return text, apply_edits(value.text or b"", [edit], value.start_byte).decode(), how
    right, wrong = (
        f"{changer.open_call(rng, changes=changes_value)}{text})" for changes_value in (False, True)
    )
    return right, wrong, f"another value expected for `{text[:60]}`"


def _edit_statement(statement: Node, edits: list[SourceEdit]) -> str:
    text = apply_edits(statement.text or b"", edits, statement.start_byte)
    return text.decode("utf-8", "surrogateescape")


# The sites of assertions in a JavaScript test, and the edits by which each reports.


_WRAPPERS = ("await_expression", "parenthesized_expression")
FUNCTIONS = ("arrow_function", "function_expression", "function_declaration", "method_definition")
_CALLS = ("call_expression", "new_expression")
_LOOPS = ("for_statement", "for_in_statement", "while_statement", "do_statement")
_CALLING_ONCE = {
    *("then", "catch", "finally", "forEach", "map", "Promise", "setTimeout", "setImmediate"),
    *("nextTick", "queueMicrotask", "act", "test", "it"),
}
"""Functions that call their callback without retrying it if it fails."""
_SEES_FAILURE = re.compile(
    r"wait|retr|poll|eventual|until|attempt|throw|reject|fail|repeat|flaky|expect|assert", re.I
)
"""Names of functions that may expect their callback to fail, now or always."""


_ASSERTING = ("expect", "assert")


class Site(Record):
    """An expression that a test evaluates by itself: a statement, or a function's return value."""

    node: Node
    """The statement; the expression alone if it is the body of an arrow function."""
    expression: Node
    """The expression without `await`, `return` and parentheses."""
    function: Node
    """The enclosing function."""
    is_waited: bool
    """Whether the test awaits it, if it is a promise."""
    is_sure: bool
    """Whether it is always reached if everything before it is: in no branch, loop or callback."""
    is_watched: bool
    """Whether unknown code calls the enclosing function."""

    is_inline: bool = False
    """Whether it is part of another expression: `Promise.all([expect(a).resolves.toBe(1)])`."""

    @property
    def is_body(self) -> bool:
        return not self.node.type.endswith("_statement")

    @property
    def ends_function(self) -> bool:
        return self.is_body or self.node.type == "return_statement"


class SiteFinder:
    """Lists the sites of a function, except those in functions that may be expected to fail."""

    def __init__(self, function: Node, skipped: Collection[int | str]) -> None:
        self.function = function
        self.skipped = skipped
        """Start bytes of functions listed separately, and names that may be expected to fail."""

    def list_sites(self, *, sure: bool = True, watched: bool = False) -> list[Site]:
        """List the expressions that a function evaluates, in order, including nested functions."""
        body = self.function.child_by_field_name("body")
        if body is None or "generator" in self.function.type:
            return []
        return list(self._sites_among(list_statements(body), sure, watched))

    def _sites_among(self, statements: Iterable[Node], sure: bool, watched: bool) -> Iterator[Site]:
        for statement in statements:
            if statement.type in FUNCTIONS and statement != self._body:
                yield from self._sites_inside(statement, watched=True)
            elif (blocks := _inner_blocks(statement)) is not None:
                for block, runs in blocks:
                    yield from self._sites_among(block, sure and runs, watched)
            else:
                site = self._read_site(statement, sure=sure, watched=watched)
                if site is not None:
                    yield site
                if site is None or not is_asserting(site.expression):
                    waited = statement.type == "return_statement"
                    yield from self._sites_within(statement, watched, waited=waited)
            sure = sure and not may_leave(statement)

    @property
    def _body(self) -> Node | None:
        return self.function.child_by_field_name("body")

    def _read_site(self, statement: Node, *, sure: bool, watched: bool) -> Site | None:
        is_statement = statement.type in ("expression_statement", "return_statement")
        if not is_statement and statement != self._body:
            return None
        expression = first_child(statement) if is_statement else statement
        is_waited = statement.type != "expression_statement"
        while expression is not None and expression.type in _WRAPPERS:
            is_waited = is_waited or expression.type == "await_expression"
            expression = first_child(expression)
        if expression is None:
            return None
        return Site(
            node=statement,
            expression=expression,
            function=self.function,
            is_waited=is_waited,
            is_sure=sure,
            is_watched=watched,
        )

    def _sites_within(self, node: Node, watched: bool, *, waited: bool) -> Iterator[Site]:
        """Yield sites inside an expression, and in functions in variables.

        `load().then((value) => { expect(value).toBe(1) })` has one.
        """
        names = called_names(node) if node.type in _CALLS else []
        if node.type in FUNCTIONS:
            yield from self._sites_inside(node, watched=watched or not _is_called_once(node))
        elif names and names[0] in _ASSERTING:
            if _is_kept(node):
                return
            yield Site(
                node=node,
                expression=node,
                function=self.function,
                is_waited=waited,
                is_sure=False,
                is_watched=watched,
                is_inline=True,
            )
        elif not sees_failure(names):
            waited = waited or node.type == "await_expression"
            for child in node.named_children:
                yield from self._sites_within(child, watched, waited=waited)

    def _sites_inside(self, function: Node, *, watched: bool) -> Iterator[Site]:
        if not {function.start_byte, name_of_function(function)} & {*self.skipped}:
            inner = SiteFinder(function, self.skipped)
            yield from inner.list_sites(sure=False, watched=watched)


def list_statements(node: Node | None) -> list[Node]:
    """Return the statements of a block; a single statement or expression counts as one."""
    if node is None:
        return []
    if node.type not in ("statement_block", "else_clause"):
        return [node]
    return [child for child in node.named_children if child.type != "comment"]


def _inner_blocks(statement: Node) -> list[tuple[list[Node], bool]] | None:
    """Return the nested statement lists, and whether each always runs; None if there are none."""

    def field(name: str) -> list[Node]:
        return list_statements(statement.child_by_field_name(name))

    if statement.type == "statement_block":
        return [(list_statements(statement), True)]
    if statement.type == "if_statement":
        return [(field("consequence"), False), (field("alternative"), False)]
    if statement.type in _LOOPS:
        return [(field("body"), False)]
    if statement.type == "switch_statement":
        cases = statement.child_by_field_name("body")
        return [
            (case.children_by_field_name("body"), False)
            for case in (cases.named_children if cases is not None else ())
        ]
    if statement.type == "try_statement":
        handler, last = (statement.child_by_field_name(name) for name in ("handler", "finalizer"))
        try_blocks = [(field("body"), handler is None)] if passes_error_on(handler) else []
        catch_blocks = (
            [(list_statements(handler.child_by_field_name("body")), False)] if handler else []
        )
        finally_blocks = [(list_statements(first_child(last)), False)]
        return [*try_blocks, *catch_blocks, *finally_blocks]
    return None


def passes_error_on(handler: Node | None) -> bool:
    """Return whether a `catch` lets an error fail the test: it rethrows it, or passes it on."""
    if handler is None:
        return True
    name = node_text(handler.child_by_field_name("parameter"))
    body = node_text(handler.child_by_field_name("body"))
    escaped = re.escape(name) if name else "(?!)"
    return re.search(rf"\bthrow\s+{escaped}\b|[\w)]\(\s*{escaped}\s*\)", body) is not None


def called_names(call: Node) -> list[str]:
    """Return the names of the callee: `expect(x).not.toBe(1)` is expect, not, toBe."""
    root, links = read_chain(call)
    while root.type in _CALLS:
        root = root.child_by_field_name("function") or root.child_by_field_name("constructor")  # type: ignore[assignment]
    return [node_text(root), *(link.name for link in links)]


def name_of_function(function: Node) -> str:
    """Return the name by which others call a function; '' if there is none."""
    name_node, parent = function.child_by_field_name("name"), function.parent
    if name_node is not None:
        return node_text(name_node)
    if parent is None:
        return ""
    if parent.type == "variable_declarator":
        return node_text(parent.child_by_field_name("name"))
    if parent.type == "pair":
        return node_text(parent.child_by_field_name("key"))
    if parent.type == "assignment_expression":
        name = node_text(parent.child_by_field_name("left")).rpartition(".")[2]
        return "" if name == "exports" else name
    return ""


def is_asserting(expression: Node) -> bool:
    """Return whether an expression as a whole seems to be an assertion."""
    names = called_names(expression)
    return names[0] in _ASSERTING or "should" in names


def sees_failure(names: Iterable[str]) -> bool:
    """Return whether a callee with these names may expect its callback to fail."""
    return any(map(_SEES_FAILURE.search, names))


def _is_called_once(function: Node) -> bool:
    """Return whether a function is passed to a call that runs it once and passes on its failure."""
    parent = function.parent
    call = parent.parent if parent is not None and parent.type == "arguments" else None
    return call is not None and called_names(call)[-1] in _CALLING_ONCE


def may_leave(statement: Node) -> bool:
    """Return whether a statement may return from its function."""
    if statement.type in FUNCTIONS:
        return False
    kinds = {statement.type, *(node.type for node in descendants(statement, but_not_in=FUNCTIONS))}
    return "return_statement" in kinds


def wrap_site(
    site: Site, record: str, label: str, *, promised: bool, after: str = "", on_failure: str = ""
) -> Iterator[SourceEdit]:
    """Make an assertion report whether it held, and let its test continue.

    `after`: code that detects a failure if the assertion does not throw. `on_failure`: code to run
    after a failure.
    """
    passed = f"; {after}{record}('{label}', true) }}"
    failed = f"{record}('{label}', false); {on_failure}}}"
    node, expression = site.node, site.node
    if site.is_inline:
        waits = promised or _awaits(node)
        start = f"({'await ' if waits and not promised else ''}({'async ' if waits else ''}() => {{"
        yield insert_text(node.start_byte, f"{start} try {{ {'await ' if promised else ''}(")
        yield insert_text(node.end_byte, f"){passed} catch (error) {{ {failed} }})())")
        return
    if not site.ends_function:
        yield insert_text(node.start_byte, "try { ")
        yield insert_text(node.end_byte, f"{passed} catch (error) {{ {failed}")
        return
    if not site.is_body:
        expression = first_child(node) or node
    if promised:
        yield from make_async(site.function)
    opening = f"{{ try {{ {'await ' if promised else ''}("
    yield SourceEdit(start=node.start_byte, end=expression.start_byte, text=opening)
    ending = f"){passed} catch (error) {{ {failed}{'' if site.is_body else ' return'} }}"
    yield SourceEdit(start=expression.end_byte, end=node.end_byte, text=ending)


def _is_kept(node: Node) -> bool:
    """Return whether an expression's value is stored in a variable."""
    parent = node.parent
    while parent is not None and parent.type in _WRAPPERS:
        parent = parent.parent
    return parent is not None and parent.type in ("variable_declarator", "assignment_expression")


def _awaits(node: Node) -> bool:
    inner = descendants(node, but_not_in=FUNCTIONS)
    return any(child.type == "await_expression" for child in inner)


def make_async(function: Node) -> Iterator[SourceEdit]:
    if not node_text(function).startswith("async"):
        yield insert_text(function.start_byte, "async ")


def append_statement(
    function: Node, text: str, *, body_is_wrapped: bool
) -> tuple[list[SourceEdit], list[SourceEdit]]:
    """Add a statement at the end of a function, or before its final `return`.

    Returns the edits that come before and after those of `wrap_site`. `body_is_wrapped`: the only
    expression of an arrow function is a site that was wrapped.
    """
    body = function.child_by_field_name("body")
    if body is None or "generator" in function.type:
        return [], []
    if body.type != "statement_block":
        opening, closing = ("", "") if body_is_wrapped else ("return (", ")")
        start = insert_text(body.start_byte, f"{{ {text}; {opening}")
        return [start], [insert_text(body.end_byte, f"{closing} }}")]
    statements = list_statements(body)
    position = body.end_byte - 1
    if statements and statements[-1].type == "return_statement":
        position = statements[-1].start_byte
    return [], [insert_text(position, f"; {text}; ")]


def always_ends(function: Node) -> bool:
    """Return whether a function that does not throw reaches its last statement."""
    statements = list_statements(function.child_by_field_name("body"))
    return not any(map(may_leave, statements[:-1])) and not any(
        may_leave(last) for last in statements[-1:] if last.type != "return_statement"
    )


def statement_around(node: Node) -> Node:
    """Return the statement of a block or file that contains an expression."""
    while node.parent is not None and node.parent.type not in ("statement_block", "program"):
        node = node.parent
    return node
