"""Probes for `go test`.

Each test file that holds wanted tests gets a neighbour of a random name in the same package, so
that helpers stay where they are. Where the imports of the copies cannot be told from the source
(dot imports, packages not named after their path), the copies go into the file itself. Before the
test program starts, the sources of the probe are gone again: code under test cannot read them.
A subtest is confirmed by a copy of its whole test function.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from closeloop.grading.integrity.go_imports import GoImports, needed_imports, read_imports
from closeloop.grading.integrity.perturb_go import (
    guard_panics,
    list_likely_changes,
    perturb_go_test,
)
from closeloop.grading.integrity.probe import (
    MAX_PERTURBED,
    Probe,
    ProbeRequest,
    ProbeTest,
    Results,
)
from closeloop.grading.integrity.source_edits import (
    SourceEdit,
    apply_edits,
    make_generator,
    make_name,
    node_text,
    parse_source,
    replace_node,
    walk_nodes,
)
from closeloop.grading.integrity.tool_command import ToolCall, find_tool_call, split_option
from closeloop.grading.testing.suite_report import Status, split_terminal_lines
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node

CONTROL_PAIRS = 3
"""Controls that must pass, and as many that must fail, in each file."""
MAX_HELPER_WAYS = 4
"""Ways in which one helper or table of a test is made wrong."""
_MODULE = re.compile(r'^\s*module\s+"?([^\s"]+)', re.MULTILINE)
_KIND = re.compile(r"Test|Example|Fuzz")
_RESULT = re.compile(r"--- (PASS|FAIL|SKIP): (\S+) \([\d.]+s\)")
_BEGUN = re.compile(r"=== RUN +(\S+)")
_STATUS: dict[str, Status] = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
_DROPPED = re.compile(
    r"C|args|bench\w*|blockprofile\w*|c|count|cover\w*|cpuprofile|failfast|fuzz\w*|json|list"
    r"|memprofile\w*|mutexprofile\w*|n|o|outputdir|run|shuffle|skip|trace|v|vet|x"
)
"""Options that choose tests or what is reported; all others stay as the command has them."""
_WITH_VALUE = re.compile(
    r"C|asmflags|bench|benchtime|blockprofile\w*|buildmode|compiler|count|cover(?:mode|pkg|profile)"
    r"|cpu|cpuprofile|exec|fuzz\w*|gccgoflags|gcflags|installsuffix|ldflags|list|memprofile\w*|mod"
    r"|modfile|mutexprofile\w*|o|outputdir|overlay|p|parallel|pgo|pkgdir|run|shuffle|skip|tags"
    r"|timeout|toolexec|trace|vet"
)


class GoTestFile(Record):
    """A test file and where it belongs."""

    path: str
    module_folder: str
    package: str
    """Its import path, without the `_test` of an external test package."""

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


class _ProbeFunction(Record):
    """A function of the probe and what must become of it."""

    text: str
    tests: tuple[ProbeTest, ...]


class _GoProbeFile(Record):
    """What becomes of one test file."""

    source: GoTestFile
    text: str
    is_in_place: bool
    """It replaces the file, rather than standing beside it."""
    tests: tuple[ProbeTest, ...]


def build_probe(request: ProbeRequest) -> Probe | None:
    """Make copies, wrong copies and controls for every file that wanted tests are in."""
    test_files = _list_test_files(request.sources)
    wanted: dict[str, dict[str, list[str]]] = {}
    for test in (*request.fail_to_pass, *request.others):
        for path, function in _possible_places(test, test_files):
            wanted.setdefault(path, {}).setdefault(function, []).append(test)
    made = []
    for path, functions in sorted(wanted.items()):
        probe_file = _build_file(request, test_files[path], functions)
        if probe_file is not None:
            made.append(probe_file)
    if not made:
        return None
    return Probe(
        files={**_build_script(request, made), **{_path(request, one): one.text for one in made}},
        command=_build_command(request, made),
        tests=tuple(test for probe_file in made for test in probe_file.tests),
        exit_codes=(1,),
    )


def read_results(report: bytes) -> Results:
    """Read the text of `go test -v`; a test that began and did not end is an error.

    Of several results of one test the worst counts: each is printed once by an honest run.
    """
    results: Results = {}
    for line in split_terminal_lines(report):
        for begun in _BEGUN.finditer(line):
            results.setdefault(begun[1], "error")
    ended: Results = {}
    for line in split_terminal_lines(report):
        for result in _RESULT.finditer(line):
            status = _STATUS[result[1]]
            if ended.get(result[2]) != "failed":
                ended[result[2]] = status
    return {**results, **ended}


def _list_test_files(sources: Mapping[str, str]) -> dict[str, GoTestFile]:
    modules = {}
    for path, text in sources.items():
        folder, _, name = path.rpartition("/")
        module = _MODULE.search(text) if name == "go.mod" else None
        if module:
            modules[folder] = module[1]
    found = {}
    for path in sources:
        folder = path.rpartition("/")[0]
        above = [at for at in modules if not at or f"{folder}/".startswith(f"{at}/")]
        if path.endswith("_test.go") and above:
            module_folder = max(above, key=len)
            inside = folder[len(module_folder) :].strip("/")
            package = "/".join(filter(None, (modules[module_folder], inside)))
            found[path] = GoTestFile(path=path, module_folder=module_folder, package=package)
    return found


def _possible_places(test: str, test_files: Mapping[str, GoTestFile]) -> list[tuple[str, str]]:
    """The files of the test's package, each with the name of the function to look for."""
    packages = {file.package for file in test_files.values()}
    fitting = [package for package in packages if test.startswith(f"{package}/")]
    if not fitting:
        return []
    package = max(fitting, key=len)
    function = test[len(package) + 1 :].partition("/")[0]
    return [(path, function) for path, file in test_files.items() if file.package == package]


