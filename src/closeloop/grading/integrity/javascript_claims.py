"""Make some assertions of a JavaScript test wrong, and let each report whether it held.

A random choice leaves each assertion as it is or makes it wrong. A wrong one that fails does not
end its test, so that everything after it runs as usual. The other room holds the same test with
each choice reversed. Nobody who reads the test can tell right from wrong without knowing the
answers.
"""

from __future__ import annotations

import posixpath
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

import msgspec

from closeloop.grading.integrity.javascript_assertions import (
    FUNCTIONS,
    Assertion,
    Site,
    SiteFinder,
    SplitAssertion,
    always_ends,
    append_statement,
    called_names,
    change_expectation,
    invert_assertion,
    list_statements,
    name_of_function,
    passes_error_on,
    read_assertion,
    sees_failure,
    split_assertion,
    statement_around,
    wrap_site,
)
from closeloop.grading.integrity.javascript_source import (
    ASSERT_MODULES,
    Declaration,
    ValueChanger,
    arguments_of,
    change_value,
    descendants,
    find_declarations,
    imported_names,
    make_changer,
    match_declarations,
    parse_script,
    random_word,
)
from closeloop.grading.integrity.probe import (
    Perturbation,
    ProbeKind,
    ProbeRequest,
    ProbeTest,
    SourceEdit,
    apply_edits,
    insert_text,
    node_text,
)
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node


# Shared functions that may run with JavaScript tests: helpers, hooks, functions of other modules.
#
# Names decide: a function that a test names may be called by it, and so on transitively. This
# errs on the side of too many. Functions without a name, such as hooks, always run.


_NAMES = ("identifier", "property_identifier", "shorthand_property_identifier")
_RELATIVE = re.compile(rb"""['"`](\.{1,2}/[^'"`\n]*)['"`]""")
_SUFFIXES = ("", ".js", ".ts", ".mjs", ".cjs", ".tsx", ".jsx", ".mts", ".cts")


class ScriptModule(Record):
    """A file of tests, or one that tests import."""

    path: str
    content: bytes
    root: Node
    declarations: list[Declaration]
    """Empty for a module that holds no tests."""


class SharedFunction(Record):
    """A function outside all tests."""

    module: ScriptModule
    node: Node
    names: frozenset[str]
    """Names that it mentions."""


class SharedFunctions:
    """The functions of some modules that tests may run."""

    def __init__(self, modules: Iterable[ScriptModule]) -> None:
        self.by_name: dict[str, list[SharedFunction]] = {}
        self.aliases: dict[str, set[str]] = {}
        self.unsafe: set[str] = set()
        """Names of functions that may be expected to fail."""
        for module in modules:
            self._add_module(module)
        functions = self.reach(self.unsafe, hooks=False)
        self.unsafe.update(name_of_function(function.node) for function in functions)
        self.unsafe.discard("")

    def _add_module(self, module: ScriptModule) -> None:
        tests = {
            declaration.callback.start_byte: declaration.kind
            for declaration in module.declarations
            if declaration.callback
        }
        for node in _outer_functions(module.root, tests):
            shared = SharedFunction(module=module, node=node, names=frozenset(names_in(node)))
            self.by_name.setdefault(name_of_function(node), []).append(shared)
        for node in descendants(module.root):
            if node.type in ("import_specifier", "variable_declarator", "pair_pattern"):
                self._add_alias(node)
            elif node.type in ("call_expression", "try_statement"):
                self.unsafe.update(_names_expected_to_fail(node))

    def _add_alias(self, node: Node) -> None:
        """Record an alias: `import { check as verify }`, `const verify = makeCheck(3)`."""
        fields = {
            "import_specifier": ("alias", "name"),
            "variable_declarator": ("name", "value"),
            "pair_pattern": ("value", "key"),
        }
        alias, value = (node.child_by_field_name(field) for field in fields[node.type])
        if alias is None or value is None or alias.type != "identifier":
            return
        if value.type not in FUNCTIONS:
            targets = {node_text(value)} if value.type in _NAMES else set(names_in(value))
            self.aliases.setdefault(node_text(alias), set()).update(targets)

    def reach(self, names: Iterable[str], *, hooks: bool = True) -> list[SharedFunction]:
        """Return the functions reachable from these names, and from hooks."""
        pending, visited = [*names, *([""] if hooks else [])], set[str]()
        functions: list[SharedFunction] = []
        while pending:
            name = pending.pop()
            if name in visited:
                continue
            visited.add(name)
            pending += self.aliases.get(name, ())
            for function in self.by_name.get(name, ()):
                functions.append(function)
                pending += function.names
        return functions


