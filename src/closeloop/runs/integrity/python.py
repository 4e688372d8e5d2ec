"""Probes for pytest and unittest."""

from __future__ import annotations

import ast
import copy
import random
import re
from collections.abc import Iterable, Sequence

import msgspec

from closeloop.model.record import Record
from closeloop.runs.integrity.perturb_python import HELPER, Names, TestFunction, perturb_test
from closeloop.runs.integrity.probe import Probe, ProbeRequest, ProbeTest, Results
from closeloop.runs.testing.instrument import add_arguments, python_of
from closeloop.runs.testing.sheet import Status

MAX_PERTURBED = 40
"""Tests of which wrong copies are made, at the most: each is one more test to run."""
CONTROLS = 3
"""Of each kind, in each file."""

# Written for any Python that the project has, not for ours.
PYTEST_PLUGIN = """\
import json, os
PIPE = os.open({pipe!r}, os.O_WRONLY | os.O_APPEND)
def tell(line, write=os.write, pipe=PIPE, encode=json.dumps):
    write(pipe, (encode(line) + "\\n").encode())
def pytest_configure(config):
    config.args[:] = {files!r}
    for name, value in (("keyword", ""), ("markexpr", ""), ("deselect", None), ("maxfail", 0),
                        ("lf", False), ("failedfirst", False), ("collectonly", False)):
        if hasattr(config.option, name):
            setattr(config.option, name, value)
pytest_configure.tryfirst = True
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
    suite.addTests(unittest.defaultTestLoader.loadTestsFromName(module))
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
    return _File(path=path, tree=tree, names=_random_names(rng), package=package)


def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _copy_tests(made: _File, places: dict[str, TestPlace], rng: random.Random) -> list[ProbeTest]:
    """Rename every known test, and the classes they are in."""
    renamed: dict[tuple[tuple[str, ...], str], str] = {}
    classes = _rename_classes(made.tree, places.values(), rng)
    tests = []
    for name, place in places.items():
        key = (place.classes, place.function)
        if key not in renamed:
            node = _find_function(made.tree, [classes.get(c, c) for c in place.classes], key[1])
            if node is None:
                continue
            renamed[key] = node.name = _test_name(place.function, rng)
        inside = [classes.get(one, one) for one in place.classes]
        id_ = _result_name(made, inside, renamed[key], place.parameters)
        tests.append(ProbeTest(name=id_, kind="copy", expect="pass", original=name))
    return tests


def _perturb_tests(
    made: _File, places: dict[str, TestPlace], rng: random.Random
) -> list[ProbeTest]:
    """Put wrong copies where the tests were, and leave all other tests out."""
    classes = _rename_classes(made.tree, places.values(), rng)
    tests, wrong = [], dict[tuple[tuple[str, ...], str], list[tuple[str, str]]]()
    additions: list[tuple[list[ast.stmt], TestFunction]] = []
    for place in places.values():
        inside = tuple(classes.get(one, one) for one in place.classes)
        body, node = _find_body(made.tree, inside, place.function)
        if node is None or (inside, place.function) in wrong:
            continue
        ways = wrong.setdefault((inside, place.function), [])
        for one in perturb_test(node, made.names, rng):
            one.function.name = _test_name(place.function, rng)
            additions.append((body, one.function))
            ways.append((one.function.name, one.how))
    _drop_tests(made.tree)
    for body, function in additions:
        body.append(function)
    for name, place in places.items():
        inside = tuple(classes.get(one, one) for one in place.classes)
        for function_name, how in wrong.get((inside, place.function), ()):
            id_ = _result_name(made, inside, function_name, place.parameters)
            test = ProbeTest(name=id_, kind="perturbed", expect="fail", original=name, how=how)
            tests.append(test)
    return tests


def _rename_classes(
    tree: ast.Module, places: Iterable[TestPlace], rng: random.Random
) -> dict[str, str]:
    """New names for the classes that hold tests, wherever the file speaks of them."""
    wanted = {place.classes[0] for place in places if place.classes}
    names = {name: f"Test{_hex(rng)}" for name in sorted(wanted)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in names:
            node.name = names[node.name]
        elif isinstance(node, ast.Name) and node.id in names:
            node.id = names[node.id]
    return names


def _find_function(tree: ast.Module, classes: Sequence[str], name: str) -> TestFunction | None:
    return _find_body(tree, classes, name)[1]


def _find_body(
    tree: ast.Module, classes: Sequence[str], name: str
) -> tuple[list[ast.stmt], TestFunction | None]:
    """The function and the list of statements it stands in; the last of that name counts."""
    body = tree.body
    for wanted in classes:
        inner = [node for node in body if isinstance(node, ast.ClassDef) and node.name == wanted]
        if not inner:
            return body, None
        body = inner[-1].body
    found = [
        node
        for node in body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    ]
    return body, found[-1] if found else None


def _drop_tests(tree: ast.Module) -> None:
    """Leave out the tests that nothing else in the file names."""
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    named |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef)):
            continue
        kept = [
            one
            for one in node.body
            if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))
            or not one.name.startswith("test")
            or one.name in named
        ]
        node.body[:] = kept or [ast.Pass()]


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
        text = f"import unittest\nclass {suite}(unittest.TestCase):\n {body}"
    made.tree.body += ast.parse(text).body
    return [
        ProbeTest(
            name=_result_name(made, [suite] if unittest else [], name),
            kind="control",
            expect="pass" if right else "fail",
        )
        for name, right in tests
    ]


def _render(made: _File, rng: random.Random) -> str:
    """The file's text, its own helpers behind the imports, its tests in another order."""
    body = made.tree.body
    tests = [at for at, node in enumerate(body) if _is_test(node)]
    shuffled = rng.sample(tests, len(tests))
    made.tree.body = [
        body[shuffled[tests.index(at)]] if at in tests else node for at, node in enumerate(body)
    ]
    names = made.names
    helper = HELPER.format(
        name=names.helper, error=names.error, number=names.number, text=names.text
    )
    text = ast.unparse(ast.fix_missing_locations(made.tree))
    future = re.findall(r"^from __future__ import .*$", text, re.MULTILINE)
    for line in future:
        text = text.replace(line, "", 1)
    docstring = ast.get_docstring(made.tree, clean=False)
    head = "" if docstring is None else f"{docstring!r}\n"
    return "\n".join([head, *future, helper, text, ""])


def _is_test(node: ast.stmt) -> bool:
    """A plain test function, which may stand anywhere below what it uses."""
    return (
        isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name.startswith("test")
        and not node.decorator_list
        and not node.args.defaults
    )


def _assemble(
    request: ProbeRequest, made: list[_File], tests: tuple[ProbeTest, ...], rng: random.Random
) -> Probe:
    files = {file.path: _render(file, rng) for file in made}
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


def _test_name(name: str, rng: random.Random) -> str:
    """A new name that is found as the old one was: most projects want `test` in front."""
    return f"{'test_' if name.startswith('test') else name + '_'}{_hex(rng)}"


def _random_names(rng: random.Random) -> Names:
    return Names(
        helper=f"_{_hex(rng)}",
        error=f"E{_hex(rng)}",
        number=rng.randrange(1_003, 9_973),
        text=_hex(rng),
    )


def _hex(rng: random.Random) -> str:
    return f"{rng.getrandbits(48):012x}"
