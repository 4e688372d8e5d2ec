"""The first page: what is happening, what got better or worse, and what needs a person."""

from __future__ import annotations

from collections import Counter

from closeloop.measuring.choosing import Choice
from closeloop.measuring.compare import compare
from closeloop.measuring.groups import NONE
from closeloop.measuring.metrics import metrics_of
from closeloop.measuring.trends import trends_of
from closeloop.measuring.work import Work
from closeloop.model.errors import BadInput
from closeloop.model.listing import Filter
from closeloop.model.orchestration import PlanRow
from closeloop.model.plan import Course
from closeloop.model.record import Record
from closeloop.model.trend import Regression, VersionMark
from closeloop.model.versus import CompareReport
from closeloop.tasks.seal import hide_row
from closeloop.web.desk import Desk
from closeloop.web.page import Nothing, Page
from closeloop.web.pages.attempts import AttemptLine, lines_of
from closeloop.web.pages.experiments import courses_now
from closeloop.web.pages.plans import plans_now
from closeloop.web.pages.review import unreviewed
from closeloop.web.views.figures import (
    FigureLine,
    FigureTable,
    TrendPoint,
    figure_lines,
    figure_table,
    trend_points,
)

PRODUCTION = (
    "task completion rate", "regression introduction rate", "review loop count",
    "blast radius, files",
)  # fmt: skip
PROCESS = ("handoff", "feedback", "recovery", "convergence")
OF_VARIANTS = ("pass rate", "without findings", "convergence", "cost", "time")
MOST_VARIANTS = 6
"""As many as colours that can be told apart."""
MOST_REGRESSIONS = 5
MOST_FOUND = 12
LATEST = 8


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
    trend: tuple[TrendPoint, ...]
    """The pass rate of the variants that were tried last, in rolling windows."""
    several: bool
    """Whether there is more than one window to look at."""
    weeks: int
    marks: tuple[VersionMark, ...]
    regressions: tuple[Regression, ...]
    verdict: Verdict | None
    found: tuple[RuleCount, ...]
    notes: tuple[str, ...]


class OverviewView(Record):
    numbers: OverviewNumbers | None
    """None until they were counted the first time."""
    fresh: bool
    """Whether all that is stored is in them."""
    live: tuple[Course, ...]
    """Experiments that run now."""
    plans: tuple[PlanRow, ...]
    """Plans that somebody carries out now."""
    waiting: int | None
    """Items of the review queue that nobody has looked at."""
    latest: tuple[AttemptLine, ...]


def overview(desk: Desk, asked: Nothing) -> OverviewView:
    counted = desk.counting.of_work("overview", lambda work: numbers_of(desk, work))
    running, fresh = courses_now(desk)
    return OverviewView(
        numbers=counted.value,
        fresh=counted.fresh and fresh,
        live=tuple(one for one in running if one.state == "running"),
        plans=plans_now(desk),
        waiting=unreviewed(desk),
        latest=_latest(desk),
    )


def _latest(desk: Desk) -> tuple[AttemptLine, ...]:
    sealed = desk.store.held_out.sealed()
    rows = [hide_row(row, sealed) for row in desk.store.listing.page(Filter(), LATEST)]
    return lines_of(desk, rows)


def numbers_of(desk: Desk, work: Work) -> OverviewNumbers:
    """All that takes long."""
    trends = trends_of(work)
    by_variant = [
        course
        for course in trends_of(work, ("variant",), ("pass rate",)).courses
        if course.group["variant"] != NONE
    ]
    by_variant.sort(key=lambda course: course.stretches[-1].until, reverse=True)
    names = dict.fromkeys(course.group["variant"] for course in by_variant)
    names |= dict.fromkeys(sorted(one.name for one in work.variants.values()))
    by_name = metrics_of(work, ("variant",), OF_VARIANTS)
    production = figure_lines(metrics_of(work, (), PRODUCTION))
    return OverviewNumbers(
        attempts=len(work),
        outcome=figure_lines(metrics_of(work, (), ("pass rate", "without findings", "cost"))),
        production=production,
        delivered=any(line.figure.value is not None for line in production),
        process=figure_lines(metrics_of(work, (), PROCESS)),
        variants=figure_table(by_name, MOST_FOUND, tuple(names)),
        trend=trend_points(by_variant[:MOST_VARIANTS]),
        several=any(len(course.stretches) > 1 for course in by_variant[:MOST_VARIANTS]),
        weeks=trends.weeks,
        marks=trends.marks[-MOST_FOUND:],
        regressions=trends.regressions[:MOST_REGRESSIONS],
        verdict=_verdict(desk, work),
        found=_found(desk, work),
        notes=trends.notes,
    )


def _verdict(desk: Desk, work: Work) -> Verdict | None:
    """The first variant against the others, where there is something to compare."""
    for experiment in desk.store.experiments():
        if len(experiment.variants) > 1:
            known = [work.variants[key] for key in experiment.variants if key in work.variants]
            choices = [Choice(name=one.name, variants=(one.digest,)) for one in known]
            try:
                return Verdict(experiment=experiment.id, report=compare(work, choices))
            except BadInput:
                return None
    return None


def _found(desk: Desk, work: Work) -> tuple[RuleCount, ...]:
    about = {one.detector.rule.name: one.detector.rule.about for one in desk.book.chosen}
    names = {None: None} | {digest: one.name for digest, one in work.variants.items()}
    counts: Counter[tuple[str | None, str]] = Counter()
    for (variant, rule), count in desk.store.counts.findings().items():
        if variant in names:
            counts[names[variant], rule] += count
    return tuple(
        RuleCount(rule=rule, about=about.get(rule, ""), variant=name, attempts=count)
        for (name, rule), count in counts.most_common(MOST_FOUND)
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
