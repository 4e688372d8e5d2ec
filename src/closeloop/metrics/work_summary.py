"""A summary of work: a period compared with the one before, use by day, notable sessions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from closeloop.metrics.metric_definitions import (
    METRICS,
    count_unknown_costs,
    is_recorded,
    total_cost_values,
)
from closeloop.metrics.triage import ProgressDisplay, list_likely_failures
from closeloop.process.rulebook import Rulebook
from closeloop.records.attempt import AttemptFilter, AttemptMarks, AttemptRow, TimeRange
from closeloop.records.estimate import Metric, MetricsReport, PeriodShift
from closeloop.records.pull_request import PullRow
from closeloop.records.record import Record, Time
from closeloop.records.score import SessionTriage
from closeloop.store import Store
from closeloop.text.wording import count_with_noun, format_dollars

if TYPE_CHECKING:
    import numpy as np

    from closeloop.metrics.attempt_table import AttemptTable
    from closeloop.reviews.pull_board import PullCost

    Array = np.ndarray[Any, np.dtype[Any]]

COST_METRIC_NAMES = (
    "cost in all", "cost per merged pull request", "cost per passed task", "cost of failed work",
    "cost of retries",
)  # fmt: skip
COST_DIMENSIONS = ("week", "agent", "model", "repo")
COST_SERIES = ("model", "agent", "repo")
"""Dimensions by which cost is plotted over time."""
MAX_SERIES = 6
"""Number of distinguishable colours; the smallest series are merged."""
OTHER_SERIES = "other"
MAX_DAY_BUCKETS = 62
"""Number of days above which use is plotted by week."""
MIN_PEERS = 5
"""Sessions of an agent with a known cost needed for a median."""
MAX_LESSON_SESSIONS = 1000
MAX_LESSONS = 3
CHANGE_DAYS = 28
"""Days before and after a change that are compared."""
CHANGE_METRICS = (
    "review loop count", "CI pass rate on first push", "task completion rate", "pass rate",
    "without findings", "cost",
)  # fmt: skip


class CostReport(Record):
    """The cost of work, in total and by dimension."""

    whole: MetricsReport
    sides: tuple[MetricsReport, ...]
    """By week, agent, model and repository."""


def compute_cost_report(work: AttemptTable) -> CostReport:
    from closeloop.metrics.metric_figures import compute_metrics

    return CostReport(
        whole=compute_metrics(work, (), COST_METRIC_NAMES),
        sides=tuple(
            compute_metrics(work, (dimension,), COST_METRIC_NAMES) for dimension in COST_DIMENSIONS
        ),
    )


def select_period(work: AttemptTable, period: TimeRange) -> AttemptTable:
    """Return the attempts that started in a period.

    If it has neither start nor end, all of them, also those without a time.
    """
    if period.since is None and period.until is None:
        return work
    is_inside = _is_inside(work, period)
    names = {name for name, keep in zip(work.attempts, is_inside.tolist(), strict=True) if keep}
    return work.select_rows(names)


def _is_inside(work: AttemptTable, period: TimeRange) -> Array:
    import numpy as np

    started = work.columns["started"]
    is_inside: Array = np.isfinite(started)
    if period.since is not None:
        is_inside = is_inside & (started >= period.since.timestamp() * 1e6)
    if period.until is not None:
        is_inside = is_inside & (started < period.until.timestamp() * 1e6)
    return is_inside


# A period compared with the one before.


class PeriodTotals(Record):
    """Totals of the work in a period."""

    since: Time
    until: Time
    sessions: int
    """Recorded attempts that started in it."""
    cost: float | None
    """Known cost in US dollars; None if none is known."""
    unknown_cost: int
    """Number of attempts without a known cost."""
    with_findings: int
    """Number of sessions with findings."""
    merged: int
    """Number of agents' pull requests merged in it."""
    cost_per_merged: float | None
    """Mean cost in US dollars of those whose cost is known."""
    costed: int
    """Number of merged pull requests with a known cost."""


class PricedPull(Record):
    """A merged pull request of an agent, and the cost of the work behind it."""

    merged: Time
    cost: float | None


def list_priced_pulls(
    pulls: Sequence[PullRow], costs: Mapping[tuple[str, int], PullCost]
) -> list[PricedPull]:
    return [
        PricedPull(merged=row.closed, cost=costs[row.repo, row.pull].cost)
        for row in pulls
        if row.state == "merged" and row.agent is not None and row.closed is not None
    ]


