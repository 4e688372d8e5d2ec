"""Probes for `cargo test`.

In the first room copies are beside their originals, in the same module: in a new integration test
with a random name that holds the whole original file, or in the file itself if cargo would not
find a new one, as with tests inside sources. All sources are restored before the test programs
start: code under test cannot read the copies.

A procedural macro or a build script can read the tests while they are compiled. So the other rooms
hold each test once, right or made wrong, in the file itself.
"""

from __future__ import annotations

import random
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from closeloop.grading.integrity.probe import (
    MAX_PERTURBED,
    ROOMS,
    Perturbation,
    Probe,
    ProbeRequest,
    ProbeTest,
    Results,
    SourceEdit,
    apply_edits,
    change_literal,
    choose_changes,
    find_tool_call,
    insert_text,
    is_made_wrong,
    make_generator,
    make_name,
    node_text,
    parse_source,
    replace_node,
    split_option,
    walk_nodes,
)
from closeloop.grading.runner_reports import read_cargo
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node


# Find the package, target and file of a test of `cargo test`.


TargetKind = Literal["lib", "bin", "test"]


class CargoTarget(Record):
    """One target that cargo builds from a package."""

    kind: TargetKind
    name: str
    """Name in the manifest."""
    root: str
    """Path of its root file."""
    is_discovered: bool = False
    """Whether cargo would discover another target in a new file beside it."""

    @property
    def folder(self) -> str:
        return self.root.rpartition("/")[0]

    @property
    def crate(self) -> str:
        """Return the first part of its tests' ids."""
        return self.name.replace("-", "_")


class TestLocation(Record):
    """A possible location of a test, derived from its id."""

    path: str
    target: CargoTarget
    file_modules: tuple[str, ...]
    """Module path of the file."""
    inner_modules: tuple[str, ...]
    """Modules inside the file."""
    function: str


def list_targets(sources: Mapping[str, str]) -> list[CargoTarget]:
    """Return the targets of all packages whose manifest is among the sources."""
    targets = list[CargoTarget]()
    for path, text in sorted(sources.items()):
        folder, _, name = path.rpartition("/")
        try:
            manifest = tomllib.loads(text) if name == "Cargo.toml" else {}
        except tomllib.TOMLDecodeError:
            continue
        package = manifest.get("package")
        if isinstance(package, dict) and isinstance(package.get("name"), str):
            prefix = f"{folder}/" if folder else ""
            targets += _list_package_targets(manifest, package, prefix, sources)
    return targets


def _list_package_targets(
    manifest: Mapping[str, Any], package: Mapping[str, Any], prefix: str, sources: Mapping[str, str]
) -> Iterator[CargoTarget]:
    lib = manifest.get("lib") or {}
    lib_path = f"{prefix}{lib.get('path', 'src/lib.rs')}"
    if lib_path in sources:
        yield CargoTarget(kind="lib", name=lib.get("name", package["name"]), root=lib_path)
    declared_targets = list(_list_declared(manifest, prefix, sources))
    yield from declared_targets
    is_discovering = package.get("autotests", True) and not (
        manifest.get("test") and package.get("edition", "2015") == "2015"
    )
    declared_roots = {target.root for target in declared_targets}
    for path in sources:
        if not path.startswith(prefix) or path in declared_roots:
            continue
        match path.removeprefix(prefix).split("/"):
            case ["src", "main.rs"]:
                yield CargoTarget(kind="bin", name=package["name"], root=path)
            case ["src", "bin", name] if name.endswith(".rs"):
                yield CargoTarget(kind="bin", name=name[:-3], root=path)
            case ["tests", name] if name.endswith(".rs") and is_discovering:
                yield CargoTarget(kind="test", name=name[:-3], root=path, is_discovered=True)
            case ["src", "bin", name, "main.rs"]:
                yield CargoTarget(kind="bin", name=name, root=path)
            case ["tests", name, "main.rs"] if is_discovering:
                yield CargoTarget(kind="test", name=name, root=path)


def _list_declared(
    manifest: Mapping[str, Any], prefix: str, sources: Mapping[str, str]
) -> Iterator[CargoTarget]:
    """Yield the manifest's own `[[bin]]` and `[[test]]`."""
    kinds: tuple[tuple[TargetKind, str], ...] = (("bin", "src/bin"), ("test", "tests"))
    for kind, folder in kinds:
        for entry in manifest.get(kind) or ():
            name = str(entry.get("name"))
            usual = (f"{folder}/{name}.rs", f"{folder}/{name}/main.rs")
            for path in (entry["path"],) if "path" in entry else usual:
                if f"{prefix}{path}" in sources:
                    yield CargoTarget(kind=kind, name=name, root=f"{prefix}{path}")


