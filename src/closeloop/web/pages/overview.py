"""The first page, and the page of settings and health."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from closeloop import __version__
from closeloop.attempts.run_resources import describe_sandbox
from closeloop.metrics.attempt_groups import UNKNOWN_LABEL
from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.evaluation_due import report_due
from closeloop.metrics.metric_definitions import is_recorded, total_cost_values
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.metrics.metric_trends import compute_trends, list_standing_regressions
from closeloop.metrics.score_columns import attach_scores
from closeloop.metrics.triage import TriageQuery, triage_sessions
from closeloop.metrics.variant_comparison import REVIEW_SCORE
from closeloop.metrics.work_summary import (
    ChangeNote,
    NotedSession,
    PeriodTotals,
    UseByDay,
    choose_period,
    compute_cost_report,
    find_costliest,
    find_most_findings,
    list_changes,
    list_priced_pulls,
    median_costs,
    note_session,
    period_before,
    select_period,
    sum_use_by_day,
    total_period,
)
from closeloop.plugins import PluginKind, installed_plugins
from closeloop.records.attempt import AttemptFilter, AttemptMarks, TimeRange
from closeloop.records.estimate import CompareReport, MetricRegression, VersionMark
from closeloop.records.experiment_plan import DueReport, ExperimentStatus
from closeloop.records.orchestration import OrchestrationRow
from closeloop.records.record import Record
from closeloop.records.score import TriageReport
from closeloop.records.settings import AccessToken
from closeloop.reviews.pull_board import BoardRow, list_board, load_pull_costs
from closeloop.reviews.review_queue import hidden_items
from closeloop.text.wording import short_repository_name
from closeloop.web.event_views import (
    FigureLine,
    FigureTable,
    TrendPoint,
    build_figure_lines,
    build_figure_table,
    build_trend_points,
)
from closeloop.web.page import CachedValue, NoQuery, Page, PageContext
from closeloop.web.pages.attempts import AttemptLine, attempt_lines
from closeloop.web.pages.experiments import (
    TrialLine,
    compare_tried_variants,
    current_experiment_statuses,
    trials,
)
from closeloop.web.pages.plans import list_running_plans
from closeloop.web.pages.review import count_unreviewed_items

PRODUCTION_METRICS = (
    "task completion rate", "regression introduction rate", "review loop count",
    "blast radius, files",
)  # fmt: skip
PROCESS_METRICS = ("handoff", "feedback", "recovery", "convergence")
VARIANT_METRICS = ("pass rate", "without findings", "convergence", "cost", "time")
MAX_VARIANTS = 6
"""As many as there are distinguishable colours."""
MAX_REGRESSIONS = 5
MAX_RULE_COUNTS = 12
MAX_LATEST_ATTEMPTS = 5
MAX_LOOK_FIRST = 5
MAX_NOTED = 5
MAX_CARE = 4
MAX_TRIAGED_SESSIONS = 1000
"""Number of newest sessions that are ranked; all of a large store would take too long."""
FIRST_PUSH_METRIC = "CI pass rate on first push"


class RuleCount(Record):
    """The number of attempts of a variant, or of sessions, with findings of a rule."""

    rule: str
    about: str
    variant: str | None
    """None for imported sessions."""
    attempts: int


class Verdict(Record):
    """The result of the newest experiment with several variants."""

    experiment: str
    report: CompareReport


class WorkGlance(Record):
    """A period compared with the one before it, and what stands out."""

    label: str
    """Name of the period."""
    period: PeriodTotals
    before: PeriodTotals
    use: UseByDay
    """In the period."""
    first_push: tuple[TrendPoint, ...]
    """Share of first pushes on which CI passed, by week."""
    costliest: tuple[NotedSession, ...]
    most_found: tuple[NotedSession, ...]
    changes: tuple[ChangeNote, ...]
    """New prompts and models, and what changed since; observational."""


class OverviewNumbers(Record):
    """Metrics over all attempts."""

    attempts: int
    glance: WorkGlance | None
    """None if no attempt has a time."""
    outcome: tuple[FigureLine, ...]
    production: tuple[FigureLine, ...]
    delivered: bool
    """Whether any of those has a value."""
    process: tuple[FigureLine, ...]
    variants: FigureTable
    """The newest tried version of each variant name, as the verdict compares them."""
    older: int
    """Attempts of older versions of those variants, which the table omits."""
    trend: tuple[TrendPoint, ...]
    """Pass rate of the variants that were run last, in rolling windows."""
    several: bool
    """Whether there is more than one window to show."""
    weeks: int
    marks: tuple[VersionMark, ...]
    regressions: tuple[MetricRegression, ...]
    verdict: Verdict | None
    found: tuple[RuleCount, ...]
    more_found: int
    """Number of rules with findings that are not listed."""
    notes: tuple[str, ...]


MAX_TRIALS = 3


class OverviewView(Record):
    asked: TimeRange
    numbers: OverviewNumbers | None
    """None until computed for the first time."""
    fresh: bool
    """Whether the numbers include everything that is stored."""
    live: tuple[ExperimentStatus, ...]
    """Experiments that are running."""
    plans: tuple[OrchestrationRow, ...]
    """Plans that are running."""
    waiting: int | None
    """Items of the review queue without a review."""
    due: DueReport | None
    """What to run again, and which tasks are stale; None until computed for the first time."""
    look_first: TriageReport | None
    """Sessions with unknown result, most probable failures first; None until computed."""
    care: tuple[BoardRow, ...]
    """Open pull requests of agents that need attention."""
    trials: tuple[TrialLine, ...]
    """The newest trials."""
    latest: tuple[AttemptLine, ...]


def overview(page_context: PageContext, time_range: TimeRange) -> OverviewView:
    now = datetime.now(UTC)
    cached_numbers = page_context.metric_cache.compute_from_work(
        f"overview {time_range} {now:%Y-%m-%d %H}",
        lambda work: compute_overview_numbers(page_context, work, time_range, now),
    )
    running, fresh = current_experiment_statuses(page_context)
    look_first = _triage_newest(page_context, time_range, now)
    all_trials = trials(page_context, NoQuery())
    return OverviewView(
        asked=time_range,
        numbers=cached_numbers.value,
        fresh=cached_numbers.fresh and fresh and look_first.fresh and all_trials.fresh,
        live=tuple(status for status in running if status.state == "running"),
        plans=list_running_plans(page_context),
        waiting=count_unreviewed_items(page_context),
        due=_report_due(page_context),
        look_first=look_first.value,
        care=_pulls_that_need_care(page_context),
        trials=all_trials.trials[-MAX_TRIALS:],
        latest=_latest_attempt_lines(page_context, time_range),
    )


def _triage_newest(
    page_context: PageContext, time_range: TimeRange, now: datetime
) -> CachedValue[TriageReport]:
    """Rank the sessions of the time range; the newest sessions define what is usual."""

    def rank_sessions(work: AttemptTable) -> TriageReport:
        attempt_filter = AttemptFilter(until=time_range.until)
        tries = page_context.store.listing.list_page(attempt_filter, MAX_TRIAGED_SESSIONS)
        query = TriageQuery(since=time_range.since, limit=MAX_LOOK_FIRST)
        return triage_sessions(page_context.store, page_context.rulebook, query, tries=tries)

    # If all attempts are counted, their measurements are reused here.
    return page_context.metric_cache.compute_from_work(
        f"look first {time_range} {now:%Y-%m-%d}", rank_sessions
    )


def _pulls_that_need_care(page_context: PageContext) -> tuple[BoardRow, ...]:
    rows = page_context.store.pulls.list_pulls(state="open", agent=True)
    hidden = hidden_items(page_context.store) if rows else set()
    rows = [row for row in rows if f"{row.repo}#{row.pull}" not in hidden]
    board = list_board(page_context.store, rows, page_context.store.pulls.list_pulls())
    return tuple(row for row in board if row.reasons)[:MAX_CARE]


def _report_due(page_context: PageContext) -> DueReport | None:
    """Compute daily what is due; this runs git and installed agents, and may take a while."""
    now = datetime.now(UTC)

    def make_report() -> DueReport:
        tasks = {task.id: task for task in page_context.store.numbers.load_tasks().values()}
        return report_due(
            page_context.store, [*tasks.values()], page_context.settings, page_context.root, now
        )

    mark = f"{page_context.store_mark()} {now:%Y-%m-%d}"
    return page_context.metric_cache.compute_from_store("due", mark, make_report).value


def _latest_attempt_lines(
    page_context: PageContext, time_range: TimeRange
) -> tuple[AttemptLine, ...]:
    sealed = page_context.store.held_out.list_sealed_digests()
    attempt_filter = AttemptFilter(since=time_range.since, until=time_range.until)
    return attempt_lines(
        page_context,
        page_context.store.listing.list_page(attempt_filter, MAX_LATEST_ATTEMPTS, without=sealed),
    )


def compute_overview_numbers(
    page_context: PageContext, everything: AttemptTable, time_range: TimeRange, now: datetime
) -> OverviewNumbers:
    """Compute all slow parts of the page."""
    work = select_period(everything, time_range)
    trends = compute_trends(work)
    glance = _compute_glance(page_context, everything, time_range, now)
    if everything.columns["unchecked"].any():
        everything = attach_scores(
            everything, page_context.store, page_context.score_catalogue, [REVIEW_SCORE]
        )
        work = select_period(everything, time_range)
    by_variant = [
        series
        for series in compute_trends(work, ("variant",), ("pass rate",)).courses
        if series.group["variant"] != UNKNOWN_LABEL
    ]
    by_variant.sort(key=lambda series: series.stretches[-1].until, reverse=True)
    names = dict.fromkeys(series.group["variant"] for series in by_variant)
    names |= dict.fromkeys(sorted(variant.name for variant in work.variants.values()))
    newest, older = _split_newest_versions(work)
    by_name = compute_metrics(newest, ("variant",), _variant_metrics(work))
    production = build_figure_lines(compute_metrics(work, (), PRODUCTION_METRICS))
    rule_counts = _count_rule_findings(page_context, work, time_range)
    return OverviewNumbers(
        attempts=len(work),
        glance=glance,
        outcome=build_figure_lines(
            compute_metrics(work, (), ("pass rate", "without findings", "cost"))
        ),
        production=production,
        delivered=any(line.figure.value is not None for line in production),
        process=build_figure_lines(compute_metrics(work, (), PROCESS_METRICS)),
        variants=build_figure_table(by_name, MAX_RULE_COUNTS, tuple(names), keep_empty=True),
        older=older,
        trend=build_trend_points(by_variant[:MAX_VARIANTS]),
        several=any(len(series.stretches) > 1 for series in by_variant[:MAX_VARIANTS]),
        weeks=trends.weeks,
        marks=trends.marks[-MAX_RULE_COUNTS:],
        regressions=tuple(list_standing_regressions(trends)[:MAX_REGRESSIONS]),
        verdict=_newest_verdict(page_context, everything),
        found=rule_counts[:MAX_RULE_COUNTS],
        more_found=max(0, len(rule_counts) - MAX_RULE_COUNTS),
        notes=trends.notes,
    )


def _compute_glance(
    page_context: PageContext, work: AttemptTable, time_range: TimeRange, now: datetime
) -> WorkGlance | None:
    import numpy as np

    if not np.isfinite(work.columns["started"]).any():
        return None
    period_work = select_period(work, time_range)
    pulls = page_context.store.pulls.list_pulls(agent=True)
    merged = list_priced_pulls(pulls, load_pull_costs(page_context.store, pulls))
    period = choose_period(work, merged, time_range, now)
    pushes = compute_trends(period_work, (), (FIRST_PUSH_METRIC,), weeks=1).courses
    return WorkGlance(
        label="All time" if time_range == TimeRange() else "In this time range",
        period=total_period(work, merged, period, undated=time_range == TimeRange()),
        before=total_period(work, merged, period_before(period)),
        use=sum_use_by_day(work, time_range if time_range.since is None else period),
        first_push=build_trend_points(pushes),
        costliest=note_sessions(page_context, work, find_costliest(period_work, MAX_NOTED)),
        most_found=note_sessions(page_context, work, find_most_findings(period_work, MAX_NOTED)),
        changes=tuple(
            list_changes(select_period(work, TimeRange(until=time_range.until)), MAX_CARE)
        ),
    )


def note_sessions(
    page_context: PageContext, work: AttemptTable, names: Sequence[str]
) -> tuple[NotedSession, ...]:
    rows = [row for name in names if (row := page_context.store.listing.load_row(name)) is not None]
    marks, medians = page_context.load_attempt_marks(rows), median_costs(work)
    return tuple(note_session(row, marks.get(row.id, AttemptMarks()), medians) for row in rows)


def _split_newest_versions(work: AttemptTable) -> tuple[AttemptTable, int]:
    """Return the attempts of the newest version of each variant, and the number of others."""
    digests = work.columns["variant"].tolist()
    tried_digests = set(digests)
    newest = {variant.name: key for key, variant in work.variants.items() if key in tried_digests}
    kept_digests = {*newest.values(), None}
    names = {name for name, key in zip(work.attempts, digests, strict=True) if key in kept_digests}
    return work.select_rows(names), len(work) - len(names)


def _variant_metrics(work: AttemptTable) -> tuple[str, ...]:
    """Return the metrics of the table; `would-merge` comes first if tasks have no check."""
    return (REVIEW_SCORE, *VARIANT_METRICS) if REVIEW_SCORE in work.metrics else VARIANT_METRICS


def _newest_verdict(page_context: PageContext, work: AttemptTable) -> Verdict | None:
    """Compare the first variant with the others, in the newest experiment where that is
    possible."""
    for experiment in page_context.store.list_experiments():
        report = compare_tried_variants(work, experiment)
        if report is not None:
            return Verdict(experiment=experiment.id, report=report)
    return None


def _count_rule_findings(
    page_context: PageContext, work: AttemptTable, time_range: TimeRange
) -> tuple[RuleCount, ...]:
    descriptions = {
        entry.detector.rule.name: entry.detector.rule.about
        for entry in page_context.rulebook.chosen
    }
    names = {None: None} | {digest: variant.name for digest, variant in work.variants.items()}
    counts: Counter[tuple[str | None, str]] = Counter()
    sealed = page_context.store.held_out.list_sealed_digests()
    for (variant, rule), count in page_context.store.counts.count_findings(
        sealed, time_range
    ).items():
        if variant in names:
            counts[names[variant], rule] += count
    return tuple(
        RuleCount(rule=rule, about=descriptions.get(rule, ""), variant=name, attempts=count)
        for (name, rule), count in counts.most_common()
    )


PAGES = (
    Page(
        path="/",
        api="/api/overview",
        show=overview,
        template="overview.html",
        about="Current work, changes in metrics, and items that need a person.",
        section="Overview",
        key="o",
        charts=True,
    ),
)


# Settings and health: configuration, size of the store, and access.

PLUGIN_KINDS: tuple[PluginKind, ...] = (
    "agents",
    "readers",
    "detectors",
    "checks",
    "judges",
    "encoders",
)
_URL_LOGIN = re.compile(r"://[^/@\s\"]{1,300}@")


class HealthView(Record):
    """The state of this server."""

    version: str
    root: str
    store: str
    """Address of the store, without a password."""
    sandbox: str
    """The sandbox for agents on this machine, and what it does not enforce."""
    counts: dict[str, int]
    superseded: int | None
    """Attempts with an earlier version of a session that was imported again; None until counted."""
    plugins: dict[str, tuple[str, ...]]
    """Names of installed plug-ins by kind."""
    tokens: tuple[AccessToken, ...]
    settings: str
    """As JSON, without secrets."""
    groups: dict[str, dict[str, str]] = {}
    """The same by table of closeloop.toml: each key with its value."""


def health(page_context: PageContext, query: NoQuery) -> HealthView:
    settings = msgspec.json.format(msgspec.json.encode(page_context.settings), indent=2).decode()
    counts = page_context.store.listing.count_records()
    current = page_context.metric_cache.compute_from_store(
        "current attempts",
        page_context.store_mark(),
        lambda: page_context.store.listing.count_matches(AttemptFilter()),
    ).value
    return HealthView(
        version=__version__,
        root=str(page_context.root.absolute()),
        store=_hide_url_logins(page_context.settings.store),
        sandbox=describe_sandbox(page_context.settings.sandbox),
        counts=counts,
        superseded=None if current is None else max(0, counts.get("attempts", 0) - current),
        plugins={kind: tuple(sorted(installed_plugins(kind))) for kind in PLUGIN_KINDS},
        tokens=tuple(page_context.store.access.list_tokens()),
        settings=_hide_url_logins(settings),
        groups=_group_settings(msgspec.to_builtins(page_context.settings)),
    )


def _group_settings(settings: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return by table name its keys with dots; keys outside a table are under an empty name."""
    tables: dict[str, dict[str, str]] = {"": {}}
    for name, value in settings.items():
        if isinstance(value, dict):
            if value:
                tables[name] = dict(_flatten_settings(value))
        else:
            tables[""][name] = _setting_text(value)
    return {name: values for name, values in tables.items() if values}


