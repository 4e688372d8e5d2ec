"""Interpret assertions of Python tests: those of pytest, unittest, mocks and numpy."""

from __future__ import annotations

import ast
import builtins
import copy
import random
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from closeloop.grading.integrity.probe import COMMON_WORDS, change_text, choose_number_grain
from closeloop.records.record import Record
from closeloop.text.code_patterns import parse_expression

# Values that differ from those a Python test expects, close to them or far from them.


HELPERS = """
{kept} = []
def {is_same}(key):
    return key * {factor} % {prime} % 2 == 1
def {helper}(value, key, far=False):
    if {is_same}(key):
        return value
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, complex)):
        return value + (abs(value) * 3 + {far} if far else -{near} if value.real < 0 else {near})
    if isinstance(value, float):
        changed = value * 3 + {far} if far or abs(value) > 1e9 else value + {near}
        return changed if changed - changed == 0 and changed != value else {text!r}
    if isinstance(value, str):
        return value[:{place}] + {text!r} + value[{place}:]
    if isinstance(value, bytes):
        return value + {text!r}.encode()
    if type(value) in (list, tuple) and value and {inner}:
        at = {place} % len(value)
        return type(value)([*value[:at], {helper}(value[at], key, far), *value[at + 1:]])
    if type(value) in (list, tuple, set, frozenset):
        return type(value)([*value, {text!r}])
    if type(value) is dict and value and {inner}:
        one = list(value)[{place} % len(value)]
        return {{**value, one: {helper}(value[one], key, far)}}
    if type(value) is dict:
        return {{**value, {text!r}: {near}}}
    try:
        changed = value + {near}
        if type(changed) is type(value) and changed != value:
            return changed
    except Exception:
        pass
    return {text!r}
def {keep}(value, key):
    {kept}.append(value)
    return {helper}(value, key)
def {restore}():
    return {kept}.pop()
def {other_error}(expected, key, *others):
    if {is_same}(key):
        return expected
    known = expected if isinstance(expected, tuple) else (expected,)
    for other in others:
        if not any(issubclass(one, other) or issubclass(other, one) for one in known):
            return other
    return expected
def {settle}(label, key, held):
    {report}(label, held)
    return held != {is_same}(key)
def {note}(label, value):
    digest = ""
    try:
        if type(__import__("ast").literal_eval(repr(value))) is type(value):
            digest = __import__("hashlib").sha256(repr(value).encode()).hexdigest()[:16]
    except Exception:
        pass
    {report}(label + "=" + digest, True)
    return value
def {note_answer}(label, value):
    digest = "~" + type(value).__qualname__
    try:
        # Only of what Python provides: `repr` of other objects may change them.
        if type(value).__module__ == "builtins" and type(
            __import__("ast").literal_eval(repr(value))
        ) is type(value):
            text = repr(value).replace(__name__.rpartition(".")[2], "")
            digest = __import__("hashlib").sha256(text.encode()).hexdigest()[:16]
    except Exception:
        pass
    {report}(label + "=" + digest, True)
    return value
def {note_error}(label, context, with_message):
    error = getattr(context, "value", None) or getattr(context, "exception", None)
    kind = type(error).__qualname__
    {note_answer}(label, (kind, str(error)) if with_message else kind)
def {fill}(context, error):
    if hasattr(context, "fill_unfilled"):
        context.fill_unfilled((type(error), error, error.__traceback__))
    else:
        context.exception = error
"""
"""Helpers for a file with wrong assertions.

A key decides whether a value is left as it is, or changed so that equality notices; `other_error`
returns an error unrelated to the expected one.
"""


class Names(Record):
    """Random names and values, the same throughout one file."""

    is_same: str
    helper: str
    keep: str
    """Function that changes a variable, until `restore` returns its value."""
    restore: str
    kept: str
    other_error: str
    settle: str
    """Function that reports, and returns whether the original assertion would have failed."""
    note: str
    """Function that reports the value that a test computes to compare with, as a digest."""
    note_answer: str
    """Function that reports the value under test, as a digest, or `~` and its type if that is no
    literal."""
    note_error: str
    """Function that reports the type of the error that was raised, and its message."""
    fill: str
    """Function that gives the context of `raises(…) as caught` the error that was raised."""
    report: str
    """Function by which an assertion reports whether it held."""
    watch: str
    """Function that records which functions of a module must not be replaced."""
    factor: int
    prime: int
    same_key: int
    """Key that leaves values as they are."""
    other_key: int
    """Key that changes values."""
    near: int
    far: int
    text: str
    place: int
    """Position of the change in a text or a collection."""
    inner: bool
    """Whether an item of a collection is changed, instead of one added."""


FUNCTIONS = (
    *("is_same", "helper", "keep", "restore", "kept", "other_error", "settle", "note", "fill"),
    *("note_answer", "note_error", "report", "watch"),
)


def random_names(rng: random.Random) -> Names:
    """Return names and values that cannot be guessed."""
    # From 9,990 on there is a factor for which every key gives an odd number.
    factor, prime = rng.randrange(1_000, 9_990), 10_007
    keys = rng.sample(range(100, 999), 899)
    return Names(
        **{name: f"_{rng.getrandbits(48):012x}" for name in FUNCTIONS},
        factor=factor,
        prime=prime,
        same_key=next(key for key in keys if key * factor % prime % 2),
        other_key=next(key for key in keys if not key * factor % prime % 2),
        near=rng.choice((1, 1, 2, 3, 4, 5)),
        far=rng.randrange(10_000_019, 99_999_989),
        text=random_word(rng),
        place=rng.randrange(6),
        inner=rng.random() < 0.5,
    )


