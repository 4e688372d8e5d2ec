"""One attempt: its events with findings in the margin, its scores and reviews, its record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from closeloop.metrics.attempt_measuring import load_said_tags
from closeloop.metrics.score_columns import VerdictsByEvent, precision_score_name, read_verdicts
from closeloop.process.trace_measurement import list_handoff_facts
from closeloop.records.attempt import Insight
from closeloop.records.finding import (
    AttemptEnding,
    Finding,
    HandoffFacts,
    Measurement,
    ModeTag,
    ProcessScore,
)
from closeloop.records.record import Record
from closeloop.records.task import Variant
from closeloop.records.team_rules import HumanReview
from closeloop.records.trace import Handoff, Message, Note, Trace
from closeloop.traces.trace_export import lane_depths
from closeloop.web.event_views import (
    FRAGMENT_EVENTS,
    EventView,
    ToolCount,
    TraceMark,
    TraceMoment,
    add_worst_finding,
    build_event_fragment,
    build_minimap,
    count_tools,
    find_moments,
    mark_findings,
)
from closeloop.web.page import Page, PageContext, PageNotFound
from closeloop.web.pages.metrics import ScoreLine, list_given_scores
from closeloop.web.pages.outcome import (
    AttemptHead,
    AttemptIdQuery,
    load_attempt_head,
    unsilenced_rule_findings,
    with_marks,
)

MAX_EVENTS_MEASURED_AT_ONCE = 5000
"""Events of a trace up to which it is measured while its page loads."""
MAX_STOPS = 40
MAX_HANDOFFS = 20
MAX_HITS = 100
CONTEXT_CHARS = 60


class Stop(Record):
    """A place in a lane that readers look for: a request, claim, handoff or context compaction."""

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
    """Number of stops that are not shown."""


class AttemptView(Record):
    """One attempt with its first events."""

    head: AttemptHead
    prompt: str | None
    reasons: tuple[str, ...]
    """Why it failed or could not be scored."""
    findings: tuple[Finding, ...]
    measured: bool
    """False if the trace was not measured yet, or must be measured again: the findings are then
    outdated, which the head says."""
    ending: AttemptEnding | None
    modes: tuple[ModeTag, ...]
    score: ProcessScore
    handoffs: tuple[HandoffFacts, ...]
    """Facts behind the handoff rate; those of long traces are on the page of handoffs."""
    given: tuple[ScoreLine, ...]
    """Scores from people, judges and code."""
    lanes: tuple[LaneOutline, ...]
    minimap: tuple[TraceMark, ...]
    """The whole trace as a strip; empty for a short one."""
    moments: tuple[TraceMoment, ...]
    """Where to look first, in order; empty for a short trace."""
    tools: tuple[ToolCount, ...]
    votes: dict[str, VerdictsByEvent]
    """By rule, the caller's verdicts on its findings here."""
    events: tuple[EventView, ...]
    fragments: tuple[int, ...]
    """Number of the first event of each fragment that is loaded later."""
    last: int
    """Number of the trace's last event."""
    skipped: dict[str, int]
    insights: tuple[Insight, ...]


class MeasuredView(Record):
    """The findings of rules in a trace."""

    attempt: str
    findings: tuple[Finding, ...]


class EventsQuery(AttemptIdQuery):
    first: Annotated[int, Meta(ge=1)] = 1
    """Number of the first event to return."""


class EventsView(Record):
    """Some events, in order."""

    attempt: str
    events: tuple[EventView, ...]
    findings: tuple[Finding, ...]
    next: int | None
    """Number of the next fragment's first event."""
    outdated: bool = False
    """Whether the findings come from an earlier version of the rules."""


class EventQuery(AttemptIdQuery):
    number: Annotated[int, Meta(ge=1)]


class TailQuery(AttemptIdQuery):
    after: Annotated[int, Meta(ge=0)] = 0
    """Number of the last event that the client has."""


class TailView(Record):
    """The events added to a session since."""

    attempt: str
    newest: str
    """Id of the attempt that holds the session's current version."""
    events: tuple[EventView, ...]
    after: int


