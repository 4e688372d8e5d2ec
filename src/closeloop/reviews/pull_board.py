"""The pull request board: risk, size, rounds, reverts and cost, by how much care each deserves."""

from __future__ import annotations

import logging
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from closeloop.records.change import Change, ChangeReport, ReportRow, RiskLevel, SizeBand
from closeloop.records.errors import Fault
from closeloop.records.pull_request import PullRequestState, PullRow
from closeloop.records.record import Record
from closeloop.records.settings import CheckSettings
from closeloop.reviews.pull_lifecycle import MAIN_BRANCHES
from closeloop.store import Store
from closeloop.store.pull_section import SHORT_SHA_DIGITS, BranchWork
from closeloop.text.wording import count_with_noun, repository_name

# The risk of a pull request whose diff was fetched, assessed without running any of its code.


_log = logging.getLogger(__name__)


class RiskAssessment(Record):
    """Settings for assessing the risk of fetched changes."""

    cache: Path
    """Folder in which data on the clones is cached."""
    settings: CheckSettings = CheckSettings()


def save_risk(
    store: Store,
    row: PullRow,
    change: Change,
    clones: Sequence[tuple[Path, str]],
    assessment: RiskAssessment,
) -> None:
    """Save a risk report unless this commit has one; save the diff even without a report.

    `clones` contain the pull request's commits, each with the commit that it began from.
    """
    if store.reports.list_reports(1, repo=row.repo, head=change.head):
        return
    try:
        report = assess_pull_risk(change, clones, assessment)
    except Exception as error:  # hostile content may break any reader
        reason = str(error) if isinstance(error, Fault) else type(error).__name__
        _log.warning("The risk of %s#%s is unknown: %s", row.repo, row.pull, reason)
        return
    if report is not None and report.risk is not None:
        dated_change = replace(report.change, head=change.head)
        report = replace(report, change=dated_change, title=f"{row.repo}#{row.pull}")
        from closeloop.changes.check_verdict import save_report

        save_report(report, store, row.repo)


def assess_pull_risk(
    change: Change, clones: Sequence[tuple[Path, str]], assessment: RiskAssessment
) -> ChangeReport | None:
    """Assess by a clone that has the commits, else by the diff alone; None if that is
    incomplete."""
    from closeloop.changes.change_check import CheckRequest, report_risk_alone
    from closeloop.changes.change_sides import ChangeQuery

    order = CheckRequest(root=Path(), cache=assessment.cache, settings=assessment.settings)
    for folder, start in clones:
        ends = ChangeQuery(range=f"{start}..{change.head}")
        return report_risk_alone(replace(order, root=folder, wanted=ends))
    # The missing part could be what matters.
    if any((file.note or "").startswith("not read") for file in change.files):
        return None
    with tempfile.TemporaryDirectory(prefix="closeloop-") as private:
        patch = Path(private) / "change.patch"
        patch.write_text(change.patch, encoding="utf-8", errors="surrogateescape")
        alone = ChangeQuery(patch=patch)
        return report_risk_alone(replace(order, root=patch.parent, wanted=alone))


MIN_KNOWN_SIZES = 20
"""Minimum known sizes in a repository before a pull request is called large there."""
MAX_REPORTS_READ = 500
MAX_COUNTED_ROUNDS = 3
RISK_POINTS: dict[RiskLevel | None, int] = {
    "critical": 6, "high": 4, "medium": 2, None: 1, "low": 0,
}  # fmt: skip
BAND_POINTS: dict[SizeBand | None, int] = {"huge": 3, "large": 2, "medium": 1, None: 1, "small": 0}
UNLISTED = ""
"""A reason that counts a point but is not listed: nothing was checked, or it is ordinary."""
TAKEN_BACK_POINTS, FAILING_POINTS, UNREVIEWED_POINTS = 4, 3, 2

STATE_ORDER: dict[PullRequestState, int] = {"open": 0, "merged": 2, "closed": 3}
"""Open ones first, then drafts; what was closed unmerged needs no care any more."""

