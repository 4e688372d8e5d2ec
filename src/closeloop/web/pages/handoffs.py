"""Handoffs of one attempt: brief, child, return; and what was kept and lost on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from closeloop.process.child_reports import list_report_facts, parent_uses_fact
from closeloop.process.handoff_briefs import (
    BriefNeed,
    find_dropped_facts,
    is_brief_understood,
    list_all_needs,
    missing_planted_facts,
)
from closeloop.process.handoff_contexts import HandoffContext, list_handoff_contexts
from closeloop.records.record import Record
from closeloop.records.task import Task
from closeloop.web.page import Page
from closeloop.web.page_context import PageContext
from closeloop.web.pages.heads import AttemptAsked, AttemptHead, load_attempt_head
from closeloop.web.views.marked_text import Piece, TextMark, mark_text_parts

MAX_HANDOFFS = 100
MAX_FILES = 12


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


def handoffs(desk: PageContext, asked: AttemptAsked) -> HandoffsView:
    head, task = load_attempt_head(desk, asked.attempt)
    reading = desk.load_trace_reading(head.row.id)
    all_handoffs, needs = list_handoff_contexts(reading), list_all_needs(reading)
    shown_handoffs = zip(all_handoffs[:MAX_HANDOFFS], needs[:MAX_HANDOFFS], strict=True)
    return HandoffsView(
        head=head,
        handoffs=tuple(_handoff_view(one, needed or (), task) for one, needed in shown_handoffs),
        more=max(0, len(all_handoffs) - MAX_HANDOFFS),
    )


def _handoff_view(
    one: HandoffContext, needed: Sequence[BriefNeed], task: Task | None
) -> HandoffView:
    needs = _planted_need_views(task, one) if task and task.facts else _need_views(one, needed)
    returned = tuple(
        ReturnView(text=fact.text, kind=fact.kind, used=parent_uses_fact(fact, one))
        for fact in list_report_facts(one)
    )
    marks: list[tuple[str, TextMark]] = [
        (need.text, "kept" if need.present else "dropped") for need in needs
    ]
    kept = [(text, mark) for text, mark in marks if mark == "kept"]
    used: list[tuple[str, TextMark]] = [
        (fact.text, "kept" if fact.used else "dropped") for fact in returned
    ]
    lost = any(need.lost for need in needs)
    return HandoffView(
        number=one.event.number,
        parent=one.parent.lane.agent or one.parent.lane.id,
        child=_child_name(one),
        asked=mark_text_parts(one.asked or "", marks),
        brief=mark_text_parts(one.event.brief, kept),
        report=mark_text_parts(one.event.report or "", used),
        needs=needs,
        returned=returned,
        understood=is_brief_understood(one),
        steps=len(one.work),
        first=one.work[0].number if one.work else None,
        changed=_changed_paths(one),
        state="lost" if lost else "kept" if needs else "unknown",
    )


def _child_name(one: HandoffContext) -> str | None:
    """By the agent's name, or where that is the parent's as well by the lane's."""
    if one.child is None:
        return one.event.child
    lane = one.child.lane
    return lane.agent if lane.agent not in (None, one.parent.lane.agent) else lane.id


def _need_views(one: HandoffContext, needed: Sequence[BriefNeed]) -> tuple[NeedView, ...]:
    lost = {fact.text: step for fact, step in find_dropped_facts(one, needed)}
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


def _planted_need_views(task: Task, one: HandoffContext) -> tuple[NeedView, ...]:
    missing = set(missing_planted_facts(task.facts, one.event.brief))
    return tuple(
        NeedView(text=fact, kind="planted", present=fact not in missing, lost=fact in missing)
        for fact in task.facts
    )


def _changed_paths(one: HandoffContext) -> tuple[str, ...]:
    paths = dict.fromkeys(path for step in one.work if step.changed for path in step.written)
    return tuple(paths)[:MAX_FILES]


PAGES = (
    Page(
        path="/attempts/{attempt}/handoffs",
        show=handoffs,
        template="handoffs.html",
        about="What an attempt handed to sub-agents, what came back, and what was lost.",
        section="Attempts",
    ),
)
