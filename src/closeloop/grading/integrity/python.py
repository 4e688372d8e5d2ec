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
    names_without_functions,
    new_class_name,
    new_test_name,
    new_test_names,
    sees_its_name,
)
from closeloop.grading.integrity.python_harness import (
    ProbeFile,
    assemble_probe,
    name_in_other_room,
    new_file,
    random_hex,
    result_name,
)
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


def build_probe(request: ProbeRequest) -> Probe | None:
    """The tests of every file that some of them are in, with a part of the assertions wrong."""
    # Both rooms have the same names, but for those of the files: a test is found in the other.
    rng = random.Random(f"{request.token} names")  # noqa: S311 (`secrets` made the token)
    places = {name: find_test(name, request) for name in (*request.fail_to_pass, *request.others)}
    known = {name: place for name, place in places.items() if place is not None}
    decisive = sorted(name for name in request.fail_to_pass if name in known)
    changed = choose_perturbed(decisive, request.token)
    files: list[ProbeFile] = []
    tests: list[ProbeTest] = []
    for path in sorted({place.path for place in known.values()}):
        here = {name: place for name, place in known.items() if place.path == path}
        tree = _parse_source(request.sources[path])
        if tree is None:
            continue
        made = new_file(path, tree, rng, next(iter(here.values())).package, request.room)
        new = _write_tests(made, here, changed, request, rng)
        if new:
            tests += [*new, *_add_controls(made, rng)]
            files.append(made)
    if not tests:
        return None
    empty = ast.Module(body=[], type_ignores=[])
    alone = new_file(files[0].path, empty, rng, files[0].package, request.room)
    alone = msgspec.structs.replace(alone, original="")
    tests += _add_controls(alone, rng)
    files.append(alone)
    rng.shuffle(files)
    return assemble_probe(request, files, tuple(tests), rng)


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


def _parse_source(source: str) -> ast.Module | None:
    try:
        return parse_python(source.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _write_tests(
    made: ProbeFile,
    places: dict[str, TestPlace],
    changed: Collection[str],
    request: ProbeRequest,
    rng: random.Random,
) -> list[ProbeTest]:
    """Rename every known test, and the classes they are in, and make assertions wrong in some.

    A test that others call keeps its name.
    """
    classes, used = _rename_classes(made.tree, places.values(), rng), named_elsewhere(made.tree)
    text = ast.unparse(made.tree)
    found = {name: _find_place(made.tree, place, classes) for name, place in places.items()}
    new = new_test_names({node.name for _, node in found.values() if node} - used, rng)
    made.renamed.update({**classes, **new})
    steady = {
        name: node is not None
        and not sees_its_name(node, places[name].classes, places[name].path, text)
        for name, (_, node) in found.items()
    }
    claims: dict[int, list[PythonClaim]] = {}
    tests: list[ProbeTest] = []
    for name, place in places.items():
        body, node = found[name]
        if node is None and not _is_inherited(made.tree, place, classes):
            continue
        inside = [classes.get(one, one) for one in place.classes]

        def title(function: str, inside: list[str] = inside, place: TestPlace = place) -> str:
            return result_name(made, inside, function, place.parameters)

        own = title(new.get(place.function, place.function))
        tests.append(
            ProbeTest(name=own, kind="copy", expect="pass", original=name, certain=steady[name])
        )
        if node is None or name not in changed:
            continue
        if id(node) not in claims:
            seed = f"{request.token} {place.path} {place.classes} {place.function}"
            coins = random.Random(seed)  # noqa: S311
            turned = request.room == 1
            claims[id(node)] = write_claims(node, made.names, coins, turned=turned)
            _add_proofs(body, claims[id(node)], new_test_name(place.function, rng))
        for claim in claims[id(node)]:
            tests += _expect_claim(claim, made, name, own, title, steady=steady[name])
    for _, node in found.values():
        if node is not None:
            node.name = new.get(node.name, node.name)
    return tests


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
