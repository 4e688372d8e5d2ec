"""Pull requests side by side: risk, size, rounds, reverts and cost, by what deserves care."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from closeloop.changes.risk.risk_matrix import Band, likelihood_band
from closeloop.records.change import ReportRow, RiskLevel
from closeloop.records.pull_request import PullRow
from closeloop.records.record import Record
from closeloop.store import Store
from closeloop.store.pull_section import SHORT_SHA_DIGITS
from closeloop.text.wording import count_with_noun

MIN_KNOWN_SIZES = 20
"""Pull requests of a repository whose size must be known before one is called large there."""
MAX_REPORTS_READ = 500
MAX_COUNTED_ROUNDS = 3
RISK_POINTS: dict[RiskLevel | None, int] = {
    "critical": 6, "high": 4, "medium": 2, None: 1, "low": 0,
}  # fmt: skip
BAND_POINTS: dict[Band | None, int] = {"huge": 3, "large": 2, "medium": 1, None: 1, "small": 0}
TAKEN_BACK_POINTS, FAILING_POINTS, UNREVIEWED_POINTS = 4, 3, 2

PullOrder = Literal["care", "newest", "size", "cost"]


class BoardRow(Record):
    """One pull request with all that says how much care it deserves."""

    pull: PullRow
    risk: RiskLevel | None = None
    """By its label, else by the last check of its newest commit."""
    band: Band | None = None
    """Its lines added among those of the repository's pull requests; None where too few tell."""
    cost: float | None = None
    """Of the recorded work behind it, in US dollars."""
    care: int
    """Points: more deserve more care."""
    reasons: tuple[str, ...] = ()
    """What the points are for, the most telling first."""


def list_board(store: Store, rows: Sequence[PullRow], order: PullOrder = "care") -> list[BoardRow]:
    """Some pull requests, what deserves care first: open ones, drafts, then those that ended."""
    costs = store.pulls.load_costs([row.attempt for row in rows if row.attempt])
    sizes = collect_sizes(store.pulls.list_pulls())
    checked = _levels_by_commit(store.reports.list_reports(MAX_REPORTS_READ))
    board = [
        assess_care(
            row,
            row.risk or checked.get((row.repo, row.head)) or checked.get(row.attempt),
            rank_band(row, sizes.get(row.repo, ())),
            costs.get(row.attempt or ""),
        )
        for row in rows
    ]
    match order:
        case "newest":
            return sorted(board, key=lambda one: one.pull.opened, reverse=True)
        case "size":
            return sorted(board, key=lambda one: -_known(one.pull.added))
        case "cost":
            return sorted(board, key=lambda one: -_known(one.cost))
    return sorted(board, key=_care_order)


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


def _levels_by_commit(
    reports: Sequence[ReportRow],
) -> Mapping[str | tuple[str | None, str | None] | None, RiskLevel]:
    """What checks said of attempts and commits; the newest say it."""
    levels: dict[str | tuple[str | None, str | None] | None, RiskLevel] = {}
    for report in reversed(reports):
        if report.level is not None:
            if report.attempt:
                levels[report.attempt] = report.level
            if report.head:
                levels[report.repo, report.head[:SHORT_SHA_DIGITS]] = report.level
    return levels


def assess_care(
    row: PullRow, risk: RiskLevel | None, band: Band | None, cost: float | None
) -> BoardRow:
    """How much care a pull request deserves, in points, and for what."""
    points: list[tuple[int, str]] = [
        (RISK_POINTS[risk], f"risk {risk}" if risk else "risk not known"),
        (BAND_POINTS[band], f"a {band} change here" if band else "size not compared"),
        (min(row.rounds, MAX_COUNTED_ROUNDS), count_with_noun(row.rounds, "review round")),
        (int(row.edits > 0), "edited by people"),
    ]
    if row.pointers:
        points.append((TAKEN_BACK_POINTS, "reverted or fixed later"))
    if row.last_push == "failed":
        points.append((FAILING_POINTS, "checks fail"))
    if row.state == "merged" and not row.reviewed and row.source != "git":
        points.append((UNREVIEWED_POINTS, "merged without review"))
    reasons = sorted((one for one in points if one[0]), key=lambda one: -one[0])
    return BoardRow(
        pull=row,
        risk=risk,
        band=band,
        cost=cost,
        care=sum(number for number, _ in points),
        reasons=tuple(why for _, why in reasons),
    )
