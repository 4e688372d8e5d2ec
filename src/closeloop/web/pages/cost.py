"""What work costs: per merged pull request and passed task, by week, agent, model, repository."""

from __future__ import annotations

from datetime import UTC, datetime

from closeloop.metrics.attempt_groups import UNKNOWN_LABEL
from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.work_summary import (
    NotedSession,
    UseByDay,
    compute_cost_report,
    find_costliest,
    select_period,
    sum_use_by_day,
)
from closeloop.records.attempt import TimeRange
from closeloop.records.record import Record
from closeloop.web.event_views import (
    FigureLine,
    FigureTable,
    build_figure_lines,
    build_figure_table,
)
from closeloop.web.page import Page
from closeloop.web.page_context import PageContext
from closeloop.web.pages.overview import note_sessions

MAX_ROWS = 12
MAX_COSTLIEST = 10


class CostNumbers(Record):
    """What is counted over the attempts of a time."""

    attempts: int
    totals: tuple[FigureLine, ...]
    """In all; per merged pull request and passed task; what failed and what was made again."""
    unknown: int
    """Attempts and earlier tries without a known cost: they are in no sum."""
    sides: tuple[FigureTable, ...]
    """By week, agent, model and repository, the dearest first; weeks the newest first."""
    use: UseByDay
    costliest: tuple[NotedSession, ...]


class CostView(Record):
    asked: TimeRange
    numbers: CostNumbers | None
    """None until they were counted the first time."""
    fresh: bool


def cost(desk: PageContext, asked: TimeRange) -> CostView:
    cached_numbers = desk.metric_cache.compute_from_work(
        f"cost {asked}", lambda work: _compute_cost_numbers(desk, work, asked)
    )
    return CostView(asked=asked, numbers=cached_numbers.value, fresh=cached_numbers.fresh)


def _compute_cost_numbers(
    desk: PageContext, everything: AttemptTable, asked: TimeRange
) -> CostNumbers:
    work = select_period(everything, asked)
    report = compute_cost_report(work)
    totals = build_figure_lines(report.whole)
    in_all = totals[0].figure if totals else None
    drawn = TimeRange(since=asked.since, until=asked.until or datetime.now(UTC))
    return CostNumbers(
        attempts=len(work),
        totals=totals,
        unknown=int(in_all.more.get("unknown", 0)) if in_all else 0,
        sides=tuple(
            build_figure_table(side, MAX_ROWS, _order_groups(side.by[0], build_figure_lines(side)))
            for side in report.sides
        ),
        use=sum_use_by_day(work, drawn),
        costliest=note_sessions(desk, everything, find_costliest(work, MAX_COSTLIEST)),
    )


def _order_groups(by: str, lines: tuple[FigureLine, ...]) -> list[str]:
    """Weeks from the newest, all else from what cost most."""
    totals = {
        line.figure.group[by]: line.figure.value or 0.0
        for line in lines
        if line.metric.name == "cost in all"
    }
    if by == "week":
        return sorted(totals, key=lambda week: "" if week == UNKNOWN_LABEL else week, reverse=True)
    return sorted(totals, key=lambda name: (-totals[name], name))


PAGES = (
    Page(
        path="/cost",
        show=cost,
        template="cost.html",
        about="What work costs: per merged pull request, per passed task, by week and by whom.",
        section="Cost",
        key="d",
        charts=True,
    ),
)