def render_helpers(names: Names) -> str:
    """Return the source of the helpers for a file with wrong assertions."""
    return HELPERS.format_map({field: getattr(names, field) for field in names.__struct_fields__})


def change_python_literal(value: object, rng: random.Random, *, far: bool = False) -> object:
    """Return an unequal value of the same type; the value itself if there is none.

    `far`: so different that no tolerance makes them equal, and that no text contains it by chance.
    """
    match value:
        case bool():
            return not value
        case int() | float() if far:
            return value + 3 * abs(value) + rng.randrange(10_000_019, 99_999_989)
        case int() | float() if abs(value) > 1e9:
            return value * (3 if isinstance(value, float) else 1) + rng.randrange(1_003, 9_973)
        case int() | float():
            return value + _choose_step(value, rng)
        case str():
            return _change_text(value, rng, far=far)
        case bytes():
            return change_text(value.decode("latin-1"), rng).encode("latin-1")
        case None:
            return rng.choice((0, "", False, change_text("", rng)))
        case dict() | list() | tuple() | set():
            return _change_collection(value, rng, far=far)
        case _:
            return value


def _choose_step(value: float, rng: random.Random) -> int:
    """Return a step to a plausible number: of the same sign, and about as long."""
    size, grain = abs(value), choose_number_grain(value, rng)
    steps = [grain * count for count in (-9, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 9)]
    steps = [step for step in steps if step >= -size]
    steps = [step for step in steps if len(str(int(size + step))) == len(str(int(size)))] or [grain]
    step = rng.choice(steps)
    return -step if value < 0 else step


def _change_text(value: str, rng: random.Random, *, far: bool) -> str:
    """Return another text: one that looks plausible, or has another letter or more of them."""
    if not far and rng.random() < 0.85:
        return change_text(value, rng)
    positions = [
        index
        for index, character in enumerate(value)
        if character.isascii() and character.isalnum()
    ]
    if positions and not far:
        position = rng.choice(positions)
        characters = string.digits if value[position].isdigit() else string.ascii_lowercase
        new_character = rng.choice(characters.replace(value[position].lower(), ""))
        return (
            value[:position]
            + (new_character.upper() if value[position].isupper() else new_character)
            + value[position + 1 :]
        )
    position = rng.randint(0, len(value))
    return value[:position] + random_word(rng) + value[position:]


def _change_collection(value: Any, rng: random.Random, *, far: bool) -> object:
    """Change one of its items; an empty collection gets an item."""
    if not value:
        item = rng.choice((0, 1, None, "", change_text("", rng)))
        return {change_text("", rng): item} if isinstance(value, dict) else type(value)([item])
    if isinstance(value, dict):
        key = rng.choice(list(value))
        return {**value, key: change_python_literal(value[key], rng, far=far)}
    if isinstance(value, set):
        replaced = rng.choice(sorted(value, key=repr))
        changed = change_python_literal(replaced, rng, far=far)
        return value - {replaced} if changed in value else {*value - {replaced}, changed}
    changed_index = rng.randrange(len(value))
    return type(value)(
        change_python_literal(item, rng, far=far) if index == changed_index else item
        for index, item in enumerate(value)
    )


def random_word(rng: random.Random) -> str:
    """Return random letters that no text contains by chance."""
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(5, 9)))


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
"""Assertions met by one call of many: only a call that nobody makes must fail."""
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
"""Warnings that tests often expect; a wrong one of these does not stand out."""
SWALLOWING = frozenset({*EXPECTING, "suppress", "deprecated_call", "assertWarnsRegex"})


def read_call(statement: ast.stmt) -> ast.Call | None:
    """Return the call that a statement consists of, awaited or not."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    value = value.value if isinstance(value, ast.Await) else value
    return value if isinstance(value, ast.Call) else None


def called_name(node: ast.expr) -> str | None:
    """Return the last name of the callee: `raises` of `pytest.raises(…)`."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else None


def chain_names(call: ast.Call) -> list[str]:
    """Return the names that a chain calls, last first.

    `is_equal_to` and `assert_that` of `assert_that(x).is_equal_to(3)`.
    """
    names, node = list[str](), cast("ast.expr", call)
    while isinstance(node, (ast.Call, ast.Attribute)):
        if isinstance(node, ast.Call):
            names.append(called_name(node) or "")
            node = node.func
        else:
            node = node.value
    return names


def may_be_met_by_many(statement: ast.stmt) -> bool:
    """Return whether many values may meet the expectation: `== IsPositive()`,
    `raises(Exception)`."""
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
    names = (
        ast.unparse(operand.func) if isinstance(operand, ast.Call) else "" for operand in compared
    )
    anything = (
        isinstance(operand, ast.Attribute) and operand.attr == "ANY" for operand in compared
    )
    return any(anything) or any(name.rpartition(".")[2][:1].isupper() for name in names)


# Detect what a Python test depends on: its name, its file, its neighbours.
#
# A copy of such a test under another name may have another result through no fault of the code
# under test. It is trusted only if the reference agrees.


TestFunction = ast.FunctionDef | ast.AsyncFunctionDef

