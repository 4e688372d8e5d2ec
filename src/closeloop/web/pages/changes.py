"""Changes that people had to decide about: what became of them, and how risky they were."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta

from closeloop.measuring.definitions import RISK
from closeloop.measuring.metrics import metrics_of
from closeloop.measuring.work import Work
from closeloop.model.delivery import Delivery
from closeloop.model.record import Record
from closeloop.model.report import Level, ReportRow
from closeloop.store.counts import Delivered
from closeloop.tasks.seal import alias
from closeloop.web.desk import Desk
from closeloop.web.page import Page
from closeloop.web.views.figures import FigureTable, figure_table

MOST_LINES = 50
MOST_GROUPS = 30
MOST_REPORTS = 20
LATER = "regression introduction rate"
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


def changes(desk: Desk, asked: ChangesAsked) -> ChangesView:
    found = desk.store.counts.delivered(MOST_LINES + 1, asked.below)
    sealed = desk.store.held_out.sealed()
    names = {key: one.name for key, one in desk.store.numbers.variants().items()}
    counted = desk.counting.of_work(f"changes {asked.by}", lambda work: _risk(work, asked.by))
    reports = () if asked.below else desk.store.reports.rows(MOST_REPORTS, without=sealed)
    return ChangesView(
        asked=asked,
        lines=tuple(_line(one, sealed, names) for one in found[:MOST_LINES]),
        next=found[MOST_LINES - 1].number if len(found) > MOST_LINES else None,
        risk=counted.value,
        reports=tuple(reports),
        fresh=counted.fresh,
    )


def _line(one: Delivered, sealed: frozenset[str], names: dict[str, str]) -> ChangeLine:
    hidden = one.task_digest if one.task_digest in sealed else None
    return ChangeLine(
        delivery=one.delivery,
        task=alias(hidden) if hidden else one.task,
        variant=names.get(one.variant or ""),
        user=one.user,
    )


def _risk(work: Work, by: str) -> RiskView:
    levels = metrics_of(work, (by,), [name for name, *_ in RISK])
    newest = sorted({one.group[by] for one in levels.figures}, reverse=by == "week")
    return RiskView(
        levels=figure_table(levels, MOST_GROUPS, newest),
        calibration=figure_table(
            metrics_of(work, ("risk",), (LATER,)), MOST_GROUPS, get_args(Level)
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