class SearchQuery(AttemptIdQuery):
    q: Annotated[str, Meta(max_length=200)] = ""


class Hit(Record):
    number: int
    who: str
    before: str
    found: str
    after: str


class SearchView(Record):
    """The places where a text occurs in a trace."""

    attempt: str
    asked: str
    total: int
    hits: tuple[Hit, ...]


class AttemptPageQuery(AttemptIdQuery):
    caller: Annotated[str, Meta(extra_json_schema={"readOnly": True})] = ""
    """The caller's name; set by the server, whatever the URL says."""


def attempt(page_context: PageContext, query: AttemptPageQuery) -> AttemptView:
    head, task = load_attempt_head(page_context, query.attempt)
    trace = page_context.load_trace(head.row.id)
    measures_now = (head.row.events or 0) <= MAX_EVENTS_MEASURED_AT_ONCE
    known_measurement = page_context.load_measurement(head.row, make=measures_now)
    if measures_now:
        head = with_marks(head, known_measurement)
    measurement = known_measurement or Measurement(rules="")
    findings = unsilenced_rule_findings(measurement)
    name = head.row.id
    grade = page_context.store.load_grade(name)
    outcome = grade.outcome if grade else None
    return AttemptView(
        head=head,
        prompt=task.prompt if task else None,
        reasons=(*outcome.reasons, *filter(None, (outcome.cause,))) if outcome else (),
        findings=findings,
        measured=head.row.events is None
        or (known_measurement is not None and not head.marks.outdated),
        ending=measurement.ending,
        modes=(*measurement.modes, *load_said_tags(page_context.store, [name]).get(name, ())),
        score=measurement.score,
        handoffs=list_handoff_facts(
            page_context.load_trace_reading(head.row.id), task.facts if task else ()
        )[:MAX_HANDOFFS]
        if measures_now and (head.row.lanes or 0) > 1
        else (),
        given=list_given_scores(page_context, head.row.id),
        lanes=page_context.derive_from_trace(head.row.id, outline_lanes),
        minimap=mark_findings(page_context.derive_from_trace(name, build_minimap), findings),
        moments=add_worst_finding(page_context.derive_from_trace(name, find_moments), findings),
        tools=page_context.derive_from_trace(head.row.id, count_tools),
        votes=_list_votes(page_context, name, findings, query.caller),
        events=build_event_fragment(trace, 0, findings, head.row.started),
        fragments=tuple(event.number for event in trace.events[FRAGMENT_EVENTS::FRAGMENT_EVENTS]),
        last=trace.events[-1].number if trace.events else 0,
        skipped=trace.skipped,
        insights=tuple(page_context.store.experiments.list_insights(attempt=head.row.id)),
    )


def _list_votes(
    page_context: PageContext, attempt: str, findings: Sequence[Finding], person: str
) -> dict[str, VerdictsByEvent]:
    verdicts_by_name = (
        read_verdicts(page_context.store.scores.list_scores(attempt), person) if findings else {}
    )
    by_rule = {
        finding.rule: verdicts_by_name.get(precision_score_name(finding.rule))
        for finding in findings
    }
    return {rule: verdicts for rule, verdicts in by_rule.items() if verdicts}


def measured(page_context: PageContext, query: AttemptIdQuery) -> MeasuredView:
    """Run the rules on a long trace; the page that requested it then reloads."""
    head, _ = load_attempt_head(page_context, query.attempt)
    trace_measurement = page_context.load_measurement(head.row)
    return MeasuredView(attempt=head.row.id, findings=unsilenced_rule_findings(trace_measurement))


def events(page_context: PageContext, query: EventsQuery) -> EventsView:
    """Return a fragment of the trace."""
    head, _ = load_attempt_head(page_context, query.attempt)
    trace = page_context.load_trace(head.row.id)
    findings = unsilenced_rule_findings(page_context.load_measurement(head.row, make=False))
    index = _event_position(trace, query.first)
    views = build_event_fragment(trace, index, findings, head.row.started)
    following = trace.events[index + FRAGMENT_EVENTS : index + FRAGMENT_EVENTS + 1]
    return EventsView(
        attempt=head.row.id,
        events=views,
        findings=findings,
        next=following[0].number if following else None,
        outdated=head.marks.outdated,
    )


