"""Probes for pytest and unittest.

A room holds each test once, in a file of a random name. The original file only leads there while
the probe runs, so that code under test finds nothing to compare a test with.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from closeloop.grading.integrity.perturb_python import PythonClaim, write_claims
from closeloop.grading.integrity.probe import (
    Probe,
    ProbeRequest,
    ProbeTest,
    Results,
    choose_perturbed,
)
from closeloop.grading.integrity.python_context import (
    TestFunction,
    find_class,
    find_function,
    first_place,
    named_elsewhere,
    names_itself,
    names_without_functions,
    new_class_name,
    new_test_name,
    new_test_names,
    reads_test_names,
)
from closeloop.grading.integrity.python_harness import (
    ProbeFile,
    assemble_probe,
    name_in_other_room,
    new_file,
    new_helper,
    random_hex,
    result_name,
)
from closeloop.grading.integrity.python_reach import imported_helpers, names_of_test
from closeloop.grading.integrity.python_shared import SharedPythonClaims
from closeloop.grading.integrity.python_sites import split_assertions
from closeloop.grading.testing.suite_report import Status
from closeloop.python_trees import parse_python
from closeloop.records.record import Record

CONTROLS = 3
"""Of each kind, in each file."""


class TestPlace(Record):
    """Where a test is written."""

    path: str
    classes: tuple[str, ...]
    function: str
    parameters: str = ""
    """`[1-2]` of a parametrized test."""
    package: tuple[str, ...] | None = None
    """For unittest: the packages that its module is imported from."""


class ProbeSuite(Record):
    """The tests of one file, found in its tree."""

    made: ProbeFile
    places: Mapping[str, TestPlace]
    classes: Mapping[str, str]
    """New names of the classes that hold tests."""
    found: Mapping[str, tuple[list[ast.stmt], TestFunction | None]]
    """Where each test stands; no function for one that is inherited or imported."""


def build_probe(request: ProbeRequest) -> Probe | None:
    """The tests of every file that some of them are in, with a part of the assertions wrong."""
    # Both rooms have the same names, but for those of the files: a test is found in the other.
    rng = random.Random(f"{request.token} names")  # noqa: S311 (`secrets` made the token)
    places = {name: find_test(name, request) for name in (*request.fail_to_pass, *request.others)}
    known = {name: place for name, place in places.items() if place is not None}
    changed = choose_perturbed(
        [name for name in request.fail_to_pass if name in known], request.token
    )
    paths = sorted({place.path for place in known.values()})
    sources = {path: request.sources[path] for path in paths}
    packages = {place.path: place.package for place in known.values()}
    made = [
        new_file(path, tree, rng, packages[path], request.room)
        for path, tree in _parse_sources(sources, rng)
    ]
    beside = imported_helpers(request.helpers, sources.values(), paths)
    helpers = [new_helper(path, tree, rng) for path, tree in _parse_sources(beside, rng)]
    shared = SharedPythonClaims(request, [*made, *helpers])
    suites = [_find_tests(file, known, rng) for file in made]
    functions = {id(node) for suite in suites for node in _list_own(suite, changed)}
    files, tests = list[ProbeFile](), list[ProbeTest]()
    for suite in suites:
        new = _write_tests(suite, changed, functions, request, shared, rng)
        if new:
            tests += [*new, *_add_controls(suite.made, rng)]
            files.append(suite.made)
    if not tests:
        return None
    empty = ast.Module(body=[], type_ignores=[])
    alone = new_file(files[0].path, empty, rng, files[0].package, request.room)
    alone = msgspec.structs.replace(alone, original="")
    tests += _add_controls(alone, rng)
    files.append(alone)
    rng.shuffle(files)
    return assemble_probe(request, files, helpers, tuple(tests), rng)


def read_results(report: bytes) -> Results:
    """A test passed when its call did, and nothing around it failed; an assertion if it held."""
    results: Results = {}
    for line in report.splitlines():
        try:
            name, when, outcome, expected = msgspec.json.decode(
                line, type=tuple[str, str, str, bool]
            )
        except msgspec.MsgspecError:
            continue
        status: Status = "failed"
        if outcome == "passed":
            status = "passed"
        elif outcome == "skipped" or expected:
            status = "skipped"
        name = re.sub(r"^[^:\[]*/", "", name)
        if when.startswith("#"):
            name += when
            results[name] = status if results.get(name, status) == status else "mixed"
        elif when == "call" or status != "passed":
            known = results.get(name)
            results[name] = status if known in (None, "passed") else known
    return results


def find_test(name: str, request: ProbeRequest) -> TestPlace | None:
    """Where a test id of pytest or unittest leads; None where no source of it is at hand."""
    if request.runner == "unittest":
        *module, suite, function = name.split(".") if name.count(".") > 1 else ("", "", "")
        path = _find_source("/".join(module) + ".py", request)
        if path is None:
            return None
        package = tuple(module[:-1])
        return TestPlace(path=path, classes=(suite,), function=function, package=package)
    head, bracket, parameters = name.partition("[")
    file, *parts = head.split("::")
    path = _find_source(file, request)
    if path is None or not parts:
        return None
    *classes, function = parts
    return TestPlace(
        path=path, classes=tuple(classes), function=function, parameters=bracket + parameters
    )


def _find_source(file: str, request: ProbeRequest) -> str | None:
    """The path of a file that an id names from the runner's root, which may not be ours."""
    if file in request.sources:
        return file
    found = [path for path in request.sources if path.endswith(f"/{file}")]
    return found[0] if len(found) == 1 else None


