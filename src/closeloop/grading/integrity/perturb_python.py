"""Make assertions of Python tests wrong on purpose: if a right one holds, these fail.

A random choice leaves each assertion of a test as it is or makes it wrong, and each reports
individually whether it held. A wrong one that fails does not end its test, so that everything after
it runs as usual. The other room holds the same test with each choice reversed. Nobody who reads
the test can tell right from wrong without knowing the answers.

A change is used only if by logic it must fail when the original holds: another value is expected of
an equality, an assertion is inverted, an exception is expected that nobody raises.

Changed values are close to the right ones as often as far from them: an object that equals all
small numbers or short texts must be distinguished from a right one.
"""

from __future__ import annotations

import ast
import copy
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, cast

from msgspec.structs import replace

from closeloop.grading.integrity.python_assertions import (
    EXPECTING,
    WARNING,
    AssertionChange,
    AssertionSite,
    Names,
    TestFunction,
    called_name,
    change_by_chance,
    change_check,
    change_computation,
    change_expected,
    change_python_literal,
    find_answer,
    helper_of,
    invert_assertion,
    list_sites,
    literal_value,
    may_be_met_by_many,
    read_call,
    read_side,
    shows_when_inverted,
    write_side,
)
from closeloop.records.record import Record
from closeloop.text.code_patterns import parse_expression, parse_python

# Shared functions that may run with a Python test: helpers, fixtures, base classes, hooks.
#
# Names decide: a function that a test names may be called by it, and so on transitively. This
# errs on the side of too many.


ALWAYS = re.compile(
    r"(?:async)?(?:set_?up|tear_?down)(?:_?class|_?module|_?method|_?function|_?test_?data)?"
    r"|pytest_\w+|__\w+__",
    re.IGNORECASE,
)
"""Names of functions that run although no test names them."""


class FunctionIndex:
    """The functions of some modules, and the names that each of them uses."""

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
        """Record the names that a class or variable is built from: `test_total = make_test(3)`."""
        if isinstance(statement, ast.ClassDef):
            attributes = [member for member in statement.body if not isinstance(member, _FUNCTIONS)]
            sources: list[ast.AST] = [*statement.bases, *statement.decorator_list, *attributes]
            names = [statement.name]
        else:
            sources = [statement.value]
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
        for name in names:
            self.assigned.setdefault(name, set()).update(
                used_name for node in sources for used_name in _names_in(node)
            )

    def called_by(self, name: str, home: ast.Module) -> set[int]:
        """Return the `id`s of functions that a call in a module reaches.

        Functions of the same module take precedence.
        """
        pending, functions = [(name, home)], set[int]()
        while pending:
            name, home = pending.pop()
            candidates = self.by_name.get(name, ())
            for function in [
                candidate for candidate in candidates if self.homes[id(candidate)] is home
            ] or candidates:
                if id(function) not in functions:
                    functions.add(id(function))
                    inner = self.homes[id(function)]
                    pending += [(used_name, inner) for used_name in self.named[id(function)]]
        return functions

    def reachable_from(self, names: Iterable[str]) -> list[TestFunction]:
        """Return the functions reachable from these names, and those that always run."""
        pending, visited = [*names], set[str]()
        functions = dict[int, TestFunction]()
        for function in self.always:
            functions[id(function)] = function
            pending += self.named[id(function)]
        while pending:
            name = pending.pop()
            if name in visited:
                continue
            visited.add(name)
            pending += self.assigned.get(name, ())
            for function in self.by_name.get(name, ()):
                functions[id(function)] = function
                pending += self.named[id(function)]
        return list(functions.values())


def names_of_test(function: TestFunction | None, name: str, classes: Iterable[str]) -> set[str]:
    """Return the names that a test uses, its own, and those of its classes."""
    return {name, *classes, *(_names_in(function) if function is not None else ())}


def list_outer_functions(tree: ast.Module | ast.ClassDef) -> Iterator[TestFunction]:
    """Yield the functions and methods of a module, without nested functions."""
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
    """Return the modules that tests import, even indirectly, and the `conftest.py` files above."""
    folders = {file.rpartition("/")[0] for file in files}
    imported_texts = {
        path: text
        for path, text in helpers.items()
        if path.rpartition("/")[2] == "conftest.py"
        and any(_is_above(path.rpartition("/")[0], folder) for folder in folders)
    }
    stems = {path: _module_stem(path) for path in helpers}
    pending = [*sources, *imported_texts.values()]
    while pending:
        imported = list_imported_names(pending.pop())
        for path, stem in stems.items():
            if path not in imported_texts and stem in imported:
                imported_texts[path] = helpers[path]
                pending.append(helpers[path])
    return imported_texts