def _flatten_settings(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flatten_settings(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", _setting_text(value)


def _setting_text(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return _hide_url_logins(text)


def _hide_url_logins(text: str) -> str:
    """Remove user names and passwords from URLs in a text."""
    return _URL_LOGIN.sub("://", text)


HEALTH_PAGES = (
    Page(
        path="/settings",
        show=health,
        template="health.html",
        about="Settings, plug-ins, tokens and records in the store.",
        section="Settings",
        key="s",
    ),
)


# Costs: per merged pull request and passed task, by week, agent, model and repository.


MAX_ROWS = 12
MAX_COSTLIEST = 10


class SessionCosts(Record):
    """The distribution of costs over sessions with a known cost."""

    priced: int
    median: float
    mean: float
    dearest: int
    """Number of the most expensive sessions: a tenth of all, rounded up."""
    dearest_share: float
    """Their share of the total cost."""


class CostNumbers(Record):
    """Costs of the attempts in a time range."""

    attempts: int
    totals: tuple[FigureLine, ...]
    """In total; per merged pull request and passed task; of failures and of repeated attempts."""
    unknown: int
    """Attempts and earlier tries without a known cost; no sum includes them."""
    sides: tuple[FigureTable, ...]
    """By week (newest first), agent, model and repository (most expensive first)."""
    use: UseByDay
    costliest: tuple[NotedSession, ...]
    session: SessionCosts | None = None
    """None if no cost is known, or none is above zero."""


class CostView(Record):
    asked: TimeRange
    numbers: CostNumbers | None
    """None until computed for the first time."""
    fresh: bool


def cost(page_context: PageContext, time_range: TimeRange) -> CostView:
    cached_numbers = page_context.metric_cache.compute_from_work(
        f"cost {time_range}", lambda work: _compute_cost_numbers(page_context, work, time_range)
    )
    return CostView(asked=time_range, numbers=cached_numbers.value, fresh=cached_numbers.fresh)


def _compute_cost_numbers(
    page_context: PageContext, everything: AttemptTable, time_range: TimeRange
) -> CostNumbers:
    work = select_period(everything, time_range)
    report = compute_cost_report(work)
    totals = build_figure_lines(report.whole)
    in_all = totals[0].figure if totals else None
    drawn = TimeRange(since=time_range.since, until=time_range.until or datetime.now(UTC))
    return CostNumbers(
        attempts=int(is_recorded(work.columns).sum()),
        totals=totals,
        unknown=int(in_all.more.get("unknown", 0)) if in_all else 0,
        sides=tuple(
            build_figure_table(side, MAX_ROWS, _order_groups(side.by[0], build_figure_lines(side)))
            for side in report.sides
        ),
        use=_name_repositories(sum_use_by_day(work, drawn)),
        costliest=note_sessions(page_context, everything, find_costliest(work, MAX_COSTLIEST)),
        session=_session_costs(work),
    )


def _name_repositories(use: UseByDay) -> UseByDay:
    """Name repositories by the last part of their addresses, as the tables beside the charts do."""
    points = tuple(
        msgspec.structs.replace(point, name=_name_repository(point.name))
        for point in use.cost.get("repo", ())
    )
    return msgspec.structs.replace(use, cost={**use.cost, "repo": points})


def _name_repository(name: str) -> str:
    return "unknown" if name == UNKNOWN_LABEL else short_repository_name(name) or name


def _session_costs(work: AttemptTable) -> SessionCosts | None:
    import numpy as np

    costs = total_cost_values(work.columns)[is_recorded(work.columns)]
    costs = np.sort(costs[np.isfinite(costs)])[::-1]
    total = float(costs.sum())
    if not total:
        return None
    dearest = math.ceil(len(costs) / 10)
    return SessionCosts(
        priced=len(costs),
        median=float(np.median(costs)),
        mean=total / len(costs),
        dearest=dearest,
        dearest_share=float(costs[:dearest].sum()) / total,
    )


def _order_groups(dimension: str, lines: tuple[FigureLine, ...]) -> list[str]:
    """Return weeks from the newest, other groups from the most expensive."""
    totals = {
        line.figure.group[dimension]: line.figure.value or 0.0
        for line in lines
        if line.metric.name == "cost in all"
    }
    if dimension == "week":
        return sorted(totals, key=lambda week: "" if week == UNKNOWN_LABEL else week, reverse=True)
    return sorted(totals, key=lambda name: (-totals[name], name))


COST_PAGES = (
    Page(
        path="/cost",
        show=cost,
        template="cost.html",
        about="Cost per merged pull request and per passed task, by week, agent, model and "
        "repository.",
        section="Cost",
        key="d",
        charts=True,
    ),
)
