"""The files of a probe for pytest or unittest, how they are run and what they report."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterable, Iterator, Sequence

from closeloop.grading.integrity.probe import ROOMS, Probe, ProbeRequest, ProbeTest
from closeloop.grading.integrity.python_values import (
    FUNCTIONS,
    Names,
    random_names,
    render_helpers,
)
from closeloop.grading.testing.runner_instrumentation import (
    add_runner_arguments,
    find_python_command,
)
from closeloop.records.record import Record

# Written for any Python that the project has, not for ours.
_RECORDER = """\
import json, os
PIPE = os.open({pipe!r}, os.O_WRONLY | os.O_APPEND)
RUNNING = [""]
def tell(line, write=os.write, pipe=PIPE, encode=json.dumps):
    write(pipe, (encode(line) + "\\n").encode())
def record(label, held):
    tell([RUNNING[0], "#" + label, "passed" if held else "failed", False])
"""
# What tests stand on, from before the code under test was loaded: nobody may exchange it. Said only
# where a test ran, as a fixture for all tests may do so.
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
"""What stands in place of a test file, for others that import from it."""


class ProbeFile(Record):
    """One probe file in the making."""

    path: str
    twin: str
    """Its path in the other room."""
    tree: ast.Module
    names: Names
    package: tuple[str, ...] | None = None
    """For unittest: the packages that the original is imported from."""
    original: str
    """The path of the file that it was made from; empty for one of controls alone."""
    renamed: dict[str, str]
    """New names of its classes and functions, by the old ones."""


def new_file(
    beside: str, tree: ast.Module, rng: random.Random, package: tuple[str, ...] | None, room: int
) -> ProbeFile:
    """A file beside another, of a random name in each room."""
    folder, slash, _ = beside.rpartition("/")
    paths = [f"{folder}{slash}test_{random_hex(rng)}.py" for _ in range(ROOMS)]
    return ProbeFile(
        path=paths[room],
        twin=paths[1 - room],
        tree=tree,
        names=random_names(rng),
        package=package,
        original=beside,
        renamed={},
    )


def new_helper(path: str, tree: ast.Module, rng: random.Random) -> ProbeFile:
    """A module that tests import: it keeps its name, so that they find it."""
    return ProbeFile(
        path=path, twin=path, tree=tree, names=random_names(rng), original=path, renamed={}
    )


def assemble_probe(
    request: ProbeRequest,
    made: list[ProbeFile],
    helpers: list[ProbeFile],
    tests: tuple[ProbeTest, ...],
    rng: random.Random,
) -> Probe:
    """Write the files, and one that reports, which also keeps the runner to these files."""
    module, guard = f"m{random_hex(rng)}", random_hex(rng)
    own = f"{request.folder.removeprefix(request.root).strip('/')}/{module}.py"
    texts = (*request.sources.values(), *request.helpers.values())
    # Mocks bring asyncio with them, which takes as long to load as a quarter of pytest.
    unittest = "unittest.mock" if any("mock" in text for text in texts) else "unittest"
    if request.runner == "unittest":
        modules = [(_import_root(file, request.root), _module_name(file)) for file in made]
        reporter = UNITTEST_RUNNER.format(
            pipe=request.pipe, root=request.root, guard=guard, modules=modules, unittest=unittest
        )
        python = find_python_command(request.command) or "python"
        command, env, module = f"{python} {request.folder}/{module}.py", {}, "__main__"
    else:
        listed = [f"{request.root}/{file.path}" for file in made]
        reporter = PYTEST_PLUGIN.format(
            pipe=request.pipe, root=request.root, guard=guard, files=listed, unittest=unittest
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
    leading = {file.original: _render_leading(file) for file in made if file.original}
    files = {file.path: _render_file(file, module) for file in (*made, *helpers)}
    return Probe(
        files={own: reporter, **leading, **files},
        command=command,
        env=env,
        tests=(*tests, *_expect_guard(guard, files.values())),
        rooms=ROOMS,
    )


def _expect_guard(label: str, texts: Iterable[str]) -> Iterator[ProbeTest]:
    """A control: what tests stand on is as it was. Some fixtures exchange it for several tests."""
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


def _render_file(made: ProbeFile, reporter: str) -> str:
    """The file's text, with our own helpers in front. Tests keep their order: some rely on it."""
    text = ast.unparse(ast.fix_missing_locations(made.tree))
    future = re.findall(r"^from __future__ import .*$", text, re.MULTILINE)
    for line in future:
        text = text.replace(line, "", 1)
    docstring = ast.get_docstring(made.tree, clean=False)
    head = "" if docstring is None else f"{docstring!r}\n"
    names = made.names
    imports = IMPORT.format(reporter=reporter, report=names.report, watch=names.watch)
    watched = f"{names.watch}(globals(), {[getattr(names, name) for name in FUNCTIONS]})"
    return "\n".join([head, *future, imports, render_helpers(names), watched, text, ""])


def _render_leading(made: ProbeFile) -> str:
    module = made.path.rpartition("/")[2].removesuffix(".py")
    return LEADING.format(module=f".{module}", renamed=made.renamed)


def _import_root(file: ProbeFile, root: str) -> str:
    """The folder that a module's packages lie in."""
    folders = file.path.split("/")[:-1]
    return "/".join((root, *folders[: len(folders) - len(file.package or ())]))


def _module_name(file: ProbeFile) -> str:
    return ".".join((*(file.package or ()), file.path.rpartition("/")[2].removesuffix(".py")))


def result_name(
    made: ProbeFile, classes: Sequence[str], function: str, parameters: str = ""
) -> str:
    """As the report of the probe names a test."""
    if made.package is not None:
        return ".".join((_module_name(made), *classes, function))
    return "::".join((made.path.rpartition("/")[2], *classes, function)) + parameters


def name_in_other_room(made: ProbeFile, name: str) -> str:
    """How the other room names what this one reports as a test of this file."""
    here, there = (path.rpartition("/")[2].removesuffix(".py") for path in (made.path, made.twin))
    return name.replace(here, there, 1)


def random_hex(rng: random.Random) -> str:
    """Twelve digits."""
    return f"{rng.getrandbits(48):012x}"