def locate_test(
    test: str, targets: list[CargoTarget], sources: Mapping[str, str]
) -> Iterator[TestLocation]:
    """Yield possible locations of a test by its id; those in deeper modules first."""
    crate, *modules, function = test.split("::") if "::" in test else ("", "")
    roots = {target.root for target in targets}
    for target in targets:
        if target.crate != crate:
            continue
        for split in range(len(modules), -1, -1):
            file_modules, inner_modules = tuple(modules[:split]), tuple(modules[split:])
            for path in _module_paths(target, file_modules):
                if path in sources and (path == target.root or path not in roots):
                    yield TestLocation(
                        path=path,
                        target=target,
                        file_modules=file_modules,
                        inner_modules=inner_modules,
                        function=function,
                    )


def _module_paths(target: CargoTarget, modules: tuple[str, ...]) -> tuple[str, ...]:
    if not modules:
        return (target.root,)
    path = "/".join(filter(None, (target.folder, *modules)))
    return (f"{path}.rs", f"{path}/mod.rs")


# Make Rust tests wrong on purpose: assertions inverted, expected values changed.
#
# A change is certain if a passing test always reaches it, or if it inverts `#[should_panic]`.
# A changed value is only likely to matter, as a type defines its own `==`.


MAX_WAYS = 24
"""Maximum number of wrong copies of one test: each must be compiled and run."""
_OPPOSITE = {"assert_eq": "assert_ne", "assert_ne": "assert_eq"}
_PLAIN_MACROS = re.compile(
    r"(?:debug_)?assert\w*|e?print(?:ln)?|dbg|vec|format|write(?:ln)?|matches|panic|todo"
    r"|unimplemented|unreachable|concat|stringify|include\w*|env|line|file|json"
)
"""Macros that leave a function only by a panic."""
_COMPILED_MACROS = re.compile(r"include\w*|env|option_env|concat")
_LITERAL = re.compile(r"(?:integer|float|string|raw_string|char|boolean)_literal")
_EXPECTED_NAME = re.compile(r"want|expect|cases|tests|table", re.IGNORECASE)
_BEFORE = frozenset({"", ",", "&", ":", "==", "!=", "<=", ">=", "(", "[", "{", "="})
_AFTER = frozenset({"", ",", ".", "==", "!=", "&&", "||", ")", "]", "}", ";"})
_CLAIMING_FIELDS = {
    "let_declaration": "value",
    "const_item": "value",
    "static_item": "value",
    "for_expression": "value",
    "if_expression": "condition",
    "call_expression": "arguments",
}
_FAILING = re.compile(r"\bpanic!|\bassert|\bErr\(|\bunreachable!|\bexit\(")
_OWN_FLOW = frozenset({"closure_expression", "async_block", "function_item"})
_LOOPS = frozenset({"for_expression", "while_expression", "loop_expression"})
_ENDING = (
    " let _ending = { struct Ending; impl Drop for Ending { fn drop(&mut self) {"
    " if !::std::thread::panicking() { panic!() } } } Ending };"
)


