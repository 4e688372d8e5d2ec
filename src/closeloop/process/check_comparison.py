"""Which checks can be compared, and what changed from one to the next.

Two checks of a lane are comparable when they exercise overlapping tests, or run the same program
on the same targets in the same folder. Flags that select fewer tests or change the output do not
make another check; another folder does.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal

from closeloop.process.check_results import find_parser_name
from closeloop.process.failures.failure_collector import is_same_message
from closeloop.records.inspection import CheckFailures, TraceCheck, TraceStep
from closeloop.records.record import Record
from closeloop.records.trace import Command

FailureProgress = Literal["gone", "fewer", "different", "same", "unknown"]
"""What became of failures by the next comparable check; unknown where it does not tell."""

_TWO_WORD_PROGRAMS = frozenset((
    "go", "cargo", "npm", "pnpm", "yarn", "bun", "node", "python", "bash", "sh", "zsh", "ruby",
    "php", "deno", "dotnet", "mix", "zig", "swift", "make", "rake", "just", "task", "nox", "mvn",
    "gradle", "manage.py", "setup.py", "rails", "bazel", "flutter", "dart", "composer", "tsx",
    "ts-node", "perl", "lua", "julia", "Rscript",
))  # fmt: skip
"""Their next word says what they do."""
_QUOTING_SIGN = re.compile(r"[\"'\\]")
"""Without one, a line is its words: to find its quotations takes long."""
_OUTPUT_FILTERS = frozenset(("head", "tail", "grep", "egrep", "rg", "sed", "awk"))


class CheckScope(Record, gc=False):
    """What one program of a check is run on."""

    program: str
    places: frozenset[str]
    """Files, folders and test ids; none is everything."""
    filters: frozenset[str]
    """Options that select among those: `-k total`."""


@lru_cache(maxsize=4096)
def parse_scopes(target: str) -> tuple[CheckScope, ...]:
    """What a check's target says that is run, program by program."""
    return tuple(_parse_scope(part) for part in target.split(" && ") if part)


def _parse_scope(part: str) -> CheckScope:
    try:
        words = shlex.split(part) if _QUOTING_SIGN.search(part) else part.split()
    except ValueError:
        words = part.split()
    count = 2 if words[0] in _TWO_WORD_PROGRAMS and words[1:2] and words[1][:1] != "-" else 1
    places, filters = set(), set()
    rest = iter(words[count:])
    for word in rest:
        if word[:1] != "-":
            places.add(word.removesuffix("...").removeprefix("./").rstrip("/"))
        elif len(word) == 2:
            value = next(rest, "")
            if value not in (".", "tsconfig.json"):
                filters.add(f"{word} {value}")
        else:
            filters.add(word)
    if "" in places:
        places.clear()
    return CheckScope(
        program=" ".join(words[:count]), places=frozenset(places), filters=frozenset(filters)
    )


def find_comparable(check: TraceCheck, steps: Iterable[TraceStep]) -> Iterator[TraceStep]:
    """Those of other checks that are comparable with this one, in order.

    They exercise overlapping tests, or run the same program on the same targets there.
    """
    folder, target, failures = check.folder, check.target, check.failures
    subject = _find_subject(target)
    keys = failures.errors.keys() if failures and failures.parser != "tail" else None
    for step in steps:
        other = step.check
        if other is None or (folder and other.folder and folder != other.folder):
            continue
        others = other.failures
        # What is cheap to ask comes first.
        if other.target == target or (
            keys and others and not keys.isdisjoint(others.errors) and others.parser != "tail"
        ):
            yield step
            continue
        relation = _relate_subjects(subject, _find_subject(other.target))
        if relation == "overlapping" or (
            relation == "apart"
            and (_runs_tests_of(check, others) or _runs_tests_of(other, failures))
        ):
            yield step


def _runs_tests_of(
    check: TraceCheck, failures: CheckFailures | None, *, all_of: bool = False
) -> bool:
    """The check runs tests that failed elsewhere, such as `pytest tests` after `make test`.

    `all_of`: without an option that selects among them, and each of them.
    """
    if failures is None or find_parser_name(check.tool) != failures.parser:
        return False
    match = all if all_of else any
    return any(
        not (all_of and scope.filters)
        and (
            not scope.places
            or match(_is_named(key, failures, scope.places) for key in failures.errors)
        )
        for scope in parse_scopes(check.target)
    )


def _is_named(test: str, failures: CheckFailures, places: frozenset[str]) -> bool:
    """The test, or where its id has no path the only file of the output, lies in the places."""
    names = (test, *failures.paths) if len(failures.errors) == 1 else (test,)
    return any(_is_within(name, place) for name in names for place in places)


class _TargetSubject:
    """What a target runs, whatever options select among it: few subjects stand for many targets.

    It is compared by identity: a lane's checks are compared each with many others.
    """

    __slots__ = ("scopes",)

    def __init__(self, scopes: tuple[tuple[str, frozenset[str]], ...]) -> None:
        self.scopes = scopes


