"""Probes for `cargo test`.

Copies stand beside their originals, in the same module: in a new integration test of a random name
that holds the whole original file, or in the file itself where cargo would not find a new one, as
with tests inside sources. Before the test programs start, all sources are put back as they were:
code under test cannot read the copies.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from closeloop.grading.integrity.cargo_targets import (
    CargoTarget,
    TestLocation,
    list_targets,
    locate_test,
)
from closeloop.grading.integrity.perturb_rust import (
    list_likely_changes,
    list_siblings,
    perturb_rust_test,
    read_attribute_name,
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
    insert_text,
    make_generator,
    make_name,
    node_text,
    parse_source,
    replace_node,
    walk_nodes,
)
from closeloop.grading.integrity.tool_command import find_tool_call, split_option
from closeloop.grading.testing.runner_reports import read_cargo
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node

CONTROL_PAIRS = 3
"""Controls that must pass, and as many that must fail, in each file."""
_TEST_ATTRIBUTE = re.compile(r"(?:\w+::)*test")
MAX_HELPER_WAYS = 4
"""Ways in which one helper or table of a test is made wrong."""
_HELPER_LINTS = "#[allow(non_upper_case_globals, arithmetic_overflow, unconditional_panic)]\n"
_LINTS = "#[allow(arithmetic_overflow, unconditional_panic)]\n"
_DROPPED = re.compile(
    r"lib|bins?|examples?|tests?|bench(?:es)?|all-targets|doc|no-run|no-fail-fast|fail-fast"
    r"|message-format|q|quiet|v+|verbose"
)
"""Options that choose tests or what is reported; all others stay as the command has them."""
_WITH_VALUE = re.compile(
    r"p|package|exclude|F|features|j|jobs|profile|target|target-dir|manifest-path|message-format"
    r"|color|config|Z|bin|example|test|bench|C|lockfile-path"
)
_KEPT_FOR_HARNESS = frozenset({"--ignored", "--include-ignored"})


class _FoundTest(Record):
    """A test function in the source."""

    id: str
    location: TestLocation
    function: Node
    attributes: list[Node]

    @property
    def start(self) -> int:
        return min(node.start_byte for node in (self.function, *self.attributes))


class _RustProbeFile(Record):
    """What becomes of one file."""

    original: str
    path: str
    """Where the text goes: the original's path, or a new one beside it."""
    text: str
    target: CargoTarget
    tests: tuple[ProbeTest, ...]


def build_probe(request: ProbeRequest) -> Probe | None:
    """Make copies, wrong copies and controls for every file that wanted tests are in."""
    found: dict[str, list[_FoundTest]] = {}
    targets = list_targets(request.sources)
    roots: dict[str, Node | None] = {}
    for test in dict.fromkeys((*request.fail_to_pass, *request.others)):
        for location in locate_test(test, targets, request.sources):
            if location.path not in roots:
                text = request.sources[location.path].encode()
                roots[location.path] = parse_source("tree_sitter_rust", text)
            one = _find_test(test, location, roots[location.path])
            if one is not None:
                found.setdefault(location.path, []).append(one)
                break
    if not found:
        return None
    made = [_build_file(request, tests) for _, tests in sorted(found.items())]
    return Probe(
        files={**_build_script(request, made), **{one.path: one.text for one in made}},
        command=_build_command(request, made),
        env={"RUST_BACKTRACE": "0"},  # most of its tests panic, and a backtrace takes a second
        tests=tuple(test for one in made for test in one.tests),
        exit_codes=(101,),
    )


def read_results(report: bytes) -> Results:
    """Read what Rust's own harness prints; names are those of the modules, without the target."""
    tests = read_cargo(report).tests
    return {test.id.removeprefix("tests::"): test.status for test in tests}


def _find_test(test: str, location: TestLocation, root: Node | None) -> _FoundTest | None:
    nodes = root.named_children if root is not None else []
    for name in location.inner_modules:
        inner = [node for node in nodes if node.type == "mod_item" and _name_of(node) == name]
        body = inner[0].child_by_field_name("body") if inner else None
        nodes = body.named_children if body is not None else []
    for node, attributes in list_siblings(nodes):
        if node.type == "function_item" and _name_of(node) == location.function:
            return _FoundTest(id=test, location=location, function=node, attributes=attributes)
    return None


def _name_of(node: Node) -> str:
    return node_text(node.child_by_field_name("name"))