_READS_ITS_NAME = re.compile(
    r"request\.(?:node|function|module|path|fspath)\b|_testMethodName|\bself\.id\(\)"
    r"|PYTEST_CURRENT_TEST|\b\w*snapshot\w*|\b\w+_regression\b|approvaltests|\bverify\w*\("
    r"|__file__\)?(?:\.\w+\(\))*\.(?:stem|name|with_\w+)\b|basename\(__file__|open\(__file__"
    r"|__file__\)?\.(?:read_|open)|\bgetsource|\blinecache\b|lineno\b|currentframe|_getframe"
    r"|inspect\.stack|co_name|\.r?glob\(|\.iterdir\(|\blistdir\(|\bscandir\(|os\.walk\("
)
"""Ways to read a test's name, the text of its file or what is beside it."""
_CLASS_ENDS = re.compile(r"(?:Tests?|TestCase|Specs?|Suite|Should)$")
_CLASS_STARTS = re.compile(r"(?:Describe|When|Should|Spec|It|Check)(?=[A-Z_])")


def find_class(body: list[ast.stmt], names: Sequence[str]) -> ast.ClassDef | None:
    """Return the class at a path of nested class names; the last of each name counts."""
    found_class: ast.ClassDef | None = None
    for name in names:
        inner = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
        if not inner:
            return None
        found_class, body = inner[-1], inner[-1].body
    return found_class


def find_function(body: list[ast.stmt], name: str) -> TestFunction | None:
    """Return the last function of that name."""
    functions = [
        node
        for node in body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    ]
    return functions[-1] if functions else None


def reads_test_names(text: str) -> bool:
    """Return whether code may read the name of a test, its file or what is beside it."""
    return _READS_ITS_NAME.search(text) is not None


def names_itself(function: TestFunction, classes: Iterable[str], path: str) -> bool:
    """Return whether a test has its own name, its class's or its file's in a string."""
    stem = path.rpartition("/")[2].removesuffix(".py")
    own_names = (stem, function.name, *classes)
    strings = (
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return any(name in string for string in strings for name in own_names)


def named_elsewhere(tree: ast.Module) -> set[str]:
    """Return names that are used in a file: a function of that name cannot be renamed alone."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def names_without_functions(tree: ast.Module) -> set[str]:
    """Return names that a module assigns or imports: `test_total = make_test(3)`."""
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    return imported | set(_bound_names(tree.body))


def first_place(tree: ast.Module) -> int:
    """Return the index after the docstring and `__future__` imports."""
    future_imports = [
        index
        for index, node in enumerate(tree.body)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]
    return max([ast.get_docstring(tree) is not None, *(index + 1 for index in future_imports)])


def new_class_name(name: str, rng: random.Random) -> str:
    """Return a random class name with the prefix or suffix by which the old one was found."""
    digits = f"{rng.getrandbits(48):012x}"
    if name.startswith("Test"):
        return f"Test{digits}"
    if end := _CLASS_ENDS.search(name):
        return f"C{digits}{end[0]}"
    start = _CLASS_STARTS.match(name)
    return f"{start[0] if start else name}{digits}"


def new_test_name(name: str, rng: random.Random) -> str:
    """Return a random test name that is found like the old one: most projects want a `test`
    prefix."""
    digits = f"{rng.getrandbits(48):012x}"
    if name.startswith("test"):
        return f"test_{digits}"
    return f"t{digits}_test" if name.endswith("_test") else f"{name}_{digits}"


def new_test_names(names: Iterable[str], rng: random.Random) -> dict[str, str]:
    """Return new names that sort as the old ones do: unittest runs tests in that order."""
    old = sorted(names)
    plain = [name for name in old if name.startswith("test")]
    renamed = dict(zip(plain, sorted(new_test_name(name, rng) for name in plain), strict=True))
    return renamed | {name: new_test_name(name, rng) for name in old if name not in renamed}


def _bound_names(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield names that are assigned in a module or a class."""
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        yield from (target.id for target in targets if isinstance(target, ast.Name))


# The sites of assertions in Python tests: statements that may be made wrong, one comparison each.
#
# Compound assertions are split first, without changing their meaning:
# `assert a and b` becomes two, `assert a == b == c` becomes two, `assert all(…)` becomes a loop,
# `if bad: pytest.fail()` becomes an assertion, and each item of a short literal list is compared
# separately.


MAX_ITEMS = 12
"""Maximum number of items of a literal collection that are compared one by one."""
FAILING = frozenset({"fail", "AssertionError"})
"""`pytest.fail()`, `self.fail()`, `raise AssertionError`."""


class AssertionSite(Record):
    """A statement of a test that may be changed."""

    body: list[ast.stmt]
    """The statement list that contains it."""
    statement: ast.stmt
    sure: bool
    """Whether it always runs if everything before it does: in no branch or loop."""
    guarded: bool
    """Whether code around it may see it fail.

    `except AssertionError: retry()`, or whatever calls a function inside a test.
    """


def list_sites(
    body: list[ast.stmt], *, sure: bool = True, guarded: bool = False
) -> Iterator[AssertionSite]:
    """Yield the statements of a function, including all its blocks and nested functions."""
    for statement in list(body):
        yield AssertionSite(body=body, statement=statement, sure=sure, guarded=guarded)
        if isinstance(statement, (ast.Return, ast.Raise)):
            return
        for block, runs, watched in _inner_blocks(statement):
            yield from list_sites(block, sure=sure and runs, guarded=guarded or watched)


def _inner_blocks(statement: ast.stmt) -> Iterator[tuple[list[ast.stmt], bool, bool]]:
    """Yield the blocks of a statement: whether each always runs, and whether failures may be
    seen."""
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
    """Split compound assertions in functions, in place."""
    splitter = _AssertionSplitter(rng)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for _, block in _list_blocks(node):
                block[:] = [part for statement in block for part in splitter.split(statement)]
    ast.fix_missing_locations(tree)


_READS_MESSAGES = re.compile(r"AssertionError|failureException|pytester|testdir")
_READS_DOCSTRINGS = re.compile(r"__doc__|getdoc|doctest|shortDescription")


def drop_explanations(tree: ast.Module, source: str) -> None:
    """Remove messages and docstrings of tests, in place, unless the file may read them.

    They often state what is right: `assert total([1, 2]) == 4, "1 + 2 is 3"`.
    """
    drops_messages = not _READS_MESSAGES.search(source)
    drops_docstrings = not _READS_DOCSTRINGS.search(source)
    for node in ast.walk(tree):
        match node:
            case ast.Assert() if drops_messages:
                node.msg = None
            case ast.Call(func=ast.Attribute(attr=name)) if drops_messages and name in INVERSES:
                node.keywords = [keyword for keyword in node.keywords if keyword.arg != "msg"]
                if name in ("assertEqual", "assertNotEqual", "assertIn", "assertIs"):
                    del node.args[2:]
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Module():
                if drops_docstrings and ast.get_docstring(node, clean=False) is not None:
                    node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]


