"""How one attempt worked: its iterations, and its handoffs to sub-agents."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from closeloop.process.child_reports import list_report_facts, parent_uses_fact
from closeloop.process.feedback_use import find_standstills
from closeloop.process.handoff_briefs import (
    BriefNeed,
    HandoffContext,
    find_dropped_facts,
    is_brief_understood,
    list_all_needs,
    list_handoff_contexts,
    missing_planted_facts,
)
from closeloop.records.change import Iteration, LaneReading
from closeloop.records.finding import Measures
from closeloop.records.record import Record
from closeloop.records.task import Task
from closeloop.records.trace import AnyEvent, Command, Edit, Message
from closeloop.web.diff_view import DiffFile, diff_from_edit
from closeloop.web.page import Page, PageContext, PageNotFound
from closeloop.web.pages.outcome import AttemptHead, AttemptIdQuery, load_attempt_head, with_marks

MAX_ROUNDS = 60
MAX_FAILURES = 40
MAX_FILES = 4
MAX_SAID_CHARS = 1000
MAX_ROUND_EDITS = 40


class IterationRow(Record):
    """One iteration: changes, then a check."""

    number: int
    change: int
    """Event of its first change."""
    check: int
    """Event of its last check."""
    passed: bool | None
    failures: int
    known: bool
    """Whether its output names what failed, or shows that nothing did."""
    fixed: int
    """Number of failures of the last known iteration that are gone; 0 if this one is not known."""
    new: int
    """Number of failures that the last known iteration did not have."""
    stuck: bool
    """Whether it is in a sequence of iterations with unchanged failures."""
    files: tuple[str, ...]
    said: str | None = None
    """The agent's last message before the first change, since the previous iteration."""


class FailureRow(Record):
    """One failing test or error, and the iterations after which it was present."""

    key: str
    message: str
    rounds: tuple[bool, ...]


class LaneIterations(Record):
    lane: str
    agent: str | None
    verdict: str
    spirals: bool
    """Whether the rule `spiral` has a finding in this lane."""
    rounds: tuple[IterationRow, ...]
    failures: tuple[FailureRow, ...]
    more_rounds: int
    """Number of earlier iterations that are not shown."""
    more_failures: int


class IterationsView(Record):
    """The iterations of an attempt."""

    head: AttemptHead
    lanes: tuple[LaneIterations, ...]


def iterations(page_context: PageContext, query: AttemptIdQuery) -> IterationsView:
    head, _ = load_attempt_head(page_context, query.attempt)
    reading = page_context.load_trace_reading(head.row.id)
    measurement = page_context.load_measurement(head.row)
    head = with_marks(head, measurement)
    measures = {lane.lane: lane for lane in measurement.lanes} if measurement else {}
    spirals = {
        finding.lane: finding.message
        for finding in (measurement.findings if measurement else ())
        if finding.rule == "spiral"
    }
    agent_messages: dict[str, list[Message]] = {}
    for event in page_context.load_trace(head.row.id).events:
        if isinstance(event, Message) and event.role == "agent":
            agent_messages.setdefault(event.lane, []).append(event)
    return IterationsView(
        head=head,
        lanes=tuple(
            _lane_iterations(
                lane, measures.get(name), spirals.get(name), agent_messages.get(name, [])
            )
            for name, lane in reading.lanes.items()
            if lane.iterations
        ),
    )


