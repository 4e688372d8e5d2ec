"""Iterations of one attempt: which failures each round of changes left, and whether they shrink."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from msgspec.structs import replace

from closeloop.model.measurement import Measures
from closeloop.model.record import Record
from closeloop.model.steps import Iteration, LaneReading
from closeloop.model.trace import Message
from closeloop.process.convergence import standstills
from closeloop.web.desk import Desk
from closeloop.web.page import Page
from closeloop.web.pages.heads import AttemptAsked, AttemptHead, open_attempt, with_marks

MOST_ROUNDS = 60
MOST_FAILURES = 40
MOST_FILES = 4
MOST_SAID = 1000


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


def iterations(desk: Desk, asked: AttemptAsked) -> IterationsView:
    head, _ = open_attempt(desk, asked.attempt)
    reading = desk.reading(head.row.id)
    measurement = desk.measurement(head.row)
    head = with_marks(head, measurement)
    measures = {one.lane: one for one in measurement.lanes} if measurement else {}
    said: dict[str, list[Message]] = {}
    for event in desk.trace(head.row.id).events:
        if isinstance(event, Message) and event.role == "agent":
            said.setdefault(event.lane, []).append(event)
    return IterationsView(
        head=head,
        lanes=tuple(
            _lane(lane, measures.get(name), said.get(name, []))
            for name, lane in reading.lanes.items()
            if lane.iterations
        ),
    )


def _lane(lane: LaneReading, measures: Measures | None, said: Sequence[Message]) -> LaneIterations:
    shown = lane.iterations[-MOST_ROUNDS:]
    skipped = len(lane.iterations) - len(shown)
    still = standstills(lane)
    stuck = {id(each) for row in still if len(row) > 1 for each in row}
    keys = [_keys(each) for each in shown]
    messages: dict[str, str] = {}
    for each in shown:
        messages |= each.failures.errors if each.failures else {}
    rows = sorted(messages, key=lambda key: (-sum(key in there for there in keys), key))
    return LaneIterations(
        lane=lane.lane.id,
        agent=lane.lane.agent,
        verdict=_verdict(lane, measures),
        spirals=any(len(row) >= 3 for row in still),
        rounds=tuple(
            replace(
                _round(each, place, keys, id(each) in stuck, skipped),
                said=_before(each, shown[place - 1] if place else None, said),
            )
            for place, each in enumerate(shown)
        ),
        failures=tuple(
            FailureRow(
                key=key[:300],
                message=messages[key][:300],
                rounds=tuple(key in there for there in keys),
            )
            for key in rows[:MOST_FAILURES]
        ),
        more_rounds=skipped,
        more_failures=max(0, len(rows) - MOST_FAILURES),
    )


def _round(
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
            :MOST_FILES
        ],
    )


def _before(each: Iteration, last: Iteration | None, said: Sequence[Message]) -> str | None:
    """The last words before a round, unless they are from before the round before."""
    place = bisect_left(said, each.changes[0].number, key=lambda one: one.number)
    if not place or (last and said[place - 1].number < last.checks[-1].number):
        return None
    return said[place - 1].text[:MOST_SAID]


def _keys(each: Iteration) -> frozenset[str]:
    return each.failures.keys if each.failures else frozenset()


def _verdict(lane: LaneReading, measures: Measures | None) -> str:
    rounds = len(lane.iterations)
    told = f"{rounds} round{'' if rounds == 1 else 's'} of changes and checks"
    if measures is None:
        return f"{told}."
    if measures.standstill >= 3:
        return f"{told}; {measures.standstill} in a row left the same failures."
    if measures.converged:
        return f"{told}; all passed after {measures.converged_after}."
    return f"{told}; {'they never all passed' if measures.converged is False else 'none failed'}."


PAGES = (
    Page(
        path="/attempts/{attempt}/iterations",
        show=iterations,
        template="iterations.html",
        about="Which failures each round of changes left: the picture of a spiral.",
        section="Attempts",
    ),
)
