"""Probes for jest, vitest, mocha and Node's own runner.

A room holds each test that decides once, in a copy of its file under a random name with random
titles. Some assertions of it are made wrong, and in another room the others. Each copy holds
control tests too. The originals only lead to their copies meanwhile, so that code under test finds
nothing to compare a test with.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from closeloop.grading.integrity.javascript_claims import ProbeKit, expect_claims, write_claims
from closeloop.grading.integrity.javascript_commands import invoke_runner, read_lines
from closeloop.grading.integrity.javascript_files import (
    NameMaker,
    ProbedFile,
    assert_equal,
    read_test_files,
)
from closeloop.grading.integrity.javascript_helpers import SharedClaims
from closeloop.grading.integrity.javascript_recorder import Recorder
from closeloop.grading.integrity.javascript_shared import ScriptModule, names_in
from closeloop.grading.integrity.javascript_tests import Declaration, drop_edit, rename_edits
from closeloop.grading.integrity.javascript_values import random_word
from closeloop.grading.integrity.probe import (
    ROOMS,
    Probe,
    ProbeRequest,
    ProbeTest,
    Results,
    choose_perturbed,
)
from closeloop.grading.integrity.source_edits import SourceEdit, apply_edits, insert_text, node_text
from closeloop.grading.testing.suite_report import Status

if TYPE_CHECKING:
    from tree_sitter import Node

_LEADING_COMMENT = re.compile(rb"(?:#![^\n]*\n)?\s*(?:/\*.*?\*/)?", re.DOTALL)
_EXPORTING = re.compile(rb"\bexports\b\s*[.=\[]")
_READS_ITS_NAME = re.compile(
    rb"\bt\.(?:name|fullName|filePath)\b|__filename|import\.meta\.(?:url|filename)"
    rb"|currentTestName|this\.test\b|expect\.getState|\.stack\b|toMatch(?:File)?Snapshot"
)
"""Ways to see a test's title, its file or its lines."""


def build_probe(request: ProbeRequest) -> Probe | None:
    """None where no source of a deciding test is found, or the command leaves no room for it."""
    names = NameMaker(f"{request.token} {request.room}")
    files: dict[str, str] = {}
    copies: list[str] = []
    tests: list[ProbeTest] = []
    test_files = read_test_files(request)
    deciding = [(file.path, start) for file in test_files for start in sorted(file.deciding)]
    changed = choose_perturbed(deciding, request.token)
    shared = SharedClaims(test_files, changed, names, request)
    recorder = Recorder(word=random_word(names.rng), pipe=request.pipe)
    written = {file.path: _change_tests(file, changed, shared) for file in test_files}
    for test_file in test_files:
        edits, made = written[test_file.path]
        kit = shared.kits[test_file.path]
        controls = list(_make_controls(test_file, names))
        edits += [*shared.list_edits(test_file.path), *(edit for edit, _ in controls)]
        copies.append(names.make_path(test_file.path))
        files |= _render_file(test_file, copies[-1], edits, kit, recorder)
        tests += [*made, *(control for _, control in controls)]
        if test_file.deciding:
            files[test_file.path] = _lead_to(copies[-1], test_file)
    for path, module in shared.helpers.items():
        if edits := shared.list_edits(path):
            files |= _render_file(module, path, edits, shared.kits[path], recorder)
    names.rng.shuffle(copies)
    invocation = invoke_runner(request, copies, names.prefix, recorder.render_early())
    if invocation is None or not any(test.kind == "copy" for test in tests):
        return None
    return Probe(
        files={**files, **invocation.files},
        command=invocation.command,
        env=invocation.env,
        tests=tuple(tests),
        rooms=ROOMS,
    )


def read_results(report: bytes) -> Results:
    """What the reporter and the assertions wrote. A report that others wrote to says nothing."""
    results: Results = {}
    statuses = {status: status for status in get_args(Status)}
    for word, name in read_lines(report) or ():
        if (status := statuses.get(word)) is not None:
            results[name] = status if results.get(name, status) == status else "mixed"
    return results


