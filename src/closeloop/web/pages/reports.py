"""One report of `closeloop check`, as it was kept."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from closeloop.records.record import Record
from closeloop.reviews.review_queue import load_open_task
from closeloop.web.page import Page, PageNotFound
from closeloop.web.page_context import PageContext
from closeloop.web.views.report_view import ReportShown, build_report_view


class ReportAsked(Record):
    number: Annotated[int, Meta(ge=1, le=2**53)]


def report(desk: PageContext, asked: ReportAsked) -> ReportShown:
    saved_report = desk.store.reports.load_report(asked.number)
    if saved_report is None:
        raise PageNotFound(f"There is no report {asked.number}: `closeloop check` makes one.")
    row, check_report = saved_report
    if row.attempt is not None:
        # Refused where the task is sealed.
        load_open_task(desk.store, desk.store.load_attempt(row.attempt))
    return build_report_view(row, check_report)


def newest_attempt_report(desk: PageContext, attempt: str) -> ReportShown | None:
    """What was last said of the change of an attempt, by its full id."""
    rows = desk.store.reports.list_reports(1, attempt=attempt)
    saved_report = desk.store.reports.load_report(rows[0].number) if rows else None
    return build_report_view(*saved_report) if saved_report else None


PAGES = (
    Page(
        path="/changes/reports/{number}",
        show=report,
        template="report.html",
        about="What a check said of a change: tools, quality and risk, by file and line.",
        section="Changes",
    ),
)
