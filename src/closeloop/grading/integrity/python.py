"""Probes for pytest and unittest.

A room holds each test once, in a file with a random name. The original file only re-exports it
while the probe runs, so that code under test finds nothing to compare a test with.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from closeloop.grading.integrity.perturb_python import (
    FunctionIndex,
    PythonClaim,
    RoomPlan,
    change_computing_functions,
    imported_helpers,
    list_imported_names,
    list_outer_functions,
    names_of_test,
    rename_parameters,
    write_claims,
    write_shared_claims,
)
from closeloop.grading.integrity.probe import (
    ROOMS,
    Probe,
    ProbeRequest,
    ProbeTest,
    Results,
    choose_perturbed,
)
from closeloop.grading.integrity.python_assertions import (
    FUNCTIONS,
    Names,
    TestFunction,
    drop_explanations,
    find_class,
    find_function,
    first_place,
    helper_of,
    named_elsewhere,
    names_itself,
    names_without_functions,
    new_class_name,
    new_test_name,
    new_test_names,
    random_names,
    reads_test_names,
    render_helpers,
    split_assertions,
)
from closeloop.grading.runner_reports import Status
from closeloop.grading.suite_run import add_runner_arguments, find_python_command
from closeloop.records.record import Record
from closeloop.text.code_patterns import parse_python

# The files of a probe for pytest or unittest, how they are run and what they report.


# Must run on the project's Python version, not only on ours.
_RECORDER = """\
import json, os
PIPE = os.open({pipe!r}, os.O_WRONLY | os.O_APPEND)
RUNNING = [""]
def tell(line, write=os.write, pipe=PIPE, encode=json.dumps):
    write(pipe, (encode(line) + "\\n").encode())
def record(label, held):
    tell([RUNNING[0], "#" + label, "passed" if held else "failed", False])
"""
# The functions that tests rely on, stored before the code under test is loaded: nobody may replace
# them. Reported only after a test, as a fixture for all tests may replace some.
_GUARD = """\
import builtins, io, json.decoder, operator, pathlib, sys, types, {unittest}
KEPT = []
SPARED = ("print", "input", "breakpoint", "__import__", "__build_class__",
          "_getini_unknown_type")  # the last by pytest itself
def parts(value):
    return getattr(value, "__code__", None), getattr(value, "__defaults__", None)
def keep(place, names):
    KEPT.extend((place, name, place[name], *parts(place[name])) for name in names)
def keep_functions(place):
    keep(place, [name for name, value in place.items() if callable(value) and name not in SPARED])
def is_own(file):
    return file.startswith({root!r}) and "site-packages" not in file
for name, module in list(sys.modules.items()):
    own = is_own(getattr(module, "__file__", None) or "")
    if not own and name.partition(".")[0] in ("builtins", "io", "json", "pathlib", "unittest",
                                              "_pytest", "pluggy"):
        keep_functions(vars(module))
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == name:
                keep_functions(vars(value))
def arrange(kept, with_code=(types.FunctionType, types.MethodType)):
    coded = [(value, (code, defaults)) for _, _, value, code, defaults in kept
             if isinstance(value, with_code)]
    return list(zip(*kept))[:3] + list(zip(*coded))
# After each test, thousands are compared: by loops that are not written in Python.
def compare(tell=tell, kept=KEPT, columns=[], arrange=arrange, all=all, map=map, len=len,
            tuple=tuple, at=operator.getitem, same=operator.is_,
            parts=operator.attrgetter("__code__", "__defaults__")):
    if not columns or len(columns[0]) != len(kept):  # a file of tests has kept more
        columns[:] = arrange(kept)
    places, names, values, functions, contents = columns
    try:
        is_whole = (all(map(same, map(at, places, names), values))
                    and tuple(map(parts, functions)) == contents)
    except KeyError:
        is_whole = False
    tell(["", "#{guard}", "passed" if is_whole else "failed", False])
keep(globals(), ["tell", "record", "parts", "arrange", "compare"])
"""
PYTEST_PLUGIN = (
    _RECORDER
    + "import pytest\n"
    + _GUARD
    + """\
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.args[:] = {files!r}
    for name, value in (("keyword", ""), ("markexpr", ""), ("deselect", None), ("maxfail", 0),
                        ("lf", False), ("failedfirst", False), ("collectonly", False),
                        ("continue_on_collection_errors", True), ("tbstyle", "line")):
        if hasattr(config.option, name):
            setattr(config.option, name, value)
