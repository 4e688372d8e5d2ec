"""Orchestrated plans: what waits for what, how each task went, and how often it was tried."""

from __future__ import annotations

from typing import Literal

from closeloop.model.orchestration import Ending, Orchestration, Part, PlanRow, PlanStory, Try
from closeloop.model.record import Record
from closeloop.web.desk import Desk
from closeloop.web.page import Nothing, Page, found
from closeloop.web.views.dag import Picture, depths, picture

MOST_PLANS = 100
State = Literal["pass", "fail", "unscored", "running", "waiting"]


class PlansView(Record):
    plans: tuple[PlanRow, ...]
    """The newest first."""
    under_way: tuple[str, ...]
    """The ids of those that somebody carries out now."""


class PlanAsked(Record):
    plan: str
    """The id, or the beginning of it."""


class PlanLine(Record):
    """One task of a plan, with all tries at it."""

    part: Part
    depth: int
    state: State
    score: float | None
    tries: tuple[Try, ...]
    why: str | None
    """Why it has no verdict, or was not begun."""


class PlanView(Record):
    plan: Orchestration
    under_way: bool
    """Whether somebody carries it out now."""
    ending: Ending | None
    lines: tuple[PlanLine, ...]
    picture: Picture | None


def plans(desk: Desk, asked: Nothing) -> PlansView:
    kept = desk.store.plans
    return PlansView(
        plans=tuple(kept.listed(MOST_PLANS)), under_way=tuple(sorted(kept.under_way()))
    )


def plans_now(desk: Desk) -> tuple[PlanRow, ...]:
    """Those that somebody carries out now."""
    under_way = desk.store.plans.under_way()
    return tuple(desk.store.plans.listed(MOST_PLANS, under_way)) if under_way else ()


def plan(desk: Desk, asked: PlanAsked) -> PlanView:
    story = found(desk.store.plans.story, asked.plan)
    under_way = story.plan.id in desk.store.plans.under_way()
    waits_for = {part.id: part.depends_on for part in story.plan.tasks}
    indents = depths(waits_for)
    return PlanView(
        plan=story.plan,
        under_way=under_way,
        ending=story.ending,
        lines=tuple(
            _line(story, part, indents[part.id], under_way=under_way) for part in story.plan.tasks
        ),
        picture=picture(waits_for),
    )


def _line(story: PlanStory, part: Part, depth: int, *, under_way: bool) -> PlanLine:
    tries = tuple(one for one in story.tries if one.execution.task == part.id)
    last = tries[-1].assessment if tries else None
    not_begun = story.ending.not_begun.get(part.id) if story.ending else None
    return PlanLine(
        part=part,
        depth=depth,
        state=_state(story, tries, under_way=under_way),
        score=last.score if last else None,
        tries=tries,
        why=not_begun or (last.why if last else None),
    )


def _state(story: PlanStory, tries: tuple[Try, ...], *, under_way: bool) -> State:
    last = tries[-1].assessment if tries else None
    if last is None and under_way:
        return "running" if tries else "waiting"
    if last is None:
        return "unscored" if story.ending else "waiting"
    return "unscored" if last.passed is None else "pass" if last.passed else "fail"


PAGES = (
    Page(
        path="/plans",
        show=plans,
        template="plans.html",
        about="Plans that sub-agents carry out.",
        section="Plans",
        key="p",
    ),
    Page(
        path="/plans/{plan}",
        show=plan,
        template="plan.html",
        about="One plan: what waits for what, scores and tries.",
        section="Plans",
    ),
)
