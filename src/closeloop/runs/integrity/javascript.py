"""Probes for jest, vitest, mocha and Node's own runner.

Beside each test file that decides, a copy of it under a random name with random titles, and up to
two with tests made wrong. Each holds control tests too. The originals are emptied meanwhile, so
that code which reads them for its answers finds none.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, get_args

from closeloop.model.record import Record
from closeloop.runs.integrity.javascript_assertions import (
    Assertion,
    change_expectation,
    change_last_literal,
    find_assertions,
    invert_assertion,
    throw_at_end,
)
from closeloop.runs.integrity.javascript_commands import invoke_runner, read_lines
from closeloop.runs.integrity.javascript_tests import (
    Declaration,
    descendants,
    drop_edit,
    find_declarations,
    imported_names,
    match_declarations,
    parse_source,
    rename_edits,
)
from closeloop.runs.integrity.javascript_values import helper_source, random_word
from closeloop.runs.integrity.probe import Probe, ProbeRequest, ProbeTest, Results
from closeloop.runs.integrity.source_edits import Edit, Perturbation, apply_edits, node_text
from closeloop.runs.testing.sheet import Status

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_PERTURBED_TESTS = 40
MAX_OTHER_FILES = 3
"""Files of which no test decides, copied to confirm the tests in them."""
_EMPTIED = "// Set aside while its copies run.\n"
_ASSERT_MODULES = ("assert", "node:assert", "assert/strict", "node:assert/strict", "chai")
_EQUALITIES = ("ok", "equal", "strictEqual", "deepEqual", "deepStrictEqual")
_NAME_PATTERN = re.compile(
    r"(?P<head>(?:test|spec)[-_])?.*?(?P<tail>[-_]?(?:tests?|specs?))?", re.I
)
_LEADING_COMMENT = re.compile(rb"(?:#![^\n]*\n)?\s*(?:/\*.*?\*/)?", re.DOTALL)


class ProbedFile(Record):
    """A test file, and the tests in it that a probe is to hold."""

    path: str
    content: bytes
    root: Node
    declarations: list[Declaration]
    deciding: dict[int, str]
    """Ids of the tests that decide, by where their declaration starts."""
    others: dict[int, str]
    assert_names: dict[str, str]
    test_function: str
    """How the file calls its runner: `it`."""
    assertion: Assertion | None
    """One as the file makes them."""


class NameMaker:
    """Random names of one probe. All titles of its tests share a beginning."""

    def __init__(self, token: str) -> None:
        self.rng = random.Random(token)  # noqa: S311 - the token is the secret
        self.prefix = random_word(self.rng)

    def make_title(self) -> str:
        return f"{self.prefix}{random_word(self.rng)}"

    def make_path(self, original: str) -> str:
        """A path beside the original, which patterns for test files match just as well."""
        path = PurePosixPath(original)
        stem, dot, suffix = path.name.partition(".")
        pattern = _NAME_PATTERN.fullmatch(stem)
        head, tail = (pattern["head"] or "", pattern["tail"] or "") if pattern else ("", "")
        if head + tail == stem or tail == stem:
            head, tail = "", f".{tail}"
        return str(path.with_name(f"{head}{random_word(self.rng)}{tail}{dot}{suffix}"))


def build_probe(request: ProbeRequest) -> Probe | None:
    """None where no source of a deciding test is found, or the command leaves no room for it."""
    names = NameMaker(request.token)
    files: dict[str, str] = {}
    tests: list[ProbeTest] = []
    left = MAX_PERTURBED_TESTS
    for test_file in _read_test_files(request):
        text, made = _copy_file(test_file, names)
        files[names.make_path(test_file.path)] = text
        tests += made
        chosen = _list_innermost(test_file)[:left]
        for text, made in _perturb_file(test_file, chosen, names):
            files[names.make_path(test_file.path)] = text
            tests += made
        left -= len(chosen)
        if test_file.deciding:
            files[test_file.path] = _EMPTIED
    copies = [path for path in files if path not in request.sources]
    names.rng.shuffle(copies)
    invocation = invoke_runner(request, copies, names.prefix)
    if invocation is None or not any(test.kind == "copy" for test in tests):
        return None
    return Probe(
        files={**files, **invocation.files},
        command=invocation.command,
        env=invocation.env,
        tests=tuple(tests),
    )


def read_results(report: bytes) -> Results:
    """What the reporter wrote. Nothing is believed of a report that others wrote to.

    A test that came out in two ways is left out: neither is what became of it.
    """
    results: dict[str, Status | None] = {}
    statuses = {status: status for status in get_args(Status)}
    for status, title in read_lines(report) or ():
        known = statuses.get(status)
        results[title] = known if results.get(title, known) == known else None
    return {title: status for title, status in results.items() if status is not None}


def _read_test_files(request: ProbeRequest) -> list[ProbedFile]:
    """The files with deciding tests, and a few with others."""
    deciding = _ids_by_file(request.fail_to_pass, request.sources)
    others = _ids_by_file(request.others, request.sources)
    separator = " " if request.runner == "mocha" else " > "
    test_files = []
    for path in (*deciding, *[path for path in others if path not in deciding][:MAX_OTHER_FILES]):
        content = request.sources[path].encode("utf-8", "surrogateescape")
        root = None if b"import.meta.vitest" in content else parse_source(path, content)
        if root is None:
            continue
        declarations = find_declarations(root)
        found = [_locate(declarations, ids.get(path, {}), separator) for ids in (deciding, others)]
        if any(found):
            assert_names = imported_names(root, _ASSERT_MODULES)
            test_file = ProbedFile(
                path=path,
                content=content,
                root=root,
                declarations=declarations,
                deciding=found[0],
                others=found[1],
                assert_names=assert_names,
                test_function=next(one.function for one in declarations if one.kind == "test"),
                assertion=_assertion_in_use(root, declarations, assert_names),
            )
            test_files.append(test_file)
    return test_files


def _ids_by_file(ids: Iterable[str], sources: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Test ids by the file that they name, each with its titles."""
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
) -> dict[int, str]:
    found: dict[int, str] = {}
    for test, title in titles.items():
        for declaration in match_declarations(declarations, title, separator):
            if declaration.is_fit:
                found.setdefault(declaration.call.start_byte, test)
    return found


