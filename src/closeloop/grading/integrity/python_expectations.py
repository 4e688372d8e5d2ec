"""What a Python assertion expects, made another: a value, a call, an exception, the opposite."""

from __future__ import annotations

import ast
import builtins
import copy
import random
from typing import Any, cast

from closeloop.grading.integrity.python_assertions import (
    ANY_OF_CALLS,
    CALLED_WITH,
    CHECKING,
    COMMON_ERRORS,
    COMMON_WARNINGS,
    EQUALITIES,
    EXPECTING,
    HAS_CALLS,
    INVERSES,
    NEARLY,
    OPPOSITE,
    WARNING,
    called_name,
    chain_names,
    read_call,
)
from closeloop.grading.integrity.python_values import Names, change_python_literal, random_word
from closeloop.python_trees import parse_expression


def change_expected(statement: ast.stmt, names: Names, rng: random.Random) -> str | None:
    """Let an assertion expect something else, and say what; None where it cannot be done."""
    if isinstance(statement, ast.Assert):
        return _change_compared(statement.test, names, rng)
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return _expect_other_error(statement, names, rng)
    call = read_call(statement)
    if call is None:
        return None
    name = called_name(call)
    if name == "assertTrue" and call.args:
        return _change_compared(call.args[0], names, rng)
    if name in EQUALITIES and len(call.args) >= 2:
        places = [place for place in (0, 1) if literal_value(call.args[place]) is not None]
        place = places[-1] if places else 1
        far = name in NEARLY
        call.args[place], how = _changed_value(call.args[place], names, rng, far=far)
        return how
    if name in CALLED_WITH or name in HAS_CALLS:
        return _expect_other_call(call, rng, far=name in ANY_OF_CALLS)
    if name in EXPECTING and len(call.args) >= 2:
        call.args[0] = _other_error(call, names, rng)
        return "another exception expected"
    if name == "assertIn" and len(call.args) >= 2 and _is_constant(call.args[0]):
        call.args[0], how = _changed_value(call.args[0], names, rng, far=True)
        return how
    return None


def change_check(statement: ast.stmt, names: Names, rng: random.Random) -> str | None:
    """Another last argument for a helper that checks: `check(parse(text), 3)`.

    Or for a chain or a matcher: `assert_that(total).is_equal_to(3)`, `assert_that(x, equal_to(3))`.
    """
    call = _find_check(statement)
    if call is None:
        return None
    call.args[-1], how = _changed_value(call.args[-1], names, rng)
    return how


def helper_of(statement: ast.stmt) -> str | None:
    """The name of the helper that checks, where `change_check` has something to change."""
    call = read_call(statement)
    return called_name(call) if call is not None and _find_check(statement) else None


def _find_check(statement: ast.stmt) -> ast.Call | None:
    """The call whose last argument is what is expected."""
    call = read_call(statement)
    if call is None or not any(map(CHECKING.fullmatch, chain_names(call))):
        return None
    if len(call.args) < 2 and not isinstance(call.func, ast.Attribute):
        return None
    while call.args and isinstance(call.args[-1], ast.Call):
        call = call.args[-1]
    return call if call.args and literal_value(call.args[-1]) is not None else None


