"""Whether failures go away from iteration to iteration, and whether actions keep to the goal."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ahocorasick_rs import AhoCorasick, Implementation
from msgspec.structs import replace

from closeloop.process.failures.failure_collector import is_same_message
from closeloop.process.rule_helpers import cache_on_reading
from closeloop.process.text_words import contains_any, normalise_words, word_stems
from closeloop.records.inspection import CheckFailures, Iteration, LaneReading, TraceStep
from closeloop.records.record import Record
from closeloop.records.trace import Command, Edit, Handoff, Read, ToolUse

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


# Drift: how much the actions have to do with the goal, window by window.

WINDOW_STEPS = 20
MAX_WINDOWS = 25
"""Longer lanes are looked at in so many windows, evenly spread."""
_MAX_GOAL_CHARS = 2000
"""So much of the request states the goal; what follows is pasted."""
_MAX_MESSAGE_CHARS = 500
_MAX_MESSAGES = 20
_MAX_TERMS = 200
_MAX_TEXT_CHARS = 400
_MIN_ACTIONS = 5


@cache_on_reading
def drift_curve(lane: LaneReading) -> tuple[float, ...]:
    """The share of actions that bear on the goal in each window of actions, first to last.

    A file that an action on the goal opens belongs to the goal from then on.
    """
    count = len(lane.steps) // WINDOW_STEPS
    terms = _goal_terms(lane) if count > 1 else []
    if not terms:
        return ()
    window_indexes = (
        range(count)
        if count <= MAX_WINDOWS
        else [index * (count - 1) // (MAX_WINDOWS - 1) for index in range(MAX_WINDOWS)]
    )
    # It is made for one lane: this kind is made soonest.
    goal = AhoCorasick(terms, implementation=Implementation.ContiguousNFA)
    goal_paths: set[str] = set()
    curve = []
    for index in window_indexes:
        of = hits = 0
        for step in lane.steps[index * WINDOW_STEPS : (index + 1) * WINDOW_STEPS]:
            bears_on_goal = _bears_on_goal(step, goal, goal_paths)
            if bears_on_goal is not None:
                of, hits = of + 1, hits + bears_on_goal
        if of >= _MIN_ACTIONS:
            curve.append(round(hits / of, 3))
    return tuple(curve) if len(curve) > 1 else ()


def drift_slope(curve: Sequence[float]) -> float | None:
    """How much the likeness changes from the first window to the last, by a line through all."""
    count = len(curve)
    if count < 2:
        return None
    middle, mean = (count - 1) / 2, sum(curve) / count
    rise = sum((place - middle) * (value - mean) for place, value in enumerate(curve))
    run = sum((place - middle) ** 2 for place in range(count))
    return round(rise / run * (count - 1), 3)


def _goal_terms(lane: LaneReading) -> list[str]:
    """Telling words of all that was asked: with a new request the goal grows."""
    user_texts = [message.text[:_MAX_MESSAGE_CHARS] for message in lane.users[:_MAX_MESSAGES]]
    request_text = "\n".join([(lane.request or "")[:_MAX_GOAL_CHARS], *user_texts])
    return sorted(term for term in word_stems(normalise_words(request_text)) if len(term) > 3)[
        :_MAX_TERMS
    ]


def _bears_on_goal(step: TraceStep, goal: AhoCorasick, near: set[str]) -> bool | None:
    """None for what says nothing of a goal: checks and waiting."""
    if step.check is not None or (step.doing is not None and step.doing.waits):
        return None
    paths = (*step.read, *step.written)
    if not near.isdisjoint(paths):
        return True
    if not contains_any(goal, _step_text(step).lower()):
        return False
    near.update(paths)
    return True


def _step_text(step: TraceStep) -> str:
    event = step.event
    if isinstance(event, Command):
        return f"{event.command[:_MAX_TEXT_CHARS]}\n{(event.output or '')[:_MAX_TEXT_CHARS]}"
    if isinstance(event, Edit):
        return f"{event.path}\n{(event.after or event.patch or '')[:_MAX_TEXT_CHARS]}"
    if isinstance(event, Read):
        return f"{event.path}\n{(event.text or '')[: 2 * _MAX_TEXT_CHARS]}"
    if isinstance(event, ToolUse):
        given = (event.arguments or {}).values()
        return "\n".join(value[:_MAX_TEXT_CHARS] for value in given if isinstance(value, str))
    return event.brief[:_MAX_TEXT_CHARS] if isinstance(event, Handoff) else ""
