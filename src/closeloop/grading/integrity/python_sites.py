"""Where Python tests assert: every statement that may be made wrong, each with one comparison.

Compound assertions are taken apart first, in a way that changes nothing of what they say:
`assert a and b` becomes two, `assert a == b == c` becomes two, `assert all(…)` becomes a loop, `if
bad: pytest.fail()` becomes an assertion, and each item of a short literal list is compared alone.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator

from closeloop.grading.integrity.python_assertions import (
    EQUALITIES,
    NEARLY,
    OPPOSITE,
    SWALLOWING,
    called_name,
    read_call,
)
from closeloop.python_trees import parse_expression
from closeloop.records.record import Record

MAX_ITEMS = 12
"""Items of a literal collection that are compared one by one."""
FAILING = frozenset({"fail", "AssertionError"})
"""`pytest.fail()`, `self.fail()`, `raise AssertionError`."""


class AssertionSite(Record):
    """A statement of a test that may be changed."""

    body: list[ast.stmt]
    """Of which it is one."""
    statement: ast.stmt
    sure: bool
    """Whether it runs in any case, if all before it do: in no branch or loop."""
    guarded: bool
    """Whether something around it may see it fail: `except AssertionError: retry()`, or whatever
    calls a function inside a test."""


def list_sites(
    body: list[ast.stmt], *, sure: bool = True, guarded: bool = False
) -> Iterator[AssertionSite]:
    """The statements of a function, with those in all its blocks and in functions inside it."""
    for statement in list(body):
        yield AssertionSite(body=body, statement=statement, sure=sure, guarded=guarded)
        if isinstance(statement, (ast.Return, ast.Raise)):
            return
        for block, runs, watched in _inner_blocks(statement):
            yield from list_sites(block, sure=sure and runs, guarded=guarded or watched)


def _inner_blocks(statement: ast.stmt) -> Iterator[tuple[list[ast.stmt], bool, bool]]:
    """The blocks of a statement: whether each runs in any case, and may be seen to fail."""
    match statement:
        case ast.With() | ast.AsyncWith():
            called = {called_name(item.context_expr) for item in statement.items}
            if not called & SWALLOWING:
                yield statement.body, True, False
        case ast.Try() | ast.TryStar():
            watched = bool(statement.handlers)
            yield statement.body, not watched, watched
            for handler in statement.handlers:
                yield handler.body, False, False
            yield statement.orelse, False, False
            yield statement.finalbody, False, False
        case ast.Match():
            for case in statement.cases:
                yield case.body, False, False
        case ast.For() | ast.AsyncFor() | ast.While() | ast.If():
            yield statement.body, False, False
            yield statement.orelse, False, False
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield statement.body, False, True


def split_assertions(tree: ast.Module, rng: random.Random) -> None:
    """Take compound assertions in functions apart, in place."""
    splitter = _AssertionSplitter(rng)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for _, block in _list_blocks(node):
                block[:] = [part for statement in block for part in splitter.split(statement)]
    ast.fix_missing_locations(tree)


def _list_blocks(node: ast.AST) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Every list of statements inside a function, but for those of functions inside it."""
    for name, value in ast.iter_fields(node):
        if not isinstance(value, list):
            continue
        if value and isinstance(value[0], ast.stmt):
            yield name, value
        for child in value:
            if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)) and not isinstance(
                child, (ast.FunctionDef, ast.AsyncFunctionDef)
            ):
                yield from _list_blocks(child)


