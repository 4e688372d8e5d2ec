"""Both sides of every handoff: what the parent was asked, what the child did, what came after."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from closeloop.model.record import Record
from closeloop.model.steps import LaneReading, Reading, Step
from closeloop.model.trace import Command, Edit, Handoff, Message, Read, ToolUse
from closeloop.process.once import once

WINDOW = 200
"""So many steps of the parent before and after a handoff are looked at."""
TEXT = 4000
FEW = 8
"""Words; a message of fewer cannot stand alone: `Yes, do that.`"""


class Handed(Record):
    """One handoff. The parent's steps and words are those next to it."""

    event: Handoff
    asked: str | None
    """What the parent was asked when it handed the work on; None where the trace does not say."""
    parent: LaneReading
    child: LaneReading | None
    work: Sequence[Step]
    """What the child did for this handoff, without what its own children did."""
    before: Sequence[Step]
    after: Sequence[Step]
    said: Sequence[Message]
    """The parent's words afterwards."""


@once
def handed(reading: Reading) -> Sequence[Handed]:
    """Every handoff of a trace, in order."""
    events = reading.handoffs
    turns: dict[str, list[int]] = {}
    for event in events:
        if event.child is not None:
            turns.setdefault(event.child, []).append(event.number)
    return [_joined(reading, event, turns.get(event.child or "", [])) for event in events]


def input_of(step: Step) -> str:
    """What the agent wrote to act: command, path, arguments, brief."""
    event = step.event
    if isinstance(event, Command):
        return event.command[:TEXT]
    if isinstance(event, Edit):
        return f"{event.path} {(event.after or event.patch or '')[:TEXT]}"
    if isinstance(event, Read):
        return event.path
    if isinstance(event, ToolUse):
        return f"{event.name} {str(event.arguments)[:TEXT]}"
    return event.brief[:TEXT]


def output_of(step: Step) -> str:
    """What the agent was shown for it."""
    event = step.event
    if isinstance(event, Read):
        return event.text or ""
    if isinstance(event, Handoff):
        return event.report or ""
    return "" if isinstance(event, Edit) else event.output or ""


def names(targets: Iterable[str]) -> tuple[str, ...]:
    """How files and code are called when they are mentioned: by the last part of their name."""
    short = (target.replace("\\", "/").rstrip("/").rpartition("/")[2] for target in targets)
    return tuple(dict.fromkeys(name for name in short if len(name) > 2))


def _joined(reading: Reading, event: Handoff, turns: Sequence[int]) -> Handed:
    parent = reading.lanes[event.lane]
    child = reading.lanes.get(event.child) if event.child not in (None, event.lane) else None
    first = bisect_left(parent.steps, event.number, key=_number)
    last = bisect_right(parent.steps, event.number, key=_number)
    spoken = bisect_right(parent.messages, event.number, key=lambda message: message.number)
    end = spoken + WINDOW
    said = [one for one in parent.messages[spoken:end] if one.role == "agent"]
    if end < len(parent.messages) and parent.messages[-1].role == "agent":
        said.append(parent.messages[-1])
    return Handed(
        event=event,
        asked=_asked(reading, parent, spoken),
        parent=parent,
        child=child,
        work=_work(child, event, turns) if child else (),
        before=parent.steps[max(0, first - WINDOW) : first],
        after=parent.steps[last : last + WINDOW],
        said=said,
    )


def _number(step: Step) -> int:
    return step.event.number


def _work(child: LaneReading, event: Handoff, turns: Sequence[int]) -> Sequence[Step]:
    """All of the child's steps; where it was called again, those up to or from then on."""
    if len(turns) < 2:
        return child.steps
    place = bisect_left(turns, event.number)
    start = bisect_left(child.steps, event.number, key=_number) if place else 0
    if place + 1 >= len(turns):
        return child.steps[start:]
    return child.steps[start : bisect_left(child.steps, turns[place + 1], key=_number)]


def _asked(reading: Reading, parent: LaneReading, spoken: int) -> str | None:
    """The user's last words that stand alone, with what was answered or corrected since."""
    kept: list[str] = []
    for message in reversed(parent.messages[max(0, spoken - WINDOW) : spoken]):
        if message.role != "user":
            continue
        kept.append(message.text)
        adds = message.intent in ("answer", "correction", "interrupt")
        if not adds and len(message.text[:TEXT].split()) >= FEW:
            break
    if kept:
        return "\n\n".join(reversed(kept))
    if parent.request is None and parent.lane.parent is None and reading.task:
        return reading.task.prompt or None
    return parent.request
