"""Does the loop close? How the failures go from iteration to iteration."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from msgspec.structs import replace

from closeloop.process.output_normalisation import is_same_message
from closeloop.process.rule_helpers import cache_on_reading
from closeloop.records.inspection import (
    CheckFailures,
    Iteration,
    LaneReading,
)
from closeloop.records.record import Record

LAST_CHARACTER = chr(0x10FFFF)
"""Comes after all other signs."""


class LoopSummary(Record):
    """How far a lane's iterations went."""

    converged_after: int | None
    """Iterations until nothing failed for good; None when that never was."""
    episodes: int
    """How often something began to fail that had not failed before."""
    closed: int
    """How many of those ended with everything passing."""
    standstill: int
    """The longest row of iterations whose failures stayed the same."""


@cache_on_reading
def summarise_loops(lane: LaneReading) -> LoopSummary | None:
    """How far the lane's iterations went; None where no check of it says whether it passed."""
    if not any(step.check and step.check.passed is not None for step in lane.checks):
        return None
    after = None
    for number, iteration in enumerate(lane.iterations, 1):
        if iteration.passed is not None:
            after = (after or number) if iteration.passed else None
    episodes, closed = _count_episodes(lane)
    longest = max((len(row) for row in find_standstills(lane)), default=0)
    return LoopSummary(converged_after=after, episodes=episodes, closed=closed, standstill=longest)


def _count_episodes(lane: LaneReading) -> tuple[int, int]:
    """Rows of failing checks of one target, and how many of them ended in a pass.

    `failing` is kept in order.
    """
    began, closed = 0, 0
    failing: list[str] = []
    for step in lane.checks:
        check = step.check
        if check is None or check.passed is None:
            continue
        if check.passed and failing:
            # A wider run that passes answers for what was run alone: those stand together.
            first = bisect_left(failing, check.target)
            last = bisect_left(failing, check.target + LAST_CHARACTER)
            del failing[first:last]
            closed += first < last and not failing
        elif not check.passed:
            began += not failing
            place = bisect_left(failing, check.target)
            if failing[place : place + 1] != [check.target]:
                failing.insert(place, check.target)
    return began, closed


@cache_on_reading
def find_standstills(lane: LaneReading) -> Sequence[Sequence[Iteration]]:
    """The longest rows of iterations after which the same things failed in the same way."""
    rows: list[list[Iteration]] = []
    last: dict[str, CheckFailures] = {}
    for iteration in lane.iterations:
        failing = _failures_by_target(iteration)
        if not failing or iteration.passed is not False:
            last = {}
            continue
        if last and _is_standstill(last, failing):
            rows[-1].append(iteration)
            last |= {
                target: _fill_unknown_errors(last.get(target), now)
                for target, now in failing.items()
            }
        else:
            rows.append([iteration])
            last = failing
    return rows


def _failures_by_target(iteration: Iteration) -> dict[str, CheckFailures]:
    checks = (step.check for step in iteration.checks)
    return {check.target: check.failures for check in checks if check and check.failures}


def _is_standstill(last: dict[str, CheckFailures], now: dict[str, CheckFailures]) -> bool:
    """A target run before must fail as it did; a new one must fail in what failed already."""
    before = {key for failures in last.values() for key in failures.errors}
    for target, failures in now.items():
        if target in last:
            if not same_failures(last[target], failures):
                return False
        elif not (failures.keys <= before or failures.keys >= before):
            return False
    return True


def _fill_unknown_errors(before: CheckFailures | None, now: CheckFailures) -> CheckFailures:
    """Where it is not said how something fails, what was said of it before still stands."""
    if before is None or all(now.errors.values()):
        return now
    errors = {key: told or before.errors.get(key, "") for key, told in now.errors.items()}
    return replace(now, errors=errors)


def same_failures(one: CheckFailures, other: CheckFailures) -> bool:
    """The same things fail, in the same way as far as both say how."""
    if one.errors.keys() != other.errors.keys():
        return False
    return all(is_same_message(message, other.errors[key]) for key, message in one.errors.items())
