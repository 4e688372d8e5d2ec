"""The places in a JavaScript test where an assertion may stand, and how each is made to report."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from closeloop.grading.integrity.javascript_assertions import read_chain
from closeloop.grading.integrity.javascript_tests import descendants, first_child
from closeloop.grading.integrity.source_edits import SourceEdit, insert_text, node_text
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node

_WRAPPERS = ("await_expression", "parenthesized_expression")
FUNCTIONS = ("arrow_function", "function_expression", "function_declaration", "method_definition")
_CALLS = ("call_expression", "new_expression")
_LOOPS = ("for_statement", "for_in_statement", "while_statement", "do_statement")
_CALLING_ONCE = {
    *("then", "catch", "finally", "forEach", "map", "Promise", "setTimeout", "setImmediate"),
    *("nextTick", "queueMicrotask", "act", "test", "it"),
}
"""What calls the functions it is given without trying them again where they fail."""
_SEES_FAILURE = re.compile(
    r"wait|retr|poll|eventual|until|attempt|throw|reject|fail|repeat|flaky|expect|assert", re.I
)
"""What may expect a function that it is given to fail, now or always."""


_ASSERTING = ("expect", "assert")


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
    is_watched: bool
    """Whether something that we do not know calls the function in which it stands."""

    is_inline: bool = False
    """Whether it is a part of another expression: `Promise.all([expect(a).resolves.toBe(1)])`."""

    @property
    def is_body(self) -> bool:
        return not self.node.type.endswith("_statement")

    @property
    def ends_function(self) -> bool:
        return self.is_body or self.node.type == "return_statement"


class SiteFinder:
    """Lists the sites of functions, but for those in functions that others look at."""

    def __init__(self, function: Node, skipped: Collection[int | str]) -> None:
        self.function = function
        self.skipped = skipped
        """Where functions begin whose sites are listed by themselves, and names of those that
        something may expect to fail."""

    def list_sites(self, *, sure: bool = True, watched: bool = False) -> list[Site]:
        """What a function evaluates, in order, with the functions in it."""
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
        """`load().then((value) => { expect(value).toBe(1) })`, and functions in variables."""
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
    """The statements of a block; a statement or an expression that stands alone is one itself."""
    if node is None:
        return []
    if node.type not in ("statement_block", "else_clause"):
        return [node]
    return [child for child in node.named_children if child.type != "comment"]


def _inner_blocks(statement: Node) -> list[tuple[list[Node], bool]] | None:
    """The statements in a statement, and whether they run in any case; None where it has none."""

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
        tried = [(field("body"), handler is None)] if passes_error_on(handler) else []
        caught = [(list_statements(handler.child_by_field_name("body")), False)] if handler else []
        ended = [(list_statements(first_child(last)), False)]
        return [*tried, *caught, *ended]
    return None


def passes_error_on(handler: Node | None) -> bool:
    """Whether a `catch` does with an error what fails the test: it throws it, or hands it on."""
    if handler is None:
        return True
    name = node_text(handler.child_by_field_name("parameter"))
    body = node_text(handler.child_by_field_name("body"))
    escaped = re.escape(name) if name else "(?!)"
    return re.search(rf"\bthrow\s+{escaped}\b|[\w)]\(\s*{escaped}\s*\)", body) is not None


def called_names(call: Node) -> list[str]:
    """The names in what is called: `expect(x).not.toBe(1)` is expect, not, toBe."""
    root, links = read_chain(call)
    while root.type in _CALLS:
        root = root.child_by_field_name("function") or root.child_by_field_name("constructor")  # type: ignore[assignment]
    return [node_text(root), *(link.name for link in links)]


def name_of_function(function: Node) -> str:
    """The name by which others call a function; '' where there is none."""
    own, parent = function.child_by_field_name("name"), function.parent
    if own is not None:
        return node_text(own)
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
    """Whether an expression seems to be an assertion as a whole."""
    names = called_names(expression)
    return names[0] in _ASSERTING or "should" in names


def sees_failure(names: Iterable[str]) -> bool:
    """Whether what is called by these names may expect a function that it is given to fail."""
    return any(map(_SEES_FAILURE.search, names))


def _is_called_once(function: Node) -> bool:
    """Whether a function is the argument of what we know to call it and to pass on its failure."""
    listed = function.parent
    call = listed.parent if listed is not None and listed.type == "arguments" else None
    return call is not None and called_names(call)[-1] in _CALLING_ONCE


def may_leave(statement: Node) -> bool:
    """Whether a statement may end its function."""
    if statement.type in FUNCTIONS:
        return False
    kinds = {statement.type, *(node.type for node in descendants(statement, but_not_in=FUNCTIONS))}
    return "return_statement" in kinds


def wrap_site(
    site: Site, record: str, label: str, *, promised: bool, behind: str = "", failing: str = ""
) -> Iterator[SourceEdit]:
    """Let an assertion report by itself whether it held, and its test go on.

    `behind`: what shows that it did not hold, where it does not throw. `failing`: what is done
    after a failure.
    """
    held = f"; {behind}{record}('{label}', true) }}"
    failed = f"{record}('{label}', false); {failing}}}"
    node, expression = site.node, site.node
    if site.is_inline:
        waits = promised or _awaits(node)
        start = f"({'await ' if waits and not promised else ''}({'async ' if waits else ''}() => {{"
        yield insert_text(node.start_byte, f"{start} try {{ {'await ' if promised else ''}(")
        yield insert_text(node.end_byte, f"){held} catch (error) {{ {failed} }})())")
        return
    if not site.ends_function:
        yield insert_text(node.start_byte, "try { ")
        yield insert_text(node.end_byte, f"{held} catch (error) {{ {failed}")
        return
    if not site.is_body:
        expression = first_child(node) or node
    if promised:
        yield from make_async(site.function)
    opening = f"{{ try {{ {'await ' if promised else ''}("
    yield SourceEdit(start=node.start_byte, end=expression.start_byte, text=opening)
    ending = f"){held} catch (error) {{ {failed}{'' if site.is_body else ' return'} }}"
    yield SourceEdit(start=expression.end_byte, end=node.end_byte, text=ending)


def _is_kept(node: Node) -> bool:
    """Whether a variable keeps what an expression gives."""
    above = node.parent
    while above is not None and above.type in _WRAPPERS:
        above = above.parent
    return above is not None and above.type in ("variable_declarator", "assignment_expression")


def _awaits(node: Node) -> bool:
    inner = descendants(node, but_not_in=FUNCTIONS)
    return any(one.type == "await_expression" for one in inner)


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
    statements = list_statements(body)
    place = body.end_byte - 1
    if statements and statements[-1].type == "return_statement":
        place = statements[-1].start_byte
    return [], [insert_text(place, f"; {text}; ")]


def always_ends(function: Node) -> bool:
    """Whether a function that throws nothing gets to its last statement."""
    statements = list_statements(function.child_by_field_name("body"))
    return not any(map(may_leave, statements[:-1])) and not any(
        may_leave(last) for last in statements[-1:] if last.type != "return_statement"
    )


def statement_around(node: Node) -> Node:
    """The statement of a block or file in which an expression lies."""
    while node.parent is not None and node.parent.type not in ("statement_block", "program"):
        node = node.parent
    return node