PullOrder = Literal["care", "newest", "size", "cost"]


class PullCost(Record):
    """What the recorded work behind a pull request cost, in US dollars."""

    cost: float | None = None
    """Known only if the cost of every session is."""
    sessions: int = 0
    """Recorded sessions on its branch, or linked to it."""
    without_cost: int = 0
    """Number of these sessions whose cost is unknown."""


class BoardRow(Record):
    """One pull request with everything that decides how much care it deserves."""

    pull: PullRow
    risk: RiskLevel | None = None
    """From its label, else from the last check of its newest commit."""
    risk_reasons: str | None = None
    """The reasons that the check gave for the level."""
    report: int | None = None
    """The number of that check's report."""
    band: SizeBand | None = None
    """Its added lines, ranked among the repository's pull requests; None if too few sizes are
    known."""
    cost: float | None = None
    """Cost of all recorded work behind it, in US dollars."""
    sessions: int = 0
    without_cost: int = 0
    """Number of the `sessions` whose cost is unknown."""
    care: int
    """Points: more points deserve more care."""
    reasons: tuple[str, ...] = ()
    """Why it has these points, most important first."""


def list_board(
    store: Store, rows: Sequence[PullRow], all_pulls: Sequence[PullRow], order: PullOrder = "care"
) -> list[BoardRow]:
    """Return pull requests, those that deserve care first: open ones, drafts, merged, closed.

    Sizes and costs are compared with those of all known pull requests.
    """
    costs = load_pull_costs(store, rows, all_pulls)
    sizes = collect_sizes(all_pulls)
    checked = _reports_by_commit(store.reports.list_reports(MAX_REPORTS_READ))
    board = []
    for row in rows:
        report = checked.get((row.repo, row.head)) or checked.get(row.attempt)
        level = row.risk or (report.level if report else None)
        board_row = assess_care(row, level, rank_band(row, sizes.get(row.repo, ())))
        cost = costs[row.repo, row.pull]
        board.append(
            replace(
                board_row,
                cost=cost.cost,
                sessions=cost.sessions,
                without_cost=cost.without_cost,
                risk_reasons=report.why if report and report.level == level else None,
                report=report.number if report else None,
            )
        )
    match order:
        case "newest":
            return sorted(board, key=lambda entry: entry.pull.opened, reverse=True)
        case "size":
            return sorted(board, key=lambda entry: -_known(entry.pull.added))
        case "cost":
            return sorted(board, key=lambda entry: -_known(entry.cost))
    return sorted(board, key=_care_order)


# The cost of the work behind pull requests: every session on the branch or linked to it.


def load_pull_costs(
    store: Store, rows: Sequence[PullRow], all_pulls: Sequence[PullRow] | None = None
) -> dict[tuple[str, int], PullCost]:
    """Return costs by repository and number; a session on a reused branch counts once.

    `all_pulls`: all known pull requests, which decide where such a session counts.
    """
    branches = {row.branch for row in rows if row.branch} - {*MAIN_BRANCHES}
    linked = {row.attempt for row in rows if row.attempt}
    work = store.pulls.list_branch_work(branches, linked)
    pulls = [row for row in all_pulls or rows if row.branch in branches or row.attempt in linked]
    sessions: dict[tuple[str, int], list[BranchWork]] = {}
    for owner, session in assign_work(pulls, work):
        sessions.setdefault((owner.repo, owner.pull), []).append(session)
    return {
        (row.repo, row.pull): sum_work_costs(sessions.get((row.repo, row.pull), ())) for row in rows
    }


