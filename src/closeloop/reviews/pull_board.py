"""Pull requests side by side: risk, size, rounds, reverts and cost, by what deserves care."""

from __future__ import annotations

import logging
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from closeloop.changes.change_check import CheckRequest, report_risk_alone
from closeloop.changes.change_sides import ChangeQuery
from closeloop.changes.check_verdict import save_report
from closeloop.changes.risk.risk_model import Band, likelihood_band
from closeloop.records.change import Change, ChangeReport, ReportRow, RiskLevel
from closeloop.records.errors import Fault
from closeloop.records.pull_request import PullRow
from closeloop.records.record import Record
from closeloop.records.settings import CheckSettings
from closeloop.reviews.pull_lifecycle import MAIN_BRANCHES
from closeloop.store import Store
from closeloop.store.pull_section import SHORT_SHA_DIGITS, BranchWork
from closeloop.text.wording import count_with_noun, repository_name

# The risk of a pull request whose diff was fetched: told without running anything of it.


_log = logging.getLogger(__name__)


class RiskAssessment(Record):
    """How the risk of what was fetched is told."""

    cache: Path
    """Where what is known of the clones is kept."""
    settings: CheckSettings = CheckSettings()


def save_risk(
    store: Store,
    row: PullRow,
    change: Change,
    clones: Sequence[tuple[Path, str]],
    how: RiskAssessment,
) -> None:
    """Keep a report of its risk, unless there is one of this commit; a diff without is kept too.

    `clones` have its commits, each with the one that it began from.
    """
    if store.reports.list_reports(1, repo=row.repo, head=change.head):
        return
    try:
        report = assess_pull_risk(change, clones, how)
    except Exception as error:  # hostile content may break any reader
        reason = str(error) if isinstance(error, Fault) else type(error).__name__
        _log.warning("The risk of %s#%s is unknown: %s", row.repo, row.pull, reason)
        return
    if report is not None and report.risk is not None:
        told = replace(report.change, head=change.head)
        report = replace(report, change=told, title=f"{row.repo}#{row.pull}")
        save_report(report, store, row.repo)


def assess_pull_risk(
    change: Change, clones: Sequence[tuple[Path, str]], how: RiskAssessment
) -> ChangeReport | None:
    """By a clone that has its commits, else by the diff alone; None where that is not whole."""
    order = CheckRequest(root=Path(), cache=how.cache, settings=how.settings)
    for folder, start in clones:
        ends = ChangeQuery(range=f"{start}..{change.head}")
        return report_risk_alone(replace(order, root=folder, wanted=ends))
    # What is missing could be what matters.
    if any((file.note or "").startswith("not read") for file in change.files):
        return None
    with tempfile.TemporaryDirectory(prefix="closeloop-") as private:
        patch = Path(private) / "change.patch"
        patch.write_text(change.patch, encoding="utf-8", errors="surrogateescape")
        alone = ChangeQuery(patch=patch)
        return report_risk_alone(replace(order, root=patch.parent, wanted=alone))


MIN_KNOWN_SIZES = 20
"""Pull requests of a repository whose size must be known before one is called large there."""
MAX_REPORTS_READ = 500
MAX_COUNTED_ROUNDS = 3
RISK_POINTS: dict[RiskLevel | None, int] = {
    "critical": 6, "high": 4, "medium": 2, None: 1, "low": 0,
}  # fmt: skip
BAND_POINTS: dict[Band | None, int] = {"huge": 3, "large": 2, "medium": 1, None: 1, "small": 0}
NOT_KNOWN = "unknown"
"""What nobody looked at counts a point, and is no reason to name."""
TAKEN_BACK_POINTS, FAILING_POINTS, UNREVIEWED_POINTS = 4, 3, 2

PullOrder = Literal["care", "newest", "size", "cost"]


class PullCost(Record):
    """What the recorded work behind a pull request cost, in US dollars."""

    cost: float | None = None
    """Known only where that of every session is."""
    sessions: int = 0
    """Recorded pieces of work on its branch, or linked to it."""
    without_cost: int = 0
    """Of those, that nobody can say the cost of."""


class BoardRow(Record):
    """One pull request with all that says how much care it deserves."""

    pull: PullRow
    risk: RiskLevel | None = None
    """By its label, else by the last check of its newest commit."""
    risk_reasons: str | None = None
    """What the check that gave a level said for it."""
    report: int | None = None
    """The number of that check's report."""
    band: Band | None = None
    """Its lines added among those of the repository's pull requests; None where too few tell."""
    cost: float | None = None
    """Of all recorded work behind it, in US dollars."""
    sessions: int = 0
    without_cost: int = 0
    """How many pieces of work that are, and of how many of them the cost is not known."""
    care: int
    """Points: more deserve more care."""
    reasons: tuple[str, ...] = ()
    """What the points are for, the most telling first."""


def list_board(store: Store, rows: Sequence[PullRow], order: PullOrder = "care") -> list[BoardRow]:
    """Some pull requests, what deserves care first: open ones, drafts, then those that ended."""
    every = store.pulls.list_pulls()
    costs = load_pull_costs(store, rows, every)
    sizes = collect_sizes(every)
    checked = _reports_by_commit(store.reports.list_reports(MAX_REPORTS_READ))
    board = []
    for row in rows:
        report = checked.get((row.repo, row.head)) or checked.get(row.attempt)
        level = row.risk or (report.level if report else None)
        own = assess_care(row, level, rank_band(row, sizes.get(row.repo, ())))
        cost = costs[row.repo, row.pull]
        board.append(
            replace(
                own,
                cost=cost.cost,
                sessions=cost.sessions,
                without_cost=cost.without_cost,
                risk_reasons=report.why if report and report.level == level else None,
                report=report.number if report else None,
            )
        )
    match order:
        case "newest":
            return sorted(board, key=lambda one: one.pull.opened, reverse=True)
        case "size":
            return sorted(board, key=lambda one: -_known(one.pull.added))
        case "cost":
            return sorted(board, key=lambda one: -_known(one.cost))
    return sorted(board, key=_care_order)