@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests():
    # Plug-ins that are installed may exchange functions of pytest, as that of hypothesis does.
    for number, (place, name, value, *_) in enumerate(KEPT):
        other = place.get(name)
        if other is not value and not is_own(getattr(parts(other)[0], "co_filename", {root!r})):
            KEPT[number] = (place, name, other, *parts(other))
def pytest_runtest_logstart(nodeid, location):
    RUNNING[0] = nodeid
def pytest_runtest_logreport(report):
    tell([report.nodeid, report.when, report.outcome, hasattr(report, "wasxfail")])
def pytest_runtest_logfinish(nodeid, location):
    compare()
"""
)
UNITTEST_RUNNER = (
    _RECORDER
    + _GUARD
    + """\
def end(test, status):
    tell([test.id(), "call", status, False])
class Result(unittest.TextTestResult):
    def startTest(self, test): RUNNING[0] = test.id(); super().startTest(test)
    def stopTest(self, test): super().stopTest(test); compare()
    def addSuccess(self, test): end(test, "passed"); super().addSuccess(test)
    def addFailure(self, test, err): end(test, "failed"); super().addFailure(test, err)
    def addError(self, test, err): end(test, "failed"); super().addError(test, err)
    def addSkip(self, test, reason): end(test, "skipped"); super().addSkip(test, reason)
    def addExpectedFailure(self, test, err): end(test, "skipped")
    def addUnexpectedSuccess(self, test): end(test, "failed"); super().addUnexpectedSuccess(test)
    def addSubTest(self, test, subtest, err):
        if err is not None: end(test, "failed")
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
)
IMPORT = """\
try:
    from {reporter} import keep as {watch}, record as {report}
except ImportError:  # another process of the tests
    def {report}(label, held): pass
    def {watch}(place, names): pass
"""
LEADING = """\
import importlib
made = importlib.import_module(__package__ + {module!r} if __package__ else {module!r}[1:])
globals().update({{name: what for name, what in vars(made).items() if name[:2] != "__"}})
globals().update({{old: vars(made)[new] for old, new in {renamed!r}.items() if new in vars(made)}})
"""
"""Replacement of a test file, for modules that import from it."""


class ProbeFile(Record):
    """One probe file under construction."""

    path: str
    twin: str
    """Path in the other room."""
    tree: ast.Module
    names: Names
    package: tuple[str, ...] | None = None
    """For unittest: the packages from which the original is imported."""
    original: str
    """Path of the original file; empty for a file that holds only controls."""
    renamed: dict[str, str]
    """New names of its classes and functions, by the old ones."""


def new_file(
    original: str, tree: ast.Module, rng: random.Random, package: tuple[str, ...] | None, room: int
) -> ProbeFile:
    """Make a file beside another, with a random name in each room."""
    folder, slash, _ = original.rpartition("/")
    paths = [f"{folder}{slash}test_{random_hex(rng)}.py" for _ in range(ROOMS)]
    return ProbeFile(
        path=paths[room],
        twin=paths[1 - room],
        tree=tree,
        names=random_names(rng),
        package=package,
        original=original,
        renamed={},
    )


def new_helper(path: str, tree: ast.Module, rng: random.Random) -> ProbeFile:
    """Make a module that tests import; it keeps its name, so that they find it."""
    return ProbeFile(
        path=path, twin=path, tree=tree, names=random_names(rng), original=path, renamed={}
    )