def _list_blocks(node: ast.AST) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Yield every list of statements in a function, without those of nested functions."""
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
    """Splits statements; invents names for values that are used twice."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def split(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """Yield the parts of a statement, equivalent to the whole."""
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
        """Split `a == b == c` into `a == b` and `b == c`, each evaluated once, in order."""
        left: ast.expr = chain.left
        last = len(chain.ops) - 1
        for number, (op, compared) in enumerate(zip(chain.ops, chain.comparators, strict=True)):
            right = compared
            if number < last and not isinstance(compared, ast.Constant):
                # The left side is evaluated first in a comparison, and here too.
                assignment, left = self._keep(left)
                yield assignment
                assignment, right = self._keep(compared)
                yield assignment
            comparison = ast.Compare(left=left, ops=[op], comparators=[copy.deepcopy(right)])
            yield from self._split_equality(_assert(comparison, original))
            left = copy.deepcopy(right)

    def _split_all(self, items: ast.GeneratorExp, original: ast.Assert) -> Iterator[ast.stmt]:
        """Turn `all(f(x) for x in y)` into a loop, with its own names."""
        inner = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
        nested = any(isinstance(node, inner) for node in ast.walk(items) if node is not items)
        if nested or any(generator.is_async for generator in items.generators):
            yield original
            return
        targets = {
            node.id
            for generator in items.generators
            for node in ast.walk(generator.target)
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
        """Compare with a short literal collection, and then with each of its items."""
        sides = _equal_sides(statement)
        if sides is None:
            yield statement
            return
        literal_index, compared, literal = sides
        assignment, variable = self._keep(compared)
        changed = copy.deepcopy(statement)
        write_side(changed, 1 - literal_index, variable)
        yield assignment
        yield changed
        items = literal.items() if isinstance(literal, dict) else enumerate(literal)
        parts: list[ast.stmt] = [
            ast.Assert(test=parse_expression(f"{variable.id}[{key!r}] == {item!r}"), msg=None)
            for key, item in items
        ]
        name = variable.id
        check = f"type({name}) is {type(literal).__name__} and len({name}) == {len(literal)}"
        yield ast.If(test=parse_expression(check), body=parts, orelse=[])

    def _keep(self, value: ast.expr) -> tuple[ast.Assign, ast.Name]:
        name = self._make_name()
        assignment = ast.Assign(targets=[ast.Name(name, ast.Store())], value=value)
        return assignment, ast.Name(name, ast.Load())

    def _make_name(self) -> str:
        return f"_{self.rng.getrandbits(40):010x}"


def _assert_of_failure(statement: ast.stmt) -> ast.Assert | None:
    """Turn `if bad: raise AssertionError` into `assert not bad`."""
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
    """Return the index of a short literal collection in an equality, the other side, and its
    value."""
    for side_index in (1, 0):
        node, other_side = read_side(statement, side_index), read_side(statement, 1 - side_index)
        if (
            node is None
            or other_side is None
            or not isinstance(node, (ast.List, ast.Tuple, ast.Dict))
        ):
            continue
        try:
            literal = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
        if 1 < len(literal) <= MAX_ITEMS:
            return side_index, other_side, literal
    return None


def read_side(statement: ast.stmt, side_index: int) -> ast.expr | None:
    """Return a side of `assert a == b` or `self.assertEqual(a, b)`; None for another statement."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            return test.comparators[0] if side_index else test.left
        return None
    call = read_call(statement)
    name = called_name(call) if call is not None else None
    if call is None or name not in EQUALITIES - NEARLY - {"assertCountEqual"}:
        return None
    return call.args[side_index] if len(call.args) >= 2 else None


def write_side(statement: ast.stmt, side_index: int, value: ast.expr) -> None:
    if isinstance(statement, ast.Assert):
        compared = statement.test
        assert isinstance(compared, ast.Compare)
        if side_index:
            compared.comparators[0] = value
        else:
            compared.left = value
        return
    call = read_call(statement)
    assert call is not None
    call.args[side_index] = value


