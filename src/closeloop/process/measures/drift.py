"""Drift: how much the actions have to do with the goal, window by window."""

from __future__ import annotations

from collections.abc import Sequence

from ahocorasick_rs import AhoCorasick, Implementation

from closeloop.model.steps import LaneReading, Step
from closeloop.model.trace import Command, Edit, Handoff, Read, ToolUse
from closeloop.process.once import once
from closeloop.process.phrases import holds
from closeloop.process.words import stems, words_of

WINDOW = 20
MOST_WINDOWS = 25
"""Longer lanes are looked at in so many windows, evenly spread."""
_GOAL = 2000
"""So much of the request states the goal; what follows is pasted."""
_MORE = 500
_MOST_MESSAGES = 20
_TERMS = 200
_LOOKED_AT = 400
_LEAST_ACTIONS = 5


@once
def drift_curve(lane: LaneReading) -> tuple[float, ...]:
    """The share of actions that bear on the goal in each window of actions, first to last.

    A file that an action on the goal opens belongs to the goal from then on.
    """
    count = len(lane.steps) // WINDOW
    terms = _terms(lane) if count > 1 else []
    if not terms:
        return ()
    chosen = (
        range(count)
        if count <= MOST_WINDOWS
        else [index * (count - 1) // (MOST_WINDOWS - 1) for index in range(MOST_WINDOWS)]
    )
    # It is made for one lane: this kind is made soonest.
    goal = AhoCorasick(terms, implementation=Implementation.ContiguousNFA)
    near: set[str] = set()
    curve = []
    for index in chosen:
        of = hits = 0
        for step in lane.steps[index * WINDOW : (index + 1) * WINDOW]:
            bears = _bears(step, goal, near)
            if bears is not None:
                of, hits = of + 1, hits + bears
        if of >= _LEAST_ACTIONS:
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


def _terms(lane: LaneReading) -> list[str]:
    """Telling words of all that was asked: with a new request the goal grows."""
    said = [message.text[:_MORE] for message in lane.users[:_MOST_MESSAGES]]
    asked = "\n".join([(lane.request or "")[:_GOAL], *said])
    return sorted(term for term in stems(words_of(asked)) if len(term) > 3)[:_TERMS]


def _bears(step: Step, goal: AhoCorasick, near: set[str]) -> bool | None:
    """None for what says nothing of a goal: checks and waiting."""
    if step.check is not None or (step.doing is not None and step.doing.waits):
        return None
    paths = (*step.read, *step.written)
    if not near.isdisjoint(paths):
        return True
    if not holds(goal, _text(step).lower()):
        return False
    near.update(paths)
    return True


def _text(step: Step) -> str:
    event = step.event
    if isinstance(event, Command):
        return f"{event.command[:_LOOKED_AT]}\n{(event.output or '')[:_LOOKED_AT]}"
    if isinstance(event, Edit):
        return f"{event.path}\n{(event.after or event.patch or '')[:_LOOKED_AT]}"
    if isinstance(event, Read):
        return f"{event.path}\n{(event.text or '')[: 2 * _LOOKED_AT]}"
    if isinstance(event, ToolUse):
        given = (event.arguments or {}).values()
        return "\n".join(value[:_LOOKED_AT] for value in given if isinstance(value, str))
    return event.brief[:_LOOKED_AT] if isinstance(event, Handoff) else ""
