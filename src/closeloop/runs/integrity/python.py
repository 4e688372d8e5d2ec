"""Probes for pytest and unittest."""

from __future__ import annotations

import ast
import copy
import random
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from closeloop.model.record import Record
from closeloop.runs.integrity.perturb_python import perturb_test
from closeloop.runs.integrity.probe import Probe, ProbeRequest, ProbeTest, Results
from closeloop.runs.integrity.python_context import (
    TestFunction,
    drop_tests,
    find_class,
    find_function,
    first_place,
    named_elsewhere,
    names_without_functions,
    new_class_name,
    new_test_name,
    new_test_names,
    sees_its_name,
    shares_state,
)
from closeloop.runs.integrity.python_values import Names, random_names, render_helper
from closeloop.runs.testing.instrument import add_arguments, python_of
from closeloop.runs.testing.sheet import Status

MAX_PERTURBED = 40
"""Tests of which wrong copies are made, at the most: each is one more test to run."""
CONTROLS = 3
"""Of each kind, in each file."""

# Written for any Python that the project has, not for ours.
PYTEST_PLUGIN = """\
import json, os, pytest
PIPE = os.open({pipe!r}, os.O_WRONLY | os.O_APPEND)
def tell(line, write=os.write, pipe=PIPE, encode=json.dumps):
    write(pipe, (encode(line) + "\\n").encode())
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.args[:] = {files!r}
    for name, value in (("keyword", ""), ("markexpr", ""), ("deselect", None), ("maxfail", 0),
                        ("lf", False), ("failedfirst", False), ("collectonly", False),
                        ("continue_on_collection_errors", True)):
        if hasattr(config.option, name):
            setattr(config.option, name, value)
def pytest_runtest_logreport(report):
    tell([report.nodeid, report.when, report.outcome, hasattr(report, "wasxfail")])
"""
UNITTEST_RUNNER = """\
import json, os, sys, unittest
PIPE = os.open({pipe!r}, os.O_WRONLY | os.O_APPEND)
def tell(test, status, write=os.write, pipe=PIPE, encode=json.dumps):
    write(pipe, (encode([test.id(), "call", status, False]) + "\\n").encode())
class Result(unittest.TextTestResult):
    def addSuccess(self, test): tell(test, "passed"); super().addSuccess(test)
    def addFailure(self, test, err): tell(test, "failed"); super().addFailure(test, err)
    def addError(self, test, err): tell(test, "failed"); super().addError(test, err)
    def addSkip(self, test, reason): tell(test, "skipped"); super().addSkip(test, reason)
    def addExpectedFailure(self, test, err): tell(test, "skipped")
    def addUnexpectedSuccess(self, test): tell(test, "failed"); super().addUnexpectedSuccess(test)
    def addSubTest(self, test, subtest, err):
        if err is not None: tell(test, "failed")
        super().addSubTest(test, subtest, err)
sys.path[0] = os.getcwd()
suite = unittest.TestSuite()
for root, module in {modules!r}:
    if root not in sys.path: sys.path.insert(0, root)
    try:
        suite.addTests(unittest.defaultTestLoader.loadTestsFromName(module))
    except Exception as error:
        print(module, repr(error), file=sys.stderr)
sys.exit(not unittest.TextTestRunner(resultclass=Result, verbosity=2).run(suite).wasSuccessful())
"""


class TestPlace(Record):
    """Where a test is written."""

    path: str
    classes: tuple[str, ...]
    function: str
    parameters: str = ""
    """`[1-2]` of a parametrized test."""
    package: tuple[str, ...] | None = None
    """For unittest: the packages that its module is imported from."""


class _File(Record):
    """One probe file in the making."""

    path: str
    tree: ast.Module
    names: Names
    package: tuple[str, ...] | None = None
    """For unittest: the packages that the original is imported from."""


def build_probe(request: ProbeRequest) -> Probe | None:
    """Copies, wrong copies and controls for every file that the fail-to-pass tests are in."""
    rng = random.Random(request.token)  # noqa: S311 (the token is from `secrets`)
    places = {name: find_test(name, request) for name in (*request.fail_to_pass, *request.others)}
    known = {name: place for name, place in places.items() if place is not None}
    files: list[_File] = []
    tests: list[ProbeTest] = []
    perturbed = {name for name in request.fail_to_pass if name in known}
    perturbed = set(rng.sample(sorted(perturbed), min(len(perturbed), MAX_PERTURBED)))
    for path in sorted({known[name].path for name in known}):
        here = {name: place for name, place in known.items() if place.path == path}
        tree = _parse(request.sources[path])
        if tree is None:
            continue
        wrong = {name: place for name, place in here.items() if name in perturbed}
        for make, chosen in ((_copy_tests, here), (_perturb_tests, wrong)):
            made = _new_file(path, copy.deepcopy(tree), rng, next(iter(here.values())).package)
            new = make(made, chosen, rng)
            if new:
                tests += [*new, *_add_controls(made, rng)]
                files.append(made)
    if not any(test.kind == "copy" for test in tests):
        return None
    alone = _new_file(files[0].path, ast.Module(body=[], type_ignores=[]), rng, files[0].package)
    tests += _add_controls(alone, rng)
    files.append(alone)
    rng.shuffle(files)
    return _assemble(request, files, tuple(tests), rng)


