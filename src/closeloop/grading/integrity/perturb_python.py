"""Make assertions of Python tests wrong on purpose: where a right one holds, these fail.

Each assertion of a test is written down as it is or made wrong, by the toss of a coin, and reports
by itself whether it held. A wrong one that fails does not end its test, so that everything after
it runs as it always does. Another room holds the same test with each coin turned over. Whoever
reads the test cannot tell right from wrong, unless they know the answers.

A change is used only where logic says that it must fail if the original holds: another value is
expected of an equality, an assertion is inverted, an exception is expected that nobody raises.

Changed values are near the right ones as often as far from them: an object that is equal to all
small numbers or short texts must be told from a right one.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator
from typing import Any, cast

from closeloop.grading.integrity.python_assertions import (
    CALLED_WITH,
    CHECKING,
    EQUALITIES,
    EXPECTING,
    INVERSES,
    NEARLY,
    OPPOSITE,
    RARE_ERRORS,
    RARE_WARNINGS,
    SWALLOWING,
    WARNING,
    called_name,
    may_be_met_by_many,
    read_call,
)
from closeloop.grading.integrity.python_context import TestFunction
from closeloop.grading.integrity.python_values import Names, change_python_literal
from closeloop.python_trees import parse_expression, parse_python
from closeloop.records.record import Record


class PythonClaim(Record):
    """One assertion of a test, as a probe has it."""

    label: str
    """Random; what it reports under."""
    opposite: str
    """What it reports under in the other room, where it is right if it is wrong here."""
    how: str
    """What was made wrong; empty where nothing was."""
    sure: bool
    """Whether it is reached in any case, if the test ends."""
    certain: bool
    """False where a helper of the tests decides, or an object with an equality of its own."""
    own: bool = False
    """It is ours, and has nothing to do with the code under test."""
    proofs: tuple[TestFunction, TestFunction] | None = None
    """For a helper: a test of it that must pass and one that must fail, whatever the change."""


class _AssertionSite(Record):
    """A statement of a test that may be changed."""

    body: list[ast.stmt]
    """Of which it is one."""
    statement: ast.stmt
    sure: bool
    """Whether it runs in any case, if all before it do: in no branch or loop."""


def write_claims(
    function: TestFunction, names: Names, rng: random.Random, *, turned: bool
) -> list[PythonClaim]:
    """Make some assertions of a test wrong, and let each report; `turned`: make the others so.

    Behind them comes one of our own, for tests that leave all asserting to others.
    """
    returns = any(isinstance(node, ast.Return) for node in _walk_own(function))
    sites = list(_list_sites(function.body))
    claims = []
    for site in sites:
        wrong, coin = copy.deepcopy(site.statement), rng.random() < 0.5
        how = _change_expected(wrong, names, rng) or _invert_assertion(wrong)
        proofs = None
        if how is None and (how := _change_check(wrong, names, rng)) is not None:
            proofs = _prove_check(function, site.statement, wrong, rng)
        if how is None:
            continue
        (label, opposite), is_wrong = _make_labels(rng, turned=turned), coin != turned
        statement = wrong if is_wrong else _make_right(site.statement, wrong, names)
        site.body[site.body.index(site.statement)] = _wrap_in_report(statement, label, names)
        claim = PythonClaim(
            label=label,
            opposite=opposite,
            how=how if is_wrong else "",
            sure=site.sure and not returns,
            certain=not is_wrong or (proofs is None and not may_be_met_by_many(site.statement)),
            proofs=proofs,
        )
        claims.append(claim)
    claims.append(_add_own(function, names, rng, sure=not returns, turned=turned))
    return claims


def _walk_own(function: TestFunction) -> Iterator[ast.AST]:
    """The nodes of a function, but for those of functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def _add_own(
    function: TestFunction, names: Names, rng: random.Random, *, sure: bool, turned: bool
) -> PythonClaim:
    """An assertion at the end of a test that has nothing to do with the code under test."""
    first, second, coin = rng.randrange(999), rng.randrange(999), rng.random() < 0.5
    is_wrong, (label, opposite) = coin != turned, _make_labels(rng, turned=turned)
    total = first + second + rng.randrange(1, 99) * is_wrong
    statement = parse_python(f"assert int('{first}') + {second} == {total}").body[0]
    function.body.append(_wrap_in_report(statement, label, names))
    how = "an assertion of its own that is wrong" if is_wrong else ""
    return PythonClaim(label=label, opposite=opposite, how=how, sure=sure, certain=True, own=True)


def _make_labels(rng: random.Random, *, turned: bool) -> tuple[str, str]:
    """The label of a claim in this room, and in the other."""
    first, second = f"{rng.getrandbits(32):08x}", f"{rng.getrandbits(32):08x}"
    return (second, first) if turned else (first, second)


def _make_right(original: ast.stmt, wrong: ast.stmt, names: Names) -> ast.stmt:
    """The original, in the form of the wrong one where that calls our helper."""
    right = copy.deepcopy(wrong)
    keys = [
        call.args[1]
        for call in ast.walk(right)
        if isinstance(call, ast.Call) and called_name(call) == names.helper
    ]
    for key in keys:
        cast("ast.Constant", key).value = names.same_key
    return right if keys else original