def _lane_iterations(
    lane: LaneReading,
    measures: Measures | None,
    spiral: str | None,
    agent_messages: Sequence[Message],
) -> LaneIterations:
    shown_iterations = lane.iterations[-MAX_ROUNDS:]
    skipped = len(lane.iterations) - len(shown_iterations)
    standstill_rows = find_standstills(lane)
    stuck = {id(iteration) for row in standstill_rows if len(row) > 1 for iteration in row}
    keys = [_failure_keys(shown_iteration) for shown_iteration in shown_iterations]
    known_before: list[frozenset[str] | None] = [None]
    for iteration, round_keys in zip(shown_iterations, keys, strict=True):
        known_before.append(round_keys if _is_known(iteration) else known_before[-1])
    messages: dict[str, str] = {}
    for lane_iteration in shown_iterations:
        messages |= lane_iteration.failures.errors if lane_iteration.failures else {}
    rows = sorted(messages, key=lambda key: (-sum(key in round_keys for round_keys in keys), key))
    return LaneIterations(
        lane=lane.lane.id,
        agent=lane.lane.agent,
        verdict=_describe_lane_verdict(lane, measures, spiral),
        spirals=spiral is not None,
        rounds=tuple(
            replace(
                _iteration_round(
                    iteration, skipped + index + 1, known_before[index], id(iteration) in stuck
                ),
                said=_last_words_before(
                    iteration, shown_iterations[index - 1] if index else None, agent_messages
                ),
            )
            for index, iteration in enumerate(shown_iterations)
        ),
        failures=tuple(
            FailureRow(
                key=key[:300],
                message=messages[key][:300],
                rounds=tuple(key in round_keys for round_keys in keys),
            )
            for key in rows[:MAX_FAILURES]
        ),
        more_rounds=skipped,
        more_failures=max(0, len(rows) - MAX_FAILURES),
    )


def _iteration_round(
    iteration: Iteration, number: int, before: frozenset[str] | None, stuck: bool
) -> IterationRow:
    """Describe an iteration; `before` are the failures of the last known one."""
    keys, known = _failure_keys(iteration), _is_known(iteration)
    return IterationRow(
        number=number,
        change=iteration.changes[0].number,
        check=iteration.checks[-1].number,
        passed=iteration.passed,
        failures=len(keys),
        known=known,
        fixed=len(before - keys) if before is not None and known else 0,
        new=len(keys - before) if before is not None and known else 0,
        stuck=stuck,
        files=tuple(dict.fromkeys(path for step in iteration.changes for path in step.written))[
            :MAX_FILES
        ],
    )


def _last_words_before(
    iteration: Iteration, last: Iteration | None, agent_messages: Sequence[Message]
) -> str | None:
    """Return the last message before an iteration, if it is later than the previous iteration."""
    index = bisect_left(
        agent_messages, iteration.changes[0].number, key=lambda message: message.number
    )
    if not index or (last and agent_messages[index - 1].number < last.checks[-1].number):
        return None
    return agent_messages[index - 1].text[:MAX_SAID_CHARS]


def _failure_keys(iteration: Iteration) -> frozenset[str]:
    return iteration.failures.keys if iteration.failures else frozenset()


def _is_known(iteration: Iteration) -> bool:
    return iteration.passed is True or bool(_failure_keys(iteration))


def _describe_lane_verdict(lane: LaneReading, measures: Measures | None, spiral: str | None) -> str:
    rounds = len(lane.iterations)
    rounds_text = f"{rounds} iteration{'' if rounds == 1 else 's'} (changes, then a check)"
    if measures is None:
        return f"{rounds_text}."
    if spiral is not None:
        what = re.sub(r"(in the same failure): .*", r"\1.", spiral, flags=re.DOTALL)
        return f"{rounds_text}. Spiral: {what}"
    if measures.standstill >= 3:
        return f"{rounds_text}; {measures.standstill} in a row left the same failures."
    if measures.converged:
        return f"{rounds_text}; all checks passed after {measures.converged_after}."
    if measures.converged is None:
        return f"{rounds_text}; no check failed."
    if lane.iterations[-1].passed:
        # Of other tests than those that failed, or after the failing test was changed or dropped.
        return f"{rounds_text}; the last checks passed, but not all that failed was shown fixed."
    return f"{rounds_text}; the checks never all passed."


class IterationQuery(AttemptIdQuery):
    lane: str
    number: Annotated[int, Meta(ge=1)]
    """Number of the iteration, from 1."""


class IterationEdit(Record):
    """One change of an iteration."""

    event: int
    path: str
    file: DiffFile | None
    """None if the trace does not contain the changed lines."""