def perturb_rust_test(
    function: Node, attributes: list[Node], rng: random.Random
) -> list[Perturbation]:
    """Return ways to make the test fail whenever it passes."""
    body = function.child_by_field_name("body")
    panicking = [node for node in attributes if read_attribute_name(node) == "should_panic"]
    if body is None:
        return []
    if panicking:
        return list(_spoil_panic(panicking[0], rng))
    inverted = list_inversions(function)
    changes = rng.sample(inverted, min(MAX_WAYS // 2, len(inverted)))
    likely_changes = list(list_likely_changes(body, rng))
    changes += rng.sample(likely_changes, min(MAX_WAYS - len(changes), len(likely_changes)))
    if function.child_by_field_name("return_type") is None:
        edit, how = insert_text(function.start_byte, "#[should_panic]\n"), "should_panic added"
    else:
        edit, how = insert_text(body.start_byte + 1, _ENDING), "failure added at the end"
    return [*changes, Perturbation(edits=(edit,), how=how, certain=True)]


def list_hidden_changes(
    function: Node, attributes: list[Node], rng: random.Random
) -> tuple[list[Perturbation], list[Perturbation]]:
    """Return changed values of a test that do not reveal which of two versions is wrong.

    First those that are everything an equality expects: no value meets both versions.
    """
    body = function.child_by_field_name("body")
    panicking = [node for node in attributes if read_attribute_name(node) == "should_panic"]
    if body is None or panicking:
        changes = list(_spoil_panic(panicking[0], rng)) if body is not None else []
        return [], changes[1:] or changes
    literal_starts = set(_list_expected_literals(body))
    likely_changes = list(list_likely_changes(body, rng))
    literal_changes = [
        change for change in likely_changes if change.edits[0].start in literal_starts
    ]
    return literal_changes, [
        change for change in likely_changes if change.edits[0].start not in literal_starts
    ]


def _list_expected_literals(body: Node) -> Iterator[int]:
    """Yield the start of each literal that is a whole argument of `assert_eq!`."""
    for macro in walk_nodes(body):
        if macro.type == "macro_invocation" and _macro_name(macro) == "assert_eq":
            for argument in _split_arguments(macro)[:2]:
                tokens = [token for token in argument if token.type != "-"]
                if len(tokens) == 1 and _LITERAL.fullmatch(tokens[0].type):
                    yield tokens[0].start_byte


def list_inversions(function: Node) -> list[Perturbation]:
    """Return inversions of the assertions that a test always reaches."""
    body = function.child_by_field_name("body")
    statements = list(_reached_statements(body)) if body is not None else []
    return [inversion for macro in _assertions(statements) for inversion in _invert(macro)]


def read_attribute_name(attribute: Node) -> str:
    """Return `tokio::test` of `#[tokio::test(flavor = "current_thread")]`."""
    inner = attribute.named_children[0] if attribute.named_children else None
    return node_text(inner.named_children[0]) if inner is not None and inner.named_children else ""


def _spoil_panic(attribute: Node, rng: random.Random) -> Iterator[Perturbation]:
    yield Perturbation(
        edits=(replace_node(attribute, ""),), how="should_panic removed", certain=True
    )
    for literal in walk_nodes(attribute):
        if literal.type == "string_literal":
            changed = change_literal(node_text(literal), rng)
            if changed is not None:
                how = f"{changed} for {node_text(literal)}"
                yield Perturbation(edits=(replace_node(literal, changed),), how=how, certain=True)


def _reached_statements(block: Node) -> Iterator[Node]:
    is_conditional = False
    for statement in block.named_children:
        if "comment" in statement.type:
            continue
        if statement.type == "attribute_item":
            is_conditional = True
            continue
        if not is_conditional:
            yield statement
            inner = _inner_block(statement)
            if inner is not None:
                yield from _reached_statements(inner)
        is_conditional = False
        if _may_leave(statement):
            return


def _inner_block(statement: Node) -> Node | None:
    """Return a statement's own block, or the body of a loop over a literal array."""
    inner = statement.named_children[0] if statement.type == "expression_statement" else statement
    if inner.type == "block":
        return inner
    if inner.type != "for_expression":
        return None
    value = inner.child_by_field_name("value")
    if value is not None and value.type == "reference_expression":
        value = value.child_by_field_name("value")
    is_filled = (
        value is not None
        and value.type == "array_expression"
        and bool(value.named_children)
        and value.child_by_field_name("length") is None
    )
    return inner.child_by_field_name("body") if is_filled else None


def _may_leave(node: Node, in_loop: bool = False) -> bool:
    """Return whether a statement may leave its function or loop early in a passing test."""
    if node.type == "return_expression":
        return True
    if node.type in ("break_expression", "continue_expression"):
        return not in_loop or any(child.type == "label" for child in node.children)
    if node.type == "macro_invocation":
        return not _PLAIN_MACROS.fullmatch(_macro_name(node))
    if node.type in _OWN_FLOW:
        return False
    return any(_may_leave(child, in_loop or node.type in _LOOPS) for child in node.children)


def _macro_name(macro: Node) -> str:
    return node_text(macro.child_by_field_name("macro")).rpartition("::")[2]


def _assertions(statements: list[Node]) -> Iterator[Node]:
    for statement in statements:
        inner = statement
        if statement.type == "expression_statement" and statement.named_children:
            inner = statement.named_children[0]
        if inner.type == "macro_invocation":
            yield inner


def _split_arguments(macro: Node) -> list[list[Node]]:
    """Return the tokens of each argument; commas of generics split too, as only types tell."""
    tree = next((child for child in macro.children if child.type == "token_tree"), None)
    arguments: list[list[Node]] = [[]]
    for token in tree.children[1:-1] if tree is not None else []:
        if token.type == ",":
            arguments.append([])
        elif "comment" not in token.type:
            arguments[-1].append(token)
    return [argument for argument in arguments if argument]


def _invert(macro: Node) -> Iterator[Perturbation]:
    name, title = _macro_name(macro), macro.child_by_field_name("macro")
    line = macro.start_point[0] + 1
    if name in _OPPOSITE and title is not None:
        end = title.end_byte
        edit = SourceEdit(start=end - len(name), end=end, text=_OPPOSITE[name])
        how = f"{_OPPOSITE[name]} for {name} in line {line}"
        yield Perturbation(edits=(edit,), how=how, certain=True)
    arguments = _split_arguments(macro)
    if name != "assert" or not arguments:
        return
    is_split_wrong = len(arguments) > 1 and any(t.type in ("<", ">", "|") for t in arguments[0])
    if not is_split_wrong:
        edits = (
            insert_text(arguments[0][0].start_byte, "!("),
            insert_text(arguments[0][-1].end_byte, ")"),
        )
        yield Perturbation(edits=edits, how=f"assertion inverted in line {line}", certain=True)


def list_likely_changes(node: Node, rng: random.Random) -> Iterator[Perturbation]:
    """Yield changed values for every assertion in a function or table, reached or not."""
    changes = {change.edits[0].start: change for change in _changed_values(node, rng)}
    yield from changes.values()


def _changed_values(node: Node, rng: random.Random) -> Iterator[Perturbation]:
    for inner in walk_nodes(node):
        for part in _list_claimed_parts(inner):
            yield from _change_literals(part, rng)


def _list_claimed_parts(node: Node) -> list[Node]:
    """Return the compared parts of a node: in assertions, conditions, tables and calls that
    assert."""
    if node.type == "macro_invocation":
        arguments = _split_arguments(node)[:2] if _asserts(node) else []
        return [token for argument in arguments for token in argument]
    field = _CLAIMING_FIELDS.get(node.type)
    part = node.child_by_field_name(field) if field else None
    if part is None:
        return []
    if node.type == "let_declaration":
        is_claim = bool(_EXPECTED_NAME.search(node_text(node.child_by_field_name("pattern"))))
    elif node.type == "if_expression":
        is_claim = bool(_FAILING.search(node_text(node)))
    elif node.type == "call_expression":
        is_claim = _is_statement(node)
    else:
        is_claim = True
    return [part] if is_claim else []


def _asserts(macro: Node) -> bool:
    """Return whether a macro may assert: all that are not known to do something else."""
    name = _macro_name(macro)
    return "assert" in name or not _PLAIN_MACROS.fullmatch(name)


def _is_statement(call: Node) -> bool:
    """Return whether a call of a plain function is a statement, as with helpers that assert."""
    function, parent = call.child_by_field_name("function"), call.parent
    is_plain = function is not None and function.type == "identifier"
    is_tried = parent is not None and parent.type == "try_expression"
    container = parent.parent if parent is not None and is_tried else parent
    return (
        is_plain and container is not None and container.type in ("expression_statement", "block")
    )


def _change_literals(node: Node, rng: random.Random) -> Iterator[Perturbation]:
    for literal in walk_nodes(node, skip=_OWN_FLOW):
        if _LITERAL.fullmatch(literal.type) and _is_value(literal):
            changed = change_literal(node_text(literal), rng)
            if changed is not None:
                how = f"{changed} for {node_text(literal)} in line {literal.start_point[0] + 1}"
                edit = replace_node(literal, changed)
                yield Perturbation(edits=(edit,), how=how, certain=False)


def _is_value(literal: Node) -> bool:
    """Return whether another value compiles: not a length, index, field, operand or file name."""
    before, after = literal.prev_sibling, literal.next_sibling
    if before is not None and before.type == "-":
        before = before.prev_sibling
    if (before.type if before else "") not in _BEFORE or (
        after.type if after else ""
    ) not in _AFTER:
        return False
    tree = literal.parent
    if tree is None or tree.type != "token_tree":
        return tree is None or tree.type not in ("index_expression", "match_pattern")
    opener = tree.prev_sibling
    if opener is None:
        return True
    if opener.type == "!":
        return not _COMPILED_MACROS.fullmatch(node_text(opener.prev_sibling))
    is_index = tree.children[0].type == "[" and opener.type in ("identifier", "token_tree", "?")
    return not is_index


def list_siblings(nodes: list[Node]) -> Iterator[tuple[Node, list[Node]]]:
    """Yield each item with the attributes in front of it."""
    attributes: list[Node] = []
    for node in nodes:
        if node.type == "attribute_item":
            attributes.append(node)
        elif "comment" not in node.type:
            yield node, attributes
            attributes = []


# Restore the tests inside a Rust source file to their state before an agent's change.


_INLINE_TEST_ATTRIBUTE = re.compile(r"(?:\w+::)*(?:test|bench|rstest|test_case)")
_TEST_MODULES = frozenset({"test", "tests"})
_CONTAINERS = frozenset(
    {"mod_item", "impl_item", "trait_item", "function_item", "struct_item", "enum_item"}
)

Container = tuple[str, ...]


class _TestItem(Record):
    """An item that exists only in test builds."""

    container: Container
    key: str
    start: int
    end: int
    text: str


def restore_inline_tests(agent_text: str, base_text: str) -> str | None:
    """Return the agent's source file with the test code of the base, and no other test code.

    Test code is what has `#[cfg(test)]`, `#[test]` and the like, or is a module named `tests`, at
    any depth. None if that is not possible: one of the files does not parse, or the container of
    the base's test code is gone.
    """
    agent = parse_source("tree_sitter_rust", agent_text.encode())
    base = parse_source("tree_sitter_rust", base_text.encode())
    if agent is None or base is None:
        return None
    try:
        return _restore(agent, base, agent_text, base_text)
    except RecursionError:  # nested deeper than people write
        return None


def _restore(agent: Node, base: Node, agent_text: str, base_text: str) -> str | None:
    if _is_only_for_tests(base):
        return base_text
    if _is_only_for_tests(agent):
        return None
    missing = _group_items(_list_test_items(base, ()))
    ends = dict(_list_container_ends(agent, ()))
    edits = []
    for item in _list_test_items(agent, ()):
        originals = missing.get((item.container, item.key), [])
        text = originals.pop(0).text if originals else ""
        edits.append(SourceEdit(start=item.start, end=item.end, text=text))
    for (container, _), items in missing.items():
        for item in items:
            if container not in ends:
                return None
            edits.append(insert_text(ends[container], f"\n{item.text}\n"))
    return apply_edits(agent_text.encode(), edits).decode()


def _is_only_for_tests(root: Node) -> bool:
    """Return whether the whole file is under `#![cfg(test)]`."""
    inner = [node for node in root.named_children if node.type == "inner_attribute_item"]
    return any(_asks_for_tests(attribute) for attribute in inner)


def _group_items(items: Iterator[_TestItem]) -> dict[tuple[Container, str], list[_TestItem]]:
    groups: dict[tuple[Container, str], list[_TestItem]] = {}
    for item in items:
        groups.setdefault((item.container, item.key), []).append(item)
    return groups


def _list_test_items(node: Node, container: Container) -> Iterator[_TestItem]:
    for item, attributes in list_siblings(node.named_children):
        if _is_test_item(item, attributes):
            start = min(node.start_byte for node in (item, *attributes))
            after = item.next_sibling
            end = after.end_byte if after is not None and after.type == "," else item.end_byte
            text = (node.text or b"")[start - node.start_byte : end - node.start_byte]
            yield _TestItem(
                container=container,
                key=_make_key(item),
                start=start,
                end=end,
                text=text.decode("utf-8", "replace"),
            )
        else:
            inner_container = (
                (*container, _make_key(item)) if item.type in _CONTAINERS else container
            )
            yield from _list_test_items(item, inner_container)


def _list_container_ends(node: Node, container: Container) -> Iterator[tuple[Container, int]]:
    """Yield where items may be added: at the end of the file, a module, implementation or trait."""
    if not container:
        yield container, node.end_byte
    for item in node.named_children:
        body = item.child_by_field_name("body")
        if body is not None and body.type == "declaration_list" and item.type in _CONTAINERS:
            inner_container = (*container, _make_key(item))
            yield inner_container, body.end_byte - 1
            yield from _list_container_ends(body, inner_container)


def _make_key(item: Node) -> str:
    """Return the key that identifies an item in another version of the file."""
    name, body = item.child_by_field_name("name"), item.child_by_field_name("body")
    if name is not None:
        return f"{item.type} {node_text(name)}"
    head = item.text or b""
    if body is not None and item.type == "impl_item":
        head = head[: body.start_byte - item.start_byte]
    return f"{item.type} {' '.join(head.decode('utf-8', 'replace').split())}"


def _is_test_item(item: Node, attributes: list[Node]) -> bool:
    names = [read_attribute_name(attribute) for attribute in attributes]
    return (
        any(_INLINE_TEST_ATTRIBUTE.fullmatch(name) for name in names)
        or any(_asks_for_tests(attribute) for attribute in attributes)
        or (
            item.type == "mod_item" and node_text(item.child_by_field_name("name")) in _TEST_MODULES
        )
    )


def _asks_for_tests(attribute: Node) -> bool:
    """Return whether an attribute is a `cfg` that holds only, or also, in test builds."""
    if read_attribute_name(attribute) != "cfg":
        return False
    condition = re.sub(r'"[^"]*"|\bnot\s*\([^()]*\)', "", node_text(attribute))
    return bool(re.search(r"\btest\b", condition))


CONTROL_PAIRS = 3
"""Number of controls that must pass, and of those that must fail, in each file."""
_TEST_ATTRIBUTE = re.compile(r"(?:\w+::)*test")
MAX_HELPER_WAYS = 4
"""Maximum number of wrong copies of one helper or table of a test."""
MAX_NAMED_CHANGES = 3
_HELPER_LINTS = "#[allow(non_upper_case_globals, arithmetic_overflow, unconditional_panic)]\n"
_LINTS = "#[allow(arithmetic_overflow, unconditional_panic)]\n"
_DROPPED = re.compile(
    r"lib|bins?|examples?|tests?|bench(?:es)?|all-targets|doc|no-run|no-fail-fast|fail-fast"
    r"|message-format|q|quiet|v+|verbose"
)
"""Options that select tests or reports and are dropped; all others stay as in the command."""
_WITH_VALUE = re.compile(
    r"p|package|exclude|F|features|j|jobs|profile|target|target-dir|manifest-path|message-format"
    r"|color|config|Z|bin|example|test|bench|C|lockfile-path"
)
_KEPT_FOR_HARNESS = frozenset({"--ignored", "--include-ignored"})


_READS_SOURCES = re.compile(rb'\.rs"|file!\(|CARGO_MANIFEST_DIR|read_dir\(|glob\(')
"""Ways to read test files, which are empty while a probe runs."""


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
    """The probe made of one file."""

    original: str
    path: str
    """Destination of the text: the original's path, or a new one beside it."""
    text: str
    left: str
    """Text of the original while its tests run, without anything that they expect."""
    target: CargoTarget
    tests: tuple[ProbeTest, ...]


def build_probe(request: ProbeRequest) -> Probe | None:
    """Build copies, wrong copies and controls for every file with wanted tests.

    Rooms after the first hold one version of each test, and controls.
    """
    tests_by_path: dict[str, list[_FoundTest]] = {}
    targets = list_targets(request.sources)
    roots: dict[str, Node | None] = {}
    for test in dict.fromkeys((*request.fail_to_pass, *request.others)):
        for location in locate_test(test, targets, request.sources):
            if location.path not in roots:
                text = request.sources[location.path].encode()
                roots[location.path] = parse_source("tree_sitter_rust", text)
            found_test = _find_test(test, location, roots[location.path])
            if found_test is not None:
                tests_by_path.setdefault(location.path, []).append(found_test)
                break
    if not tests_by_path:
        return None
    build_file = _build_single_file if request.room else _build_file
    probe_files = [build_file(request, tests) for _, tests in sorted(tests_by_path.items())]
    return Probe(
        files={
            **_build_script(request, probe_files),
            **{file.path: file.text for file in probe_files},
        },
        command=_build_command(request, probe_files),
        env={"RUST_BACKTRACE": "0"},  # most of its tests panic, and a backtrace takes a second
        tests=tuple(test for file in probe_files for test in file.tests),
        exit_codes=(101,),
        rooms=1 + ROOMS,
    )


def read_results(report: bytes) -> Results:
    """Read the output of Rust's own harness; names are module paths, without the target."""
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
    """Return whether a test runs once, under its own name: not `#[rstest]` and the like."""
    parameters = test.function.child_by_field_name("parameters")
    names = [read_attribute_name(attribute) for attribute in test.attributes]
    is_test = any(_TEST_ATTRIBUTE.fullmatch(name) for name in names)
    is_bare = parameters is not None and not parameters.named_children
    return is_test and is_bare and not any(re.search(r"rstest|case", name) for name in names)


def _build_file(request: ProbeRequest, found_tests: list[_FoundTest]) -> _RustProbeFile:
    path, target = found_tests[0].location.path, found_tests[0].location.target
    source = request.sources[path].encode()
    edits, tests = list[SourceEdit](), list[ProbeTest]()
    for test in filter(_is_plain, found_tests):
        edits += _write_copies(request, source, test, tests)
    edits += _write_controls(request, found_tests[0], tests)
    if path == target.root and target.is_discovered:
        name = f"zz_{make_name(request.token, 'file', path)}"
        probe_target = CargoTarget(kind="test", name=name, root=f"{target.folder}/{name}.rs")
    else:
        probe_target = target
    return _RustProbeFile(
        original=path,
        path=probe_target.root if probe_target != target else path,
        text=apply_edits(source, edits).decode("utf-8", "replace"),
        left="" if target.kind == "test" else _empty_tests(source, found_tests),
        target=probe_target,
        tests=tuple(tests),
    )


def _build_single_file(request: ProbeRequest, found_tests: list[_FoundTest]) -> _RustProbeFile:
    """Return the file with each wanted test renamed, right or made wrong."""
    path, target = found_tests[0].location.path, found_tests[0].location.target
    source = request.sources[path].encode()
    edits, tests = list[SourceEdit](), list[ProbeTest]()
    for test in filter(_is_plain, found_tests):
        title = test.function.child_by_field_name("name")
        assert title is not None
        names = [_single_name(request, room, test) for room in (1, ROOMS)]
        name, opposite = names if request.room == 1 else reversed(names)
        edits += [insert_text(test.start, _LINTS), replace_node(title, name)]
        changes, is_told_apart = _choose_hidden_changes(request, test, found_tests)
        if not changes or not is_made_wrong(request, test.id):
            tests.append(_expect_copy(source, test, name))
            continue
        edits += [edit for change in changes for edit in change.edits]
        certain = all(change.certain for change in changes)
        tests.append(
            ProbeTest(
                name=_path_in_target(test.location, name),
                kind="perturbed",
                expect="fail",
                original=test.id,
                how="; ".join(change.how for change in changes[:MAX_NAMED_CHANGES]),
                certain=certain,
                opposite=_path_in_target(test.location, opposite)
                if certain or is_told_apart
                else "",
            )
        )
    edits += _write_controls(request, found_tests[0], tests)
    return _RustProbeFile(
        original=path,
        path=path,
        text=apply_edits(source, edits).decode("utf-8", "replace"),
        left="" if target.kind == "test" else _empty_tests(source, found_tests),
        target=target,
        tests=tuple(tests),
    )


def _single_name(request: ProbeRequest, room: int, test: _FoundTest) -> str:
    letters = make_name(request.token, str(room), test.id)
    return f"{_prefix(replace(request, room=room))}{letters}"


def _choose_hidden_changes(
    request: ProbeRequest, test: _FoundTest, file_tests: Iterable[_FoundTest]
) -> tuple[list[Perturbation], bool]:
    """Choose how to make a test wrong: in itself, or in a helper or table that only it uses."""
    rng = make_generator(request.token, "hidden", test.id)
    literal_changes, changes = list_hidden_changes(test.function, test.attributes, rng)
    # Values that an equality expects need no reference; with one, the others count as well.
    if literal_changes and not (changes and request.round % 2):
        return choose_changes(literal_changes, rng, together=True), True
    if changes:
        return choose_changes(changes, rng, together=False), False
    functions = [node_text(file_test.function) for file_test in file_tests]
    for name, declaration in _list_declarations(test):
        if sum(bool(re.search(rf"\b{name}\b", function)) for function in functions) == 1:
            changes += list_likely_changes(declaration, rng)
    candidates = changes or list_inversions(test.function)
    return choose_changes(candidates, rng, together=False), False


def _empty_tests(source: bytes, found_tests: Iterable[_FoundTest]) -> str:
    """Return a file of the product without the bodies of its tests, or of their modules."""
    emptied = list[SourceEdit]()
    for test in found_tests:
        block = outer = test.function
        while outer.parent is not None:
            outer = outer.parent
            block = outer if outer.type == "mod_item" else block
        body = block.child_by_field_name("body")
        if body is not None:
            lines = "\n" * node_text(body).count("\n")
            emptied.append(replace_node(body, f"{{{lines}}}"))
    return apply_edits(source, dict.fromkeys(emptied)).decode("utf-8", "replace")


def _write_copies(
    request: ProbeRequest, source: bytes, test: _FoundTest, tests: list[ProbeTest]
) -> Iterable[SourceEdit]:
    """Write a true copy of a test after it, and wrong ones if it is a fail-to-pass test."""
    name, text = _rename_copy(request, source, test, ())
    tests.append(_expect_copy(source, test, name.rpartition("::")[2]))
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


def _expect_copy(source: bytes, test: _FoundTest, name: str) -> ProbeTest:
    return ProbeTest(
        name=_path_in_target(test.location, name),
        kind="copy",
        expect="pass",
        original=test.id,
        certain=not _READS_SOURCES.search(source),
    )


def _write_helper_copies(
    request: ProbeRequest, source: bytes, test: _FoundTest, tests: list[ProbeTest]
) -> Iterable[SourceEdit]:
    """Write wrong copies of helpers and tables that a test uses, each with a copy of the test."""
    for name, declaration in _list_declarations(test):
        rng = make_generator(request.token, "helper", test.id, name)
        changes = list(list_likely_changes(declaration, rng))
        for change in rng.sample(changes, min(MAX_HELPER_WAYS, len(changes))):
            new_name = f"zz_{make_name(request.token, test.id, name, str(change.edits))}"
            title, text = _rename_copy(
                request, source, test, _rename_uses(test.function, name, new_name)
            )
            edits = (*change.edits, *_rename_uses(declaration, name, new_name))
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
    """Yield the functions and constants beside a test that the test names, each with its name."""
    parent = test.function.parent
    names = {node_text(node) for node in walk_nodes(test.function) if node.type == "identifier"} - {
        _name_of(test.function)
    }
    for node, attributes in list_siblings(parent.named_children if parent is not None else []):
        is_declared = node.type in ("function_item", "const_item", "static_item")
        if is_declared and not attributes and _name_of(node) in names:
            yield _name_of(node), node


def _rename_uses(node: Node, name: str, new_name: str) -> tuple[SourceEdit, ...]:
    uses = (inner for inner in walk_nodes(node) if inner.type == "identifier")
    return tuple(replace_node(inner, new_name) for inner in uses if node_text(inner) == name)


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
    """Return the common prefix of a room's names, by which only these are run."""
    return f"zz_{make_name(request.token, 'prefix', str(request.room))}_"


def _write_controls(
    request: ProbeRequest, neighbour: _FoundTest, tests: list[ProbeTest]
) -> Iterable[SourceEdit]:
    """Write tests of correct sums and of wrong sums, with each macro that tests use."""
    location = neighbour.location
    rng = make_generator(request.token, "controls", location.path, str(request.room))
    for number in range(2 * CONTROL_PAIRS):
        expect: Literal["pass", "fail"] = "pass" if number % 2 == 0 else "fail"
        letters = make_name(request.token, location.path, str(request.room), str(number))
        name = f"{_prefix(request)}{letters}"
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
        yield insert_text(neighbour.function.end_byte, text)


def _script_path(request: ProbeRequest) -> str:
    return f"{request.folder}/run.sh"


def _build_script(request: ProbeRequest, probe_files: Iterable[_RustProbeFile]) -> dict[str, str]:
    """Write a script that empties the test sources before it runs a test program."""
    lines, texts = [], {}
    for number, probe_file in enumerate(probe_files):
        left_path = f"{request.folder}/left-{number}"
        texts[left_path] = probe_file.left
        original = shlex.quote(f"{request.root}/{probe_file.original}")
        lines.append(f"cp -- {shlex.quote(left_path)} {original}")
        if probe_file.path != probe_file.original:
            lines.append(f"rm -f -- {shlex.quote(f'{request.root}/{probe_file.path}')}")
    texts[_script_path(request)] = "\n".join([*lines, 'exec "$@"', ""])
    return {path.removeprefix(f"{request.root}/"): text for path, text in texts.items()}


def _build_command(request: ProbeRequest, probe_files: Iterable[_RustProbeFile]) -> str:
    """Build a `cargo test` call for the targets concerned, with the command's own options."""
    call = find_tool_call(request.command, "cargo")
    cargo_options, harness_options = _kept_arguments(call.arguments)
    targets = sorted({_target_option(probe_file.target) for probe_file in probe_files})
    words = [call.start, *cargo_options, "--no-fail-fast", *targets, "--"]
    words += [*harness_options, "--test-threads=1", _prefix(request)]
    lines = [*call.setup, f"{' '.join(words)} >{shlex.quote(request.pipe)}"]
    script = _script_path(request)
    if not re.search(r"\s", script):
        host = "$(rustc -vV | sed -n 's/^host: //p' | tr a-z.- A-Z__)"
        lines.insert(-1, f'export "CARGO_TARGET_{host}_RUNNER=sh {script}"')
    return " && ".join(lines)


def _target_option(target: CargoTarget) -> str:
    return "--lib" if target.kind == "lib" else f"--{target.kind} {shlex.quote(target.name)}"


def _kept_arguments(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the options of cargo to keep, and those after `--`."""
    kept_arguments, remaining = list[str](), list(arguments)
    while remaining:
        argument = remaining.pop(0)
        name, has_value = split_option(argument)
        if argument == "--":
            return kept_arguments, [option for option in remaining if option in _KEPT_FOR_HARNESS]
        if not argument.startswith("-"):
            continue
        values = (
            [remaining.pop(0)]
            if remaining and _WITH_VALUE.fullmatch(name) and not has_value
            else []
        )
        if not _DROPPED.fullmatch(name):
            kept_arguments += [argument, *values]
    return kept_arguments, []