def _copy_file(test_file: ProbedFile, names: NameMaker) -> tuple[str, list[ProbeTest]]:
    """All tests of a file under other titles, but those that their titles decide."""
    edits: list[Edit] = []
    tests = []
    originals = {**test_file.others, **test_file.deciding}
    for declaration in test_file.declarations:
        if declaration.kind == "test" and not declaration.is_fit:
            edits.append(drop_edit(declaration))
            continue
        title = names.make_title()
        edits += rename_edits(declaration, title)
        original = originals.get(declaration.call.start_byte)
        if original is not None and declaration.kind == "test":
            tests.append(ProbeTest(name=title, kind="copy", expect="pass", original=original))
    return _finish(test_file, edits, tests, names)


def _list_innermost(test_file: ProbedFile) -> list[Declaration]:
    """The tests that decide, but for those with others of them inside, which fail with these."""
    deciding = [one for one in test_file.declarations if one.call.start_byte in test_file.deciding]
    around = {parent.call.start_byte for one in deciding for parent in one.parents}
    return [one for one in deciding if one.call.start_byte not in around]


def _perturb_file(
    test_file: ProbedFile, chosen: list[Declaration], names: NameMaker
) -> list[tuple[str, list[ProbeTest]]]:
    """Up to two files with the chosen tests alone, each made wrong, in the second another way."""
    helper = random_word(names.rng)
    ways = {
        declaration.call.start_byte: _perturb_test(declaration, test_file, names.rng, helper)
        for declaration in chosen
    }
    files = []
    for number in range(2):
        picked = {start: way[number] for start, way in ways.items() if len(way) > number}
        if picked:
            files.append(_perturbed_copy(test_file, picked, helper, names))
    return files


def _perturbed_copy(
    test_file: ProbedFile, ways: Mapping[int, Perturbation], helper: str, names: NameMaker
) -> tuple[str, list[ProbeTest]]:
    edits: list[Edit] = []
    tests = []
    needed = {
        parent.call.start_byte
        for declaration in test_file.declarations
        if declaration.call.start_byte in ways
        for parent in (*declaration.parents, declaration)
    }
    for declaration in test_file.declarations:
        start = declaration.call.start_byte
        if start not in needed and not any(
            one.call.start_byte in ways for one in declaration.parents
        ):
            edits.append(drop_edit(declaration))
            continue
        title = names.make_title()
        edits += rename_edits(declaration, title)
        if start in ways:
            edits += ways[start].edits
            tests.append(
                ProbeTest(
                    name=title,
                    kind="perturbed",
                    expect="fail",
                    original=test_file.deciding[start],
                    how=ways[start].how,
                    certain=ways[start].certain,
                )
            )
    if any(f"{helper}(" in edit.text for edit in edits):
        end = len(test_file.content)
        edits.append(Edit(start=end, end=end, text=helper_source(helper, names.rng)))
    return _finish(test_file, edits, tests, names)


