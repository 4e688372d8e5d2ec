"""Claims of what tests assert elsewhere: in helpers, fixtures, hooks and inherited bodies."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Iterator, Sequence

from closeloop.grading.integrity.perturb_python import PythonClaim, RoomPlan, write_shared_claims
from closeloop.grading.integrity.probe import ROOMS, ProbeRequest
from closeloop.grading.integrity.python_context import TestFunction, reads_test_names
from closeloop.grading.integrity.python_expectations import helper_of
from closeloop.grading.integrity.python_harness import ProbeFile
from closeloop.grading.integrity.python_reach import FunctionIndex, list_outer_functions

MAX_SHARED = 200
"""Assertions beside a test that count for it, at the most."""


class SharedPythonClaims:
    """Makes claims of functions beside the tests, once for each that a test may reach."""

    def __init__(self, request: ProbeRequest, files: Sequence[ProbeFile]) -> None:
        self.request = request
        self.index = FunctionIndex([file.tree for file in files])
        helpers = set(self._find_helpers(files))
        self.plan = RoomPlan(
            turned=request.room == 1,
            helpers=frozenset(name for name, _ in helpers),
            calls_helpers_wrong=request.room == int(request.token, 16) % ROOMS,
        )
        self.called = {one for name, home in helpers for one in self.index.called_by(name, home)}
        self.written: dict[int, list[PythonClaim]] = {}
        self.reading: dict[int, bool] = {}
        self.places = {
            id(function): (file, number)
            for file in files
            for number, function in enumerate(list_outer_functions(file.tree))
        }

    def _find_helpers(self, files: Sequence[ProbeFile]) -> Iterator[tuple[str, ast.Module]]:
        """Functions at hand that check, and where they are called with a value to change."""
        for file in files:
            for node in ast.walk(file.tree):
                name = helper_of(node) if isinstance(node, ast.Expr) else None
                if name in self.index.by_name:
                    yield name, file.tree

    def reach(self, names: Iterable[str]) -> list[TestFunction]:
        """The functions that a test of these names may run, beside itself."""
        return self.index.reachable_from(names)

    def read_test_names(self, functions: Iterable[TestFunction]) -> bool:
        """Whether one of these functions may see the name of the test that runs it."""
        return any(map(self._reads_test_names, functions))

    def _reads_test_names(self, function: TestFunction) -> bool:
        if id(function) not in self.reading:
            self.reading[id(function)] = reads_test_names(ast.unparse(function))
        return self.reading[id(function)]

    def write(self, functions: Iterable[TestFunction]) -> list[PythonClaim]:
        """What these functions assert, made wrong by the toss of a coin."""
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