def choose_period(
    work: AttemptTable, merged: Sequence[PricedPull], requested: TimeRange, now: datetime
) -> TimeRange:
    """Return the requested period; without a start, it begins with the first session or merge."""
    import numpy as np

    until = requested.until or now
    if requested.since is not None:
        return TimeRange(since=requested.since, until=until)
    started = work.columns["started"]
    times = [float(started[np.isfinite(started)].min(initial=np.inf))]
    times += [pull.merged.timestamp() * 1e6 for pull in merged]
    first = min(*times, until.timestamp() * 1e6)
    return TimeRange(since=datetime.fromtimestamp(first / 1e6, UTC), until=until)


def period_before(period: TimeRange) -> TimeRange:
    """Return the period of the same length that ends where this one starts."""
    assert period.since is not None
    assert period.until is not None
    return TimeRange(since=period.since - (period.until - period.since), until=period.since)


def total_period(
    work: AttemptTable, merged: Sequence[PricedPull], period: TimeRange, *, undated: bool = False
) -> PeriodTotals:
    """Sum the work in a period, if `undated` with the sessions whose time is unknown."""
    import numpy as np

    assert period.since is not None
    assert period.until is not None
    since, until = period.since, period.until
    is_inside = _is_inside(work, period)
    if undated:
        is_inside = is_inside | np.isnan(work.columns["started"])
    is_inside = is_inside & is_recorded(work.columns)
    costs = total_cost_values(work.columns)[is_inside]
    merged_pulls = [pull for pull in merged if since <= pull.merged < until]
    known_costs = [pull.cost for pull in merged_pulls if pull.cost is not None]
    return PeriodTotals(
        since=since,
        until=until,
        sessions=int(is_inside.sum()),
        cost=float(np.nansum(costs)) if np.isfinite(costs).any() else None,
        unknown_cost=int(count_unknown_costs(work.columns)[is_inside].sum()),
        with_findings=int((work.columns["findings"][is_inside] > 0).sum()),
        merged=len(merged_pulls),
        cost_per_merged=sum(known_costs) / len(known_costs) if known_costs else None,
        costed=len(known_costs),
    )


# Daily usage, for charts.


class UsePoint(Record):
    """The value of one series in one day or week."""

    at: Time
    """Start of the day or week."""
    name: str
    value: float


class UseByDay(Record):
    """Sessions, dollars and tokens over time."""

    days: int
    """Days per point: 1 or 7."""
    sessions: tuple[UsePoint, ...]
    """By agent."""
    cost: dict[str, tuple[UsePoint, ...]]
    """By model, agent and repository, in US dollars."""
    tokens: tuple[UsePoint, ...]
    """By kind: cache reads and writes are separate."""
    since: datetime
    """Start of the first day or week."""
    until: datetime
    """End of the last day or week."""


TOKEN_KINDS = {
    "fresh input": "input_tokens",
    "output": "output_tokens",
    "written to cache": "cache_write_tokens",
    "read from cache": "cache_read_tokens",
}


def sum_use_by_day(work: AttemptTable, period: TimeRange) -> UseByDay:
    """Sum the use in a period by day, or by week if it is long."""
    import numpy as np

    from closeloop.metrics.attempt_groups import DAY_MICROSECONDS, DIMENSIONS

    rows = np.flatnonzero(_is_inside(work, period) & is_recorded(work.columns))
    started = work.columns["started"][rows]
    day = np.floor(started / DAY_MICROSECONDS).tolist()
    first, last = _first_and_last_day(day, period)
    length = 7 if last - first > MAX_DAY_BUCKETS else 1
    bucket_days = [_bucket_start(day_number, length) for day_number in day]
    names = {dimension: DIMENSIONS[dimension](work)[rows].tolist() for dimension in COST_SERIES}
    kinds = {name: work.columns[column][rows] for name, column in TOKEN_KINDS.items()}
    tokens = [
        (bucket, name, value)
        for name, values in kinds.items()
        for bucket, value in zip(bucket_days, values.tolist(), strict=True)
    ]
    costs = total_cost_values(work.columns)[rows].tolist()
    ones = [1.0] * len(bucket_days)
    return UseByDay(
        days=length,
        sessions=_sum_points(zip(bucket_days, names["agent"], ones, strict=True)),
        cost={
            dimension: _sum_points(zip(bucket_days, names[dimension], costs, strict=True))
            for dimension in COST_SERIES
        },
        tokens=_sum_points(iter(tokens)),
        since=_day_start(_bucket_start(first, length)),
        until=_day_start(_bucket_start(last, length) + length),
    )


