"""The first page, and the page of settings and health."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime

import msgspec

from closeloop import __version__
from closeloop.attempts.run_resources import describe_sandbox
from closeloop.metrics.attempt_groups import UNKNOWN_LABEL
from closeloop.metrics.attempt_selection import AttemptSelection
from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.evaluation_due import report_due
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.metrics.metric_trends import compute_trends
from closeloop.metrics.score_columns import attach_scores
from closeloop.metrics.variant_comparison import REVIEW_SCORE, compare_variants, default_scores
from closeloop.plugins import PluginKind, installed_plugins
from closeloop.records.attempt import AttemptFilter
from closeloop.records.errors import BadInput
from closeloop.records.estimate import CompareReport, MetricRegression, VersionMark
from closeloop.records.evaluation_due import DueReport
from closeloop.records.experiment_plan import ExperimentStatus
from closeloop.records.orchestration import OrchestrationRow
from closeloop.records.record import Record
from closeloop.records.settings import AccessToken
from closeloop.web.event_views import (
    FigureLine,
    FigureTable,
    TrendPoint,
    build_figure_lines,
    build_figure_table,
    build_trend_points,
)
from closeloop.web.page import NoQuery, Page
from closeloop.web.page_context import PageContext
from closeloop.web.pages.attempts import AttemptLine, attempt_lines
from closeloop.web.pages.experiments import current_experiment_statuses
from closeloop.web.pages.plans import list_running_plans
from closeloop.web.pages.review import count_unreviewed_items

PRODUCTION_METRICS = (
    "task completion rate", "regression introduction rate", "review loop count",
    "blast radius, files",
)  # fmt: skip
PROCESS_METRICS = ("handoff", "feedback", "recovery", "convergence")
VARIANT_METRICS = ("pass rate", "without findings", "convergence", "cost", "time")
MAX_VARIANTS = 6
"""As many as colours that can be told apart."""
MAX_REGRESSIONS = 5
MAX_RULE_COUNTS = 12
MAX_LATEST_ATTEMPTS = 8


class RuleCount(Record):
    """So many attempts of a variant, or sessions, show what a rule looks for."""

    rule: str
    about: str
    variant: str | None
    """None for sessions, which nobody asked for."""
    attempts: int


class Verdict(Record):
    """What the newest experiment with several variants says."""

    experiment: str
    report: CompareReport


class OverviewNumbers(Record):
    """What is counted over all attempts."""

    attempts: int
    outcome: tuple[FigureLine, ...]
    production: tuple[FigureLine, ...]
    delivered: bool
    """Whether any of those is known."""
    process: tuple[FigureLine, ...]
    variants: FigureTable
    """Of each name its newest version that was tried, as the verdict compares them."""
    older: int
    """Attempts of older versions of those variants, which the table leaves out."""
    trend: tuple[TrendPoint, ...]
    """The pass rate of the variants that were tried last, in rolling windows."""
    several: bool
    """Whether there is more than one window to look at."""
    weeks: int
    marks: tuple[VersionMark, ...]
    regressions: tuple[MetricRegression, ...]
    verdict: Verdict | None
    found: tuple[RuleCount, ...]
    notes: tuple[str, ...]


class OverviewView(Record):
    numbers: OverviewNumbers | None
    """None until they were counted the first time."""
    fresh: bool
    """Whether all that is stored is in them."""
    live: tuple[ExperimentStatus, ...]
    """Experiments that run now."""
    plans: tuple[OrchestrationRow, ...]
    """Plans that somebody carries out now."""
    waiting: int | None
    """Items of the review queue that nobody has looked at."""
    due: DueReport | None
    """What to run again, and which tasks are stale; None until it was looked at the first time."""
    latest: tuple[AttemptLine, ...]


def overview(desk: PageContext, asked: NoQuery) -> OverviewView:
    cached_numbers = desk.metric_cache.compute_from_work(
        "overview", lambda work: compute_overview_numbers(desk, work)
    )
    running, fresh = current_experiment_statuses(desk)
    return OverviewView(
        numbers=cached_numbers.value,
        fresh=cached_numbers.fresh and fresh,
        live=tuple(one for one in running if one.state == "running"),
        plans=list_running_plans(desk),
        waiting=count_unreviewed_items(desk),
        due=_report_due(desk),
        latest=_latest_attempt_lines(desk),
    )


def _report_due(desk: PageContext) -> DueReport | None:
    """This asks git and installed agents, and may take a while; it is made anew every day."""
    now = datetime.now(UTC)

    def make_report() -> DueReport:
        tasks = {one.id: one for one in desk.store.numbers.load_tasks().values()}
        return report_due(desk.store, [*tasks.values()], desk.settings, desk.root, now)

    mark = f"{desk.store_mark()} {now:%Y-%m-%d}"
    return desk.metric_cache.compute_from_store("due", mark, make_report).value


def _latest_attempt_lines(desk: PageContext) -> tuple[AttemptLine, ...]:
    sealed = desk.store.held_out.list_sealed_digests()
    return attempt_lines(
        desk,
        desk.store.listing.list_page(AttemptFilter(), MAX_LATEST_ATTEMPTS, without=sealed),
    )


def compute_overview_numbers(desk: PageContext, work: AttemptTable) -> OverviewNumbers:
    """All that takes long."""
    trends = compute_trends(work)
    if work.columns["unchecked"].any():
        work = attach_scores(work, desk.store, desk.score_catalogue, [REVIEW_SCORE])
    by_variant = [
        course
        for course in compute_trends(work, ("variant",), ("pass rate",)).courses
        if course.group["variant"] != UNKNOWN_LABEL
    ]
    by_variant.sort(key=lambda course: course.stretches[-1].until, reverse=True)
    names = dict.fromkeys(course.group["variant"] for course in by_variant)
    names |= dict.fromkeys(sorted(one.name for one in work.variants.values()))
    newest, older = _split_newest_versions(work)
    by_name = compute_metrics(newest, ("variant",), _variant_metrics(work))
    production = build_figure_lines(compute_metrics(work, (), PRODUCTION_METRICS))
    return OverviewNumbers(
        attempts=len(work),
        outcome=build_figure_lines(
            compute_metrics(work, (), ("pass rate", "without findings", "cost"))
        ),
        production=production,
        delivered=any(line.figure.value is not None for line in production),
        process=build_figure_lines(compute_metrics(work, (), PROCESS_METRICS)),
        variants=build_figure_table(by_name, MAX_RULE_COUNTS, tuple(names)),
        older=older,
        trend=build_trend_points(by_variant[:MAX_VARIANTS]),
        several=any(len(course.stretches) > 1 for course in by_variant[:MAX_VARIANTS]),
        weeks=trends.weeks,
        marks=trends.marks[-MAX_RULE_COUNTS:],
        regressions=trends.regressions[:MAX_REGRESSIONS],
        verdict=_newest_verdict(desk, work),
        found=_count_rule_findings(desk, work),
        notes=trends.notes,
    )


def _split_newest_versions(work: AttemptTable) -> tuple[AttemptTable, int]:
    """Attempts of the newest version of each variant, and how many others there are."""
    digests = work.columns["variant"].tolist()
    tried = set(digests)
    newest = {one.name: key for key, one in work.variants.items() if key in tried}
    kept = {*newest.values(), None}
    names = {name for name, key in zip(work.attempts, digests, strict=True) if key in kept}
    return work.select_rows(names), len(work) - len(names)


def _variant_metrics(work: AttemptTable) -> tuple[str, ...]:
    """Where tasks have no check, what people would merge comes first."""
    return (REVIEW_SCORE, *VARIANT_METRICS) if REVIEW_SCORE in work.metrics else VARIANT_METRICS


def _newest_verdict(desk: PageContext, work: AttemptTable) -> Verdict | None:
    """The first variant against the others, where there is something to compare."""
    for experiment in desk.store.list_experiments():
        if len(experiment.variants) > 1:
            known = [work.variants[key] for key in experiment.variants if key in work.variants]
            choices = [AttemptSelection(name=one.name, variants=(one.digest,)) for one in known]
            try:
                scores = default_scores(work, choices)
                report = compare_variants(work, choices, scores=scores)
                return Verdict(experiment=experiment.id, report=report)
            except BadInput:
                # It may be a look at held-out tasks, which are not compared here.
                continue
    return None


def _count_rule_findings(desk: PageContext, work: AttemptTable) -> tuple[RuleCount, ...]:
    about = {one.detector.rule.name: one.detector.rule.about for one in desk.rulebook.chosen}
    names = {None: None} | {digest: one.name for digest, one in work.variants.items()}
    counts: Counter[tuple[str | None, str]] = Counter()
    sealed = desk.store.held_out.list_sealed_digests()
    for (variant, rule), count in desk.store.counts.count_findings(sealed).items():
        if variant in names:
            counts[names[variant], rule] += count
    return tuple(
        RuleCount(rule=rule, about=about.get(rule, ""), variant=name, attempts=count)
        for (name, rule), count in counts.most_common(MAX_RULE_COUNTS)
    )


PAGES = (
    Page(
        path="/",
        api="/api/overview",
        show=overview,
        template="overview.html",
        about="What is happening, what got better or worse, and what needs a person.",
        section="Overview",
        key="o",
        charts=True,
    ),
)


# Settings and health: what holds here, how full the store is, and who may come in.

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
    """How this server stands."""

    version: str
    root: str
    store: str
    """Where facts are kept, without a password."""
    sandbox: str
    """What confines agents on this machine, and what is not enforced."""
    counts: dict[str, int]
    plugins: dict[str, tuple[str, ...]]
    """By kind, the names of what is installed."""
    tokens: tuple[AccessToken, ...]
    settings: str
    """As JSON, without what opens a door."""


def health(desk: PageContext, asked: NoQuery) -> HealthView:
    settings = msgspec.json.format(msgspec.json.encode(desk.settings), indent=2).decode()
    return HealthView(
        version=__version__,
        root=str(desk.root.absolute()),
        store=_hide_url_logins(desk.settings.store),
        sandbox=describe_sandbox(desk.settings.sandbox),
        counts=desk.store.listing.count_records(),
        plugins={kind: tuple(sorted(installed_plugins(kind))) for kind in PLUGIN_KINDS},
        tokens=tuple(desk.store.access.list_tokens()),
        settings=_hide_url_logins(settings),
    )


def _hide_url_logins(text: str) -> str:
    """Addresses without the name and password in them."""
    return _URL_LOGIN.sub("://", text)


HEALTH_PAGES = (
    Page(
        path="/settings",
        show=health,
        template="health.html",
        about="What holds here: settings, plug-ins, tokens, and how full the store is.",
        section="Settings",
        key="s",
    ),
)
