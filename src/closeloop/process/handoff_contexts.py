"""Both sides of every handoff: what the parent was asked, what the child did, what came after."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from closeloop.process.reading_cache import cache_on_reading
from closeloop.records.record import Record
from closeloop.records.trace import Command, Edit, Handoff, Message, Read, ToolUse
from closeloop.records.trace_steps import LaneReading, TraceReading, TraceStep

MAX_WINDOW_STEPS = 200
"""So many steps of the parent before and after a handoff are looked at."""
MAX_TEXT_CHARS = 4000
MIN_REQUEST_WORDS = 8
"""Words; a message of fewer cannot stand alone: `Yes, do that.`"""


class HandoffContext(Record):
    """One handoff. The parent's steps and words are those next to it."""

    event: Handoff
    asked: str | None
    """What the parent was asked when it handed the work on; None where the trace does not say."""
    parent: LaneReading
    child: LaneReading | None
    work: Sequence[TraceStep]
    """What the child did for this handoff, without what its own children did."""
    before: Sequence[TraceStep]
    after: Sequence[TraceStep]
    said: Sequence[Message]
    """The parent's words afterwards."""


@cache_on_reading
def list_handoff_contexts(reading: TraceReading) -> Sequence[HandoffContext]:
    """Every handoff of a trace, in order."""
    events = reading.handoffs
    turns: dict[str, list[int]] = {}
    for event in events:
        if event.child is not None:
            turns.setdefault(event.child, []).append(event.number)
    return [
        _build_handoff_context(reading, event, turns.get(event.child or "", [])) for event in events
    ]


def step_input(step: TraceStep) -> str:
    """What the agent wrote to act: command, path, arguments, brief."""
    event = step.event
    if isinstance(event, Command):
        return event.command[:MAX_TEXT_CHARS]
    if isinstance(event, Edit):
        return f"{event.path} {(event.after or event.patch or '')[:MAX_TEXT_CHARS]}"
    if isinstance(event, Read):
        return event.path
    if isinstance(event, ToolUse):
        return f"{event.name} {str(event.arguments)[:MAX_TEXT_CHARS]}"
    return event.brief[:MAX_TEXT_CHARS]


def step_output(step: TraceStep) -> str:
    """What the agent was shown for it."""
    event = step.event
    if isinstance(event, Read):
        return event.text or ""
    if isinstance(event, Handoff):
        return event.report or ""
    return "" if isinstance(event, Edit) else event.output or ""


def short_names(targets: Iterable[str]) -> tuple[str, ...]:
    """How files and code are called when they are mentioned: by the last part of their name."""
    short = (target.replace("\\", "/").rstrip("/").rpartition("/")[2] for target in targets)
    return tuple(dict.fromkeys(name for name in short if len(name) > 2))


def _build_handoff_context(
    reading: TraceReading, event: Handoff, turns: Sequence[int]
) -> HandoffContext:
    parent = reading.lanes[event.lane]
    child = reading.lanes.get(event.child) if event.child not in (None, event.lane) else None
    first = bisect_left(parent.steps, event.number, key=_event_number)
    last = bisect_right(parent.steps, event.number, key=_event_number)
    message_count = bisect_right(parent.messages, event.number, key=lambda message: message.number)
    end = message_count + MAX_WINDOW_STEPS
    later_messages = [one for one in parent.messages[message_count:end] if one.role == "agent"]
    if end < len(parent.messages) and parent.messages[-1].role == "agent":
        later_messages.append(parent.messages[-1])
    return HandoffContext(
        event=event,
        asked=_parent_request(reading, parent, message_count),
        parent=parent,
        child=child,
        work=_child_work(child, event, turns) if child else (),
        before=parent.steps[max(0, first - MAX_WINDOW_STEPS) : first],
        after=parent.steps[last : last + MAX_WINDOW_STEPS],
        said=later_messages,
    )


def _event_number(step: TraceStep) -> int:
    return step.event.number


def _child_work(child: LaneReading, event: Handoff, turns: Sequence[int]) -> Sequence[TraceStep]:
    """All of the child's steps; where it was called again, those up to or from then on."""
    if len(turns) < 2:
        return child.steps
    place = bisect_left(turns, event.number)
    start = bisect_left(child.steps, event.number, key=_event_number) if place else 0
    if place + 1 >= len(turns):
        return child.steps[start:]
    return child.steps[start : bisect_left(child.steps, turns[place + 1], key=_event_number)]


def _parent_request(reading: TraceReading, parent: LaneReading, spoken: int) -> str | None:
    """The user's last words that stand alone, with what was answered or corrected since."""
    texts: list[str] = []
    for message in reversed(parent.messages[max(0, spoken - MAX_WINDOW_STEPS) : spoken]):
        if message.role != "user":
            continue
        texts.append(message.text)
        is_addition = message.intent in ("answer", "correction", "interrupt")
        if not is_addition and len(message.text[:MAX_TEXT_CHARS].split()) >= MIN_REQUEST_WORDS:
            break
    if texts:
        return "\n\n".join(reversed(texts))
    if parent.request is None and parent.lane.parent is None and reading.task:
        return reading.task.prompt or None
    return parent.request