def _build_file(
    request: ProbeRequest, source: GoTestFile, wanted: Mapping[str, list[str]]
) -> _GoProbeFile | None:
    text = request.sources[source.path]
    root = parse_source("tree_sitter_go", text.encode())
    originals = [node for node in _list_functions(root) if _name_of(node) in wanted]
    imports = read_imports(root) if root is not None else GoImports()
    needed = needed_imports(originals, imports)
    testing = imports.named.get("testing", "" if needed is None else "testing")
    if root is None or not originals or testing != "testing":
        return None
    functions = _write_controls(request, source)
    used = list(originals)
    for node in originals:
        functions += _write_copies(request, source, node, wanted[_name_of(node)], imports)
        if set(wanted[_name_of(node)]) & set(request.fail_to_pass[:MAX_PERTURBED]):
            functions += _write_helper_copies(request, source, node, imports, used)
    needed = needed_imports(used, imports)
    make_generator(request.token, "order", source.path).shuffle(functions)
    head = text if needed is None else _write_head(root, {**needed, "testing": "testing"})
    return _GoProbeFile(
        source=source,
        text="\n\n".join([head, *(function.text for function in functions), ""]),
        is_in_place=needed is None,
        tests=tuple(test for function in functions for test in function.tests),
    )


def _list_functions(root: Node | None) -> list[Node]:
    children = root.named_children if root is not None else []
    functions = [node for node in children if node.type == "function_declaration"]
    return [node for node in functions if _KIND.match(_name_of(node))]


def _name_of(function: Node) -> str:
    return node_text(function.child_by_field_name("name"))


def _file_name(request: ProbeRequest, source: GoTestFile) -> str:
    return f"zz_{make_name(request.token, 'file', source.path)}_test.go"


def _path(request: ProbeRequest, probe_file: _GoProbeFile) -> str:
    source = probe_file.source
    new = f"{source.folder}/{_file_name(request, source)}".lstrip("/")
    return source.path if probe_file.is_in_place else new


