"""The places in a JavaScript test where an assertion may stand, and how each is made to report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from closeloop.grading.integrity.javascript_assertions import read_chain
from closeloop.grading.integrity.javascript_tests import descendants, first_child
from closeloop.grading.integrity.source_edits import SourceEdit, insert_text, node_text
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node

_WRAPPERS = ("await_expression", "parenthesized_expression")
_FUNCTIONS = ("arrow_function", "function_expression", "function_declaration", "method_definition")
_LOOPS = ("for_statement", "for_in_statement", "while_statement", "do_statement")
_CALLING_ONCE = {"then", "catch", "forEach"}
"""What calls the functions it is given without trying them again where they fail."""


class Site(Record):
    """An expression that a test evaluates for itself: a statement, or what a function returns."""

    node: Node
    """The statement; the expression alone, where it is the body of an arrow function."""
    expression: Node
    """Without `await`, `return` and brackets."""
    function: Node
    """In which it stands."""
    is_waited: bool
    """Whether the test waits for it, if it is a promise."""
    is_sure: bool
    """Whether it is reached in any case, if all before it is: in no branch, loop or callback."""

    @property
    def is_body(self) -> bool:
        return not self.node.type.endswith("_statement")

    @property
    def ends_function(self) -> bool:
        return self.is_body or self.node.type == "return_statement"


def list_sites(function: Node) -> list[Site]:
    """What a test's function evaluates, in order."""
    body = function.child_by_field_name("body")
    if body is None or "generator" in function.type:
        return []
    return list(_sites_among(_statements_of(body), function, is_sure=True))


def _statements_of(node: Node | None) -> list[Node]:
    """The statements of a block; a statement or an expression that stands alone is one itself."""
    if node is None:
        return []
    if node.type not in ("statement_block", "else_clause"):
        return [node]
    return [child for child in node.named_children if child.type != "comment"]


def _sites_among(statements: Iterable[Node], function: Node, *, is_sure: bool) -> Iterator[Site]:
    for statement in statements:
        if statement.type == "statement_block":
            yield from _sites_among(_statements_of(statement), function, is_sure=is_sure)
        elif statement.type == "if_statement":
            for field in ("consequence", "alternative"):
                branch = _statements_of(statement.child_by_field_name(field))
                yield from _sites_among(branch, function, is_sure=False)
        elif statement.type in _LOOPS:
            body = _statements_of(statement.child_by_field_name("body"))
            yield from _sites_among(body, function, is_sure=False)
        elif (site := _read_site(statement, function, is_sure=is_sure)) is not None:
            yield site
            yield from _sites_in_callbacks(site)
        is_sure = is_sure and not may_leave(statement)


def _read_site(statement: Node, function: Node, *, is_sure: bool) -> Site | None:
    is_statement = statement.type in ("expression_statement", "return_statement")
    if not is_statement and statement != function.child_by_field_name("body"):
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
        function=function,
        is_waited=is_waited,
        is_sure=is_sure,
    )


def _sites_in_callbacks(site: Site) -> Iterator[Site]:
    """`load().then((value) => { expect(value).toBe(1) })`."""
    for link in read_chain(site.expression)[1]:
        for argument in link.arguments if link.name in _CALLING_ONCE else ():
            if argument.type in _FUNCTIONS:
                body = argument.child_by_field_name("body")
                yield from _sites_among(_statements_of(body), argument, is_sure=False)


def may_leave(statement: Node) -> bool:
    """Whether a statement may end its function."""
    if statement.type in _FUNCTIONS:
        return False
    kinds = {statement.type, *(node.type for node in descendants(statement, but_not_in=_FUNCTIONS))}
    return "return_statement" in kinds


def wrap_site(site: Site, record: str, label: str) -> Iterator[SourceEdit]:
    """Let an assertion report by itself whether it held, and its test go on in any case."""
    held, failed = f"; {record}('{label}', true) }}", f"{record}('{label}', false) }}"
    node, expression = site.node, site.node
    if not site.ends_function:
        yield insert_text(node.start_byte, "try { ")
        yield insert_text(node.end_byte, f"{held} catch (error) {{ {failed}")
        return
    if not site.is_body:
        expression = first_child(node) or node
    yield from make_async(site.function)
    yield SourceEdit(start=node.start_byte, end=expression.start_byte, text="{ try { await (")
    ending = f"){held} catch (error) {{ {failed}{'' if site.is_body else ' return'} }}"
    yield SourceEdit(start=expression.end_byte, end=node.end_byte, text=ending)


def make_async(function: Node) -> Iterator[SourceEdit]:
    if not node_text(function).startswith("async"):
        yield insert_text(function.start_byte, "async ")


def append_statement(
    function: Node, text: str, *, body_is_wrapped: bool
) -> tuple[list[SourceEdit], list[SourceEdit]]:
    """Add a statement behind all that a function does, or before what it returns.

    The edits that come before and behind those of `wrap_site`; `body_is_wrapped`: an arrow
    function's only expression is a site that was wrapped.
    """
    body = function.child_by_field_name("body")
    if body is None or "generator" in function.type:
        return [], []
    if body.type != "statement_block":
        opening, closing = ("", "") if body_is_wrapped else ("return (", ")")
        start = insert_text(body.start_byte, f"{{ {text}; {opening}")
        return [start], [insert_text(body.end_byte, f"{closing} }}")]
    statements = _statements_of(body)
    place = body.end_byte - 1
    if statements and statements[-1].type == "return_statement":
        place = statements[-1].start_byte
    return [], [insert_text(place, f"; {text}; ")]


def always_ends(function: Node) -> bool:
    """Whether a function that throws nothing gets to its last statement."""
    statements = _statements_of(function.child_by_field_name("body"))
    return not any(map(may_leave, statements[:-1])) and not any(
        may_leave(last) for last in statements[-1:] if last.type != "return_statement"
    )


def statement_around(node: Node) -> Node:
    """The statement of a block or file in which an expression lies."""
    while node.parent is not None and node.parent.type not in ("statement_block", "program"):
        node = node.parent
    return node