# Change what a Python assertion expects: a value, a call, an exception, the opposite.


class AssertionChange(Record):
    """How an assertion was made wrong."""

    how: str
    shows: bool = False
    """Whether code that reads the assertion can tell that it is wrong.

    As by a number far off, a word that no dictionary has, or a call of our helper.
    """
    by_chance: bool = False
    """Whether a right change may meet it by chance."""


def change_expected(
    statement: ast.stmt, names: Names, rng: random.Random
) -> AssertionChange | None:
    """Make an assertion expect something else; None if that is not possible."""
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
        literal_indexes = [index for index in (0, 1) if literal_value(call.args[index]) is not None]
        argument_index = literal_indexes[-1] if literal_indexes else 1
        far = name in NEARLY and not _is_off_by_one_step(call.args[argument_index], call)
        call.args[argument_index], change = _changed_value(
            call.args[argument_index], names, rng, far=far
        )
        return change
    if name in CALLED_WITH or name in HAS_CALLS:
        return _expect_other_call(call, rng, far=name in ANY_OF_CALLS)
    if name in EXPECTING and len(call.args) >= 2:
        call.args[0] = _other_error(call, names, rng)
        return AssertionChange(how="another exception expected", shows=_is_call(call.args[0]))
    if name == "assertIn" and len(call.args) >= 2 and is_constant(call.args[0]):
        call.args[0], change = _changed_value(call.args[0], names, rng, far=True)
        return change
    return None


def change_check(statement: ast.stmt, names: Names, rng: random.Random) -> str | None:
    """Change the last argument of a checking helper: `check(parse(text), 3)`.

    Or of a chain or a matcher: `assert_that(total).is_equal_to(3)`, `assert_that(x, equal_to(3))`.
    """
    call = _find_check(statement)
    if call is None:
        return None
    call.args[-1], change = _changed_value(call.args[-1], names, rng)
    return change.how


def helper_of(statement: ast.stmt) -> str | None:
    """Return the name of the checking helper if `change_check` has something to change."""
    call = read_call(statement)
    return called_name(call) if call is not None and _find_check(statement) else None


def _find_check(statement: ast.stmt) -> ast.Call | None:
    """Return the call whose last argument is the expected value."""
    call = read_call(statement)
    if call is None or not any(map(CHECKING.fullmatch, chain_names(call))):
        return None
    if len(call.args) < 2 and not isinstance(call.func, ast.Attribute):
        return None
    while call.args and isinstance(call.args[-1], ast.Call):
        call = call.args[-1]
    return call if call.args and literal_value(call.args[-1]) is not None else None


def invert_assertion(statement: ast.stmt) -> str | None:
    """Invert an assertion, and describe it; None if it has no opposite."""
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
    """Return the value of a literal in a 1-tuple, as it may be None; None for another
    expression."""
    try:
        return (ast.literal_eval(node),)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _change_compared(test: ast.expr, names: Names, rng: random.Random) -> AssertionChange | None:
    if not isinstance(test, ast.Compare):
        return None
    last = test.comparators[-1]
    if all(isinstance(op, ast.Eq) for op in test.ops):
        if literal_value(test.left) is not None and literal_value(last) is None:
            test.left, change = _changed_value(test.left, names, rng)
        else:
            test.comparators[-1], change = _changed_value(last, names, rng)
        return change
    if len(test.ops) == 1 and isinstance(test.ops[0], ast.In):
        if is_constant(test.left):
            test.left, change = _changed_value(test.left, names, rng, far=True)
            return change
        return _change_choices(last, rng)
    return None


def _change_choices(node: ast.expr, rng: random.Random) -> AssertionChange | None:
    """Change all items of a list, as in `assert status in (200, 204)`."""
    if not isinstance(node, (ast.List, ast.Tuple, ast.Set)) or not all(map(is_constant, node.elts)):
        return None
    values = [cast("ast.Constant", item).value for item in node.elts]
    for far in (False, False, False, True):
        changed = [change_python_literal(value, rng, far=far) for value in values]
        if values and not any(value in values for value in changed):
            node.elts = [ast.Constant(cast("Any", value)) for value in changed]
            how = f"{_show_value(changed)} expected for {_show_value(values)}"
            return AssertionChange(how=how, shows=far)
    return None


def _changed_value(
    node: ast.expr, names: Names, rng: random.Random, *, far: bool = False
) -> tuple[ast.expr, AssertionChange]:
    literal = literal_value(node)
    if literal is not None:
        changed = change_python_literal(literal[0], rng, far=far)
        if changed != literal[0]:
            how = f"{_show_value(changed)} expected for {_show_value(literal[0])}"
            return parse_expression(repr(changed)), AssertionChange(how=how, shows=far)
    if isinstance(node, ast.Call) and called_name(node) == "approx" and node.args:
        far = not _is_off_by_one_step(node.args[0], node)
        node.args[0], change = _changed_value(node.args[0], names, rng, far=far)
        return node, change
    arguments: list[ast.expr] = [node, ast.Constant(names.other_key)]
    arguments += [ast.Constant(far)] if far else []
    wrapped = ast.Call(func=ast.Name(names.helper, ast.Load()), args=arguments, keywords=[])
    how = f"another value expected for `{ast.unparse(node)[:60]}`"
    return wrapped, AssertionChange(how=how, shows=True)