def _write_copies(
    request: ProbeRequest, source: GoTestFile, node: Node, ids: list[str], imports: GoImports
) -> list[_ProbeFunction]:
    """Write one true copy of a test function, and wrong ones if it must be made to pass."""
    own_id = f"{source.package}/{_name_of(node)}"
    name, text = _rename_copy(request, source, node, guard_panics(node))
    copies = tuple(
        ProbeTest(name=f"{name}{test[len(own_id) :]}", kind="copy", expect="pass", original=test)
        for test in ids
    )
    functions = [_ProbeFunction(text=text, tests=copies)]
    fail_to_pass = [test for test in ids if test in request.fail_to_pass[:MAX_PERTURBED]]
    if not fail_to_pass:
        return functions
    rng = make_generator(request.token, "perturb", own_id)
    for change in perturb_go_test(node, imports.named, rng):
        name, text = _rename_copy(request, source, node, change.edits)
        perturbed = ProbeTest(
            name=name,
            kind="perturbed",
            expect="fail",
            original=own_id if own_id in ids else fail_to_pass[0],
            how=change.how,
            # A function of which only some subtests pass may fail by itself, or not any more.
            certain=change.certain and own_id in ids,
        )
        functions.append(_ProbeFunction(text=text, tests=(perturbed,)))
    return functions


def _write_helper_copies(
    request: ProbeRequest, source: GoTestFile, test: Node, imports: GoImports, used: list[Node]
) -> list[_ProbeFunction]:
    """Write wrong copies of helpers and tables that a test uses, each with a copy of the test."""
    functions = []
    own_id = f"{source.package}/{_name_of(test)}"
    for name, declaration in _list_declarations(test):
        rng = make_generator(request.token, "helper", own_id, name)
        changes = list(list_likely_changes(declaration, imports.named, rng))
        for change in rng.sample(changes, min(MAX_HELPER_WAYS, len(changes))):
            other = f"zz{make_name(request.token, own_id, name, str(change.edits))}"
            renamed = _rename_uses(test, name, other)
            title, text = _rename_copy(request, source, test, (*renamed, *guard_panics(test)))
            edits = (*change.edits, *_rename_uses(declaration, name, other))
            content = declaration.text or b""
            helper = apply_edits(content, edits, declaration.start_byte).decode("utf-8", "replace")
            perturbed = ProbeTest(
                name=title,
                kind="perturbed",
                expect="fail",
                original=own_id,
                how=change.how,
                certain=False,
            )
            functions.append(_ProbeFunction(text=f"{helper}\n\n{text}", tests=(perturbed,)))
            used.append(declaration)
    return functions


def _list_declarations(test: Node) -> Iterator[tuple[str, Node]]:
    """The functions and tables of a test's file that the test names, each with its name."""
    root = test.parent
    names = {node_text(node) for node in walk_nodes(test) if node.type == "identifier"}
    for node in root.named_children if root is not None else []:
        name = _name_of(node) if node.type == "function_declaration" else ""
        if node.type == "var_declaration":
            specs = [inner for inner in walk_nodes(node) if inner.type == "var_spec"]
            name = _name_of(specs[0]) if len(specs) == 1 else ""
        if name in names and name != _name_of(test) and not _KIND.match(name):
            yield name, node


def _rename_uses(node: Node, name: str, other: str) -> tuple[SourceEdit, ...]:
    uses = (inner for inner in walk_nodes(node) if inner.type == "identifier")
    return tuple(replace_node(inner, other) for inner in uses if node_text(inner) == name)


def _rename_copy(
    request: ProbeRequest, source: GoTestFile, node: Node, edits: tuple[SourceEdit, ...]
) -> tuple[str, str]:
    """Return the random name and the text of a changed copy of a function."""
    title, kind = node.child_by_field_name("name"), _KIND.match(_name_of(node))
    assert title is not None
    assert kind is not None
    letters = make_name(request.token, source.path, _name_of(node), str(edits))
    name = f"{kind[0]}{_prefix(request)}{letters}"
    text = apply_edits(node.text or b"", (replace_node(title, name), *edits), node.start_byte)
    return name, text.decode("utf-8", "replace")


def _prefix(request: ProbeRequest) -> str:
    """What all names of the probe begin with, to run them and nothing else."""
    return make_name(request.token, "prefix").capitalize()