def read_imported(
    module: ScriptModule, helpers: Mapping[str, str], known: dict[str, ScriptModule]
) -> None:
    """Add to `known` the modules that a module imports by relative path, directly or indirectly."""
    pending = [module]
    while pending:
        importing = pending.pop()
        folder = posixpath.dirname(importing.path)
        for match in _RELATIVE.finditer(importing.content):
            stem = posixpath.normpath(posixpath.join(folder, match[1].decode("utf-8", "replace")))
            path = next((path for path in _candidates(stem) if path in helpers), None)
            if path is None or path in known:
                continue
            content = helpers[path].encode("utf-8", "surrogateescape")
            root = parse_script(path, content)
            if root is not None:
                known[path] = ScriptModule(path=path, content=content, root=root, declarations=[])
                pending.append(known[path])


def _candidates(stem: str) -> Iterator[str]:
    for suffix in _SUFFIXES:
        yield stem + suffix
        yield f"{stem}/index{suffix}"
    bare, dot, suffix = stem.rpartition(".")
    if dot and suffix in ("js", "mjs", "cjs"):
        yield f"{bare}.{suffix.replace('js', 'ts')}"


def names_in(node: Node) -> Iterator[str]:
    """Return all names that a piece of code mentions."""
    return (node_text(inner) for inner in descendants(node) if inner.type in _NAMES)


def _outer_functions(root: Node, tests: Mapping[int, str]) -> Iterator[Node]:
    """Yield functions outside tests and other functions; callbacks of suites are searched too."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        kind = tests.get(node.start_byte) if node.type in FUNCTIONS else "suite"
        if kind is None:
            yield node
        elif kind == "suite":
            waiting.extend(reversed(node.named_children))


def _names_expected_to_fail(node: Node) -> Iterator[str]:
    """Yield names in, or of, functions that a call or a `try` may expect to fail."""
    if node.type == "try_statement":
        handler = node.child_by_field_name("handler")
        if not passes_error_on(handler):
            for statement in list_statements(node.child_by_field_name("body")):
                yield from names_in(statement)
    elif sees_failure(called_names(node)):
        for argument in arguments_of(node):
            if argument.type == "identifier":
                yield node_text(argument)
            for inner in (argument, *descendants(argument)):
                if inner.type in FUNCTIONS:
                    yield from names_in(inner)


# The test files that a JavaScript probe is built from, and its random names.


MAX_OTHER_FILES = 3
"""Maximum number of files without a deciding test that are copied to confirm their tests."""
_EQUALITIES = ("ok", "equal", "strictEqual", "deepEqual", "deepStrictEqual")
_NAME_PATTERN = re.compile(
    r"(?P<head>(?:test|spec)[-_])?.*?(?P<tail>[-_]?(?:tests?|specs?))?", re.I
)


class ProbedFile(ScriptModule):
    """A test file, and the tests in it that the probe includes."""

    deciding: dict[int, list[str]]
    """Ids of the deciding tests, by the start of their declaration."""
    others: dict[int, list[str]]
    assert_names: dict[str, str]
    test_function: str
    """Name by which the file calls its runner: `it`."""
    assertion: Assertion | None
    """An example of the file's assertions."""


class NameMaker:
    """Makes the random names of one probe; all titles of its tests share a prefix."""

    def __init__(self, token: str) -> None:
        self.rng = random.Random(token)  # noqa: S311 - the token is the secret
        self.prefix = random_word(self.rng)

    def make_title(self) -> str:
        return f"{self.prefix}{random_word(self.rng)}"

    def make_path(self, original: str) -> str:
        """Return a path beside the original that matches the same patterns for test files."""
        path = PurePosixPath(original)
        stem, dot, suffix = path.name.partition(".")
        pattern = _NAME_PATTERN.fullmatch(stem)
        head, tail = (pattern["head"] or "", pattern["tail"] or "") if pattern else ("", "")
        if head + tail == stem or tail == stem:
            head, tail = "", f".{tail}"
        return str(path.with_name(f"{head}{random_word(self.rng)}{tail}{dot}{suffix}"))