def _is_off_by_one_step(expected: ast.expr, call: ast.Call) -> bool:
    """Return whether a small change of a number exceeds the tolerance of a call.

    Each function's own tolerance is less than 1 in 10,000.
    """
    literal = literal_value(expected)
    values = literal[0] if literal and isinstance(literal[0], (list, tuple)) else literal or ()
    keywords = [keyword for keyword in call.keywords if keyword.arg != "msg"]
    arguments = 1 if called_name(call) == "approx" else 2
    return (
        bool(values)
        and all(map(_is_strict, keywords))
        and len(call.args) == arguments
        and all(isinstance(value, (int, float)) and abs(value) < 1_000 for value in values)
    )


def _is_strict(keyword: ast.keyword) -> bool:
    """Return whether a tolerance is too small for a step of 1 between numbers below 1,000."""
    literal = literal_value(keyword.value)
    value = literal[0] if literal is not None else None
    if not isinstance(value, (int, float)):
        return False
    if keyword.arg in ("places", "decimal"):
        return value >= 1
    return (
        0
        <= value
        < {"abs": 0.5, "delta": 0.5, "atol": 0.5, "rel": 1e-4, "rtol": 1e-4}.get(
            keyword.arg or "", 0
        )
    )


def _expect_other_call(call: ast.Call, rng: random.Random, *, far: bool) -> AssertionChange | None:
    """Expect another argument of a mock: change an existing one, or add one."""
    if called_name(call) in HAS_CALLS:
        calls = call.args[0] if call.args else None
        if not isinstance(calls, (ast.List, ast.Tuple)) or not calls.elts:
            return None
        last = copy.deepcopy(calls.elts[-1])
        if not isinstance(last, ast.Call):
            return None
        calls.elts[-1] = call = last
    constant_indexes = [index for index, value in enumerate(call.args) if is_constant(value)]
    if constant_indexes:
        argument_index = rng.choice(constant_indexes)
        value = cast("ast.Constant", call.args[argument_index]).value
        call.args[argument_index] = ast.Constant(
            cast("Any", change_python_literal(value, rng, far=far))
        )
    else:
        extra: str | int = random_word(rng) if far or rng.random() < 0.5 else rng.randrange(100)
        call.args.append(ast.Constant(extra))
    return AssertionChange(how="another call expected", shows=far)


def _expect_other_error(
    statement: ast.With | ast.AsyncWith, names: Names, rng: random.Random
) -> AssertionChange | None:
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(statement)):
        return None
    for item in statement.items:
        call = item.context_expr
        if item.optional_vars is not None and not isinstance(item.optional_vars, ast.Name):
            continue
        if isinstance(call, ast.Call) and called_name(call) in EXPECTING and call.args:
            expected = ast.unparse(call.args[0])[:60]
            call.args[0] = _other_error(call, names, rng)
            how = f"another exception expected for `{expected}`"
            return AssertionChange(how=how, shows=_is_call(call.args[0]))
    return None


def _other_error(call: ast.Call, names: Names, rng: random.Random) -> ast.expr:
    """Return a built-in exception unrelated to the expected one.

    Unless the expected one is built in, its base class is known only at run time.
    """
    candidates = COMMON_WARNINGS if called_name(call) in WARNING else COMMON_ERRORS
    expected = call.args[0]
    nodes = expected.elts if isinstance(expected, ast.Tuple) else [expected]
    builtin_values = [
        getattr(builtins, node.id, None) for node in nodes if isinstance(node, ast.Name)
    ]
    classes = [
        value
        for value in builtin_values
        if isinstance(value, type) and issubclass(value, BaseException)
    ]
    if len(classes) == len(nodes):
        unrelated = [
            candidate
            for candidate in candidates
            if not any(
                issubclass(expected_class, candidate) or issubclass(candidate, expected_class)
                for expected_class in classes
            )
        ]
        if unrelated:
            # The first are the most frequent, and do not stand out.
            return ast.Name(rng.choice(unrelated[:4]).__name__, ast.Load())
    shuffled = rng.sample(candidates, len(candidates))
    arguments = [ast.Name(candidate.__name__, ast.Load()) for candidate in shuffled]
    return ast.Call(
        func=ast.Name(names.other_error, ast.Load()),
        args=[expected, ast.Constant(names.other_key), *arguments],
        keywords=[],
    )


def is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes, int, float))


def _is_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call)


