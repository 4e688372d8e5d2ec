"""One attempt: what happened, event by event, with the findings in the margin."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from closeloop.model.finding import Finding
from closeloop.model.insight import Insight
from closeloop.model.measurement import Ending, Measurement, ModeTag, ProcessScore
from closeloop.model.record import Record
from closeloop.model.trace import Handoff, Message, Note, Trace
from closeloop.traces.lanes import depths
from closeloop.web.desk import Desk
from closeloop.web.page import NotThere, Page
from closeloop.web.pages.heads import (
    AttemptAsked,
    AttemptHead,
    counted,
    open_attempt,
    with_marks,
)
from closeloop.web.views.events import FRAGMENT, EventView, fragment

MEASURED_AT_ONCE = 5000
"""Events of a trace that is measured while somebody waits for its page."""
MOST_STOPS = 40
MOST_HITS = 100
AROUND = 60


class Stop(Record):
    """A place in a lane that one looks for: a request, a claim, a handoff, a cut of context."""

    number: int
    kind: str
    text: str


class LaneOutline(Record):
    id: str
    agent: str | None
    depth: int
    events: int
    turns: int
    first: int | None
    stops: tuple[Stop, ...]
    more: int
    """Stops that are not told."""


class AttemptView(Record):
    """One attempt with the first of its events."""

    head: AttemptHead
    prompt: str | None
    reasons: tuple[str, ...]
    """Why it failed, or could not be scored."""
    findings: tuple[Finding, ...]
    measured: bool
    """False where the rules have yet to look at the trace, or to look again: what they said
    before is outdated, which the head tells."""
    ending: Ending | None
    modes: tuple[ModeTag, ...]
    score: ProcessScore
    lanes: tuple[LaneOutline, ...]
    events: tuple[EventView, ...]
    fragments: tuple[int, ...]
    """The first event's number of each fragment that comes later."""
    last: int
    """The number of the last event of all."""
    skipped: dict[str, int]
    insights: tuple[Insight, ...]


class MeasuredView(Record):
    """What the rules found in a trace."""

    attempt: str
    findings: tuple[Finding, ...]


class EventsAsked(AttemptAsked):
    first: Annotated[int, Meta(ge=1)] = 1
    """The number of the first event that is wanted."""


class EventsView(Record):
    """Some events, in order."""

    attempt: str
    events: tuple[EventView, ...]
    findings: tuple[Finding, ...]
    next: int | None
    """The number at which the next fragment begins."""
    outdated: bool = False
    """Whether the findings are those of earlier rules."""


class EventAsked(AttemptAsked):
    number: Annotated[int, Meta(ge=1)]


class TailAsked(AttemptAsked):
    after: Annotated[int, Meta(ge=0)] = 0
    """The number of the last event that is known."""


class TailView(Record):
    """What was added to a session since."""

    attempt: str
    newest: str
    """The attempt that holds the session as it is now."""
    events: tuple[EventView, ...]
    after: int


class SearchAsked(AttemptAsked):
    q: Annotated[str, Meta(max_length=200)] = ""


class Hit(Record):
    number: int
    who: str
    before: str
    found: str
    after: str


class SearchView(Record):
    """Where a text occurs in a trace."""

    attempt: str
    asked: str
    total: int
    hits: tuple[Hit, ...]


def attempt(desk: Desk, asked: AttemptAsked) -> AttemptView:
    head, task = open_attempt(desk, asked.attempt)
    trace = desk.trace(head.row.id)
    soon = (head.row.events or 0) <= MEASURED_AT_ONCE
    said = desk.measurement(head.row, make=soon)
    if soon:
        head = with_marks(head, said)
    measurement = said or Measurement(rules="")
    findings = counted(measurement)
    grade = desk.store.grade(head.row.id)
    outcome = grade.outcome if grade else None
    return AttemptView(
        head=head,
        prompt=task.prompt if task else None,
        reasons=(*outcome.reasons, *filter(None, (outcome.cause,))) if outcome else (),
        findings=findings,
        measured=head.row.events is None or (said is not None and not head.marks.outdated),
        ending=measurement.ending,
        modes=measurement.modes,
        score=measurement.score,
        lanes=desk.derived(head.row.id, outline),
        events=fragment(trace, 0, findings),
        fragments=tuple(event.number for event in trace.events[FRAGMENT::FRAGMENT]),
        last=trace.events[-1].number if trace.events else 0,
        skipped=trace.skipped,
        insights=tuple(desk.store.course.insights(attempt=head.row.id)),
    )


def measured(desk: Desk, asked: AttemptAsked) -> MeasuredView:
    """Let the rules look at a long trace; the page that asked for it then loads anew."""
    head, _ = open_attempt(desk, asked.attempt)
    said = desk.measurement(head.row)
    return MeasuredView(attempt=head.row.id, findings=counted(said))


def events(desk: Desk, asked: EventsAsked) -> EventsView:
    """A fragment of the trace."""
    head, _ = open_attempt(desk, asked.attempt)
    trace = desk.trace(head.row.id)
    findings = counted(desk.measurement(head.row, make=False))
    place = _place(trace, asked.first)
    shown = fragment(trace, place, findings)
    rest = trace.events[place + FRAGMENT : place + FRAGMENT + 1]
    return EventsView(
        attempt=head.row.id,
        events=shown,
        findings=findings,
        next=rest[0].number if rest else None,
        outdated=head.marks.outdated,
    )