def _is_plain(test: _FoundTest) -> bool:
    """Whether it runs once, under its own name: not `#[rstest]` and the like."""
    parameters = test.function.child_by_field_name("parameters")
    names = [read_attribute_name(attribute) for attribute in test.attributes]
    is_test = any(_TEST_ATTRIBUTE.fullmatch(name) for name in names)
    is_bare = parameters is not None and not parameters.named_children
    return is_test and is_bare and not any(re.search(r"rstest|case", name) for name in names)


def _build_file(request: ProbeRequest, found: list[_FoundTest]) -> _RustProbeFile:
    path, target = found[0].location.path, found[0].location.target
    source = request.sources[path].encode()
    inserted, tests = list[SourceEdit](), list[ProbeTest]()
    for test in filter(_is_plain, found):
        inserted += _write_copies(request, source, test, tests)
    inserted += _write_controls(request, found[0], tests)
    if path == target.root and target.is_discovered:
        name = f"zz_{make_name(request.token, 'file', path)}"
        new = CargoTarget(kind="test", name=name, root=f"{target.folder}/{name}.rs")
    else:
        new = target
    return _RustProbeFile(
        original=path,
        path=new.root if new != target else path,
        text=apply_edits(source, inserted).decode("utf-8", "replace"),
        target=new,
        tests=tuple(tests),
    )


def _write_copies(
    request: ProbeRequest, source: bytes, test: _FoundTest, tests: list[ProbeTest]
) -> Iterable[SourceEdit]:
    """Write a true copy of a test behind it, and wrong ones if it must be made to pass."""
    name, text = _rename_copy(request, source, test, ())
    tests.append(ProbeTest(name=name, kind="copy", expect="pass", original=test.id))
    yield insert_text(test.function.end_byte, text)
    if test.id not in request.fail_to_pass[:MAX_PERTURBED]:
        return
    rng = make_generator(request.token, "perturb", test.id)
    for change in perturb_rust_test(test.function, test.attributes, rng):
        name, text = _rename_copy(request, source, test, change.edits)
        tests.append(
            ProbeTest(
                name=name,
                kind="perturbed",
                expect="fail",
                original=test.id,
                how=change.how,
                certain=change.certain,
            )
        )
        yield insert_text(test.function.end_byte, text)
    yield from _write_helper_copies(request, source, test, tests)


def _write_helper_copies(
    request: ProbeRequest, source: bytes, test: _FoundTest, tests: list[ProbeTest]
) -> Iterable[SourceEdit]:
    """Write wrong copies of helpers and tables that a test uses, each with a copy of the test."""
    for name, declaration in _list_declarations(test):
        rng = make_generator(request.token, "helper", test.id, name)
        changes = list(list_likely_changes(declaration, rng))
        for change in rng.sample(changes, min(MAX_HELPER_WAYS, len(changes))):
            other = f"zz_{make_name(request.token, test.id, name, str(change.edits))}"
            title, text = _rename_copy(
                request, source, test, _rename_uses(test.function, name, other)
            )
            edits = (*change.edits, *_rename_uses(declaration, name, other))
            helper = apply_edits(declaration.text or b"", edits, declaration.start_byte)
            tests.append(
                ProbeTest(
                    name=title,
                    kind="perturbed",
                    expect="fail",
                    original=test.id,
                    how=change.how,
                    certain=False,
                )
            )
            code = f"\n\n{_HELPER_LINTS}{helper.decode('utf-8', 'replace')}{text}"
            yield insert_text(test.function.end_byte, code)


def _list_declarations(test: _FoundTest) -> Iterator[tuple[str, Node]]:
    """The functions and constants beside a test that the test names, each with its name."""
    beside = test.function.parent
    names = {node_text(node) for node in walk_nodes(test.function) if node.type == "identifier"} - {
        _name_of(test.function)
    }
    for node, attributes in list_siblings(beside.named_children if beside is not None else []):
        is_declared = node.type in ("function_item", "const_item", "static_item")
        if is_declared and not attributes and _name_of(node) in names:
            yield _name_of(node), node


def _rename_uses(node: Node, name: str, other: str) -> tuple[SourceEdit, ...]:
    uses = (inner for inner in walk_nodes(node) if inner.type == "identifier")
    return tuple(replace_node(inner, other) for inner in uses if node_text(inner) == name)