def list_imported_names(text: str) -> set[str]:
    """Return all words in a module's imports."""
    return set(re.findall(r"\w+", " ".join(_IMPORTS.findall(text))))


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
    """One assertion of a test, as written in a probe."""

    label: str
    """Random label under which it reports."""
    opposite: str
    """Label in the other room, where it is right if it is wrong here."""
    how: str
    """What was made wrong; empty if nothing was."""
    sure: bool
    """Whether it is always reached if the test ends."""
    certain: bool
    """False if code around it may see it fail, or if a helper or an object's own equality decides.
    """
    met_by_many: bool = False
    """Whether one value may satisfy both the original and the changed assertion."""
    is_computed: bool = False
    """Whether a function that is made wrong computes what it expects; that value is reported too.
    """
    shows: bool = False
    """Whether code that reads it can tell that it was made wrong."""
    own: bool = False
    """Whether we added it; it does not depend on the code under test."""
    proofs: tuple[TestFunction, TestFunction] | None = None
    """For a helper: a test of it that must pass and one that must fail, whatever the change."""


class RoomPlan(Record):
    """What a room makes wrong, beyond the random choices."""

    turned: bool
    """Whether each random choice is reversed."""
    helpers: frozenset[str] = frozenset()
    """Checking functions beside the tests that are called with a value that can be changed."""
    calls_helpers_wrong: bool = False
    """Whether all calls of such helpers are wrong in this room, and their own assertions right.

    In the other room it is the reverse: two wrongs might make a right.
    """
    imported: frozenset[str] = frozenset()
    """Names that some file imports; their values do not belong to one test alone."""
    computed: Mapping[str, bool] = {}
    """Functions that compute what tests expect, and whether each is made wrong in this room."""
    computed_visibly: frozenset[str] = frozenset()
    """Those of them that show whether they are wrong."""
    unnoticed: bool = False
    """Whether nothing made wrong may show, where a right change then may meet it by chance."""


class ClaimScope(Record):
    """The function and module that contain an assertion."""

    function: TestFunction
    module: ast.Module | None = None
    """None if others call the function: its arguments are theirs."""


def write_claims(
    function: TestFunction,
    names: Names,
    rng: random.Random,
    plan: RoomPlan,
    module: ast.Module | None = None,
) -> list[PythonClaim]:
    """Make some assertions of a test wrong, and let each report.

    One of our own follows, for tests that leave all asserting to others.
    """
    returns = any(isinstance(node, ast.Return) for node in _walk_own(function))
    claims, scope = [], ClaimScope(function=function, module=module)
    for site in list(list_sites(function.body)):
        claim = _write_claim(site, scope, names, rng, plan, returns=returns)
        if claim is not None:
            claims.append(claim)
    claims.append(_add_own(function, names, rng, sure=not returns, turned=plan.turned))
    return claims


def write_shared_claims(
    function: TestFunction, names: Names, rng: random.Random, plan: RoomPlan
) -> list[PythonClaim]:
    """Make some assertions of a function that tests call wrong.

    What it asserts may be meant to fail.
    """
    sites = list(list_sites(function.body, sure=False, guarded=True))
    scope = ClaimScope(function=function)
    claims = (_write_claim(site, scope, names, rng, plan) for site in sites)
    return [claim for claim in claims if claim is not None]


def _write_claim(
    site: AssertionSite,
    scope: ClaimScope,
    names: Names,
    rng: random.Random,
    plan: RoomPlan,
    *,
    returns: bool = False,
) -> PythonClaim | None:
    """Replace a statement by its assertion, right or wrong, with a report."""
    site = replace(site, sure=site.sure and not returns)
    for side in _list_called_sides(site.statement):
        if side[1] in plan.computed:
            return _write_computed_claim(site, side, names, rng, plan)
    if plan.unnoticed and (claim := _write_changed_computation(site, scope, names, rng, plan)):
        return claim
    wrong, is_wrong = copy.deepcopy(site.statement), (rng.random() < 0.5) != plan.turned
    change, proofs = _make_wrong(wrong, scope, names, rng, plan), None
    is_answer_noted = change is not None and change.by_chance
    if change is None and (how := change_check(wrong, names, rng)) is not None:
        change = AssertionChange(how=how, by_chance=True)
        if helper_of(site.statement) in plan.helpers:
            is_wrong = plan.calls_helpers_wrong
        if is_wrong:
            proofs = _prove_check(scope.function, site.statement, wrong, rng)
    if change is None:
        return None
    shows, met_by_many = change.shows, change.by_chance or may_be_met_by_many(site.statement)
    label, opposite = _make_labels(rng, turned=plan.turned)
    key = names.other_key if is_wrong else names.same_key
    statement = wrong if is_wrong else _make_right(site.statement, wrong, names)
    reported = _write_report(statement, label, key, names, guarded=site.guarded)
    index = site.body.index(site.statement)
    if is_answer_noted:
        _note_answer(reported, label, names)
    if origin := _change_origin(reported, scope, names, rng, plan, key):
        site.body[index], shows = reported, origin == "shows"
    else:
        hidden = _hide_expected(site.statement, reported, scope.function, names, key)
        site.body[index : index + 1] = hidden
    return PythonClaim(
        label=label,
        opposite=opposite,
        how=change.how if is_wrong else "",
        sure=site.sure,
        certain=not site.guarded and (not is_wrong or not met_by_many),
        met_by_many=met_by_many,
        shows=shows,
        proofs=proofs,
    )


