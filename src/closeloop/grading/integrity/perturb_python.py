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
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import cast

from closeloop.grading.integrity.python_assertions import (
    EXPECTING,
    WARNING,
    AssertionSite,
    Names,
    TestFunction,
    called_name,
    change_check,
    change_expected,
    helper_of,
    invert_assertion,
    list_sites,
    literal_value,
    may_be_met_by_many,
    read_call,
)
from closeloop.records.record import Record
from closeloop.text.code_patterns import parse_python

# Which functions beside a Python test may run with it: helpers, fixtures, base classes, hooks.
#
# Names decide: a function that a test names may be called by it, and so on from there. That finds
# too much rather than too little.


ALWAYS = re.compile(
    r"(?:async)?(?:set_?up|tear_?down)(?:_?class|_?module|_?method|_?function|_?test_?data)?"
    r"|pytest_\w+|__\w+__",
    re.IGNORECASE,
)
"""Functions that run although no test names them."""


class FunctionIndex:
    """The functions of some modules, and what each of them names."""

    def __init__(self, modules: Iterable[ast.Module]) -> None:
        self.by_name: dict[str, list[TestFunction]] = {}
        self.always: list[TestFunction] = []
        self.named: dict[int, frozenset[str]] = {}
        self.assigned: dict[str, set[str]] = {}
        self.homes: dict[int, ast.Module] = {}
        for tree in modules:
            for function in list_outer_functions(tree):
                self.homes[id(function)] = tree
                self.by_name.setdefault(function.name, []).append(function)
                self.named[id(function)] = frozenset(_names_in(function))
                if ALWAYS.fullmatch(function.name) or _is_autouse(function):
                    self.always.append(function)
            for statement in tree.body:
                if isinstance(statement, (ast.Assign, ast.ClassDef)):
                    self._add_names(statement)

    def _add_names(self, statement: ast.Assign | ast.ClassDef) -> None:
        """What a class or a variable is made of: `test_total = make_test(3)`."""
        if isinstance(statement, ast.ClassDef):
            inside = [one for one in statement.body if not isinstance(one, _FUNCTIONS)]
            outside: list[ast.AST] = [*statement.bases, *statement.decorator_list, *inside]
            names = [statement.name]
        else:
            outside = [statement.value]
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
        for name in names:
            self.assigned.setdefault(name, set()).update(
                used for node in outside for used in _names_in(node)
            )

    def called_by(self, name: str, home: ast.Module) -> set[int]:
        """The `id`s of functions that a call in a module leads to, by way of those in it first."""
        waiting, functions = [(name, home)], set[int]()
        while waiting:
            name, home = waiting.pop()
            found = self.by_name.get(name, ())
            for function in [one for one in found if self.homes[id(one)] is home] or found:
                if id(function) not in functions:
                    functions.add(id(function))
                    inner = self.homes[id(function)]
                    waiting += [(used, inner) for used in self.named[id(function)]]
        return functions

    def reachable_from(self, names: Iterable[str]) -> list[TestFunction]:
        """The functions that these names lead to, with those that always run."""
        waiting, seen = [*names], set[str]()
        functions = dict[int, TestFunction]()
        for function in self.always:
            functions[id(function)] = function
            waiting += self.named[id(function)]
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            waiting += self.assigned.get(name, ())
            for function in self.by_name.get(name, ()):
                functions[id(function)] = function
                waiting += self.named[id(function)]
        return list(functions.values())


def names_of_test(function: TestFunction | None, name: str, classes: Iterable[str]) -> set[str]:
    """What a test names itself, and the classes it stands in."""
    return {name, *classes, *(_names_in(function) if function is not None else ())}