def _rename_copy(
    request: ProbeRequest, source: bytes, test: _FoundTest, edits: tuple[SourceEdit, ...]
) -> tuple[str, str]:
    """Return the path in its target and the text of a changed copy of a test."""
    title = test.function.child_by_field_name("name")
    assert title is not None
    letters = make_name(request.token, test.id, str(edits))
    name = f"{_prefix(request)}{letters}"
    original = source[test.start : test.function.end_byte]
    text = apply_edits(original, (replace_node(title, name), *edits), test.start)
    copy = f"\n\n{_LINTS}{text.decode('utf-8', 'replace')}\n"
    return _path_in_target(test.location, name), copy


def _path_in_target(location: TestLocation, name: str) -> str:
    return "::".join([*location.file_modules, *location.inner_modules, name])


def _prefix(request: ProbeRequest) -> str:
    """What all names of the probe begin with, to run them and nothing else."""
    return f"zz_{make_name(request.token, 'prefix')}_"


def _write_controls(
    request: ProbeRequest, beside: _FoundTest, tests: list[ProbeTest]
) -> Iterable[SourceEdit]:
    """Sums that are right and sums that are wrong, by each macro that tests use."""
    location = beside.location
    rng = make_generator(request.token, "controls", location.path)
    for number in range(2 * CONTROL_PAIRS):
        expect: Literal["pass", "fail"] = "pass" if number % 2 == 0 else "fail"
        name = f"{_prefix(request)}{make_name(request.token, location.path, str(number))}"
        first, second = rng.randrange(999), rng.randrange(999)
        total = first + second + (0 if expect == "pass" else rng.randint(1, 99))
        claim = (
            f"assert_eq!(sum, {total});",
            f"assert!(sum == {total});",
            f"if sum != {total} {{ panic!() }}",
        )[number // 2 % 3]
        body = f"let mut sum = {first}; sum += {second}; {claim}"
        text = f"\n\n#[test]\nfn {name}() {{ {body} }}\n"
        control = _path_in_target(location, name)
        tests.append(ProbeTest(name=control, kind="control", expect=expect))
        yield insert_text(beside.function.end_byte, text)


def _script_path(request: ProbeRequest) -> str:
    return f"{request.folder}/run.sh"


def _build_script(request: ProbeRequest, made: Iterable[_RustProbeFile]) -> dict[str, str]:
    """Write a script that puts the sources back before it runs a test program."""
    lines, written = [], {}
    for number, probe_file in enumerate(made):
        path = shlex.quote(f"{request.root}/{probe_file.path}")
        if probe_file.path == probe_file.original:
            kept = f"{request.folder}/original-{number}"
            written[kept] = request.sources[probe_file.original]
            lines.append(f"cp -- {shlex.quote(kept)} {path}")
        else:
            lines.append(f"rm -f -- {path}")
    written[_script_path(request)] = "\n".join([*lines, 'exec "$@"', ""])
    return {path.removeprefix(f"{request.root}/"): text for path, text in written.items()}


def _build_command(request: ProbeRequest, made: Iterable[_RustProbeFile]) -> str:
    """Call `cargo test` for the targets concerned, with the command's own options."""
    call = find_tool_call(request.command, "cargo")
    kept, harness = _kept_arguments(call.arguments)
    targets = sorted({_target_option(probe_file.target) for probe_file in made})
    words = [call.start, *kept, "--no-fail-fast", *targets, "--"]
    words += [*harness, "--test-threads=1", _prefix(request)]
    lines = [*call.setup, f"{' '.join(words)} >{shlex.quote(request.pipe)}"]
    script = _script_path(request)
    if not re.search(r"\s", script):
        host = "$(rustc -vV | sed -n 's/^host: //p' | tr a-z.- A-Z__)"
        lines.insert(-1, f'export "CARGO_TARGET_{host}_RUNNER=sh {script}"')
    return " && ".join(lines)


def _target_option(target: CargoTarget) -> str:
    return "--lib" if target.kind == "lib" else f"--{target.kind} {shlex.quote(target.name)}"


def _kept_arguments(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the options to keep of cargo's, and of those behind `--`."""
    kept, rest = list[str](), list(arguments)
    while rest:
        argument = rest.pop(0)
        name, has_value = split_option(argument)
        if argument == "--":
            return kept, [option for option in rest if option in _KEPT_FOR_HARNESS]
        if not argument.startswith("-"):
            continue
        values = [rest.pop(0)] if rest and _WITH_VALUE.fullmatch(name) and not has_value else []
        if not _DROPPED.fullmatch(name):
            kept += [argument, *values]
    return kept, []