def _make_wrong(
    statement: ast.stmt, scope: ClaimScope, names: Names, rng: random.Random, plan: RoomPlan
) -> AssertionChange | None:
    """Make a statement wrong, in a way that does not show if the plan says so."""
    if plan.unnoticed and (how := change_by_chance(statement, rng, scope.module)):
        return AssertionChange(how=how, by_chance=True)
    if change := change_expected(statement, names, rng):
        return change
    shows, how = shows_when_inverted(statement), invert_assertion(statement)
    return AssertionChange(how=how, shows=shows) if how else None


def _write_computed_claim(
    site: AssertionSite, side: tuple[int, str], names: Names, rng: random.Random, plan: RoomPlan
) -> PythonClaim:
    """Keep an assertion and report what it compares with, as the computing function may be
    wrong."""
    side_index, name = side
    labels = _make_labels(rng, turned=plan.turned)
    claim = _write_noted_claim(site, side_index, names, labels, is_wrong=plan.computed[name])
    how = f"another value computed by `{name}`" if claim.how else ""
    return replace(claim, how=how, shows=name in plan.computed_visibly)


def _write_changed_computation(
    site: AssertionSite, scope: ClaimScope, names: Names, rng: random.Random, plan: RoomPlan
) -> PythonClaim | None:
    """Compute another expected value, if it is no literal, and report it; None if impossible."""
    sides = [(side_index, read_side(site.statement, side_index)) for side_index in (1, 0)]
    if any(node is None or literal_value(node) for _, node in sides):
        return None
    if any(called_name(node) == "approx" for _, node in sides if node is not None):
        return None
    for side_index, node in sides:
        assignment = _find_computation(cast("ast.expr", node), scope.function)
        changed = change_computation(assignment.value if assignment else node, rng)  # type: ignore[arg-type]
        if changed is None:
            continue
        is_wrong = (rng.random() < 0.5) != plan.turned
        if is_wrong and assignment is not None:
            assignment.value = changed
        elif is_wrong:
            write_side(site.statement, side_index, changed)
        labels = _make_labels(rng, turned=plan.turned)
        return _write_noted_claim(site, side_index, names, labels, is_wrong=is_wrong)
    return None


def _find_computation(node: ast.expr, function: TestFunction) -> ast.Assign | None:
    """Return the only assignment of a local variable that is read only here."""
    if not isinstance(node, ast.Name) or _count_loads(node.id, function) != 1:
        return None
    inner = list(_walk_own(function))
    stores = [
        other
        for other in inner
        if isinstance(other, ast.Name) and other.id == node.id and isinstance(other.ctx, ast.Store)
    ]
    assignments = [
        statement
        for statement in inner
        if isinstance(statement, ast.Assign) and [*statement.targets] == stores
    ]
    return assignments[0] if len(stores) == len(assignments) == 1 else None


def _write_noted_claim(
    site: AssertionSite, side_index: int, names: Names, labels: tuple[str, str], *, is_wrong: bool
) -> PythonClaim:
    """Let an assertion report the value of one of its sides, too."""
    label, opposite = labels
    statement = copy.deepcopy(site.statement)
    note = cast("ast.Call", parse_expression(f"{names.note}({label!r})"))
    expected = cast("ast.expr", read_side(statement, side_index))
    note.args.append(expected)
    write_side(statement, side_index, note)
    key = names.other_key if is_wrong else names.same_key
    index = site.body.index(site.statement)
    site.body[index] = _write_report(statement, label, key, names, guarded=site.guarded)
    return PythonClaim(
        label=label,
        opposite=opposite,
        how=f"another value computed, by `{ast.unparse(expected)[:60]}`" if is_wrong else "",
        sure=site.sure,
        certain=not site.guarded and not is_wrong,
        met_by_many=True,
        is_computed=is_wrong,
    )