def _parse_sources(
    sources: Mapping[str, str], rng: random.Random
) -> Iterator[tuple[str, ast.Module]]:
    """The trees of files, with each assertion alone; what cannot be parsed is left out."""
    for path, source in sorted(sources.items()):
        try:
            tree = parse_python(source.removeprefix("\ufeff"))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        split_assertions(tree, rng)
        yield path, tree


def _find_tests(made: ProbeFile, known: Mapping[str, TestPlace], rng: random.Random) -> ProbeSuite:
    """Find the known tests of a file, and rename the classes that they are in."""
    places = {name: place for name, place in known.items() if place.path == made.original}
    classes = _rename_classes(made.tree, places.values(), rng)
    found = {name: _find_place(made.tree, place, classes) for name, place in places.items()}
    return ProbeSuite(made=made, places=places, classes=classes, found=found)


def _list_own(suite: ProbeSuite, changed: Collection[str]) -> Iterator[TestFunction]:
    """The tests of a file that no other test may run; those that are changed never are shared."""
    used = named_elsewhere(suite.made.tree)
    for name, (_, node) in suite.found.items():
        if node is not None and (name in changed or node.name not in used):
            yield node


def _write_tests(
    suite: ProbeSuite,
    changed: Collection[str],
    functions: Collection[int],
    request: ProbeRequest,
    shared: SharedPythonClaims,
    rng: random.Random,
) -> list[ProbeTest]:
    """Rename every known test, and make assertions wrong in some; `functions` are all tests.

    A test that others call keeps its name.
    """
    made, used = suite.made, named_elsewhere(suite.made.tree)
    file_reads_names = reads_test_names(ast.unparse(made.tree))
    new = new_test_names({node.name for _, node in suite.found.values() if node} - used, rng)
    made.renamed.update({**suite.classes, **new})
    reached = {
        name: shared.reach(names_of_test(suite.found[name][1], place.function, place.classes))
        for name, place in suite.places.items()
    }
    claims = _write_own_claims(suite, changed, request, shared, rng)
    tests: list[ProbeTest] = []
    for name, place in suite.places.items():
        node = suite.found[name][1]
        if node is None and not _is_inherited(made.tree, place, suite.classes):
            continue
        inside = [suite.classes.get(one, one) for one in place.classes]

        def title(function: str, inside: list[str] = inside, place: TestPlace = place) -> str:
            return result_name(made, inside, function, place.parameters)

        own = title(new.get(place.function, place.function))
        called = [one for one in reached[name] if id(one) in claims and one is not node]
        beside = [one for one in reached[name] if id(one) not in functions]
        steady = node is not None and not (
            file_reads_names
            or shared.read_test_names(beside)
            or names_itself(node, place.classes, place.path)
        )
        tests.append(ProbeTest(name=own, kind="copy", expect="pass", original=name, certain=steady))
        if name not in changed:
            continue
        found = [*claims.get(id(node), ()), *shared.write(beside)]
        found += [
            msgspec.structs.replace(claim, sure=False, proofs=None)
            for one in called
            for claim in claims[id(one)]
        ]
        for claim in found:
            tests += _expect_claim(claim, made, name, own, title, steady=steady)
    for _, node in suite.found.values():
        if node is not None:
            node.name = new.get(node.name, node.name)
    return tests


def _write_own_claims(
    suite: ProbeSuite,
    changed: Collection[str],
    request: ProbeRequest,
    shared: SharedPythonClaims,
    rng: random.Random,
) -> dict[int, list[PythonClaim]]:
    """Make assertions wrong in the changed tests of a file, by the `id` of each."""
    claims: dict[int, list[PythonClaim]] = {}
    for name, place in suite.places.items():
        body, node = suite.found[name]
        if name in changed and node is not None and id(node) not in claims:
            seed = f"{request.token} {place.path} {place.classes} {place.function}"
            coins = random.Random(seed)  # noqa: S311 (`secrets` made the token)
            claims[id(node)] = write_claims(node, suite.made.names, coins, shared.plan)
            _add_proofs(body, claims[id(node)], new_test_name(place.function, rng))
    return claims