def assemble_probe(
    request: ProbeRequest,
    probe_files: list[ProbeFile],
    helpers: list[ProbeFile],
    tests: tuple[ProbeTest, ...],
    rng: random.Random,
) -> Probe:
    """Write the probe's files, and a reporter that also restricts the runner to these files."""
    module, guard = f"m{random_hex(rng)}", random_hex(rng)
    reporter_path = f"{request.folder.removeprefix(request.root).strip('/')}/{module}.py"
    texts = (*request.sources.values(), *request.helpers.values())
    # Mocks import asyncio, which takes as long to load as a quarter of pytest.
    unittest = "unittest.mock" if any("mock" in text for text in texts) else "unittest"
    if request.runner == "unittest":
        modules = [(_import_root(file, request.root), _module_name(file)) for file in probe_files]
        reporter = UNITTEST_RUNNER.format(
            pipe=request.pipe, root=request.root, guard=guard, modules=modules, unittest=unittest
        )
        python = find_python_command(request.command) or "python"
        command, env, module = f"{python} {request.folder}/{module}.py", {}, "__main__"
    else:
        paths = [f"{request.root}/{file.path}" for file in probe_files]
        reporter = PYTEST_PLUGIN.format(
            pipe=request.pipe, root=request.root, guard=guard, files=paths, unittest=unittest
        )
        option, env = f"-p {module}", {"PYTHONPATH": request.folder}
        extended = add_runner_arguments(request.command, "pytest", option)
        if extended is None:
            env["PYTEST_ADDOPTS"] = option
        command = re.sub(
            r"\bPYTHONPATH=(['\"]?)",
            rf"PYTHONPATH=\1{request.folder}:",
            extended or request.command,
        )
    leading = {file.original: _render_leading(file) for file in probe_files if file.original}
    files = {file.path: _render_file(file, module) for file in (*probe_files, *helpers)}
    return Probe(
        files={reporter_path: reporter, **leading, **files},
        command=command,
        env=env,
        tests=(*tests, *_expect_guard(guard, files.values())),
        rooms=ROOMS,
    )


def _expect_guard(label: str, texts: Iterable[str]) -> Iterator[ProbeTest]:
    """Yield a control that basic functions are unchanged, unless wide-scope fixtures replace
    some."""
    joined = "\n".join(texts)
    if _WIDE_SCOPE.search(joined) and _EXCHANGES.search(joined):
        return
    how = "a function of the standard library, the test runner or this probe was replaced"
    yield ProbeTest(name=f"#{label}", kind="control", expect="pass", how=how, optional=True)


_WIDE_SCOPE = re.compile(
    r"scope\s*=\s*['\"](?:session|package|module|class)|setUpClass|setUpModule|setup_module"
    r"|setup_class|pytest_\w+\("
)
_EXCHANGES = re.compile(r"[mM]onkey_?[pP]atch|\bpatch\b|setattr\(|\bpatcher\b")


def _render_file(probe_file: ProbeFile, reporter: str) -> str:
    """Return the file's text with our helpers in front.

    Tests keep their order, as some rely on it.
    """
    text = ast.unparse(ast.fix_missing_locations(probe_file.tree))
    future = re.findall(r"^from __future__ import .*$", text, re.MULTILINE)
    for line in future:
        text = text.replace(line, "", 1)
    docstring = ast.get_docstring(probe_file.tree, clean=False)
    head = "" if docstring is None else f"{docstring!r}\n"
    names = probe_file.names
    imports = IMPORT.format(reporter=reporter, report=names.report, watch=names.watch)
    watched = f"{names.watch}(globals(), {[getattr(names, name) for name in FUNCTIONS]})"
    return "\n".join([head, *future, imports, render_helpers(names), watched, text, ""])


def _render_leading(probe_file: ProbeFile) -> str:
    module = probe_file.path.rpartition("/")[2].removesuffix(".py")
    return LEADING.format(module=f".{module}", renamed=probe_file.renamed)


def _import_root(file: ProbeFile, root: str) -> str:
    """Return the folder that contains a module's packages."""
    folders = file.path.split("/")[:-1]
    return "/".join((root, *folders[: len(folders) - len(file.package or ())]))


def _module_name(file: ProbeFile) -> str:
    return ".".join((*(file.package or ()), file.path.rpartition("/")[2].removesuffix(".py")))


def result_name(
    probe_file: ProbeFile, classes: Sequence[str], function: str, parameters: str = ""
) -> str:
    """Return the name of a test in the probe's report."""
    if probe_file.package is not None:
        return ".".join((_module_name(probe_file), *classes, function))
    return "::".join((probe_file.path.rpartition("/")[2], *classes, function)) + parameters