def _change_tests(
    test_file: ProbedFile, changed: Collection[tuple[str, int]], shared: SharedClaims
) -> tuple[list[SourceEdit], list[ProbeTest]]:
    """All tests of a file under other titles, but those that their titles decide."""
    kit = shared.kits[test_file.path]
    edits: list[SourceEdit] = []
    tests: list[ProbeTest] = []
    originals = {**test_file.others, **test_file.deciding}
    for declaration in test_file.declarations:
        if declaration.kind == "test" and not declaration.is_fit:
            edits.append(drop_edit(declaration))
            continue
        title, start = kit.names.make_title(), declaration.call.start_byte
        edits += rename_edits(declaration, title)
        if start not in originals:
            continue
        expected, found = list[ProbeTest](), list[ProbeTest]()
        steady, first = not _sees_its_name(declaration), originals[start][0]
        if (test_file.path, start) in changed:
            claimed = write_claims(declaration, kit)
            edits += claimed.edits
            expected += expect_claims(claimed.claims, first, steady=steady)
            found += shared.expect_shared(names_in(declaration.call), first, steady=steady)
        # Where its last assertion is in doubt, so is what becomes of the test.
        doubt = expected[-1] if expected else None
        copy = ProbeTest(
            name=title,
            kind="copy",
            expect="pass",
            original=first,
            certain=steady and (doubt is None or doubt.certain),
            proved_by=() if doubt is None else doubt.proved_by,
        )
        tests += [copy, *expected, *found]
        # A table makes several tests of one; what a part asserts, the whole does.
        above = [parent.call.start_byte for parent in declaration.parents]
        wholes = [
            name for one in above if (test_file.path, one) in changed for name in originals[one]
        ]
        tests += _repeat_for(originals[start][1:], [copy, *expected, *found])
        tests += _repeat_for(wholes, expected)
    return edits, tests


def _repeat_for(originals: Iterable[str], tests: Iterable[ProbeTest]) -> Iterator[ProbeTest]:
    """The same for other tests that hang on it."""
    for original, test in itertools.product(originals, tests):
        if test.original is not None:
            yield msgspec.structs.replace(test, original=original)


def _render_file(
    module: ScriptModule, path: str, edits: list[SourceEdit], kit: ProbeKit, recorder: Recorder
) -> dict[str, str]:
    """A file with our functions, and no type checker that would mind; and what it needs."""
    content = module.content
    comment = _LEADING_COMMENT.match(content)
    unchecked = insert_text(comment.end() if comment is not None else 0, "// @ts-nocheck\n")
    beside: dict[str, str] = {}
    if any(kit.record in edit.text for edit in edits):
        first, beside = recorder.bind_in_file(kit.record, path, is_module=_is_module(module.root))
        opening = insert_text(_find_first_statement(module.root), first)
        ending = insert_text(len(content), kit.changer.render_source(kit.names.rng))
        edits = [opening, *edits, ending]
    edited = apply_edits(content, [unchecked, *edits])
    return {path: edited.decode("utf-8", "surrogateescape"), **beside}


def _sees_its_name(declaration: Declaration) -> bool:
    """Whether a test may come out otherwise in another file or under another title."""
    return _READS_ITS_NAME.search(declaration.call.text or b"") is not None


def _is_module(root: Node) -> bool:
    return any(child.type in ("import_statement", "export_statement") for child in root.children)


def _find_first_statement(root: Node) -> int:
    """Where a file's code begins, behind comments and `'use strict'`."""
    for child in root.named_children:
        directive = child.named_children[:1] if child.type == "expression_statement" else []
        if child.type not in ("comment", "hash_bang_line") and not any(
            node.type == "string" for node in directive
        ):
            return child.start_byte
    return root.end_byte


def _lead_to(copy: str, test_file: ProbedFile) -> str:
    """What stands in place of a test file: others may import from it what it exports."""
    module, comment = f"./{PurePosixPath(copy).name}", "// @ts-nocheck\n"
    exports = [child for child in test_file.root.children if child.type == "export_statement"]
    if any(node_text(node).startswith("export default") for node in exports):
        comment += f"export {{ default }} from '{module}'\n"
    if exports:
        return f"{comment}export * from '{module}'\n"
    if _EXPORTING.search(test_file.content):
        return f"{comment}module.exports = require('{module}')\n"
    return comment


def _declares(node: Node, test_file: ProbedFile) -> bool:
    return any(
        node.start_byte <= one.call.start_byte < node.end_byte for one in test_file.declarations
    )


def _make_controls(
    test_file: ProbedFile, names: NameMaker
) -> Iterator[tuple[SourceEdit, ProbeTest]]:
    """Tests that must pass or fail whatever the code does, in the way that the file asserts."""
    word, other = random_word(names.rng), random_word(names.rng)
    bodies: list[tuple[str, Literal["pass", "fail"]]] = [
        (assert_equal(test_file.assertion, f"'{word}' + '{other}'", f"'{word}{other}'"), "pass"),
        (assert_equal(test_file.assertion, f"'{word}'", f"'{other}'"), "fail"),
        (f"throw new Error('{word}')", "fail"),
    ]
    nodes = test_file.root.named_children
    places = [node.start_byte for node in nodes if _declares(node, test_file)]
    places.append(len(test_file.content))
    for body, expect in bodies:
        title = names.make_title()
        text = f";{test_file.test_function}('{title}', async () => {{ {body} }});\n"
        control = ProbeTest(name=title, kind="control", expect=expect)
        yield insert_text(names.rng.choice(places), text), control