def _write_controls(request: ProbeRequest, source: GoTestFile) -> list[_ProbeFunction]:
    """Sums that are right, and sums that are wrong."""
    rng = make_generator(request.token, "controls", source.path)
    functions = []
    for number in range(2 * CONTROL_PAIRS):
        expect: Literal["pass", "fail"] = "pass" if number % 2 == 0 else "fail"
        name = f"Test{_prefix(request)}{make_name(request.token, source.path, str(number))}"
        first, second = rng.randrange(999), rng.randrange(999)
        total = first + second + (0 if expect == "pass" else rng.randint(1, 99))
        claim = f'if got += {second}; got != {total} {{ t.Errorf("got %d", got) }}'
        text = f"func {name}(t *testing.T) {{\n\tgot := {first}\n\t{claim}\n}}"
        control = ProbeTest(name=name, kind="control", expect=expect)
        functions.append(_ProbeFunction(text=text, tests=(control,)))
    return functions


def _write_head(root: Node, imports: Mapping[str, str]) -> str:
    clause = next(node for node in root.named_children if node.type == "package_clause")
    lines = [f'\t{name} "{path}"' for name, path in sorted(imports.items())]
    return "\n".join([node_text(clause), "", "import (", *lines, ")"])


def _script_path(request: ProbeRequest) -> str:
    return f"{request.folder}/run.sh"


def _build_script(request: ProbeRequest, made: Iterable[_GoProbeFile]) -> dict[str, str]:
    """Write a script that puts the package's sources back before it runs the test program."""
    lines, originals = [], {}
    for probe_file in made:
        source = probe_file.source
        here = f"[ . -ef {shlex.quote(f'{request.root}/{source.folder}')} ] &&"
        if probe_file.is_in_place:
            kept = f"{request.folder}/{_file_name(request, source)}.txt"
            originals[kept] = request.sources[source.path]
            name = shlex.quote(source.path.rpartition("/")[2])
            lines.append(f"{here} cp -- {shlex.quote(kept)} {name}")
        else:
            lines.append(f"{here} rm -f -- {_file_name(request, source)}")
    script = "\n".join([*lines, 'exec "$@"', ""])
    written = {_script_path(request): script, **originals}
    return {path.removeprefix(f"{request.root}/"): text for path, text in written.items()}


def _build_command(request: ProbeRequest, made: Iterable[_GoProbeFile]) -> str:
    """Call `go test` once for each module, and exit with 1 if each call does."""
    call = find_tool_call(request.command, "go")
    packages: dict[str, set[str]] = {}
    for probe_file in made:
        source = probe_file.source
        inside = source.folder[len(source.module_folder) :].strip("/")
        packages.setdefault(source.module_folder, set()).add(f"./{inside}")
    lines = ["code=1"]
    for module_folder, folders in sorted(packages.items()):
        cd = f"cd {shlex.quote(f'{request.root}/{module_folder}'.rstrip('/'))}"
        steps = " && ".join([*call.setup, cd, _test_call(request, call, sorted(folders))])
        lines.append(f"( {steps} )\n[ $? = 1 ] || code=2")
    body = "\n".join([*lines, "exit $code"])
    return f"{{\n{body}\n}} >{shlex.quote(request.pipe)}"


def _test_call(request: ProbeRequest, call: ToolCall, folders: list[str]) -> str:
    kept, binary = _kept_arguments(call.arguments)
    own = ["-count=1", "-v", "-vet=off", f"-run='^(Test|Example|Fuzz){_prefix(request)}'"]
    if not any(split_option(argument)[0] == "exec" for argument in kept):
        launcher = f"sh '{_script_path(request)}'"
        own.append(f"-exec={shlex.quote(launcher)}")
    return " ".join([call.start, *kept, *own, *map(shlex.quote, folders), *binary])


def _kept_arguments(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the options to keep, and what follows `-args`; packages are named anew."""
    kept, rest = list[str](), list(arguments)
    while rest:
        argument = rest.pop(0)
        name, has_value = split_option(argument)
        name = name.removeprefix("test.")
        if not argument.startswith("-"):
            continue
        if name == "args":
            return kept, [argument, *rest]
        values = [rest.pop(0)] if rest and _WITH_VALUE.fullmatch(name) and not has_value else []
        if not _DROPPED.fullmatch(name):
            kept += [argument, *values]
    return kept, []
