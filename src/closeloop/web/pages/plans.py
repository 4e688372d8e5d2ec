"""Orchestrated plans: dependencies, results of each task, and number of tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from closeloop.orchestration.plan_execution import (
    PlanRates,
    describe_failing_checks,
    measure_plan_rates,
)
from closeloop.records.orchestration import (
    Orchestration,
    OrchestrationHistory,
    OrchestrationResult,
    OrchestrationRow,
    PlanGrade,
    PlanTrend,
    SubtaskSpec,
    SubtaskTry,
)
from closeloop.records.record import Record
from closeloop.web.page import Page, PageContext, find_or_404

# Layout of a plan's graph: a task is to the right of all tasks that it depends on.

WIDTH, HEIGHT = 196, 58
ACROSS, DOWN = 64, 18
GRAPH_MARGIN = 8
MAX_BOXES = 200


class Box(Record):
    task: str
    x: int
    y: int


class Picture(Record):
    """Boxes, and lines from each task to those that depend on it."""

    width: int
    height: int
    box_width: int = WIDTH
    box_height: int = HEIGHT
    boxes: tuple[Box, ...]
    lines: tuple[str, ...]
    """SVG paths."""


def draw_plan_graph(waits_for: Mapping[str, Sequence[str]]) -> Picture | None:
    """Draw the dependency graph; None if there are too many tasks."""
    if not waits_for or len(waits_for) > MAX_BOXES:
        return None
    columns: dict[int, list[str]] = {}
    for task, depth in task_depths(waits_for).items():
        columns.setdefault(depth, []).append(task)
    box_by_task = {
        task: Box(
            task=task,
            x=GRAPH_MARGIN + depth * (WIDTH + ACROSS),
            y=GRAPH_MARGIN + row * (HEIGHT + DOWN),
        )
        for depth, tasks in columns.items()
        for row, task in enumerate(tasks)
    }
    return Picture(
        width=max(box.x for box in box_by_task.values()) + WIDTH + GRAPH_MARGIN,
        height=max(box.y for box in box_by_task.values()) + HEIGHT + GRAPH_MARGIN,
        boxes=tuple(box_by_task.values()),
        lines=tuple(
            _connect_boxes(box_by_task[first], box_by_task[task])
            for task, firsts in waits_for.items()
            for first in firsts
            if first in box_by_task and box_by_task[first].x < box_by_task[task].x
        ),
    )


def task_depths(waits_for: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the longest distance of each task from a start; tasks in a cycle get at most the
    number of tasks minus one."""
    depth_by_task = dict.fromkeys(waits_for, 0)
    for _ in waits_for:
        moved = {
            task: max(
                (depth_by_task[first] + 1 for first in firsts if first in depth_by_task), default=0
            )
            for task, firsts in waits_for.items()
        }
        if moved == depth_by_task:
            break
        depth_by_task = {task: min(depth, len(waits_for) - 1) for task, depth in moved.items()}
    return depth_by_task


def _connect_boxes(first: Box, then: Box) -> str:
    begin, end = first.x + WIDTH, then.x
    middle = (begin + end) // 2
    top, bottom = first.y + HEIGHT // 2, then.y + HEIGHT // 2
    return f"M{begin} {top} C{middle} {top} {middle} {bottom} {end} {bottom}"


MAX_PLANS = 100
MAX_TREND_DAYS = 60
PlanLineState = Literal["pass", "fail", "unscored", "running", "waiting"]


PlanOrder = Literal["newest", "grade", "subtasks", "tries", "time", "cost"]


class PlansAsked(Record):
    sort: PlanOrder = "newest"


class PlansView(Record):
    asked: PlansAsked
    plans: tuple[OrchestrationRow, ...]
    """Newest first, or in the requested order: the lowest grade, else the largest value, first."""
    under_way: tuple[str, ...]
    """Ids of plans that are running."""
    trend: PlanTrend
    fresh: bool
    """False if the trend is being computed, or is a moment old."""


class PlanQuery(Record):
    plan: str
    """Id or a prefix of it."""


class PlanLine(Record):
    """One task of a plan, with all tries."""

    part: SubtaskSpec
    depth: int
    state: PlanLineState
    score: float | None
    tries: tuple[SubtaskTry, ...]
    why: str | None
    """Why it has no verdict or was not started."""


