"""Events of a trace, and metrics, as pages show them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from closeloop.metrics.metric_figures import format_bounds, format_metric_value
from closeloop.metrics.report_content import pair_with_metrics
from closeloop.process.agent_claims import parse_claim
from closeloop.process.command_analysis import analyse_command
from closeloop.process.rule_helpers import is_cut_short
from closeloop.providers.model_prices import add_cost, find_listed_prices
from closeloop.records import trace as trace_records
from closeloop.records.attempt import Usage
from closeloop.records.estimate import Metric, MetricSeries, MetricsReport, MetricValue
from closeloop.records.finding import Finding
from closeloop.records.record import Record, Time
from closeloop.text.client_markup import strip_client_markup
from closeloop.traces.trace_export import lane_depths

EventType = TypeVar("EventType", bound=trace_records.AnyEvent)
MAX_SHOWN_CHARS = 2000
"""Characters of a text in a list of events; the page of a single event shows all of them."""
MAX_EVENT_CHARS = 2_000_000
FRAGMENT_EVENTS = 200
"""Number of events sent at once."""

EventState = Literal["ok", "failed", "unknown"]
EventKind = Literal["message", "thought", "command", "edit", "read", "tool", "handoff", "note"]


TextKind = Literal["text", "output", "removed", "added", "diff", "brief", "report"]


class EventText(Record):
    """A text of an event: a message, output, or removed or added lines."""

    kind: TextKind
    text: str
    left_out: int = 0
    """Characters omitted from its middle."""


class StepUsage(Record):
    """Usage of one provider message, shown at the first event that it produced."""

    turn: int
    input_tokens: int | None
    """Uncached input tokens: neither read from a cache nor written to one."""
    cached_tokens: int | None
    output_tokens: int | None
    cost: float | None
    is_priced: bool
    """Whether the cost is computed from list prices because none was reported."""
    seconds: float | None


class EventView(Record):
    """One event."""

    number: int
    lane: str
    depth: int
    """Number of handoffs between the root and its lane."""
    turn: int | None
    at: Time | None
    seconds: float | None
    kind: EventKind
    who: str
    """Kind of event in a word or two: `agent, claim`, `ran`, `changed`."""
    title: str
    """The command, path or tool; empty if the texts say it all."""
    state: EventState
    note: str | None
    """How it ended, if worth showing: `exit 1`."""
    texts: tuple[EventText, ...]
    findings: tuple[int, ...] = ()
    """Indices in the list of findings."""
    step: StepUsage | None = None
    """Usage of a provider's message, at the first event of that message."""
    elapsed: float | None = None
    """Seconds since the work began; None before that."""


def build_event_fragment(
    trace: trace_records.Trace,
    first: int,
    findings: Sequence[Finding],
    started: datetime | None,
    *,
    full: bool = False,
) -> tuple[EventView, ...]:
    """Return one fragment of events, starting at index `first` (0-based).

    `started` is when the attempt began.
    """
    depth = lane_depths(trace.lanes)
    cited = findings_by_event(findings)
    last = first + (1 if full else FRAGMENT_EVENTS)
    steps, began = step_usages(trace), trace_start(trace, started)
    return tuple(
        replace(
            build_event_view(
                event, depth.get(event.lane, 0), cited.get(event.number, ()), full=full
            ),
            step=steps.get(event.number),
            elapsed=(event.at - began).total_seconds()
            if event.at and began and event.at >= began
            else None,
        )
        for event in trace.events[first:last]
    )


def trace_start(trace: trace_records.Trace, started: datetime | None) -> datetime | None:
    """Return the time of the first event since the attempt began: notes may be much older."""
    times = [event.at for event in trace.events if event.at is not None]
    return next((at for at in times if started is None or at >= started), min(times, default=None))


def step_usages(trace: trace_records.Trace) -> dict[int, StepUsage]:
    """Return the usage of each provider message by the number of its first event."""
    turns = {lane.id: lane.turns for lane in trace.lanes}
    seen_turns: set[tuple[str, int]] = set()
    steps: dict[int, StepUsage] = {}
    for event in trace.events:
        turn_key = (event.lane, event.turn or 0)
        if event.turn is None or turn_key in seen_turns:
            continue
        seen_turns.add(turn_key)
        lane_turns = turns.get(event.lane, ())
        if 0 < event.turn <= len(lane_turns):
            step = _step_usage(event.turn, lane_turns[event.turn - 1])
            if step is not None:
                steps[event.number] = step
    return steps