@lru_cache(maxsize=4096)
def _find_subject(target: str) -> _TargetSubject:
    return _keep_subject(tuple([(one.program, one.places) for one in parse_scopes(target)]))


_keep_subject = lru_cache(maxsize=4096)(_TargetSubject)


@lru_cache(maxsize=1 << 14)
def _relate_subjects(
    one: _TargetSubject, other: _TargetSubject
) -> Literal["overlapping", "same program", "apart"]:
    shared = [
        _places_overlap(places, known_places)
        for program, places in one.scopes
        for known, known_places in other.scopes
        if program == known
    ]
    return "overlapping" if any(shared) else "same program" if shared else "apart"


def share_program(one: TraceCheck, other: TraceCheck) -> bool:
    """They run the same program, be it on other tests: one is no answer to the other then."""
    return _relate_subjects(_find_subject(one.target), _find_subject(other.target)) != "apart"


def covers_check(later: TraceCheck, earlier: TraceCheck) -> bool:
    """The later one runs all that the earlier one ran: that it passes answers for it."""
    return _target_contains(later.target, earlier.target)


@lru_cache(maxsize=1 << 14)
def _target_contains(wider: str, narrower: str) -> bool:
    return wider == narrower or all(
        any(
            scope.program == known.program
            and scope.filters <= known.filters
            and _places_contain(scope.places, known.places)
            for scope in parse_scopes(wider)
        )
        for known in parse_scopes(narrower)
    )


def compare_failures(earlier: TraceStep, later: TraceStep) -> FailureProgress:
    """What became of the earlier check's failures, by a later comparable one that ran."""
    before, after = earlier.check, later.check
    assert before is not None, "both are checks"
    assert after is not None, "both are checks"
    assert before.failures is not None, "the earlier one failed"
    covers = covers_check(after, before)
    if after.passed:
        covers = covers or _runs_tests_of(after, before.failures, all_of=True)
        return "gone" if covers else "unknown"
    if after.failures is None or after.passed is None:
        return "unknown"
    if "tail" in (before.failures.parser, after.failures.parser):
        if same_failures(before.failures, after.failures):
            return "same"
        return "different" if is_same_line(earlier, later) else "unknown"
    if (hides_output(earlier) or hides_output(later)) and not is_same_line(earlier, later):
        # What was cut off may have failed as well.
        return "same" if _returns(before.failures, after.failures) else "unknown"
    return _compare_sets(before.failures, after.failures, covers=covers)


def _compare_sets(before: CheckFailures, after: CheckFailures, *, covers: bool) -> FailureProgress:
    if not covers:
        if before.errors.keys().isdisjoint(after.errors):
            return "unknown"
        return "same" if _returns(after, before) else "different"
    if _returns(before, after):
        return "same"
    return "fewer" if after.keys < before.keys else "different"


def same_failures(one: CheckFailures, other: CheckFailures) -> bool:
    """The same things fail, in the same way as far as both say how."""
    return one.errors.keys() == other.errors.keys() and _returns(one, other)


def _returns(some: CheckFailures, others: CheckFailures) -> bool:
    """All of some are among the others, failing in the same way."""
    return all(
        key in others.errors and is_same_message(message, others.errors[key])
        for key, message in some.errors.items()
    )


def hides_output(step: TraceStep) -> bool:
    """Its output was cut or searched: what is not shown may have failed as well."""
    doing = step.doing
    return doing is not None and doing.masked and not _OUTPUT_FILTERS.isdisjoint(doing.programs)


def is_same_line(one: TraceStep, other: TraceStep) -> bool:
    """The same command, as far as its words go."""
    return (
        isinstance(one.event, Command)
        and isinstance(other.event, Command)
        and (
            one.event.command == other.event.command
            or one.event.command.split() == other.event.command.split()
        )
    )


def _places_overlap(some: frozenset[str], others: frozenset[str]) -> bool:
    if not some or not others or not some.isdisjoint(others):
        return True
    return any(_is_within(one, other) or _is_within(other, one) for one in some for other in others)


def _places_contain(wider: frozenset[str], some: frozenset[str]) -> bool:
    if not wider or wider == some:
        return True
    return bool(some) and all(any(_is_within(one, other) for other in wider) for one in some)


def _is_within(inner: str, outer: str) -> bool:
    return inner == outer or (inner.startswith(outer) and inner[len(outer)] in "/:.[")


MAX_CHECKS_AHEAD = 50
"""So many checks after one are asked whether they can be compared with it."""


def find_next_comparable(
    checks: Sequence[TraceStep], place: int, *, ran: bool = True
) -> Iterable[TraceStep]:
    """The checks after that place that are comparable with it, in order; `ran`: those that ran."""
    check = checks[place].check
    assert check is not None, "it is a check"
    for step in find_comparable(check, checks[place + 1 : place + 1 + MAX_CHECKS_AHEAD]):
        if not ran or (step.check and step.check.passed is not None):
            yield step