def _list_called_sides(statement: ast.stmt) -> list[tuple[int, str]]:
    """Return the sides of an equality that call a function by a plain name, each with the name."""
    sides = ((side_index, read_side(statement, side_index)) for side_index in (1, 0))
    return [
        (side_index, node.func.id)
        for side_index, node in sides
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]


def change_computing_functions(
    tests: Iterable[TestFunction],
    modules: Mapping[ast.Module, Names],
    rng: random.Random,
    *,
    turned: bool,
) -> tuple[dict[str, bool], frozenset[str]]:
    """Make functions wrong that only compute what tests expect.

    Return whether each is, by name, and those that show it. Code under test can call such a
    function too, so no room holds one both right and wrong.
    """
    sites = [site for test in tests for site in list_sites(test.body)]
    uses = Counter(name for site in sites for _, name in _list_called_sides(site.statement))
    wrong, visible = dict[str, bool](), set[str]()
    for name in sorted(uses):
        functions = [
            (node, names)
            for tree, names in modules.items()
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name == name and is_plain(node)
        ]
        if len(functions) != 1 or uses[name] != sum(_count_uses(name, tree) for tree in modules):
            continue
        (function, names), is_wrong = functions[0], (rng.random() < 0.5) != turned
        changes = _list_changes(function, rng)
        if not changes and (changes := _wrap_results(function, names, is_wrong)):
            visible.add(name)
        if changes:
            wrong[name] = is_wrong
            node, field, value = rng.choice(changes)
            if is_wrong:
                setattr(node, field, value)
    return wrong, frozenset(visible)


def is_plain(function: ast.FunctionDef) -> bool:
    """Return whether a function ends for any change of its values, and alone decides its result.

    It has no decorators, `while`, `yield`, `global` or `nonlocal`.
    """
    unsteady = (ast.While, ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal)
    return not function.decorator_list and not any(
        isinstance(node, unsteady) for node in ast.walk(function)
    )


def _count_uses(name: str, tree: ast.AST) -> int:
    """Count the mentions of a function in code and strings, without imports of it."""
    return sum(
        (isinstance(node, ast.Name) and node.id == name)
        or (isinstance(node, ast.Attribute) and node.attr == name)
        or (isinstance(node, ast.Constant) and node.value == name)
        or (isinstance(node, ast.alias) and node.asname is not None and node.name == name)
        for node in ast.walk(tree)
    )


def _list_changes(
    function: ast.FunctionDef, rng: random.Random
) -> list[tuple[ast.AST, str, object]]:
    """Return operands and numbers of a function that can be changed: node, field and new value.
    Only changes that are unlikely to raise an exception: code under test that calls it would
    raise too."""
    inner = [node for statement in function.body for node in ast.walk(statement)]
    fixed = {
        id(node)
        for ancestor in inner
        if isinstance(ancestor, _FIXED)
        for node in ast.walk(ancestor)
    }
    numbers = [node for node in inner if isinstance(node, ast.Constant) and id(node) not in fixed]
    changes = list[tuple[ast.AST, str, object]]()
    sums = [node for node in inner if isinstance(node, ast.BinOp)]
    for node in sums:
        is_sum = isinstance(node.op, (ast.Add, ast.Sub))
        if is_sum and ast.dump(node.left) != ast.dump(node.right):
            changes.append((node, "right", copy.deepcopy(node.left)))
    for number in numbers:
        if type(number.value) in (int, float):
            changes.append((number, "value", change_python_literal(number.value, rng)))
    return changes


_FIXED = (ast.Slice, ast.Subscript, ast.JoinedStr, ast.Expr)
"""Nodes in which another number may raise an exception."""


def _wrap_results(
    function: ast.FunctionDef, names: Names, is_wrong: bool
) -> list[tuple[ast.AST, str, object]]:
    """Pass the return values of a function through the changing helper, in both rooms alike."""
    returned = [node for node in _walk_own(function) if isinstance(node, ast.Return) and node.value]
    key = names.other_key if is_wrong else names.same_key
    for node in returned:
        call = cast("ast.Call", parse_expression(f"{names.helper}(None, {key})"))
        call.args[0] = cast("ast.expr", node.value)
        node.value = call
    return [(node, "value", node.value) for node in returned]