def read_test_files(request: ProbeRequest) -> list[ProbedFile]:
    """Read the files with deciding tests, and up to `MAX_OTHER_FILES` with others."""
    deciding = _ids_by_file(request.fail_to_pass, request.sources)
    other_tests = _ids_by_file(request.others, request.sources)
    separator = " " if request.runner == "mocha" else " > "
    test_files = []
    for path in (
        *deciding,
        *[path for path in other_tests if path not in deciding][:MAX_OTHER_FILES],
    ):
        content = request.sources[path].encode("utf-8", "surrogateescape")
        root = None if b"import.meta.vitest" in content else parse_script(path, content)
        if root is None:
            continue
        declarations = find_declarations(root)
        located_tests = [
            _locate(declarations, ids.get(path, {}), separator) for ids in (deciding, other_tests)
        ]
        if any(located_tests):
            assert_names = imported_names(root, ASSERT_MODULES)
            test_file = ProbedFile(
                path=path,
                content=content,
                root=root,
                declarations=declarations,
                deciding=located_tests[0],
                others=located_tests[1],
                assert_names=assert_names,
                test_function=next(
                    declaration.function
                    for declaration in declarations
                    if declaration.kind == "test"
                ),
                assertion=_assertion_in_use(root, declarations, assert_names),
            )
            test_files.append(test_file)
    return test_files


