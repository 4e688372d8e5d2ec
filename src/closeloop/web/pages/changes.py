"""Changes: those decided about, their reports, and pull requests."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_definitions import RISK_METRICS
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.records.change import ReportRow, RiskLevel
from closeloop.records.pull_request import (
    Correction,
    Delivery,
    PullRequest,
    PullRequestState,
    PullRow,
)
from closeloop.records.record import Record
from closeloop.records.team_rules import TeamRule
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.pull_board import BoardRow, PullOrder, list_board
from closeloop.reviews.pull_updates import load_pull, load_pull_change
from closeloop.reviews.review_items import load_open_task
from closeloop.reviews.review_queue import list_pulls_awaiting_change
from closeloop.store.listing_section import DeliveredChange
from closeloop.tasks.sealed_tasks import task_alias
from closeloop.web.diff_view import DiffFile, ReportShown, build_diff_files, build_report_view
from closeloop.web.event_views import FigureTable, build_figure_table
from closeloop.web.page import Page, PageNotFound, find_or_404
from closeloop.web.page_context import PageContext

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


# One report of `closeloop check`, as it was kept.


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


REPORT_PAGES = (
    Page(
        path="/changes/reports/{number}",
        show=report,
        template="report.html",
        about="What a check said of a change: tools, quality and risk, by file and line.",
        section="Changes",
    ),
)


# Pull requests of agents: rounds of review, corrections, and what came after the merge.

MAX_PULLS = 100


class PullsAsked(Record):
    repo: str | None = None
    state: PullRequestState | None = None
    by: Literal["agents", "people"] | None = None
    find: str | None = None
    """Only those whose title, number or author holds this."""
    sort: PullOrder = "care"


class PullsView(Record):
    asked: PullsAsked
    pulls: tuple[BoardRow, ...]
    """What deserves care first, or as it was asked."""
    count: int
    """All that are like that, those too that are not listed."""
    repos: tuple[str, ...]
    cut: bool
    """Whether there are more."""
    without_change: int
    """Open ones whose diff is not stored, so that nobody is asked about them."""


class PullAsked(Record):
    repo: str
    number: Annotated[int, Meta(ge=1, le=2**53)]


class PullView(Record):
    pull: PullRequest
    board: BoardRow
    """Risk, size, rounds and cost, and why it deserves care."""
    files: tuple[DiffFile, ...]
    """Its diff; none where that is not stored."""
    report: ReportShown | None
    """What the last check of it said."""
    corrections: tuple[Correction, ...]
    rules: tuple[TeamRule, ...]
    """What was learned from it."""


def pulls(desk: PageContext, asked: PullsAsked) -> PullsView:
    agent = None if asked.by is None else asked.by == "agents"
    rows = desk.store.pulls.list_pulls(repo=asked.repo, state=asked.state, agent=agent)
    words = (asked.find or "").lower().split()
    rows = [row for row in rows if all(word in _searched_text(row) for word in words)]
    board = list_board(desk.store, rows, asked.sort)
    return PullsView(
        asked=asked,
        pulls=tuple(board[:MAX_PULLS]),
        count=len(board),
        repos=tuple(sorted({row.repo for row in rows})),
        cut=len(board) > MAX_PULLS,
        without_change=len(list_pulls_awaiting_change(desk.store)),
    )


def _searched_text(row: PullRow) -> str:
    names = (row.title, f"{row.repo}#{row.pull}", row.agent, row.asked_by, row.branch)
    return " ".join(filter(None, names)).lower()


def pull(desk: PageContext, asked: PullAsked) -> PullView:
    agents = merge_known_agents(desk.settings.pulls.agents)
    pull_request = find_or_404(load_pull, asked.repo, asked.number, desk.store, agents)
    store = desk.store
    row = store.pulls.load_pull(asked.repo, asked.number)
    if row is None:
        raise PageNotFound(f"There is no pull request {asked.repo}#{asked.number} in the list.")
    if row.attempt is not None:
        # Refused where the task is sealed.
        load_open_task(store, store.load_attempt(row.attempt))
    change = load_pull_change(pull_request, store)
    corrections = store.memory.list_corrections(repo=asked.repo, pull=asked.number)
    learned = [
        rule
        for rule in store.memory.list_rules(repo=asked.repo)
        if any(one.pull == asked.number and one.repo == asked.repo for one in rule.examples)
    ]
    return PullView(
        pull=pull_request,
        board=list_board(store, [row])[0],
        files=build_diff_files(change, (), {}) if change else (),
        report=newest_attempt_report(desk, row.attempt) if row.attempt else None,
        corrections=tuple(corrections),
        rules=tuple(learned),
    )


PULL_PAGES = (
    Page(
        path="/pulls",
        show=pulls,
        template="pulls.html",
        about="Pull requests, and what people did with them.",
        section="Pull requests",
        key="u",
    ),
    Page(
        path="/pulls/{repo:path}/{number:int}",
        show=pull,
        template="pull.html",
        about="The life of one pull request.",
        section="Pull requests",
    ),
)