def read_results(report: bytes) -> Results:
    """A test passed when its call did, and nothing around it failed."""
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
        if when == "call" or status != "passed":
            name = re.sub(r"^[^:\[]*/", "", name)
            known = results.get(name)
            results[name] = status if known in (None, "passed") else known
    return results


def find_test(name: str, request: ProbeRequest) -> TestPlace | None:
    """Where a test id of pytest or unittest leads; None where no source of it is at hand."""
    if request.runner == "unittest":
        *module, suite, function = name.split(".") if name.count(".") > 1 else ("", "", "")
        path = _source("/".join(module) + ".py", request)
        if path is None:
            return None
        package = tuple(module[:-1])
        return TestPlace(path=path, classes=(suite,), function=function, package=package)
    head, bracket, parameters = name.partition("[")
    file, *parts = head.split("::")
    path = _source(file, request)
    if path is None or not parts:
        return None
    *classes, function = parts
    return TestPlace(
        path=path, classes=tuple(classes), function=function, parameters=bracket + parameters
    )


def _source(file: str, request: ProbeRequest) -> str | None:
    """The path of a file that an id names from the runner's root, which may not be ours."""
    if file in request.sources:
        return file
    found = [path for path in request.sources if path.endswith(f"/{file}")]
    return found[0] if len(found) == 1 else None


def _new_file(
    beside: str, tree: ast.Module, rng: random.Random, package: tuple[str, ...] | None
) -> _File:
    folder, slash, _ = beside.rpartition("/")
    path = f"{folder}{slash}test_{_hex(rng)}.py"
    return _File(path=path, tree=tree, names=random_names(rng), package=package)


def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _copy_tests(made: _File, places: dict[str, TestPlace], rng: random.Random) -> list[ProbeTest]:
    """Rename every known test, and the classes they are in; one that others call keeps its name."""
    classes, used = _rename_classes(made.tree, places.values(), rng), named_elsewhere(made.tree)
    text = ast.unparse(made.tree)
    found = {name: _find_place(made.tree, place, classes)[1] for name, place in places.items()}
    new = new_test_names({node.name for node in found.values() if node} - used, rng)
    tests = []
    for name, place in places.items():
        node = found[name]
        if node is None and not _is_inherited(made.tree, place, classes):
            continue
        inside = [classes.get(one, one) for one in place.classes]
        id_ = _result_name(made, inside, new.get(place.function, place.function), place.parameters)
        certain = node is not None and not sees_its_name(node, place.classes, place.path, text)
        tests.append(
            ProbeTest(name=id_, kind="copy", expect="pass", original=name, certain=certain)
        )
    for node in found.values():
        if node is not None:
            node.name = new.get(node.name, node.name)
    return tests


def _perturb_tests(
    made: _File, places: dict[str, TestPlace], rng: random.Random
) -> list[ProbeTest]:
    """Put wrong copies where the tests were, and leave all other tests out."""
    classes, text = _rename_classes(made.tree, places.values(), rng), ast.unparse(made.tree)
    wrong = dict[tuple[tuple[str, ...], str], list[tuple[str, str, bool]]]()
    additions: list[tuple[list[ast.stmt], TestFunction]] = []
    for place in places.values():
        body, node = _find_place(made.tree, place, classes)
        if node is None or (place.classes, place.function) in wrong:
            continue
        ways = wrong.setdefault((place.classes, place.function), [])
        steady = not sees_its_name(node, place.classes, place.path, text)
        alone = not shares_state(node, made.tree)
        names = msgspec.structs.replace(made.names, always_far=not alone)
        for one in perturb_test(node, names, rng):
            one.function.name = new_test_name(place.function, rng)
            additions.append((body, one.function))
            certain = one.certain and steady and (alone or one.kind != "inverted")
            ways.append((one.function.name, one.how, certain))
    drop_tests(made.tree)
    rng.shuffle(additions)
    for body, function in additions:
        body.append(function)
    return [
        ProbeTest(
            name=_result_name(
                made, [classes.get(one, one) for one in place.classes], function, place.parameters
            ),
            kind="perturbed",
            expect="fail",
            original=name,
            how=how,
            certain=certain,
        )
        for name, place in places.items()
        for function, how, certain in wrong.get((place.classes, place.function), ())
    ]