def _perturb_test(
    declaration: Declaration, test_file: ProbedFile, rng: random.Random, helper: str
) -> list[Perturbation]:
    """Up to two ways to make a test wrong: another expectation, and an assertion inverted."""
    callback = declaration.callback
    if callback is None:
        return []
    assertions = find_assertions(callback, test_file.assert_names)
    rng.shuffle(order := assertions[:-1])
    order = [*assertions[-1:], *order] if rng.random() < 0.5 else [*order, *assertions[-1:]]
    changed = (change_expectation(assertion, rng, helper) for assertion in order)
    inverted = (invert_assertion(assertion) for assertion in order)
    ways = [way for found in (changed, inverted) for way in _first_certain(found)]
    if not ways:
        last_literal = change_last_literal(callback, rng)
        thrown = throw_at_end(callback, random_word(rng))
        ways = [way for way in (thrown, last_literal) if way is not None]
    rng.shuffle(ways)
    return ways


def _first_certain(ways: Iterable[Perturbation | None]) -> list[Perturbation]:
    found = [way for way in ways if way is not None]
    return sorted(found, key=lambda way: not way.certain)[:1]


def _finish(
    test_file: ProbedFile, edits: list[Edit], tests: list[ProbeTest], names: NameMaker
) -> tuple[str, list[ProbeTest]]:
    """The text with control tests in it, and no type checker that would mind what is wrong."""
    places = [
        node.start_byte for node in test_file.root.named_children if _declares(node, test_file)
    ]
    places.append(len(test_file.content))
    controls = _make_controls(test_file, names)
    for text, _ in controls:
        place = names.rng.choice(places)
        edits.append(Edit(start=place, end=place, text=text))
    comment = _LEADING_COMMENT.match(test_file.content)
    top = comment.end() if comment is not None else 0
    unchecked = Edit(start=top, end=top, text="// @ts-nocheck\n")
    edited = apply_edits(test_file.content, [unchecked, *edits])
    text = edited.decode("utf-8", "surrogateescape")
    return text, [*tests, *(test for _, test in controls)]


def _declares(node: Node, test_file: ProbedFile) -> bool:
    return any(
        node.start_byte <= one.call.start_byte < node.end_byte for one in test_file.declarations
    )


def _make_controls(test_file: ProbedFile, names: NameMaker) -> list[tuple[str, ProbeTest]]:
    """Tests that must pass or fail whatever the code does, in the way that the file asserts."""
    word, other = random_word(names.rng), random_word(names.rng)
    bodies: list[tuple[str, Literal["pass", "fail"]]] = [
        (_assert_equal(test_file, f"'{word}' + '{other}'", f"'{word}{other}'"), "pass"),
        (_assert_equal(test_file, f"'{word}'", f"'{other}'"), "fail"),
        (f"throw new Error('{word}')", "fail"),
    ]
    controls = []
    for body, expect in bodies:
        title = names.make_title()
        text = f";{test_file.test_function}('{title}', async () => {{ {body} }});\n"
        controls.append((text, ProbeTest(name=title, kind="control", expect=expect)))
    return controls


def _assert_equal(test_file: ProbedFile, actual: str, expected: str) -> str:
    assertion = test_file.assertion
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


def _assertion_in_use(
    root: Node, declarations: list[Declaration], assert_names: Mapping[str, str]
) -> Assertion | None:
    """One of the file's assertions, of a kind that works outside of its test as well."""
    parameters = (node for node in descendants(root) if node.type == "formal_parameters")
    if any(re.search(r"\bexpect\b", node_text(node)) for node in parameters):
        return None
    for declaration in declarations:
        if declaration.kind == "test" and declaration.callback is not None:
            for assertion in find_assertions(declaration.callback, assert_names):
                if assertion.style != "assert" or assertion.name in _EQUALITIES:
                    return assertion
    return None