def list_outer_functions(tree: ast.Module | ast.ClassDef) -> Iterator[TestFunction]:
    """The functions and methods of a module, but for those inside functions."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from list_outer_functions(node)
        elif isinstance(node, (ast.If, ast.Try)):
            yield from list_outer_functions(ast.Module(body=node.body, type_ignores=[]))
            yield from list_outer_functions(ast.Module(body=node.orelse, type_ignores=[]))


def imported_helpers(
    helpers: Mapping[str, str], sources: Collection[str], files: Iterable[str]
) -> dict[str, str]:
    """The modules that tests import, directly or not, and the `conftest.py` above their files."""
    folders = {file.rpartition("/")[0] for file in files}
    chosen = {
        path: text
        for path, text in helpers.items()
        if path.rpartition("/")[2] == "conftest.py"
        and any(_is_above(path.rpartition("/")[0], folder) for folder in folders)
    }
    stems = {path: _module_stem(path) for path in helpers}
    waiting = [*sources, *chosen.values()]
    while waiting:
        imported = set(re.findall(r"\w+", " ".join(_IMPORTS.findall(waiting.pop()))))
        for path, stem in stems.items():
            if path not in chosen and stem in imported:
                chosen[path] = helpers[path]
                waiting.append(helpers[path])
    return chosen


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_IMPORTS = re.compile(
    r"^\s*(?:from\s+\S+\s+import\s+(?:\([^)]*\)|.*)|import\s+.*)|import_module\(.*|pytest_plugins.*",
    re.MULTILINE,
)


def _module_stem(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return folder.rpartition("/")[2] if name == "__init__.py" else name.removesuffix(".py")


def _is_above(folder: str, inner: str) -> bool:
    return not folder or inner == folder or inner.startswith(f"{folder}/")


def _is_autouse(function: TestFunction) -> bool:
    return any("autouse" in ast.unparse(decorator) for decorator in function.decorator_list)


def _names_in(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        match inner:
            case ast.Name():
                yield inner.id
            case ast.Attribute():
                yield inner.attr
            case ast.arg():
                yield inner.arg
            case ast.Constant(value=str(text)) if text.isidentifier():
                yield text  # `usefixtures("prices")`


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
    """False where something around it may see it fail, where a helper of the tests decides, or an
    object with an equality of its own."""
    met_by_many: bool = False
    """Whether the same value may satisfy it as it was and as it is."""
    own: bool = False
    """It is ours, and has nothing to do with the code under test."""
    proofs: tuple[TestFunction, TestFunction] | None = None
    """For a helper: a test of it that must pass and one that must fail, whatever the change."""


class RoomPlan(Record):
    """What a room makes wrong, where it is not the toss of a coin alone."""

    turned: bool
    """Whether each coin is turned over."""
    helpers: frozenset[str] = frozenset()
    """Functions beside the tests that check, called with a value that can be changed."""
    calls_helpers_wrong: bool = False
    """In one room all calls of such helpers are wrong, and what they assert is left as it is. In
    the other it is the other way round: two wrongs might make a right."""


def write_claims(
    function: TestFunction, names: Names, rng: random.Random, plan: RoomPlan
) -> list[PythonClaim]:
    """Make some assertions of a test wrong, and let each report.

    Behind them comes one of our own, for tests that leave all asserting to others.
    """
    returns = any(isinstance(node, ast.Return) for node in _walk_own(function))
    claims = []
    for site in list(list_sites(function.body)):
        claim = _write_claim(site, function, names, rng, plan, returns=returns)
        if claim is not None:
            claims.append(claim)
    claims.append(_add_own(function, names, rng, sure=not returns, turned=plan.turned))
    return claims


def write_shared_claims(
    function: TestFunction, names: Names, rng: random.Random, plan: RoomPlan
) -> list[PythonClaim]:
    """The same for a function that tests call: what it asserts may be meant to fail."""
    sites = list(list_sites(function.body, sure=False, guarded=True))
    claims = (_write_claim(site, function, names, rng, plan) for site in sites)
    return [claim for claim in claims if claim is not None]


def _write_claim(
    site: AssertionSite,
    function: TestFunction,
    names: Names,
    rng: random.Random,
    plan: RoomPlan,
    *,
    returns: bool = False,
) -> PythonClaim | None:
    """Put an assertion as it is, or made wrong, in the place of a statement."""
    wrong, is_wrong = copy.deepcopy(site.statement), (rng.random() < 0.5) != plan.turned
    how = change_expected(wrong, names, rng) or invert_assertion(wrong)
    proofs, many = None, may_be_met_by_many(site.statement)
    if how is None and (how := change_check(wrong, names, rng)) is not None:
        many = True
        if helper_of(site.statement) in plan.helpers:
            is_wrong = plan.calls_helpers_wrong
        if is_wrong:
            proofs = _prove_check(function, site.statement, wrong, rng)
    if how is None:
        return None
    label, opposite = _make_labels(rng, turned=plan.turned)
    key = names.other_key if is_wrong else names.same_key
    statement = wrong if is_wrong else _make_right(site.statement, wrong, names)
    written = _write_report(statement, label, key, names, guarded=site.guarded)
    at = site.body.index(site.statement)
    site.body[at : at + 1] = _hide_expected(site.statement, written, function, names, key)
    return PythonClaim(
        label=label,
        opposite=opposite,
        how=how if is_wrong else "",
        sure=site.sure and not returns,
        certain=not site.guarded and (not is_wrong or not many),
        met_by_many=many,
        proofs=proofs,
    )


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
    function.body.append(_write_report(statement, label, 0, names, guarded=False))
    how = "an assertion of its own that is wrong" if is_wrong else ""
    return PythonClaim(label=label, opposite=opposite, how=how, sure=sure, certain=True, own=True)


def _make_labels(rng: random.Random, *, turned: bool) -> tuple[str, str]:
    """The label of a claim in this room, and in the other."""
    first, second = f"{rng.getrandbits(32):08x}", f"{rng.getrandbits(32):08x}"
    return (second, first) if turned else (first, second)


def _make_right(original: ast.stmt, wrong: ast.stmt, names: Names) -> ast.stmt:
    """The original, in the form of the wrong one where that calls one of our functions."""
    right = copy.deepcopy(wrong)
    keys = [
        call.args[1]
        for call in ast.walk(right)
        if isinstance(call, ast.Call) and called_name(call) in (names.helper, names.other_error)
    ]
    for key in keys:
        cast("ast.Constant", key).value = names.same_key
    return right if keys else original


def _write_report(
    statement: ast.stmt, label: str, key: int, names: Names, *, guarded: bool
) -> ast.stmt:
    """The statement, and a report whether it held; the test goes on in any case.

    Where something around it may see a failure, it fails if the original would have.
    """
    settled = f"if {names.settle}({label!r}, {key}, {{}}): raise"
    failed = settled.format(False) if guarded else f"{names.report}({label!r}, False)"
    held = (
        f"{settled.format(True)} AssertionError" if guarded else f"{names.report}({label!r}, True)"
    )
    caught = "BaseException" if _expects_error(statement) or not guarded else "Exception"
    context = _caught_context(statement)
    fill = f"{names.fill}({context}, {names.kept}e)\n    " if context else ""
    text = (
        f"try:\n    pass\nexcept {caught} as {names.kept}e:\n    {fill}{failed}\nelse:\n    {held}"
    )
    written = cast("ast.Try", parse_python(text).body[0])
    written.body = [statement]
    return written


def _expects_error(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Call) and called_name(node) in EXPECTING
        for node in ast.walk(statement)
    )


def _caught_context(statement: ast.stmt) -> str | None:
    """The variable that holds the error after `with raises(…) as caught`."""
    for item in statement.items if isinstance(statement, (ast.With, ast.AsyncWith)) else ():
        name = called_name(item.context_expr)
        if name in EXPECTING - WARNING and isinstance(item.optional_vars, ast.Name):
            return item.optional_vars.id
    return None


def _hide_expected(
    original: ast.stmt, written: ast.stmt, function: TestFunction, names: Names, key: int
) -> list[ast.stmt]:
    """Change a variable that holds what is expected, not only what it is compared with.

    Code under test may look at the variables of its caller.
    """
    claim = cast("ast.Try", written).body[0]
    found = [
        call
        for call in ast.walk(claim)
        if isinstance(call, ast.Call) and called_name(call) == names.helper
    ]
    if len(found) != 1 or len(found[0].args) != 2 or not isinstance(found[0].args[0], ast.Name):
        return [written]
    name = found[0].args[0].id
    uses = sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(original))
    waits = any(isinstance(node, (ast.Await, ast.Yield)) for node in ast.walk(original))
    if uses != 1 or waits or name not in _local_names(function):
        return [written]
    _replace_call(claim, found[0], found[0].args[0])
    before = parse_python(f"{name} = {names.keep}({name}, {key})").body
    cast("ast.Try", written).finalbody = parse_python(f"{name} = {names.restore}()").body
    return [*before, written]


def _local_names(function: TestFunction) -> set[str]:
    """Names that are bound in a function itself, and not declared to be of another scope."""
    arguments = function.args
    listed = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    names = {argument.arg for argument in listed}
    own = list(_walk_own(function))
    names |= {
        node.id for node in own if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in own:
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            names -= set(node.names)
        if isinstance(node, ast.comprehension):
            names -= {inner.id for inner in ast.walk(node.target) if isinstance(inner, ast.Name)}
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            names -= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return names


def _replace_call(tree: ast.AST, call: ast.Call, value: ast.expr) -> None:
    for node in ast.walk(tree):
        for field, child in ast.iter_fields(node):
            if child is call:
                setattr(node, field, value)
            elif isinstance(child, list) and call in child:
                child[child.index(call)] = value


def _prove_check(
    function: TestFunction, right: ast.stmt, wrong: ast.stmt, rng: random.Random
) -> tuple[TestFunction, TestFunction] | None:
    """Tests that show that a helper tells two values apart, without the code under test.

    Which of the values is the right one cannot be read from them.
    """
    expected, changed = read_call(right), read_call(wrong)
    if expected is None or changed is None or len(expected.args) != 2:
        return None
    if literal_value(expected.args[1]) is None:
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