def event(page_context: PageContext, query: EventQuery) -> EventsView:
    """Return one event in full."""
    head, _ = load_attempt_head(page_context, query.attempt)
    trace = page_context.load_trace(head.row.id)
    index = _event_position(trace, query.number)
    if index >= len(trace.events) or trace.events[index].number != query.number:
        raise PageNotFound(f"The trace has no event {query.number}.")
    findings = unsilenced_rule_findings(page_context.load_measurement(head.row, make=False))
    views = build_event_fragment(trace, index, findings, head.row.started, full=True)
    return EventsView(
        attempt=head.row.id,
        events=views,
        findings=findings,
        next=None,
        outdated=head.marks.outdated,
    )


def tail(page_context: PageContext, query: TailQuery) -> TailView:
    """Return the next events of a session that is still growing."""
    head, _ = load_attempt_head(page_context, query.attempt)
    newest = head.newer or head.row.id
    trace = page_context.load_trace(newest)
    first = _event_position(trace, query.after + 1)
    views = build_event_fragment(trace, first, (), head.row.started)
    after = views[-1].number if views else query.after
    return TailView(attempt=head.row.id, newest=newest, events=views, after=after)


def search(page_context: PageContext, query: SearchQuery) -> SearchView:
    """Find every event that contains a text, ignoring case; the first hits with a snippet."""
    head, _ = load_attempt_head(page_context, query.attempt)
    hits: list[Hit] = []
    searched_text, total = query.q.strip().lower(), 0
    for event in page_context.load_trace(head.row.id).events if searched_text else ():
        for text in _event_texts(event):
            start = text.lower().find(searched_text)
            if start >= 0:
                total += 1
                if len(hits) < MAX_HITS:
                    hits.append(
                        _build_hit(
                            event.number,
                            type(event).__name__.lower(),
                            text,
                            (start, len(searched_text)),
                        )
                    )
                break
    return SearchView(attempt=head.row.id, asked=query.q, total=total, hits=tuple(hits))


def outline_lanes(trace: Trace) -> tuple[LaneOutline, ...]:
    """Return the lanes in the order in which they began, each with its stops."""
    depth = lane_depths(trace.lanes)
    counts: dict[str, int] = {}
    first: dict[str, int] = {}
    stops: dict[str, list[Stop]] = {}
    hidden_stops: dict[str, int] = {}
    for event in trace.events:
        counts[event.lane] = counts.get(event.lane, 0) + 1
        first.setdefault(event.lane, event.number)
        if (stop := _stop_at_event(event)) is not None:
            lane_stops = stops.setdefault(event.lane, [])
            if len(lane_stops) < MAX_STOPS:
                lane_stops.append(stop)
            else:
                hidden_stops[event.lane] = hidden_stops.get(event.lane, 0) + 1
    return tuple(
        LaneOutline(
            id=lane.id,
            agent=lane.agent,
            depth=depth[lane.id],
            events=counts.get(lane.id, 0),
            turns=len(lane.turns),
            first=first.get(lane.id),
            stops=tuple(stops.get(lane.id, ())),
            more=hidden_stops.get(lane.id, 0),
        )
        for lane in trace.lanes
    )


def _stop_at_event(event: object) -> Stop | None:
    match event:
        case Message(number=number, role=role, intent=intent, text=text) if (
            role == "user" or intent in ("claim", "question")
        ):
            return Stop(number=number, kind=intent or role, text=_one_line(text))
        case Handoff(number=number, brief=brief):
            return Stop(number=number, kind="handoff", text=_one_line(brief))
        case Note(number=number, about="compaction", text=text):
            return Stop(number=number, kind="context cut", text=_one_line(text))
    return None