def _add_proofs(body: list[ast.stmt], claims: list[PythonClaim], name: str) -> None:
    """Put tests of the helpers that a test relies on beside it."""
    for claim in claims:
        for proof, ending in zip(claim.proofs or (), "ab", strict=False):
            proof.name = f"{name}{claim.label}{ending}"
            body.append(proof)


def _expect_claim(
    claim: PythonClaim,
    made: ProbeFile,
    original: str,
    own: str,
    title: Callable[[str], str],
    *,
    steady: bool,
) -> Iterator[ProbeTest]:
    """What must become of one assertion of a test, and of the tests that prove its helper."""
    proofs = [title(proof.name) for proof in claim.proofs or ()]
    for number, proof in enumerate(proofs):
        expect: Literal["pass", "fail"] = "fail" if number else "pass"
        yield ProbeTest(name=proof, kind="control", expect=expect, certain=False)
    yield ProbeTest(
        name=f"{own}#{claim.label}",
        kind="control" if claim.own else "perturbed" if claim.how else "copy",
        expect="fail" if claim.how else "pass",
        original=original,
        how=claim.how,
        certain=claim.certain and steady,
        opposite=f"{name_in_other_room(made, own)}#{claim.opposite}",
        proved_by=tuple(proofs),
        met_by_many=claim.met_by_many,
        optional=not claim.sure,
    )


def _rename_classes(
    tree: ast.Module, places: Iterable[TestPlace], rng: random.Random
) -> dict[str, str]:
    """New names for the classes that hold tests, wherever the file speaks of them."""
    wanted = {place.classes[0] for place in places if place.classes}
    names = {name: new_class_name(name, rng) for name in sorted(wanted)}
    plain = [name for name in names if name.startswith("Test")]
    # unittest runs classes in the order of their names.
    names |= zip(plain, sorted(names[name] for name in plain), strict=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in names:
            node.name = names[node.name]
        elif isinstance(node, ast.Name) and node.id in names:
            node.id = names[node.id]
    return names


def _find_place(
    tree: ast.Module, place: TestPlace, renamed: Mapping[str, str]
) -> tuple[list[ast.stmt], TestFunction | None]:
    """A test's function and the list of statements it stands in, in a base class maybe."""
    names = [renamed.get(name, name) for name in place.classes]
    if not names:
        return tree.body, find_function(tree.body, place.function)
    suite = find_class(tree.body, names)
    waiting, seen = [suite] if suite else [], set[str]()
    while waiting:
        suite = waiting.pop(0)
        if found := find_function(suite.body, place.function):
            return suite.body, found
        seen.add(suite.name)
        above = [base.id for base in suite.bases if isinstance(base, ast.Name)]
        bases = (find_class(tree.body, [name]) for name in above if name not in seen)
        waiting += [base for base in bases if base is not None]
    return tree.body, None


def _is_inherited(tree: ast.Module, place: TestPlace, renamed: Mapping[str, str]) -> bool:
    """Whether a test is no function of this file: imported, assigned, or made by a decorator."""
    names = [renamed.get(name, name) for name in place.classes]
    if not names:
        return place.function in names_without_functions(tree)
    return place.function.isidentifier() and find_class(tree.body, names) is not None


def _add_controls(made: ProbeFile, rng: random.Random) -> list[ProbeTest]:
    """Tests that pass and tests that fail whatever the code under test does."""
    tests, functions = [], []
    for right in (True, False):
        for _ in range(rng.randint(1, CONTROLS)):
            first, second, name = rng.randrange(999), rng.randrange(999), f"test_{random_hex(rng)}"
            result = first + second + (0 if right else rng.randrange(1, 99))
            functions.append((name, f"int('{first}') + {second} == {result}"))
            tests.append((name, right))
    unittest = made.package is not None
    suite = f"Test{random_hex(rng)}" if unittest else ""
    own = "self" if unittest else ""
    lines = [f"def {name}({own}):\n assert {claim}" for name, claim in functions]
    text = "\n".join(lines)
    if unittest:
        body = text.replace("\n", "\n ")
        text = f"class {suite}(__import__('unittest').TestCase):\n {body}"
    for node in parse_python(text).body:
        made.tree.body.insert(rng.randint(first_place(made.tree), len(made.tree.body)), node)
    return [
        ProbeTest(
            name=result_name(made, [suite] if unittest else [], name),
            kind="control",
            expect="pass" if right else "fail",
        )
        for name, right in tests
    ]