class _AssertionSplitter:
    """Takes statements apart; makes up names for values that are used twice."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def split(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """What a statement says, in parts."""
        statement = _assert_of_failure(statement) or statement
        if not isinstance(statement, ast.Assert):
            yield from self._split_equality(statement)
            return
        match statement.test:
            case ast.BoolOp(op=ast.And(), values=values):
                for value in values:
                    yield from self.split(_assert(value, statement))
            case ast.Compare(ops=[_, _, *_]) as chain:
                yield from self._split_chain(chain, statement)
            case ast.Call(func=ast.Name(id="all"), args=[ast.GeneratorExp() as items], keywords=[]):
                yield from self._split_all(items, statement)
            case _:
                yield from self._split_equality(statement)

    def _split_chain(self, chain: ast.Compare, original: ast.Assert) -> Iterator[ast.stmt]:
        """`a == b == c` as `a == b` and `b == c`, each evaluated once, in order."""
        left: ast.expr = chain.left
        last = len(chain.ops) - 1
        for number, (op, compared) in enumerate(zip(chain.ops, chain.comparators, strict=True)):
            right = compared
            if number < last and not isinstance(compared, ast.Constant):
                # The left side comes first in a comparison, and so does it here.
                assignment, left = self._keep(left)
                yield assignment
                assignment, right = self._keep(compared)
                yield assignment
            comparison = ast.Compare(left=left, ops=[op], comparators=[copy.deepcopy(right)])
            yield from self._split_equality(_assert(comparison, original))
            left = copy.deepcopy(right)

    def _split_all(self, items: ast.GeneratorExp, original: ast.Assert) -> Iterator[ast.stmt]:
        """`all(f(x) for x in y)` as a loop, with names of its own."""
        inner = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
        nested = any(isinstance(node, inner) for node in ast.walk(items) if node is not items)
        if nested or any(one.is_async for one in items.generators):
            yield original
            return
        targets = {
            node.id
            for one in items.generators
            for node in ast.walk(one.target)
            if isinstance(node, ast.Name)
        }
        renamed = {name: self._make_name() for name in sorted(targets)}
        first = copy.deepcopy(items.generators[0].iter)
        items = copy.deepcopy(items)
        for node in ast.walk(items):
            if isinstance(node, ast.Name) and node.id in renamed:
                node.id = renamed[node.id]
        items.generators[0].iter = first  # evaluated outside, before the names are bound
        body: list[ast.stmt] = [*self.split(_assert(items.elt, original))]
        for generator in reversed(items.generators):
            for condition in reversed(generator.ifs):
                body = [ast.If(test=condition, body=body, orelse=[])]
            body = [ast.For(target=generator.target, iter=generator.iter, body=body, orelse=[])]
        yield from body

    def _split_equality(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """A comparison with a short literal collection, and then with each of its items."""
        sides = _equal_sides(statement)
        if sides is None:
            yield statement
            return
        place, other, literal = sides
        assignment, kept = self._keep(other)
        changed = copy.deepcopy(statement)
        _write_side(changed, 1 - place, kept)
        yield assignment
        yield changed
        items = literal.items() if isinstance(literal, dict) else enumerate(literal)
        parts: list[ast.stmt] = [
            ast.Assert(test=parse_expression(f"{kept.id}[{key!r}] == {item!r}"), msg=None)
            for key, item in items
        ]
        check = f"type({kept.id}) is {type(literal).__name__} and len({kept.id}) == {len(literal)}"
        yield ast.If(test=parse_expression(check), body=parts, orelse=[])

    def _keep(self, value: ast.expr) -> tuple[ast.Assign, ast.Name]:
        name = self._make_name()
        assignment = ast.Assign(targets=[ast.Name(name, ast.Store())], value=value)
        return assignment, ast.Name(name, ast.Load())

    def _make_name(self) -> str:
        return f"_{self.rng.getrandbits(40):010x}"


def _assert_of_failure(statement: ast.stmt) -> ast.Assert | None:
    """`if bad: raise AssertionError` as `assert not bad`."""
    if not isinstance(statement, ast.If) or statement.orelse or len(statement.body) != 1:
        return None
    inner = statement.body[0]
    raised = inner.exc if isinstance(inner, ast.Raise) else None
    called = raised if raised is not None else read_call(inner)
    name = raised.id if isinstance(raised, ast.Name) else called and called_name(called)
    if name not in FAILING or any(isinstance(node, ast.NamedExpr) for node in ast.walk(statement)):
        return None
    return ast.copy_location(ast.Assert(test=_negate(statement.test), msg=None), statement)


def _negate(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        op = OPPOSITE[type(test.ops[0])]()
        return ast.Compare(left=test.left, ops=[op], comparators=test.comparators)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return ast.BoolOp(op=ast.And(), values=[_negate(value) for value in test.values])
    return ast.UnaryOp(op=ast.Not(), operand=test)


def _assert(test: ast.expr, original: ast.Assert) -> ast.Assert:
    return ast.copy_location(ast.Assert(test=test, msg=None), original)


def _equal_sides(
    statement: ast.stmt,
) -> tuple[int, ast.expr, dict[object, object] | list[object]] | None:
    """Which side of an equality is a short literal collection, the other side, and its value."""
    for place in (1, 0):
        node, other = _read_side(statement, place), _read_side(statement, 1 - place)
        if node is None or other is None or not isinstance(node, (ast.List, ast.Tuple, ast.Dict)):
            continue
        try:
            literal = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
        if 1 < len(literal) <= MAX_ITEMS:
            return place, other, literal
    return None


def _read_side(statement: ast.stmt, place: int) -> ast.expr | None:
    """A side of `assert a == b` or `self.assertEqual(a, b)`."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            return test.comparators[0] if place else test.left
        return None
    call = read_call(statement)
    name = called_name(call) if call is not None else None
    if call is None or name not in EQUALITIES - NEARLY - {"assertCountEqual"}:
        return None
    return call.args[place] if len(call.args) >= 2 else None


def _write_side(statement: ast.stmt, place: int, value: ast.expr) -> None:
    if isinstance(statement, ast.Assert):
        compared = statement.test
        assert isinstance(compared, ast.Compare)
        if place:
            compared.comparators[0] = value
        else:
            compared.left = value
        return
    call = read_call(statement)
    assert call is not None
    call.args[place] = value
