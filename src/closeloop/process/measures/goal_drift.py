"""Drift: how much the actions have to do with the goal, window by window."""

from __future__ import annotations

from collections.abc import Sequence

from ahocorasick_rs import AhoCorasick, Implementation

from closeloop.process.rule_helpers import cache_on_reading
from closeloop.process.text_words import contains_any, normalise_words, word_stems
from closeloop.records.inspection import (
    LaneReading,
    TraceStep,
)
from closeloop.records.trace import (
    Command,
    Edit,
    Handoff,
    Read,
    ToolUse,
)

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