def _first_and_last_day(days: Sequence[float], period: TimeRange) -> tuple[float, float]:
    """Return the first and last day of the period, or of its sessions if it is open."""
    if period.since is None or period.until is None:
        return min(days, default=0.0), max(days, default=0.0)
    # A period that ends at midnight has no part of the day after.
    until = period.until - timedelta(microseconds=1)
    return period.since.timestamp() // 86400, until.timestamp() // 86400


def _bucket_start(day: float, length: int) -> float:
    """Return the day, or the Monday of its week: the first day of 1970 was a Thursday."""
    return (day + 3) // 7 * 7 - 3 if length == 7 else day


def _day_start(day: float) -> datetime:
    return datetime.fromtimestamp(day * 86400, UTC)


def _sum_points(values: Iterator[tuple[float, str | None, float]]) -> tuple[UsePoint, ...]:
    """Sum by day and name, the largest names first; the smallest are merged into one series."""
    from closeloop.metrics.attempt_groups import UNKNOWN_LABEL

    sums: defaultdict[tuple[float, str], float] = defaultdict(float)
    totals: defaultdict[str, float] = defaultdict(float)
    for day, name, value in values:
        if value == value and value:  # noqa: PLR0124 - NaN is not known
            sums[day, name or UNKNOWN_LABEL] += value
            totals[name or UNKNOWN_LABEL] += value
    order = sorted(totals, key=lambda name: (-totals[name], name))
    series_names = order if len(order) <= MAX_SERIES else order[: MAX_SERIES - 1]
    folded: defaultdict[tuple[float, str], float] = defaultdict(float)
    for (bucket, name), value in sums.items():
        folded[bucket, name if name in series_names else OTHER_SERIES] += value
    ranks = {name: rank for rank, name in enumerate([*series_names, OTHER_SERIES])}
    return tuple(
        UsePoint(at=_day_start(day), name=name, value=value)
        for (day, name), value in sorted(
            folded.items(), key=lambda item: (ranks[item[0][1]], item[0])
        )
    )


# Notable sessions: the most expensive, and those with the most findings.


class NotedSession(Record):
    """A session that stands out, and why."""

    attempt: str
    title: str | None
    agent: str | None
    model: str | None
    repo: str | None
    started: Time | None
    cost: float | None
    findings: int = 0
    """Number of findings of the rules."""
    why: tuple[str, ...]


def find_costliest(work: AttemptTable, limit: int) -> list[str]:
    """Return the attempts that cost most, the costliest first."""
    import numpy as np

    costs = work.columns["cost"]
    order = np.argsort(-np.nan_to_num(costs), kind="stable")[:limit]
    return [work.attempts[row] for row in order.tolist() if costs[row] > 0]


def find_most_findings(work: AttemptTable, limit: int) -> list[str]:
    """Return the attempts with most findings; of equals the latest first."""
    import numpy as np

    findings, started = work.columns["findings"], np.nan_to_num(work.columns["started"])
    order = np.lexsort((-started, -np.nan_to_num(findings)))[:limit]
    return [work.attempts[row] for row in order.tolist() if findings[row] > 0]


def median_costs(work: AttemptTable) -> dict[str | None, float]:
    """Return the median cost of sessions by agent, if it has enough of them."""
    import numpy as np

    from closeloop.metrics.attempt_groups import DIMENSIONS

    agents, costs = DIMENSIONS["agent"](work), work.columns["cost"]
    medians = {}
    for label in set(agents.labels):
        agent_costs = costs[agents.are((label,)) if label is not None else ~agents.known()]
        agent_costs = agent_costs[np.isfinite(agent_costs)]
        if len(agent_costs) >= MIN_PEERS:
            medians[label] = float(np.median(agent_costs))
    return medians


def note_session(
    row: AttemptRow, marks: AttemptMarks, medians: Mapping[str | None, float]
) -> NotedSession:
    """Build a note of a session with the reasons why it stands out."""
    reasons = []
    usual = medians.get(row.agent)
    if row.cost is not None and usual and row.cost >= 2 * usual:
        times = row.cost / usual
        reasons.append(f"{times:,.0f} × the median of {row.agent} ({format_dollars(usual)})")
    if row.turns is not None and row.turns > 1:
        reasons.append(count_with_noun(row.turns, "turn"))
    if row.outcome == "fail":
        reasons.append(row.reason or "failed")
    if marks.iterations > 1 and marks.converged_after is None:
        reasons.append(f"{marks.iterations} iterations, still failing")
    reasons += marks.rules
    return NotedSession(
        attempt=row.id,
        title=row.title,
        agent=row.agent,
        model=row.model,
        repo=row.repo,
        started=row.started,
        cost=row.cost,
        findings=marks.findings,
        why=tuple(reasons),
    )


