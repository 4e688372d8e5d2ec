"""The test files that a probe of JavaScript is made from, and names of what it holds."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from closeloop.grading.integrity.javascript_assertions import Assertion, read_assertion
from closeloop.grading.integrity.javascript_shared import ScriptModule
from closeloop.grading.integrity.javascript_sites import SiteFinder
from closeloop.grading.integrity.javascript_tests import (
    ASSERT_MODULES,
    Declaration,
    descendants,
    find_declarations,
    imported_names,
    match_declarations,
    parse_script,
)
from closeloop.grading.integrity.javascript_values import random_word
from closeloop.grading.integrity.probe import ProbeRequest
from closeloop.grading.integrity.source_edits import node_text

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_OTHER_FILES = 3
"""Files of which no test decides, copied to confirm the tests in them."""
_EQUALITIES = ("ok", "equal", "strictEqual", "deepEqual", "deepStrictEqual")
_NAME_PATTERN = re.compile(
    r"(?P<head>(?:test|spec)[-_])?.*?(?P<tail>[-_]?(?:tests?|specs?))?", re.I
)


class ProbedFile(ScriptModule):
    """A test file, and the tests in it that a probe is to hold."""

    deciding: dict[int, list[str]]
    """Ids of the tests that decide, by where their declaration starts."""
    others: dict[int, list[str]]
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


def read_test_files(request: ProbeRequest) -> list[ProbedFile]:
    """The files with deciding tests, and a few with others."""
    deciding = _ids_by_file(request.fail_to_pass, request.sources)
    others = _ids_by_file(request.others, request.sources)
    separator = " " if request.runner == "mocha" else " > "
    test_files = []
    for path in (*deciding, *[path for path in others if path not in deciding][:MAX_OTHER_FILES]):
        content = request.sources[path].encode("utf-8", "surrogateescape")
        root = None if b"import.meta.vitest" in content else parse_script(path, content)
        if root is None:
            continue
        declarations = find_declarations(root)
        found = [_locate(declarations, ids.get(path, {}), separator) for ids in (deciding, others)]
        if any(found):
            assert_names = imported_names(root, ASSERT_MODULES)
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
) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for test, title in titles.items():
        for declaration in match_declarations(declarations, title, separator):
            if declaration.is_fit:
                found.setdefault(declaration.call.start_byte, []).append(test)
    return found


def assert_equal(assertion: Assertion | None, actual: str, expected: str) -> str:
    """An assertion in the way of another; None: in that of the language."""
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
    """Whether an assertion needs nothing of the test that it stands in: not `t.assert.equal`."""
    if assertion.style != "assert":
        return True
    scoped = [link.name for link in assertion.links[:-1]] == ["assert"]
    return assertion.name in _EQUALITIES and not scoped


def _assertion_in_use(
    root: Node, declarations: list[Declaration], assert_names: Mapping[str, str]
) -> Assertion | None:
    """One of the file's assertions, of a kind that works outside of its test as well."""
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