def _one_line(text: str) -> str:
    return " ".join(text[:400].split())[:80]


def _event_position(trace: Trace, number: int) -> int:
    """Return the index of an event; numbers increase, mostly by one."""
    index = min(number - 1, len(trace.events))
    if index < len(trace.events) and trace.events[index].number == number:
        return index
    return next(
        (position for position, event in enumerate(trace.events) if event.number >= number),
        len(trace.events),
    )


def _event_texts(event: object) -> list[str]:
    fields = ("text", "command", "output", "path", "before", "after", "patch", "brief", "report")
    texts = [getattr(event, name, None) for name in (*fields, "name", "error")]
    arguments = getattr(event, "arguments", None)
    return [text for text in (*texts, str(arguments) if arguments else None) if text]


def _build_hit(number: int, kind: str, text: str, span: tuple[int, int]) -> Hit:
    start, length = span
    return Hit(
        number=number,
        who=kind,
        before=text[max(0, start - CONTEXT_CHARS) : start],
        found=text[start : start + length],
        after=text[start + length : start + length + CONTEXT_CHARS],
    )


PAGES = (
    Page(
        path="/attempts/{attempt}",
        show=attempt,
        template="attempt.html",
        about="One attempt: outcome, findings and events.",
        section="Sessions",
    ),
    Page(
        path="/attempts/{attempt}/measured",
        show=measured,
        template="measured.html",
        about="Findings of the rules in the trace of an attempt.",
        section="Sessions",
        part=True,
    ),
    Page(
        path="/attempts/{attempt}/events",
        show=events,
        template="events.html",
        about="A range of events of an attempt.",
        section="Sessions",
        part=True,
    ),
    Page(
        path="/attempts/{attempt}/events/{number}",
        show=event,
        template="event.html",
        about="One event of an attempt, untruncated.",
        section="Sessions",
        part=True,
    ),
    Page(
        path="/attempts/{attempt}/tail",
        show=tail,
        template="tail.html",
        about="Events added to a session since the page was opened.",
        section="Sessions",
        part=True,
    ),
    Page(
        path="/attempts/{attempt}/search",
        show=search,
        template="search.html",
        about="Search in the trace of an attempt.",
        section="Sessions",
        part=True,
    ),
)


# Reviews of an attempt, and its stored record.


class ReviewsView(Record):
    """Answers of people who reviewed this attempt."""

    head: AttemptHead
    reviews: tuple[HumanReview, ...]


class RawView(Record):
    """The stored record of an attempt, and how its trace was parsed."""

    head: AttemptHead
    record: str
    """The attempt as JSON."""
    variant: Variant | None
    reader: str
    reader_version: int
    skipped: dict[str, int]
    events: int


def attempt_reviews(page_context: PageContext, query: AttemptIdQuery) -> ReviewsView:
    head, _ = load_attempt_head(page_context, query.attempt)
    all_reviews = page_context.store.reviews.list_reviews(item=head.row.id)
    return ReviewsView(
        head=head, reviews=tuple(review for review in all_reviews if review.state == "done")
    )


def raw(page_context: PageContext, query: AttemptIdQuery) -> RawView:
    head, _ = load_attempt_head(page_context, query.attempt)
    trace = page_context.load_trace(head.row.id)
    record = msgspec.json.format(msgspec.json.encode(head.attempt), indent=2).decode()
    return RawView(
        head=head,
        record=record,
        variant=page_context.store.load_variant(head.row.variant) if head.row.variant else None,
        reader=trace.reader,
        reader_version=trace.reader_version,
        skipped=trace.skipped,
        events=len(trace.events),
    )


RECORD_PAGES = (
    Page(
        path="/attempts/{attempt}/reviews",
        show=attempt_reviews,
        template="attempt_reviews.html",
        about="Reviews of an attempt.",
        section="Sessions",
    ),
    Page(
        path="/attempts/{attempt}/raw",
        show=raw,
        template="raw.html",
        about="The stored record of an attempt.",
        section="Sessions",
    ),
)