def event(desk: Desk, asked: EventAsked) -> EventsView:
    """One event with nothing left out."""
    head, _ = open_attempt(desk, asked.attempt)
    trace = desk.trace(head.row.id)
    place = _place(trace, asked.number)
    if place >= len(trace.events) or trace.events[place].number != asked.number:
        raise NotThere(f"The trace has no event {asked.number}.")
    findings = counted(desk.measurement(head.row, make=False))
    shown = fragment(trace, place, findings, full=True)
    return EventsView(
        attempt=head.row.id,
        events=shown,
        findings=findings,
        next=None,
        outdated=head.marks.outdated,
    )


def tail(desk: Desk, asked: TailAsked) -> TailView:
    """The next events of a session that goes on."""
    head, _ = open_attempt(desk, asked.attempt)
    newest = head.newer or head.row.id
    trace = desk.trace(newest)
    shown = fragment(trace, _place(trace, asked.after + 1), ())
    after = shown[-1].number if shown else asked.after
    return TailView(attempt=head.row.id, newest=newest, events=shown, after=after)


def search(desk: Desk, asked: SearchAsked) -> SearchView:
    """Every event that holds a text, whatever its case; the first hits with what is around."""
    head, _ = open_attempt(desk, asked.attempt)
    found: list[Hit] = []
    sought, total = asked.q.strip().lower(), 0
    for each in desk.trace(head.row.id).events if sought else ():
        for text in _texts(each):
            place = text.lower().find(sought)
            if place >= 0:
                total += 1
                if len(found) < MOST_HITS:
                    found.append(
                        _hit(each.number, type(each).__name__.lower(), text, (place, len(sought)))
                    )
                break
    return SearchView(attempt=head.row.id, asked=asked.q, total=total, hits=tuple(found))


def outline(trace: Trace) -> tuple[LaneOutline, ...]:
    """Lanes in the order in which they began, each with the places one looks for."""
    depth = depths(trace.lanes)
    counts: dict[str, int] = {}
    first: dict[str, int] = {}
    stops: dict[str, list[Stop]] = {}
    left: dict[str, int] = {}
    for each in trace.events:
        counts[each.lane] = counts.get(each.lane, 0) + 1
        first.setdefault(each.lane, each.number)
        if (stop := _stop(each)) is not None:
            told = stops.setdefault(each.lane, [])
            if len(told) < MOST_STOPS:
                told.append(stop)
            else:
                left[each.lane] = left.get(each.lane, 0) + 1
    return tuple(
        LaneOutline(
            id=lane.id,
            agent=lane.agent,
            depth=depth[lane.id],
            events=counts.get(lane.id, 0),
            turns=len(lane.turns),
            first=first.get(lane.id),
            stops=tuple(stops.get(lane.id, ())),
            more=left.get(lane.id, 0),
        )
        for lane in trace.lanes
    )


def _stop(each: object) -> Stop | None:
    match each:
        case Message(number=number, role=role, intent=intent, text=text) if (
            role == "user" or intent in ("claim", "question")
        ):
            return Stop(number=number, kind=intent or role, text=_line(text))
        case Handoff(number=number, brief=brief):
            return Stop(number=number, kind="handoff", text=_line(brief))
        case Note(number=number, about="compaction", text=text):
            return Stop(number=number, kind="context cut", text=_line(text))
    return None


def _line(text: str) -> str:
    return " ".join(text[:400].split())[:80]


def _place(trace: Trace, number: int) -> int:
    """Where an event stands; numbers rise, mostly one by one."""
    place = min(number - 1, len(trace.events))
    if place < len(trace.events) and trace.events[place].number == number:
        return place
    return next(
        (at for at, each in enumerate(trace.events) if each.number >= number), len(trace.events)
    )


def _texts(each: object) -> list[str]:
    fields = ("text", "command", "output", "path", "before", "after", "patch", "brief", "report")
    texts = [getattr(each, name, None) for name in (*fields, "name", "error")]
    arguments = getattr(each, "arguments", None)
    return [text for text in (*texts, str(arguments) if arguments else None) if text]


def _hit(number: int, who: str, text: str, place: tuple[int, int]) -> Hit:
    start, length = place
    return Hit(
        number=number,
        who=who,
        before=text[max(0, start - AROUND) : start],
        found=text[start : start + length],
        after=text[start + length : start + length + AROUND],
    )


PAGES = (
    Page(
        path="/attempts/{attempt}",
        show=attempt,
        template="attempt.html",
        about="One attempt: its outcome, its findings, and what happened, event by event.",
        section="Attempts",
    ),
    Page(
        path="/attempts/{attempt}/measured",
        show=measured,
        template="measured.html",
        about="What the rules find in the trace of an attempt.",
        section="Attempts",
        part=True,
    ),
    Page(
        path="/attempts/{attempt}/events",
        show=events,
        template="events.html",
        about="Some events of an attempt.",
        section="Attempts",
        part=True,
    ),
    Page(
        path="/attempts/{attempt}/events/{number}",
        show=event,
        template="event.html",
        about="One event of an attempt, with nothing left out.",
        section="Attempts",
        part=True,
    ),
    Page(
        path="/attempts/{attempt}/tail",
        show=tail,
        template="tail.html",
        about="What was added to a session since it was opened.",
        section="Attempts",
        part=True,
    ),
    Page(
        path="/attempts/{attempt}/search",
        show=search,
        template="search.html",
        about="Where a text occurs in the trace of an attempt.",
        section="Attempts",
        part=True,
    ),
)
