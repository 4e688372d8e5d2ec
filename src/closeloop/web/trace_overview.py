"""A whole trace at a glance: a strip of marks, and the tools that were used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from closeloop.records import trace as t
from closeloop.records.finding import Finding
from closeloop.records.record import Record
from closeloop.web.event_views import describe_event_parts

MAX_MARKS = 180
MIN_MINIMAP_EVENTS = 40
MarkKind = Literal["finding", "failed", "handoff", "user", "edit", "check", "other"]
_MARK_ORDER: tuple[MarkKind, ...] = (
    "finding", "failed", "handoff", "user", "edit", "check", "other",
)  # fmt: skip


class TraceMark(Record):
    """Some events in a row, by the most telling of them."""

    number: int
    """The event to go to."""
    last: int
    kind: MarkKind
    text: str


def build_minimap(trace: t.Trace, findings: Sequence[Finding]) -> tuple[TraceMark, ...]:
    """Marks from top to end; none of a trace that fits on a screen or two."""
    events = trace.events
    if len(events) < MIN_MINIMAP_EVENTS:
        return ()
    cited = {finding.events[0]: finding.rule for finding in findings if finding.events}
    size = -(-len(events) // MAX_MARKS)
    marks = []
    for first in range(0, len(events), size):
        part = events[first : first + size]
        kinds = [_mark_kind(event, cited) for event in part]
        place = min(range(len(part)), key=lambda at: _MARK_ORDER.index(kinds[at]))
        told = part[place]
        who, title, *_ = describe_event_parts(told)
        text = cited.get(told.number) or f"{who} {title}".strip()
        marks.append(
            TraceMark(number=told.number, last=part[-1].number, kind=kinds[place], text=text[:80])
        )
    return tuple(marks)


def _mark_kind(event: t.AnyEvent, cited: Mapping[int, str]) -> MarkKind:
    if event.number in cited:
        return "finding"
    if describe_event_parts(event)[2] == "failed":
        return "failed"
    match event:
        case t.Handoff():
            return "handoff"
        case t.Message(role="user"):
            return "user"
        case t.Edit():
            return "edit"
        case t.Command():
            return "check"
        case _:
            return "other"


class ToolCount(Record):
    """How often a tool was used, and how often it failed."""

    name: str
    uses: int
    failed: int


def count_tools(trace: t.Trace) -> tuple[ToolCount, ...]:
    """What the agent did by tools, the most used first."""
    uses: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    names = {t.Command: "shell", t.Edit: "edit", t.Read: "read", t.Handoff: "sub-agent"}
    for event in trace.events:
        name = event.name if isinstance(event, t.ToolUse) else names.get(type(event))
        if name is not None:
            uses[name] += 1
            failed[name] += describe_event_parts(event)[2] == "failed"
    return tuple(
        ToolCount(name=name[:80], uses=count, failed=failed[name])
        for name, count in uses.most_common(30)
    )