class PlanView(Record):
    plan: Orchestration
    under_way: bool
    """Whether it is running."""
    ending: OrchestrationResult | None
    grade: PlanGrade | None
    rates: PlanRates
    whole_failures: tuple[str, ...]
    """Failures of all changes together, with the tasks that caused them."""
    lines: tuple[PlanLine, ...]
    picture: Picture | None


def plans(page_context: PageContext, query: PlansAsked) -> PlansView:
    plan_store = page_context.store.plans
    trend = page_context.metric_cache.compute_from_store(
        "plan trend", page_context.store_mark(), lambda: plan_store.load_trend(MAX_TREND_DAYS)
    )
    return PlansView(
        trend=trend.value or PlanTrend(),
        fresh=trend.fresh,
        asked=query,
        plans=_sort_plans(plan_store.list_plans(MAX_PLANS), query.sort),
        under_way=tuple(sorted(plan_store.running_plan_ids())),
    )


def _sort_plans(rows: Sequence[OrchestrationRow], order: PlanOrder) -> tuple[OrchestrationRow, ...]:
    """Sort plans; those whose value is unknown come last, equals stay newest first."""

    def sort_value(row: OrchestrationRow) -> float | None:
        match order:
            case "grade":
                return -row.grade.score if row.grade and row.grade.score is not None else None
            case "subtasks":
                return float(row.tasks)
            case "tries":
                return float(row.tries)
            case "time":
                return row.seconds
        return row.cost

    if order == "newest":
        return tuple(rows)
    known = [(value, row) for row in rows if (value := sort_value(row)) is not None]
    unknown = [row for row in rows if sort_value(row) is None]
    return (*(row for _, row in sorted(known, key=lambda pair: -pair[0])), *unknown)


def list_running_plans(page_context: PageContext) -> tuple[OrchestrationRow, ...]:
    """Return the plans that are running."""
    under_way = page_context.store.plans.running_plan_ids()
    return tuple(page_context.store.plans.list_plans(MAX_PLANS, under_way)) if under_way else ()


def plan(page_context: PageContext, query: PlanQuery) -> PlanView:
    history = find_or_404(page_context.store.plans.load_story, query.plan)
    under_way = history.plan.id in page_context.store.plans.running_plan_ids()
    waits_for = {part.id: part.depends_on for part in history.plan.tasks}
    indents = task_depths(waits_for)
    return PlanView(
        plan=history.plan,
        under_way=under_way,
        ending=history.ending,
        grade=page_context.store.plans.load_grade(history.plan.id) if history.ending else None,
        rates=measure_plan_rates(history),
        whole_failures=tuple(
            describe_failing_checks(history.ending.checks, history.ending.broken_by)
            if history.ending
            else ()
        ),
        lines=tuple(
            _plan_line(history, part, indents[part.id], under_way=under_way)
            for part in history.plan.tasks
        ),
        picture=draw_plan_graph(waits_for),
    )


def _plan_line(
    history: OrchestrationHistory, part: SubtaskSpec, depth: int, *, under_way: bool
) -> PlanLine:
    tries = tuple(
        subtask_try for subtask_try in history.tries if subtask_try.execution.task == part.id
    )
    last = tries[-1].assessment if tries else None
    not_begun = history.ending.not_begun.get(part.id) if history.ending else None
    return PlanLine(
        part=part,
        depth=depth,
        state=_plan_line_state(history, tries, under_way=under_way),
        score=last.score if last else None,
        tries=tries,
        why=not_begun or (last.why if last else None),
    )


def _plan_line_state(
    history: OrchestrationHistory, tries: tuple[SubtaskTry, ...], *, under_way: bool
) -> PlanLineState:
    last = tries[-1].assessment if tries else None
    if last is None and under_way:
        return "running" if tries else "waiting"
    if last is None:
        return "unscored" if history.ending else "waiting"
    return "unscored" if last.passed is None else "pass" if last.passed else "fail"


PAGES = (
    Page(
        path="/plans",
        show=plans,
        template="plans.html",
        about="Plans of orchestrated requests.",
        section="Plans",
        key="p",
    ),
    Page(
        path="/plans/{plan}",
        show=plan,
        template="plan.html",
        about="One plan: dependencies, tries and scores of its subtasks.",
        section="Plans",
    ),
)
