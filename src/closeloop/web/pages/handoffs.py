"""Handoffs of one attempt: brief, child, return; and what was kept and lost on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from closeloop.model.record import Record
from closeloop.model.task import Task
from closeloop.process.briefs import Need, all_needs, dropped, planted, understood
from closeloop.process.handing import Handed, handed
from closeloop.process.returns import told, uses
from closeloop.web.desk import Desk
from closeloop.web.page import Page
from closeloop.web.pages.heads import AttemptAsked, AttemptHead, open_attempt
from closeloop.web.views.marked import Mark, Piece, marked

MOST = 100
MOST_FILES = 12


class NeedView(Record):
    """A fact that the child needs, and whether the brief has it."""

    text: str
    kind: str
    present: bool
    lost: bool = False
    """Beyond doubt, and the child never came to see it."""
    against: int | None = None
    """The event in which the child went against it."""


class ReturnView(Record):
    """A fact of the report, and whether the parent used it."""

    text: str
    kind: str
    used: bool


class HandoffView(Record):
    """One handoff, from what was asked to what came back."""

    number: int
    parent: str
    child: str | None
    asked: tuple[Piece, ...]
    brief: tuple[Piece, ...]
    report: tuple[Piece, ...]
    needs: tuple[NeedView, ...]
    """Planted facts where the task has some, else what the request and the work show."""
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


def handoffs(desk: Desk, asked: AttemptAsked) -> HandoffsView:
    head, task = open_attempt(desk, asked.attempt)
    reading = desk.reading(head.row.id)
    every, needs = handed(reading), all_needs(reading)
    shown = zip(every[:MOST], needs[:MOST], strict=True)
    return HandoffsView(
        head=head,
        handoffs=tuple(_view(one, needed or (), task) for one, needed in shown),
        more=max(0, len(every) - MOST),
    )


def _view(one: Handed, needed: Sequence[Need], task: Task | None) -> HandoffView:
    needs = _planted(task, one) if task and task.facts else _needs(one, needed)
    returned = tuple(
        ReturnView(text=fact.text, kind=fact.kind, used=uses(fact, one)) for fact in told(one)
    )
    marks: list[tuple[str, Mark]] = [
        (need.text, "kept" if need.present else "dropped") for need in needs
    ]
    kept = [(text, mark) for text, mark in marks if mark == "kept"]
    used: list[tuple[str, Mark]] = [
        (fact.text, "kept" if fact.used else "dropped") for fact in returned
    ]
    lost = any(need.lost for need in needs)
    return HandoffView(
        number=one.event.number,
        parent=one.parent.lane.agent or one.parent.lane.id,
        child=_child(one),
        asked=marked(one.asked or "", marks),
        brief=marked(one.event.brief, kept),
        report=marked(one.event.report or "", used),
        needs=needs,
        returned=returned,
        understood=understood(one),
        steps=len(one.work),
        first=one.work[0].number if one.work else None,
        changed=_changed(one),
        state="lost" if lost else "kept" if needs else "unknown",
    )


def _child(one: Handed) -> str | None:
    """By the agent's name, or where that is the parent's as well by the lane's."""
    if one.child is None:
        return one.event.child
    lane = one.child.lane
    return lane.agent if lane.agent not in (None, one.parent.lane.agent) else lane.id


def _needs(one: Handed, needed: Sequence[Need]) -> tuple[NeedView, ...]:
    lost = {fact.text: step for fact, step in dropped(one, needed)}
    return tuple(
        NeedView(
            text=need.fact.text,
            kind=need.fact.kind,
            present=need.present,
            lost=need.fact.text in lost,
            against=step.number if (step := lost.get(need.fact.text)) else None,
        )
        for need in needed
    )


def _planted(task: Task, one: Handed) -> tuple[NeedView, ...]:
    missing = set(planted(task.facts, one.event.brief))
    return tuple(
        NeedView(text=fact, kind="planted", present=fact not in missing, lost=fact in missing)
        for fact in task.facts
    )


def _changed(one: Handed) -> tuple[str, ...]:
    paths = dict.fromkeys(path for step in one.work if step.changed for path in step.written)
    return tuple(paths)[:MOST_FILES]


PAGES = (
    Page(
        path="/attempts/{attempt}/handoffs",
        show=handoffs,
        template="handoffs.html",
        about="What an attempt handed to sub-agents, what came back, and what was lost.",
        section="Attempts",
    ),
)
