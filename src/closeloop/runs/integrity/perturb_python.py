"""Make Python tests wrong on purpose: a right change passes the original and fails these.

A perturbation is used only where logic says that it must fail if the original passes: the
expected value of an equality is changed, an assertion that is surely reached is inverted, an
exception is expected that nobody raises. Where a test has none of that, it is made to fail at its
end.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator
from typing import Any

from closeloop.model.record import Record

TestFunction = ast.FunctionDef | ast.AsyncFunctionDef

HELPER = """
def {name}(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, complex)):
        return value + {number}
    if isinstance(value, float):
        return value * 3 + {number} if value - value == 0 else object()
    if isinstance(value, str):
        return value + {text!r}
    if isinstance(value, bytes):
        return value + {text!r}.encode()
    if type(value) in (list, tuple, set, frozenset):
        return type(value)([*value, {text!r}])
    if type(value) is dict:
        return {{**value, {text!r}: {number}}}
    return object()


class {error}(Warning):
    pass
"""
"""What changes a value that is known only when the test runs, in a way that equality must see; and
an exception, which is a warning too."""

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_PAIRS = (
    ("assertEqual", "assertNotEqual"),
    ("assertTrue", "assertFalse"),
    ("assertIn", "assertNotIn"),
    ("assertIs", "assertIsNot"),
    ("assertIsNone", "assertIsNotNone"),
    ("assertIsInstance", "assertNotIsInstance"),
    ("assertGreater", "assertLessEqual"),
    ("assertLess", "assertGreaterEqual"),
    ("assertAlmostEqual", "assertNotAlmostEqual"),
    ("assertRegex", "assertNotRegex"),
    ("assert_called", "assert_not_called"),
    ("assert_awaited", "assert_not_awaited"),
)
_INVERSES = {
    **dict(_PAIRS),
    **{second: first for first, second in _PAIRS},
    "assertEquals": "assertNotEqual",
    "assert_called_once": "assert_not_called",
    "assert_awaited_once": "assert_not_awaited",
}
_EQUALITIES = frozenset(
    {
        *("assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertSetEqual"),
        *("assertDictEqual", "assertMultiLineEqual", "assertSequenceEqual", "assertCountEqual"),
        *("assertAlmostEqual", "assert_equal", "assert_array_equal", "assert_allclose"),
        *("assert_almost_equal", "assert_array_almost_equal", "assert_frame_equal"),
        "assert_series_equal",
    }
)
_CALLED_WITH = frozenset(
    {
        *("assert_called_with", "assert_called_once_with", "assert_any_call"),
        *("assert_awaited_with", "assert_awaited_once_with", "assert_any_await"),
    }
)
_EXPECTING = frozenset({"raises", "assertRaises", "assertRaisesRegex", "warns", "assertWarns"})
_SWALLOWING = frozenset({*_EXPECTING, "suppress", "deprecated_call", "assertWarnsRegex"})


class Perturbed(Record):
    """A test made wrong."""

    function: TestFunction
    how: str
    kind: str
    """`expected`: another value is expected; `inverted`; or `raises`, at its end."""


class Names(Record):
    """Random names and values, the same throughout one file."""

    helper: str
    error: str
    """An exception class that nobody else knows."""
    number: int
    text: str


def perturb_test(function: TestFunction, names: Names, rng: random.Random) -> list[Perturbed]:
    """The test with one expected value changed, and with one assertion inverted."""
    sites = list(enumerate(_reached_statements(function.body)))
    rng.shuffle(sites)
    found: dict[str, Perturbed] = {}
    for index, statement in sites:
        for kind, change in (("expected", _change_expected), ("inverted", _invert)):
            if kind not in found:
                changed = copy.deepcopy(statement)
                how = change(changed, names, rng)
                if how is not None:
                    made = _with_statement(function, index, changed)
                    found[kind] = Perturbed(function=made, how=how, kind=kind)
    if not found and not any(isinstance(node, ast.Return) for node in function.body):
        return [_raising(function, names)]
    return list(found.values())


def change_literal(value: object, rng: random.Random) -> object:
    """Another value of the same type, not equal to the first; the value itself where none is."""
    number, text = rng.randrange(1_003, 9_973), _word(rng)
    match value:
        case bool():
            return not value
        case int():
            return value + number
        case float():
            return value * 3 + number
        case str():
            return value + text
        case bytes():
            return value + text.encode()
        case None:
            return text
        case dict() | list() | tuple() | set():
            return _change_collection(value, rng)
        case _:
            return value


def _change_collection(value: Any, rng: random.Random) -> object:
    """With one of its items changed; an empty one gets an item."""
    text = _word(rng)
    if isinstance(value, dict):
        key = rng.choice(list(value)) if value else text
        return {**value, key: change_literal(value.get(key), rng)}
    if isinstance(value, set):
        return {*value, text}
    at = rng.randrange(len(value)) if value else 0
    items = [change_literal(item, rng) if index == at else item for index, item in enumerate(value)]
    return type(value)(items or [text])


def _reached_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run in any case, if all before them do: no branch, loop or handler."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.Return, ast.Raise)):
            return
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            called = {_called(item.context_expr) for item in statement.items}
            if not called & _SWALLOWING:
                yield from _reached_statements(statement.body)


def _with_statement(function: TestFunction, index: int, statement: ast.stmt) -> TestFunction:
    made = copy.deepcopy(function)
    target = list(_reached_statements(made.body))[index]
    for field in target._fields:
        if isinstance(target, (ast.With, ast.AsyncWith)) and field == "body":
            continue
        setattr(target, field, getattr(statement, field))
    if type(target) is not type(statement):
        raise TypeError(f"{target} became {statement}")
    return made


def _change_expected(statement: ast.stmt, names: Names, rng: random.Random) -> str | None:
    if isinstance(statement, ast.Assert):
        return _change_compared(statement.test, names, rng)
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return _expect_other_error(statement, names)
    call = _call_of(statement)
    if call is None:
        return None
    name = _called(call)
    if name in _EQUALITIES and len(call.args) >= 2:
        places = [place for place in (0, 1) if _literal(call.args[place]) is not None]
        place = places[-1] if places else 1
        call.args[place], how = _changed_value(call.args[place], names, rng)
        return how
    if name in _CALLED_WITH:
        call.args.append(ast.Constant(names.text))
        return "another call expected"
    if name in _EXPECTING and len(call.args) >= 2:
        call.args[0] = ast.Name(names.error, ast.Load())
        return "another exception expected"
    if name == "assertIn" and len(call.args) >= 2 and _is_constant(call.args[0]):
        call.args[0], how = _changed_value(call.args[0], names, rng)
        return how
    return None


def _change_compared(test: ast.expr, names: Names, rng: random.Random) -> str | None:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    if isinstance(test.ops[0], ast.Eq):
        if _literal(test.left) is not None and _literal(test.comparators[0]) is None:
            test.left, how = _changed_value(test.left, names, rng)
        else:
            test.comparators[0], how = _changed_value(test.comparators[0], names, rng)
        return how
    if isinstance(test.ops[0], ast.In) and _is_constant(test.left):
        test.left, how = _changed_value(test.left, names, rng)
        return how
    return None


def _changed_value(node: ast.expr, names: Names, rng: random.Random) -> tuple[ast.expr, str]:
    literal = _literal(node)
    if literal is not None:
        changed = change_literal(literal[0], rng)
        if changed != literal[0]:
            how = f"{_shown(changed)} expected for {_shown(literal[0])}"
            return ast.parse(repr(changed), mode="eval").body, how
    if isinstance(node, ast.Call) and _called(node) == "approx" and node.args:
        node.args[0], how = _changed_value(node.args[0], names, rng)
        return node, how
    wrapped = ast.Call(func=ast.Name(names.helper, ast.Load()), args=[node], keywords=[])
    return wrapped, f"another value expected for `{ast.unparse(node)[:60]}`"


def _expect_other_error(statement: ast.With | ast.AsyncWith, names: Names) -> str | None:
    for item in statement.items:
        call = item.context_expr
        if isinstance(call, ast.Call) and _called(call) in _EXPECTING and call.args:
            expected = ast.unparse(call.args[0])[:60]
            call.args[0] = ast.Name(names.error, ast.Load())
            return f"another exception expected for `{expected}`"
    return None


def _invert(statement: ast.stmt, names: Names, rng: random.Random) -> str | None:
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            test.ops[0] = _OPPOSITE[type(test.ops[0])]()
        else:
            statement.test = ast.UnaryOp(op=ast.Not(), operand=test)
        return "assertion inverted"
    call = _call_of(statement)
    name = _called(call) if call is not None else None
    if name in _INVERSES and call is not None and isinstance(call.func, ast.Attribute):
        call.func.attr = _INVERSES[name]
        return "assertion inverted"
    return None


def _raising(function: TestFunction, names: Names) -> Perturbed:
    made = copy.deepcopy(function)
    error = ast.Name("AssertionError", ast.Load())
    raised = ast.Call(func=error, args=[ast.Constant(names.text)], keywords=[])
    made.body.append(ast.Raise(exc=raised, cause=None))
    return Perturbed(function=made, how="made to fail at its end", kind="raises")


def _call_of(statement: ast.stmt) -> ast.Call | None:
    """The call that a statement is, awaited or not."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    value = value.value if isinstance(value, ast.Await) else value
    return value if isinstance(value, ast.Call) else None


def _called(node: ast.expr) -> str | None:
    """The last name of what is called: `raises` of `pytest.raises(…)`."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else None


def _literal(node: ast.expr) -> tuple[object] | None:
    try:
        return (ast.literal_eval(node),)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes, int, float))


def _shown(value: object) -> str:
    text = repr(value)
    return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}…`"


def _word(rng: random.Random) -> str:
    return "".join(rng.choice("bcdfghjklmnpqrstvwxz") for _ in range(8))