def _walk_own(function: TestFunction) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of nested functions and classes."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def _add_own(
    function: TestFunction, names: Names, rng: random.Random, *, sure: bool, turned: bool
) -> PythonClaim:
    """Append an assertion to a test that does not depend on the code under test."""
    first, second, coin = rng.randrange(999), rng.randrange(999), rng.random() < 0.5
    is_wrong, (label, opposite) = coin != turned, _make_labels(rng, turned=turned)
    total = first + second + rng.randrange(1, 99) * is_wrong
    statement = parse_python(f"assert int('{first}') + {second} == {total}").body[0]
    function.body.append(_write_report(statement, label, 0, names, guarded=False))
    how = "an assertion of its own that is wrong" if is_wrong else ""
    return PythonClaim(label=label, opposite=opposite, how=how, sure=sure, certain=True, own=True)


def _make_labels(rng: random.Random, *, turned: bool) -> tuple[str, str]:
    """Return the label of a claim in this room, and in the other."""
    first, second = f"{rng.getrandbits(32):08x}", f"{rng.getrandbits(32):08x}"
    return (second, first) if turned else (first, second)


def _make_right(original: ast.stmt, wrong: ast.stmt, names: Names) -> ast.stmt:
    """Return the original, in the form of the wrong one if that calls one of our functions."""
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
) -> ast.Try:
    """Wrap a statement so that it reports whether it held and the test continues.

    If code around it may see a failure, it fails whenever the original would have.
    """
    settled = f"if {names.settle}({label!r}, {key}, {{}}): raise"
    failed = settled.format(False) if guarded else f"{names.report}({label!r}, False)"
    passed = (
        f"{settled.format(True)} AssertionError" if guarded else f"{names.report}({label!r}, True)"
    )
    caught = "BaseException" if _expects_error(statement) or not guarded else "Exception"
    context = _caught_context(statement)
    fill = f"{names.fill}({context}, {names.kept}e)\n    " if context else ""
    handler = f"except {caught} as {names.kept}e:\n    {fill}{failed}"
    text = f"try:\n    pass\n{handler}\nelse:\n    {passed}"
    try_statement = cast("ast.Try", parse_python(text).body[0])
    try_statement.body = [statement]
    return try_statement


def _note_answer(reported: ast.Try, label: str, names: Names) -> None:
    """Let an assertion report the value under test, too: a right answer is the same in both rooms.

    An answer that differs between the rooms, and meets what is expected in each, was read there.
    """
    [statement] = reported.body
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        for item in statement.items:
            call = item.context_expr
            if called_name(call) not in EXPECTING - WARNING:
                continue
            item.optional_vars = item.optional_vars or ast.Name(f"{names.kept}c", ast.Store())
            with_message = any(keyword.arg == "match" for keyword in getattr(call, "keywords", ()))
            if isinstance(item.optional_vars, ast.Name):
                arguments = f"({label!r}, {item.optional_vars.id}, {with_message})"
                reported.body += parse_python(names.note_error + arguments).body
        return
    test = statement.test if isinstance(statement, ast.Assert) else read_call(statement)
    if place := find_answer(test):
        parent, field = place
        note = cast("ast.Call", parse_expression(f"{names.note_answer}({label!r})"))
        if isinstance(parent, list):
            note.args.append(parent[int(field)])
            parent[int(field)] = note
        else:
            note.args.append(getattr(parent, str(field)))
            setattr(parent, str(field), note)


def _expects_error(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Call) and called_name(node) in EXPECTING
        for node in ast.walk(statement)
    )


def _caught_context(statement: ast.stmt) -> str | None:
    """Return the variable that holds the error after `with raises(…) as caught`."""
    for item in statement.items if isinstance(statement, (ast.With, ast.AsyncWith)) else ():
        name = called_name(item.context_expr)
        if name in EXPECTING - WARNING and isinstance(item.optional_vars, ast.Name):
            return item.optional_vars.id
    return None


def _hide_expected(
    original: ast.stmt, reported: ast.stmt, function: TestFunction, names: Names, key: int
) -> list[ast.stmt]:
    """Change a variable that holds the expected value, not only the comparison.

    Code under test may inspect the variables of its caller.
    """
    claim = cast("ast.Try", reported).body[0]
    call = _find_changed_name(claim, names)
    if call is None or len(call.args) != 2:
        return [reported]
    name = cast("ast.Name", call.args[0]).id
    uses = sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(original))
    waits = any(isinstance(node, (ast.Await, ast.Yield)) for node in ast.walk(original))
    if uses != 1 or waits or name not in _local_names(function):
        return [reported]
    _replace_call(claim, call, call.args[0])
    before = parse_python(f"{name} = {names.keep}({name}, {key})").body
    cast("ast.Try", reported).finalbody = parse_python(f"{name} = {names.restore}()").body
    return [*before, reported]


