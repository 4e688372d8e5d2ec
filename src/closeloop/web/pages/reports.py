"""One report of `closeloop check`, as it was kept."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from closeloop.model.record import Record
from closeloop.reviewing.queue import task_of
from closeloop.web.desk import Desk
from closeloop.web.page import NotThere, Page
from closeloop.web.views.tiers import ReportShown, shown


class ReportAsked(Record):
    number: Annotated[int, Meta(ge=1, le=2**53)]


def report(desk: Desk, asked: ReportAsked) -> ReportShown:
    found = desk.store.reports.report(asked.number)
    if found is None:
        raise NotThere(f"There is no report {asked.number}: `closeloop check` makes one.")
    row, kept = found
    if row.attempt is not None:
        # Refused where the task is sealed.
        task_of(desk.store, desk.store.attempt(row.attempt))
    return shown(row, kept)


def newest(desk: Desk, attempt: str) -> ReportShown | None:
    """What was last said of the change of an attempt, by its full id."""
    rows = desk.store.reports.rows(1, attempt=attempt)
    found = desk.store.reports.report(rows[0].number) if rows else None
    return shown(*found) if found else None


PAGES = (
    Page(
        path="/changes/reports/{number}",
        show=report,
        template="report.html",
        about="What a check said of a change: tools, quality and risk, by file and line.",
        section="Changes",
    ),
)
