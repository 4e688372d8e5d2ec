"""Pull requests by need of attention, the page of one, and reports of checks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, Literal, get_args

from msgspec import Meta
from msgspec.structs import replace

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.metric_definitions import RISK_METRICS
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.records.attempt import AttemptFilter, TimeRange
from closeloop.records.change import ReportRow, RiskLevel
from closeloop.records.pull_request import Correction, PullRequest, PullRequestState, PullRow
from closeloop.records.record import Record
from closeloop.records.team_rules import TeamRule
from closeloop.reviews.agent_prompts import PromptIndex, find_prompt_id
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.pull_board import BoardRow, PullOrder, list_board
from closeloop.reviews.pull_lifecycle import load_pull, load_pull_change
from closeloop.reviews.review_queue import list_pulls_awaiting_change, load_open_task
from closeloop.store import Store
from closeloop.web.diff_view import DiffFile, ReportView, build_diff_files, build_report_view
from closeloop.web.event_views import FigureTable, build_figure_table
from closeloop.web.page import Page, PageContext, PageNotFound, find_or_404

MAX_PULLS = 100
MAX_GROUPS = 30
MAX_REPORTS = 20
CALIBRATION_METRIC = "regression introduction rate"
"""Metric that risk levels are compared with."""


class PullsQuery(TimeRange):
    """Pull requests that were open at some moment of the time range."""

    repo: str | None = None
    state: PullRequestState | None = None
    by: Literal["agents", "people"] | None = None
    q: str | None = None
    """Show only those whose title, number or author contains these words."""
    prompt: str | None = None
    """Id, name or beginning of the id of the prompt that the work ran under."""
    arm: str | None = None
    """Arm of a trial that the work was assigned to."""
    sort: PullOrder = "care"
    risk_by: Literal["week", "repo", "user", "prompt"] = "week"
    """Dimension by which risk levels are shown."""


class PullTotals(Record):
    """Totals over all pull requests of the list, including those not shown."""

    open: int
    caring: int
    """Open ones, without drafts, that have a reason for care."""
    merged: int
    reverted: int
    """Merged, and later reverted or fixed."""
    unreviewed: int
    """Merged without a review by another person; not counted if git is the only source."""
    cost_each: float | None
    """Mean cost of the work behind a merged one, if known."""
    costed: int
    """Number of merged ones with a known cost."""


class RiskView(Record):
    """The risk of changes, and whether the levels are calibrated."""

    levels: FigureTable
    calibration: FigureTable
    """By level, the share of completed changes that broke something later."""


class PullsView(Record):
    asked: PullsQuery
    pulls: tuple[BoardRow, ...]
    """Those that need attention first, or in the requested order."""
    count: int
    """Number of all matching ones, including those not listed."""
    totals: PullTotals
    repos: tuple[str, ...]
    cut: bool
    """Whether there are more."""
    without_change: int
    """Open ones that cannot be reviewed here because their diff is not stored."""
    reports: tuple[ReportRow, ...]
    """Checks of changes that are no pull request, newest first."""
    risk: RiskView | None
    fresh: bool


def pulls(page_context: PageContext, query: PullsQuery) -> PullsView:
    all_pulls = page_context.store.pulls.list_pulls()
    if query.prompt is not None:
        query = replace(query, prompt=find_prompt_id(page_context.store, query.prompt))
    selected = _list_selected_work(page_context.store, all_pulls, query)
    words = (query.q or "").lower().split()
    rows = [
        row
        for row in all_pulls
        if _has_wanted_fields(row, query)
        and (selected is None or (row.repo, row.pull) in selected)
        and _was_open_in(row, query)
        and all(word in _searched_text(row) for word in words)
    ]
    board = list_board(page_context.store, rows, all_pulls, query.sort)
    cached_risk = page_context.metric_cache.compute_from_work(
        f"risk {query.risk_by}", lambda work: _compute_risk_view(work, query.risk_by)
    )
    sealed = page_context.store.held_out.list_sealed_digests()
    of_pulls = {row.report for row in board}
    is_about_pulls = any((query.state, query.by, query.q, query.prompt, query.arm))
    reports = (
        []
        if is_about_pulls
        else page_context.store.reports.list_reports(MAX_REPORTS, repo=query.repo, without=sealed)
    )
    return PullsView(
        asked=query,
        pulls=tuple(board[:MAX_PULLS]),
        count=len(board),
        totals=count_totals(board),
        repos=tuple(sorted({row.repo for row in rows})),
        cut=len(board) > MAX_PULLS,
        without_change=len(list_pulls_awaiting_change(page_context.store)),
        reports=tuple(report for report in reports if report.number not in of_pulls),
        risk=cached_risk.value,
        fresh=cached_risk.fresh,
    )


def _list_selected_work(
    store: Store, all_pulls: Sequence[PullRow], query: PullsQuery
) -> set[tuple[str, int]] | None:
    """Return the pull requests with work under a prompt or in an arm; None if not asked for."""
    if query.prompt is None and query.arm is None:
        return None
    ids = [row.attempt for row in all_pulls if row.attempt and row.agent]
    attempts = store.listing.list_matches(AttemptFilter(prompt=query.prompt, arm=query.arm), ids)
    named = set()
    if query.prompt is not None and query.arm is None:
        index = PromptIndex(store)
        named = {row.prompt for row in all_pulls if row.prompt}
        named = {name for name in named if index.resolve_name(name) == query.prompt}
    return {
        (row.repo, row.pull) for row in all_pulls if row.attempt in attempts or row.prompt in named
    }


def _has_wanted_fields(row: PullRow, query: PullsQuery) -> bool:
    return (
        query.repo in (None, row.repo)
        and query.state in (None, row.state)
        and (query.by is None or (row.agent is not None) is (query.by == "agents"))
    )


def _was_open_in(row: PullRow, time: TimeRange) -> bool:
    is_over = time.since is not None and row.closed is not None and row.closed < time.since
    return not is_over and (time.until is None or row.opened < time.until)


def _searched_text(row: PullRow) -> str:
    names = (row.title, f"{row.repo}#{row.pull}", row.agent, row.author, row.asked_by, row.branch)
    return " ".join(filter(None, names)).lower()


def count_totals(board: Sequence[BoardRow]) -> PullTotals:
    merged = [row for row in board if row.pull.state == "merged"]
    costs = [row.cost for row in merged if row.cost is not None]
    return PullTotals(
        open=sum(row.pull.state == "open" for row in board),
        caring=sum(
            row.pull.state == "open" and not row.pull.draft and bool(row.reasons) for row in board
        ),
        merged=len(merged),
        reverted=sum(row.pull.pointers > 0 for row in merged),
        unreviewed=sum(not row.pull.reviewed for row in merged if row.pull.source != "git"),
        cost_each=fmean(costs) if costs else None,
        costed=len(costs),
    )


def _compute_risk_view(work: AttemptTable, dimension: str) -> RiskView:
    levels = compute_metrics(work, (dimension,), [name for name, *_ in RISK_METRICS])
    newest = sorted(
        {figure.group[dimension] for figure in levels.figures}, reverse=dimension == "week"
    )
    return RiskView(
        levels=build_figure_table(levels, MAX_GROUPS, newest),
        calibration=build_figure_table(
            compute_metrics(work, ("risk",), (CALIBRATION_METRIC,)), MAX_GROUPS, get_args(RiskLevel)
        ),
    )


# One pull request: its diff, check report, review rounds, corrections and learned rules.


class PullPageQuery(Record):
    repo: str
    number: Annotated[int, Meta(ge=1, le=2**53)]


class PullView(Record):
    pull: PullRequest
    board: BoardRow
    """Risk, size, rounds and cost, and why it needs attention."""
    recorded: bool
    """Whether a recording of the work behind it exists."""
    files: tuple[DiffFile, ...]
    """Its diff; empty if not stored."""
    report: ReportView | None
    """Its latest check report."""
    corrections: tuple[Correction, ...]
    rules: tuple[TeamRule, ...]
    """Team rules learned from it."""


def pull(page_context: PageContext, query: PullPageQuery) -> PullView:
    agents = merge_known_agents(page_context.settings.pulls.agents)
    pull_request = find_or_404(load_pull, query.repo, query.number, page_context.store, agents)
    store = page_context.store
    row = store.pulls.load_pull(query.repo, query.number)
    if row is None:
        raise PageNotFound(
            f"There is no pull request {query.repo}#{query.number} in the store: import it "
            "with `closeloop import`."
        )
    if row.attempt is not None:
        # Refused where the task is sealed.
        load_open_task(store, store.load_attempt(row.attempt))
    board = list_board(store, [row], store.pulls.list_pulls())[0]
    work = store.listing.load_row(row.attempt) if row.attempt else None
    report = _load_report_view(page_context, board.report) if board.report else None
    change = load_pull_change(pull_request, store)
    corrections = store.memory.list_corrections(repo=query.repo, pull=query.number)
    learned = [
        rule
        for rule in store.memory.list_rules(repo=query.repo)
        if any(
            example.pull == query.number and example.repo == query.repo for example in rule.examples
        )
    ]
    return PullView(
        pull=pull_request,
        board=board,
        recorded=work is not None and work.events is not None,
        files=build_diff_files(change, (), {}) if change else (),
        report=report
        or (newest_attempt_report(page_context, row.attempt) if row.attempt else None),
        corrections=tuple(corrections),
        rules=tuple(learned),
    )


PAGES = (
    Page(
        path="/pulls",
        show=pulls,
        template="pulls.html",
        about="Pull requests, those that need most care first: size, risk, checks, review "
        "rounds and cost.",
        section="Pull requests",
        key="u",
    ),
    Page(
        path="/pulls/{repo:path}/{number:int}",
        show=pull,
        template="pull.html",
        about="One pull request: diff, check report, review rounds, corrections and learned rules.",
        section="Pull requests",
    ),
)


# One stored report of `closeloop check`.


class ReportQuery(Record):
    number: Annotated[int, Meta(ge=1, le=2**53)]


def report(page_context: PageContext, query: ReportQuery) -> ReportView:
    saved_report = page_context.store.reports.load_report(query.number)
    if saved_report is None:
        raise PageNotFound(f"There is no report {query.number}: `closeloop check` creates reports.")
    row, check_report = saved_report
    if row.attempt is not None:
        # Refused where the task is sealed.
        load_open_task(page_context.store, page_context.store.load_attempt(row.attempt))
    return build_report_view(row, check_report)


def newest_attempt_report(page_context: PageContext, attempt: str) -> ReportView | None:
    """Return the latest check report on an attempt's change, by the attempt's full id."""
    rows = page_context.store.reports.list_reports(1, attempt=attempt)
    return _load_report_view(page_context, rows[0].number) if rows else None


def _load_report_view(page_context: PageContext, number: int) -> ReportView | None:
    saved_report = page_context.store.reports.load_report(number)
    return build_report_view(*saved_report) if saved_report else None


REPORT_PAGES = (
    Page(
        path="/reports/{number}",
        show=report,
        template="report.html",
        about="The report of a check: tools, quality and risk, by file and line.",
        section="Pull requests",
    ),
)