# What the work behind pull requests cost: every session on the branch, and what is linked to it.


def load_pull_costs(
    store: Store, rows: Sequence[PullRow], every: Sequence[PullRow] | None = None
) -> dict[tuple[str, int], PullCost]:
    """By repository and number; a session on a branch that several pull requests had counts once.

    `every`: all pull requests that are known, by which that is decided.
    """
    branches = {row.branch for row in rows if row.branch} - {*MAIN_BRANCHES}
    linked = {row.attempt for row in rows if row.attempt}
    work = store.pulls.list_branch_work(branches, linked)
    pulls = [row for row in every or rows if row.branch in branches or row.attempt in linked]
    sessions: dict[tuple[str, int], list[BranchWork]] = {}
    for owner, one in assign_work(pulls, work):
        sessions.setdefault((owner.repo, owner.pull), []).append(one)
    return {
        (row.repo, row.pull): sum_work_costs(sessions.get((row.repo, row.pull), ())) for row in rows
    }


def assign_work(
    pulls: Sequence[PullRow], work: Sequence[BranchWork]
) -> Iterator[tuple[PullRow, BranchWork]]:
    """Each piece of work with its pull request: the one it is linked to, else that of its branch.

    Where a branch was used again, the first pull request that ended after the work began.
    """
    by_attempt = {row.attempt: row for row in pulls if row.attempt}
    by_branch: dict[str, list[PullRow]] = {}
    for row in sorted(pulls, key=lambda row: row.opened):
        if row.branch:
            by_branch.setdefault(row.branch, []).append(row)
    for one in work:
        owner = by_attempt.get(one.attempt)
        if owner is None and one.started is not None and one.repo is not None:
            name = repository_name(one.repo).lower()
            candidates = (row for row in by_branch.get(one.branch or "", ())
                          if row.repo.lower() == name)  # fmt: skip
            owner = next(
                (row for row in candidates if row.closed is None or one.started <= row.closed),
                None,
            )
        if owner is not None:
            yield owner, one


def sum_work_costs(work: Sequence[BranchWork]) -> PullCost:
    """Missing is not zero: a sum without one of them is not known."""
    known = [one.cost for one in work if one.cost is not None]
    without = len(work) - len(known)
    return PullCost(
        cost=sum(known) if known and not without else None,
        sessions=len(work),
        without_cost=without,
    )


def _known(value: float | None) -> float:
    return -1.0 if value is None else value


def _care_order(one: BoardRow) -> tuple[int, int, float, float]:
    state = 0 if one.pull.state == "open" and not one.pull.draft else 1
    if one.pull.state != "open":
        state = 2
    return state, -one.care, -_known(one.pull.added), -one.pull.opened.timestamp()


def collect_sizes(rows: Iterable[PullRow]) -> dict[str, list[int]]:
    """By repository, the lines that its pull requests add, in order."""
    sizes: dict[str, list[int]] = {}
    for row in rows:
        if row.added is not None:
            sizes.setdefault(row.repo, []).append(row.added)
    return {repo: sorted(known) for repo, known in sizes.items()}


def rank_band(row: PullRow, sizes: Sequence[int]) -> Band | None:
    """How large it is among the pull requests of its repository, itself left out."""
    if row.added is None or len(sizes) <= MIN_KNOWN_SIZES:
        return None
    return likelihood_band(bisect_left(sizes, row.added) / (len(sizes) - 1))


ReportSubject = str | tuple[str | None, str | None] | None
"""An attempt, or a repository and a commit."""


def _reports_by_commit(reports: Sequence[ReportRow]) -> Mapping[ReportSubject, ReportRow]:
    """The newest check of each attempt and commit that gave a level of risk."""
    newest: dict[ReportSubject, ReportRow] = {}
    for report in reversed(reports):
        if report.level is not None:
            if report.attempt:
                newest[report.attempt] = report
            if report.head:
                newest[report.repo, report.head[:SHORT_SHA_DIGITS]] = report
    return newest


def assess_care(row: PullRow, risk: RiskLevel | None, band: Band | None) -> BoardRow:
    """How much care a pull request deserves, in points, and for what."""
    points: list[tuple[int, str]] = [
        (RISK_POINTS[risk], f"risk {risk}" if risk else f"risk {NOT_KNOWN}"),
        (BAND_POINTS[band], f"a {band} change here" if band else f"size {NOT_KNOWN}"),
        (min(row.rounds, MAX_COUNTED_ROUNDS), count_with_noun(row.rounds, "review round")),
        (int(row.edits > 0), "edited by people"),
    ]
    if row.pointers:
        points.append((TAKEN_BACK_POINTS, "reverted or fixed later"))
    if row.last_push == "failed":
        points.append((FAILING_POINTS, "checks fail"))
    if row.state == "merged" and not row.reviewed and row.source != "git":
        points.append((UNREVIEWED_POINTS, "merged without review"))
    told = [one for one in points if one[0] and not one[1].endswith(NOT_KNOWN)]
    reasons = sorted(told, key=lambda one: -one[0])
    return BoardRow(
        pull=row,
        risk=risk,
        band=band,
        care=sum(number for number, _ in points),
        reasons=tuple(why for _, why in reasons),
    )