def assign_work(
    pulls: Sequence[PullRow], work: Sequence[BranchWork]
) -> Iterator[tuple[PullRow, BranchWork]]:
    """Yield each session with its pull request: the linked one, else that of its branch.

    If a branch was reused, the first pull request that ended after the session began.
    """
    by_attempt = {row.attempt: row for row in pulls if row.attempt}
    by_branch: dict[str, list[PullRow]] = {}
    for row in sorted(pulls, key=lambda row: row.opened):
        if row.branch:
            by_branch.setdefault(row.branch, []).append(row)
    for session in work:
        owner = by_attempt.get(session.attempt)
        if owner is None and session.started is not None and session.repo is not None:
            name = repository_name(session.repo).lower()
            candidates = (row for row in by_branch.get(session.branch or "", ())
                          if row.repo.lower() == name)  # fmt: skip
            owner = next(
                (row for row in candidates if row.closed is None or session.started <= row.closed),
                None,
            )
        if owner is not None:
            yield owner, session


def sum_work_costs(work: Sequence[BranchWork]) -> PullCost:
    """Return the total cost: unknown if the cost of any session is unknown."""
    costs = [session.cost for session in work if session.cost is not None]
    without = len(work) - len(costs)
    return PullCost(
        cost=sum(costs) if costs and not without else None, sessions=len(work), without_cost=without
    )


def _known(value: float | None) -> float:
    return -1.0 if value is None else value


def _care_order(row: BoardRow) -> tuple[int, int, float, float]:
    state = STATE_ORDER[row.pull.state]
    if row.pull.state == "open" and row.pull.draft:
        state += 1
    return state, -row.care, -_known(row.pull.added), -row.pull.opened.timestamp()


def collect_sizes(rows: Iterable[PullRow]) -> dict[str, list[int]]:
    """Return the sorted numbers of lines that the pull requests of each repository add."""
    sizes: dict[str, list[int]] = {}
    for row in rows:
        if row.added is not None:
            sizes.setdefault(row.repo, []).append(row.added)
    return {repo: sorted(line_counts) for repo, line_counts in sizes.items()}


def rank_band(row: PullRow, sizes: Sequence[int]) -> SizeBand | None:
    """Return how large it is among the other pull requests of its repository."""
    if row.added is None or len(sizes) <= MIN_KNOWN_SIZES:
        return None
    from closeloop.changes.risk.risk_model import likelihood_band

    return likelihood_band(bisect_left(sizes, row.added) / (len(sizes) - 1))


ReportSubject = str | tuple[str | None, str | None] | None
"""An attempt, or a repository and a commit."""


def _reports_by_commit(reports: Sequence[ReportRow]) -> Mapping[ReportSubject, ReportRow]:
    """Return the newest check of each attempt and commit that gave a risk level."""
    newest: dict[ReportSubject, ReportRow] = {}
    for report in reversed(reports):
        if report.level is not None:
            if report.attempt:
                newest[report.attempt] = report
            if report.head:
                newest[report.repo, report.head[:SHORT_SHA_DIGITS]] = report
    return newest


def assess_care(row: PullRow, risk: RiskLevel | None, band: SizeBand | None) -> BoardRow:
    """Return how much care a pull request deserves, in points, with the reasons."""
    points: list[tuple[int, str]] = [
        (RISK_POINTS[risk], f"risk {risk}" if risk else UNLISTED),
        (
            BAND_POINTS[band],
            f"a {band} change for this repository" if band in ("large", "huge") else UNLISTED,
        ),
        (min(row.rounds, MAX_COUNTED_ROUNDS), count_with_noun(row.rounds, "review round")),
        (int(row.edits > 0), "edited by people"),
    ]
    if row.pointers:
        points.append((TAKEN_BACK_POINTS, "reverted or fixed later"))
    if row.last_push == "failed":
        points.append((FAILING_POINTS, "checks fail"))
    if row.state == "merged" and not row.reviewed and row.source != "git":
        points.append((UNREVIEWED_POINTS, "merged without review"))
    known_points = [point for point in points if point[0] and point[1] != UNLISTED]
    reasons = sorted(known_points, key=lambda point: -point[0])
    return BoardRow(
        pull=row,
        risk=risk,
        band=band,
        care=sum(number for number, _ in points),
        reasons=tuple(reason for _, reason in reasons),
    )