def _step_usage(number: int, turn: trace_records.Turn) -> StepUsage | None:
    usage = turn.usage
    if usage == Usage() and turn.seconds is None:
        return None
    priced = add_cost(usage, find_listed_prices(turn.model)) if turn.model else usage
    return StepUsage(
        turn=number,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cache_read_tokens,
        output_tokens=usage.output_tokens,
        cost=priced.cost,
        is_priced=usage.cost is None and priced.cost is not None,
        seconds=turn.seconds,
    )


def findings_by_event(findings: Sequence[Finding]) -> dict[int, tuple[int, ...]]:
    """Return by event the indices of the findings that cite it."""
    cited: dict[int, tuple[int, ...]] = {}
    for index, finding in enumerate(findings):
        for number in finding.events:
            cited[number] = (*cited.get(number, ()), index)
    return cited


def build_event_view(
    event: trace_records.AnyEvent, depth: int, findings: tuple[int, ...], *, full: bool = False
) -> EventView:
    actor, title, state, note, texts = describe_event_parts(event)
    max_chars = MAX_EVENT_CHARS if full else MAX_SHOWN_CHARS
    return EventView(
        number=event.number,
        lane=event.lane,
        depth=depth,
        turn=event.turn,
        at=event.at,
        seconds=event.seconds,
        kind=EVENT_KINDS[type(event)],
        who=actor,
        title=title[:max_chars],
        state=state,
        note=note and note[:200],
        texts=tuple(_truncate_event_text(kind, text, max_chars) for kind, text in texts if text),
        findings=findings,
    )


EVENT_KINDS: Mapping[type, EventKind] = {
    trace_records.Message: "message",
    trace_records.Thought: "thought",
    trace_records.Command: "command",
    trace_records.Edit: "edit",
    trace_records.Read: "read",
    trace_records.ToolUse: "tool",
    trace_records.Handoff: "handoff",
    trace_records.Note: "note",
}
TextPiece = tuple[TextKind, str | None]
EventParts = tuple[str, str, EventState, str | None, Sequence[TextPiece]]
_TERMINAL_TAG = re.compile(r"\s*</?(?:bash|local-command)-(?:input|stdout|stderr)>\n?")
"""Marks what a user ran in the terminal of Claude Code, and what it printed."""
_EDIT_WORDS = {"create": "created", "change": "changed", "delete": "deleted", "move": "moved"}


def describe_event_parts(event: trace_records.AnyEvent) -> EventParts:
    match event:
        case trace_records.Message(role=role, intent=intent, text=text):
            return role + (f", {intent}" if intent else ""), "", "unknown", None, [("text", text)]
        case trace_records.Thought(text=text):
            return "thinks", "", "unknown", None, [("text", text)]
        case trace_records.Command(command=command, output=output):
            return "ran", command, *_command_state(event), [("output", output)]
        case trace_records.Edit(path=path, action=action, ok=ok, error=error):
            return _EDIT_WORDS[action], path, _state_from_ok(ok), error, _edit_pieces(event)
        case trace_records.Read(path=path, text=text, ok=ok, error=error):
            lines = f"lines {event.first_line} – {event.last_line}" if event.first_line else None
            return "read", path, _state_from_ok(ok), error or lines, [("output", text)]
        case trace_records.ToolUse(name=name, arguments=arguments, output=output, ok=ok):
            arguments_json = msgspec.json.encode(arguments).decode() if arguments else ""
            return (
                "used",
                f"{name} {arguments_json}".strip(),
                _state_from_ok(ok),
                None,
                [("output", output)],
            )
        case trace_records.Handoff(brief=brief, child=child, report=report, ok=ok):
            texts: list[TextPiece] = [("brief", brief), ("report", report)]
            return "handed over", f"to {child or 'a sub-agent'}", _state_from_ok(ok), None, texts
        case trace_records.Note(text=text, about=about):
            kind: TextKind = "output" if _TERMINAL_TAG.match(text) else "text"
            return "note", about or "", "unknown", None, [(kind, _TERMINAL_TAG.sub("", text))]


