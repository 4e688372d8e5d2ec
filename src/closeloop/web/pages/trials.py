"""Trials: variants that share the work by random assignment, and memory's control arm."""

from __future__ import annotations

from closeloop.metrics.attempt_table import AttemptTable
from closeloop.metrics.score_columns import attach_scores
from closeloop.metrics.variant_trials import (
    REPORTED_METRICS,
    describe_needed,
    list_assigned,
    list_trials,
    report_on_work,
)
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import Trial, TrialReport
from closeloop.records.record import Record
from closeloop.web.page import NoQuery, Page, PageNotFound
from closeloop.web.page_context import PageContext


class TrialLine(Record):
    """One trial of the list."""

    trial: Trial
    assigned: int
    report: TrialReport | None
    """None while it is counted, or where its score cannot be had."""


class TrialsView(Record):
    trials: tuple[TrialLine, ...]
    fresh: bool


class TrialAsked(Record):
    name: str


class TrialView(Record):
    trial: Trial
    report: TrialReport | None
    """None while it is counted."""
    reason: str | None
    """Why it cannot be."""
    metrics: tuple[str, ...]
    """The rate that decides first, then what else is looked at."""
    needed: dict[str, str]
    """By variant, what would say more."""
    fresh: bool


def trials(desk: PageContext, asked: NoQuery) -> TrialsView:
    lines, fresh = [], True
    for trial in list_trials(desk.store, desk.settings.memory):
        report, _, is_fresh = _load_report(desk, trial)
        count = len(list_assigned(desk.store, trial))
        lines.append(TrialLine(trial=trial, assigned=count, report=report))
        fresh = fresh and is_fresh
    return TrialsView(trials=tuple(lines), fresh=fresh)


def trial(desk: PageContext, asked: TrialAsked) -> TrialView:
    known = {one.name: one for one in list_trials(desk.store, desk.settings.memory)}
    if asked.name not in known:
        raise PageNotFound(f"There is no trial {asked.name!r}: `closeloop ab start` makes one.")
    chosen = known[asked.name]
    report, reason, fresh = _load_report(desk, chosen)
    standings = report.standings if report else ()
    return TrialView(
        trial=chosen,
        report=report,
        reason=reason,
        metrics=tuple(dict.fromkeys((chosen.metric, *REPORTED_METRICS))),
        needed={one.variant: describe_needed(one.comparison) for one in standings},
        fresh=fresh,
    )


def _load_report(desk: PageContext, trial: Trial) -> tuple[TrialReport | None, str | None, bool]:
    """How a trial stands, why that cannot be said, and whether all of it is counted."""

    def make_report(work: AttemptTable) -> tuple[TrialReport | None, str | None]:
        try:
            scored = attach_scores(work, desk.store, desk.score_catalogue, (trial.metric,))
            return report_on_work(scored, trial, list_assigned(desk.store, trial)), None
        except BadInput as fault:
            return None, str(fault)

    cached = desk.metric_cache.compute_from_work(f"trial {trial.name}", make_report)
    report, reason = cached.value or (None, None)
    return report, reason, cached.fresh


PAGES = (
    Page(
        path="/trials",
        show=trials,
        template="trials.html",
        about="Variants that share the work by random assignment, and memory's control arm.",
        section="Trials",
        key="x",
    ),
    Page(
        path="/trials/{name}",
        show=trial,
        template="trial.html",
        about="How one trial stands: verdict, interval, and what is still needed.",
        section="Trials",
    ),
)