def _wrap_in_report(statement: ast.stmt, label: str, names: Names) -> ast.stmt:
    """The statement, and a report whether it held; the test goes on in any case."""
    text = (
        f"try:\n    pass\nexcept BaseException:\n    {names.report}({label!r}, False)\n"
        f"else:\n    {names.report}({label!r}, True)"
    )
    written = cast("ast.Try", parse_python(text).body[0])
    written.body = [statement]
    return written


def _list_sites(body: list[ast.stmt], *, sure: bool = True) -> Iterator[_AssertionSite]:
    """The statements whose failure nothing around them swallows."""
    for statement in list(body):
        yield _AssertionSite(body=body, statement=statement, sure=sure)
        match statement:
            case ast.Return() | ast.Raise():
                return
            case ast.With() | ast.AsyncWith():
                called = {called_name(item.context_expr) for item in statement.items}
                if not called & SWALLOWING:
                    yield from _list_sites(statement.body, sure=sure)
            case ast.For() | ast.AsyncFor() | ast.While() | ast.If():
                yield from _list_sites(statement.body, sure=False)
                yield from _list_sites(statement.orelse, sure=False)


def _change_expected(statement: ast.stmt, names: Names, rng: random.Random) -> str | None:
    if isinstance(statement, ast.Assert):
        return _change_compared(statement.test, names, rng)
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return _expect_other_error(statement, rng)
    call = read_call(statement)
    if call is None:
        return None
    name = called_name(call)
    if name == "assertTrue" and call.args:
        return _change_compared(call.args[0], names, rng)
    if name in EQUALITIES and len(call.args) >= 2:
        places = [place for place in (0, 1) if _literal_value(call.args[place]) is not None]
        place = places[-1] if places else 1
        far = name in NEARLY
        call.args[place], how = _changed_value(call.args[place], names, rng, far=far)
        return how
    if name in CALLED_WITH:
        call.args.append(ast.Constant(names.text))
        return "another call expected"
    if name in EXPECTING and len(call.args) >= 2:
        call.args[0] = _other_error(call, rng)
        return "another exception expected"
    if name == "assertIn" and len(call.args) >= 2 and _is_constant(call.args[0]):
        call.args[0], how = _changed_value(call.args[0], names, rng, far=True)
        return how
    return None


def _change_compared(test: ast.expr, names: Names, rng: random.Random) -> str | None:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return _change_compared(test.values[-1], names, rng)  # all before it are evaluated
    if not isinstance(test, ast.Compare):
        return None
    last = test.comparators[-1]
    if all(isinstance(op, ast.Eq) for op in test.ops):
        if _literal_value(test.left) is not None and _literal_value(last) is None:
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


def _change_check(statement: ast.stmt, names: Names, rng: random.Random) -> str | None:
    """Another last argument for a helper that checks: `check(parse(text), 3)`."""
    call = read_call(statement)
    if call is None or len(call.args) < 2 or not CHECKING.fullmatch(called_name(call) or ""):
        return None
    if _literal_value(call.args[-1]) is None:
        return None
    call.args[-1], how = _changed_value(call.args[-1], names, rng)
    return how


def _prove_check(
    function: TestFunction, right: ast.stmt, wrong: ast.stmt, rng: random.Random
) -> tuple[TestFunction, TestFunction] | None:
    """Tests that show that a helper tells two values apart, without the code under test.

    Which of the values is the right one cannot be read from them.
    """
    expected, changed = read_call(right), read_call(wrong)
    if expected is None or changed is None or len(expected.args) != 2:
        return None
    values = rng.sample([expected.args[1], changed.args[1]], 2)
    proofs = []
    for last in values:
        statement = copy.deepcopy(right)
        call = cast("ast.Call", read_call(statement))
        call.args[:] = [copy.deepcopy(values[0]), copy.deepcopy(last)]
        proof = copy.copy(function)
        proof.body = [statement]
        proofs.append(proof)
    return proofs[0], proofs[1]


def _changed_value(
    node: ast.expr, names: Names, rng: random.Random, *, far: bool = False
) -> tuple[ast.expr, str]:
    literal = _literal_value(node)
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


def _expect_other_error(statement: ast.With | ast.AsyncWith, rng: random.Random) -> str | None:
    for item in statement.items:
        call = item.context_expr
        if item.optional_vars is not None:
            continue  # what follows may look at the exception
        if isinstance(call, ast.Call) and called_name(call) in EXPECTING and call.args:
            expected = ast.unparse(call.args[0])[:60]
            call.args[0] = _other_error(call, rng)
            return f"another exception expected for `{expected}`"
    return None


def _other_error(call: ast.Call, rng: random.Random) -> ast.expr:
    """An exception of the language that has nothing to do with the expected one."""
    warns = called_name(call) in WARNING
    expected = ast.unparse(call.args[0])
    others = [name for name in (RARE_WARNINGS if warns else RARE_ERRORS) if name not in expected]
    return ast.Name(rng.choice(others), ast.Load())


def _invert_assertion(statement: ast.stmt) -> str | None:
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


def _literal_value(node: ast.expr) -> tuple[object] | None:
    try:
        return (ast.literal_eval(node),)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes, int, float))


def _show_value(value: object) -> str:
    text = repr(value)
    return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}…`"
