"""Iterations of one attempt: which failures each round of changes left, and whether they shrink."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from msgspec.structs import replace

from closeloop.process.convergence import find_standstills
from closeloop.records.measurement import Measures
from closeloop.records.record import Record
from closeloop.records.trace import Message
from closeloop.records.trace_steps import Iteration, LaneReading
from closeloop.web.page import Page
from closeloop.web.page_context import PageContext
from closeloop.web.pages.heads import AttemptAsked, AttemptHead, load_attempt_head, with_marks

MAX_ROUNDS = 60
MAX_FAILURES = 40
MAX_FILES = 4
MAX_SAID_CHARS = 1000


class Round(Record):
    """Changes, then a check."""

    number: int
    change: int
    """The event of its first change."""
    check: int
    """The event of its last check."""
    passed: bool | None
    failures: int
    fixed: int
    """Failures of the round before that are gone."""
    new: int
    """Failures that the round before did not have."""
    stuck: bool
    """Part of a row of rounds whose failures stay the same."""
    files: tuple[str, ...]
    said: str | None = None
    """What the agent said last before its first change, since the round before."""


class FailureRow(Record):
    """One failing test or error, and after which rounds it was there."""

    key: str
    message: str
    rounds: tuple[bool, ...]


class LaneIterations(Record):
    lane: str
    agent: str | None
    verdict: str
    spirals: bool
    rounds: tuple[Round, ...]
    failures: tuple[FailureRow, ...]
    more_rounds: int
    """Earlier ones that are not shown."""
    more_failures: int


class IterationsView(Record):
    """The loop of an attempt, turn by turn."""

    head: AttemptHead
    lanes: tuple[LaneIterations, ...]


def iterations(desk: PageContext, asked: AttemptAsked) -> IterationsView:
    head, _ = load_attempt_head(desk, asked.attempt)
    reading = desk.load_trace_reading(head.row.id)
    measurement = desk.load_measurement(head.row)
    head = with_marks(head, measurement)
    measures = {one.lane: one for one in measurement.lanes} if measurement else {}
    agent_messages: dict[str, list[Message]] = {}
    for event in desk.load_trace(head.row.id).events:
        if isinstance(event, Message) and event.role == "agent":
            agent_messages.setdefault(event.lane, []).append(event)
    return IterationsView(
        head=head,
        lanes=tuple(
            _lane_iterations(lane, measures.get(name), agent_messages.get(name, []))
            for name, lane in reading.lanes.items()
            if lane.iterations
        ),
    )


def _lane_iterations(
    lane: LaneReading, measures: Measures | None, said: Sequence[Message]
) -> LaneIterations:
    shown_iterations = lane.iterations[-MAX_ROUNDS:]
    skipped = len(lane.iterations) - len(shown_iterations)
    standstill_rows = find_standstills(lane)
    stuck = {id(each) for row in standstill_rows if len(row) > 1 for each in row}
    keys = [_failure_keys(each) for each in shown_iterations]
    messages: dict[str, str] = {}
    for each in shown_iterations:
        messages |= each.failures.errors if each.failures else {}
    rows = sorted(messages, key=lambda key: (-sum(key in there for there in keys), key))
    return LaneIterations(
        lane=lane.lane.id,
        agent=lane.lane.agent,
        verdict=_describe_lane_verdict(lane, measures),
        spirals=any(len(row) >= 3 for row in standstill_rows),
        rounds=tuple(
            replace(
                _iteration_round(each, place, keys, id(each) in stuck, skipped),
                said=_last_words_before(each, shown_iterations[place - 1] if place else None, said),
            )
            for place, each in enumerate(shown_iterations)
        ),
        failures=tuple(
            FailureRow(
                key=key[:300],
                message=messages[key][:300],
                rounds=tuple(key in there for there in keys),
            )
            for key in rows[:MAX_FAILURES]
        ),
        more_rounds=skipped,
        more_failures=max(0, len(rows) - MAX_FAILURES),
    )


def _iteration_round(
    each: Iteration, place: int, keys: Sequence[frozenset[str]], stuck: bool, skipped: int
) -> Round:
    before = keys[place - 1] if place else frozenset[str]()
    return Round(
        number=skipped + place + 1,
        change=each.changes[0].number,
        check=each.checks[-1].number,
        passed=each.passed,
        failures=len(keys[place]),
        fixed=len(before - keys[place]),
        new=len(keys[place] - before) if place else 0,
        stuck=stuck,
        files=tuple(dict.fromkeys(path for step in each.changes for path in step.written))[
            :MAX_FILES
        ],
    )


def _last_words_before(
    each: Iteration, last: Iteration | None, said: Sequence[Message]
) -> str | None:
    """The last words before a round, unless they are from before the round before."""
    place = bisect_left(said, each.changes[0].number, key=lambda one: one.number)
    if not place or (last and said[place - 1].number < last.checks[-1].number):
        return None
    return said[place - 1].text[:MAX_SAID_CHARS]


def _failure_keys(each: Iteration) -> frozenset[str]:
    return each.failures.keys if each.failures else frozenset()


def _describe_lane_verdict(lane: LaneReading, measures: Measures | None) -> str:
    rounds = len(lane.iterations)
    rounds_text = f"{rounds} round{'' if rounds == 1 else 's'} of changes and checks"
    if measures is None:
        return f"{rounds_text}."
    if measures.standstill >= 3:
        return f"{rounds_text}; {measures.standstill} in a row left the same failures."
    if measures.converged:
        return f"{rounds_text}; all passed after {measures.converged_after}."
    return (
        f"{rounds_text};"
        f" {'they never all passed' if measures.converged is False else 'none failed'}."
    )


PAGES = (
    Page(
        path="/attempts/{attempt}/iterations",
        show=iterations,
        template="iterations.html",
        about="Which failures each round of changes left: the picture of a spiral.",
        section="Attempts",
    ),
)