class IterationChangesView(Record):
    """The changes of one iteration."""

    attempt: str
    number: int
    edits: tuple[IterationEdit, ...]
    more: int
    """Number of changes that are not shown."""


def iteration_changes(page_context: PageContext, query: IterationQuery) -> IterationChangesView:
    """Return every edit of an iteration as a diff, as the trace recorded it."""
    head, _ = load_attempt_head(page_context, query.attempt)
    lane = page_context.load_trace_reading(head.row.id).lanes.get(query.lane)
    if lane is None or query.number > len(lane.iterations):
        raise PageNotFound(f"There is no iteration {query.number} in the lane {query.lane!r}.")
    numbers = {step.number for step in lane.iterations[query.number - 1].changes}
    changes = [
        event for event in page_context.load_trace(head.row.id).events if event.number in numbers
    ]
    return IterationChangesView(
        attempt=head.row.id,
        number=query.number,
        edits=tuple(
            IterationEdit(
                event=change.number,
                path=change.path if isinstance(change, Edit) else _shell_command(change),
                file=diff_from_edit(change) if isinstance(change, Edit) else None,
            )
            for change in changes[:MAX_ROUND_EDITS]
        ),
        more=max(0, len(changes) - MAX_ROUND_EDITS),
    )


def _shell_command(event: AnyEvent) -> str:
    return event.command[:200] if isinstance(event, Command) else type(event).__name__.lower()


PAGES = (
    Page(
        path="/attempts/{attempt}/round",
        show=iteration_changes,
        template="round.html",
        about="The changes of one iteration of an attempt.",
        section="Sessions",
        part=True,
    ),
    Page(
        path="/attempts/{attempt}/iterations",
        show=iterations,
        template="iterations.html",
        about="The failures left after each iteration, which show a spiral.",
        section="Sessions",
    ),
)


# A text in pieces, some of them marked as passed on or lost.

TextMark = Literal["kept", "dropped"]


class Piece(Record):
    text: str
    mark: TextMark | None = None


def mark_text_parts(
    text: str, marked_texts: Iterable[tuple[str, TextMark]], max_chars: int = 20_000
) -> tuple[Piece, ...]:
    """Mark each part at its first occurrence in a text; one that overlaps an earlier mark is not
    marked."""
    shown_text = text[:max_chars]
    spans: list[tuple[int, int, TextMark]] = []
    for part, mark in marked_texts:
        start = shown_text.find(part) if part else -1
        end = start + len(part)
        if start >= 0 and all(end <= first or start >= last for first, last, _ in spans):
            spans.append((start, end, mark))
    pieces, position = [], 0
    for start, end, mark in sorted(spans):
        if start > position:
            pieces.append(Piece(text=shown_text[position:start]))
        pieces.append(Piece(text=shown_text[start:end], mark=mark))
        position = end
    if position < len(shown_text):
        pieces.append(Piece(text=shown_text[position:]))
    if len(text) > max_chars:
        pieces.append(Piece(text=" …"))
    return tuple(pieces)


# Handoffs of one attempt: brief, child, return; and which facts were passed on or lost.

MAX_HANDOFFS = 100
MAX_HANDOFF_FILES = 12


class NeedView(Record):
    """A fact that the child needs, and whether the brief contains it."""

    text: str
    kind: str
    present: bool
    lost: bool = False
    """Certainly missing from the brief, and the child never saw it later."""
    against: int | None = None
    """Event in which the child acted against it."""


class ReturnView(Record):
    """A fact of the child's report, and whether the parent used it."""

    text: str
    kind: str
    used: bool


class HandoffView(Record):
    """One handoff, from the request to the returned report."""

    number: int
    parent: str
    child: str | None
    asked: tuple[Piece, ...]
    brief: tuple[Piece, ...]
    report: tuple[Piece, ...]
    needs: tuple[NeedView, ...]
    """Planted facts if the task has any, else facts from the request and the work."""
    returned: tuple[ReturnView, ...]
    understood: bool | None
    steps: int
    first: int | None
    """The child's first event."""
    changed: tuple[str, ...]
    state: Literal["kept", "lost", "unknown"]


