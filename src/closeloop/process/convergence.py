"""Does the loop close? How the failures go from iteration to iteration."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from msgspec.structs import replace

from closeloop.model.record import Record
from closeloop.model.steps import Failures, Iteration, LaneReading
from closeloop.process.normalise import alike
from closeloop.process.once import once

LAST = chr(0x10FFFF)
"""Comes after all other signs."""


class Loops(Record):
    """How far a lane's iterations went."""

    converged_after: int | None
    """Iterations until nothing failed for good; None when that never was."""
    episodes: int
    """How often something began to fail that had not failed before."""
    closed: int
    """How many of those ended with everything passing."""
    standstill: int
    """The longest row of iterations whose failures stayed the same."""


@once
def loops(lane: LaneReading) -> Loops | None:
    """How far the lane's iterations went; None where no check of it says whether it passed."""
    if not any(step.check and step.check.passed is not None for step in lane.checks):
        return None
    after = None
    for number, iteration in enumerate(lane.iterations, 1):
        if iteration.passed is not None:
            after = (after or number) if iteration.passed else None
    episodes, closed = _episodes(lane)
    longest = max((len(row) for row in standstills(lane)), default=0)
    return Loops(converged_after=after, episodes=episodes, closed=closed, standstill=longest)


def _episodes(lane: LaneReading) -> tuple[int, int]:
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
            last = bisect_left(failing, check.target + LAST)
            del failing[first:last]
            closed += first < last and not failing
        elif not check.passed:
            began += not failing
            place = bisect_left(failing, check.target)
            if failing[place : place + 1] != [check.target]:
                failing.insert(place, check.target)
    return began, closed


@once
def standstills(lane: LaneReading) -> Sequence[Sequence[Iteration]]:
    """The longest rows of iterations after which the same things failed in the same way."""
    rows: list[list[Iteration]] = []
    last: dict[str, Failures] = {}
    for iteration in lane.iterations:
        failing = _by_target(iteration)
        if not failing or iteration.passed is not False:
            last = {}
            continue
        if last and _stands(last, failing):
            rows[-1].append(iteration)
            last |= {target: _known(last.get(target), now) for target, now in failing.items()}
        else:
            rows.append([iteration])
            last = failing
    return rows


def _by_target(iteration: Iteration) -> dict[str, Failures]:
    checks = (step.check for step in iteration.checks)
    return {check.target: check.failures for check in checks if check and check.failures}


def _stands(last: dict[str, Failures], now: dict[str, Failures]) -> bool:
    """A target run before must fail as it did; a new one must fail in what failed already."""
    before = {key for failures in last.values() for key in failures.errors}
    for target, failures in now.items():
        if target in last:
            if not same_failures(last[target], failures):
                return False
        elif not (failures.keys <= before or failures.keys >= before):
            return False
    return True


def _known(before: Failures | None, now: Failures) -> Failures:
    """Where it is not said how something fails, what was said of it before still stands."""
    if before is None or all(now.errors.values()):
        return now
    errors = {key: told or before.errors.get(key, "") for key, told in now.errors.items()}
    return replace(now, errors=errors)


def same_failures(one: Failures, other: Failures) -> bool:
    """The same things fail, in the same way as far as both say how."""
    if one.errors.keys() != other.errors.keys():
        return False
    return all(alike(message, other.errors[key]) for key, message in one.errors.items())