def name_in_other_room(probe_file: ProbeFile, name: str) -> str:
    """Return the other room's name for a test of this file."""
    own_stem, twin_stem = (
        path.rpartition("/")[2].removesuffix(".py") for path in (probe_file.path, probe_file.twin)
    )
    return name.replace(own_stem, twin_stem, 1)


def random_hex(rng: random.Random) -> str:
    """Return twelve random hexadecimal digits."""
    return f"{rng.getrandbits(48):012x}"


# Claims of shared assertions: in helpers, fixtures, hooks and inherited bodies.


MAX_SHARED = 200
"""Maximum number of shared assertions that count for one test."""


class SharedPythonClaims:
    """Makes claims for functions beside the tests, once for each that a test may reach."""

    def __init__(self, request: ProbeRequest, files: Sequence[ProbeFile]) -> None:
        self.request, self.files = request, files
        self.index = FunctionIndex([file.tree for file in files])
        helpers = set(self._find_helpers(files))
        self.plan = RoomPlan(
            turned=request.room == 1,
            unnoticed=request.round % 2 == 1,
            helpers=frozenset(name for name, _ in helpers),
            calls_helpers_wrong=request.room == int(request.token, 16) % ROOMS,
            imported=frozenset(
                name
                for text in (*request.sources.values(), *request.helpers.values())
                for name in list_imported_names(text)
            ),
        )
        self.called = {
            function_id
            for name, home in helpers
            for function_id in self.index.called_by(name, home)
        }
        self.written: dict[int, list[PythonClaim]] = {}
        self.reading: dict[int, bool] = {}
        self.places = {
            id(function): (file, number)
            for file in files
            for number, function in enumerate(list_outer_functions(file.tree))
        }

    def hide_computed(self, tests: Iterable[TestFunction]) -> None:
        """Choose which functions that compute what these tests expect are wrong in this room."""
        rng = random.Random(f"{self.request.token} computed")  # noqa: S311 (as above)
        modules = {file.tree: file.names for file in self.files}
        computed, visible = change_computing_functions(tests, modules, rng, turned=self.plan.turned)
        self.plan = msgspec.structs.replace(self.plan, computed=computed, computed_visibly=visible)

    def _find_helpers(self, files: Sequence[ProbeFile]) -> Iterator[tuple[str, ast.Module]]:
        """Yield checking functions that are called with a value to change, with the calling
        module."""
        for file in files:
            for node in ast.walk(file.tree):
                name = helper_of(node) if isinstance(node, ast.Expr) else None
                if name in self.index.by_name:
                    yield name, file.tree

    def reach(self, names: Iterable[str]) -> list[TestFunction]:
        """Return the functions that a test with these names may run, beside itself."""
        return self.index.reachable_from(names)

    def read_test_names(self, functions: Iterable[TestFunction]) -> bool:
        """Return whether one of these functions may read the name of the test that runs it."""
        return any(map(self._reads_test_names, functions))

    def _reads_test_names(self, function: TestFunction) -> bool:
        if id(function) not in self.reading:
            self.reading[id(function)] = reads_test_names(ast.unparse(function))
        return self.reading[id(function)]

    def write(self, functions: Iterable[TestFunction]) -> list[PythonClaim]:
        """Make assertions of these functions wrong at random; return up to `MAX_SHARED` claims."""
        claims = [claim for function in functions for claim in self._write_function(function)]
        return claims[:MAX_SHARED]

    def _write_function(self, function: TestFunction) -> list[PythonClaim]:
        if self.plan.calls_helpers_wrong and id(function) in self.called:
            return []
        if id(function) not in self.written:
            file, number = self.places[id(function)]
            seed = f"{self.request.token} {file.original} {function.name} {number}"
            coins = random.Random(seed)  # noqa: S311 (`secrets` made the token)
            self.written[id(function)] = write_shared_claims(function, file.names, coins, self.plan)
        return self.written[id(function)]


CONTROLS = 3
"""Maximum number of controls of each kind in each file."""


class TestPlace(Record):
    """The location of a test in the source."""

    path: str
    classes: tuple[str, ...]
    function: str
    parameters: str = ""
    """`[1-2]` of a parametrized test; else empty."""
    package: tuple[str, ...] | None = None
    """For unittest: the packages from which its module is imported."""


