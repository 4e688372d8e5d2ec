"""Claims of what JavaScript tests assert elsewhere: in helpers, hooks and modules beside them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

import msgspec

from closeloop.grading.integrity.javascript_assertions import read_assertion
from closeloop.grading.integrity.javascript_claims import (
    ClaimedTest,
    ProbeKit,
    expect_claims,
    write_shared_claims,
)
from closeloop.grading.integrity.javascript_files import NameMaker, ProbedFile
from closeloop.grading.integrity.javascript_shared import (
    ScriptModule,
    SharedFunction,
    SharedFunctions,
    read_imported,
)
from closeloop.grading.integrity.javascript_sites import SiteFinder, name_of_function
from closeloop.grading.integrity.javascript_tests import ASSERT_MODULES, imported_names
from closeloop.grading.integrity.javascript_values import make_changer, random_word
from closeloop.grading.integrity.probe import ProbeRequest, ProbeTest
from closeloop.grading.integrity.source_edits import SourceEdit

MAX_SHARED = 60
"""Assertions beside a test that count for it, at the most."""
_COUNTING = re.compile(rb"\b(?:assertions|hasAssertions|plan)\s*\(")
"""How a test says how many assertions it makes."""


class SharedClaims:
    """The files of a probe, and claims of each function beside the tests that one may reach."""

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
        """Names of functions that assert something themselves, or call those that do."""
        every = [one for found in self.functions.by_name.values() for one in found]
        asserting = {name_of_function(one.node) for one in every if self._asserts(one)} - {""}
        yield from asserting
        for one in every:
            if asserting & {name_of_function(other.node) for other in self._reach(one)}:
                yield name_of_function(one.node)

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
        """What must become of the assertions that a test may reach by these names."""
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
        """What is changed in the functions of a file; those that are reached were written."""
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
        one.call.start_byte: one.callback.start_byte
        for one in module.declarations
        if one.kind == "test" and one.callback is not None
    }
    apart = {callback for start, callback in tests.items() if (module.path, start) in changed}
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
        skipped=frozenset([*apart, *unsafe]),
        tests=frozenset(tests.values()),
    )