def _show_value(value: object) -> str:
    text = repr(value)
    return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}…`"


# Wrong assertions that nothing distinguishes from right ones. By chance they may hold for a right
# change as well, so they complement those above and do not replace them.


_SWAPPED = {"sum": "max", "max": "min", "min": "max", "any": "all", "all": "any"}
_SWAPPED |= {"upper": "lower", "lower": "upper", "lstrip": "rstrip", "rstrip": "lstrip"}
_SETTINGS = frozenset({"encode", "decode", "open", "getattr", "hasattr", "import_module"})
"""Functions for which another text raises an exception."""
_EXPECTED_ARGUMENTS = dict.fromkeys(
    ("startswith", "endswith", "match", "search", "fullmatch", "assertIn"), 0
) | {"assertRegex": 1, "isclose": 1}
"""Index of the argument that says what a check expects."""
_TYPE_CHECKS = frozenset({"isinstance", "assertIsInstance"})
_COMMON_TYPES = ("str", "list", "dict", "tuple", "float", "set", "bytes")


def change_computation(node: ast.expr, rng: random.Random) -> ast.expr | None:
    """Return an expression that computes another value and reads like one of a person.

    None if it has no part for that. Its value may still be the same.
    """
    changed = copy.deepcopy(node)
    fixed = {
        id(inner)
        for outer in ast.walk(changed)
        for part in _fixed_parts(outer)
        for inner in ast.walk(part)
    }
    changes = list[tuple[ast.AST, str, object]]()
    for inner in ast.walk(changed):
        if id(inner) in fixed:
            continue
        match inner:
            case ast.Constant(value=bool() | int() | float() | str() | bytes() as value) if value:
                changes.append((inner, "value", change_python_literal(value, rng)))
            case ast.BinOp(op=ast.Add() | ast.Sub()) if _differ(inner.left, inner.right):
                changes.append((inner, "right", copy.deepcopy(inner.left)))
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _SWAPPED:
                field = "id" if isinstance(inner, ast.Name) else "attr"
                changes.append((inner, field, _SWAPPED[name]))
    if not changes:
        return None
    target, field, new_value = rng.choice(changes)
    setattr(target, field, new_value)
    return changed


def _fixed_parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield parts in which another value may raise an exception."""
    match node:
        case ast.Subscript():
            yield node.slice
        case ast.FormattedValue(format_spec=ast.expr() as specification):
            yield specification
        case ast.Call() if called_name(node) in _SETTINGS:
            yield from node.args
        case ast.keyword(arg="encoding" | "errors" | "key"):
            yield node.value


def _differ(left: ast.expr, right: ast.expr) -> bool:
    return ast.dump(left) != ast.dump(right)


def change_by_chance(
    statement: ast.stmt, rng: random.Random, module: ast.Module | None = None
) -> str | None:
    """Make an assertion wrong in a way that does not show, and describe it; None for others.

    `"word" in text`, a text it starts with, a pattern, a type, an exception's message. Another
    exception of the project is expected if the module names one.
    """
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return _change_message(statement, rng) or _expect_sibling(statement, rng, module)
    test = statement.test if isinstance(statement, ast.Assert) else None
    if place := _find_stated(test):
        return _change_text_at(*place, rng)
    call = test if isinstance(test, ast.Call) else read_call(statement)
    name = called_name(call) if call is not None else None
    if call is None or name is None:
        return None
    if name in _TYPE_CHECKS and len(call.args) == 2:
        expected = {node.id for node in ast.walk(call.args[1]) if isinstance(node, ast.Name)}
        how = f"another type expected than `{ast.unparse(call.args[1])[:60]}`"
        others = [other for other in _COMMON_TYPES if other not in expected]
        call.args[1] = ast.Name(rng.choice(others), ast.Load())
        return how
    index = _EXPECTED_ARGUMENTS.get(name)
    if index is None or len(call.args) <= index or not is_constant(call.args[index]):
        return None
    return _change_text_at(call.args, index, rng)


def _find_stated(test: ast.expr | None) -> tuple[ast.AST | list[ast.expr], str | int] | None:
    """Return where an assertion without a call of its own states what it expects."""
    match test:
        case ast.Compare(left=ast.Constant(), ops=[ast.In()]):
            return (test, "left")
        case ast.Compare(left=ast.Set() | ast.Constant(value=str()), ops=[ast.LtE()]):
            return (test, "left")
        case ast.Compare(ops=[ast.GtE()], comparators=[ast.Set() | ast.Constant(value=str())]):
            return (test.comparators, 0)
        case ast.Call(
            func=ast.Name(id="any"),
            args=[ast.GeneratorExp(elt=ast.Compare(ops=[ast.Eq() | ast.In()]) as item)],
        ):
            if is_constant(item.left):
                return (item, "left")
            return (item.comparators, 0)
        case ast.Compare(
            left=ast.Call(func=ast.Name(id="abs"), args=[ast.BinOp(op=ast.Sub()) as difference]),
            ops=[ast.Lt() | ast.LtE()],
        ):
            return (difference, "right")
    return None


def find_answer(test: ast.expr | None) -> tuple[ast.AST | list[ast.expr], str | int] | None:
    """Return where an assertion that `change_by_chance` changes has the value under test."""
    match test:
        case ast.Compare(left=ast.Call(args=[ast.BinOp(op=ast.Sub()) as difference])):
            return (difference, "left")
        case ast.Compare(ops=[ast.In() | ast.LtE()]):
            return (test.comparators, 0)
        case ast.Compare(ops=[ast.GtE()]):
            return (test, "left")
        case ast.Call(func=ast.Name(id="any"), args=[ast.GeneratorExp(generators=[first])]):
            return (first, "iter")
        case ast.Call(func=called, args=[_, *rest]):
            name = called_name(test)
            if name in _TYPE_CHECKS or name in ("isclose", "assertRegex"):
                return (test.args, 0)
            if rest:
                return (test.args, 1)
            return (called, "value") if isinstance(called, ast.Attribute) else None
    return None


def _change_message(statement: ast.With | ast.AsyncWith, rng: random.Random) -> str | None:
    """Expect another message of an exception: `raises(ShopError, match="no prices")`.

    Not if the exception is kept: pytest keeps none whose message is another one.
    """
    for item in statement.items:
        if item.optional_vars is not None:
            continue
        for keyword in getattr(item.context_expr, "keywords", ()):
            if called_name(item.context_expr) in EXPECTING and keyword.arg == "match":
                return _change_text_at(keyword, "value", rng)
    return None


def _expect_sibling(
    statement: ast.With | ast.AsyncWith, rng: random.Random, module: ast.Module | None
) -> str | None:
    """Expect another exception of the project, which the module names elsewhere."""
    calls = [item.context_expr for item in statement.items]
    named = {
        ast.unparse(node.args[0])
        for node in (ast.walk(module) if module is not None else ())
        if isinstance(node, ast.Call) and called_name(node) in EXPECTING and node.args
        if isinstance(node.args[0], (ast.Name, ast.Attribute))
    }
    for call in calls:
        if not isinstance(call, ast.Call) or called_name(call) not in EXPECTING or not call.args:
            continue
        expected = ast.unparse(call.args[0])
        others = sorted(name for name in named - {expected} if not hasattr(builtins, name))
        if others and expected in named and not hasattr(builtins, expected):
            other = rng.choice(others)
            call.args[0] = parse_expression(other)
            return f"`{other[:60]}` expected for `{expected[:60]}`"
    return None


def _change_text_at(
    parent: ast.AST | list[ast.expr], place: str | int, rng: random.Random
) -> str | None:
    """Change a literal text or number; a text to one that does not occur in the original."""
    node = parent[place] if isinstance(parent, list) else getattr(parent, str(place))  # type: ignore[index]
    literal = literal_value(node)
    if literal is None or literal[0] in ("", b""):
        return None
    original = literal[0]
    for _ in range(9):
        if isinstance(original, (int, float)) and not isinstance(original, bool):
            changed: object = original + rng.randrange(11, 98)
        elif isinstance(original, str):
            changed = _replace_word(original, rng)
        else:
            changed = change_python_literal(original, rng)
        is_part = isinstance(original, (str, bytes)) and (changed in original or not changed)  # type: ignore[operator]
        if changed == original or is_part or not _is_pattern(changed):
            continue
        if isinstance(parent, list):
            parent[int(place)] = parse_expression(repr(changed))
        else:
            setattr(parent, str(place), parse_expression(repr(changed)))
        return f"{_show_value(changed)} expected for {_show_value(original)}"
    return None


def _replace_word(text: str, rng: random.Random) -> str:
    """Replace a word of a text by another of a dictionary, so that a dictionary shows nothing."""
    words = list(_WORD.finditer(text))
    if not words:
        return change_text(text, rng)
    word, other = rng.choice(words), rng.choice((*_NOUNS, *COMMON_WORDS))
    if word[0][:1].isupper():
        other = other.upper() if word[0].isupper() else other.capitalize()
    return text[: word.start()] + other + text[word.end() :]


_WORD = re.compile(r"(?<![\\%{])\b[A-Za-z]{2,}\b")
_NOUNS = (
    *("window", "letter", "color", "price", "table", "green", "paper", "market", "river"),
    *("summer", "answer", "parcel", "signal", "branch", "garden", "silver", "travel", "bridge"),
)


def _is_pattern(value: object) -> bool:
    """Return whether a text can be a regular expression, as some of the changed ones must be."""
    try:
        re.compile(value if isinstance(value, (str, bytes)) else "")
    except re.error:
        return False
    return True


_MET_BY_MOST = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.NotEq, ast.NotIn, ast.IsNot)
"""Comparisons that hold for nearly every value, or for nearly every one on one side of a bound."""
_CALLS_MET_BY_MOST = re.compile(
    r"assert(?:Greater|Less)(?:Equal)?|assertNot(?:Equals?|In|IsInstance|AlmostEqual|Regex)"
    r"|assertIsNot(?:None)?|assert_array_less|assert_not_(?:equal|called)"
)


def is_met_by_most(statement: ast.stmt) -> bool:
    """Return whether an assertion holds for nearly every value: a bound, or any value but one.

    One answer may meet such an assertion and fail its inverse, whatever is right: a very large
    number, or an object that is equal to nothing.
    """
    call = read_call(statement)
    if call is not None:
        name = called_name(call) or ""
        if name in ("assertTrue", "assertFalse") and call.args:
            value = call.args[0]
            tested = value if name == "assertTrue" else ast.UnaryOp(op=ast.Not(), operand=value)
            return is_met_by_most(ast.Assert(test=tested, msg=None))
        return _CALLS_MET_BY_MOST.fullmatch(name) is not None
    test = statement.test if isinstance(statement, ast.Assert) else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = test.operand
        return (
            isinstance(inner, ast.Compare)
            and len(inner.ops) == 1
            and isinstance(inner.ops[0], tuple(OPPOSITE[op] for op in _MET_BY_MOST))
        )
    return isinstance(test, ast.Compare) and isinstance(test.ops[-1], _MET_BY_MOST)


def shows_when_inverted(statement: ast.stmt) -> bool:
    """Return whether code can fail the inverse of an assertion and meet the assertion itself.

    It looks unusual and still says what was expected, as `assert not text.startswith("Hello")` does
    or `total is not Unit.EUR`; or nearly every value meets the assertion.
    """
    if is_met_by_most(statement):
        return True
    match statement:
        case ast.Assert(test=ast.Compare(ops=[ast.Is() | ast.In()], comparators=[expected])):
            return literal_value(expected) not in ((None,), (True,), (False,))
    copied = copy.deepcopy(statement)
    return change_by_chance(copied, random.Random(0)) is not None  # noqa: S311 (nothing is kept)