class ProbeSuite(Record):
    """The tests of one file, found in its tree."""

    made: ProbeFile
    places: Mapping[str, TestPlace]
    classes: Mapping[str, str]
    """New names of the classes that hold tests, by the old ones."""
    found: Mapping[str, tuple[list[ast.stmt], TestFunction | None]]
    """Function of each test and the statements around it; no function if inherited or imported."""


def build_probe(request: ProbeRequest) -> Probe | None:
    """Build a probe of every file that holds some of the tests, with part of the assertions
    wrong."""
    # Both rooms use the same names, except for files, so a test can be found in the other room.
    rng = random.Random(f"{request.token} names")  # noqa: S311 (`secrets` made the token)
    places = {name: find_test(name, request) for name in (*request.fail_to_pass, *request.others)}
    places_by_test = {name: place for name, place in places.items() if place is not None}
    changed = choose_perturbed(
        [name for name in request.fail_to_pass if name in places_by_test], request.token
    )
    paths = sorted({place.path for place in places_by_test.values()})
    sources = {path: request.sources[path] for path in paths}
    packages = {place.path: place.package for place in places_by_test.values()}
    probe_files = [
        new_file(path, tree, rng, packages[path], request.room)
        for path, tree in _parse_sources(sources, rng)
    ]
    helper_texts = imported_helpers(request.helpers, sources.values(), paths)
    helpers = [new_helper(path, tree, rng) for path, tree in _parse_sources(helper_texts, rng)]
    shared = SharedPythonClaims(request, [*probe_files, *helpers])
    suites = [_find_tests(file, places_by_test, rng) for file in probe_files]
    shared.hide_computed(node for suite in suites for node in _list_changed(suite, changed))
    functions = {id(node) for suite in suites for node in _list_own(suite, changed)}
    files, tests = list[ProbeFile](), list[ProbeTest]()
    for suite in suites:
        new_tests = _write_tests(suite, changed, functions, request, shared, rng)
        if new_tests:
            tests += [*new_tests, *_add_controls(suite.made, rng)]
            files.append(suite.made)
    if not tests:
        return None
    empty = ast.Module(body=[], type_ignores=[])
    control_file = new_file(files[0].path, empty, rng, files[0].package, request.room)
    control_file = msgspec.structs.replace(control_file, original="")
    tests += _add_controls(control_file, rng)
    files.append(control_file)
    rng.shuffle(files)
    return assemble_probe(request, files, helpers, tuple(tests), rng)


def read_results(report: bytes) -> Results:
    """Read the report.

    A test passed if its call did and nothing around it failed; an assertion if it held.
    """
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
            earlier_status = results.get(name)
            results[name] = status if earlier_status in (None, "passed") else earlier_status
    return results


def find_test(name: str, request: ProbeRequest) -> TestPlace | None:
    """Locate a test id of pytest or unittest; None if its source is not available."""
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
    """Return the path of a file named from the runner's root, which may differ from ours."""
    if file in request.sources:
        return file
    paths = [path for path in request.sources if path.endswith(f"/{file}")]
    return paths[0] if len(paths) == 1 else None


def _parse_sources(
    sources: Mapping[str, str], rng: random.Random
) -> Iterator[tuple[str, ast.Module]]:
    """Parse files and split their assertions; files that cannot be parsed are left out."""
    for path, source in sorted(sources.items()):
        try:
            tree = parse_python(source.removeprefix("\ufeff"))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        split_assertions(tree, rng)
        drop_explanations(tree, source)
        yield path, tree


def _find_tests(
    probe_file: ProbeFile, places_by_test: Mapping[str, TestPlace], rng: random.Random
) -> ProbeSuite:
    """Find the known tests of a file, and rename the classes that contain them."""
    places = {
        name: place for name, place in places_by_test.items() if place.path == probe_file.original
    }
    classes = _rename_classes(probe_file.tree, places.values(), rng)
    functions = {
        name: _find_place(probe_file.tree, place, classes) for name, place in places.items()
    }
    return ProbeSuite(made=probe_file, places=places, classes=classes, found=functions)