def _ids_by_file(ids: Iterable[str], sources: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Group test ids by the file that they name, each with its titles."""
    by_file: dict[str, dict[str, str]] = {}
    for test in ids:
        parts = test.split(" > ")
        for count in range(len(parts) - 1, 0, -1):
            path = " > ".join(parts[:count])
            if path in sources:
                by_file.setdefault(path, {})[test] = " > ".join(parts[count:])
                break
    return by_file


def _locate(
    declarations: list[Declaration], titles: Mapping[str, str], separator: str
) -> dict[int, list[str]]:
    tests_by_start: dict[int, list[str]] = {}
    for test, title in titles.items():
        for declaration in match_declarations(declarations, title, separator):
            if declaration.is_fit:
                tests_by_start.setdefault(declaration.call.start_byte, []).append(test)
    return tests_by_start


def assert_equal(assertion: Assertion | None, actual: str, expected: str) -> str:
    """Write an assertion in the style of another; None: in plain JavaScript."""
    if assertion is None:
        return f"if (({actual}) !== ({expected})) throw new Error()"
    match assertion.style:
        case "jest":
            return f"expect({actual}).toBe({expected})"
        case "chai":
            return f"expect({actual}).to.equal({expected})"
        case "should":
            return f"({actual}).should.equal({expected})"
        case "assert" if assertion.matcher is not None:
            return f"{node_text(assertion.root)}.strictEqual({actual}, {expected})"
        case _:
            function = node_text(assertion.root.child_by_field_name("function"))
            compared = f"({actual}) === ({expected})"
            return f"{function}({compared if assertion.name == 'ok' else f'{actual}, {expected}'})"


def _works_anywhere(assertion: Assertion) -> bool:
    """Return whether an assertion works outside its test, unlike `t.assert.equal`."""
    if assertion.style != "assert":
        return True
    scoped = [link.name for link in assertion.links[:-1]] == ["assert"]
    return assertion.name in _EQUALITIES and not scoped


def _assertion_in_use(
    root: Node, declarations: list[Declaration], assert_names: Mapping[str, str]
) -> Assertion | None:
    """Return one of the file's assertions that also works outside its test."""
    parameters = (node for node in descendants(root) if node.type == "formal_parameters")
    if any(re.search(r"\bexpect\b", node_text(node)) for node in parameters):
        return None
    for declaration in declarations:
        if declaration.kind == "test" and declaration.callback is not None:
            for site in SiteFinder(declaration.callback, ()).list_sites():
                assertion = read_assertion(site.expression, assert_names, waited=site.is_waited)
                if assertion is not None and _works_anywhere(assertion):
                    return assertion
    return None


_CHECKING = re.compile(
    r"(?:^|\.)(?:(?:assert|check|expect|verify|compare)(?:[A-Z_\d]\w*)?|\w*(?:[eE]qual|[sS]ame)\w*)$"
)
"""Names of functions that seem to assert something."""


class ProbeKit(Record):
    """The data by which the functions of one file are rewritten."""

    path: str
    """Path of the original file."""
    is_counting: bool
    """Whether the file declares how many assertions a test makes."""
    assert_names: Mapping[str, str]
    assertion: Assertion | None
    """An example of the file's assertions."""
    names: NameMaker
    record: str
    """Name of the function by which an assertion reports."""
    changer: ValueChanger
    room: int
    """Room number; in room 1 every random choice is reversed."""
    token: str
    skipped: frozenset[int | str]
    """Start bytes of tests that are claimed separately, and names that may be expected to fail."""
    tests: frozenset[int]
    """Start bytes of the functions of all tests."""
    claimed: frozenset[str] = frozenset()
    """Shared functions whose own assertions report; calls of them are left as they are."""


class ScriptClaim(Record):
    """One assertion of a test, as written in a probe."""

    label: str
    """Label under which it reports."""
    opposite: str
    """Label in the other room."""
    how: str
    """What was made wrong; empty if nothing was."""
    is_sure: bool
    is_certain: bool
    is_watched: bool = False
    """Whether unknown code may see it fail."""
    is_check: bool = False
    """Whether a helper of the tests makes the assertion."""
    is_own: bool = False
    """Whether we added it; it does not depend on the code under test."""
    met_by_many: bool = False
    """Whether one value may satisfy both the original and the changed assertion."""
    shows: bool = False
    """Whether nearly every value meets it: it proves only that not everything passes."""
    proofs: tuple[ProbeTest, ...] = ()
    """For a helper: a test of it that must pass and one that must fail, whatever the change."""


class ClaimedTest(Record):
    """A test whose assertions report individually."""

    edits: list[SourceEdit]
    claims: list[ScriptClaim]


def write_claims(declaration: Declaration, kit: ProbeKit) -> ClaimedTest:
    """Make some assertions of a test wrong, and let each report.

    All random choices derive from the token. Assertions of our own follow, for tests that leave all
    asserting to others.
    """
    callback = declaration.callback
    if callback is None:
        return ClaimedTest(edits=[], claims=[])
    sites = SiteFinder(callback, kit.skipped).list_sites()
    edits, claims, wrapped = _claim_sites(sites, kit, declaration)
    seed = f"{kit.token} {kit.path} {declaration.call.start_byte}"
    text, own_claims = _make_own_claims(callback, random.Random(seed), kit)  # noqa: S311
    is_wrapped = callback.child_by_field_name("body") in wrapped
    edits_before, edits_after = append_statement(callback, text, body_is_wrapped=is_wrapped)
    claims += own_claims if edits_after else []
    return ClaimedTest(edits=[*dict.fromkeys([*edits_before, *edits, *edits_after])], claims=claims)


def write_shared_claims(function: Node, kit: ProbeKit) -> ClaimedTest:
    """Make some assertions of a function that tests call wrong.

    What it asserts may be meant to fail.
    """
    finder = SiteFinder(function, kit.skipped | kit.tests)
    edits, claims, _ = _claim_sites(finder.list_sites(sure=False, watched=True), kit, None)
    return ClaimedTest(edits=[*dict.fromkeys(edits)], claims=claims)


def _claim_sites(
    sites: Iterable[Site], kit: ProbeKit, declaration: Declaration | None
) -> tuple[list[SourceEdit], list[ScriptClaim], list[Node]]:
    """Return the edits and claims of all assertions that can be made wrong, and their nodes."""
    edits: list[SourceEdit] = []
    claims: list[ScriptClaim] = []
    wrapped: list[Node] = []
    for site in sites:
        seed = f"{kit.token} {kit.path} {site.node.start_byte} {site.node.end_byte}"
        rng = random.Random(seed)  # noqa: S311 (holds the token)
        is_wrong, proofs = _toss_coin(site, rng, kit), tuple[ProbeTest, ...]()
        assertion, change = _perturb_assertion(site, rng, kit)
        if change is not None and (split := _split_site(site, assertion, rng, kit)) is not None:
            edit, parts = _claim_parts(site, split, rng, kit)
            edits.append(edit)
            claims += parts
            continue
        is_check = change is None
        if change is None and site.is_inline:
            continue
        if change is None and (change := _change_check(site, rng, kit)) is None:
            continue
        label, opposite = _make_labels(rng, kit.room)
        promised = site.is_waited if assertion is None else assertion.is_promised
        after = "" if assertion is None else assertion.shown_by
        on_failure = _fail_as_before(site, kit, is_wrong=is_wrong)
        edits += wrap_site(
            site, kit.record, label, promised=promised, after=after, on_failure=on_failure
        )
        edits += change.edits if is_wrong else _write_unchanged(change, kit)
        edits += assertion.harden() if assertion is not None else ()
        if is_check and declaration is not None:
            proof_edits, proofs = _prove_check(declaration, site, change, kit)
            edits += proof_edits
        claim = ScriptClaim(
            label=label,
            opposite=opposite,
            how=change.how if is_wrong else "",
            is_sure=site.is_sure,
            is_certain=not site.is_watched and (change.certain or not is_wrong),
            is_watched=site.is_watched,
            is_check=is_check,
            met_by_many=is_check or not change.certain,
            shows=assertion is not None and assertion.is_met_by_most,
            proofs=proofs,
        )
        claims.append(claim)
        wrapped.append(site.node)
    return edits, claims, wrapped


def _toss_coin(site: Site, rng: random.Random, kit: ProbeKit) -> bool:
    """Choose whether to make an assertion wrong in this room.

    Assertions that others may see fail share one choice: in one room all of them are right, and
    fail as they would.
    """
    coin = rng.random() < 0.5
    if site.is_watched:
        coin = random.Random(f"{kit.token} watched").random() < 0.5  # noqa: S311
    return coin != bool(kit.room)


def _fail_as_before(site: Site, kit: ProbeKit, *, is_wrong: bool) -> str:
    """Return code that rethrows a right assertion's error if code around it may see it.

    It looks the same for a wrong one.
    """
    if not site.is_watched:
        return ""
    call = kit.changer.open_call(kit.names.rng, changes=is_wrong)
    return f"if ({call}true)) throw error; "


def _split_site(
    site: Site, assertion: Assertion | None, rng: random.Random, kit: ProbeKit
) -> SplitAssertion | None:
    """Split an assertion statement into parts, unless the file counts assertions."""
    if site.ends_function or site.is_inline or kit.is_counting or assertion is None:
        return None
    return split_assertion(site.node, assertion, rng, kit.changer)


def _claim_parts(
    site: Site, split: SplitAssertion, rng: random.Random, kit: ProbeKit
) -> tuple[SourceEdit, list[ScriptClaim]]:
    """Replace a statement by a block in which each part reports individually."""
    texts, claims = [split.before], []
    for part in split.parts:
        is_wrong = _toss_coin(site, rng, kit)
        label, opposite = _make_labels(rng, kit.room)
        passed, failed = f"{kit.record}('{label}', true)", f"{kit.record}('{label}', false)"
        statement = part.wrong if is_wrong else part.right
        failed += f"; {_fail_as_before(site, kit, is_wrong=is_wrong)}"
        texts.append(f"try {{ {statement}; {passed} }} catch (error) {{ {failed}}}")
        claim = ScriptClaim(
            label=label,
            opposite=opposite,
            how=part.how if is_wrong else "",
            is_sure=site.is_sure,
            is_certain=not site.is_watched,
            is_watched=site.is_watched,
        )
        claims.append(claim)
    text = f"{{ {' '.join(texts)} }}"
    return SourceEdit(start=site.node.start_byte, end=site.node.end_byte, text=text), claims


def _make_labels(rng: random.Random, room: int) -> tuple[str, str]:
    """Return an assertion's labels in this room and in the other."""
    stem = f"{rng.getrandbits(44):011x}"
    return f"{stem}{room}", f"{stem}{1 - room}"


def _perturb_assertion(
    site: Site, rng: random.Random, kit: ProbeKit
) -> tuple[Assertion | None, Perturbation | None]:
    assertion = read_assertion(site.expression, kit.assert_names, waited=site.is_waited)
    if assertion is None:
        return None, None
    change = change_expectation(assertion, rng, kit.changer) or invert_assertion(assertion)
    return assertion, change


def _write_unchanged(change: Perturbation, kit: ProbeKit) -> Iterator[SourceEdit]:
    """Pass a right value through the changer if a wrong one would pass through it."""
    if any(edit.text.startswith(f"{kit.changer.name}(") for edit in change.edits):
        opening, closing = change.edits
        call = kit.changer.open_call(kit.names.rng, changes=False)
        yield insert_text(opening.start, call)
        yield closing


def _make_own_claims(
    callback: Node, rng: random.Random, kit: ProbeKit
) -> tuple[str, list[ScriptClaim]]:
    """Write assertions that do not depend on the code under test, in the file's style.

    The last one holds unless the assertion functions were replaced.
    """
    first, second, is_wrong = rng.randrange(999), rng.randrange(999), rng.random() < 0.5
    is_wrong, (label, opposite) = is_wrong != bool(kit.room), _make_labels(rng, kit.room)
    expected = first + second + (rng.randrange(1, 99) if is_wrong else 0)
    style = None if kit.is_counting else kit.assertion
    statement = assert_equal(style, f"Number('{first}') + {second}", f"{expected}")
    passed, failed = f"{kit.record}('{label}', true)", f"{kit.record}('{label}', false)"
    text = f"try {{ {statement}; {passed} }} catch (error) {{ {failed} }}"
    claim = ScriptClaim(
        label=label,
        opposite=opposite,
        how="an assertion of its own that is wrong" if is_wrong else "",
        is_sure=always_ends(callback),
        is_certain=True,
        is_own=True,
    )
    label, opposite = _make_labels(rng, kit.room)
    text += f" {kit.record}('{label}', {kit.record}.isIntact())"
    intact = msgspec.structs.replace(claim, label=label, opposite=opposite, how="")
    return text, [claim, intact]


def _change_check(site: Site, rng: random.Random, kit: ProbeKit) -> Perturbation | None:
    """Change the last argument of a checking helper: `check(parse(text), 3)`."""
    call = site.expression
    called = node_text(call.child_by_field_name("function"))
    arguments = arguments_of(call) if call.type == "call_expression" else []
    if (
        len(arguments) < 2
        or not _CHECKING.search(called)
        or called.rpartition(".")[2] in kit.claimed
    ):
        return None
    change = change_value(arguments[-1], rng)
    if change is None:
        return None
    edit, how = change
    return Perturbation(edits=(edit,), how=how, certain=False)


def _prove_check(
    declaration: Declaration, site: Site, change: Perturbation, kit: ProbeKit
) -> tuple[list[SourceEdit], tuple[ProbeTest, ...]]:
    """Write tests which show that a helper distinguishes two values.

    They do not reveal which of the two is right.
    """
    arguments = arguments_of(site.expression)
    if len(arguments) != 2 or any(parent.kind == "test" for parent in declaration.parents):
        return [], ()
    literal = arguments[1]
    changed = apply_edits((literal.text or b""), change.edits, literal.start_byte).decode()
    values = [node_text(literal), changed]
    kit.names.rng.shuffle(values)
    helper = node_text(site.expression.child_by_field_name("function"))
    position = statement_around(declaration.call).end_byte
    edits, tests = [], []
    for second in values:
        title = kit.names.make_title()
        body = f"await {helper}({values[0]}, {second})"
        text = f";{declaration.function}('{title}', async () => {{ {body} }});"
        edits.append(insert_text(position, text))
        expect: Literal["pass", "fail"] = "pass" if second == values[0] else "fail"
        tests.append(ProbeTest(name=title, kind="control", expect=expect, certain=False))
    return edits, tuple(tests)


def expect_claims(
    claims: Iterable[ScriptClaim], original: str, *, steady: bool
) -> Iterator[ProbeTest]:
    """Yield the expected result of each assertion of a test, and of its helpers' proofs.

    A supposed helper may have side effects, so everything after a wrong call of one is uncertain.
    So is everything after a wrong assertion in a function that others call, as they may react to
    its failure, and all of a test that is not steady, because it reads its own title.
    """
    doubted, proved = False, True
    proved_by: tuple[str, ...] = ()
    for claim in claims:
        yield from claim.proofs
        if claim.is_check and claim.how:
            doubted, proved = True, proved and bool(claim.proofs)
            proved_by = (*proved_by, *(proof.name for proof in claim.proofs)) if proved else ()
        if claim.is_own:
            kind: ProbeKind = "control"
        else:
            kind = "perturbed" if claim.how else "copy"
        yield ProbeTest(
            name=f"#{claim.label}",
            kind=kind,
            expect="fail" if claim.how else "pass",
            original=original,
            how=claim.how,
            certain=steady and claim.is_certain and not doubted,
            optional=not claim.is_sure,
            proved_by=proved_by,
            opposite=f"#{claim.opposite}",
            met_by_many=claim.met_by_many,
            shows=claim.shows,
        )
        if claim.is_watched and claim.how:
            doubted, proved, proved_by = True, False, ()


# Claims of shared JavaScript assertions: in helpers, hooks and modules beside the tests.


MAX_SHARED = 60
"""Maximum number of shared assertions that count for one test."""
_COUNTING = re.compile(rb"\b(?:assertions|hasAssertions|plan)\s*\(")
"""Calls by which a test declares its number of assertions."""


class SharedClaims:
    """The files of a probe, and the claims of each shared function that a test may reach."""

    def __init__(
        self,
        test_files: Iterable[ProbedFile],
        changed: Collection[tuple[str, int]],
        names: NameMaker,
        request: ProbeRequest,
    ) -> None:
        self.helpers: dict[str, ScriptModule] = {}
        files = [file for file in test_files if file.deciding]
        for file in files:
            read_imported(file, request.helpers, self.helpers)
        self.functions = SharedFunctions([*files, *self.helpers.values()])
        self.kits = {
            module.path: _make_kit(module, changed, self.functions.unsafe, names, request)
            for module in (*test_files, *self.helpers.values())
        }
        claimed = frozenset(self._find_claimed())
        self.kits = {
            path: msgspec.structs.replace(kit, claimed=claimed) for path, kit in self.kits.items()
        }
        self.written: dict[tuple[str, int], ClaimedTest] = {}

    def _find_claimed(self) -> Iterator[str]:
        """Yield names of functions that assert something, or call those that do."""
        functions = [
            function for same_name in self.functions.by_name.values() for function in same_name
        ]
        asserting = {
            name_of_function(function.node) for function in functions if self._asserts(function)
        } - {""}
        yield from asserting
        for shared_function in functions:
            if asserting & {
                name_of_function(callee.node) for callee in self._reach(shared_function)
            }:
                yield name_of_function(shared_function.node)

    def _reach(self, function: SharedFunction) -> list[SharedFunction]:
        return self.functions.reach(function.names, hooks=False)

    def _asserts(self, function: SharedFunction) -> bool:
        kit = self.kits[function.module.path]
        return any(
            read_assertion(site.expression, kit.assert_names, waited=site.is_waited) is not None
            for site in SiteFinder(function.node, kit.skipped | kit.tests).list_sites()
        )

    def expect_shared(
        self, names: Iterable[str], original: str, *, steady: bool
    ) -> Iterator[ProbeTest]:
        """Yield the expected results of the shared assertions that a test may reach by these
        names."""
        claims = [
            claim
            for function in self.functions.reach(names)
            for claim in self._write_function(function).claims
        ]
        yield from expect_claims(claims[:MAX_SHARED], original, steady=steady)

    def _write_function(self, function: SharedFunction) -> ClaimedTest:
        key = function.module.path, function.node.start_byte
        if key not in self.written:
            unsafe = name_of_function(function.node) in self.functions.unsafe
            kit = self.kits[function.module.path]
            self.written[key] = (
                ClaimedTest(edits=[], claims=[])
                if unsafe
                else write_shared_claims(function.node, kit)
            )
        return self.written[key]

    def list_edits(self, path: str) -> list[SourceEdit]:
        """Return the edits of the shared functions of a file; only reached functions have any."""
        return [
            edit
            for (module, _), claimed in self.written.items()
            for edit in claimed.edits
            if module == path
        ]


def _make_kit(
    module: ScriptModule,
    changed: Collection[tuple[str, int]],
    unsafe: Collection[str],
    names: NameMaker,
    request: ProbeRequest,
) -> ProbeKit:
    tests = {
        declaration.call.start_byte: declaration.callback.start_byte
        for declaration in module.declarations
        if declaration.kind == "test" and declaration.callback is not None
    }
    changed_callbacks = {
        callback for start, callback in tests.items() if (module.path, start) in changed
    }
    return ProbeKit(
        path=module.path,
        is_counting=_COUNTING.search(module.content) is not None,
        assert_names=imported_names(module.root, ASSERT_MODULES),
        assertion=module.assertion if isinstance(module, ProbedFile) else None,
        names=names,
        record=random_word(names.rng),
        changer=make_changer(names.rng),
        room=request.room,
        token=request.token,
        skipped=frozenset([*changed_callbacks, *unsafe]),
        tests=frozenset(tests.values()),
    )