class HandoffsView(Record):
    """All handoffs of an attempt, in order."""

    head: AttemptHead
    handoffs: tuple[HandoffView, ...]
    more: int


def handoffs(page_context: PageContext, query: AttemptIdQuery) -> HandoffsView:
    head, task = load_attempt_head(page_context, query.attempt)
    reading = page_context.load_trace_reading(head.row.id)
    all_handoffs, needs = list_handoff_contexts(reading), list_all_needs(reading)
    shown_handoffs = zip(all_handoffs[:MAX_HANDOFFS], needs[:MAX_HANDOFFS], strict=True)
    return HandoffsView(
        head=head,
        handoffs=tuple(
            _handoff_view(handoff, handoff_needs or (), task)
            for handoff, handoff_needs in shown_handoffs
        ),
        more=max(0, len(all_handoffs) - MAX_HANDOFFS),
    )


def _handoff_view(
    handoff: HandoffContext, brief_needs: Sequence[BriefNeed], task: Task | None
) -> HandoffView:
    needs = (
        _planted_need_views(task, handoff)
        if task and task.facts
        else _need_views(handoff, brief_needs)
    )
    returned = tuple(
        ReturnView(text=fact.text, kind=fact.kind, used=parent_uses_fact(fact, handoff))
        for fact in list_report_facts(handoff)
    )
    marks: list[tuple[str, TextMark]] = [
        (need.text, "kept" if need.present else "dropped") for need in needs
    ]
    kept_marks = [(text, mark) for text, mark in marks if mark == "kept"]
    report_marks: list[tuple[str, TextMark]] = [
        (fact.text, "kept" if fact.used else "dropped") for fact in returned
    ]
    lost = any(need.lost for need in needs)
    return HandoffView(
        number=handoff.event.number,
        parent=handoff.parent.lane.agent or handoff.parent.lane.id,
        child=_child_name(handoff),
        asked=mark_text_parts(handoff.request or "", marks),
        brief=mark_text_parts(handoff.event.brief, kept_marks),
        report=mark_text_parts(handoff.event.report or "", report_marks),
        needs=needs,
        returned=returned,
        understood=is_brief_understood(handoff),
        steps=len(handoff.work),
        first=handoff.work[0].number if handoff.work else None,
        changed=_changed_paths(handoff),
        state="lost" if lost else "kept" if needs else "unknown",
    )


def _child_name(handoff: HandoffContext) -> str | None:
    """Return the agent's name; the lane's name if the parent's agent has the same name."""
    if handoff.child is None:
        return handoff.event.child
    lane = handoff.child.lane
    return lane.agent if lane.agent not in (None, handoff.parent.lane.agent) else lane.id


def _need_views(handoff: HandoffContext, brief_needs: Sequence[BriefNeed]) -> tuple[NeedView, ...]:
    lost = {fact.text: step for fact, step in find_dropped_facts(handoff, brief_needs)}
    return tuple(
        NeedView(
            text=need.fact.text,
            kind=need.fact.kind,
            present=need.present,
            lost=need.fact.text in lost,
            against=step.number if (step := lost.get(need.fact.text)) else None,
        )
        for need in brief_needs
    )


def _planted_need_views(task: Task, handoff: HandoffContext) -> tuple[NeedView, ...]:
    missing = set(missing_planted_facts(task.facts, handoff.event.brief))
    return tuple(
        NeedView(text=fact, kind="planted", present=fact not in missing, lost=fact in missing)
        for fact in task.facts
    )


def _changed_paths(handoff: HandoffContext) -> tuple[str, ...]:
    paths = dict.fromkeys(path for step in handoff.work if step.changed for path in step.written)
    return tuple(paths)[:MAX_HANDOFF_FILES]


HANDOFF_PAGES = (
    Page(
        path="/attempts/{attempt}/handoffs",
        show=handoffs,
        template="handoffs.html",
        about="Handoffs to sub-agents: the brief, the report, and facts that were lost.",
        section="Sessions",
    ),
)