def _rename_classes(
    tree: ast.Module, places: Iterable[TestPlace], rng: random.Random
) -> dict[str, str]:
    """New names for the classes that hold tests, wherever the file speaks of them."""
    wanted = {place.classes[0] for place in places if place.classes}
    names = {name: new_class_name(name, rng) for name in sorted(wanted)}
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


def _add_controls(made: _File, rng: random.Random) -> list[ProbeTest]:
    """Tests that pass and tests that fail whatever the code under test does."""
    tests, functions = [], []
    for right in (True, False):
        for _ in range(rng.randint(1, CONTROLS)):
            first, second, name = rng.randrange(999), rng.randrange(999), f"test_{_hex(rng)}"
            result = first + second + (0 if right else rng.randrange(1, 99))
            functions.append((name, f"int('{first}') + {second} == {result}"))
            tests.append((name, right))
    unittest = made.package is not None
    suite = f"Test{_hex(rng)}" if unittest else ""
    own = "self" if unittest else ""
    lines = [f"def {name}({own}):\n assert {claim}" for name, claim in functions]
    text = "\n".join(lines)
    if unittest:
        body = text.replace("\n", "\n ")
        text = f"class {suite}(__import__('unittest').TestCase):\n {body}"
    for node in ast.parse(text).body:
        made.tree.body.insert(rng.randint(first_place(made.tree), len(made.tree.body)), node)
    return [
        ProbeTest(
            name=_result_name(made, [suite] if unittest else [], name),
            kind="control",
            expect="pass" if right else "fail",
        )
        for name, right in tests
    ]


def _render(made: _File) -> str:
    """The file's text, with our own helpers in front. Tests keep their order: some rely on it."""
    names = made.names
    helper = render_helper(names)
    text = ast.unparse(ast.fix_missing_locations(made.tree))
    future = re.findall(r"^from __future__ import .*$", text, re.MULTILINE)
    for line in future:
        text = text.replace(line, "", 1)
    docstring = ast.get_docstring(made.tree, clean=False)
    head = "" if docstring is None else f"{docstring!r}\n"
    return "\n".join([head, *future, helper, text, ""])


def _assemble(
    request: ProbeRequest, made: list[_File], tests: tuple[ProbeTest, ...], rng: random.Random
) -> Probe:
    files = {file.path: _render(file) for file in made}
    module = f"m{_hex(rng)}"
    own = f"{request.folder.removeprefix(request.root).strip('/')}/{module}.py"
    if request.runner == "unittest":
        modules = [(_import_root(file, request.root), _module(file)) for file in made]
        files[own] = UNITTEST_RUNNER.format(pipe=request.pipe, modules=modules)
        python = python_of(request.command) or "python"
        return Probe(files=files, command=f"{python} {request.folder}/{module}.py", tests=tests)
    listed = [f"{request.root}/{file.path}" for file in made]
    files[own] = PYTEST_PLUGIN.format(pipe=request.pipe, files=listed)
    option, env = f"-p {module}", {"PYTHONPATH": request.folder}
    command = add_arguments(request.command, "pytest", option)
    if command is None:
        command, env = request.command, env | {"PYTEST_ADDOPTS": option}
    command = re.sub(r"\bPYTHONPATH=(['\"]?)", rf"PYTHONPATH=\1{request.folder}:", command)
    return Probe(files=files, command=command, env=env, tests=tests)


def _import_root(file: _File, root: str) -> str:
    """The folder that a module's packages lie in."""
    folders = file.path.split("/")[:-1]
    return "/".join((root, *folders[: len(folders) - len(file.package or ())]))


def _module(file: _File) -> str:
    return ".".join((*(file.package or ()), file.path.rpartition("/")[2].removesuffix(".py")))


def _result_name(made: _File, classes: Sequence[str], function: str, parameters: str = "") -> str:
    """As the report of the probe names a test."""
    if made.package is not None:
        return ".".join((_module(made), *classes, function))
    return "::".join((made.path.rpartition("/")[2], *classes, function)) + parameters


def _hex(rng: random.Random) -> str:
    return f"{rng.getrandbits(48):012x}"