def _list_own(suite: ProbeSuite, changed: Collection[str]) -> Iterator[TestFunction]:
    """Yield the tests of a file that no other test may run; changed tests are never shared."""
    used_names = named_elsewhere(suite.made.tree)
    for name, (_, node) in suite.found.items():
        if node is not None and (name in changed or node.name not in used_names):
            yield node


def _list_changed(suite: ProbeSuite, changed: Collection[str]) -> list[TestFunction]:
    """Return the functions of a file's tests in which something is made wrong, each once."""
    nodes = [node for name, (_, node) in suite.found.items() if name in changed and node]
    return list({id(node): node for node in nodes}.values())


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
    probe_file, used_names = suite.made, named_elsewhere(suite.made.tree)
    file_reads_names = reads_test_names(ast.unparse(probe_file.tree))
    new_names = new_test_names(
        {node.name for _, node in suite.found.values() if node} - used_names, rng
    )
    probe_file.renamed.update({**suite.classes, **new_names})
    reached_by_test = {
        name: shared.reach(names_of_test(suite.found[name][1], place.function, place.classes))
        for name, place in suite.places.items()
    }
    parameters = {} if file_reads_names else _rename_parameters(suite, changed, rng)
    claims = _write_own_claims(suite, changed, request, shared, rng)
    tests: list[ProbeTest] = []
    for name, place in suite.places.items():
        node = suite.found[name][1]
        if node is None and not _is_inherited(probe_file.tree, place, suite.classes):
            continue
        inside = [suite.classes.get(name, name) for name in place.classes]

        ids = parameters.get(id(node), {}).get(place.parameters, place.parameters)

        def title(function: str, inside: list[str] = inside, ids: str = ids) -> str:
            return result_name(probe_file, inside, function, ids)

        copy_name = title(new_names.get(place.function, place.function))
        called_tests = [
            function
            for function in reached_by_test[name]
            if id(function) in claims and function is not node
        ]
        called_helpers = [
            function for function in reached_by_test[name] if id(function) not in functions
        ]
        steady = node is not None and not (
            file_reads_names
            or shared.read_test_names(called_helpers)
            or names_itself(node, place.classes, place.path)
        )
        tests.append(
            ProbeTest(name=copy_name, kind="copy", expect="pass", original=name, certain=steady)
        )
        if name not in changed:
            continue
        test_claims = [*claims.get(id(node), ()), *shared.write(called_helpers)]
        test_claims += [
            msgspec.structs.replace(claim, sure=False, proofs=None)
            for function in called_tests
            for claim in claims[id(function)]
        ]
        for claim in test_claims:
            tests += _expect_claim(claim, probe_file, name, copy_name, title, steady=steady)
    for _, node in suite.found.values():
        if node is not None:
            node.name = new_names.get(node.name, node.name)
    return tests


def _rename_parameters(
    suite: ProbeSuite, changed: Collection[str], rng: random.Random
) -> dict[int, dict[str, str]]:
    """Return new parameter ids by the old ones, for the `id` of each test function."""
    functions: dict[int, TestFunction] = {}
    known_ids: dict[int, set[str]] = {}
    for name, (_, node) in suite.found.items():
        if name in changed and node is not None and suite.places[name].parameters:
            functions[id(node)] = node
    for name, (_, node) in suite.found.items():
        if id(node) in functions:
            known_ids.setdefault(id(node), set()).add(suite.places[name].parameters)
    return {
        number: rename_parameters(function, suite.made.tree, known_ids[number], rng)
        for number, function in functions.items()
    }


def _write_own_claims(
    suite: ProbeSuite,
    changed: Collection[str],
    request: ProbeRequest,
    shared: SharedPythonClaims,
    rng: random.Random,
) -> dict[int, list[PythonClaim]]:
    """Make assertions wrong in the changed tests of a file; return the claims by function `id`."""
    claims: dict[int, list[PythonClaim]] = {}
    for name, place in suite.places.items():
        body, node = suite.found[name]
        if name in changed and node is not None and id(node) not in claims:
            seed = f"{request.token} {place.path} {place.classes} {place.function}"
            coins = random.Random(seed)  # noqa: S311 (`secrets` made the token)
            claims[id(node)] = write_claims(
                node, suite.made.names, coins, shared.plan, suite.made.tree
            )
            _add_proofs(body, claims[id(node)], new_test_name(place.function, rng))
    return claims


