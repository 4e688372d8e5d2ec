"""Whether failures go away from iteration to iteration, and whether actions keep to the goal."""

from __future__ import annotations

from collections.abc import Sequence

from ahocorasick_rs import AhoCorasick, Implementation

from closeloop.process.check_comparison import (
    compare_failures,
    covers_check,
    find_comparable,
    share_program,
)
from closeloop.process.rule_helpers import cache_on_reading
from closeloop.process.text_words import contains_any, normalise_words, word_stems
from closeloop.records.inspection import Iteration, LaneReading, TraceCheck, TraceStep
from closeloop.records.record import Record
from closeloop.records.trace import Command, Edit, Handoff, Read, ToolUse


class LoopSummary(Record):
    """How far a lane's iterations went."""

    converged_after: int | None
    """Iterations until nothing failed for good; None when that never was."""
    episodes: int
    """How often something began to fail that had not failed before."""
    closed: int
    """How many of those ended with a comparable check that passes."""
    standstill: int
    """The longest row of iterations whose failures stayed the same."""


class FailureEpisode:
    """Failing checks that can be compared, up to the one that passes."""

    def __init__(self, first: TraceStep) -> None:
        self.failing = [first]
        self.closed_by: TraceStep | None = None

    @property
    def known_checks(self) -> Sequence[TraceStep]:
        """A failing check that is comparable with one of these goes on with it."""
        return self.failing[:1] if len(self.failing) == 1 else (self.failing[0], self.failing[-1])


@cache_on_reading
def summarise_loops(lane: LaneReading) -> LoopSummary | None:
    """How far the lane's iterations went; None where no check of it says whether it passed."""
    if not any(step.check and step.check.passed is not None for step in lane.checks):
        return None
    episodes = list_episodes(lane)
    closed = [one.closed_by for one in episodes if one.closed_by is not None]
    longest = max((len(row) for row in find_standstills(lane)), default=0)
    return LoopSummary(
        converged_after=_count_iterations(lane, closed) if len(closed) == len(episodes) else None,
        episodes=len(episodes),
        closed=len(closed),
        standstill=longest,
    )


def _count_iterations(lane: LaneReading, closed: Sequence[TraceStep]) -> int | None:
    """Up to the last check that closed an episode; without one, up to the first that passes."""
    if closed:
        last = max(step.number for step in closed)
        return sum(one.changes[0].number <= last for one in lane.iterations) or None
    passing = (number for number, one in enumerate(lane.iterations, 1) if one.passed)
    return next(passing, None)


MAX_OPEN_EPISODES = 20
"""So many things that fail at once are kept apart."""


@cache_on_reading
def list_episodes(lane: LaneReading) -> Sequence[FailureEpisode]:
    """Rows of failing checks of the same tests or targets, whatever the commands' texts are.

    One that was looked at once, and never again although another program passed later, is left
    out: nobody knows whether it still fails.
    """
    episodes: list[FailureEpisode] = []
    opened: list[FailureEpisode] = []
    passed: dict[str, TraceStep] = {}
    for step in lane.checks:
        check = step.check
        if check is None or check.passed is None:
            continue
        if check.passed:
            passed[check.target] = step
            _close_episodes(opened, check, step)
            continue
        if check.failures is None:
            continue
        known_checks = [known for one in opened for known in one.known_checks]
        earlier = next(find_comparable(check, known_checks), None)
        if earlier is not None:
            owners = {known.number: one for one in opened for known in one.known_checks}
            owners[earlier.number].failing.append(step)
        elif len(opened) < MAX_OPEN_EPISODES:
            opened.append(FailureEpisode(step))
            episodes.append(opened[-1])
    return [
        one
        for one in episodes
        if one.closed_by is not None
        or len(one.failing) > 1
        or not any(_is_other_pass(one.failing[-1], step) for step in passed.values())
    ]


def _close_episodes(opened: list[FailureEpisode], check: TraceCheck, step: TraceStep) -> None:
    """A check that passes ends those where it answers for all that failed last."""
    last_failing = {one.failing[-1].number: one for one in opened}
    for failing in find_comparable(check, [one.failing[-1] for one in opened]):
        if compare_failures(failing, step) == "gone":
            episode = last_failing[failing.number]
            episode.closed_by = step
            opened.remove(episode)


def _is_other_pass(failing: TraceStep, step: TraceStep) -> bool:
    """A later pass of another program: it may have taken the place of what failed."""
    if step.number < failing.number or failing.check is None or step.check is None:
        return False
    return not share_program(failing.check, step.check)


@cache_on_reading
def find_standstills(lane: LaneReading) -> Sequence[Sequence[Iteration]]:
    """The longest rows of iterations after which the same things failed in the same way."""
    rows: list[list[Iteration]] = []
    last: list[TraceStep] = []
    for iteration in lane.iterations:
        failing = list_failing_checks(iteration)
        if not failing or iteration.passed is not False:
            if any(step.check and step.check.passed is not None for step in iteration.checks):
                last = []
            continue
        if last and _is_standstill(last, failing):
            rows[-1].append(iteration)
            last = [*failing, *(one for one in last if not _is_repeated(one, failing))]
        else:
            rows.append([iteration])
            last = failing
    return rows


def list_failing_checks(iteration: Iteration) -> list[TraceStep]:
    """Those of its checks that ran and failed."""
    return [step for step in iteration.checks if step.check and step.check.failures]


def _is_standstill(last: Sequence[TraceStep], now: Sequence[TraceStep]) -> bool:
    """What was run before fails as it did; something new fails in what failed already."""
    compared = 0
    for step in now:
        for known in find_comparable(step.check, last) if step.check else ():
            progress = compare_failures(known, step)
            if progress not in ("same", "unknown") or _adds_failures(known, step):
                return False
            compared += progress == "same"
    return compared > 0


def _adds_failures(known: TraceStep, step: TraceStep) -> bool:
    """More fails than before: that is no standstill, for something moved."""
    before, after = known.check, step.check
    if before is None or after is None or before.failures is None or after.failures is None:
        return False
    return after.failures.keys > before.failures.keys and covers_check(before, after)


def _is_repeated(one: TraceStep, failing: Sequence[TraceStep]) -> bool:
    return any(
        one.check and step.check and one.check.target == step.check.target for step in failing
    )


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