def has_failed(event: trace_records.AnyEvent) -> bool:
    """Check whether an event's state is `failed`, without describing the event."""
    if isinstance(event, trace_records.Command):
        return event.stopped is not None or bool(event.exit_code)
    return getattr(event, "ok", None) is False


def _command_state(event: trace_records.Command) -> tuple[EventState, str | None]:
    if event.stopped is not None:
        return "failed", event.stopped
    if event.exit_code is None:
        return "unknown", "exit unknown"
    return ("ok" if event.exit_code == 0 else "failed"), f"exit {event.exit_code}"


def _state_from_ok(ok: bool | None) -> EventState:
    return "unknown" if ok is None else "ok" if ok else "failed"


def _edit_pieces(event: trace_records.Edit) -> Sequence[TextPiece]:
    if event.patch is not None:
        return [("diff", event.patch)]
    return [("removed", event.before), ("added", event.after)]


def _truncate_event_text(kind: TextKind, text: str, max_chars: int) -> EventText:
    """Truncate a long text in the middle: its head says what it is, its tail how it ended."""
    if len(text) <= max_chars:
        return EventText(kind=kind, text=text)
    head, tail = text[: max_chars // 3], text[-(max_chars - max_chars // 3) :]
    return EventText(kind=kind, text=f"{head}\n…\n{tail}", left_out=len(text) - max_chars)


# Metric values as pages show them: with text, bounds and definition.


class FigureLine(Record):
    """One metric value, with its text for people."""

    metric: Metric
    figure: MetricValue
    text: str
    bounds: str


class FigureRow(Record):
    """The values of one group: a cell for each metric, None if not measured."""

    name: str
    cells: tuple[FigureLine | None, ...]


class FigureTable(Record):
    """A table with a row for each group and a column for each metric."""

    by: str
    metrics: tuple[Metric, ...]
    rows: tuple[FigureRow, ...]
    more: int = 0
    """Number of groups that are not shown."""


class TrendPoint(Record):
    at: Time
    value: float
    low: float | None
    high: float | None
    n: int
    name: str
    faint: bool


def build_figure_lines(report: MetricsReport) -> tuple[FigureLine, ...]:
    return tuple(_figure_line(figure, metric) for figure, metric in pair_with_metrics(report))


def build_figure_table(
    report: MetricsReport,
    max_rows: int,
    order: Sequence[str] | None = None,
    *,
    keep_empty: bool = False,
) -> FigureTable:
    """Build a table by one dimension; groups in the given order, or by name.

    Groups without any value are left out, unless `keep_empty` is set.
    """
    cells: dict[str, dict[str, FigureLine]] = {}
    for line in build_figure_lines(report):
        row = cells.setdefault(", ".join(line.figure.group.values()), {})
        if line.figure.value is not None:
            row[line.metric.name] = line
    ordered_names = sorted(cells) if order is None else order
    names = [name for name in ordered_names if name in cells and (keep_empty or cells[name])]
    metrics = tuple(
        metric for metric in report.definitions if any(metric.name in cells[name] for name in names)
    )
    return FigureTable(
        by=", ".join(report.by),
        metrics=metrics,
        rows=tuple(
            FigureRow(name=name, cells=tuple(cells[name].get(metric.name) for metric in metrics))
            for name in names[:max_rows]
        ),
        more=max(0, len(names) - max_rows),
    )


def build_trend_points(courses: Iterable[MetricSeries]) -> tuple[TrendPoint, ...]:
    """Return the rolling windows of all series, one series after the other."""
    return tuple(
        TrendPoint(
            at=stretch.until,
            value=stretch.estimate.value,
            low=stretch.estimate.low,
            high=stretch.estimate.high,
            n=stretch.estimate.n,
            name=", ".join(series.group.values()) or series.metric,
            faint=stretch.faint,
        )
        for series in courses
        for stretch in series.stretches
    )


def _figure_line(figure: MetricValue, metric: Metric) -> FigureLine:
    return FigureLine(
        metric=metric,
        figure=figure,
        text=format_metric_value(figure, metric),
        bounds=format_bounds(figure, metric),
    )


# Overview of a trace: a strip of marks, and counts of tools.


MAX_MARKS = 180
MIN_MINIMAP_EVENTS = 40
MarkKind = Literal["finding", "failed", "handoff", "user", "edit", "check", "other"]
_MARK_ORDER: tuple[MarkKind, ...] = (
    "finding", "failed", "handoff", "user", "edit", "check", "other",
)  # fmt: skip


_MARK_KINDS: dict[type[trace_records.Event], MarkKind] = {
    trace_records.Handoff: "handoff", trace_records.Edit: "edit", trace_records.Command: "check",
}  # fmt: skip


class TraceMark(Record):
    """Several consecutive events, represented by the most significant of them."""

    number: int
    """Number of the event to jump to."""
    first: int
    last: int
    kind: MarkKind
    text: str


def build_minimap(trace: trace_records.Trace) -> tuple[TraceMark, ...]:
    """Build marks from start to end, without findings; none for a trace of one or two screens."""
    events = trace.events
    if len(events) < MIN_MINIMAP_EVENTS:
        return ()
    size = -(-len(events) // MAX_MARKS)
    marks = []
    for first in range(0, len(events), size):
        part = events[first : first + size]
        kinds = [_mark_kind(event) for event in part]
        kind = min(set(kinds), key=_MARK_ORDER.index)
        event = part[kinds.index(kind)]
        actor, title, *_ = describe_event_parts(event)
        text = f"{actor} {title}".strip()[:80]
        marks.append(
            TraceMark(
                number=event.number,
                first=part[0].number,
                last=part[-1].number,
                kind=kind,
                text=text,
            )
        )
    return tuple(marks)


def mark_findings(marks: Sequence[TraceMark], findings: Sequence[Finding]) -> tuple[TraceMark, ...]:
    """Return the marks; one with findings shows the first of them instead of its events."""
    rules = {finding.events[0]: finding.rule for finding in findings if finding.events}
    cited, firsts = sorted(rules), [mark.first for mark in marks]
    marked = list(marks)
    for number in reversed(cited):
        index = bisect_right(firsts, number) - 1
        if index >= 0 and number <= marks[index].last:
            marked[index] = replace(
                marks[index], number=number, kind="finding", text=rules[number][:80]
            )
    return tuple(marked)


def _mark_kind(event: trace_records.AnyEvent) -> MarkKind:
    if has_failed(event):
        return "failed"
    if isinstance(event, trace_records.Message):
        return "user" if event.role == "user" else "other"
    return _MARK_KINDS.get(type(event), "other")


MIN_MOMENT_EVENTS = 12
MIN_FAILURE_ROW = 3
MomentKind = Literal["request", "failure", "finding", "correction", "claim", "end"]
_SEVERITY_ORDER = ("error", "warning", "info")


class TraceMoment(Record):
    """An event at which the course of a trace may have turned."""

    number: int
    kind: MomentKind
    label: str
    text: str


def find_moments(trace: trace_records.Trace) -> tuple[TraceMoment, ...]:
    """Return the request, failures, corrections and claims that explain the course of a trace, in
    order; none for a trace of one screen."""
    events = trace.events
    if len(events) < MIN_MOMENT_EVENTS:
        return ()
    messages = [event for event in events if isinstance(event, trace_records.Message)]
    claims = {
        message.number: claim.quote
        for message in messages
        if message.intent == "claim" and (claim := parse_claim(message))
    }
    claim_messages = [message for message in messages if message.number in claims]
    failures = [event for event in events if _is_mishap(event)]
    first_change = next(
        (
            event.number
            for event in events
            if isinstance(event, trace_records.Edit) and not has_failed(event)
        ),
        None,
    )
    failed_commands = [event for event in failures if isinstance(event, trace_records.Command)]
    candidates: list[tuple[trace_records.AnyEvent | None, MomentKind, str]] = [
        (
            _first(messages, lambda message: message.intent == "request")
            or _first(messages, lambda message: message.role == "user"),
            "request",
            "Request",
        ),
        *_longest_failure_row(events),
        (_first(failures), "failure", "First failure"),
        (
            _first(failed_commands, lambda event: event.number > first_change)
            if first_change
            else None,
            "failure",
            "First failure after a change",
        ),
        _first_objection(events, messages),
        (
            _first(claim_messages),
            "claim",
            "First claim of success" if claim_messages[1:] else "Claim of success",
        ),
        (claim_messages[-1] if claim_messages[1:] else None, "claim", "Last claim of success"),
        (
            failures[-1] if failures and claims and failures[-1].number > max(claims) else None,
            "failure",
            "Failure after the claim",
        ),
        (
            _first(messages[::-1], lambda message: message.role == "agent"),
            "end",
            "Last message of the agent",
        ),
    ]
    moments: dict[int, TraceMoment] = {}
    for event, kind, label in candidates:
        if event is not None and event.number not in moments:
            moments[event.number] = _build_moment(event, kind, label, claims.get(event.number))
    return tuple(sorted(moments.values(), key=lambda moment: moment.number))


def add_worst_finding(
    moments: Sequence[TraceMoment], findings: Sequence[Finding]
) -> tuple[TraceMoment, ...]:
    """Return the moments and the first of the most severe findings."""
    cited = [finding for finding in findings if finding.events]
    if not moments or not cited:
        return tuple(moments)
    worst = min(
        cited, key=lambda finding: (_SEVERITY_ORDER.index(finding.severity), finding.events[0])
    )
    moment = TraceMoment(
        number=worst.events[0],
        kind="finding",
        label=f"Finding: {worst.rule}",
        text=worst.message[:160],
    )
    others = [other for other in moments if other.number != moment.number]
    return tuple(sorted((*others, moment), key=lambda moment: moment.number))


def _is_mishap(event: trace_records.AnyEvent) -> bool:
    """Whether it failed; a search that found nothing and a call that the user rejected did not."""
    if not has_failed(event) or is_cut_short(event):
        return False
    return not (
        isinstance(event, trace_records.Command)
        and event.exit_code == 1
        and event.stopped is None
        and analyse_command(event.command).searches
    )


def _first_objection(
    events: Sequence[trace_records.AnyEvent], messages: Sequence[trace_records.Message]
) -> tuple[trace_records.AnyEvent | None, MomentKind, str]:
    """Return the first correction in the user's own words, else the first interruption of work."""
    correction = _first(
        messages,
        lambda message: (
            message.intent == "correction" and bool(strip_client_markup(message.text).strip())
        ),
    )
    if correction is not None:
        return correction, "correction", "First correction by the user"
    began = next(
        (
            event.number
            for event in events
            if not isinstance(event, trace_records.Message | trace_records.Note)
        ),
        None,
    )
    interruption = _first(
        messages,
        lambda message: (
            message.intent == "interrupt" and began is not None and message.number > began
        ),
    )
    return interruption, "correction", "Interrupted by the user"


def _longest_failure_row(
    events: Sequence[trace_records.AnyEvent],
) -> list[tuple[trace_records.AnyEvent | None, MomentKind, str]]:
    """Return the start of the longest row of failed actions, whatever is said between them."""
    best: list[trace_records.AnyEvent] = []
    row: list[trace_records.AnyEvent] = []
    for event in events:
        if _is_mishap(event):
            row.append(event)
            best = row if len(row) > len(best) else best
        elif not isinstance(
            event, trace_records.Message | trace_records.Thought | trace_records.Note
        ):
            row = []
    if len(best) < MIN_FAILURE_ROW:
        return []
    return [(best[0], "failure", f"{len(best)} failures in a row")]


def _first(
    events: Sequence[EventType], wanted: Callable[[EventType], bool] = bool
) -> EventType | None:
    return next((event for event in events if wanted(event)), None)


def _build_moment(
    event: trace_records.AnyEvent, kind: MomentKind, label: str, quote: str | None = None
) -> TraceMoment:
    _, title, _, _, texts = describe_event_parts(event)
    text = quote or title or next((text for _, text in texts if text), "") or ""
    return TraceMoment(
        number=event.number, kind=kind, label=label, text=" ".join(text[:400].split())[:160]
    )


class ToolCount(Record):
    """How often a tool was used, and how often it failed."""

    name: str
    uses: int
    failed: int


def count_tools(trace: trace_records.Trace) -> tuple[ToolCount, ...]:
    """Count the agent's tool calls by tool, most used first."""
    uses: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    names = {
        trace_records.Command: "shell",
        trace_records.Edit: "edit",
        trace_records.Read: "read",
        trace_records.Handoff: "sub-agent",
    }
    for event in trace.events:
        name = event.name if isinstance(event, trace_records.ToolUse) else names.get(type(event))
        if name is not None:
            uses[name] += 1
            failed[name] += has_failed(event)
    return tuple(
        ToolCount(name=name[:80], uses=count, failed=failed[name])
        for name, count in uses.most_common(30)
    )
