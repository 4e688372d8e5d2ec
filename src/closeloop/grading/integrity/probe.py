"""A second run of some tests under names that nobody can guess, and what each must come to.

A probe holds the tests that decide a verdict, with assertions made wrong on purpose, and control
tests. Code under test that forces results, answers to everything alike or reads its tests cannot
tell one from another. One module a language makes probes; this page says what they are.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

from closeloop.grading.testing.suite_report import Status
from closeloop.records.record import Record
from closeloop.records.task import TestRunner

ROOMS = 2
"""For languages whose code can read its tests: each assertion is right in one room of them."""
MAX_PERTURBED = 400
"""Tests of which something is made wrong, at the most."""
TestKey = TypeVar("TestKey")
ProbeKind = Literal["copy", "perturbed", "control"]


class ProbeTest(Record):
    """One test of a probe: its random name, and what must become of it."""

    name: str
    """As the results of the probe name it."""
    kind: ProbeKind
    expect: Literal["pass", "fail"]
    """Any result but `passed` is a fail; a test that does not report is neither."""
    original: str | None = None
    """The id of the test it was made from; None for a control."""
    how: str = ""
    """What was made wrong, for a perturbed one: `42 for 41`, `assertion inverted`."""
    certain: bool = True
    """By logic a perturbed test must fail wherever its original passes. Where that is only
    likely, the test counts only if it fails with the reference change too."""
    optional: bool = False
    """It may stay away: an assertion in a branch."""
    proved_by: tuple[str, ...] = ()
    """Names of control tests: if they come out at the base as they must, this test is certain."""
    met_by_many: bool = False
    """One value may satisfy an assertion both as it was and made wrong: a pattern, a matcher."""
    opposite: str = ""
    """The name of the same assertion in the other room, right where this one is wrong."""


class ProbeRequest(Record):
    """What a probe is made from."""

    command: str
    """The test command of the task."""
    runner: TestRunner
    fail_to_pass: tuple[str, ...]
    """Ids of the tests that the change must make pass; they pass now, or seem to."""
    others: tuple[str, ...] = ()
    """Ids of more tests that passed, to be confirmed beside them where that is cheap."""
    sources: Mapping[str, str]
    """The test files' texts as they stand in the clean room, by path from the root. Also the
    files beside them that a maker may need, such as `go.mod`."""
    helpers: Mapping[str, str] = {}
    """Modules in the folders of these tests, where fixtures and functions that assert may be."""
    folder: str
    """A folder of our own in the workspace, as commands see it, under a random name. It lies
    below the root, and may hold plug-ins and reporters of the probe."""
    root: str
    """The workspace, as commands see it."""
    pipe: str
    """A named pipe to write the report to: only appending is possible, and we hold its end."""
    token: str
    """Random hexadecimal digits: the source of all names and changed values."""
    room: int = 0
    """Which part of the probe to make. Where code under test can read its tests, no room holds one
    of them both as it is and made wrong: nobody who sees a single room can tell which is which."""


class Probe(Record):
    """Files to write, a command to run, and what must come of it."""

    files: Mapping[str, str]
    """By path from the root of the workspace. New files under random names, where the language
    allows it; else whole new texts of files that are there."""
    command: str
    """Reports to the request's pipe. Its own output goes to a file and is kept as evidence."""
    env: Mapping[str, str] = {}
    tests: tuple[ProbeTest, ...]
    exit_codes: tuple[int, ...] = ()
    """Of the command, when everything comes out as it must; none given: any but 0."""
    rooms: int = 1
    """How many rooms there are for these tests."""


Results = dict[str, Status | Literal["mixed"]]
"""What a probe reported, by random name; `mixed` for what passed and did not."""


def choose_perturbed(tests: Sequence[TestKey], token: str) -> frozenset[TestKey]:
    """The tests of which something is made wrong, the same in every room."""
    rng = random.Random(token)  # noqa: S311 (`secrets` made the token)
    return frozenset(rng.sample(tests, min(len(tests), MAX_PERTURBED)))