# What changed: new prompts and models, and which metrics differ since.


class ChangeNote(Record):
    """A version first seen then, and what shifted since; no cause is implied."""

    at: Time
    what: str
    metric: Metric | None = None
    """The metric with the clearest shift; None if none is clear."""
    shift: PeriodShift | None = None
    """From the four weeks before to the four after."""


def list_changes(work: AttemptTable, limit: int) -> list[ChangeNote]:
    """List new prompts and agent-model pairs, newest first, without variants of experiments."""
    from closeloop.metrics.metric_trends import list_version_marks

    version_marks = [
        version_mark
        for version_mark in list_version_marks(work)
        if not version_mark.what.startswith("variant ")
    ]
    return [
        _describe_change(work, version_mark.at, version_mark.what)
        for version_mark in reversed(version_marks[-limit:])
    ]


def _describe_change(work: AttemptTable, changed_at: datetime, label: str) -> ChangeNote:
    from closeloop.metrics.metric_trends import estimate_shift

    started, moment = work.columns["started"] / 1e6, changed_at.timestamp()
    length = CHANGE_DAYS * 86400.0
    before = (started >= moment - length) & (started < moment)
    after = (started >= moment) & (started < moment + length)
    best: tuple[float, Metric, PeriodShift] | None = None
    for name in CHANGE_METRICS:
        metric, values_of = METRICS[name]
        values = values_of(work.columns)
        shift = estimate_shift(*(_known_values(values, mask) for mask in (before, after)))
        if shift is None or shift.low <= 0 <= shift.high:
            continue
        # Distance of the nearer bound from zero, relative to the width: used only for sorting.
        plainness = min(abs(shift.low), abs(shift.high)) / (shift.high - shift.low or 1.0)
        if best is None or plainness > best[0]:
            best = plainness, metric, shift
    if best is None:
        return ChangeNote(at=changed_at, what=label)
    return ChangeNote(at=changed_at, what=label, metric=best[1], shift=best[2])


def _known_values(values: Array, mask: Array) -> Array:
    import numpy as np

    selected: Array = values[mask]
    return selected[np.isfinite(selected)]


# What can be measured of sessions as soon as they are imported.


class SessionLessons(Record):
    """What the newest sessions of a store show at once."""

    sessions: int
    """Number of newest sessions examined."""
    first: Time | None
    last: Time | None
    """When the first and the last of them started, if known."""
    agents: dict[str, int]
    """Sessions by agent, most first."""
    cost: float | None
    unknown_cost: int
    rules: dict[str, int]
    """Sessions by rule with findings in them, most first."""
    costliest: tuple[NotedSession, ...]
    look_first: tuple[SessionTriage, ...]


def learn_from_sessions(
    store: Store,
    rulebook: Rulebook,
    show_progress: ProgressDisplay,
    limit: int = MAX_LESSON_SESSIONS,
    *,
    jobs: int = 1,
) -> SessionLessons | None:
    """Measure the newest sessions and summarise them; None if there are none."""
    session_filter = AttemptFilter(origin="production")
    rows = store.listing.list_page(session_filter, limit)
    if not rows:
        return None
    look_first = list_likely_failures(store, rulebook, rows, MAX_LESSONS, show_progress, jobs=jobs)
    marks_by_attempt = store.listing.load_marks([row.id for row in rows])
    starts = [row.started for row in rows if row.started is not None]
    costs = [row.cost for row in rows if row.cost is not None]
    agents = Counter(row.agent for row in rows if row.agent)
    rules = Counter(rule for mark in marks_by_attempt.values() for rule in mark.rules)
    by_agent: dict[str | None, list[float]] = {}
    for row in rows:
        if row.cost is not None:
            by_agent.setdefault(row.agent, []).append(row.cost)
    medians = {
        name: median(agent_costs)
        for name, agent_costs in by_agent.items()
        if len(agent_costs) >= MIN_PEERS
    }
    dearest = sorted((row for row in rows if row.cost), key=lambda row: -(row.cost or 0.0))
    return SessionLessons(
        sessions=len(rows),
        first=min(starts, default=None),
        last=max(starts, default=None),
        agents=dict(agents.most_common()),
        cost=sum(costs) if costs else None,
        unknown_cost=len(rows) - len(costs),
        rules=dict(rules.most_common()),
        costliest=tuple(
            note_session(row, marks_by_attempt.get(row.id, AttemptMarks()), medians)
            for row in dearest[:MAX_LESSONS]
        ),
        look_first=look_first,
    )