def invert_assertion(statement: ast.stmt) -> str | None:
    """Turn an assertion into its opposite, and say so; None where there is none."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            test.ops[0] = OPPOSITE[type(test.ops[0])]()
        else:
            statement.test = ast.UnaryOp(op=ast.Not(), operand=test)
        return "assertion inverted"
    call = read_call(statement)
    name = called_name(call) if call is not None else None
    if name in INVERSES and call is not None and isinstance(call.func, ast.Attribute):
        call.func.attr = INVERSES[name]
        return "assertion inverted"
    return None


def literal_value(node: ast.expr) -> tuple[object] | None:
    """The value of a literal, in a tuple of its own: it may be None."""
    try:
        return (ast.literal_eval(node),)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _change_compared(test: ast.expr, names: Names, rng: random.Random) -> str | None:
    if not isinstance(test, ast.Compare):
        return None
    last = test.comparators[-1]
    if all(isinstance(op, ast.Eq) for op in test.ops):
        if literal_value(test.left) is not None and literal_value(last) is None:
            test.left, how = _changed_value(test.left, names, rng)
        else:
            test.comparators[-1], how = _changed_value(last, names, rng)
        return how
    if len(test.ops) == 1 and isinstance(test.ops[0], ast.In):
        if _is_constant(test.left):
            test.left, how = _changed_value(test.left, names, rng, far=True)
            return how
        return _change_choices(last, rng)
    return None


def _change_choices(node: ast.expr, rng: random.Random) -> str | None:
    """Make all items of a list others, as in `assert status in (200, 204)`."""
    if not isinstance(node, (ast.List, ast.Tuple, ast.Set)) or not all(
        map(_is_constant, node.elts)
    ):
        return None
    values = [cast("ast.Constant", item).value for item in node.elts]
    changed = [change_python_literal(value, rng, far=True) for value in values]
    if not values or any(value in values for value in changed):
        return None
    node.elts = [ast.Constant(cast("Any", value)) for value in changed]
    return f"{_show_value(changed)} expected for {_show_value(values)}"


def _changed_value(
    node: ast.expr, names: Names, rng: random.Random, *, far: bool = False
) -> tuple[ast.expr, str]:
    literal = literal_value(node)
    if literal is not None:
        changed = change_python_literal(literal[0], rng, far=far)
        if changed != literal[0]:
            how = f"{_show_value(changed)} expected for {_show_value(literal[0])}"
            return parse_expression(repr(changed)), how
    if isinstance(node, ast.Call) and called_name(node) == "approx" and node.args:
        node.args[0], how = _changed_value(node.args[0], names, rng, far=True)
        return node, how
    arguments: list[ast.expr] = [node, ast.Constant(names.other_key)]
    arguments += [ast.Constant(far)] if far else []
    wrapped = ast.Call(func=ast.Name(names.helper, ast.Load()), args=arguments, keywords=[])
    return wrapped, f"another value expected for `{ast.unparse(node)[:60]}`"


def _expect_other_call(call: ast.Call, rng: random.Random, *, far: bool) -> str | None:
    """Expect another argument of a mock: one that is there changed, or one more."""
    if called_name(call) in HAS_CALLS:
        listed = call.args[0] if call.args else None
        if not isinstance(listed, (ast.List, ast.Tuple)) or not listed.elts:
            return None
        last = copy.deepcopy(listed.elts[-1])
        if not isinstance(last, ast.Call):
            return None
        listed.elts[-1] = call = last
    places = [at for at, value in enumerate(call.args) if _is_constant(value)]
    if places:
        at = rng.choice(places)
        value = cast("ast.Constant", call.args[at]).value
        call.args[at] = ast.Constant(cast("Any", change_python_literal(value, rng, far=far)))
    else:
        more: str | int = random_word(rng) if far or rng.random() < 0.5 else rng.randrange(100)
        call.args.append(ast.Constant(more))
    return "another call expected"


def _expect_other_error(
    statement: ast.With | ast.AsyncWith, names: Names, rng: random.Random
) -> str | None:
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(statement)):
        return None
    for item in statement.items:
        call = item.context_expr
        if item.optional_vars is not None and not isinstance(item.optional_vars, ast.Name):
            continue
        if isinstance(call, ast.Call) and called_name(call) in EXPECTING and call.args:
            expected = ast.unparse(call.args[0])[:60]
            call.args[0] = _other_error(call, names, rng)
            return f"another exception expected for `{expected}`"
    return None


def _other_error(call: ast.Call, names: Names, rng: random.Random) -> ast.expr:
    """An exception of the language that has nothing to do with the expected one.

    What class the expected one derives from is known only when the test runs, if it is not one of
    the language.
    """
    candidates = COMMON_WARNINGS if called_name(call) in WARNING else COMMON_ERRORS
    expected = call.args[0]
    listed = expected.elts if isinstance(expected, ast.Tuple) else [expected]
    known = [getattr(builtins, one.id, None) for one in listed if isinstance(one, ast.Name)]
    classes = [one for one in known if isinstance(one, type) and issubclass(one, BaseException)]
    if len(classes) == len(listed):
        others = [
            other
            for other in candidates
            if not any(issubclass(one, other) or issubclass(other, one) for one in classes)
        ]
        if others:
            return ast.Name(rng.choice(others).__name__, ast.Load())
    chosen = rng.sample(candidates, len(candidates))
    arguments = [ast.Name(one.__name__, ast.Load()) for one in chosen]
    return ast.Call(
        func=ast.Name(names.other_error, ast.Load()),
        args=[expected, ast.Constant(names.other_key), *arguments],
        keywords=[],
    )


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes, int, float))


def _show_value(value: object) -> str:
    text = repr(value)
    return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}…`"
