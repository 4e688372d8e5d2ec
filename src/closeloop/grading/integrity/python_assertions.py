"""What assertions of Python tests mean: those of pytest, unittest, mocks and numpy."""

from __future__ import annotations

import ast
import re
from typing import cast

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
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
INVERSES = {
    **dict(_PAIRS),
    **{second: first for first, second in _PAIRS},
    "assertEquals": "assertNotEqual",
    "assert_called_once": "assert_not_called",
    "assert_awaited_once": "assert_not_awaited",
}
EQUALITIES = frozenset(
    {
        *("assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertSetEqual"),
        *("assertDictEqual", "assertMultiLineEqual", "assertSequenceEqual", "assertCountEqual"),
        *("assertAlmostEqual", "assert_equal", "assert_array_equal", "assert_allclose"),
        *("assert_almost_equal", "assert_array_almost_equal", "assert_frame_equal"),
        "assert_series_equal",
    }
)
CALLED_WITH = frozenset(
    {
        *("assert_called_with", "assert_called_once_with", "assert_any_call"),
        *("assert_awaited_with", "assert_awaited_once_with", "assert_any_await"),
    }
)
HAS_CALLS = frozenset({"assert_has_calls", "assert_has_awaits"})
ANY_OF_CALLS = HAS_CALLS | {"assert_any_call", "assert_any_await"}
"""Met by one call of many: only a call that nobody makes must fail."""
NEARLY = frozenset(
    {
        *("assertAlmostEqual", "assert_allclose", "assert_almost_equal"),
        *("assert_array_almost_equal", "assert_frame_equal", "assert_series_equal"),
    }
)
"""Equalities with a tolerance: only a value that is far off must fail."""
CHECKING = re.compile(r"_*(?:assert|check|expect|verify|compare)\w*|\w*(?:equal|same)\w*", re.I)
EXPECTING = frozenset({"raises", "assertRaises", "assertRaisesRegex", "warns", "assertWarns"})
WARNING = frozenset({"warns", "assertWarns"})
COMMON_ERRORS = (
    *(ValueError, TypeError, KeyError, IndexError, RuntimeError, AttributeError, OSError),
    *(ZeroDivisionError, NotImplementedError, StopIteration, NameError, ImportError),
    *(PermissionError, FileNotFoundError, TimeoutError, UnicodeDecodeError, OverflowError),
)
COMMON_WARNINGS = (
    *(UserWarning, DeprecationWarning, RuntimeWarning, FutureWarning, SyntaxWarning),
    *(PendingDeprecationWarning, ResourceWarning, ImportWarning, UnicodeWarning),
)
"""Those that tests expect: one that is expected by mistake does not look it."""
SWALLOWING = frozenset({*EXPECTING, "suppress", "deprecated_call", "assertWarnsRegex"})


def read_call(statement: ast.stmt) -> ast.Call | None:
    """The call that a statement is, awaited or not."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    value = value.value if isinstance(value, ast.Await) else value
    return value if isinstance(value, ast.Call) else None


def called_name(node: ast.expr) -> str | None:
    """The last name of what is called: `raises` of `pytest.raises(…)`."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else None


def chain_names(call: ast.Call) -> list[str]:
    """What a chain calls: `is_equal_to` and `assert_that` of `assert_that(x).is_equal_to(3)`."""
    names, node = list[str](), cast("ast.expr", call)
    while isinstance(node, (ast.Call, ast.Attribute)):
        if isinstance(node, ast.Call):
            names.append(called_name(node) or "")
            node = node.func
        else:
            node = node.value
    return names


def may_be_met_by_many(statement: ast.stmt) -> bool:
    """Whether what is expected may be met by many: `== IsPositive()`, `raises(Exception)`."""
    compared = [
        operand
        for node in ast.walk(statement)
        if isinstance(node, ast.Compare)
        for operand in (node.left, *node.comparators)
    ]
    call = read_call(statement)
    if call is not None and called_name(call) in EQUALITIES:
        compared += call.args[:2]
    expecting = (
        ast.unparse(node.args[0])
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and node.args and called_name(node) in EXPECTING
    )
    if any("Exception" in expected or expected == "Warning" for expected in expecting):
        return True
    names = (ast.unparse(one.func) if isinstance(one, ast.Call) else "" for one in compared)
    anything = (isinstance(one, ast.Attribute) and one.attr == "ANY" for one in compared)
    return any(anything) or any(name.rpartition(".")[2][:1].isupper() for name in names)