def _add_proofs(body: list[ast.stmt], claims: list[PythonClaim], name: str) -> None:
    """Add tests of the helpers that a test relies on beside it."""
    for claim in claims:
        for proof, ending in zip(claim.proofs or (), "ab", strict=False):
            proof.name = f"{name}{claim.label}{ending}"
            body.append(proof)


def _expect_claim(
    claim: PythonClaim,
    probe_file: ProbeFile,
    original: str,
    copy_name: str,
    title: Callable[[str], str],
    *,
    steady: bool,
) -> Iterator[ProbeTest]:
    """Yield the expected result of one assertion, and of the tests that prove its helper."""
    proofs = [title(proof.name) for proof in claim.proofs or ()]
    for number, proof in enumerate(proofs):
        expect: Literal["pass", "fail"] = "fail" if number else "pass"
        yield ProbeTest(name=proof, kind="control", expect=expect, certain=False)
    yield ProbeTest(
        name=f"{copy_name}#{claim.label}",
        kind="control" if claim.own else "perturbed" if claim.how else "copy",
        expect="fail" if claim.how else "pass",
        original=original,
        how=claim.how,
        certain=claim.certain and steady,
        opposite=f"{name_in_other_room(probe_file, copy_name)}#{claim.opposite}",
        proved_by=tuple(proofs),
        met_by_many=claim.met_by_many,
        needs_value=claim.is_computed,
        shows=claim.shows,
        optional=not claim.sure,
    )


def _rename_classes(
    tree: ast.Module, places: Iterable[TestPlace], rng: random.Random
) -> dict[str, str]:
    """Rename the classes that hold tests wherever the file names them; return the new names."""
    class_names = {place.classes[0] for place in places if place.classes}
    names = {name: new_class_name(name, rng) for name in sorted(class_names)}
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
    """Return a test's function, which may be in a base class, and the statements that contain
    it."""
    names = [renamed.get(name, name) for name in place.classes]
    if not names:
        return tree.body, find_function(tree.body, place.function)
    suite = find_class(tree.body, names)
    pending, visited = [suite] if suite else [], set[str]()
    while pending:
        suite = pending.pop(0)
        if function := find_function(suite.body, place.function):
            return suite.body, function
        visited.add(suite.name)
        base_names = [base.id for base in suite.bases if isinstance(base, ast.Name)]
        bases = (find_class(tree.body, [name]) for name in base_names if name not in visited)
        pending += [base for base in bases if base is not None]
    return tree.body, None


def _is_inherited(tree: ast.Module, place: TestPlace, renamed: Mapping[str, str]) -> bool:
    """Return whether a test is not a function of this file.

    It is imported, assigned, inherited, or made by a decorator.
    """
    names = [renamed.get(name, name) for name in place.classes]
    if not names:
        return place.function in names_without_functions(tree)
    return place.function.isidentifier() and find_class(tree.body, names) is not None


def _add_controls(probe_file: ProbeFile, rng: random.Random) -> list[ProbeTest]:
    """Add tests that pass and tests that fail whatever the code under test does."""
    tests, functions = [], []
    for passes in (True, False):
        for _ in range(rng.randint(1, CONTROLS)):
            first, second, name = rng.randrange(999), rng.randrange(999), f"test_{random_hex(rng)}"
            result = first + second + (0 if passes else rng.randrange(1, 99))
            functions.append((name, f"int('{first}') + {second} == {result}"))
            tests.append((name, passes))
    unittest = probe_file.package is not None
    suite = f"Test{random_hex(rng)}" if unittest else ""
    receiver = "self" if unittest else ""
    lines = [f"def {name}({receiver}):\n assert {claim}" for name, claim in functions]
    text = "\n".join(lines)
    if unittest:
        body = text.replace("\n", "\n ")
        text = f"class {suite}(__import__('unittest').TestCase):\n {body}"
    for node in parse_python(text).body:
        probe_file.tree.body.insert(
            rng.randint(first_place(probe_file.tree), len(probe_file.tree.body)), node
        )
    return [
        ProbeTest(
            name=result_name(probe_file, [suite] if unittest else [], name),
            kind="control",
            expect="pass" if passes else "fail",
        )
        for name, passes in tests
    ]
