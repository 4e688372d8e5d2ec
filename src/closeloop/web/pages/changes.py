"""Changes that people had to decide about: what became of them, and how risky they were."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_definitions import RISK_METRICS
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.records.change_report import ReportRow, RiskLevel
from closeloop.records.delivery import Delivery
from closeloop.records.record import Record
from closeloop.store.counts_section import DeliveredChange
from closeloop.tasks.sealed_tasks import task_alias
from closeloop.web.page import Page
from closeloop.web.page_context import PageContext
from closeloop.web.views.figure_views import FigureTable, build_figure_table

MAX_LINES = 50
MAX_GROUPS = 30
MAX_REPORTS = 20
CALIBRATION_METRIC = "regression introduction rate"
"""What a level of risk is held against."""


class ChangesAsked(Record):
    by: Literal["week", "repo", "user", "prompt"] = "week"
    """How risk is shown."""
    below: Annotated[int, Meta(ge=1)] | None = None
    """The number of the last line of the page before."""


class ChangeLine(Record):
    """One change that was delivered."""

    delivery: Delivery
    task: str | None
    variant: str | None
    user: str | None


class RiskView(Record):
    """How risky changes were, and whether the levels mean anything."""

    levels: FigureTable
    calibration: FigureTable
    """By level, of the changes that were completed those that broke something later."""


class ChangesView(Record):
    asked: ChangesAsked
    lines: tuple[ChangeLine, ...]
    """Those of which something was learned last, first."""
    next: int | None
    risk: RiskView | None
    reports: tuple[ReportRow, ...]
    """What was checked lately, the newest first; on the first page only."""
    fresh: bool


def changes(desk: PageContext, asked: ChangesAsked) -> ChangesView:
    delivered_rows = desk.store.counts.list_deliveries(MAX_LINES + 1, asked.below)
    sealed = desk.store.held_out.list_sealed_digests()
    names = {key: one.name for key, one in desk.store.numbers.load_variants().items()}
    cached_risk = desk.metric_cache.compute_from_work(
        f"changes {asked.by}", lambda work: _compute_risk_view(work, asked.by)
    )
    reports = () if asked.below else desk.store.reports.list_reports(MAX_REPORTS, without=sealed)
    return ChangesView(
        asked=asked,
        lines=tuple(_change_line(one, sealed, names) for one in delivered_rows[:MAX_LINES]),
        next=delivered_rows[MAX_LINES - 1].number if len(delivered_rows) > MAX_LINES else None,
        risk=cached_risk.value,
        reports=tuple(reports),
        fresh=cached_risk.fresh,
    )


def _change_line(one: DeliveredChange, sealed: frozenset[str], names: dict[str, str]) -> ChangeLine:
    hidden = one.task_digest if one.task_digest in sealed else None
    return ChangeLine(
        delivery=one.delivery,
        task=task_alias(hidden) if hidden else one.task,
        variant=names.get(one.variant or ""),
        user=one.user,
    )


def _compute_risk_view(work: AttemptTable, by: str) -> RiskView:
    levels = compute_metrics(work, (by,), [name for name, *_ in RISK_METRICS])
    newest = sorted({one.group[by] for one in levels.figures}, reverse=by == "week")
    return RiskView(
        levels=build_figure_table(levels, MAX_GROUPS, newest),
        calibration=build_figure_table(
            compute_metrics(work, ("risk",), (CALIBRATION_METRIC,)), MAX_GROUPS, get_args(RiskLevel)
        ),
    )


PAGES = (
    Page(
        path="/changes",
        show=changes,
        template="changes.html",
        about="What became of changes, and how risky they were.",
        section="Changes",
        key="h",
    ),
)