def _find_changed_name(claim: ast.stmt, names: Names) -> ast.Call | None:
    """Return the only call by which an assertion changes the value of a variable."""
    calls = [
        call
        for call in ast.walk(claim)
        if isinstance(call, ast.Call) and called_name(call) == names.helper
    ]
    return calls[0] if len(calls) == 1 and isinstance(calls[0].args[0], ast.Name) else None


def _local_names(function: TestFunction) -> set[str]:
    """Return names bound in a function itself, without `global` and `nonlocal` ones."""
    arguments = function.args
    parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    names = {argument.arg for argument in parameters}
    nodes = list(_walk_own(function))
    names |= {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in nodes:
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
    """Return tests which show that a helper distinguishes two values, without the code under test.

    They do not reveal which value is right.
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


def invert_script(text: str, rng: random.Random) -> str | None:
    """Invert an assertion that a script always reaches; None if it has none."""
    tree, site = _choose_assertion(text, rng)
    if tree is None or site is None:
        return None
    invert_assertion(site.statement)
    return ast.unparse(tree)


def stop_at_assertion(text: str, rng: random.Random, exit_code: int) -> str | None:
    """Let a script end where `invert_script` inverts an assertion, to see whether it is reached."""
    tree, site = _choose_assertion(text, rng)
    if tree is None or site is None:
        return None
    site.body[site.body.index(site.statement)] = _make_exit(exit_code)
    return ast.unparse(tree)


def stop_after_imports(text: str, exit_code: int) -> str | None:
    """Let a script end after the imports at its beginning; None if it cannot be parsed."""
    try:
        tree = parse_python(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    position = 0
    for number, statement in enumerate(tree.body, 1):
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            position = number
        elif not _IMPORT_SETUP.match(ast.unparse(statement)):
            break
    tree.body.insert(position, _make_exit(exit_code))
    return ast.unparse(ast.fix_missing_locations(tree))


_IMPORT_SETUP = re.compile(r"""["']|sys\.path\b|os\.(?:environ|chdir)\b""")


def _make_exit(exit_code: int) -> ast.stmt:
    return parse_python(f"__import__('os')._exit({exit_code})").body[0]


def _choose_assertion(
    text: str, rng: random.Random
) -> tuple[ast.Module | None, AssertionSite | None]:
    """Parse a script and choose an assertion that it always reaches."""
    try:
        tree = parse_python(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None, None
    ending = _ENDING.search(text)
    max_line = text[: ending.start()].count("\n") + 1 if ending else len(text)
    sites = [
        site
        for site in list_sites(tree.body)
        if site.sure and not site.guarded and isinstance(site.statement, ast.Assert)
        if site.statement.lineno < max_line
    ]
    return tree, rng.choice(sites) if sites else None


_ENDING = re.compile(r"\b_?exit\b|\bquit\b|\bSystemExit\b|__debug__")


# Find where a variable gets the expected value: a literal is changed there, and not where it is
# compared, so that the process never holds the right value beside the wrong one.


MAX_COMBINATIONS = 5_000
Cell = tuple[list[ast.expr] | ast.Assign | ast.Return, int]
"""The position of an expression: an index in a list, or the statement whose value it is."""


class ParameterTable(Record):
    """One readable `parametrize` of a test."""

    call: ast.Call
    names: tuple[str, ...]
    rows: list[ast.expr]
    ids: tuple[str, ...] | None
    """Ids that pytest derives from the values, or that the file gives; None if unreadable."""
    has_given_ids: bool


def rename_parameters(
    function: TestFunction, module: ast.Module, known_ids: Collection[str], rng: random.Random
) -> dict[str, str]:
    """Give the rows of a parametrized test new ids; the old ones show the values, as `[a-1]`.
    Return the new ids by the old ones; none if the file does not show how the known ids are
    derived."""
    tables = list(_read_tables(function, module))
    renamed = {"": ""}
    added: list[tuple[ParameterTable, list[str]]] = []
    for table in reversed(tables):  # the last one comes first in an id
        if table is None or table.ids is None:
            return {}
        if len(renamed) * len(table.ids) > MAX_COMBINATIONS:
            return {}
        new_ids = [f"{rng.getrandbits(40):010x}" for _ in table.ids]
        added.append((table, new_ids))
        renamed = {
            f"{old_prefix}-{old_id}": f"{new_prefix}-{new_id}"
            for old_prefix, new_prefix in renamed.items()
            for old_id, new_id in zip(table.ids, new_ids, strict=True)
        }
    renamed = {f"[{old[1:]}]": f"[{new[1:]}]" for old, new in renamed.items() if old}
    if not renamed.keys() >= {*known_ids}:
        return {}
    for table, new_ids in added:
        for row in table.rows:
            if isinstance(row, ast.Call):
                row.keywords = [keyword for keyword in row.keywords if keyword.arg != "id"]
        ids = ast.List(elts=[ast.Constant(new_id) for new_id in new_ids], ctx=ast.Load())
        table.call.keywords = [ast.keyword(arg="ids", value=ids)]
    return renamed


def _change_origin(
    reported: ast.stmt,
    scope: ClaimScope,
    names: Names,
    rng: random.Random,
    plan: RoomPlan,
    key: int,
) -> Literal["hidden", "shows"] | None:
    """Change the values that a variable is bound to, if only one assertion reads it.

    Return whether that shows; None if nothing was changed.
    """
    claim = cast("ast.Try", reported).body[0]
    call = _find_changed_name(claim, names)
    if call is None or scope.module is None:
        return None
    name = cast("ast.Name", call.args[0]).id
    cells = _find_cells(name, claim, scope.function, scope.module, plan)
    if not cells:
        return None
    _replace_call(claim, call, call.args[0])
    shows = len(call.args) > 2
    for container, index in cells:
        value = cast(
            "ast.expr", container[index] if isinstance(container, list) else container.value
        )
        literal = literal_value(value)
        changed = (
            change_python_literal(literal[0], rng, far=len(call.args) > 2) if literal else None
        )
        if literal is None or changed == literal[0]:
            shows = True
            helper = ast.Name(names.helper, ast.Load())
            value = ast.Call(
                func=helper, args=[value, ast.Constant(key), *call.args[2:]], keywords=[]
            )
        elif key == names.other_key:
            value = parse_expression(repr(changed))
        if isinstance(container, list):
            container[index] = value
        else:
            container.value = value
    return "shows" if shows else "hidden"


def _find_cells(
    name: str, claim: ast.stmt, function: TestFunction, module: ast.Module, plan: RoomPlan
) -> list[Cell]:
    """Return the positions of all values of a variable; none if other code may read it."""
    if _count_loads(name, claim) != 1 or _count_loads(name, function) > 1:
        return []
    if name not in _local_names(function):
        is_shared = name in plan.imported or _count_loads(name, module) != 1
        return [] if is_shared else _find_assigned(name, module.body)
    nodes = list(_walk_own(function))
    stores = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
    stores = [node for node in stores if not isinstance(node.ctx, ast.Load)]
    if name in {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}:
        return [] if stores else _find_argument(name, function, module)
    if len(stores) != 1:
        return []
    loops = [
        loop for loop in nodes if isinstance(loop, ast.For) and stores[0] in ast.walk(loop.target)
    ]
    if not loops:
        return _find_assigned(name, (node for node in nodes if isinstance(node, ast.stmt)))
    target = loops[0].target
    items = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    if not all(isinstance(item, ast.Name) for item in items):
        return []
    bound_names = [cast("ast.Name", item).id for item in items]
    return _list_column(
        _find_rows(loops[0].iter, module), bound_names, name, alone=items[0] is target
    )


def _count_loads(name: str, tree: ast.AST) -> int:
    return sum(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for node in ast.walk(tree)
    )


def _find_assigned(name: str, statements: Iterable[ast.stmt]) -> list[Cell]:
    """Return the position of `want = 3`, if that is the only binding, and to a literal."""
    assignments = [
        statement
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
    ]
    match assignments:
        case [ast.Assign(targets=[ast.Name()], value=value) as only] if literal_value(value):
            return [(only, 0)]
    return []


def _find_argument(name: str, function: TestFunction, module: ast.Module) -> list[Cell]:
    """Return the column of the test's parameter table, or the value that a fixture returns."""
    tables = list(_read_tables(function, module))
    if None in tables:
        return []
    for table in filter(None, tables):
        if name in table.names:
            alone = isinstance(table.call.args[0], ast.Constant) and len(table.names) == 1
            cells = _list_column(table.rows, table.names, name, alone=alone)
            return cells if table.has_given_ids else []
    functions = list(list_outer_functions(module))
    users = [
        function
        for function in functions
        for node in ast.walk(function.args)
        if isinstance(node, ast.arg) and node.arg == name
    ]
    fixtures = [function for function in functions if function.name == name]
    returned = [
        node for fixture in fixtures for node in ast.walk(fixture) if isinstance(node, ast.Return)
    ]
    if len(fixtures) != 1 or users != [function] or len(returned) != 1:
        return []
    value = returned[0].value
    return [(returned[0], 0)] if value is not None and literal_value(value) else []


def _read_tables(function: TestFunction, module: ast.Module) -> Iterator[ParameterTable | None]:
    """Yield the parameter tables of a test; None for one that cannot be read."""
    for call in function.decorator_list:
        if not isinstance(call, ast.Call) or called_name(call) != "parametrize":
            continue
        keyword_names = {keyword.arg for keyword in call.keywords}
        names = literal_value(call.args[0]) if len(call.args) == 2 else None
        rows = _find_rows(call.args[1], module) if names else []
        if names is None or not rows or not keyword_names <= {"ids"}:
            yield None
            continue
        raw_names = (
            names[0].split(",") if isinstance(names[0], str) else cast("list[str]", names[0])
        )
        parameter_names = tuple(str(raw_name).strip() for raw_name in raw_names)
        given = call.keywords[0].value if keyword_names else None
        ids = tuple(_make_ids(rows, parameter_names) if given is None else _read_ids(given))
        is_readable = len(ids) == len({*ids}) == len(rows)
        if given is None and not is_readable:
            yield None
            continue
        yield ParameterTable(
            call=call,
            names=parameter_names,
            rows=rows,
            ids=ids if is_readable else None,
            has_given_ids=given is not None,
        )


def _read_ids(given: ast.expr) -> Iterator[str]:
    for node in given.elts if isinstance(given, (ast.List, ast.Tuple)) else []:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from filter(_is_shown_as_written, [node.value])


def _is_shown_as_written(text: str) -> bool:
    return text.isascii() and text.isprintable() and "\\" not in text


def _make_ids(rows: list[ast.expr], names: Sequence[str]) -> Iterator[str]:
    """Yield the ids that pytest derives from rows; fewer than rows if one cannot be derived."""
    for number, row in enumerate(rows):
        if isinstance(row, ast.Call) and called_name(row) == "param":
            if row.keywords:
                given_ids = [*_read_ids(ast.List([keyword.value for keyword in row.keywords]))]
                if len(given_ids) != 1 or row.keywords[0].arg != "id":
                    return
                yield given_ids[0]
                continue
            values = row.args
        else:
            has_columns = len(names) > 1 and isinstance(row, (ast.Tuple, ast.List))
            values = cast("ast.Tuple", row).elts if has_columns else [row]
        if len(values) != len(names):
            return
        parts = [_make_id(value, name, number) for value, name in zip(values, names, strict=True)]
        if None in parts:
            return
        yield "-".join(cast("list[str]", parts))


def _make_id(node: ast.expr, name: str, number: int) -> str | None:
    literal = literal_value(node)
    if literal is None:
        return None
    match literal[0]:
        case str(text):
            return text if _is_shown_as_written(text) else None
        case bool() | int() | float() | complex() | None:
            return str(literal[0])
        case bytes():
            return None
        case _:
            return f"{name}{number}"


def _find_rows(node: ast.expr, module: ast.Module) -> list[ast.expr]:
    """Return the items of a literal list, or of a module variable that holds one and is used
    once."""
    if isinstance(node, ast.Name) and _count_loads(node.id, module) == 1:
        values = [
            statement.value
            for statement in module.body
            if isinstance(statement, ast.Assign)
            and any(
                isinstance(target, ast.Name) and target.id == node.id
                for target in statement.targets
            )
        ]
        node = values[0] if len(values) == 1 else node
    items = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
    return [] if any(isinstance(item, ast.Starred) for item in items) else items


def _list_column(
    rows: list[ast.expr], names: Sequence[str], name: str, *, alone: bool
) -> list[Cell]:
    """Return the positions of one name's values in all rows; none if a row has another form."""
    cells = list[Cell]()
    for number, row in enumerate(rows):
        if isinstance(row, ast.Call) and called_name(row) == "param":
            items = row.args
        elif alone:
            cells.append((rows, number))
            continue
        else:
            items = row.elts if isinstance(row, (ast.Tuple, ast.List)) else []
        if len(items) != len(names) or any(isinstance(item, ast.Starred) for item in items):
            return []
        cells.append((items, names.index(name)))
    return cells
